"""Reading JSON that may be hostile: limits first, then typed decoding, and errors that name the place.

One idea: whatever is wrong with the JSON, the caller sees a `WireError` with a place it can find in its own request, such
as `messages[3].content[0]`, and never a word of the content. Code that reads something inside something else gives places
relative to itself; `within` puts the outer place in front on the way up, so nothing is formatted while all goes well.

Below the limits nothing takes long: a list becomes values only when it is known that it holds objects, and not too many.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TypeVar

from msgspec import DecodeError, Raw, Struct, ValidationError
from msgspec.json import Decoder

from refold.model.errors import BodyTooLarge, WireError
from refold.wire.faults import NOT_UTF8, explain

T = TypeVar("T")
S = TypeVar("S")

MAX_BODY_BYTES = 64 * 1024 * 1024
"""Twice the largest body a provider is known to accept (Anthropic's 32 MB)."""
MAX_MESSAGES = 100_000
"""More than any window holds: at ten tokens each they are a million tokens."""
MAX_OBJECTS = 1_000_000
"""Objects in one list, nested ones included: one for every 64 bytes of the largest body."""

FIELDS: Decoder[dict[str, Raw]] = Decoder(dict[str, Raw])
ITEMS: Decoder[list[Raw]] = Decoder(list[Raw])
ANY: Decoder[Raw] = Decoder(Raw)
NULL = Raw(b"null")
"""Stands for a field that is not there."""

_LARGE = MAX_OBJECTS * len(b"{}")
"""A shorter list cannot hold too many objects."""
# A brace outside of strings, once too often. Nothing in it is tried twice, so the time is linear.
_TOO_MANY = re.compile(
    rb'(?:(?:[^"{]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+\{){%d}+' % (MAX_OBJECTS + 1), re.DOTALL
)
_SPACE = b" \t\r\n"
_SAFE = ("Expected ", "Integer value out of range", "Number out of range")
"""The openings of msgspec's messages that quote no content."""


class Kind(Struct, gc=False):
    type: str


class _Anything(Struct, gc=False):
    """An object, unread."""


class _Said(Struct, gc=False):
    """A message of the formats that have `content`: lists in it hold objects and nothing else."""

    content: str | list[_Anything] | None = None
    tool_calls: list[_Anything] | None = None


class First(Struct, array_like=True, gc=False):
    """The first element of a list; the others are passed over."""

    value: Raw = NULL


_KIND = Decoder(Kind)
_OBJECTS = Decoder(list[_Anything])
_SAID: Decoder[_Said | list[_Said]] = Decoder(_Said | list[_Said])
_CONTENT: Decoder[str | list[Raw] | None] = Decoder(str | list[Raw] | None)
_WORD: Decoder[str | int] = Decoder(str | int)


def check_body(body: bytes, max_body_bytes: int = MAX_BODY_BYTES) -> None:
    """Refuse what must not reach the parser: too many bytes, or bytes that are not text."""
    if len(body) > max_body_bytes:
        raise BodyTooLarge(f"the body has {len(body):,} bytes; the limit is {max_body_bytes:,}")
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise WireError(f"the body {NOT_UTF8} (byte {error.start})") from None


def read(decoder: Decoder[T], data: Raw | bytes, place: str = "") -> T:
    """Decode, with every failure turned into a `WireError` at `place`."""
    try:
        return decoder.decode(data)
    except ValidationError as error:
        raise within(_mismatch(str(error)), place) from None
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise within(explain(error, bytes(data)), place) from None


def read_list(array: Raw | bytes, place: str = "") -> list[Raw]:
    """The elements of a list of objects, each as its bytes."""
    if len(array) > _LARGE:
        _check_objects(bytes(array), _OBJECTS, place)
    return read(ITEMS, array, place)


def read_content(raw: Raw, place: str = "content") -> str | list[Raw] | None:
    """A text, or the blocks of a list."""
    if len(raw) > _LARGE and bytes(memoryview(raw)[:1]) == b"[":
        _check_objects(bytes(raw), _OBJECTS, place)
    return read(_CONTENT, raw, place)


def read_said(decoder: Decoder[T], data: Raw | bytes) -> T:
    """One message or a list of them, whose `content` is read along."""
    if len(data) > _LARGE:
        _check_objects(bytes(data), _SAID, "")
    return read(decoder, data)


def _check_objects(data: bytes, shape: Decoder[S], place: str) -> None:
    """Refuse lists of too many objects, or of anything else, before their elements take memory."""
    if data.count(b"{") > MAX_OBJECTS and _TOO_MANY.match(data):
        raise too_many("objects", MAX_OBJECTS, place)
    read(shape, data, place)


def too_many(what: str, limit: int, place: str = "") -> WireError:
    return WireError(f"holds more than {limit:,} {what}", place=place, hint="split the conversation")


def kind_of(raw: Raw) -> str:
    """The `type` of a JSON block."""
    return read(_KIND, raw).type


def read_block(decoder: Decoder[T], kinds: frozenset[str], raw: Raw) -> T | str:
    """A block of a known kind, or the name of a kind that is not known."""
    try:
        return decoder.decode(raw)
    except (DecodeError, UnicodeDecodeError, RecursionError):
        kind = kind_of(raw)
    return read(decoder, raw) if kind in kinds else kind


def is_object(raw: Raw) -> bool:
    return bytes(memoryview(raw)[:1]) == b"{"


def is_null(raw: Raw) -> bool:
    return raw is NULL or (len(raw) == 4 and bytes(raw) == b"null")


def strip(raw: Raw | bytes) -> Raw:
    """JSON without the white space around it."""
    if isinstance(raw, Raw) and is_object(raw):
        return raw
    return Raw(bytes(raw).strip(_SPACE))


def text_of(raw: Raw) -> str:
    """JSON as text."""
    try:
        return str(raw, "utf-8")
    except UnicodeDecodeError:
        raise WireError(NOT_UTF8) from None


def word(raw: Raw) -> str:
    """A short answer such as an id or a code; some servers give them as numbers. What is neither says nothing."""
    try:
        return str(_WORD.decode(raw))
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return ""


def each(decode: Callable[[S], T], values: Iterable[S], place: str = "") -> tuple[T, ...]:
    """Decode every value; an error gets the index of the one that failed."""
    decoded: list[T] = []
    for value in values:
        try:
            decoded.append(decode(value))
        except WireError as error:
            raise within(error, f"{place}[{len(decoded)}]") from None
    return tuple(decoded)


def within(error: WireError, place: str) -> WireError:
    """The same error, seen from outside: its place continues from `place`."""
    message = error.message.removeprefix(f"{error.place}: ") if error.place else error.message
    return type(error)(message, place=join(place, error.place), hint=error.hint)


def join(outer: str, inner: str) -> str:
    if not outer or not inner or inner.startswith("["):
        return outer + inner
    return f"{outer}, {inner}" if outer.startswith("line ") else f"{outer}.{inner}"


def _mismatch(text: str) -> WireError:
    """From msgspec's words to a place and a message. The place comes last; what is before may quote content."""
    message, mark, path = text.rpartition(" - at `$")
    message, place = (message, path.removesuffix("`").removeprefix(".")) if mark else (text, "")
    missing = message.removeprefix("Object missing required field `")
    if missing != message:
        return WireError("is missing", place=join(place, missing.removesuffix("`")))
    if message.startswith(_SAFE):
        return WireError(message[0].lower() + message[1:], place=place)
    return WireError("holds a value that is not allowed here", place=place)
