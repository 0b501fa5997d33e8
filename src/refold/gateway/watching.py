"""What passes by on its way to the client, read along: the reply, what was used, and whether it came to its end.

One idea: the client gets the bytes as they come, and a copy of them is read. Nothing that is wrong with the copy reaches the
client, and a stream counts as complete only where it said so itself. Of a stream that is read, the client gets whole events: half
an event is of no use to anybody, and cannot be taken back when the other half never comes.
"""

from __future__ import annotations

import logging

import msgspec
from msgspec import Struct

from refold.engine.compactions import keys_of
from refold.model.dialect import Dialect
from refold.model.errors import RefoldError, WireError
from refold.model.tokens import Usage
from refold.wire.delta import TextDelta
from refold.wire.message import encode_item
from refold.wire.reply import Reply, decode_reply
from refold.wire.stream import StreamReader

MAX_REPLY_BYTES = 64 * 1024 * 1024
"""Of an answer that is not streamed and is read along, as much as a request may have: longer ones pass by unread."""
MAX_HELD_BYTES = 64 * 1024
"""Of an event that is not there yet: some hundred times a usual one. Larger ones go on as they come."""
EVENTS = "text/event-stream"
_BLANK_LINES = (b"\n\n", b"\n\r\n", b"\r\r")

_log = logging.getLogger("refold.gateway")


class Outcome(Struct, frozen=True):
    """What came of a call."""

    usage: Usage | None
    reply: bytes
    """What was said, as JSON: the messages, how it ended, and whether that was all of it."""
    is_whole: bool
    is_answered: bool
    """Was anything said? Then the call was not too long."""
    compactions: tuple[str, ...] = ()
    """The names of the provider's own compactions in it."""


class Watcher:
    """Reads one answer along; without a dialect it only looks on."""

    def __init__(self, dialect: Dialect | None, content_type: str = "") -> None:
        self._dialect = dialect
        self._stream = StreamReader(dialect) if dialect and content_type.startswith(EVENTS) else None
        self._body = bytearray()
        self._text: list[str] = []
        self._is_lost = False
        """Did reading along fail? Then nothing can be said about the stream."""
        self.has_begun = False
        """Was anything said? Before that an answer can still be asked for anew, and nobody notices."""

    @property
    def is_stream(self) -> bool:
        return self._stream is not None

    @property
    def size(self) -> int:
        """Bytes that the outcome is read from."""
        return self._stream.seen if self._stream is not None else len(self._body)

    @property
    def pending(self) -> int:
        """Bytes that are read together with the next chunk; an answer that is not streamed is only collected."""
        return self._stream.pending if self._stream is not None else 0

    @property
    def is_over(self) -> bool:
        return self._stream is not None and self._stream.is_over

    @property
    def is_open(self) -> bool:
        """Is it a stream whose end is still to come?"""
        return self._stream is not None and self._stream.is_open and not self._is_lost

    @property
    def failure(self) -> bytes | None:
        """What a stream says went wrong."""
        return self._stream.failure if self._stream else None

    def feed(self, chunk: bytes) -> None:
        if self._stream is not None and not self._is_lost:
            self._follow(self._stream, chunk)
        elif self._dialect is not None and len(self._body) <= MAX_REPLY_BYTES:
            self._body += chunk

    def _follow(self, stream: StreamReader, chunk: bytes) -> None:
        try:
            deltas = stream.feed(chunk)
        except Exception as error:  # noqa: BLE001  # whatever it is, the bytes themselves go on
            _log.error("a stream could not be read along: %s", type(error).__name__)
            self._is_lost = True
            return
        self.has_begun = self.has_begun or bool(deltas)
        self._text += [delta.text for delta in deltas if isinstance(delta, TextDelta)]

    def outcome(self) -> Outcome:
        """What came of it, once nothing more comes."""
        try:
            return self._outcome(self._reply())
        except (RefoldError, RecursionError):
            told = {"text": "".join(self._text), "is_whole": False}
            return Outcome(None, self._told(told), is_whole=False, is_answered=self.has_begun)

    def _outcome(self, reply: Reply) -> Outcome:
        assert self._dialect is not None
        items = [encode_item(message, self._dialect) for message in reply.messages]
        told = {"messages": items, "finish": reply.finish, "model": reply.model, "is_whole": True}
        made = tuple(key for message in reply.messages for key in keys_of(message))
        return Outcome(reply.usage, self._told(told), is_whole=True, is_answered=True, compactions=made)

    def _told(self, told: dict[str, object]) -> bytes:
        try:
            return msgspec.json.encode({"format": self._dialect and self._dialect.name, **told})
        except UnicodeEncodeError:
            return b""

    def _reply(self) -> Reply:
        if self._dialect is None or self._is_lost:
            raise WireError("it was not read")
        if self._stream is not None:
            return self._stream.reply()
        return decode_reply(bytes(self._body), self._dialect)


class WholeEvents:
    """Lets a stream through by whole events, as far as they are no longer than `most` bytes."""

    def __init__(self, most: int = MAX_HELD_BYTES) -> None:
        self._most, self._held = most, bytearray()
        self.is_between = True
        """Did all that went on end with the end of an event?"""

    def let_through(self, chunk: bytes) -> bytes:
        """What can go on by now."""
        held = self._held
        start = max(0, len(held) - 2)  # what is held has no blank line, but may have the beginning of one
        held += chunk
        ends = (at + len(line) for line in _BLANK_LINES if (at := held.rfind(line, start)) >= 0)
        end = max(ends, default=0)
        self.is_between = self.is_between or end > 0
        if len(held) - end > self._most:
            self.is_between, end = False, len(held)
        whole = bytes(held[:end])
        del held[:end]
        return whole

    def rest(self) -> bytes:
        """What never got its end."""
        return bytes(self._held)
