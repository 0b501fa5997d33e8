"""Reading JSON that may be hostile: limits first, then typed decoding, and errors that name the place.

One idea: whatever is wrong with the JSON, the caller sees a `WireError` with a place it can find in its own request, such
as `messages[3].content[0]`, and never a word of the content. Code that reads something inside something else gives places
relative to itself; `within` puts the outer place in front on the way up, so nothing is formatted while all goes well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from msgspec import DecodeError, Raw, Struct, ValidationError
from msgspec.json import Decoder

from refold.model.errors import BodyTooLarge, WireError

T = TypeVar("T")
S = TypeVar("S")

MAX_BODY_BYTES = 64 * 1024 * 1024
"""Twice the largest body a provider is known to accept (Anthropic's 32 MB)."""

FIELDS: Decoder[dict[str, Raw]] = Decoder(dict[str, Raw])
ITEMS: Decoder[list[Raw]] = Decoder(list[Raw])
ANY: Decoder[Raw] = Decoder(Raw)

_NOT_UTF8 = "is not valid UTF-8"
_TOO_DEEP = "is nested too deeply"
_SAFE = ("Expected ", "Integer value out of range", "Number out of range")
"""The openings of msgspec's messages that quote no content."""


class Kind(Struct, gc=False):
    type: str


_KIND = Decoder(Kind)


def check_body(body: bytes, max_body_bytes: int = MAX_BODY_BYTES) -> None:
    """Refuse what must not reach the parser: too many bytes, or bytes that are not text."""
    if len(body) > max_body_bytes:
        raise BodyTooLarge(f"the body has {len(body):,} bytes; the limit is {max_body_bytes:,}")
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise WireError(f"the body {_NOT_UTF8} (byte {error.start})") from None


def read(decoder: Decoder[T], data: Raw | bytes, place: str = "") -> T:
    """Decode, with every failure turned into a `WireError` at `place`."""
    try:
        return decoder.decode(data)
    except ValidationError as error:
        raise within(_mismatch(str(error)), place) from None
    except DecodeError as error:
        raise WireError(str(error), place=place) from None
    except UnicodeDecodeError:
        raise WireError(_NOT_UTF8, place=place) from None
    except RecursionError:
        raise WireError(_TOO_DEEP, place=place, hint="100 levels are always fine") from None


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


def text_of(raw: Raw) -> str:
    """JSON as text."""
    return str(raw, "utf-8")


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
    """From msgspec's words to a place and a message."""
    message, _, path = text.partition(" - at `$")
    place = path.removesuffix("`").removeprefix(".")
    missing = message.removeprefix("Object missing required field `")
    if missing != message:
        return WireError("is missing", place=join(place, missing.removesuffix("`")))
    if message.startswith(_SAFE):
        return WireError(message[0].lower() + message[1:], place=place)
    return WireError("holds a value that is not allowed here", place=place)
