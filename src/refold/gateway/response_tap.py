"""Reads the provider's answer while it is sent to the client: the reply, the usage, and whether it is complete.

`Watcher` reads a copy of the bytes: an error in reading never reaches the client, and a stream is complete only where it says so.
`WholeEvents` lets a stream through event by event, because the first half of an event cannot be taken back when the second never
comes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec
from msgspec import Struct

from refold.engine.provider_compactions import keys_of
from refold.model.dialect import Dialect
from refold.model.errors import RefoldError, WireError
from refold.model.tokens import Usage
from refold.wire.message import encode_item
from refold.wire.reply import Reply, decode_reply
from refold.wire.sse import EventSplitter, TextDelta
from refold.wire.stream import StreamReader

MAX_REPLY_BYTES = 64 * 1024 * 1024
"""Of an answer that is not streamed and is read along, as much as a request may have: longer ones pass by unread."""
MAX_HELD_BYTES = 64 * 1024
"""Of an event that is not there yet: some hundred times a usual one. Larger ones go on as they come."""
EVENTS = "text/event-stream"

_log = logging.getLogger("refold.gateway")


class CallResult(Struct, frozen=True):
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

    def outcome(self) -> CallResult:
        """What came of it, once nothing more comes."""
        try:
            return self._outcome(self._reply())
        except (RefoldError, RecursionError):
            told = {"text": "".join(self._text), "is_whole": False}
            return CallResult(None, self._told(told), is_whole=False, is_answered=self.has_begun)

    def _outcome(self, reply: Reply) -> CallResult:
        assert self._dialect is not None
        items = [encode_item(message, self._dialect) for message in reply.messages]
        told = {"messages": items, "finish": reply.finish, "model": reply.model, "is_whole": True}
        made = tuple(key for message in reply.messages for key in keys_of(message))
        return CallResult(reply.usage, self._told(told), is_whole=True, is_answered=True, compactions=made)

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
    """Lets a stream through by whole events, as far as they are no longer than `most` bytes; `is_hidden` says which are left out."""

    def __init__(self, most: int = MAX_HELD_BYTES, is_hidden: Callable[[bytes], bool] | None = None) -> None:
        self._most, self._is_hidden, self._splitter = most, is_hidden, EventSplitter()
        self._hides = False
        """Was the newest event hidden? Then further line ends after it are."""
        self.is_between = True
        """Did all that went on end with the end of an event?"""

    def let_through(self, chunk: bytes) -> bytes:
        """What can go on by now."""
        passed = list[bytes]()
        for event in self._splitter.feed(chunk):
            if not self.is_between:
                self._hides, self.is_between = False, True
            elif event.strip(b"\r\n"):
                self._hides = self._leaves_out(event)
            if not self._hides:
                passed.append(event)
        if self._splitter.pending > self._most:
            self.is_between = False
            passed.append(self._splitter.take_pending())
        return b"".join(passed)

    def rest(self) -> bytes:
        """What never got its end."""
        rest = self._splitter.take_pending()
        return b"" if self.is_between and self._leaves_out(rest) else rest

    def _leaves_out(self, event: bytes) -> bool:
        return self._is_hidden is not None and self._is_hidden(event)
