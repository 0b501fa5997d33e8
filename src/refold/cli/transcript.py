"""The transcript of a command: read from a file or stdin, never more than the limit, with the model and the window to hold it
against.

A transcript that cannot be read is one typed error that names the file, the position in it, and a remedy. An option decides about
model and sizes before the transcript does, and the transcript before a default; the result says which of them did.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import BinaryIO, Literal, TypeAlias

from msgspec import Struct

from refold.cli.options import SizeOptions, TranscriptOptions
from refold.cli.output import note, plain
from refold.model.dialect import DIALECTS, Dialect
from refold.model.errors import MAX_TOKENS, BodyTooLarge, BudgetError, ConfigError, WireError
from refold.model.mask import mask_text
from refold.model.tokens import Budget
from refold.wire import Request, decode_transcript

STDIN = "-"
DEFAULT_MODEL = "gpt-4o"
"""For transcripts that name none: its tokenizer is that of most current models, and its window a usual one."""

ModelSource: TypeAlias = Literal["option", "file", "conversation", "default"]
MODEL_SOURCES: dict[ModelSource, str] = {
    "option": "--model",
    "file": "from the file",
    "conversation": "of the conversation",
    "default": "default: the file names none",
}
WINDOW_SOURCES = {
    "override": "--window",
    "catalogue": "catalogue",
    "pattern": "from its name",
    "upstream": "by the upstream's report",
    "learned": "learnt from an error",
    "output": "a multiple of the output",
    "default": "assumed",
}
STORED_SOURCES = {**WINDOW_SOURCES, "override": "set by you"}
"""The same for a stored conversation: the option or the setting was one of the program that used it last."""
_KINDS = "give a request body, a list of messages, one message per line, or the log of an agent"
_PACKED = b"\x1f\x8b"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


class TranscriptSize(Struct, frozen=True):
    """The model and the budget of a transcript, and where they come from."""

    model: str
    model_source: ModelSource
    budget: Budget
    window_source: str
    warning: str = ""
    """Not empty where the window is a guess."""


def size_up(request: Request, sizes: SizeOptions) -> TranscriptSize:
    """Choose model and window.

    Raises:
        BudgetError: the transcript asks for an impossible output.
    """
    from refold.tokens import window_for

    model, source = choose_model(request, sizes)
    window = window_for(model, override=sizes.window)
    output = choose_max_output(request, sizes)
    budget = Budget(window=window.tokens, max_input=window.max_input, max_output=output)
    return TranscriptSize(model, source, budget, window.source, window.warning)


def choose_model(request: Request, sizes: SizeOptions) -> tuple[str, ModelSource]:
    if sizes.model:
        return sizes.model, "option"
    return (mask_text(request.model), "file") if request.model else (DEFAULT_MODEL, "default")


def choose_max_output(request: Request, sizes: SizeOptions) -> int:
    chosen = request.max_output if sizes.max_output is None else sizes.max_output
    if chosen is not None and not 0 <= chosen <= MAX_TOKENS:
        raise BudgetError(
            "the transcript asks for an output of an impossible size", hint="give another with --max-output"
        )
    return chosen or 0


def read_bytes(path: str, *, limit: int) -> bytes:
    """Everything in a file, or in stdin for `-`.

    Raises:
        ConfigError: it cannot be read.
        BodyTooLarge: it has more than `limit` bytes.
    """
    try:
        if path == STDIN:
            return _read(_stdin(), path, limit)
        with Path(path).open("rb") as file:
            return _read(file, path, limit)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def is_file(path: str) -> bool:
    """Is there a file or folder of this name, or is stdin meant?"""
    try:
        return path == STDIN or Path(path).exists()
    except (OSError, ValueError):
        return False


def decode(data: bytes, path: str, options: TranscriptOptions) -> Request:
    """The conversation in a transcript; errors say which file they are about.

    Raises:
        ConfigError: there is no such format.
        WireError: the data is no conversation.
    """
    dialect = find_dialect(options.format_name)
    try:
        return decode_transcript(data, dialect, max_body_bytes=options.max_body_bytes)
    except WireError as error:
        hint = error.hint or hint_for(data, error.message)
        raise type(error)(f"{shown_name(path)}: {error.message}", hint=hint) from None


def hint_for(data: bytes, message: str) -> str:
    """The remedy for data that is no conversation, by its first bytes and the error message."""
    if data.startswith(_PACKED):
        return "unpack it first: gunzip -c FILE | refold ... -"
    if not _is_text(data):
        named = "UTF-16" if data.startswith(_UTF16) else "LATIN1"
        return f"a transcript is text in UTF-8; another encoding is turned into it by: iconv -f {named} -t UTF-8 FILE"
    if not data.strip():
        return _KINDS
    if "truncated" in message:
        return "it is cut short: copy or write it again, whole"
    if "malformed" in message:
        return f"mend the JSON there, if it is meant to be some; {_KINDS}"
    return f"messages are objects with a role; {_KINDS}, and name its format with --format"


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def find_dialect(name: str) -> Dialect | None:
    """The format of this name; None for no name: the shape of the data tells it."""
    if not name:
        return None
    found = next((dialect for dialect in DIALECTS.values() if dialect.name == name), None)
    if found is None:
        raise ConfigError(f"there is no format {plain(name)!r}", hint=f"use one of: {', '.join(DIALECTS)}")
    return found


def shown_name(path: str) -> str:
    return "stdin" if path == STDIN else plain(path)


def _stdin() -> BinaryIO:
    if sys.stdin is None:
        raise ConfigError("there is no stdin", hint="give the path of a transcript")
    if sys.stdin.isatty():
        note("reading a transcript from the terminal; end it with Ctrl-D")
    return sys.stdin.buffer


def _read(file: BinaryIO, path: str, limit: int) -> bytes:
    """Reads at most one byte more than the limit: a device may never end."""
    data = file.read(limit + 1)
    if len(data) > limit:
        text = f"{shown_name(path)} has more than {limit:,} bytes"
        raise BodyTooLarge(text, hint="raise the limit with --max-body-bytes")
    return data


def _unreadable(path: str, error: OSError | ValueError) -> ConfigError:
    name = shown_name(path)
    if isinstance(error, FileNotFoundError):
        return ConfigError(f"there is no file {name}", hint="give the path of a transcript, or - for stdin")
    if isinstance(error, IsADirectoryError):
        return ConfigError(f"{name} is a directory", hint="give the path of one transcript")
    reason = error.strerror if isinstance(error, OSError) else "not a path"
    return ConfigError(
        f"{name} cannot be read: {reason}", hint="give the path of a transcript that you may read"
    )
