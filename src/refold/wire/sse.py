"""Server-sent events: splits a stream of bytes, in any chunks, into its events.

`EventSplitter` finds the end of an event: a blank line, with LF, CR LF or CR as the end of itself and of
the line before. All readers and forwarders of a stream use it, so that they agree. It works on bytes,
because a chunk may end inside a character or between CR and LF. `SseParser` reads the fields of each
event. An event without its blank line was cut off and is dropped, unless it is an error. The deltas of
streamed replies are defined here as well.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

from msgspec import DecodeError, Struct

from refold.model.errors import BodyTooLarge
from refold.wire.json_codec import MAX_BODY_BYTES

MAX_EVENT_BYTES = MAX_BODY_BYTES
"""The last event of a Responses stream repeats the whole reply."""
MAX_STREAM_BYTES = 4 * MAX_BODY_BYTES
"""A token costs some 300 bytes on this wire: several times the room of the longest replies there are."""

UNREADABLE = (DecodeError, RecursionError, AttributeError, LookupError, TypeError, ValueError)
"""The errors of reading the data of an event that has another shape than its format says."""

_BOM = b"\xef\xbb\xbf"
_CR_LF = b"\r\n"
_ENDLESS = "no reply is that long: check the server at this address"


class ServerSentEvent(Struct, frozen=True, gc=False):
    """One event. `name` is empty if the stream names none."""

    data: bytes
    name: str = ""


class EventSplitter:
    """Splits a stream after the blank line of each event; no byte is changed or lost. The time is linear in the bytes.

    An event is returned as soon as its blank line has come. Line ends after that, such as the LF of a CR
    LF that is split between two chunks, are returned at once, as pieces without any other byte.
    """

    def __init__(self) -> None:
        self._held = bytearray()
        self._last = b"\n"
        """The last byte of the stream; initially a line end."""
        self._is_open = False
        """True if bytes of an unfinished event have come."""

    @property
    def pending(self) -> int:
        """Bytes of the open event that were not returned yet."""
        return len(self._held)

    def feed(self, chunk: bytes) -> list[bytes]:
        """The events that end in this chunk, each with its blank line."""
        end = chunk.find(b"\n")
        is_line = 0 < end == len(chunk) - 2 and chunk.endswith(b"\n") and b"\r" not in chunk
        if is_line and not self._is_open and self._last == b"\n":
            return [chunk]  # as usual: an event of one line
        events, start, at = list[bytes](), 0, 0
        if self._last == b"\r" and chunk.startswith(b"\n"):
            at = 1  # it ends no line: the CR did
            if not self._is_open:
                events.append(b"\n")
                start = 1
        is_line_begun = self._last not in (b"\n", b"\r")
        for line in chunk[at:].splitlines(keepends=True):
            at += len(line)
            if line[0] in _CR_LF and not is_line_begun:
                events.append(bytes(self._held) + chunk[start:at])
                self._held.clear()
                start = at
            is_line_begun = False
        self._held += chunk[start:]
        self._is_open = start < len(chunk) or (self._is_open and not start)
        self._last = chunk[-1:] or self._last
        return events

    def take_pending(self) -> bytes:
        """The bytes of the open event so far. The rest of it is returned as an event of its own when it ends."""
        pending = bytes(self._held)
        self._held.clear()
        return pending


def parse_event(event: bytes) -> ServerSentEvent | None:
    """The name and the data of one event; None if it has no data."""
    if event.startswith(b"data: ") and event.find(b"\n") == len(event) - 2 and b"\r" not in event:
        return ServerSentEvent(event[6:-2])  # most events have no other line
    name, data = _fields(event.splitlines())
    return ServerSentEvent(b"\n".join(data), name.decode("utf-8", "replace")) if data else None


def _fields(lines: list[bytes]) -> tuple[bytes, list[bytes]]:
    name, data = b"", list[bytes]()
    for line in lines:
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ")
    return name, data


class SseParser:
    """Takes chunks and returns events. One parser for each stream."""

    def __init__(
        self, *, max_event_bytes: int = MAX_EVENT_BYTES, max_stream_bytes: int = MAX_STREAM_BYTES
    ) -> None:
        self._max_event, self._max_stream = max_event_bytes, max_stream_bytes
        self._splitter = EventSplitter()
        self._is_first = True
        self.seen = 0
        """Bytes of the stream so far."""
        self.pending = 0
        """Bytes of the event that is not complete yet."""

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """The events that this chunk completes.

        Raises:
            BodyTooLarge: an event or the whole stream exceeds its limit.
        """
        self.seen += len(chunk)
        if self.seen > self._max_stream:
            raise BodyTooLarge(f"the stream has more than {self._max_stream:,} bytes", hint=_ENDLESS)
        most = self.pending + len(chunk)
        split = self._splitter.feed(chunk)
        self.pending = self._splitter.pending
        if most > self._max_event and max(self.pending, *map(len, split), 0) > self._max_event:
            raise BodyTooLarge(f"an event has more than {self._max_event:,} bytes", hint=_ENDLESS)
        if split and self._is_first:
            split[0], self._is_first = split[0].removeprefix(_BOM), False
        return [event for one in split if (event := parse_event(one))]

    def end(self) -> ServerSentEvent | None:
        """The error event that was cut off when the stream ended, with the data so far; None for any other event."""
        rest = self._splitter.take_pending()
        lines = (rest.removeprefix(_BOM) if self._is_first else rest).splitlines(keepends=True)
        whole = [line.rstrip(_CR_LF) for line in lines if line.endswith((b"\n", b"\r"))]
        if _fields(whole)[0] != b"error":
            return None
        return ServerSentEvent(b"\n".join(_fields([line.rstrip(_CR_LF) for line in lines])[1]), "error")


# Deltas of a streamed reply, and the protocol that assembles them


class TextDelta(Struct, frozen=True, gc=False):
    """A piece of the text of a streamed reply."""

    text: str


class ReasoningDelta(Struct, frozen=True, gc=False):
    """A piece of the reasoning of a streamed reply."""

    text: str


class CallDelta(Struct, frozen=True, gc=False):
    """A piece of a tool call. The first piece of each has its id and name; `index` counts the calls of the reply."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


Delta: TypeAlias = TextDelta | ReasoningDelta | CallDelta


class Fold(Protocol):
    """Assembles the streamed reply of one format."""

    is_whole: bool
    """The stream has said that the reply is complete."""
    is_over: bool
    """The stream has ended; Chat reports usage after the reply is complete."""
    is_failed: bool
    """The last event reported an error."""

    def take(self, event: ServerSentEvent) -> list[Delta]: ...

    def body(self) -> bytes: ...


class Pieces:
    """A text that is still being written: joining once at the end keeps long replies cheap."""

    __slots__ = ("_all",)

    def __init__(self, *pieces: str) -> None:
        self._all = [*pieces]

    def add(self, piece: str) -> None:
        self._all.append(piece)

    def __str__(self) -> str:
        return "".join(self._all)
