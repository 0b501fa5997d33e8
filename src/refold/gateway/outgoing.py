"""The body that leaves in place of a client's: the same fields, and of the messages what the window shows.

One idea: where nothing was changed the client's own bytes leave. Where something was, every message that is shown as it came
leaves as the client wrote it down this time, with its thinking and its cache marks, and only what was changed is written anew.
"""

from __future__ import annotations

from msgspec import Raw, structs

from refold.core.prompt_cache import unmarked
from refold.gateway.conversations import Made, TakenRequest
from refold.gateway.incoming import Incoming
from refold.model.message import Message
from refold.model.window import Breakpoint, Window
from refold.wire.message import decode_message
from refold.wire.request import Request, encode_window

MARK = b'"cache_control"'


def body_of(incoming: Incoming, hosted: TakenRequest, made: Made) -> bytes:
    """What to send for a request.

    Raises:
        WireError: a message cannot be written in this format.
    """
    window = made.window
    if made.is_as_sent or window is None:
        return incoming.body
    if MARK in incoming.body:
        window = made.bare  # a client that marks its own prefixes knows best
        if window is None or made.is_plain:
            return incoming.body
    window = _as_sent(incoming, hosted, made, window)
    return encode_window(_request(incoming, window), window)


def _as_sent(incoming: Incoming, hosted: TakenRequest, made: Made, window: Window) -> Window:
    """The window with the client's own writing of every message that is shown as it came. What is shown otherwise has the cache
    marks of this request, and not those that it had when it was new.
    """
    messages, marks = list[Message](), list(window.breakpoints)
    for index, message in enumerate(window.messages):
        number = made.sent.number(index)
        raw = hosted.line.history.item(number + hosted.line.offset)
        if made.sent.shown[index].message is message and made.sent.is_original(message, number):
            messages.append(_own(incoming, message, raw))
            continue
        messages.append(unmarked(message))
        if MARK in bytes(raw):
            marks.append(Breakpoint(window.place(index), len(message.parts) - 1, "5m", "the client's own"))
    return structs.replace(window, messages=tuple(messages), breakpoints=tuple(marks))


def _own(incoming: Incoming, message: Message, raw: Raw) -> Message:
    """A message as the client wrote it down this time."""
    if message.origin is not None and message.origin.raw == raw:
        return message
    return decode_message(raw, incoming.dialect)


def _request(incoming: Incoming, window: Window) -> Request:
    """The client's request as far as it is needed to write another one."""
    return Request(
        incoming.dialect,
        (),
        window.fixed.system,
        window.fixed.tools,
        fields=incoming.fields,
        body=incoming.body,
    )
