"""Every context of a recording in a few bytes.

One idea: only what could not be expected is written down. A context is expected to be the one before and what was said
since, and all that went before is expected in the cache; so almost all numbers are zero, and compress to nothing. The
script of the page expects the same and adds the difference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from refold.replay.score import Sent

_NUMBER = re.compile(r"\d[\d,]*")


class Kind(Struct, frozen=True, array_like=True):
    """What was done, and the reason around the first number in it; there is no `tail` where it has no number."""

    decision: str
    head: str
    tail: str | None = None


class Series(Struct, frozen=True, array_like=True):
    sizes: list[int]
    """Tokens of each context, less those expected."""
    rewritten: list[int]
    """Which contexts do not extend the one before, each counted from the last of them."""
    cached: list[int]
    """How many percent were read from the cache, less those expected."""
    changes: list[int]
    """For each change: calls since the last one, its kind, and its number less the tokens expected."""


class Kinds:
    """Kinds of changes with their numbers, in the order in which they came up."""

    def __init__(self) -> None:
        self._numbers: dict[Kind, int] = {}

    def __iter__(self) -> Iterator[Kind]:
        return iter(self._numbers)

    def number(self, kind: Kind) -> int:
        return self._numbers.setdefault(kind, len(self._numbers))


def series(sent: Sequence[Sent], kinds: Kinds) -> Series:
    rewritten = [call for call, one in enumerate(sent) if one.is_rewritten]
    return Series(
        [one.tokens - expected for one, expected in zip(sent, _expected(sent), strict=True)],
        [call - last for call, last in zip(rewritten, [0, *rewritten], strict=False)],
        list(_cached(sent)),
        list(_changes(sent, kinds)),
    )


def frame_tokens(sent: Sequence[Sent]) -> int:
    """What stands before every message: the tool definitions."""
    return next((one.bill.prompt_tokens - one.tokens for one in sent if one.bill.prompt_tokens), 0)


def _expected(sent: Sequence[Sent]) -> Iterator[int]:
    before = 0
    for one in sent:
        yield before + one.added
        before = one.tokens


def _cached(sent: Sequence[Sent]) -> Iterator[int]:
    frame, before = frame_tokens(sent), 0
    for one in sent:
        whole = frame + one.tokens
        expected = 0 if one.is_rewritten else min(before, whole)
        yield _percent(one.bill.cached_tokens, one.bill.prompt_tokens) - _percent(expected, whole)
        before = whole


def _percent(part: int, whole: int) -> int:
    """Rounded as the script does it."""
    return int(100 * part / whole + 0.5) if whole else 0


def _changes(sent: Sequence[Sent], kinds: Kinds) -> Iterator[int]:
    last = 0
    for call, (one, expected) in enumerate(zip(sent, _expected(sent), strict=True)):
        for change in one.changes:
            found = _NUMBER.search(change.reason)
            start, end = found.span() if found else (len(change.reason), 0)
            tail = change.reason[end:] if found else None
            yield from (call - last, kinds.number(Kind(change.decision, change.reason[:start], tail)))
            if found:
                yield int(found[0].replace(",", "")) - expected
            last = call
