"""Reads the provider's answer while it is sent to the client: the reply, the usage, and whether it is
complete.

`Watcher` reads a copy of the bytes: a failure to read never reaches the client, and a stream counts as
complete only if it has its final event. `WholeEvents` passes a stream on event by event, because half an
event cannot be taken back if the other half never arrives.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec
from msgspec import Raw, Struct, structs

from refold.core.identity import compaction_keys
from refold.model.dialect import Dialect
from refold.model.errors import RefoldError, WireError
from refold.model.tokens import Usage
from refold.wire.json_codec import FIELDS
from refold.wire.reply import Reply, StreamReader, decode_reply
from refold.wire.request import encode_item
from refold.wire.sse import EventSplitter, TextDelta

MAX_REPLY_BYTES = 64 * 1024 * 1024
"""Size of an answer that is not streamed and is read: the size of the largest request. Longer answers are
passed on unread.
"""
MAX_HELD_BYTES = 64 * 1024
"""Size of an incomplete event that is held back: several hundred times a usual event. Larger ones are passed
on as they arrive.
"""
EVENTS = "text/event-stream"

_log = logging.getLogger("refold.gateway")


class CallResult(Struct, frozen=True):
    """The result of a call."""

    usage: Usage | None
    reply: bytes
    """The reply as JSON: its messages, the finish reason, and whether it is complete."""
    is_whole: bool
    is_answered: bool
    """True if the model sent any content. Then the request was not too long."""
    compactions: tuple[str, ...] = ()
    """Keys of the compactions in the reply that the provider made."""


def with_recalled(result: CallResult, recalled: Sequence[Raw]) -> CallResult:
    """A result whose reply has the results of recalls that the gateway ran, see `read_recalled`."""
    if not recalled:
        return result
    reply = {**FIELDS.decode(result.reply), "recalled": [*recalled]}
    return structs.replace(result, reply=msgspec.json.encode(reply))


class Watcher:
    """Reads one answer; without a dialect it reads nothing."""

    def __init__(self, dialect: Dialect | None, content_type: str = "") -> None:
        self._dialect = dialect
        self._stream = StreamReader(dialect) if dialect and content_type.startswith(EVENTS) else None
        self.is_stream = self._stream is not None
        self._body = bytearray()
        self._text: list[str] = []
        self._is_lost = False
        """True if reading failed. Then nothing is known about the stream."""
        self.has_begun = False
        """True if content has arrived. Before that a call can be repeated unnoticed."""

    @property
    def size(self) -> int:
        """Bytes that the outcome is read from."""
        return self._stream.seen if self._stream is not None else len(self._body)

    @property
    def pending(self) -> int:
        """Bytes that are parsed together with the next chunk; an answer that is not streamed is only
        collected.
        """
        return self._stream.pending if self._stream is not None else 0

    @property
    def is_over(self) -> bool:
        return self._stream is not None and self._stream.is_over

    @property
    def is_open(self) -> bool:
        """True for a stream without its final event."""
        return self._stream is not None and self._stream.is_open and not self._is_lost

    @property
    def failure(self) -> bytes | None:
        """The error event of a stream."""
        return self._stream.failure if self._stream else None

    def feed(self, chunk: bytes) -> None:
        if self._stream is None or self._is_lost:
            if self._dialect is not None and len(self._body) <= MAX_REPLY_BYTES:
                self._body += chunk
            return
        try:
            deltas = self._stream.feed(chunk)
        except Exception as error:  # noqa: BLE001  # no failure here may stop the bytes
            _log.error("a stream could not be read: %s", type(error).__name__)
            self._is_lost = True
            return
        if deltas:
            self.has_begun = True
            self._text += [delta.text for delta in deltas if isinstance(delta, TextDelta)]

    def outcome(self) -> CallResult:
        """The result of the call, after the answer has ended."""
        try:
            return self._outcome(self._reply())
        except (RefoldError, RecursionError):
            result = {"text": "".join(self._text), "is_whole": False}
            return CallResult(None, self._encode_result(result), is_whole=False, is_answered=self.has_begun)

    def _outcome(self, reply: Reply) -> CallResult:
        assert self._dialect is not None
        items = [encode_item(message, self._dialect) for message in reply.messages]
        result = {"messages": items, "finish": reply.finish, "model": reply.model, "is_whole": True}
        made = tuple(key for message in reply.messages for key in compaction_keys(message))
        return CallResult(
            reply.usage, self._encode_result(result), is_whole=True, is_answered=True, compactions=made
        )

    def _encode_result(self, result: dict[str, object]) -> bytes:
        try:
            return msgspec.json.encode({"format": self._dialect and self._dialect.name, **result})
        except UnicodeEncodeError:
            return b""

    def _reply(self) -> Reply:
        if self._dialect is None or self._is_lost:
            raise WireError("the answer was not read")
        if self._stream is not None:
            return self._stream.reply()
        return decode_reply(bytes(self._body), self._dialect)


class WholeEvents:
    """Passes a stream on in complete events, if they have at most `most` bytes; `is_hidden` selects events to
    leave out.
    """

    def __init__(self, most: int = MAX_HELD_BYTES, is_hidden: Callable[[bytes], bool] | None = None) -> None:
        self._most, self._is_hidden, self._splitter = most, is_hidden, EventSplitter()
        self._hides = False
        """True if the newest event was hidden. Then the blank lines after it are hidden too."""
        self.is_between = True
        """True if the bytes passed on so far end with a complete event."""

    def let_through(self, chunk: bytes) -> bytes:
        """The bytes that can be passed on now."""
        events = self._splitter.feed(chunk)
        if self._is_hidden is not None or not self.is_between:
            events = self._shown(events, self._is_hidden)
        if self._splitter.pending > self._most:
            self.is_between = False
            events.append(self._splitter.take_pending())
        return events[0] if len(events) == 1 else b"".join(events)

    def _shown(self, events: list[bytes], is_hidden: Callable[[bytes], bool] | None) -> list[bytes]:
        passed = list[bytes]()
        for event in events:
            if not self.is_between:
                self._hides, self.is_between = False, True
            elif is_hidden is not None and event.strip(b"\r\n"):
                self._hides = is_hidden(event)
            if not self._hides:
                passed.append(event)
        return passed

    def rest(self) -> bytes:
        """The incomplete event at the end of the stream."""
        rest = self._splitter.take_pending()
        return b"" if self.is_between and self._is_hidden is not None and self._is_hidden(rest) else rest
