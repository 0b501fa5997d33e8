"""Reads streamed replies: returns the deltas of every chunk, and at the end the same reply as without a stream.

The pieces are assembled into the body that the provider would have sent without streaming, and the decoder
of replies reads that body, so that both ways give the same result. The deltas are returned at the same
time.

A reply is whole only if the stream says so: Chat by a finish reason (or `[DONE]`), Anthropic by
`message_stop`, Responses by its last event, which repeats the reply. A stream that stops before is no
reply, and an error in it is the response, whole or cut off.
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
    """Reads one streamed response: takes chunks of bytes, returns deltas.

    The deltas before a fault in the stream are returned first; `reply` raises the fault.
    """

    def __init__(self, dialect: Dialect, *, max_stream_bytes: int = MAX_STREAM_BYTES) -> None:
        self._dialect = dialect
        self._parser = SseParser(max_stream_bytes=max_stream_bytes)
        self._fold = _FOLDS[dialect.name]()
        self._events = 0
        self._fault: WireError | None = None
        self.failure: bytes | None = None
        """The data of the event that reports the error; `decode_error` reads it."""

    @property
    def seen(self) -> int:
        """Bytes of the stream so far, from which the reply is read."""
        return self._parser.seen

    @property
    def pending(self) -> int:
        """Bytes of the event that is not complete yet: they are read with the next chunk."""
        return self._parser.pending

    @property
    def is_over(self) -> bool:
        """True if nothing relevant can follow: some servers keep the connection open after the end of the stream."""
        return self._fold.is_over or self.failure is not None or self._fault is not None

    @property
    def is_open(self) -> bool:
        """True while the reply is unfinished: not yet whole, not failed, and still readable."""
        return not (self._fold.is_whole or self.failure is not None or self._fault is not None)

    def feed(self, chunk: bytes) -> list[Delta]:
        """The deltas of a chunk."""
        deltas: list[Delta] = []
        try:
            for event in self._parser.feed(chunk):
                if not self.is_over:
                    deltas += self._take(event)
        except WireError as error:
            self._fault = error
        return deltas

    def end(self) -> None:
        """End of the stream: an error event that was cut off becomes a failure, with the data so far."""
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
