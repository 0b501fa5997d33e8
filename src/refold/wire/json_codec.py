"""Reads and writes JSON that may be hostile: limits first, then typed decoding, and errors with a place.

Every fault in the JSON becomes a `WireError` with a place that the caller can find in its own request,
such as `messages[3].content[0]`, and without any content. A nested reader gives a place relative to
itself; `within` adds the outer place while the error propagates, so valid input costs no formatting.

Below the limits nothing takes long: the elements of a list are decoded only after it is known that they
are objects, and not too many.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeAlias, TypeVar

import msgspec
from msgspec import DecodeError, Raw, Struct, ValidationError
from msgspec.json import Decoder

from refold.model.errors import BodyTooLarge, WireError
from refold.model.message import File, Image, Opaque, Part, Reasoning, Text, ToolCall, ToolResult

# Diagnosis of bytes that are no JSON: the fault and its place

NOT_UTF8 = "is not valid UTF-8"
_TOO_DEEP = "is nested too deeply"
_KNOWN = frozenset(
    {"messages", "input", "system", "tools", "content", "output", "tool_calls", "choices", "message"}
)
_MAX_STEPS = 6
"""`messages[0].content[0].content[0]`: a conversation has no named place deeper than this."""
_MAX_DEPTH = 1_000
"""The deepest nesting that any of Python's parsers follows."""
_MAX_TOKENS = 300_000
"""Limit of the search for a place: a third of a second, or some 20,000 messages. Beyond it no place is given."""

_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?P<end>")?(?P<key>\s*+:)?|[\[\]{},]', re.DOTALL)
"""Strings (even unterminated) and the structure between them. A key is a string before a colon."""
_HALF_PAIR = re.compile(
    rb"(?:[^\\]++|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|\\(?:[^u]|u(?![dD])|u[dD](?![89a-fA-F])))*+\\u[dD][89a-fA-F]",
)
_STOPPED_AT = re.compile(r"\(byte (\d+)\)$")

Path = list[str | int]
Data: TypeAlias = Raw | bytes | memoryview
"""JSON in memory; a view of a larger value is not copied."""


def explain(error: Exception, data: bytes) -> WireError:
    """The parser's error as a `WireError` with the fault and its place."""
    if isinstance(error, RecursionError):
        return WireError(_TOO_DEEP, place=_deepest(data), hint="100 levels are always fine")
    if isinstance(error, UnicodeDecodeError):
        return WireError(NOT_UTF8)
    stopped = _STOPPED_AT.search(str(error))
    end = int(stopped[1]) if stopped else len(data)
    half = _HALF_PAIR.match(data, 0, end + len(rb"\ud83d\ude00"))
    at = half.end() - len(rb"\ud8") if half else end + 1
    if at > end or (not stopped and b'"' not in data[at:]):  # behind the fault, or itself cut off
        return WireError(str(error) if stopped else f"{error} (byte {end})")
    hint = "a text was cut inside of a character: send both halves, or neither"
    return WireError(f"holds half of a surrogate pair (byte {at})", place=_place_at(data, at), hint=hint)


def _deepest(data: bytes) -> str:
    deepest: Path = []
    depth = 0
    for _, path in _walk(data):
        if len(path) > depth:
            depth, deepest = len(path), path[:_MAX_STEPS]
        if depth > _MAX_DEPTH:
            break
    return _spell(deepest)


def _place_at(data: bytes, offset: int) -> str:
    place: Path = []
    for end, path in _walk(data):
        if end > offset:
            return _spell(place)
        place = path[:_MAX_STEPS]
    return _spell(place)


def _walk(data: bytes) -> Iterator[tuple[int, Path]]:
    """Every token that opens, closes or names a value: its end, and the path after it."""
    path: Path = []
    for token in islice(_TOKEN.finditer(data), _MAX_TOKENS):
        sign = data[token.start() : token.start() + 1]
        if sign == b'"':
            if not token["end"]:
                return  # after an unterminated string there is no structure
            if token["key"] and path:
                path[-1] = token[0][1:40].partition(b'"')[0].decode("ascii", "replace")
        elif sign in b"[{":
            path.append(0 if sign == b"[" else "")
        elif sign in b"]}":
            del path[-1:]
        elif path and isinstance(path[-1], int):
            path[-1] += 1
        yield token.end(), path


def _spell(path: Path) -> str:
    place = ""
    for step in path:
        if isinstance(step, int):
            place += f"[{step}]"
        elif step in _KNOWN:
            place += f".{step}" if place else step
        else:
            break
    return place


T = TypeVar("T")
S = TypeVar("S")

MAX_BODY_BYTES = 64 * 1024 * 1024
"""Twice the largest body that a provider is known to accept (Anthropic's 32 MB)."""
MAX_MESSAGES = 100_000
"""More than any window holds: at ten tokens each they are a million tokens."""
MAX_OBJECTS = 1_000_000
"""Objects in one list, nested ones included: one for every 64 bytes of the largest body."""

FIELDS: Decoder[dict[str, Raw]] = Decoder(dict[str, Raw])
ITEMS: Decoder[list[Raw]] = Decoder(list[Raw])
ANY: Decoder[Raw] = Decoder(Raw)
NULL = Raw(b"null")
"""The value of a field that is absent."""

_LARGE = MAX_OBJECTS * len(b"{}")
"""A shorter list cannot hold too many objects."""
# More braces outside of strings than allowed. The pattern never backtracks, so the time is linear.
_TOO_MANY = re.compile(
    rb'(?:(?:[^"{]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+\{){%d}+' % (MAX_OBJECTS + 1), re.DOTALL
)
_PIECE = 1 << 20
_SPACE = b" \t\r\n"
_SAFE = ("Expected ", "Integer value out of range", "Number out of range")
"""The beginnings of msgspec's messages that quote no content."""


class TypeField(Struct, gc=False):
    type: str


class _Anything(Struct, gc=False):
    """An object that is not decoded."""


class _Said(Struct, gc=False):
    """A message of the formats with `content`: lists in it hold only objects."""

    content: str | list[_Anything] | None = None
    tool_calls: list[_Anything] | None = None


class First(Struct, array_like=True, gc=False):
    """The first element of a list; the others are skipped."""

    value: Raw = NULL


_KIND = Decoder(TypeField)
_OBJECTS = Decoder(list[_Anything])
_SAID: Decoder[_Said | list[_Said]] = Decoder(_Said | list[_Said])
_CONTENT: Decoder[str | list[Raw] | None] = Decoder(str | list[Raw] | None)
_WORD: Decoder[str | int] = Decoder(str | int)


def check_body(body: bytes, max_body_bytes: int = MAX_BODY_BYTES) -> None:
    """Refuse a body that must not reach the parser: too many bytes, or bytes that are not text."""
    if len(body) > max_body_bytes:
        raise BodyTooLarge(f"the body has {len(body):,} bytes; the limit is {max_body_bytes:,}")
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise WireError(f"the body {NOT_UTF8} (byte {error.start})") from None


def read(decoder: Decoder[T], data: Data, place: str = "") -> T:
    """Decode, with every failure turned into a `WireError` at `place`."""
    try:
        return decoder.decode(data)
    except ValidationError as error:
        raise within(_mismatch(str(error)), place) from None
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise within(explain(error, bytes(data)), place) from None


def read_list(array: Data, place: str = "") -> list[Raw]:
    """The elements of a list of objects, each as its bytes."""
    if len(array) > _LARGE:
        _check_objects(array, _OBJECTS, place)
    return read(ITEMS, array, place)


def read_content(raw: Raw, place: str = "content") -> str | list[Raw] | None:
    """A text, or the blocks of a list."""
    if len(raw) > _LARGE and bytes(memoryview(raw)[:1]) == b"[":
        _check_objects(raw, _OBJECTS, place)
    return read(_CONTENT, raw, place)


def read_messages(decoder: Decoder[T], data: Data) -> T:
    """One message or a list of them, with their `content`."""
    if len(data) > _LARGE:
        _check_objects(data, _SAID, "")
    return read(decoder, data)


LONG_TEXT = 256 * 1024
"""Bytes. A longer text is decoded in slices, see `read_long_text`."""
_SLICE = 64 * 1024
_TEXT = Decoder(str)


def read_long_text(raw: Raw) -> str | None:
    """A text of the JSON, decoded in slices: the decoder would need twice its memory, and other threads can run in between. None
    for any other value, and for a text that cannot be decoded: then the decoder says why.
    """
    data, text = memoryview(raw), ""
    if bytes(data[:1]) != b'"':
        return None
    try:
        for piece in _decode_slices(data[1:-1]):
            text += piece  # in place; `join` would need all pieces beside its result
    except (DecodeError, UnicodeDecodeError):
        return None
    return text


def _decode_slices(data: memoryview) -> Iterator[str]:
    """Yield what stands between the quotes of a text."""
    start = 0
    while start < len(data):
        piece = bytes(data[start : start + _SLICE])
        size = len(piece) if start + len(piece) == len(data) else _whole(piece)
        yield _TEXT.decode(b'"%b"' % piece[:size])
        start += size


def _whole(piece: bytes) -> int:
    """The size of the beginning of a piece of a text in JSON that ends with a whole character."""
    at = piece.rfind(b"\\", len(piece) - 12)
    if at < 0:
        ends = range(len(piece) - 1, len(piece) - 5, -1)  # a character has four bytes at most
        last = next((index for index in ends if piece[index] & 0xC0 != 0x80), len(piece))
        return last if piece[last:] >= b"\x80" else len(piece)
    if not _begins_escape(piece, at):
        return at + 1
    code = piece[at + 2 : at + 6]
    if piece[at + 1 : at + 2] not in (b"", b"u"):
        return at + 2
    if len(code) < 4:  # it may be the second half of a character
        return at - 6 if _is_first_half(piece[at - 6 : at]) and _begins_escape(piece, at - 6) else at
    return at if _is_first_half(piece[at : at + 6]) else at + 6


def _begins_escape(piece: bytes, at: int) -> bool:
    """True if a backslash is not itself escaped."""
    return (at - len(piece[:at].rstrip(b"\\"))) % 2 == 0


def _is_first_half(escape: bytes) -> bool:
    return escape[:3].lower() == b"\\ud" and escape[3:4].lower() in (b"8", b"9", b"a", b"b")


def _check_objects(data: Data, shape: Decoder[S], place: str) -> None:
    """Refuse lists of too many objects, or of other values, before their elements take memory."""
    commas, braces = _count(data, b",{")
    if commas < MAX_OBJECTS and braces <= MAX_OBJECTS:
        return  # no list has more elements
    if braces > MAX_OBJECTS and _TOO_MANY.match(data):
        raise too_many("objects", MAX_OBJECTS, place)
    read(shape, data, place)


def _count(data: Data, signs: bytes) -> list[int]:
    """How often each sign occurs. A piece at a time, so that no copy of a large value is made."""
    pieces, counts = memoryview(data), [0] * len(signs)
    for at in range(0, len(data), _PIECE):
        piece = bytes(pieces[at : at + _PIECE])
        counts = [count + piece.count(sign) for count, sign in zip(counts, signs, strict=True)]
    return counts


def too_many(what: str, limit: int, place: str = "") -> WireError:
    return WireError(f"holds more than {limit:,} {what}", place=place, hint="split the conversation")


def kind_of(raw: Raw) -> str:
    """The `type` of a JSON block."""
    return read(_KIND, raw).type


def read_block(decoder: Decoder[T], kinds: frozenset[str], raw: Raw) -> T | str:
    """A block of a known kind, or the name of an unknown kind."""
    try:
        return decoder.decode(raw)
    except (DecodeError, UnicodeDecodeError, RecursionError):
        kind = kind_of(raw)
    return read(decoder, raw) if kind in kinds else kind


def is_object(raw: Raw) -> bool:
    return bytes(memoryview(raw)[:1]) == b"{"


def is_null(raw: Raw) -> bool:
    return raw == NULL


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
    """A short value such as an id or a code; some servers send numbers. Empty for any other value."""
    if raw == NULL:
        return ""
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
    """The same error with `place` in front of its own place."""
    message = error.message.removeprefix(f"{error.place}: ") if error.place else error.message
    return type(error)(message, place=join(place, error.place), hint=error.hint)


def join(outer: str, inner: str) -> str:
    if not outer or not inner or inner.startswith("["):
        return outer + inner
    return f"{outer}, {inner}" if outer.startswith("line ") else f"{outer}.{inner}"


def _mismatch(text: str) -> WireError:
    """The place and the text of msgspec's error. The place is its last part; the text before it may quote content."""
    message, mark, path = text.rpartition(" - at `$")
    message, place = (message, path.removesuffix("`").removeprefix(".")) if mark else (text, "")
    missing = message.removeprefix("Object missing required field `")
    if missing != message:
        return WireError("is missing", place=join(place, missing.removesuffix("`")))
    if message.startswith(_SAFE):
        return WireError(message[0].lower() + message[1:], place=place)
    return WireError("holds a value that is not allowed here", place=place)


# Writing: fields to bytes, and changes to JSON that stays the same otherwise

Json: TypeAlias = "Raw | str | bool | int | Sequence[Json] | Mapping[str, Json] | None"
Fields: TypeAlias = dict[str, Json]


def write(value: Json) -> Raw:
    """One JSON value as bytes."""
    try:
        return Raw(msgspec.json.encode(value))
    except UnicodeEncodeError:
        raise WireError(_HALF) from None


def verbatim(text: str) -> Raw:
    """Text that is JSON already."""
    try:
        return Raw(text.encode())
    except UnicodeEncodeError:
        raise WireError(_HALF) from None


_HALF = "the text holds half of a surrogate pair, which UTF-8 cannot carry"


def patch(raw: Raw, before: Fields, after: Fields) -> Raw:
    """`raw` with the fields in which the two spellings differ."""
    if before == after:
        return raw
    current = read(FIELDS, raw)
    fields: Fields = {**current}
    for key in {**before, **after}:
        if key not in after:
            fields.pop(key, None)
        elif key not in before or before[key] != after[key]:
            fields[key] = _changed(fields.get(key), before.get(key), after[key])
    return write(fields)


def _changed(raw: Json, before: Json, after: Json) -> Json:
    if isinstance(raw, Raw) and isinstance(before, dict) and isinstance(after, dict):
        return patch(raw, before, after)
    return after


def write_block(part: Part, decode: Callable[[Raw], Part], spell: Callable[[Part], Fields]) -> Raw:
    """A part as a JSON block: its original block with the necessary changes, or a new one."""
    if part.raw is None:
        return write(spell(part))
    original = decode(part.raw)
    if original == part:
        return part.raw
    if isinstance(original, Reasoning | Opaque) or type(original) is not type(part):
        raise WireError("this block cannot be changed", hint="send it as it came, or leave it out")
    return patch(part.raw, spell(original), spell(part))


def write_content(
    parts: Sequence[Part], block: Callable[[Part], Raw], place: str = "content", empty: Json = ""
) -> Json:
    """The value of the field at `place`: a string if one is enough, otherwise a list of blocks."""
    if not parts:
        return empty
    if len(parts) == 1 and isinstance(parts[0], Text) and parts[0].raw is None:
        return parts[0].text
    return each(block, parts, place)


def misplaced(part: Part, format_name: str) -> WireError:
    return WireError(
        f"{format_name} has no place for {_NAMES[type(part)]}", hint="build the message without it"
    )


_NAMES: dict[type[Part], str] = {
    Text: "this text",
    Reasoning: "this reasoning",
    ToolCall: "a tool call",
    ToolResult: "a tool result",
    Image: "this image",
    File: "this file",
    Opaque: "a block of another provider",
}
