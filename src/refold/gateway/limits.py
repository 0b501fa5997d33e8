"""Reading a request's body within limits: of bytes, of time, of nesting.

One idea: nothing is unpacked, taken apart or believed before it is known to be small enough, and what was looked at once is not
looked at again. The length that a client announces can only make the refusal quicker; bytes are counted as they come. Compressed
bodies are refused: what they hold is not known before it is there, and no provider's SDK sends them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO
from itertools import accumulate

from msgspec import Raw
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from refold.model.errors import BodyEncoded, BodyTooLarge, BodyTooSlow, WireError
from refold.wire.json_codec import MAX_BODY_BYTES, check_body, too_many

GRACE_S = 30.0
"""Before anything must have come: longer than a laptop takes to find its network again."""
BYTES_PER_S = 16 * 1024
"""What a body must make on average after that: a tenth of a poor mobile connection, and one that trickles ends in a minute."""
MAX_DEPTH = 256
"""Schemas of tools reach a few dozen levels; parsers give up near 1,000, at a number that changes with every Python."""
MAX_BRACKETS = 8_000_000
"""Of lists and objects: four times what one list may hold (`refold.wire`), and counted in half a second."""

_STEP = 1 << 20
"""Bytes that are looked at in one go: what they are taken apart into stays small."""
_FOLDS = 8
"""How often innermost pairs are taken out before levels are counted one by one: conversations are nested less than that."""
_EVERY = set(range(256))
_OTHERS = bytes(_EVERY - set(b'"{}[]'))
_OTHERS_OUTSIDE_ESCAPES = bytes(_EVERY - set(b'"{}[]' rb"\/bfnrtu"))
"""What may stand after a backslash stays with it: else it would reach for whatever comes next."""
_ONE_KIND = bytes.maketrans(b"[]", b"{}")
_CLIMB = tuple({ord("{"): 1, ord("}"): -1}.get(byte, 0) for byte in range(256))


async def read_body(
    scope: Scope,
    receive: Receive,
    *,
    max_bytes: int = MAX_BODY_BYTES,
    grace_s: float = GRACE_S,
    bytes_per_s: float = BYTES_PER_S,
) -> bytes:
    """The body of a request, whatever it holds.

    Raises:
        BodyEncoded: it is compressed.
        BodyTooLarge: it has more bytes.
        BodyTooSlow: it does not come, or trickles.
        ClientDisconnect: the client went away.
    """
    _check_headers(scope["headers"], max_bytes)
    began, kept = asyncio.get_running_loop().time(), BytesIO()
    try:
        async with asyncio.timeout_at(began + grace_s) as limit:
            while await _take(receive, kept, max_bytes):
                limit.reschedule(began + grace_s + kept.tell() / bytes_per_s)
    except TimeoutError:
        raise BodyTooSlow(f"The body took too long to arrive; {kept.tell():,} bytes came.") from None
    # Unlike joining pieces this needs no second copy of a large body.
    return kept.getvalue()


async def _take(receive: Receive, kept: BytesIO, max_bytes: int) -> bool:
    """Keep what comes next; is there more to come?"""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    piece = message.get("body", b"")
    if kept.tell() + len(piece) > max_bytes:
        raise _too_large(max_bytes)
    kept.write(piece)
    return bool(message.get("more_body", False))


def _check_headers(headers: Iterable[tuple[bytes, bytes]], max_bytes: int) -> None:
    for name, value in headers:
        if name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            raise BodyEncoded
        if name == b"content-length" and value.isdigit() and int(value[:20]) > max_bytes:
            raise _too_large(max_bytes)


def _too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"The body has more than {max_bytes:,} bytes.",
        hint="raise server.max_body_mb, or send media by reference instead of inline",
    )


def check_json(body: bytes, *, max_bytes: int = MAX_BODY_BYTES, max_depth: int = MAX_DEPTH) -> None:
    """Refuse what must not reach a parser. JSON that is wrong in other ways is not noticed here.

    Raises:
        BodyTooLarge: it has more bytes.
        WireError: it is not UTF-8, is nested too deeply, or opens more lists and objects than any conversation.
    """
    check_body(body, max_bytes)
    if len(body) <= _STEP and body.count(b"{") + body.count(b"[") <= max_depth:
        return
    depth = seen = 0
    for brackets in _outside_strings(body):
        seen += len(brackets)
        if seen > MAX_BRACKETS:
            raise too_many("brackets", MAX_BRACKETS, "the body")
        if _deepest(brackets, depth, max_depth) > max_depth:
            raise WireError(
                f"the body is nested more than {max_depth} levels deep",
                hint="raise server.max_depth, or send what is nested as text",
            )
        depth += brackets.count(b"{") - brackets.count(b"}")
        if depth < 0:
            return  # More was closed than opened: no parser reads on from there.


def check_new(
    body: bytes,
    fields: Mapping[str, Raw],
    history: str,
    known: int,
    *,
    max_bytes: int = MAX_BODY_BYTES,
    max_depth: int = MAX_DEPTH,
) -> None:
    """As `check_json`, for a body that was read into its fields: of the list under `history`, the first `known` bytes are items that
    were looked at with an earlier request.

    Raises:
        BodyTooLarge, WireError: as `check_json`.
    """
    # Keys, spaces, and a field that came twice, of which a parser keeps the last: too short to be nested too deeply?
    unread = len(body) - sum(map(len, fields.values()))
    if not known or unread >= max_depth or len(body) > MAX_BRACKETS:
        check_json(body, max_bytes=max_bytes, max_depth=max_depth)
        return
    check_body(body, max_bytes)
    others = b",".join(bytes(raw) for name, raw in fields.items() if name != history)
    check_json(b"{" + others + b",[" + bytes(memoryview(fields[history])[known:]) + b"}", max_depth=max_depth)


def _outside_strings(body: bytes) -> Iterator[bytes]:
    """The brackets that mean something, all written as braces, in pieces."""
    if b"\\" in body:
        body = body.translate(None, _OTHERS_OUTSIDE_ESCAPES)
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    inside = 0
    for start in range(0, len(body), _STEP):
        # Two quotes in a row hold nothing between them, inside of a string or outside: most strings go at once.
        parts = body[start : start + _STEP].translate(_ONE_KIND, _OTHERS).replace(b'""', b"").split(b'"')
        yield b"".join(parts[inside::2])
        inside ^= (len(parts) - 1) & 1


def _deepest(brackets: bytes, depth: int, enough: int) -> int:
    """The deepest level, or a little more than that where it is far from enough."""
    folded = brackets
    for _ in range(_FOLDS):
        folded = folded.replace(b"{}", b"")
    at_most = _climb(folded, depth) + _FOLDS
    return at_most if at_most <= enough else _climb(brackets, depth)


def _climb(brackets: bytes, depth: int) -> int:
    return max(accumulate(map(_CLIMB.__getitem__, brackets), initial=depth))
