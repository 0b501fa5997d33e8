"""Server-sent events: from the bytes of a stream, in whatever pieces they come, to its events.

One idea: work on bytes, line by line. A chunk may end anywhere, inside a character or between CR and LF, so nothing is
decoded before its line is whole. An event counts once the blank line after it has come: what a cut connection leaves behind
is half an event, and is dropped. Only half an error is an error: whoever began to say so has failed.
"""

from __future__ import annotations

from msgspec import Struct

from refold.model.errors import BodyTooLarge
from refold.wire.reading import MAX_BODY_BYTES

MAX_EVENT_BYTES = MAX_BODY_BYTES
"""The last event of a Responses stream holds the whole reply once more."""
MAX_STREAM_BYTES = 4 * MAX_BODY_BYTES
"""A token costs some 300 bytes on this wire: room for the longest replies there are, several times over."""

_BOM = b"\xef\xbb\xbf"
_ENDS = (b"\n", b"\r")
_ENDLESS = "no reply needs that many: look at what answers at this address"


class Event(Struct, frozen=True, gc=False):
    """One event. `name` is empty where the stream names none."""

    data: bytes
    name: str = ""


class SseParser:
    """Takes chunks, gives events. One for each stream."""

    def __init__(
        self, *, max_event_bytes: int = MAX_EVENT_BYTES, max_stream_bytes: int = MAX_STREAM_BYTES
    ) -> None:
        self._max_event, self._max_stream = max_event_bytes, max_stream_bytes
        self._line = bytearray()
        self._data: list[bytes] = []
        self._name = b""
        self._seen = self._held = 0
        """Bytes of the whole stream, and of those lines of the open event that are whole."""
        self._is_first = True
        self._after_cr = False

    @property
    def seen(self) -> int:
        """Bytes of the stream so far."""
        return self._seen

    @property
    def pending(self) -> int:
        """Bytes of the event that is not complete yet."""
        return self._held + len(self._line)

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that this chunk completes.

        Raises:
            BodyTooLarge: an event or the whole stream is longer than anybody needs.
        """
        self._seen += len(chunk)
        if self._seen > self._max_stream:
            raise BodyTooLarge(f"the stream has more than {self._max_stream:,} bytes", hint=_ENDLESS)
        if self._after_cr and chunk:
            chunk, self._after_cr = chunk.removeprefix(b"\n"), False
        events = []
        for piece in chunk.splitlines(keepends=True):
            self._add(piece)
            if piece.endswith(_ENDS):
                event = self._end_line()
                if event is not None:
                    events.append(event)
        self._after_cr = self._after_cr or chunk.endswith(b"\r")
        return events

    def end(self) -> Event | None:
        """The error that was still being told when the stream ended, as far as it came; whatever else was is lost."""
        if self._name != b"error":
            return None
        if self._line:
            self._end_line()
        return Event(b"\n".join(self._data), "error")

    def _add(self, piece: bytes) -> None:
        self._line += piece
        if self._held + len(self._line) > self._max_event:
            raise BodyTooLarge(f"an event has more than {self._max_event:,} bytes", hint=_ENDLESS)

    def _end_line(self) -> Event | None:
        line = bytes(self._line).rstrip(b"\r\n")
        self._held += len(line)
        self._line.clear()
        if self._is_first:
            line, self._is_first = line.removeprefix(_BOM), False
        if not line:
            return self._dispatch()
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value
        return None

    def _dispatch(self) -> Event | None:
        data, name = self._data, self._name
        self._data, self._name, self._held = [], b"", 0
        return Event(b"\n".join(data), name.decode("utf-8", "replace")) if data else None
