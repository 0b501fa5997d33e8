"""Vectors from a provider: any server with OpenAI's `/embeddings`.

Uses the same connection, key, timeouts, retries and errors as a question for a reply.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from math import hypot

from msgspec import MsgspecError, Struct, json

from refold.model.errors import WireError
from refold.ports.upstream import Ask
from refold.upstreams.connection import Connection
from refold.upstreams.provider import Provider
from refold.upstreams.response_errors import (
    MAX_ERROR_BYTES,
    ErrorReply,
    Pace,
    Setback,
    error_of_response,
    unreadable_reply,
    with_retries,
)
from refold.wire.json_codec import MAX_BODY_BYTES

MAX_CHARACTERS = 6_000
"""Characters of a text, about 1,500 tokens: its beginning shows its subject, and some servers refuse longer
texts.
"""
_JSON = "application/json"


class _Vector(Struct, frozen=True):
    embedding: list[float]
    index: int = 0


class _Answer(Struct, frozen=True):
    data: list[_Vector]


class HttpEmbedder:
    """Made by `open_embedder`."""

    def __init__(self, provider: Provider, connection: Connection, pace: Pace) -> None:
        self._provider, self._connection, self._pace = provider, connection, pace
        self.least = -1.0  # not measured for arbitrary models
        size = provider.parameters.get("dimensions")
        self.name = f"{provider.name}:{provider.model}" + (f":{size}" if size else "")

    def __repr__(self) -> str:
        return f"<embedder {self.name}>"

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """A vector for each of the texts, empty for a blank text.

        Raises:
            UpstreamError: the provider gave no vectors.
        """
        asked = [text[:MAX_CHARACTERS] for text in texts if text.strip()]
        if not asked:
            return [b""] * len(texts)
        until = self._pace.clock() + self._provider.timeouts.total_s
        tries = with_retries(lambda: self._try(asked, until), self._provider, self._pace, until)
        async with aclosing(tries):
            found = iter(await anext(tries))
        return [next(found) if text.strip() else b"" for text in texts]

    async def _try(self, texts: list[str], until: float) -> AsyncGenerator[list[bytes], None]:
        fields = {"model": self._provider.model, "input": texts, **self._provider.parameters}
        body = json.encode({key: value for key, value in fields.items() if value is not None})
        async with self._connection.post(body, _JSON, until) as response:
            is_fine = 200 <= response.status < 300
            limit = MAX_BODY_BYTES if is_fine else MAX_ERROR_BYTES
            answer = ErrorReply(
                response.status, await self._connection.body(response, until, limit), response.headers
            )
        if not is_fine:
            raise error_of_response(self._provider, answer, Ask(()), self._pace.wall())
        yield self._read(answer.body, len(texts))

    def _read(self, body: bytes, count: int) -> list[bytes]:
        try:
            found = sorted(json.decode(body, type=_Answer).data, key=lambda one: one.index)
            vectors = [_packed(one.embedding) for one in found]
        except (MsgspecError, ZeroDivisionError):
            raise self._unreadable_reply("no vectors") from None
        if len(vectors) != count:
            raise self._unreadable_reply(f"{len(vectors)} vectors for {count} texts")
        return vectors

    def _unreadable_reply(self, what: str) -> Setback:
        return unreadable_reply(self._provider, WireError(what))


def _packed(numbers: list[float]) -> bytes:
    """A vector of length one, in the stored format."""
    length = hypot(*numbers)
    packed = array("f", (number / length for number in numbers))
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
