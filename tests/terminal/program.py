"""The real program in a pseudo-terminal: type keys, and wait for what a person would see."""

from __future__ import annotations

import asyncio
import codecs
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sysconfig
import termios
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from threading import Event
from typing import Self

import pyte

from refold.testing import Received, Say, say
from tests.program import command

SCRIPT = str(Path(sysconfig.get_path("scripts")) / "refold")
PATIENCE_S = 30.0
CTRL_C, CTRL_D, ALT_ENTER, TAB, UP = "\x03", "\x04", "\x1b\r", "\t", "\x1b[A"


class Gate:
    """An answer that is given when the test opens it, to a program outside of the test's event loop."""

    def __init__(self, answer: str | Say) -> None:
        self._answer = say(answer) if isinstance(answer, str) else answer
        self.reached, self.opened = Event(), Event()

    async def __call__(self, received: Received) -> Say:
        self.reached.set()
        await asyncio.to_thread(self.opened.wait, PATIENCE_S)
        return self._answer


def _take_terminal() -> None:
    """Let Ctrl-C be a signal, also where a shell ran the tests in the background, and so lets them ignore it."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Program:
    """`refold chat` in a terminal of 80 columns and 24 rows. `is_script` starts the installed script, which imports
    everything again, instead of a copy, which takes the terminal itself: see `tests/program`.
    """

    def __init__(self, *args: str, columns: int = 80, is_script: bool = False, **environ: str) -> None:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
        self.process = subprocess.Popen(
            [*([SCRIPT] if is_script else command()), "chat", *args],
            env={**kept, "TERM": "xterm-256color", **environ},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=_take_terminal if is_script else None,  # noqa: PLW1509
        )
        os.close(theirs)
        self._terminal, self.raw = ours, ""
        """`raw` is the output so far, with its escape sequences."""
        self._screen = pyte.HistoryScreen(columns, 24, history=5_000, ratio=1)
        self._stream = pyte.Stream(self._screen)
        self._above: list[str] = []
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._terminal)

    def type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def enter(self, text: str) -> None:
        """Type a line, and press Enter when it is shown."""
        self.type(text)
        self.see(f"> {text}"[:70].rstrip())
        self.type("\r")

    def see(self, text: str, *, within_s: float = PATIENCE_S) -> str:
        """Wait until a text is on the screen or above it, and return all of both."""
        return self._wait(lambda shown: text in shown, f"{text!r} did not appear", within_s)

    def see_idle(self) -> str:
        """Wait until the input is empty and no reply is being produced."""

        def is_idle(shown: str) -> bool:
            lines = shown.rstrip().splitlines()
            return lines[-2:-1] == [">"] and "answering" not in lines[-1] and "queued" not in lines[-1]

        return self._wait(is_idle, "the prompt did not come back", PATIENCE_S)

    def _wait(self, is_there: Callable[[str], bool], problem: str, within_s: float) -> str:
        deadline = time.monotonic() + within_s
        while not is_there(shown := self.shown()):
            if time.monotonic() > deadline or not self._receive():
                raise AssertionError(f"{problem}:\n{shown}")
        return shown

    def wait_for(self, is_there: Callable[[], bool]) -> None:
        """Wait until something outside of the terminal is so."""
        self._wait(lambda _: is_there(), "it did not come", PATIENCE_S)

    def shown(self) -> str:
        """Return the lines of the screen and those above it, as a person can scroll through them."""
        for line in islice(self._screen.history.top, len(self._above), None):  # those above do not change
            self._above.append("".join(line[at].data for at in range(self._screen.columns)).rstrip())
        return "\n".join([*self._above, *(line.rstrip() for line in self._screen.display)])

    def kill(self) -> None:
        """Kill the program, which leads the group of processes that the terminal is for, and wait until it is gone."""
        os.kill(os.tcgetpgrp(self._terminal), signal.SIGKILL)
        self.process.wait()

    def leave(self) -> int:
        self.type(CTRL_D)
        return self.wait()

    def wait(self) -> int:
        """Wait for the end of the program, and return its exit code."""
        deadline = time.monotonic() + PATIENCE_S
        while self.process.poll() is None and time.monotonic() < deadline:
            self._receive()
        return self.process.wait(timeout=1)

    def _receive(self) -> bool:
        """Read what the program wrote, if anything comes soon; False if it has ended."""
        ready, _, _ = select.select([self._terminal], [], [], 0.1)
        if not ready:
            return True
        try:
            read = os.read(self._terminal, 65536)
        except OSError:  # Linux says EIO when the other side is closed
            return False
        text = self._decoder.decode(read)
        self.raw += text
        self._stream.feed(text.replace("\ufe0f", ""))  # pyte drops the rest of a line after it
        return bool(read)
