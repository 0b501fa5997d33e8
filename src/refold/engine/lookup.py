"""Bring back what is not shown: an original by its handle.

One idea: a handle names a place in the branch, and the branch never forgets, so a handle that was ever shown works for good.
"""

from __future__ import annotations

import re

from msgspec import Struct

from refold.core.fold import Folded
from refold.core.stages.shown import part_of
from refold.model.errors import NotFound
from refold.model.message import Message, Part
from refold.model.summary import Summary

_HANDLE = re.compile(r"#?(?P<kind>[ms])(?P<number>[0-9]{1,9})(?:\.(?P<part>[0-9]{1,9}))?")
_HINT = "handles look like #m12, #m12.2 for its second part, or #s0 for an older summary"


def is_handle(text: str) -> bool:
    """Can only a handle be meant? Without its sign it may be a word, such as the name of a machine or a service."""
    return text.strip().startswith("#") and _HANDLE.fullmatch(text.strip()) is not None


class Place(Struct, frozen=True):
    """What a handle names: a message (m) or a summary (s), or one part of a message."""

    kind: str
    number: int
    part: int | None = None


def place_of(handle: str) -> Place:
    """
    Raises:
        NotFound: this is no handle.
    """
    found = _HANDLE.fullmatch(handle.strip())
    if found is None:
        raise NotFound(f"{handle[:40]!r} is no handle", hint=_HINT)
    return Place(found["kind"], int(found["number"]), int(found["part"]) if found["part"] else None)


def look_up(handle: str, folded: Folded) -> Message | Part | Summary:
    """The original behind a handle: a message, one of its parts, or a summary.

    Raises:
        NotFound: there is no such original.
    """
    place = place_of(handle)
    number, part = place.number, place.part
    if place.kind == "s":
        return _summary(number, folded)
    if not folded.origin <= number < folded.size:
        raise NotFound(f"there is no message {number}: the conversation has {folded.size}", hint=_HINT)
    message = folded.original(number).message
    inner = message if part is None else part_of(message, part)
    if inner is None:
        raise NotFound(f"message {number} has no part {part}", hint=_HINT)
    return inner


def retrieve(handle: str, folded: Folded) -> Message | Summary:
    """The original as it can be shown by itself: a part as the message that would hold nothing else.

    Raises:
        NotFound: there is no such original.
    """
    found = look_up(handle, folded)
    if isinstance(found, Message | Summary):
        return found
    whole = look_up(handle.partition(".")[0], folded)
    assert isinstance(whole, Message)
    return Message(whole.role, (found,))


def _summary(number: int, folded: Folded) -> Summary:
    count = folded.numbered + len(folded.past)
    if not folded.numbered <= number < count:
        raise NotFound(f"there is no summary {number}: the conversation has {count}", hint=_HINT)
    return folded.past[number - folded.numbered]
