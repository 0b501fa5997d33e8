"""Summaries: what stands for messages that are no longer shown.

One idea: a summary says which messages it covers and how it was made. It is untrusted data, framed as reference, and never
changes; a newer one takes its place or stands after it.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from refold.model.tokens import Usage

Scope: TypeAlias = Literal["own", "cumulative"]
"""`own`: only the messages since the summary before. `cumulative`: everything so far, so it replaces the one before."""
SummaryKind: TypeAlias = Literal["extractive", "mechanical", "model"]


class Summary(Struct, frozen=True):
    """Text that covers the messages numbered `first` up to, not including, `last`."""

    text: str
    first: int
    last: int
    tokens: int
    """What it takes in a window, framing included."""
    kind: SummaryKind = "extractive"
    scope: Scope = "own"
    reserve: tuple[int, ...] = ()
    """What an extractive summary may choose from next time: numbers of pieces in the fact index."""
    recipe: str = ""
    """The hash of everything it was made with, where a model wrote it."""
    usage: Usage = Usage()
    """What writing it cost."""
    model: str = ""
    """Who wrote it, where that is known."""
    read: tuple[str, ...] = ()
    modified: tuple[str, ...] = ()
    """Files that were read, and files that were changed, up to the time it was written."""
    number: int = 0
    """Which of a conversation's summaries it is: its handle."""
    id: str = ""
    """The compaction it was written for, where that was work of its own."""
    carried: str = ""
    """What a model wrote last: those made without one carry it along, word for word."""
    checks: tuple[str, ...] = ()
    """What had to be mended before it could be used."""
    digested: int = 0
    """Texts that were too long for a summariser, which was given plain digests of them."""
    requests: int = 0
    """Characters at the beginning of the text that are the user's own words, put there by machine."""

    told: int = -1
    """Up to which message it tells what was said, where that is not `last`: a mechanical summary only counts those after it."""

    @property
    def told_until(self) -> int:
        return self.last if self.told < 0 else self.told

    @property
    def own_text(self) -> str:
        """The text without the user's words before it."""
        return self.text[self.requests :]
