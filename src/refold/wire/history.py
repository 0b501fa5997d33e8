"""A history that a client sends anew with every request, read so that only what is new is looked at.

One idea: two requests of one conversation begin with the same bytes. What is the same is found by comparing memory, not by
parsing it; the messages behind it are known already, and the rest is read. A client that moves its cache marks or writes an
old message another way changes bytes in the middle: from there on everything is read again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from msgspec import Raw, Struct

from refold.model.dialect import Dialect
from refold.model.message import Message
from refold.wire.message import decode_messages
from refold.wire.reading import read_list

_BETWEEN = b" \t\r\n,["


class History(Struct, frozen=True):
    """The list of messages of one request: its bytes, and where each of its items ends in them."""

    array: bytes
    ends: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.ends)

    def item(self, index: int) -> Raw:
        """The bytes of one item."""
        start = self.ends[index - 1] if index else 0
        return Raw(self.array[_begin(self.array, start) : self.ends[index]])


class Reading(Struct, frozen=True):
    """A history and what was read of it: the items from `known` on."""

    history: History
    known: int
    messages: tuple[Message, ...]


def read_history(array: bytes, dialect: Dialect, before: History | None = None) -> Reading:
    """Read a list of messages, of which `before` is an earlier version.

    Raises:
        WireError: something in it is no message of this format; the place is relative to what was read.
    """
    known = same_items(before, array) if before else 0
    start = before.ends[known - 1] if before and known else 0
    rest = array[start:] if known else array
    tail = _as_list(rest) if known else rest
    messages = decode_messages(tail, dialect)
    ends = [*before.ends[:known]] if before else []
    ends += _ends(array, read_list(tail), start)
    return Reading(History(array, tuple(ends)), known, messages)


def same_items(before: History, array: bytes) -> int:
    """How many items at the beginning of a list have the very bytes that they had before."""
    return bisect_right(before.ends, _same_bytes(before.array, array))


def _same_bytes(one: bytes, other: bytes) -> int:
    """How many bytes are the same at the beginning, by halves, so that each is compared about once."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _as_list(rest: bytes) -> bytes:
    """What follows an item of a list, as a list of its own."""
    text = rest.lstrip(b" \t\r\n")
    if text.startswith(b","):
        return b"[" + text[1:]
    return b"[" + text if text.startswith(b"]") else text


def _ends(array: bytes, raws: Sequence[Raw], start: int) -> list[int]:
    ends = []
    for raw in raws:
        start = _begin(array, start) + len(raw)
        ends.append(start)
    return ends


def _begin(array: bytes, start: int) -> int:
    while array[start] in _BETWEEN:
        start += 1
    return start
