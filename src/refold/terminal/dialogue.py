"""The loop between a person or a script and a chat, and the terminal that can only print.

What is typed goes into the queue, and every event is drawn as it comes: typing never waits for a reply. A terminal only reads lines and prints;
`draw` decides what is printed, in a thread if it has much to render. Whatever fails is one line with a hint, and the prompt comes back.

Without a screen, the words of the model and of commands go to stdout, everything else to stderr. With JSON, every event is one line
on stdout.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from functools import partial
from typing import Any, Protocol

import msgspec
from msgspec import Struct, structs

from refold.chat.chat import CallUsage, Chat, ChatEvent, CommandReply, Done, Notice, Queued, is_blank
from refold.chat.commands import count_compactions
from refold.engine.events import short
from refold.engine.settings import dollars_for, prices_of
from refold.model.errors import RefoldError
from refold.model.message import ToolCall
from refold.terminal.event_text import (
    PROMPT,
    Page,
    PageLook,
    PagePiece,
    TypedLine,
    draw,
    error_text,
    is_slow,
    safe,
    whole_call_text,
)
from refold.text_work import call_in_thread
from refold.wire.sse import ReasoningDelta, TextDelta

EXIT = "/exit"
YES, NO = frozenset({"y", "yes"}), frozenset({"n", "no"})
MAX_DELTA = 1_000
"""Characters of a delta that are drawn together: of a provider that sends all at once, the beginning is shown first."""
INTERRUPT_S = 2.0
"""Seconds within which a second Ctrl-C leaves."""


class Terminal(Protocol):
    """Where the person sits."""

    @property
    def look(self) -> PageLook: ...

    def lines(self) -> AsyncGenerator[str, None]:
        """What the person enters, until they leave."""
        ...

    async def show(self, page: Page, pieces: list[PagePiece]) -> None:
        """Print the pieces, and show what is open on the page."""
        ...

    def show_figures(self, figures: ChatFigures) -> None: ...


class Questions:
    """Asks the person before a dangerous call. A line `y` or `n` is the answer; any other line is a message."""

    def __init__(self) -> None:
        self._asked: asyncio.Future[bool] | None = None
        self.asked = asyncio.Queue[str]()
        """The questions, for the terminal."""

    async def confirm(self, call: ToolCall) -> bool:
        self._asked = asyncio.get_running_loop().create_future()
        self.asked.put_nowait(
            f"the model wants to run {whole_call_text(call.name, call.arguments)}\nrun it? y or n: "
        )
        try:
            return await self._asked
        finally:
            self._asked = None

    def answer(self, text: str) -> bool:
        """Take a line as the answer, and return whether it is one."""
        word = text.strip().lower()
        if self._asked is None or self._asked.done() or word not in YES | NO:
            return False
        self._asked.set_result(word in YES)
        return True


@contextmanager
def log_as_notes(write: Callable[[str], object]) -> Iterator[None]:
    """Write warnings of the library as notes, and not as Python does by default."""

    class NoteHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            write(f"{record.levelname.lower()}: {record.getMessage()}")

    logger = logging.getLogger("refold")
    before = logger.handlers, logger.propagate
    logger.handlers, logger.propagate = [NoteHandler(logging.WARNING)], False
    try:
        yield
    finally:
        logger.handlers, logger.propagate = before


async def converse(chat: Chat, terminal: Terminal, questions: Questions) -> None:
    """Run a chat in a terminal until the person leaves, and close it: a reply in progress is stopped, and what came of it
    stays on the screen.
    """
    dialogue = _Dialogue(chat, terminal, questions)
    drawing = asyncio.create_task(dialogue.draw_events())
    acts = dialogue.take_lines(), dialogue.ask(), dialogue.refresh()
    tasks = {drawing, *map(asyncio.create_task, acts)}
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await chat.close()
        await asyncio.wait({drawing})  # its events end with those of the chat
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in {*ended, drawing}:
        task.result()  # a failure of any of them is no silent end


def _parts(event: ChatEvent) -> list[ChatEvent]:
    """Return a delta that is very long as several ones."""
    if not isinstance(event, TextDelta) or len(event.text) <= MAX_DELTA:
        return [event]
    starts = range(0, len(event.text), MAX_DELTA)
    return [structs.replace(event, text=event.text[at : at + MAX_DELTA]) for at in starts]


class _Dialogue:
    def __init__(self, chat: Chat, terminal: Terminal, questions: Questions) -> None:
        self._chat, self._terminal, self._questions = chat, terminal, questions
        self._page, self._drawing = Page(), asyncio.Lock()
        self._events = chat.events()
        self._is_stale = asyncio.Event()
        self._is_stale.set()
        self._dollars: float | None = None
        self._figures = ChatFigures(model=chat.model)

    async def take_lines(self) -> None:
        async with aclosing(self._terminal.lines()) as lines:
            async for text in lines:
                if await self._take(text):
                    return

    async def _take(self, text: str) -> bool:
        """Send what was entered. Returns whether the person leaves."""
        if is_blank(text) or self._questions.answer(text):
            return False
        found = self._chat.table.read(text)
        is_at_once = found is not None and (found.command is None or found.command.is_immediate)
        waits = self._chat.is_busy and not is_at_once
        await self._draw(TypedLine(text, is_command=found is not None, waits=waits))
        try:
            await self._chat.put(text)
        except RefoldError as error:
            await self._draw(Done((), "failed", str(error)))
        return found is not None and found.command is not None and found.command.name == EXIT

    async def draw_events(self) -> None:
        async for event in self._events:
            for part in _parts(event):
                await self._draw(part)
            self._count(event)

    async def ask(self) -> None:
        while True:
            await self._print(safe(await self._questions.asked.get()) + "\n")

    async def refresh(self) -> None:
        """Keep the figures of the status line up to date."""
        while True:
            await self._is_stale.wait()
            self._is_stale.clear()
            with suppress(RefoldError):  # the last ones are shown again
                self._figures = await self._read_figures()
            self._terminal.show_figures(self._figures)

    async def _draw(self, event: ChatEvent | TypedLine) -> None:
        async with self._drawing:
            look = self._terminal.look
            if is_slow(self._page, event, look):
                self._page, pieces = await call_in_thread(partial(draw, self._page, event, look))
            else:
                self._page, pieces = draw(self._page, event, look)
            await self._terminal.show(self._page, pieces)

    async def _print(self, text: str) -> None:
        async with self._drawing:
            await self._terminal.show(self._page, [PagePiece(text)])
        self._is_stale.set()

    def _count(self, event: ChatEvent) -> None:
        if isinstance(event, CallUsage) and event.usage is not None and self._dollars is not None:
            self._dollars += dollars_for(self._chat.model, event.usage)
        if isinstance(event, CallUsage | Notice | CommandReply | Done | Queued):
            self._is_stale.set()

    async def _read_figures(self) -> ChatFigures:
        chat, status = self._chat, await self._chat.conversation.status()
        if self._dollars is None and prices_of(chat.model) is not None:
            self._dollars = dollars_for(chat.model, status.billed)
        return ChatFigures(
            model=chat.model,
            tokens=status.tokens,
            limit=status.limit,
            dollars=None if self._dollars is None else self._dollars + status.spent,
            cache_percent=100 * status.billed.cache_read // max(1, status.billed.prompt),
            compactions=await count_compactions(chat.conversation),
            queued=chat.waiting,
            activity=chat.activity,
        )


BAR = 10
"""Cells of the context's bar."""
GAP = "  "


class ChatFigures(Struct, frozen=True):
    """What the line shows."""

    model: str = ""
    tokens: int = 0
    limit: int = 0
    dollars: float | None = None
    """None if the prices of the model are not known."""
    cache_percent: int = 0
    compactions: int = 0
    queued: int = 0
    activity: str = ""
    """What the person waits for."""


def status_line(figures: ChatFigures, width: int, *, has_blocks: bool = True) -> str:
    """Return the line in so many columns. On a narrow screen the cache is left out first, then the compactions, the
    cost, the bar and the name of the model.
    """
    full, free = ("█", "░") if has_blocks else ("#", ".")
    share = min(1.0, figures.tokens / figures.limit) if figures.limit else 0.0
    cells = round(share * BAR)
    percent = 100 * figures.tokens // max(1, figures.limit)
    parts = {
        "model": figures.model[:40],
        "bar": f"{full * cells}{free * (BAR - cells)}",
        "context": f"{short(figures.tokens)}/{short(figures.limit)} {percent}%",
        "cost": "" if figures.dollars is None else f"${figures.dollars:.4f}",
        "cache": f"cache {figures.cache_percent}%",
        "compactions": f"compactions {figures.compactions}",
        "queue": f"queued {figures.queued}" if figures.queued else "",
        "work": f"{figures.activity}…" if figures.activity else "",
    }
    for left_out in ("cache", "compactions", "cost", "bar", "model"):
        line = GAP.join(filter(None, parts.values()))
        if len(line) <= width:
            return line
        parts[left_out] = ""
    return GAP.join(filter(None, parts.values()))[:width]


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
