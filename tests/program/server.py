"""Forks copies of itself that run a program: see the package. Each connection is one start, with a process that waits for its end."""

from __future__ import annotations

import array
import atexit
import fcntl
import gc
import os
import runpy
import select
import signal
import socket
import sys
import termios
import threading
import time
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import NamedTuple

MAX_BYTES = 1 << 20
STREAMS = 3


class Start(NamedTuple):
    """What a copy is to run, and where."""

    folder: str
    args: list[str]
    environ: dict[str, str]
    streams: list[int]


def main() -> None:
    for name in sys.argv[1:]:
        import_module(name)
    if cli := sys.modules.get("refold.cli.main"):
        build_commands(cli.app)
    assert threading.active_count() == 1, "a copy would be without the other threads"
    gc.collect()
    gc.freeze()  # so that copies share what is there
    if start := serve():
        become(start)
        try:
            run(start.args[0])
        except SystemExit as end:
            if isinstance(end.code, int):
                leave(end.code)
            raise


def build_commands(app: object) -> None:
    """Build the tree of commands once for all copies. Typer builds it in each, which takes half of the time of a short command."""
    typer = import_module("typer.main")
    tree = typer.get_command(app)
    typer.get_command = lambda _app: tree


def serve() -> Start | None:
    """Wait for connections. It returns in every copy with what that is to run, and in the server with nothing when its stdin ends."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind("")  # the kernel gives it a name
        listener.listen(64)
        sys.stdout.write(f"{listener.getsockname()[1:].decode()}\n")
        sys.stdout.flush()
        while 0 not in (ready := select.select([listener, 0], [], [], 1)[0]):
            if ready:
                connection, _ = listener.accept()
                with connection:
                    if not os.fork():
                        listener.close()
                        return watch(connection)
            collect_ended()
    collect_ended(must_wait=True)
    return None


def watch(connection: socket.socket) -> Start | None:
    """Fork the copy, in which this returns. This process tells the one that asked how the copy ends, and ends it if that one is gone."""
    start = received(connection)
    if not (copy := os.fork()):
        connection.close()
        return start
    for stream in start.streams:
        os.close(stream)
    end = os.pidfd_open(copy)
    with suppress(OSError):  # the one that asked may be gone already: that shows below
        connection.send(str(copy).encode())
    if end not in select.select([end, connection], [], [])[0]:
        signal.pidfd_send_signal(end, signal.SIGKILL)
    _, status = os.waitpid(copy, 0)
    with suppress(OSError):  # nobody may be there any more
        connection.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def received(connection: socket.socket) -> Start:
    streams = array.array("i")
    data, ancillary, _, _ = connection.recvmsg(MAX_BYTES, socket.CMSG_SPACE(STREAMS * streams.itemsize))
    for _, _, descriptors in ancillary:
        streams.frombytes(descriptors)
    folder, count, *rest = map(os.fsdecode, data.split(b"\0"))
    args, environ = rest[: int(count)], rest[int(count) :]
    pairs = (one.partition("=") for one in environ)
    return Start(folder, args, {name: value for name, _, value in pairs}, list(streams))


def become(start: Start) -> None:
    """Take on what a new process has from the one that starts it."""
    for number, stream in enumerate(start.streams):
        os.dup2(stream, number)
        os.close(stream)
    utf8 = partial(open, encoding="utf-8", closefd=False)
    sys.stdin = sys.__stdin__ = utf8(0)
    sys.stdout = sys.__stdout__ = utf8(1, "w")
    sys.stderr = sys.__stderr__ = utf8(2, "w", errors="backslashreplace", buffering=1)
    if os.isatty(0):
        take_terminal()
    os.chdir(start.folder)
    os.environ.clear()
    os.environ.update(start.environ)
    time.tzset()
    sys.argv = list(start.args)
    read_failpoint()


def read_failpoint() -> None:
    """Read anew what a module of the stores reads from the environment when it is imported."""
    if commit := sys.modules.get("refold.stores.sql.commit"):
        commit._name, _, rest = os.environ.get("REFOLD_FAILPOINT", "").partition(":")
        commit._action, _, times = rest.partition(":")
        commit._left = int(times or 1)


def run(name: str) -> None:
    """Run a module, or a script, as Python does."""
    if name.endswith(".py"):
        sys.path.insert(0, os.path.dirname(name))  # noqa: PTH120
        runpy.run_path(name, run_name="__main__")
    else:
        if name != "refold":
            sys.path.insert(0, os.getcwd())  # noqa: PTH109
        runpy.run_module(name, run_name="__main__", alter_sys=True)


def leave(code: int) -> None:
    """End as Python does, but leave the modules as they are: taking them apart takes as long as most commands.

    It returns where output cannot be written, so that Python says so.
    """
    threading._shutdown()
    atexit._run_exitfuncs()
    gc.collect()  # what complains when it goes does so
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def take_terminal() -> None:
    """Make the terminal on stdin that of a session of this process, so that Ctrl-C is a signal for it, also where a shell
    ran the tests in the background, and so lets them ignore it. The terminal of another session stays there.
    """
    os.setsid()
    with suppress(PermissionError):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def collect_ended(*, must_wait: bool = False) -> None:
    """Forget the processes that watched copies which have ended; their processor time is counted as this one's."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, 0 if must_wait else os.WNOHANG)[0]:
            pass


if __name__ == "__main__":
    main()
