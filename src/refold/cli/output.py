"""The output of commands: data on stdout, everything else on stderr.

Text is complete before it is written, so a reader that went away (`| head -1`) or a full disk is noticed in one place and never
ends in a traceback. Names from files and stores pass through `plain`, which makes them harmless in a terminal.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from io import StringIO
from typing import TYPE_CHECKING, TextIO

from refold.model.errors import ConfigError, MissingExtra, RefoldError
from refold.model.mask import mask_text
from refold.model.message import Message, Opaque, Part, Reasoning, Text, ToolCall, ToolResult, readable_text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


CLOSED_PIPE = 141
"""The exit code that a shell reports for a program that died of a closed pipe."""
BUSY_BYTES = 5_000_000
"""Smaller inputs are done in less than a second: nothing to wait for."""
MAX_SHOWN = 200
"""Longer names are cut: an id or a model name in a hostile file can be as long as the file."""

SHORT = 8
"""Characters of an id that are shown: enough to tell apart the ids of one owner, and commands accept them."""
INDENT = "  "
GAP = "  "
"""Between two columns of a table."""
LEAST_TEXT = 12
"""Columns of the screen that a text in a table keeps where there is little room."""
ALARM = "bold bright_red"
_data: ContextVar[TextIO | None] = ContextVar("data", default=None)
"""Where data goes while `sys.stdout` is that of code of others."""


def open_stdout() -> TextIO:
    """
    Raises:
        ConfigError: stdout is closed (`>&-`).
    """
    stdout: TextIO | None = _data.get() or sys.stdout  # Python sets it to None, whatever its type says
    if stdout is None:
        raise ConfigError(
            "stdout is closed, so nothing can be written", hint="write it to a file, a pipe or /dev/null"
        )
    return stdout


def write(text: str) -> None:
    """Write data to stdout; a character that its encoding does not have becomes a question mark."""
    stdout = open_stdout()
    encoding = stdout.encoding or "utf-8"
    with guarded():
        stdout.write(text.encode(encoding, "replace").decode(encoding))
        stdout.flush()


@contextmanager
def prints_on_stderr() -> Iterator[None]:
    """Send what code of others prints to stderr: stdout gets only what `write` is given."""
    stdout = sys.stdout
    token, sys.stdout = _data.set(stdout), sys.stderr
    try:
        yield
    finally:
        sys.stdout = stdout
        _data.reset(token)


def write_bytes(data: bytes) -> None:
    """Write a body to stdout as it is, whatever the encoding of the terminal."""
    stdout = open_stdout()
    with guarded():
        stdout.flush()
        stdout.buffer.write(data)
        stdout.buffer.flush()


def write_json(value: object) -> None:
    """One JSON document, in ASCII: it survives any terminal and any locale."""
    import json

    import msgspec

    write(json.dumps(msgspec.to_builtins(value), indent=2) + "\n")


def show(*renderables: RenderableType) -> None:
    """Render for people: coloured on a terminal that wants it, plain in a pipe. Long lines of text stay whole there."""
    write(_rendered(renderables, open_stdout()))


def tell(*renderables: RenderableType) -> None:
    """Render to stderr: the report of a command whose product is on stdout."""
    sys.stderr.write(_rendered(renderables, sys.stderr))


def screen_width() -> int:
    return _console(open_stdout()).width


def note(text: str) -> None:
    """Say something that is not data."""
    sys.stderr.write(f"{text}\n")


def progress(line: str) -> None:
    """Write over the last line on a terminal; an empty line clears it."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{line}\x1b[K")
        sys.stderr.flush()


def warn(text: str) -> None:
    """Print a warning about the window, unless it is empty. The text may quote a name from a file."""
    if text:
        note(f"warning: {plain(text)}\nhint: give the window with --window")


def show_error(error: RefoldError) -> None:
    """Print an error with its hint. A message may quote an argument, and that may be an address with a password in it."""
    hint = error.hint_for(sys.executable) if isinstance(error, MissingExtra) else error.hint
    note(f"error: {mask_text(error.located)}" + (f"\nhint: {hint}" if hint else ""))


@contextmanager
def busy(doing: str, size_bytes: int) -> Iterator[None]:
    """Show a spinner while a large input is worked on, at a terminal."""
    if size_bytes <= BUSY_BYTES or not sys.stderr.isatty():
        yield
        return
    with _console(sys.stderr).status(f"{doing} {size_bytes / 1e6:,.0f} MB"):
        yield


def plain(text: str, limit: int = MAX_SHOWN) -> str:
    """A name from a file, harmless in a terminal: no control characters, and not endless."""
    shown = "".join(char if char.isprintable() else "�" for char in text[:limit])
    return shown if len(text) <= limit else f"{shown}..."


def percent(share: float, *, digits: int = 1) -> str:
    if 0 < share < 0.001 and digits:
        return "< 0.1 %"
    return f"{100 * share:,.{digits}f} %"


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def align(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    numbers: frozenset[str] = frozenset(),
    *,
    optional: Sequence[str] = (),
    spare: Sequence[str] = (),
    cuts: Sequence[str] = (),
) -> str:
    """Rows in columns under their heads; the columns in `numbers` are set to the right.

    A table wider than the screen is made narrower in three steps, each only as far as it has to be. The columns in `optional` are
    left out, the first of them first. Texts in the columns in `cuts` are cut, the first of them first, to twelve columns of the
    screen at least. If the first of these cuts is not enough, the columns in `spare` are left out before the others.
    """
    columns, screen = list(zip(head, *rows, strict=True)), screen_width()
    for name in optional:
        if _width(columns) > screen:
            columns = [column for column in columns if column[0] != name]
    for name in spare:
        if _width([_cut(one, screen) if one[0] in cuts[:1] else one for one in columns]) > screen:
            columns = [column for column in columns if column[0] != name]
    for name in cuts:
        if (excess := _width(columns) - screen) <= 0:
            break
        columns = [_cut(one, excess) if one[0] == name else one for one in columns]
    is_number = [column[0] in numbers for column in columns]
    widths = list(map(_column_width, columns))
    return "".join(f"{_aligned(row, widths, is_number)}\n" for row in zip(*columns, strict=True))


def _width(columns: Sequence[Sequence[str]]) -> int:
    return sum(_column_width(column) + len(GAP) for column in columns) - len(GAP)


def _column_width(column: Sequence[str]) -> int:
    """On the screen: a Chinese or Japanese character takes two columns."""
    from rich.cells import cell_len

    return max(map(cell_len, column))


def _cut(column: Sequence[str], excess: int) -> tuple[str, ...]:
    most = max(LEAST_TEXT, _column_width(column) - excess)
    return tuple(cut_text(text, most) for text in column)


def cut_text(text: str, most: int) -> str:
    """A text of at most so many columns of the screen; one that is longer ends with an ellipsis."""
    from rich.cells import cell_len, set_cell_size

    return text if cell_len(text) <= most else f"{set_cell_size(text, most - 1).rstrip()}…"


def _aligned(row: Sequence[str], widths: Sequence[int], is_number: Sequence[bool]) -> str:
    from rich.cells import cell_len

    pads = [" " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
    cells = (
        pad + cell if right else cell + pad for cell, pad, right in zip(row, pads, is_number, strict=True)
    )
    return GAP.join(cells).rstrip()


def when(at: float) -> str:
    """A time in the reader's time zone; a dash where none is known, or it is outside of the calendar."""
    try:
        return datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d %H:%M") if at else "-"
    except (OverflowError, OSError, ValueError):
        return "-"


def short(which: str) -> str:
    return which[:SHORT]


class _StreamPage(StringIO):
    """Collects the text for a stream before it is written; it is a terminal if the stream is one."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    def isatty(self) -> bool:
        return self._stream.isatty()


def _rendered(renderables: Iterable[RenderableType], stream: TextIO) -> str:
    console = _console(page := _StreamPage(stream))
    for renderable in renderables:
        console.print(renderable, soft_wrap=not console.is_terminal)
    return "".join(f"{line.rstrip()}\n" for line in page.getvalue().splitlines())


def _console(file: TextIO) -> Console:
    from rich.console import Console

    return Console(file=file, highlight=False, markup=False, emoji=False)


@contextmanager
def guarded() -> Iterator[None]:
    """Writing to stdout, where the reader may be gone and the disk full."""
    try:
        yield
    except BrokenPipeError:
        _discard_stdout()
        sys.exit(CLOSED_PIPE)
    except OSError as error:
        _discard_stdout()
        raise ConfigError(
            f"the output cannot be written: {error.strerror}", hint="see that there is room where it goes"
        ) from error


def _discard_stdout() -> None:
    """Python flushes stdout when it exits; that must not fail a second time."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), (_data.get() or sys.stdout).fileno())


# The text of a message: line by line, without control characters


def indented_text(message: Message) -> str:
    """Everything that a message says, indented, one line per line of its parts."""
    lines = [line for part in message.parts for line in _lines(part)]
    return "".join(f"{INDENT}{plain(line.expandtabs(4), len(line) * 4)}".rstrip() + "\n" for line in lines)


def _lines(part: Part) -> Iterator[str]:
    match part:
        case Text():
            yield from part.text.splitlines()
        case Reasoning():
            yield from (f"(thinking) {line}" for line in part.text.splitlines() or [""])
        case ToolCall():
            yield f"-> {part.name} {part.arguments}"
        case ToolResult():
            for inner in part.parts:
                yield from _lines(inner)
        case Opaque():
            yield f"[{part.kind}]"
            yield from readable_text(part).splitlines()
        case _:
            yield f"[{type(part).__name__.lower()}]"


def one_line(message: Message) -> str:
    """Everything that a message says, on one line."""
    return " ".join(" ".join(_words(part) for part in message.parts).split())


def _words(part: Part) -> str:
    match part:
        case Text() | Reasoning():
            return part.text
        case ToolCall():
            return f"{part.name} {part.arguments}"
        case ToolResult():
            return " ".join(_words(inner) for inner in part.parts)
        case Opaque():
            return f"[{part.kind}] {readable_text(part)}".rstrip()
    return f"[{type(part).__name__.lower()}]"


def harmless(line: str) -> str:
    """A line at its full length, without control characters."""
    return plain(line, len(line))
