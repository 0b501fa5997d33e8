"""A terminal with an input area at the bottom, by prompt_toolkit: finished text is printed above it and stays in the
terminal's own scrollback.

    finished text
    ────────────────────────────── drawn again and again, below what was printed
    the open block of the reply, running tools, what waits for the end of the reply
    > input, one or several lines
    commands that begin like the input
    model  ███░░░░░░░ 1.2k/122k 1%  $0.0004  cache 80%  compactions 0

The input is read while everything else goes on: no key waits for the model, the store or a tool.
"""

from __future__ import annotations

import asyncio
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

import rich.markdown  # noqa: F401  # now, and not when the first word of a reply has come
from msgspec import structs
from prompt_toolkit.application import Application
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import (
    ConditionalContainer,
    Dimension,
    FormattedTextControl,
    HSplit,
    Layout,
    Window,
)
from prompt_toolkit.layout.menus import CompletionsMenu
from prompt_toolkit.output import Output, create_output
from prompt_toolkit.output.color_depth import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.widgets import TextArea

from refold.chat.chat import Chat
from refold.chat.commands import CommandTable
from refold.terminal.dialogue import INTERRUPT_S, ChatFigures, log_as_notes, status_line
from refold.terminal.event_text import PROMPT, Page, PageLook, PagePiece, live_text, note_text

MAX_INPUT_ROWS = 8
"""Rows of the input area; a longer text scrolls in it."""
MAX_MENU_ROWS = 6
OTHER_ROWS = 4
"""Rows that the open block leaves free: the input, the status, and some of what was printed."""
MAX_PRINTED = 100
"""Lines that are printed without a look at the keys."""
MAX_TYPED_BEFORE = 65_536
"""Bytes of a line that was entered before the start: more than a terminal keeps."""
STREAMS = (1, 2)
"""The numbers of stdout and stderr."""
MAX_UNSHOWN = 10_000
"""Printed lines that wait to be shown; of a tool that prints faster, the oldest are dropped."""
END_S = 0.2
"""Seconds in which the rest of what was printed is read when the person leaves."""
FRAME_S = 1 / 20
"""Seconds between two drawings of a reply in progress. Keys are drawn at once."""


class Screen:
    """A `Terminal` with an input area.

    Args:
        chat: is aborted by Ctrl-C, and asked whether it is busy.
        history: the file with what was typed before; None for none.
        has_colour: whether to use colours.
    """

    def __init__(self, chat: Chat, history: Path | None, *, has_colour: bool) -> None:
        self._chat, self._has_colour = chat, has_colour
        self._terminal = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding=sys.stdout.encoding)
        """The terminal itself: stdout may be that of tools."""
        self._typed = asyncio.Queue[str | None]()
        self._page, self._figures = Page(), ChatFigures(model=chat.model)
        self._live: tuple[tuple[Page, int, int], str] = (self._page, 0, 0), ""
        self._drawn_at = self._interrupted_at = 0.0
        self._frame: asyncio.TimerHandle | None = None
        self._input = TextArea(
            prompt=PROMPT,
            multiline=True,
            wrap_lines=True,
            completer=CommandCompleter(chat.table),
            complete_while_typing=True,
            history=_history_in(history),
            height=Dimension(min=1, max=MAX_INPUT_ROWS),
            dont_extend_height=True,
        )
        self._app: Application[None] = Application(
            layout=Layout(self._rows(), focused_element=self._input),
            key_bindings=self._keys(),
            output=_output(self._terminal),
            color_depth=None if has_colour else ColorDepth.DEPTH_1_BIT,
            erase_when_done=True,
            refresh_interval=0.5,
        )

    @property
    def look(self) -> PageLook:
        return PageLook(width=self._app.output.get_size().columns, has_colour=self._has_colour)

    async def lines(self) -> AsyncGenerator[str, None]:
        loop = asyncio.get_running_loop()

        def print_note(text: str) -> None:
            """Print a log record, of any thread, above the input area: on stderr it would be written across it."""
            loop.call_soon_threadsafe(self._print_note, text)

        for line in _lines_typed_before():
            self._typed.put_nowait(line)
        running = asyncio.create_task(self._app.run_async())
        running.add_done_callback(lambda _: self._typed.put_nowait(None))
        try:
            with PrintedLines(self._print_note).taken(), log_as_notes(print_note):
                while (text := await self._typed.get()) is not None:
                    yield text
        finally:
            if self._app.is_running:
                self._app.exit()
            await running

    async def show(self, page: Page, pieces: list[PagePiece]) -> None:
        self._page = page
        if lines := "".join(piece.text for piece in pieces).splitlines(keepends=True):
            for at in range(0, len(lines), MAX_PRINTED):
                self._print("".join(lines[at : at + MAX_PRINTED]))
                await asyncio.sleep(0)  # a typed key is drawn before the next lines
        elif time.monotonic() - self._drawn_at >= FRAME_S:
            self._redraw()
        elif self._frame is None:
            self._frame = asyncio.get_running_loop().call_later(FRAME_S, self._redraw)

    def show_figures(self, figures: ChatFigures) -> None:
        self._figures = figures
        self._redraw()

    def _redraw(self) -> None:
        if self._frame is not None:
            self._frame.cancel()
            self._frame = None
        self._drawn_at = time.monotonic()
        self._app.invalidate()

    def _print(self, text: str) -> None:
        """Print above the input area. The terminal stays in raw mode: in between, no typed character is lost or
        echoed in the wrong place, as it can be with `run_in_terminal`.
        """
        output = self._app.output
        if self._app.is_running:
            self._app.renderer.erase(leave_alternate_screen=False)
        output.write_raw(text.replace("\n", "\r\n"))
        output.flush()
        self._redraw()

    def _print_note(self, text: str) -> None:
        self._print(note_text(text, self.look))

    # The rows below what was printed

    def _rows(self) -> HSplit:
        has_live = Condition(lambda: bool(self._live_text()))
        live = Window(
            FormattedTextControl(lambda: ANSI(self._live_text())), dont_extend_height=True, wrap_lines=False
        )
        status = Window(FormattedTextControl(self._status), height=1, style="reverse")
        menu = CompletionsMenu(max_height=MAX_MENU_ROWS)
        return HSplit([ConditionalContainer(live, has_live), self._input, menu, status])

    def _live_text(self) -> str:
        size = self._app.output.get_size()
        wanted = self._page, size.columns, size.rows
        if self._live[0] != wanted:
            self._live = wanted, live_text(self._page, self.look, max(1, size.rows - OTHER_ROWS))
        return self._live[1]

    def _status(self) -> str:
        if time.monotonic() - self._interrupted_at < INTERRUPT_S:
            return " Ctrl-C again leaves"
        chat, width = self._chat, self._app.output.get_size().columns
        figures = structs.replace(self._figures, queued=chat.waiting, activity=chat.activity)
        return f" {status_line(figures, width - 2)}"

    # Keys

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()
        keys.add("enter")(lambda _: self._enter())
        keys.add("escape", "enter")(lambda _: self._input.buffer.insert_text("\n"))
        keys.add("c-j")(lambda _: self._input.buffer.insert_text("\n"))
        keys.add("c-c")(lambda _: self._interrupt())
        keys.add("<sigint>")(lambda _: self._interrupt())  # typed before the terminal was in raw mode
        keys.add("c-d")(self._end_of_input)
        return keys

    def _enter(self) -> None:
        buffer = self._input.buffer
        if buffer.text.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
            return
        text = buffer.text
        buffer.reset(append_to_history=bool(text.strip()))
        self._typed.put_nowait(text)

    def _interrupt(self) -> None:
        """Stop the reply or the compaction, or clear the input; the second time in a row, leave."""
        now = time.monotonic()
        if now - self._interrupted_at < INTERRUPT_S:
            self._app.exit()
            return
        self._interrupted_at = now
        if not self._chat.abort():
            self._input.buffer.reset()

    def _end_of_input(self, event: KeyPressEvent) -> None:
        if not self._input.text:
            event.app.exit()
        else:
            self._input.buffer.delete()


class PrintedLines:
    """Takes what tools and their processes print while the input area is there: it would be written across it. Stdout and
    stderr are a pipe meanwhile, which a thread reads: whoever prints never waits for the event loop.

    Args:
        show: prints lines above the input area, and is called in the event loop.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show, self._loop = show, asyncio.get_running_loop()
        self._lines, self._begun = deque[bytes](maxlen=MAX_UNSHOWN), b""
        self._is_due = False

    @contextmanager
    def taken(self) -> Iterator[None]:
        if sys.platform == "win32":
            yield
            return
        sys.stdout.flush()
        sys.stderr.flush()
        kept = [(number, os.dup(number)) for number in STREAMS]
        readable, writable = os.pipe()
        for number in STREAMS:
            os.dup2(writable, number)
        os.close(writable)
        reading = threading.Thread(target=self._read, args=(readable,), name="refold-printed", daemon=True)
        reading.start()
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, before in kept:
                os.dup2(before, number)
                os.close(before)
            reading.join(END_S)  # a process that a tool has left may hold the pipe for ever
            self._lines += [self._begun] if self._begun else []
            while self._lines:
                self._show_some()

    def _read(self, readable: int) -> None:
        with os.fdopen(readable, "rb", buffering=0) as pipe:
            while read := pipe.read(65_536):
                *lines, self._begun = (self._begun + read).split(b"\n")
                self._lines += lines
                if self._lines and not self._is_due:
                    self._is_due = True
                    with suppress(RuntimeError):  # the loop has ended
                        self._loop.call_soon_threadsafe(self._show_due)

    def _show_due(self) -> None:
        self._is_due = False
        self._show_some()
        if self._lines and not self._is_due:  # a typed key is drawn before the next ones
            self._is_due = True
            self._loop.call_soon(self._show_due)

    def _show_some(self) -> None:
        lines = list[bytes]()
        with suppress(IndexError):
            while len(lines) < MAX_PRINTED:
                lines.append(self._lines.popleft())
        if lines:
            self._show(b"\n".join(lines).decode("utf-8", "replace"))


class CommandCompleter(Completer):
    """Completes the first word of a line that begins with a slash."""

    def __init__(self, table: CommandTable) -> None:
        self._table = table

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        del complete_event
        typed = document.text_before_cursor.lower()
        if not typed.startswith("/") or " " in typed or "\n" in typed:
            return
        for command in self._table:
            for name in (command.name, *command.aliases):
                if name.startswith(typed):
                    yield Completion(name, -len(typed), display_meta=command.summary)


def _history_in(file: Path | None) -> History:
    """What was typed before, in a file that only its owner can read."""
    if file is None:
        return InMemoryHistory()
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file.touch(0o600)
    except OSError:
        return InMemoryHistory()  # a chat without a history is better than none
    return FileHistory(str(file))


def _lines_typed_before() -> list[str]:
    """Return the lines that were entered before the input area was there. In raw mode their ends could not be told from
    Ctrl-J, and they would become one message.
    """
    lines = list[str]()
    if sys.platform == "win32" or not sys.stdin.isatty():
        return lines
    while select.select([sys.stdin], [], [], 0)[0]:  # a terminal gives one line at a time
        read = os.read(sys.stdin.fileno(), MAX_TYPED_BEFORE)
        if not read:  # Ctrl-D: the input area does not see it any more
            break
        lines += read.decode("utf-8", "replace").splitlines()
    return lines


def _output(terminal: TextIO) -> Output:
    output = create_output(terminal)
    if isinstance(output, Vt100_Output):
        # Not every terminal tells where its cursor is, and nothing here depends on it.
        output.enable_cpr = False
    return output
