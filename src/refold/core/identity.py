"""The identity of a message and of a history, used to recognise a request that carries its whole conversation.

The identity of a message is its role, text, tool calls (id, name, canonical arguments), result text and
media. Reasoning, nulls, cache marks and the form (string or blocks) are excluded, because clients change
them when they resend history. The identity of a history is a keyed hash chain over its messages. The chain
is extended part by part, so that formats that split messages differently agree. Histories that differ in
anything else have different identities. A provider's own compaction is identified by its content alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from hashlib import blake2b, sha256

import msgspec

from refold.model.message import (
    File,
    Image,
    Message,
    Opaque,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    compaction_of,
)

VERSION = 2
"""Stored with every hash: hashes of different versions are never compared."""

_DIGEST_BYTES = 16
_SLICE = 64 * 1024
"""Characters of a long text that are hashed at a time: it is not copied as a whole, and other threads can run in between."""
_PERSON = f"refold-id-{VERSION}".encode()


def identity(message: Message) -> bytes | None:
    """The concatenated hashes of the message's parts; None if it has no content that clients reliably repeat."""
    role = "user" if message.role == "tool" else message.role  # text beside a result is the user's
    if len(message.parts) == 1:  # as in most messages
        only = _identity_of_part(message.parts[0])
        return None if only is None else _hash(("tool" if only[0] == "result" else role, only))
    said = (part for part in map(_identity_of_part, message.parts) if part is not None)
    return b"".join([_hash(("tool" if part[0] == "result" else role, part)) for part in said]) or None


def compaction_keys(message: Message) -> tuple[str, ...]:
    """The keys of the providers' compactions in a message: hashes of their content, because clients leave out
    their ids or change them.
    """
    found = (compaction_of(part) for part in message.parts)
    texts = (one.text or one.sealed for one in found if one is not None)
    return tuple(sha256(text.encode("utf-8", "surrogatepass")).hexdigest() for text in texts)


def _hash(said: tuple[str, tuple[object, ...]]) -> bytes:
    try:
        if _is_long(said):
            return _hash_slices(said)
        packed = msgspec.msgpack.encode(said)
    except UnicodeEncodeError:
        packed = repr(said).encode("utf-8", "backslashreplace")
    return blake2b(packed, digest_size=_DIGEST_BYTES, person=_PERSON).digest()


def _hash_slices(said: object) -> bytes:
    hashed = blake2b(digest_size=_DIGEST_BYTES, person=_PERSON)
    for packed in _pack(said):
        hashed.update(packed)
    return hashed.digest()


def _is_long(said: tuple[object, ...]) -> bool:
    """Return True if one of the texts is longer than a slice."""
    for one in said:
        if type(one) is str:
            if len(one) > _SLICE:
                return True
        elif type(one) is tuple and _is_long(one):
            return True
    return False


def _pack(said: object) -> Iterator[bytes]:
    """Yield the bytes of `msgpack.encode`, those of a long text slice by slice."""
    if isinstance(said, str) and len(said) > _SLICE:
        size = len(said) if said.isascii() else sum(map(len, _encode(said)))
        yield b"\xdb" + size.to_bytes(4, "big")
        yield from _encode(said)
    elif isinstance(said, tuple) and said:
        yield msgspec.msgpack.encode((None,) * len(said))[
            : -len(said)
        ]  # the head of a list; each None is one byte
        for one in said:
            yield from _pack(one)
    else:
        yield msgspec.msgpack.encode(said)


def _encode(text: str) -> Iterator[bytes]:
    return (text[at : at + _SLICE].encode() for at in range(0, len(text), _SLICE))


def start_chain(key: bytes) -> bytes:
    """The chain of an empty history. `key` is the owner's, so that equal openings of two owners differ."""
    return _digest(b"", key)


def extend_chain(chain: bytes, message: Message, key: bytes) -> bytes:
    """The chain after one more message. A message without an identity leaves it unchanged."""
    return extend_by_identity(chain, identity(message), key)


def extend_by_identity(chain: bytes, said: bytes | None, key: bytes) -> bytes:
    """The chain after a message with this identity."""
    said = said or b""
    for start in range(0, len(said), _DIGEST_BYTES):
        chain = _digest(chain + said[start : start + _DIGEST_BYTES], key)
    return chain


def _digest(data: bytes, key: bytes) -> bytes:
    hashed = _keyed(key).copy()
    hashed.update(data)
    return hashed.digest()


@lru_cache(maxsize=256)
def _keyed(key: bytes) -> blake2b:
    """The hash of no data under a key: a copy of it takes half the time of a new one."""
    short = key if len(key) <= blake2b.MAX_KEY_SIZE else blake2b(key).digest()
    return blake2b(digest_size=_DIGEST_BYTES, key=short, person=_PERSON)


def chain_of(messages: Iterable[Message], key: bytes = b"") -> Iterator[bytes]:
    """The chain after each message."""
    chain = start_chain(key)
    for message in messages:
        chain = extend_chain(chain, message, key)
        yield chain


def _identity_of_part(part: Part) -> tuple[object, ...] | None:
    match part:
        case Text():
            return ("text", part.text) if part.text else None
        case ToolCall():
            return ("call", part.id, part.name, _canonical(part.arguments.strip() or "{}", as_block=False))
        case ToolResult():
            inner = tuple(said for said in map(_identity_of_part, part.parts) if said is not None)
            return ("result", part.call_id, inner)
        case Image() | File():
            return _media(part)
        case Opaque():
            return ("opaque", part.kind, _canonical(bytes(part.raw or b"").decode(), as_block=True))
        case Reasoning():
            return None


def _media(part: Image | File) -> tuple[object, ...]:
    fields = {"data": part.data, "url": part.url, "file_id": part.file_id, "text": getattr(part, "text", "")}
    where, content = next(((name, value) for name, value in fields.items() if value), ("", ""))
    digest = blake2b(content.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).digest()
    return ("media", where, digest)


_MAX_DEPTH = 64
"""Deeper JSON is hashed as plain text: a parser's depth limit depends on its call stack, and identity must not."""
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]')
"""Strings (even unterminated) and the brackets outside of them. Possessive, so that matching is linear."""


def _canonical(text: str, *, as_block: bool) -> bytes:
    """JSON in one form: keys sorted, no nulls, whole numbers as integers; in a provider's block, no cache marks.

    Other text is returned unchanged.
    """
    if _is_shallow(text):
        try:
            value = msgspec.json.decode(text)
            return msgspec.json.encode(_plain(value, as_block=as_block), order="sorted")
        except (msgspec.MsgspecError, ValueError):
            pass
    return text.encode("utf-8", "surrogatepass")


def _is_shallow(text: str) -> bool:
    if text.count("[") + text.count("{") <= _MAX_DEPTH:
        return True
    depth = 0
    for found in _BRACKETS.finditer(text):
        sign = found.group()
        depth += (sign in "[{") - (sign in "]}")
        if depth > _MAX_DEPTH:
            return False
    return True


def _plain(value: object, *, as_block: bool) -> object:
    if isinstance(value, dict):
        return {
            key: _plain(inner, as_block=as_block)
            for key, inner in value.items()
            if inner is not None and not (as_block and key == "cache_control")
        }
    if isinstance(value, list):
        return [_plain(inner, as_block=as_block) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else value
