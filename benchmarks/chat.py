"""Measure the chat: `python -m benchmarks.chat`. Prints how long the event loop is blocked, and how late the first word is.

The provider is a server in this process that notes when it sends the first word of a reply. The terminal is the real
program in a pseudo-terminal. `blocked` replies with a long code block, and reports the longest callback of the event
loop: so long a typed key waits at most. `first` reports how much later than the provider's a first word is an event of
`refold.Chat`, and is written to the terminal.
"""

import argparse
import asyncio
import fcntl
import json
import os
import pty
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path

PAUSE_S = 0.08
"""Before the first word and before the rest: everything else has come to rest by then."""
LINE = "    total = add(total, {n})  # the sum so far, and 'a text'\n"
ORDINARY = "Here it is:\n\n"


def block(lines: int) -> str:
    return f"{ORDINARY}```python\n" + "".join(LINE.format(n=n) for n in range(lines)) + "```\n\nThe end.\n"


def table(rows: int) -> str:
    return (
        "| a | b |\n|---|---|\n" + "".join(f"| {n} | the row {n} |\n" for n in range(rows)) + "\nThe end.\n"
    )


class Provider:
    """A provider of the Chat format that streams: a first word, a pause, and the rest."""

    def __init__(self, rest: list[str]) -> None:
        self._rest, self.replies, self.sent_at = rest, 0, 0.0
        started = threading.Event()
        self._loop = asyncio.new_event_loop()

        async def serve() -> None:
            server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
            started.set()
            await server.serve_forever()

        threading.Thread(target=lambda: self._loop.run_until_complete(serve()), daemon=True).start()
        started.wait()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n") if line.count(b": "))
            await reader.readexactly(int(fields.get(b"content-length", b"0")))
            if not head.startswith(b"POST"):
                writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
                continue
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            )
            await asyncio.sleep(PAUSE_S)
            self.replies += 1
            first = _chunk({"role": "assistant", "content": f"word{self.replies}"})
            self.sent_at = time.perf_counter()
            writer.write(first)
            await asyncio.sleep(PAUSE_S)
            for piece in [" and more.\n\n", *self._rest]:
                writer.write(_chunk({"content": piece}))
                await writer.drain()
            writer.write(_chunk({}, "stop") + _frame(b"data: [DONE]\n\n") + b"0\r\n\r\n")
            await writer.drain()


def _frame(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def _chunk(delta: dict[str, str], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m-1", "choices": [choice]}
    return _frame(f"data: {json.dumps(body)}\n\n".encode())


class Terminal:
    """The program in a pseudo-terminal of 80 columns and 24 rows. `--inside` runs it with a clock on the event loop."""

    def __init__(self, url: str, folder: Path) -> None:
        self.clock = folder / "clock"
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        words = ["--inside", str(self.clock), "bench", "--model", f"m-1@{url}", "--window", "200000"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.chat", *words],
            env={**os.environ, "TERM": "xterm-256color", "REFOLD_STORE": str(folder / "chats.db")},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self._terminal, self._text = ours, b""

    def type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def see(self, word: str, within_s: float = 120.0) -> float:
        """Wait for a word that has not come before, and return when it came."""
        ends = time.monotonic() + within_s
        while word.encode() not in self._text:
            ready, _, _ = select.select([self._terminal], [], [], 0.5)
            if ready:
                self._text += os.read(self._terminal, 65_536)
            if time.monotonic() > ends:
                raise TimeoutError(f"{word} did not come: {self._text[-2_000:]!r}")
        seen = time.perf_counter()
        self._text = self._text[self._text.rindex(word.encode()) + len(word) :]
        return seen

    def drain(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            ready, _, _ = select.select([self._terminal], [], [], left)
            if ready:
                self._text += os.read(self._terminal, 65_536)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)


def inside(clock: str, arguments: list[str]) -> int:
    """Run the program, and note its longest callback whenever there is a new one."""
    from asyncio.events import Handle

    run, longest, busiest = Handle._run, 0.0, 0.0

    def timed(self: Handle) -> None:
        nonlocal longest, busiest
        begun, worked = time.perf_counter(), time.thread_time()
        run(self)
        taken, worked = time.perf_counter() - begun, time.thread_time() - worked
        is_new = taken > longest or worked > busiest
        if is_new and os.path.exists(f"{clock}.on"):  # noqa: PTH110  # once for each callback
            longest, busiest = max(taken, longest), max(worked, busiest)
            Path(clock).write_text(f"{longest} {busiest}")

    Handle._run = timed  # type: ignore[method-assign]
    from refold.cli.main import run as run_command

    return run_command(["chat", *arguments])


def measure_blocked(pieces: list[str]) -> tuple[float, float, float, float]:
    """Return the longest callback, the longest in processor time, the longest wait of a typed key, and how long the reply
    took to be drawn, in seconds.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        provider = Provider(pieces)
        terminal = Terminal(provider.url, folder)
        try:
            terminal.see("lists the commands")
            terminal.see("0%")
            terminal.type("go\r")
            terminal.see("word1")
            begun = time.perf_counter()
            terminal.clock.write_text("0 0")
            Path(f"{terminal.clock}.on").touch()
            waits = list(_waits_of_keys(terminal))
            longest, busiest = map(float, terminal.clock.read_text().split())
            return longest, busiest, max(waits), time.perf_counter() - begun
        finally:
            terminal.close()


def _waits_of_keys(terminal: Terminal) -> Iterator[float]:
    """Type keys until the end of the reply is there, each when the one before is shown."""
    seen, keys = b"", 0
    while b"The end." not in seen:
        key = "qxzj"[keys % 4]
        keys += 1
        terminal._text = b""
        begun = time.perf_counter()
        terminal.type(key)
        while key.encode() not in terminal._text:
            terminal.drain(0.001)
            if time.perf_counter() - begun > 60:
                raise TimeoutError(repr(terminal._text[-500:]))
        yield time.perf_counter() - begun
        terminal.drain(0.01)
        seen = seen[-20:] + terminal._text


def measure_terminal(times: int) -> list[float]:
    with tempfile.TemporaryDirectory() as name:
        provider = Provider([])
        terminal = Terminal(provider.url, Path(name))
        try:
            terminal.see("lists the commands")
            terminal.see("0%")
            late = []
            for number in range(1, times + 1):
                terminal.type(f"go{number}\r")
                late.append(terminal.see(f"word{number}") - provider.sent_at)
                terminal.see("and more.")
                terminal.drain(0.3)
            return late
        finally:
            terminal.close()


def measure_library(times: int) -> list[float]:
    import refold

    provider, late = Provider([]), []

    async def talk() -> None:
        async with refold.Engine("memory:") as engine:
            conversation = await engine.conversation("bench", model="m-1", window=200_000)
            async with refold.Chat(conversation, f"m-1@{provider.url}") as chat:
                for number in range(times):
                    is_first = True
                    async for event in chat.send(f"go {number}"):
                        if is_first and isinstance(event, refold.TextDelta):
                            late.append(time.perf_counter() - provider.sent_at)
                            is_first = False

    asyncio.run(talk())
    return late


def figures(late: list[float]) -> str:
    found = sorted(late)
    p95 = found[min(len(found) - 1, round(0.95 * len(found)))]
    return f"median {1_000 * statistics.median(found):.1f} ms, p95 {1_000 * p95:.1f} ms, first {1_000 * late[0]:.1f} ms"


def main() -> int:
    if sys.argv[1:2] == ["--inside"]:
        return inside(sys.argv[2], sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("part", choices=["blocked", "first", "all"], nargs="?", default="all")
    parser.add_argument("--lines", type=int, nargs="*", default=[1_500, 10_000])
    parser.add_argument("--times", type=int, default=30)
    chosen = parser.parse_args()
    if chosen.part != "first":
        for lines in chosen.lines:
            code = block(lines)
            cases = {
                "a code block, by line": code.splitlines(keepends=True),
                "a code block at once": [code],
                "a table, by line": table(lines).splitlines(keepends=True),
            }
            for name, pieces in cases.items():
                blocked, busy, wait, taken = measure_blocked(pieces)
                sys.stdout.write(
                    f"{name}, {lines:,} lines: blocked {1_000 * blocked:.0f} ms ({1_000 * busy:.0f} ms at work), "
                    f"a key waits {1_000 * wait:.0f} ms, all drawn after {taken:.1f} s\n"
                )
                sys.stdout.flush()
    if chosen.part != "blocked":
        sys.stdout.write(f"first word in the library: {figures(measure_library(chosen.times))}\n")
        sys.stdout.write(f"first word in the terminal: {figures(measure_terminal(chosen.times))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
