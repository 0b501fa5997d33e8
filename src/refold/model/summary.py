"""Summaries: texts that stand for messages that are no longer shown.

A summary records the messages that it covers and the way it was made. It is untrusted data, framed as
reference, and never changes; a newer one replaces it or follows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct, structs

from refold.model.message import DialectName, Role
from refold.model.tokens import Usage

Scope: TypeAlias = Literal["own", "cumulative"]
"""`own`: only the messages since the previous summary. `cumulative`: all messages so far, so it replaces the previous one."""
SummaryKind: TypeAlias = Literal["extractive", "mechanical", "model"]
Author: TypeAlias = Literal["", "model", "digest", "mechanical", "native"]
"""The author of a summary: a model, a digest of the messages' own words, a mechanical text of counts and files, or the
provider's own compaction; empty without a summary."""


class NativeItem(Struct, frozen=True):
    """One message of a provider's own compaction."""

    role: Role
    raw: str
    """The JSON as it came: an item of the Responses API, or a block of Anthropic's."""
    text: str = ""
    """The text of a message that the provider kept; empty for the compaction itself."""


class NativeCompaction(Struct, frozen=True):
    """A compaction that the conversation's own provider made on request. It is sent back byte for byte, and only to
    the model and the upstream that made it; everybody else gets the text of the summary.
    """

    dialect: DialectName
    model: str
    upstream: str
    """The gateway's name of the upstream; empty if a command or a program asked the provider by itself."""
    items: tuple[NativeItem, ...]
    since: str = ""
    """A digest of the messages that the summary covers and the compaction does not: it was made while the conversation
    went on."""
    server: str = ""
    """The address of the provider; empty in rows of earlier versions."""

    def goes_to(self, dialect: DialectName, model: str, upstream: str, server: str = "") -> bool:
        """Whether this model of this upstream made it. A command and the gateway have no names of upstreams in common, so
        their addresses are compared. The library has no upstreams: there only the model counts.
        """
        if self.upstream and upstream:
            is_same = self.upstream == upstream
        else:
            is_same = self.server == server or not (self.server and server)
        return (self.dialect, self.model) == (dialect, model) and is_same


class Summary(Struct, frozen=True):
    """Text that covers the messages numbered `first` up to, not including, `last`."""

    text: str
    first: int
    last: int
    tokens: int
    """Tokens in a window, including the frame text."""
    kind: SummaryKind = "extractive"
    scope: Scope = "own"
    reserve: tuple[int, ...] = ()
    """Pieces that an extractive summary may choose from next time: their numbers in the fact index."""
    recipe: str = ""
    """The hash of everything it was made with, if a model wrote it."""
    usage: Usage = Usage()
    """Tokens that writing it took."""
    model: str = ""
    """The model that wrote it, if it is known."""
    read: tuple[str, ...] = ()
    modified: tuple[str, ...] = ()
    """Files that were read, and files that were changed, up to the time of the summary."""
    number: int = 0
    """The number of the summary within its conversation: its handle."""
    id: str = ""
    """The compaction that it was written for, if that was a job of its own."""
    carried: str = ""
    """The text of the last model summary: summaries made without a model carry it along, word for word."""
    checks: tuple[str, ...] = ()
    """Defects that were repaired before it could be used."""
    digested: int = 0
    """Number of texts that were too long for a summariser, which was given plain digests of them."""
    requests: int = 0
    """Length of the user's own words at the beginning of the text, in characters. They were inserted by machine."""

    why: str = ""
    """Why no model wrote it, or why a model wrote it although the provider was to compact; otherwise empty."""
    told: int = -1
    """End of the messages whose content it describes, if that is not `last`: a mechanical summary only counts
    the messages after it."""
    model_read: int = -1
    """End of the messages that a model has read, if no model wrote this text: the model failed or was still
    writing. The next question shows the model `carried`, and the messages from here on. -1: not known, or a
    model wrote it."""
    native: NativeCompaction | None = None
    """The provider's own compaction of the same messages. The text is the form that other models read."""
    is_digest: bool = False
    """Whether the text beside a provider's compaction is a digest. It is carried word for word like a model's, because
    the next digest cannot choose from its pieces again."""
    gaps: tuple[tuple[int, int], ...] = ()
    """Messages between `first` and `last` that it does not cover, as first number and end: those of other sessions, before
    its own session began, or after the session that it was resumed from."""

    @property
    def ranges(self) -> Iterator[tuple[int, int]]:
        """The messages that it covers, as first number and end."""
        first = self.first
        for begins, ends in self.gaps:
            if first < begins:
                yield first, begins
            first = ends
        if first < self.last or not self.gaps:
            yield first, self.last

    @property
    def author(self) -> Author:
        if self.native is not None:
            return "native"
        return "digest" if self.is_digest or self.kind == "extractive" else self.kind

    @property
    def told_until(self) -> int:
        return self.last if self.told < 0 else self.told

    @property
    def read_until(self) -> int:
        """End of the messages that a model has read; those after it are only in a text made without one."""
        return self.told_until if self.model_read < 0 else self.model_read

    @property
    def model_text(self) -> str:
        """The text of the last model summary. It was paid for, and holds more than a digest can."""
        return self.own_text if self.kind == "model" else self.carried

    @property
    def own_text(self) -> str:
        """The text without the user's words before it."""
        return self.text[self.requests :]


def joined(summaries: Sequence[Summary]) -> Summary | None:
    """Return the summaries that stand as one, for a summary that is to replace them all: the last one that covers
    everything before it, and those after it. None if there is none.

    There are several if the summaries so far cover their own messages only, and the policy was changed to one
    whose summaries cover everything.
    """
    whole = (at for at in reversed(range(len(summaries))) if summaries[at].scope == "cumulative")
    standing = summaries[next(whole, 0) :]
    if len(standing) < 2:
        return standing[0] if standing else None
    oldest, newest = standing[0], standing[-1]
    opening = oldest.text[: oldest.requests]
    told = "\n\n".join(text for one in standing for text in (one.carried, one.own_text) if text)
    return structs.replace(
        newest,
        text=f"{opening}{told}",
        first=oldest.first,
        tokens=sum(one.tokens for one in standing),
        kind="model",  # as such, its text is carried word for word, and not made anew from pieces
        scope="cumulative",
        reserve=(),
        carried="",
        requests=oldest.requests,
        native=None,
    )
