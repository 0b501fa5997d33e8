"""The view of a branch: every message with its counts and verification state, and running totals.

Each entry carries the totals up to itself, so a sum over any range is one subtraction, a search for a size
is a bisection, and the view of any prefix costs nothing. Appending reads the new message only.

A View is an immutable value: appending returns a new View and leaves the old one unchanged. Views of one
branch share their log; the first append to an older view (a fork) copies its part of the log. Two threads
must not append to the same log at once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, repeat, takewhile
from operator import and_, eq, is_
from typing import overload

from msgspec import Struct, structs

from refold.core.identity import extend_by_identity, identity, start_chain
from refold.core.verify import START, Calls, Progress, differs_in_results, finish, step
from refold.model.dialect import Dialect
from refold.model.message import Message, opening_span
from refold.model.tokens import TokenCount, TokenCounter
from refold.model.window import Violation

# Turns
#
# A turn is a user message and everything up to the next one; messages are cut at its start. A
# message with tool results starts no turn, even if it holds text of the user as well: the results
# belong to the calls before it. The functions take the sorted indices of the turn starts, which a
# View maintains; none of them iterates over the messages.


def starts_turn(message: Message) -> bool:
    return message.role == "user"


def turn_starts(messages: Iterable[Message]) -> tuple[int, ...]:
    return tuple(index for index, message in enumerate(messages) if starts_turn(message))


def safe_boundary(starts: Sequence[int], length: int, target: int) -> int:
    """The nearest turn start before `target`, or the nearest after it; 0 if nothing can be cut.

    Without user messages there are no turns, and the target itself is returned.
    """
    if target <= 0:
        return 0
    if target >= length:
        return length
    if not starts:
        return target
    at = bisect_right(starts, target)
    if at and starts[at - 1] > 0:
        return starts[at - 1]
    return starts[at] if at < len(starts) else 0


class ViewEntry(Struct, frozen=True, gc=False):
    """One message in a view. Fields that end in `_to` are totals up to and including it."""

    message: Message
    tokens: int
    progress: Progress
    violations: tuple[Violation, ...]
    tokens_to: int
    result_tokens_to: int
    turns_to: int
    characters_to: int


_BEFORE = ViewEntry(Message("user", ()), 0, START, (), 0, 0, 0, 0)
"""Stands before the first entry: its totals are zero."""


class ViewLog:
    """The append-only data that the views of one branch share."""

    __slots__ = ("broken", "calls", "chains", "entries", "hashed", "messages", "said", "starts")

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.entries: list[ViewEntry] = []
        self.messages: list[Message] = []
        """The messages of the entries, so that a window is one slice."""
        self.starts: list[int] = []
        self.broken: list[int] = []
        """Indices of entries with violations."""
        self.chains: dict[int, bytes] = {}
        """Hashes over the first messages, by their number, as far as they were asked for: most views are never
        compared. Two threads that ask for the same hash store the same bytes."""
        self.hashed = 0
        """The number of messages of the last hash that was added, mostly the longest."""
        self.said: tuple[int, Sequence[bytes | None]] = 0, ()
        """The identities of some messages from an index on, until these are hashed: who added them knew them. One value, because
        another thread may replace it."""

    def chain(self, size: int, key: bytes) -> bytes:
        """The hash over the first `size` messages."""
        known = self.chains.get(size)
        if known is not None:
            return known
        start = self.hashed
        if start > size:
            start = max((one for one in tuple(self.chains) if one <= size), default=0)
        chain = self.chains[start] if start else start_chain(key)
        first, said = self.said
        for at, message in enumerate(self.messages[start:size], start):
            is_known = first <= at < first + len(said)
            chain = extend_by_identity(chain, said[at - first] if is_known else identity(message), key)
        if size >= first + len(said):
            self.said = 0, ()
        self.chains[size] = chain
        self.hashed = size
        return chain

    def upto(self, size: int, dialect: Dialect) -> ViewLog:
        """A separate log for a view that forks after `size` messages."""
        turns = self.entries[size - 1].turns_to if size else 0
        log = ViewLog(self._calls_upto(size, dialect))
        log.entries, log.messages = self.entries[:size], self.messages[:size]
        log.starts = self.starts[:turns]
        log.broken = self.broken[: bisect_left(self.broken, size)]
        log.chains = {one: chain for one, chain in tuple(self.chains.items()) if one <= size}
        log.hashed = max(log.chains, default=0)
        return log

    def _calls_upto(self, size: int, dialect: Dialect) -> Calls:
        """The calls after `size` messages, computed again from the last point without open calls."""
        calls = Calls(continues=self.calls.continues)
        calls.first_seen = {key: index for key, index in self.calls.first_seen.items() if index < size}
        start = self.quiet_before(size)
        progress = self.entries[start - 1].progress if start else START
        for entry in self.entries[start:size]:
            progress, _ = step(progress, calls, entry.message, dialect)
        calls.late = [span for span in self.calls.late if span[1] < size]
        return calls

    def quiet_before(self, size: int) -> int:
        """Start of the latest reply before which no call was open."""
        while size > 0:
            size = self.entries[size - 1].progress.batch
            if not size or not self.entries[size - 1].progress.open_calls:
                return size
        return 0


class Starts(Sequence[int]):
    """The turn starts of a view: a fixed-size window over the shared list, which may grow."""

    __slots__ = ("_all", "_count")

    def __init__(self, starts: list[int], count: int) -> None:
        self._all, self._count = starts, count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[int]: ...
    def __getitem__(self, at: int | slice) -> int | Sequence[int]:
        if isinstance(at, slice):
            return self._all[: self._count][at]
        if not -self._count <= at < self._count:
            raise IndexError(at)
        return self._all[at if at >= 0 else at + self._count]


class View(Struct, frozen=True, eq=False):
    """The messages of a branch, counted and verified as they arrived, and hashed on demand."""

    dialect: Dialect
    counter: TokenCounter
    key: bytes = b""
    """The owner's key for the hash chain."""
    continues: bool = False
    """The provider holds earlier messages that are not here: a result may answer a call of those."""
    size: int = 0
    log: ViewLog | None = None
    end: ViewEntry = _BEFORE
    """The last entry, with the totals of all; before the first message, one whose totals are zero."""

    @classmethod
    def of(
        cls,
        messages: Iterable[Message],
        dialect: Dialect,
        counter: TokenCounter,
        *,
        key: bytes = b"",
        continues: bool = False,
    ) -> View:
        return cls(dialect, counter, key, continues).extend(messages)

    def append(self, message: Message, tokens: int | None = None) -> View:
        return self.extend((message,), (tokens,))

    def extend(self, messages: Iterable[Message], tokens: Iterable[int | None] = ()) -> View:
        """Append messages. `tokens` are their counts, None where it is not known."""
        log = self.log or ViewLog(Calls(continues=self.continues))
        if len(log.entries) != self.size:
            log = log.upto(self.size, self.dialect)
        last = log.entries[-1] if log.entries else _BEFORE
        calls, dialect, count = log.calls, self.dialect, self.counter.message
        for message, known in zip(messages, chain(tokens, repeat(None)), strict=False):
            size = count(message) if known is None else known
            progress, broken = step(last.progress, calls, message, dialect)
            is_turn = starts_turn(message)
            last = ViewEntry(
                message,
                size,
                progress,
                broken,
                last.tokens_to + size,
                last.result_tokens_to + (size if message.role == "tool" else 0),
                last.turns_to + is_turn,
                last.characters_to + message.characters,
            )
            if is_turn:
                log.starts.append(len(log.entries))
            if broken:
                log.broken.append(len(log.entries))
            log.entries.append(last)
            log.messages.append(message)
        return structs.replace(self, log=log, size=len(log.entries), end=last)

    def with_messages(self, messages: Sequence[Message], tokens: Sequence[int]) -> View:
        """A separate view of these messages, whose counts are `tokens`.

        If they differ from the messages of this view only in the texts of tool results, as after a stage, each
        keeps its state of verification, and only the totals from the first that differs are computed again.
        """
        log = self.log
        if log is None or len(messages) != self.size:
            return View(self.dialect, self.counter, self.key, self.continues).extend(messages, tokens)
        same = map(is_, messages, log.messages)
        sized = map(eq, tokens, [entry.tokens for entry in log.entries])
        start = sum(takewhile(bool, map(and_, same, sized)))
        if not all(map(_verifies_like, messages[start:], log.messages[start : self.size])):
            return View(self.dialect, self.counter, self.key, self.continues).extend(messages, tokens)
        new = log.upto(self.size, self.dialect)
        new.messages, new.chains, new.hashed = list(messages), {}, 0
        last = new.entries[start - 1] if start else _BEFORE
        tokens_to, results_to, characters_to = last.tokens_to, last.result_tokens_to, last.characters_to
        known_to = characters_to
        for at in range(start, self.size):
            message, size, known = messages[at], tokens[at], new.entries[at]
            is_same = message is known.message
            tokens_to += size
            results_to += size if message.role == "tool" else 0
            characters_to += known.characters_to - known_to if is_same else message.characters
            known_to = known.characters_to
            new.entries[at] = ViewEntry(
                message,
                size,
                known.progress,
                known.violations,
                tokens_to,
                results_to,
                known.turns_to,
                characters_to,
            )
        return structs.replace(self, log=new, end=new.entries[-1] if self.size else _BEFORE)

    def note_identities(self, said: Sequence[bytes | None]) -> None:
        """Note the identities of the last messages, so that they need not be computed again for a hash."""
        if self.log is not None and 0 < len(said) <= self.size == len(self.log.entries):
            self.log.said = self.size - len(said), said

    def prefix(self, size: int) -> View:
        """The view as it was with `size` messages."""
        if size >= self.size:
            return self
        size = max(0, size)
        return structs.replace(self, size=size, end=self._entries[size - 1] if size else _BEFORE)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> ViewEntry:
        if not -self.size <= index < self.size:
            raise IndexError(index)
        assert self.log is not None
        return self.log.entries[index if index >= 0 else index + self.size]

    def __iter__(self) -> Iterator[ViewEntry]:
        return islice(self._entries, self.size)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, View):
            return NotImplemented
        mine, theirs = (self.dialect, self.key, self.continues), (other.dialect, other.key, other.continues)
        return mine == theirs and list(self) == list(other)

    def __hash__(self) -> int:
        return hash((self.dialect.name, self.chain))

    def messages(self, start: int = 0, stop: int | None = None) -> tuple[Message, ...]:
        start, stop, _ = slice(start, stop).indices(self.size)
        return tuple(self.log.messages[start:stop]) if self.log else ()

    @property
    def _entries(self) -> list[ViewEntry]:
        return self.log.entries if self.log else []

    @property
    def last(self) -> ViewEntry | None:
        return self.end if self.size else None

    @property
    def characters(self) -> int:
        """Characters of text in all messages together."""
        return self.end.characters_to

    @property
    def turn_starts(self) -> Sequence[int]:
        return Starts(self.log.starts, self.end.turns_to) if self.log else ()

    @property
    def chain(self) -> bytes:
        """Hash over all messages so far."""
        return self.chain_at(self.size)

    def chain_at(self, size: int) -> bytes:
        """Hash over the first `size` messages."""
        return self.log.chain(size, self.key) if self.log else start_chain(self.key)

    @property
    def compaction_span(self) -> range:
        """The range of `compaction_span` for these messages, without reading them again."""
        at = self.progress.compaction
        return range(at, at + opening_span(self.messages(at, at + 2))) if at >= 0 else range(0)

    @property
    def progress(self) -> Progress:
        """Verification state after the last message."""
        return self.end.progress

    def progress_at(self, index: int) -> Progress:
        """Verification state before the message at `index`."""
        index = min(index, self.size)
        return self._entries[index - 1].progress if index > 0 else START

    def is_spanned(self, cut: int) -> bool:
        """True if a result at or after `cut` answers a call before it, with a user message between the two."""
        late = self.log.calls.late if self.log else []
        return any(call < cut <= result < self.size for call, result in late)

    @property
    def tokens(self) -> TokenCount:
        return self.tokens_between(0, self.size)

    def tokens_between(self, start: int, stop: int) -> TokenCount:
        return TokenCount.of(self.tokens_before(stop) - self.tokens_before(start), self.counter.source)

    def tokens_before(self, index: int) -> int:
        if index >= self.size:
            return self.end.tokens_to
        return self._entries[index - 1].tokens_to if index > 0 else 0

    def result_tokens_between(self, start: int, stop: int) -> TokenCount:
        upto, before = (
            self._entries[at - 1].result_tokens_to if at > 0 else 0 for at in (min(stop, self.size), start)
        )
        return TokenCount.of(upto - before, self.counter.source)

    def suffix_within(self, tokens: int) -> int:
        """The smallest index from which the remaining messages take at most `tokens`."""
        total = self.tokens_before(self.size)
        return bisect_right(range(self.size), total - tokens - 1, key=self.tokens_before)

    def violations(self, *, as_request: bool = False, fixed_breakpoints: int = 0) -> tuple[Violation, ...]:
        """Every violation. Reads only the messages that break a rule, and the end."""
        ending = finish(
            self.progress,
            self._open_calls() if as_request else (),
            self.dialect,
            as_request=as_request,
            fixed_breakpoints=fixed_breakpoints,
        )
        indices = self.log.broken if self.log else []
        if not indices:
            return ending
        entries = (self._entries[index] for index in indices[: bisect_left(indices, self.size)])
        return (*(broken for entry in entries for broken in entry.violations), *ending)

    def _open_calls(self) -> list[tuple[str, int]]:
        if not self.log or not self.progress.open_calls:
            return []
        log = self.log if len(self._entries) == self.size else self.log.upto(self.size, self.dialect)
        return log.calls.open()


def _verifies_like(message: Message, known: Message) -> bool:
    """True if a message passes through verification as another one does at its place."""
    return message is known or differs_in_results(message, known)
