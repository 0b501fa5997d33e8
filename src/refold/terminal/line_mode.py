"""The chat line by line: for scripts, pipes and terminals that can only print.

The words of the model and of commands go to stdout, everything else to stderr. With JSON, every event is one line
on stdout.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from refold.chat.chat import Chat, ChatEvent, CommandReply, Done, is_blank
from refold.model.errors import RefoldError
from refold.terminal.dialogue import EXIT, INTERRUPT_S, ChatFigures, status_line
from refold.terminal.event_text import PROMPT, Page, PageLook, PagePiece, draw, error_text
from refold.wire.sse import ReasoningDelta, TextDelta

FAILED = 2
"""The exit code if a message got no reply."""
Write = Callable[[str], None]


def event_document(event: ChatEvent) -> dict[str, Any]:
    """Return an event as plain values with its `type`. The keys are documented and stay."""
    kind = {TextDelta: "text", ReasoningDelta: "reasoning"}.get(type(event))
    found: dict[str, Any] = msgspec.to_builtins(event)
    return {"type": kind, **found} if kind else found


async def run_script(
    chat: Chat, inputs: AsyncIterator[str], *, as_json: bool, look: PageLook, write: Write, tell: Write
) -> int:
    """Send one input after the other, each after the end of the one before, and return the exit code.

    Args:
        chat: the chat.
        inputs: messages and commands.
        as_json: whether to write events as JSON.
        look: without Markdown.
        write: writes to stdout.
        tell: writes to stderr.
    """
    code, page = 0, Page()
    async for text in inputs:
        if is_blank(text):
            continue
        has_reply = False
        try:
            async for event in chat.send(text):
                has_reply |= isinstance(event, CommandReply) or _is_answered(event)
                if as_json:
                    write(f"{json.dumps(event_document(event))}\n")
                else:
                    page, pieces = draw(page, event, look)
                    _write_all(pieces, write, tell)
        except RefoldError as error:
            tell(error_text(str(error), look))
        code = code if has_reply else FAILED
        found = chat.table.read(text)
        if found is not None and found.command is not None and found.command.name == EXIT:
            break
    return code


def _is_answered(event: ChatEvent) -> bool:
    return isinstance(event, Done) and event.status == "answered"


def _write_all(pieces: list[PagePiece], write: Write, tell: Write) -> None:
    for piece in pieces:
        (write if piece.is_data else tell)(piece.text)


class PlainTerminal:
    """A `Terminal` that can only print: the figures are a line after each reply, and the prompt follows.

    Args:
        chat: is aborted by Ctrl-C.
        look: without Markdown.
        write: writes to stdout.
        tell: writes to stderr.
    """

    def __init__(self, chat: Chat, look: PageLook, *, write: Write, tell: Write) -> None:
        self._chat, self.look, self._write, self._tell = chat, look, write, tell
        self._lines = StdinLines()
        self._is_prompt_due = self._was_replying = self._has_left = False
        self._interrupted_at = 0.0

    async def lines(self) -> AsyncGenerator[str, None]:
        with on_interrupt(self._interrupt):
            self._tell(PROMPT)
            try:
                async for line in self._lines:
                    if not is_blank(line):
                        yield line
                    else:
                        self._tell(PROMPT)
            finally:
                self._has_left = True

    async def show(self, page: Page, pieces: list[PagePiece]) -> None:
        _write_all(pieces, self._write, self._tell)
        self._is_prompt_due |= not page.is_replying and (bool(pieces) or self._was_replying)
        self._was_replying = page.is_replying

    def show_figures(self, figures: ChatFigures) -> None:
        is_idle = not self._chat.is_busy and not self._chat.waiting
        if self._is_prompt_due and is_idle and not self._has_left:
            self._is_prompt_due = False
            self._tell(f"[{status_line(figures, self.look.width - 2, has_blocks=False)}]\n{PROMPT}")

    def _interrupt(self) -> None:
        now = time.monotonic()
        if now - self._interrupted_at < INTERRUPT_S or not self._chat.abort():
            self._lines.end()
        self._interrupted_at = now


class StdinLines(AsyncIterator[str]):
    """The lines of stdin, read by a thread: the program does not wait for one when it ends. A line that ends with a
    backslash goes on with the next one.
    """

    def __init__(self) -> None:
        self._read, self._is_ended = asyncio.Queue[str | None](), False
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._read_all, name="refold-stdin", daemon=True).start()

    def _read_all(self) -> None:
        for text in _joined_lines():
            self._put(text)
        self._put(None)

    def _put(self, text: str | None) -> None:
        with suppress(RuntimeError):  # the program has ended
            self._loop.call_soon_threadsafe(self._read.put_nowait, text)

    def end(self) -> None:
        """Give no line any more."""
        self._is_ended = True
        self._read.put_nowait(None)

    async def __anext__(self) -> str:
        text = await self._read.get()
        if text is None or self._is_ended:
            raise StopAsyncIteration
        return text


def _joined_lines() -> Iterator[str]:
    begun = ""
    for raw in _raw_lines():
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        if line.endswith("\\"):
            begun += f"{line[:-1]}\n"
        else:
            yield begun + line
            begun = ""
    if begun:
        yield begun


def _raw_lines() -> Iterator[bytes]:
    """Read the lines of stdin without its buffer: at its end Python waits for the lock of that, which a thread that
    waits for input would hold.
    """
    try:
        number = sys.stdin.fileno()
    except (OSError, ValueError):  # no file, as in a test
        yield from sys.stdin.buffer
        return
    rest = b""
    while read := os.read(number, 65_536):
        *lines, rest = (rest + read).split(b"\n")
        yield from lines
    if rest:
        yield rest


@contextmanager
def on_interrupt(act: Callable[[], None]) -> Iterator[None]:
    """Call a function for every Ctrl-C, where the platform's event loop can do it."""
    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGINT, act)
    except NotImplementedError:
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
