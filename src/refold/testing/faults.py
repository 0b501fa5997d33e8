"""What can go wrong: everything a provider answers that is not a whole reply.

One idea: a fault is an answer like any other, and stands in the script where it happens. Most are spelled in the words of the
protocol that the request came in, so one fault tests all clients.

    Refuse    an error: a status with the protocol's own error body, or an error inside of a stream that had begun
    Body      these bytes and no others: garbage, a proxy's page, the exact words of some provider
    Broken    a reply that goes wrong on its way
    Slow      any of these or a reply, after a while
    Reset     no answer: the connection is reset
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from refold.testing.reply import Say

HTML = "text/html; charset=utf-8"
JSON = "application/json"
EVENTS = "text/event-stream; charset=utf-8"
_STARTS_STREAM = (b"data:", b"event:", b"id:", b"retry:", b":")
_BLANK = b"\xef\xbb\xbf \t\r\n"


class Refuse(Struct, frozen=True):
    """An error. What is left empty is said as the protocol's provider says it for this status."""

    status: int
    message: str = ""
    type: str = ""
    code: str | None = None
    retry_after_s: float | None = None
    in_stream: bool = False
    """Where the client asked for a stream, it begins with a 200, and the error is an event in it."""


class Body(Struct, frozen=True):
    """Exactly these bytes."""

    status: int
    content: bytes = b""
    content_type: str = JSON
    headers: dict[str, str] = {}
    in_stream: bool = False
    """Where the client asked for a stream, it begins with a 200, and these bytes are the error in it."""

    @classmethod
    def of(cls, status: int, value: object) -> Body:
        """Bytes as they are, a stream of events where they begin like one; text as a page, anything else as JSON."""
        if isinstance(value, bytes):
            return cls(status, value, EVENTS if value.lstrip(_BLANK).startswith(_STARTS_STREAM) else HTML)
        if isinstance(value, str):
            return cls(status, value.encode(), HTML)
        return cls(status, msgspec.json.encode(value))


class Broken(Struct, frozen=True):
    """A reply of which only the first events arrive. What is not streamed has no events, and arrives by half."""

    answer: Say | str
    after: int = 3
    then: Literal["end", "reset", "garbage", "error"] = "end"
    """The stream ends without its last events, the connection is reset, what follows is no JSON, or it is an error."""


class Reset(Struct, frozen=True):
    """The connection is reset before the first byte of an answer."""


Sudden: TypeAlias = Say | Refuse | Body | Broken | Reset


class Slow(Struct, frozen=True):
    """An answer that takes its time. An infinite `before_s` never comes: the client has to give up."""

    answer: Sudden | str
    before_s: float = 0.0
    between_s: float = 0.0
    """Between the events of a stream."""


Answer: TypeAlias = Sudden | Slow


def rate_limited(retry_after_s: float | None = None) -> Refuse:
    """A 429, with the seconds to wait where given."""
    return Refuse(429, retry_after_s=retry_after_s)


def garbage() -> Body:
    """A success that is no JSON: what a proxy or a captive portal answers."""
    return Body(200, b"<html><body>Welcome! Please log in.</body></html>", HTML)
