"""What leaves the program: data on stdout, everything else on stderr.

One idea: text is complete before it is written, so a reader that went away (`| head -1`) or a full disk is noticed in one
place, and nobody ever sees a traceback because of it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import StringIO
from typing import TYPE_CHECKING, TextIO

from refold.model.errors import ConfigError, RefoldError
from refold.model.mask import mask_text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

CLOSED_PIPE = 141
"""What a shell reports for a program that died of a closed pipe."""
BUSY_BYTES = 5_000_000
"""Smaller inputs are done in less than a second: nothing to wait for."""
MAX_SHOWN = 200
"""Longer names are cut: an id or a model name in a hostile file can be as long as the file."""


def write(text: str) -> None:
    """Write data to stdout; what its encoding does not have becomes a question mark."""
    encoding = sys.stdout.encoding or "utf-8"
    with guarded():
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()


def write_bytes(data: bytes) -> None:
    """Write a body to stdout as it is, whatever the encoding of the terminal."""
    with guarded():
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def write_json(value: object) -> None:
    """One JSON document, in ASCII: it survives any terminal and any locale."""
    import json

    import msgspec

    write(json.dumps(msgspec.to_builtins(value), indent=2) + "\n")


def show(*renderables: RenderableType) -> None:
    """Render for people: coloured on a terminal that wants it, plain in a pipe. Long lines of text stay whole there."""
    write(_rendered(renderables, sys.stdout))


def tell(*renderables: RenderableType) -> None:
    """Likewise, beside the data: for what a command has done while stdout holds what it made."""
    sys.stderr.write(_rendered(renderables, sys.stderr))


def screen_width() -> int:
    return _console(sys.stdout).width


def note(text: str) -> None:
    """Say something that is not data."""
    sys.stderr.write(f"{text}\n")


def warn(text: str) -> None:
    """Say what may be wrong with the answer, if anything. The text may quote a name from a file."""
    if text:
        note(f"warning: {plain(text)}\nhint: give the window with --window")


def show_error(error: RefoldError) -> None:
    """Say what went wrong and where. A message may quote what was typed, and that may be an address with a password in it."""
    note(f"error: {mask_text(error.located)}" + (f"\nhint: {error.hint}" if error.hint else ""))


@contextmanager
def busy(doing: str, size_bytes: int) -> Iterator[None]:
    """Show that something is going on, where it takes long enough and somebody is looking."""
    if size_bytes <= BUSY_BYTES or not sys.stderr.isatty():
        yield
        return
    with _console(sys.stderr).status(f"{doing} {size_bytes / 1e6:,.0f} MB"):
        yield


def plain(text: str, limit: int = MAX_SHOWN) -> str:
    """A name from a file, harmless in a terminal: no control characters, and not endless."""
    shown = "".join(char if char.isprintable() else "�" for char in text[:limit])
    return shown if len(text) <= limit else f"{shown}..."


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


class _Page(StringIO):
    """What is rendered for a stream before it is written: a terminal if the stream is one."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    def isatty(self) -> bool:
        return self._stream.isatty()


def _rendered(renderables: Iterable[RenderableType], stream: TextIO) -> str:
    console = _console(page := _Page(stream))
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
    """Python writes what is left when it exits; that must not fail a second time."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
