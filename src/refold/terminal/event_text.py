"""The text of chat events: `draw` is a pure function from a page and an event to the next page and what to print.

A page holds what is not printed yet: the open Markdown block of the reply, running tools, and what the person
typed during the reply. A block is printed when it is complete, and can be shown above the prompt until then; long
code is printed in parts. Drawing can take long (`is_slow`), and is done in a thread then. Without Markdown (a pipe, a dumb terminal), the text of the reply is printed as it comes.

Text of models and tools never reaches a terminal with its control characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from io import StringIO
from textwrap import wrap
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct, structs

from refold.chat.chat import ChatEvent, CommandReply, Done, Notice, Queued, ToolEnded, ToolStarted
from refold.wire.sse import ReasoningDelta, TextDelta

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.markdown import Markdown

MAX_LIVE = 1_000
"""Characters of an open block that are rendered as Markdown while they come, which takes about 6 ms; a longer one is
shown as it was written until it is complete, so that typing never waits for a renderer."""
MAX_CODE = 3_000
"""Characters of code that are rendered at once, which takes about 15 ms; more are rendered in a thread."""
MAX_RENDERED = 20_000
"""Characters of a block that is rendered as Markdown, such as a table of 800 rows; a longer one is printed as it was
written. While a larger one is rendered, even in a thread, the garbage collector stops everything for 0.1 s and more."""
PART_LINES = 20
"""Lines of code that are printed together, about a screen: a long block is read while it comes."""
MAX_ECHO = 40
"""Rows that are printed of what was typed: a long paste leaves the reply before it in sight."""
MAX_ARGUMENTS = 60
"""Characters of a call's arguments on its line: the rest of the line is the result's."""
MAX_PER_CELL = 8
"""Characters that are looked at for each cell of a line that is cut: enough for a letter with its accents."""
MAX_NESTING = 60
"""Lists and quotes inside each other that are read as such; the parser leaves out what is deeper."""
INDENT = 4
"""Cells that a list or a quote takes from its text."""
MIN_COLUMN = 4
"""Cells of a column of a table, at least."""
MIN_TEXT = 20
"""Cells that nested lists and quotes must leave for their text."""
PROMPT = "> "
MARGIN = 1
"""Columns left free: some terminals wrap a line that fills the last one."""
CODE_THEME = "ansi_dark"
"""Uses the colours of the terminal."""
ASIDE, ERROR, TYPED = "dim", "bold red", "bold"
"""Styles of what is neither the reply nor an error, of errors, and of what the person typed."""
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, and those that change the direction of a line."""
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_FENCE = re.compile(r" {0,3}(`{3,}+(?![^`\n]*+`)|~{3,})")
_LANGUAGE = re.compile(r"(?<![`~])(?:`{3,}+|~{3,}+)[ \t]*+([^\s`~]++)")
_LIST_ITEM = re.compile(r" {0,3}(?:[-*+]|\d{1,9}[.)])(?: |$)")


class PageLook(Struct, frozen=True):
    """How a page looks."""

    width: int = 80
    has_markdown: bool = True
    """Whether replies are rendered as Markdown; otherwise they are printed as they come, without any style."""
    has_colour: bool = True
    is_terminal: bool = True
    """Whether control characters would reach a terminal."""


class TypedLine(Struct, frozen=True):
    """What the person typed: a message or a command."""

    text: str
    is_command: bool = False
    waits: bool = False
    """Whether it waits for the end of a reply."""


class BlockScan(Struct, frozen=True):
    """What the complete lines of the open block say about its end."""

    at: int = 0
    """Where the line begins that is not complete."""
    fence: str = ""
    """The fence of the code that is open."""
    code_at: int = 0
    """Where the line with this fence begins."""
    code_lines: int = 0
    is_first: bool = True
    """Whether no line but empty ones was read."""
    is_blank: bool = False
    """Whether the last line was empty."""
    is_list: bool = False


class Page(Struct, frozen=True):
    """What has not been printed yet."""

    text: str = ""
    """The open block of the reply."""
    scan: BlockScan = BlockScan()
    opener: str = ""
    """The line that began the code of which `text` is the rest: the first lines of long code were printed."""
    thought: str = ""
    """The model's reasoning since its last text or call."""
    running: tuple[ToolStarted, ...] = ()
    waiting: tuple[TypedLine, ...] = ()
    """What was typed during the reply, in order."""
    held: tuple[str, ...] = ()
    """Notices that wait for the end of a line of the reply."""
    is_replying: bool = False
    """Whether a message was sent and its end has not come yet."""
    is_command_shown: bool = False
    """Whether a command that waited runs now, and was printed before its notices."""
    told: str = ""
    """The last notice: a command may reply with the same words."""
    is_inside_line: bool = False
    """Whether the reply was printed up to the middle of a line."""


class PagePiece(Struct, frozen=True):
    """Text to print. The words of the model and of commands are data; everything else is an aside."""

    text: str
    is_data: bool = False


Drawn: TypeAlias = tuple[Page, list[PagePiece]]


def draw(page: Page, event: ChatEvent | TypedLine, look: PageLook) -> Drawn:
    """Return the next page, and what to print now."""
    match event:
        case TypedLine():
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
        lines += _open_block(page, look, rows)
    if page.thought:
        lines.append(_styled(_cut(f"thinking: {_last_line(page.thought)}", look.width), ASIDE, look))
    lines += [_styled(_cut(f"⚙ {call_text(one)} …", look.width), ASIDE, look) for one in page.running]
    below = [
        _styled(_cut(f"> {_one_line(safe(one.text))}  (waits)", look.width), ASIDE, look)
        for one in page.waiting
    ]
    room = max(1, rows - len(below))
    return "\n".join([*lines[-room:], *below][-max(1, rows) :])


def is_slow(page: Page, event: ChatEvent | TypedLine, look: PageLook) -> bool:
    """Whether keys would wait for `draw`: it may print a long block, or code whose lexer has to be loaded."""
    text = event.text if isinstance(event, TextDelta) else ""
    is_line_open = bool(text) and "\n" not in text and not page.scan.is_blank
    if not look.has_markdown or is_line_open or not (page.text or text):
        return False
    whole, scan = page.text + text, page.scan
    unread = whole[scan.at :]
    if scan.fence and text and "```" not in unread and "~~~" not in unread:
        return scan.code_lines + unread.count("\n") >= PART_LINES
    is_code = bool(page.opener) or "```" in whole or "~~~" in whole
    if len(whole) > (MAX_CODE if is_code else MAX_LIVE):
        return True
    return not {*_LANGUAGE.findall(f"{page.opener}\n{whole}")} <= _loaded


def _open_block(page: Page, look: PageLook, rows: int) -> list[str]:
    """Return the lines of the open block: as they were written, if it would take long to render them."""
    needed = {*_LANGUAGE.findall(f"{page.opener}\n{page.text[:MAX_LIVE]}")}
    if len(page.text) > MAX_LIVE or not needed <= _loaded:
        return _wrapped_end(page.text, look, rows)
    shown = _code(page.text, page.opener, look) if page.opener else _markdown(page.text, look)
    return shown.splitlines()


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


_OPTIONS = (
    (re.compile(r"(?<![\w-])base_url(?!\w)"), "--upstream"),
    (re.compile(r"(?<![\w-])key_env(?!\w)"), "--key-env"),
    (re.compile(r"(?<![\w-])key_command(?!\w)"), "key_command of the settings"),
)
"""Where a person sets what the hints of the library name."""


def error_text(problem: str, look: PageLook) -> str:
    """Return a problem as a line `error:` and, if there is one, a line `hint:`, which names options of the program."""
    message, _, hint = safe(problem).partition("\nhint: ")
    for setting, option in _OPTIONS:
        hint = setting.sub(option, hint)
    lines = [_styled(row, ERROR, look) for row in _rows(f"error: {_one_line(message)}", look)]
    return "\n".join([*lines, *(_rows(f"hint: {_one_line(hint)}", look) if hint else [])]) + "\n"


def note_text(text: str, look: PageLook) -> str:
    """Return lines that are neither the reply nor an error, without a style. In a terminal they are wrapped between words."""
    return "".join(f"{row}\n" for line in safe(text).splitlines() for row in _rows(line, look))


# What is typed, and what commands reply


def _draw_typed(page: Page, event: TypedLine, look: PageLook) -> Drawn:
    if event.waits:
        return structs.replace(page, waiting=(*page.waiting, event)), []
    page, pieces = _end_line(page, look)
    page = structs.replace(page, is_replying=page.is_replying or not event.is_command)
    return page, [*pieces, *_echo(event, look)]


def _draw_notice(page: Page, event: Notice, look: PageLook) -> Drawn:
    pieces = list[PagePiece]()
    if look.has_markdown and event.event is None:  # about the reply so far, and not about the context
        page, pieces = _close_text(page, look)
    if page.is_inside_line:
        return structs.replace(page, held=(*page.held, event.text)), []
    page, echoes = _take_command(page, look)
    return structs.replace(page, told=event.text), [*pieces, *echoes, _aside(event.text, look)]


def _draw_command_reply(page: Page, event: CommandReply, look: PageLook) -> Drawn:
    page, pieces = _end_line(page, look)
    page, echoes = _take_command(page, look)
    is_told = look.is_terminal and _tells_again(event.text, page.told)
    text = note_text(event.text, look) if look.is_terminal else f"{event.text}\n"
    reply = [] if is_told else [PagePiece(text, is_data=True)]
    page, next_ones = _take_waiting(page, look) if page.is_command_shown else (page, [])
    page = structs.replace(page, is_command_shown=False, told="")
    return page, [*pieces, *echoes, *reply, *next_ones]


def _tells_again(reply: str, told: str) -> bool:
    """Whether the reply to a command is the notice that was printed just before, or ends with its first line."""
    return bool(told) and (reply == told or reply.splitlines()[-1:] == told.splitlines()[:1])


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
    page, scan, pieces = structs.replace(page, text=page.text + text), page.scan, list[PagePiece]()
    *lines, begun = page.text[scan.at :].split("\n")
    for line in lines:
        if _ends_block(scan, line):
            page, printed = _print_block(page, scan.at, look)
            scan, pieces = BlockScan(), pieces + printed
        before, scan = scan.at, _read_line(scan, line)
        if scan.fence and not scan.code_lines:
            _load_lexer(_language_of(line))
        if page.opener and not scan.fence:
            page, printed = _print_code(page, len(page.text[:before].rstrip()), scan.at, look)
            scan, pieces = BlockScan(), [*pieces, *printed, PagePiece("\n", is_data=True)]
            page = structs.replace(page, opener="")
        elif scan.fence and scan.code_lines >= PART_LINES:
            if not page.opener:
                page, printed = _begin_code(page, scan, look)
                pieces += printed
                scan = structs.replace(scan, at=scan.at - scan.code_at - len(page.opener) - 1)
            page, printed = _print_code(page, scan.at, scan.at, look)
            scan, pieces = BlockScan(fence=scan.fence), pieces + printed
    if _ends_block(scan, begun, is_complete=False):
        page, printed = _print_block(page, scan.at, look)
        scan, pieces = BlockScan(), pieces + printed
    return structs.replace(page, scan=scan), pieces


def _print_block(page: Page, end: int, look: PageLook) -> Drawn:
    block, rest = page.text[:end], page.text[end:]
    pieces = [PagePiece(f"{_markdown(block, look)}\n", is_data=True)] if block.strip() else []
    return structs.replace(page, text=rest, scan=BlockScan()), pieces


def _begin_code(page: Page, scan: BlockScan, look: PageLook) -> Drawn:
    """Print what the open block has before its code, and leave the lines of the code."""
    page, pieces = _print_block(page, scan.code_at, look)
    opener, _, code = page.text.partition("\n")
    return structs.replace(page, text=code, opener=opener), pieces


def _print_code(page: Page, end: int, begin: int, look: PageLook) -> Drawn:
    """Print the lines up to `end` as a part of long code, and go on at `begin`."""
    code = _code(page.text[:end], page.opener, look)
    return structs.replace(page, text=page.text[begin:]), [PagePiece(code, is_data=True)] if code else []


def _fold_thought(page: Page, look: PageLook) -> Drawn:
    if not page.thought:
        return page, []
    words = len(page.thought.split())
    line = _cut(f"· thought, {words} words: {_first_line(page.thought)}", look.width)
    return structs.replace(page, thought=""), [_aside(line, look)]


def _close_text(page: Page, look: PageLook) -> Drawn:
    """Print what is left of the text and of the reasoning, and end the line."""
    page, pieces = _fold_thought(page, look)
    if page.opener and page.text:  # the last line may end the code
        page, printed = _add_text(page, "\n", look)
        pieces += printed
    if page.opener:
        page, printed = _print_code(page, len(page.text.rstrip()), len(page.text), look)
        pieces += [*printed, PagePiece("\n", is_data=True)]
    else:
        page, printed = _print_block(page, len(page.text), look)
        pieces += printed
    page, more = _end_line(structs.replace(page, opener="", scan=BlockScan()), look)
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
    page = structs.replace(page, is_replying=False, running=(), told="")
    page, echoes = _take_waiting(page, look)
    return page, [*pieces, *echoes]


def _ends_block(scan: BlockScan, line: str, *, is_complete: bool = True) -> bool:
    """Whether a block ends before a line: after an empty line outside of fences, unless the line goes on with the list or
    is indented.
    """
    if scan.fence or not scan.is_blank or not line.strip():
        return False
    # Of a line that has just begun, it is not known yet whether it is an item.
    is_item = bool(_LIST_ITEM.match(line)) or (not is_complete and len(line) < 4)
    return line[0] not in " \t" and not (scan.is_list and is_item)


def _read_line(scan: BlockScan, line: str) -> BlockScan:
    found, at = _FENCE.match(line), scan.at + len(line) + 1
    if scan.fence:
        ends = found and found[1].startswith(scan.fence) and not line.strip().strip(scan.fence[0])
        return structs.replace(scan, at=at, fence="" if ends else scan.fence, code_lines=scan.code_lines + 1)
    if not line.strip():
        return structs.replace(scan, at=at, is_blank=True)
    is_list = bool(_LIST_ITEM.match(line)) if scan.is_first else scan.is_list
    fence, code_at = (found[1], scan.at) if found else ("", 0)
    return BlockScan(at, fence, code_at, is_first=False, is_list=is_list)


# Text in a style


@cache
def _markdown_class() -> type[Markdown]:
    """Return rich's Markdown with headings as plain bold lines, and HTML as it is written. Its own headings are centred, the first
    in a box, and it leaves out tags, so that `List<String>` would lose a word, the ends of long words in tables, and where an image
    is.
    """
    from markdown_it import MarkdownIt
    from rich.markdown import Heading, Markdown, TableElement
    from rich.table import Table

    options = {"html": False, "maxNesting": MAX_NESTING}
    parser = MarkdownIt("commonmark", options).enable(["strikethrough", "table"])

    class PlainHeading(Heading):
        def __rich_console__(self, *_: object) -> Iterator[RenderableType]:
            self.text.justify = "left"
            yield self.text

    class WholeTable(TableElement):
        def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
            for table in super().__rich_console__(console, options):
                for column in table.columns if isinstance(table, Table) else ():
                    column.overflow = "fold"  # a word that is longer than its column would be cut
                yield table  # type: ignore[misc]

    class PlainMarkdown(Markdown):
        elements = {  # noqa: RUF012  # as in rich
            **Markdown.elements,
            "heading_open": PlainHeading,
            "table_open": WholeTable,
        }

        def __init__(self, markup: str, **look: Any) -> None:
            super().__init__("", **look)
            self.markup, self.parsed = markup, parser.parse(markup)
            for token in self.parsed:
                for one in token.children or ():
                    if one.type == "image":
                        one.type, one.content = "text", f"🌆 {one.content} ({one.attrs.get('src', '')})"
                    one.content = safe(one.content)  # an entity such as `&#8238;` is a character by now

    return PlainMarkdown


_loaded: set[str] = set()
"""Languages whose lexers are there. To load one takes up to 0.2 s."""


def _load_lexer(language: str) -> None:
    from rich.syntax import Syntax

    if language not in _loaded:
        _ = Syntax("", language).lexer
        _loaded.add(language)


def _language_of(opener: str) -> str:
    found = _LANGUAGE.search(opener)
    return found[1] if found else "text"


def _code(text: str, opener: str, look: PageLook) -> str:
    """Return lines of code as they are rendered in a Markdown block, all of them."""
    if not text.strip():
        return "\n" * text.count("\n")
    from rich.syntax import Syntax

    console, indent = _console(look), len(opener) - len(opener.lstrip(" "))
    lines = [line[min(indent, len(line) - len(line.lstrip(" "))) :] for line in safe(text).split("\n")]
    code = "\n".join(lines).removesuffix("\n")
    console.print(Syntax(code, _language_of(opener), theme=CODE_THEME, word_wrap=True, padding=(0, 1)))
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())  # type: ignore[attr-defined]


def _markdown(text: str, look: PageLook) -> str:
    as_written = len(text) > MAX_RENDERED
    if not as_written:
        markdown = _markdown_class()(safe(text), code_theme=CODE_THEME, hyperlinks=False)
        as_written = not _has_room(markdown, look)
    if as_written:
        return "".join(f"{line}\n" for line in _wrapped(text.strip("\n"), look))
    for language in _LANGUAGE.findall(text):
        _load_lexer(language)
    console = _console(look)
    console.print(markdown)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    while lines and not _ESCAPE.sub("", lines[0]).strip():
        lines.pop(0)
    while lines and not _ESCAPE.sub("", lines[-1]).strip():
        lines.pop()
    return "".join(f"{line}\n" for line in lines)


def _has_room(markdown: Markdown, look: PageLook) -> bool:
    """Whether nested lists and quotes, and tables of many columns, leave room for their text, which would vanish otherwise."""
    used = most = columns = 0
    for token in markdown.parsed:
        if token.type.startswith(("bullet_list", "ordered_list", "blockquote")):
            used += token.nesting * INDENT
        columns = 0 if token.type == "table_open" else columns + (token.type == "th_open")
        most = max(most, used + columns * MIN_COLUMN)
    deepest = max((token.level for token in markdown.parsed), default=0)
    return deepest < MAX_NESTING - 1 and most <= look.width - MARGIN - MIN_TEXT


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


def _echo(typed: TypedLine, look: PageLook) -> list[PagePiece]:
    """Return what was typed, for a screen whose input area is empty again. A plain terminal shows it anyway."""
    if not look.has_markdown:
        return []
    lines = safe(typed.text).split("\n")
    rows = [row for line in lines[:MAX_ECHO] for row in _rows(line, look, indent=len(PROMPT))][:MAX_ECHO]
    shown = f"\n{' ' * len(PROMPT)}".join(rows)
    pieces = [PagePiece(f"{_styled(f'{PROMPT}{shown}', TYPED, look)}\n")]
    is_cut = len(lines) > MAX_ECHO or len(rows) == MAX_ECHO
    return [*pieces, *([_aside(f"… {len(typed.text):,} characters are sent", look)] if is_cut else [])]


def _aside(text: str, look: PageLook) -> PagePiece:
    rows = note_text(text, look).splitlines()
    return PagePiece("".join(f"{_styled(row, ASIDE, look)}\n" for row in rows))


def _shown(text: str, look: PageLook) -> str:
    return safe(text) if look.is_terminal else text


def _cut(text: str, width: int) -> str:
    """Cut a text at a number of cells: a wide character takes two, a combining one none."""
    from rich.cells import cell_len, set_cell_size

    most = max(8, width - MARGIN)
    kept = text[: most * MAX_PER_CELL]
    if len(kept) == len(text) and cell_len(text) <= most:
        return text
    return f"{set_cell_size(kept, most - 1).rstrip()}…"


def _wrapped_end(text: str, look: PageLook, rows: int) -> list[str]:
    """Return the last rows of a text as it was written."""
    return _wrapped(text[-rows * max(20, look.width - MARGIN) :], look)[-rows:]


def _wrapped(text: str, look: PageLook) -> list[str]:
    """Return the rows of a text as it was written."""
    return [row for line in safe(text).expandtabs(4).split("\n") for row in _rows(line, look)]


def _rows(line: str, look: PageLook, indent: int = 0) -> list[str]:
    """Return a line in the rows that it takes, broken between words where it can be. In a pipe it stays whole."""
    width = max(20, look.width - MARGIN - indent)
    if not look.is_terminal or (len(line) <= width and line.isascii()):
        return [line]
    if line.isascii():
        return wrap(line, width) or [""]
    from rich.text import Text

    return [row.plain.rstrip() for row in Text(line).wrap(_console(look), width, tab_size=4)] or [""]


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _first_line(text: str) -> str:
    return _one_line(next((line for line in safe(text).splitlines() if line.strip()), ""))


def _last_line(text: str) -> str:
    return _one_line(next((line for line in reversed(safe(text).splitlines()) if line.strip()), ""))
