"""Streamed replies: what is new with every chunk, and at the end the same reply as without a stream.

One idea: a stream is a reply told in pieces. The pieces are put together to the body that the provider would have sent at
once, and that body is read by the reader of replies, so that the two ways of asking cannot disagree. What was said is handed
on at the same time, piece by piece.

A reply is whole only if the stream said so: Chat by a finish reason (or `[DONE]`), Anthropic by `message_stop`, Responses by
its last event, which holds the reply once more. A stream that stops before is no reply, and an error in it is the answer,
whole or cut off.
"""

from __future__ import annotations

from collections.abc import Callable

from refold.model.dialect import Dialect
from refold.model.errors import WireError
from refold.model.message import DialectName
from refold.wire.anthropic import AnthropicFold
from refold.wire.chat import ChatFold
from refold.wire.json_codec import within
from refold.wire.reply import Reply, decode_reply
from refold.wire.responses import ResponsesFold
from refold.wire.sse import MAX_STREAM_BYTES, Delta, Fold, ServerSentEvent, SseParser

_FOLDS: dict[DialectName, Callable[[], Fold]] = {
    "chat": ChatFold,
    "responses": ResponsesFold,
    "anthropic": AnthropicFold,
}


class StreamReader:
    """Reads one streamed answer: chunks of bytes go in, what is new comes out.

    Whatever is wrong with the stream, what came before it is given first; `reply` tells what was wrong.
    """

    def __init__(self, dialect: Dialect, *, max_stream_bytes: int = MAX_STREAM_BYTES) -> None:
        self._dialect = dialect
        self._parser = SseParser(max_stream_bytes=max_stream_bytes)
        self._fold = _FOLDS[dialect.name]()
        self._events = 0
        self._fault: WireError | None = None
        self.failure: bytes | None = None
        """The data of the event that says what went wrong; `decode_error` reads it."""

    @property
    def seen(self) -> int:
        """Bytes of the stream so far: what the reply is read from."""
        return self._parser.seen

    @property
    def pending(self) -> int:
        """Bytes of the event that is not complete yet: they are read with the next chunk."""
        return self._parser.pending

    @property
    def is_over(self) -> bool:
        """Nothing more will come that counts: some servers keep the connection open after their last word."""
        return self._fold.is_over or self.failure is not None or self._fault is not None

    @property
    def is_open(self) -> bool:
        """Is the reply still to come to its end? Once it is whole, has failed or cannot be read any further, it is not."""
        return not (self._fold.is_whole or self.failure is not None or self._fault is not None)

    def feed(self, chunk: bytes) -> list[Delta]:
        """What a chunk adds."""
        deltas: list[Delta] = []
        try:
            for event in self._parser.feed(chunk):
                if not self.is_over:
                    deltas += self._take(event)
        except WireError as error:
            self._fault = error
        return deltas

    def end(self) -> None:
        """Nothing more will come: an error whose event was cut off is a failure, with what there is of it."""
        event = None if self.is_over else self._parser.end()
        if event is not None:
            self._take(event)

    def _take(self, event: ServerSentEvent) -> list[Delta]:
        place = f"event[{self._events}]"
        self._events += 1
        if event.name == "error":
            self.failure = event.data
            return []
        try:
            deltas = self._fold.take(event)
        except WireError as error:
            raise within(error, place) from None
        except RecursionError:
            raise WireError("is nested too deeply", place=place) from None
        if self._fold.is_failed:
            self.failure = event.data
        return deltas

    def reply(self) -> Reply:
        """The reply, once the stream has ended.

        Raises:
            WireError: the stream ended before the reply did, or is not of this format; `place` counts its events.
        """
        if self._fault is not None:
            raise self._fault
        if self.failure is not None:
            hint = "decode_error reads `failure`"
            raise WireError("the stream ended with an error", place="error", hint=hint)
        if not self._fold.is_whole:
            raise WireError("the stream ended before the reply did", place=f"event[{self._events}]")
        try:
            return decode_reply(self._fold.body(), self._dialect)
        except RecursionError:
            raise WireError("is nested too deeply") from None
