"""Get a transcript in: from a file or stdin, never more than the limit.

One idea: whatever cannot be read ends in one typed error that names the file and, inside of it, the place, with what to do about it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import BinaryIO

from refold.cli.output import note, plain
from refold.model.dialect import DIALECTS, Dialect
from refold.model.errors import BodyTooLarge, ConfigError, WireError
from refold.wire import Request, decode_transcript

STDIN = "-"
_KINDS = "give a request body, a list of messages, one message per line, or the log of an agent"
_PACKED = b"\x1f\x8b"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


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
    """Is there something of this name, or is stdin meant?"""
    try:
        return path == STDIN or Path(path).exists()
    except (OSError, ValueError):
        return False


def decode(data: bytes, path: str, *, format_name: str = "", limit: int) -> Request:
    """The conversation in a transcript; errors say which file they are about.

    Raises:
        ConfigError: there is no such format.
        WireError: the data is no conversation.
    """
    dialect = find_dialect(format_name)
    try:
        return decode_transcript(data, dialect, max_body_bytes=limit)
    except WireError as error:
        hint = error.hint or hint_for(data, error.message)
        raise type(error)(f"{shown_name(path)}: {error.message}", hint=hint) from None


def hint_for(data: bytes, message: str) -> str:
    """What to do about data that is no conversation, where the message alone does not say it."""
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
    """The format somebody asked for; None where it is to be told by its shape."""
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
    """One byte more than allowed is enough to know; a device may go on for ever."""
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
