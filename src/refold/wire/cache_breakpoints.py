"""Writes cache breakpoints into the blocks of a window.

A breakpoint is one more field of a block. The block is encoded, given the field and decoded again; all
other values of the window stay the same, so every encoder of windows writes breakpoints too.
"""

from __future__ import annotations

from msgspec import structs

from refold.model.errors import WireError
from refold.model.message import Message, Part
from refold.model.window import Breakpoint, Ttl, Window
from refold.wire.anthropic import decode_block, encode_block
from refold.wire.json_codec import FIELDS, Fields, read, within, write


def write_breakpoints(window: Window) -> Window:
    """The window with its breakpoints on its blocks. The same window if it has none.

    Raises:
        WireError: the format has no breakpoints, or a block that should carry one cannot be written.
    """
    if not window.breakpoints:
        return window
    dialect = window.fixed.dialect
    if dialect.name != "anthropic":
        raise WireError(f"{dialect.name} has no cache breakpoints", hint="place none for this format")
    prompt, sent = [*window.system], [*window.sent]
    for mark in window.breakpoints:
        if mark.index is None:
            prompt[0] = _marked(prompt[0], mark, "system")
        else:
            place = f"{dialect.messages_key}[{mark.index}].content"
            sent[mark.index] = _marked(sent[mark.index], mark, place)
    marked = structs.replace(
        window, fixed=structs.replace(window.fixed, system=tuple(prompt)), block="", breakpoints=()
    )
    first, last = len(window.before), len(window.before) + window.opening
    return structs.replace(
        marked,
        messages=tuple(sent[window.place(index)] for index in range(len(window.messages))),
        summaries=tuple(sent[last : last + len(window.summaries)]),
        before=tuple(sent[:first]),
    )


def _marked(message: Message, mark: Breakpoint, place: str) -> Message:
    parts = list(message.parts)
    try:
        parts[mark.part] = _with_mark(parts[mark.part], mark.ttl)
    except WireError as error:
        raise within(error, f"{place}[{mark.part}]") from None
    return message.with_parts(tuple(parts))


def _with_mark(part: Part, ttl: Ttl) -> Part:
    """The part with a breakpoint. Five minutes is the default and is not written."""
    control: Fields = {"type": "ephemeral"} if ttl == "5m" else {"type": "ephemeral", "ttl": ttl}
    block = read(FIELDS, encode_block(part))
    fields: Fields = {**block, "cache_control": control}
    return decode_block(write(fields))
