"""The loop between a person and a chat: what is typed goes into the queue, and every event is drawn as it comes.

Both directions run at the same time, so typing never waits for a reply. A terminal only reads lines and prints;
`draw` decides what is printed, in a thread if it has much to render. Whatever fails is one line with a hint, and the prompt comes back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from functools import partial
from typing import Protocol

from msgspec import Struct, structs

from refold.chat.chat import CallUsage, Chat, ChatEvent, CommandReply, Done, Notice, Queued, is_blank
from refold.chat.commands import count_compactions
from refold.engine.events import short
from refold.engine.settings import dollars_for, prices_of
from refold.model.errors import RefoldError
from refold.model.message import ToolCall
from refold.terminal.event_text import (
    Page,
    PageLook,
    PagePiece,
    TypedLine,
    draw,
    is_slow,
    safe,
    whole_call_text,
)
from refold.text_work import call_in_thread
from refold.wire.sse import TextDelta

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
