"""The text of chat events: `draw` is a pure function from a page and an event to the next page and what to print.

A page holds what is not printed yet: the open Markdown block of the reply, running tools, and what the person
typed during the reply. A block is printed when it is complete, and can be shown above the prompt until then.
Without Markdown (a pipe, a dumb terminal), the text of the reply is printed as it comes.

Text of models and tools never reaches a terminal with its control characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from io import StringIO
from itertools import pairwise
from textwrap import wrap
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct, structs

from refold.chat.chat import ChatEvent, CommandReply, Done, Notice, Queued, ToolEnded, ToolStarted
from refold.wire.sse import ReasoningDelta, TextDelta

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.markdown import Markdown

MAX_LIVE = 1_000
"""Characters of an open block that are rendered as Markdown while they come, which takes about 6 ms; a longer one is
shown as it was written until it is complete, so that typing never waits for a renderer."""
MAX_ARGUMENTS = 60
"""Characters of a call's arguments on its line: the rest of the line is the result's."""
MARGIN = 1
"""Columns left free: some terminals wrap a line that fills the last one."""
ASIDE, ERROR, TYPED = "dim", "bold red", "bold"
"""Styles of what is neither the reply nor an error, of errors, and of what the person typed."""
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, and those that change the direction of a line."""
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_LIST_ITEM = re.compile(r" {0,3}(?:[-*+]|\d{1,9}[.)])(?: |$)")


class PageLook(Struct, frozen=True):
    """How a page looks."""

    width: int = 80
    has_markdown: bool = True
    """Whether replies are rendered as Markdown; otherwise they are printed as they come, without any style."""
    has_colour: bool = True
    is_terminal: bool = True
    """Whether control characters would reach a terminal."""


class Typed(Struct, frozen=True):
    """What the person typed: a message or a command."""

    text: str
    is_command: bool = False
    waits: bool = False
    """Whether it waits for the end of a reply."""


class Page(Struct, frozen=True):
    """What has not been printed yet."""

    text: str = ""
    """The open block of the reply."""
    thought: str = ""
    """The model's reasoning since its last text or call."""
    running: tuple[ToolStarted, ...] = ()
    waiting: tuple[Typed, ...] = ()
    """What was typed during the reply, in order."""
    held: tuple[str, ...] = ()
    """Notices that wait for the end of a line of the reply."""
    is_replying: bool = False
    """Whether a message was sent and its end has not come yet."""
    is_command_shown: bool = False
    """Whether a command that waited runs now, and was printed before its notices."""
    is_inside_line: bool = False
    """Whether the reply was printed up to the middle of a line."""


class PagePiece(Struct, frozen=True):
    """Text to print. The words of the model and of commands are data; everything else is an aside."""

    text: str
    is_data: bool = False


Drawn: TypeAlias = tuple[Page, list[PagePiece]]


def draw(page: Page, event: ChatEvent | Typed, look: PageLook) -> Drawn:
    """Return the next page, and what to print now."""
    match event:
        case Typed():
            return _draw_typed(page, event, look)
        case TextDelta():
            page, pieces = _begin_reply(page, look)
            page, folded = _fold_thought(page, look)
            page, more = _add_text(page, event.text, look)
            return page, [*pieces, *folded, *more]
        case ReasoningDelta():
            page, pieces = _begin_reply(page, look)
            return structs.replace(page, thought=page.thought + event.text), pieces
        case ToolStarted():
            page, pieces = _begin_reply(page, look)
            page, more = _close_text(page, look)
            return structs.replace(page, running=(*page.running, event)), [*pieces, *more]
        case ToolEnded():
            return _end_tool(page, event, look)
        case Notice():
            return _draw_notice(page, event, look)
        case CommandReply():
            return _draw_command_reply(page, event, look)
        case Queued() if look.has_markdown and not page.waiting:
            return page, [_aside(f"queued, number {event.place}: it is answered after the reply", look)]
        case Done():
            return _end_reply(page, event, look)
    return page, []


def live_text(page: Page, look: PageLook, rows: int) -> str:
    """Return what is shown above the prompt until it can be printed, in at most so many rows: the open block, the
    last line of the reasoning, running tools, and what waits for the end of the reply.
    """
    lines = list[str]()
    if page.text.strip():
        is_short = len(page.text) <= MAX_LIVE
        lines += _markdown(page.text, look).splitlines() if is_short else _wrapped_end(page.text, look, rows)
    if page.thought:
        lines.append(_styled(_cut(f"thinking: {_last_line(page.thought)}", look.width), ASIDE, look))
    lines += [_styled(_cut(f"⚙ {call_text(one)} …", look.width), ASIDE, look) for one in page.running]
    below = [
        _styled(_cut(f"> {_one_line(safe(one.text))}  (waits)", look.width), ASIDE, look)
        for one in page.waiting
    ]
    room = max(1, rows - len(below))
    return "\n".join([*lines[-room:], *below][-max(1, rows) :])


def call_text(call: ToolStarted | ToolEnded, arguments: str = "") -> str:
    """Return a call on one line: `read_file(path="notes.txt")`."""
    raw = call.arguments if isinstance(call, ToolStarted) else arguments
    return safe(f"{call.name}({_cut(_one_line(_arguments_text(raw)), MAX_ARGUMENTS)})")


def whole_call_text(name: str, arguments: str) -> str:
    """Return a call on one line with all of its arguments. What would begin a line or be invisible is escaped, so that
    a call looks like what it is.
    """
    shown = f"{name}({_arguments_text(arguments)})"
    return "".join(one if one.isprintable() else _escaped(one) for one in shown)


def _escaped(character: str) -> str:
    code = ord(character)
    names = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return names.get(character) or (f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")


def _arguments_text(raw: str) -> str:
    import json

    try:
        values = json.loads(raw or "{}")
    except (ValueError, RecursionError):
        return raw
    if not isinstance(values, dict):
        return raw
    return ", ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in values.items())


def safe(text: str) -> str:
    """Return a text without characters that command a terminal."""
    return _UNSAFE.sub("�", text.replace("\r\n", "\n"))


def error_text(problem: str, look: PageLook) -> str:
    """Return a problem as a line `error:` and, if there is one, a line `hint:`."""
    message, _, hint = safe(problem).partition("\nhint: ")
    lines = [_styled(f"error: {_one_line(message)}", ERROR, look)]
    return "\n".join([*lines, *([f"hint: {_one_line(hint)}"] if hint else [])]) + "\n"


# What is typed, and what commands reply


def _draw_typed(page: Page, event: Typed, look: PageLook) -> Drawn:
    if event.waits:
        return structs.replace(page, waiting=(*page.waiting, event)), []
    page, pieces = _end_line(page, look)
    page = structs.replace(page, is_replying=page.is_replying or not event.is_command)
    return page, [*pieces, *_echo(event, look)]


def _draw_notice(page: Page, event: Notice, look: PageLook) -> Drawn:
    if page.is_inside_line:
        return structs.replace(page, held=(*page.held, event.text)), []
    page, echoes = _take_command(page, look)
    return page, [*echoes, _aside(event.text, look)]


def _draw_command_reply(page: Page, event: CommandReply, look: PageLook) -> Drawn:
    page, pieces = _end_line(page, look)
    page, echoes = _take_command(page, look)
    reply = PagePiece(f"{_shown(event.text, look)}\n", is_data=True)
    page, next_ones = _take_waiting(page, look) if page.is_command_shown else (page, [])
    page = structs.replace(page, is_command_shown=False)
    return page, [*pieces, *echoes, reply, *next_ones]


def _take_waiting(page: Page, look: PageLook) -> Drawn:
    """Print the messages that waited, up to the next command: they are taken out of the queue together."""
    end = next((n for n, one in enumerate(page.waiting) if one.is_command), len(page.waiting))
    taken, rest = page.waiting[:end], page.waiting[end:]
    page = structs.replace(page, waiting=rest, is_replying=page.is_replying or bool(taken))
    return page, [piece for one in taken for piece in _echo(one, look)]


def _take_command(page: Page, look: PageLook) -> Drawn:
    """Print the command that waited and runs now, before its first notice or its reply. During a reply none runs:
    then a reply to a command is that of one that did not wait.
    """
    is_first = bool(page.waiting) and page.waiting[0].is_command
    if page.is_replying or page.is_command_shown or not is_first:
        return page, []
    page, echoes = structs.replace(page, is_command_shown=True), _echo(page.waiting[0], look)
    return structs.replace(page, waiting=page.waiting[1:]), echoes


# The reply


def _begin_reply(page: Page, look: PageLook) -> Drawn:
    """Before the first words of a reply: what was typed meanwhile, and is answered now."""
    if page.is_replying:
        return page, []
    page, echoes = _take_waiting(page, look)  # sent when the reply before it had just ended
    return structs.replace(page, is_replying=True), echoes


def _add_text(page: Page, text: str, look: PageLook) -> Drawn:
    if not look.has_markdown:
        is_inside_line = not text.endswith("\n")
        return structs.replace(page, is_inside_line=is_inside_line), [
            PagePiece(_shown(text, look), is_data=True)
        ]
    whole = page.text + text
    # A block can only end where a line begins; of the last line, four characters decide.
    has_new_line = "\n" in whole[-len(text) - 4 :]
    bounds = [0, *(_block_ends(whole) if has_new_line else ())]
    blocks = [whole[first:last] for first, last in pairwise(bounds)]
    pieces = [PagePiece(f"{_markdown(one, look)}\n", is_data=True) for one in blocks if one.strip()]
    return structs.replace(page, text=whole[bounds[-1] :]), pieces


def _fold_thought(page: Page, look: PageLook) -> Drawn:
    if not page.thought:
        return page, []
    words = len(page.thought.split())
    line = _cut(f"· thought, {words} words: {_first_line(page.thought)}", look.width)
    return structs.replace(page, thought=""), [_aside(line, look)]


def _close_text(page: Page, look: PageLook) -> Drawn:
    """Print what is left of the text and of the reasoning, and end the line."""
    page, pieces = _fold_thought(page, look)
    if page.text.strip():
        pieces.append(PagePiece(f"{_markdown(page.text, look)}\n", is_data=True))
    page, more = _end_line(structs.replace(page, text=""), look)
    return page, [*pieces, *more]


def _end_line(page: Page, look: PageLook) -> Drawn:
    """End a line of the reply that is not complete, and print the notices that waited for its end."""
    ends = [PagePiece("\n", is_data=True)] if page.is_inside_line else []
    held = [_aside(one, look) for one in page.held]
    return structs.replace(page, is_inside_line=False, held=()), [*ends, *held]


def _end_tool(page: Page, event: ToolEnded, look: PageLook) -> Drawn:
    started = next((one for one in page.running if one.call_id == event.call_id), None)
    page = structs.replace(page, running=tuple(one for one in page.running if one is not started))
    page, pieces = _end_line(page, look)
    lines = len(event.text.splitlines())
    size = f" ({lines:,} lines)" if lines > 1 else ""
    mark, call = "✗" if event.is_error else "→", call_text(event, started.arguments if started else "")
    return page, [*pieces, _aside(_cut(f"⚙ {call} {mark} {_first_line(event.text)}{size}", look.width), look)]


def _end_reply(page: Page, event: Done, look: PageLook) -> Drawn:
    page, pieces = _close_text(page, look)
    words = {
        "aborted": "⛔ stopped; what came is kept",
        "unanswered": "stored without a reply: a command came after it",
        "elsewhere": "another program answers this conversation; its reply is in the history",
    }
    if event.status == "failed":
        pieces.append(PagePiece(error_text(event.problem, look)))
    elif event.status in words:
        pieces.append(_aside(words[event.status], look))
    page = structs.replace(page, is_replying=False, running=())
    page, echoes = _take_waiting(page, look)
    return page, [*pieces, *echoes]


def _block_ends(text: str) -> list[int]:
    """Return where complete Markdown blocks end: at an empty line outside of fences, unless the next line goes on
    with the list or is indented. A block is complete only when the next line has begun.
    """
    ends, at, fence = list[int](), 0, ""
    is_first, is_blank, is_list = True, False, False
    for line in text.splitlines(keepends=True):
        found = _FENCE.match(line)
        if fence:
            closes = found and found[1][0] == fence[0] and len(found[1]) >= len(fence)
            fence = "" if closes and not line.strip().strip(fence[0]) else fence
        elif not line.strip():
            is_blank = True
        else:
            is_item = bool(_LIST_ITEM.match(line))
            # Of a line that has just begun, it is not known yet whether it is an item.
            goes_on = line[0] in " \t" or (is_list and (is_item or len(line) < 4))
            if is_blank and not goes_on:
                ends.append(at)
                is_first = True
            is_list = is_item if is_first else is_list
            is_first = is_blank = False
            fence = found[1] if found else ""
        at += len(line)
    return ends


# Text in a style


@cache
def _markdown_class() -> type[Markdown]:
    """Return rich's Markdown with headings as plain bold lines: its own are centred, and the first is in a box."""
    from rich.markdown import Heading, Markdown

    class PlainHeading(Heading):
        def __rich_console__(self, *_: object) -> Iterator[RenderableType]:
            self.text.justify = "left"
            yield self.text

    class PlainMarkdown(Markdown):
        elements = {**Markdown.elements, "heading_open": PlainHeading}  # noqa: RUF012  # as in rich

    return PlainMarkdown


def _markdown(text: str, look: PageLook) -> str:
    console = _console(look)
    console.print(_markdown_class()(safe(text), code_theme="ansi_dark", hyperlinks=False))
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    while lines and not _ESCAPE.sub("", lines[0]).strip():
        lines.pop(0)
    while lines and not _ESCAPE.sub("", lines[-1]).strip():
        lines.pop()
    return "".join(f"{line}\n" for line in lines)


def _styled(text: str, style: str, look: PageLook) -> str:
    if not look.has_markdown:
        return text
    from rich.text import Text

    console = _console(look)
    console.print(Text(text, style), soft_wrap=True, end="")
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def _console(look: PageLook) -> Console:
    from rich.console import Console

    return Console(
        file=StringIO(),
        force_terminal=True,
        color_system="standard" if look.has_colour else None,
        no_color=not look.has_colour,
        width=max(20, look.width - MARGIN),
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )


def _echo(typed: Typed, look: PageLook) -> list[PagePiece]:
    """Return what was typed, for a screen whose input area is empty again. A plain terminal shows it anyway."""
    shown = safe(typed.text).replace("\n", "\n  ")
    return [PagePiece(f"{_styled(f'> {shown}', TYPED, look)}\n")] if look.has_markdown else []


def _aside(text: str, look: PageLook) -> PagePiece:
    return PagePiece("".join(f"{_styled(line, ASIDE, look)}\n" for line in safe(text).splitlines()))


def _shown(text: str, look: PageLook) -> str:
    return safe(text) if look.is_terminal else text


def _cut(text: str, width: int) -> str:
    most = max(8, width - MARGIN)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _wrapped_end(text: str, look: PageLook, rows: int) -> list[str]:
    """Return the last rows of a text as it was written."""
    width = max(20, look.width - MARGIN)
    end = safe(text[-rows * width :]).expandtabs(4)
    return [row for line in end.splitlines() for row in wrap(line, width) or [""]][-rows:]


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _first_line(text: str) -> str:
    return _one_line(next((line for line in safe(text).splitlines() if line.strip()), ""))


def _last_line(text: str) -> str:
    return _one_line(next((line for line in reversed(safe(text).splitlines()) if line.strip()), ""))
