"""The view of a branch: every message with what planning needs to know about it, and running totals.

One idea: each entry carries the totals up to itself, so a sum over any range is one subtraction, a search for a size is a
bisection, and the view of any prefix is free. Appending looks at the new message only.

A View is a value: appending gives a new View and leaves the old one as it was. Views of one line share their log; the
first append to an older view, a fork, copies what it needs. Two threads must not append to the same log at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct, field, structs

from refold.core.reconcile import extend_chain, start_chain
from refold.core.turns import starts_turn
from refold.core.verify import START, Progress, finish, remember_calls, step
from refold.model.dialect import Dialect
from refold.model.message import Message
from refold.model.tokens import TokenCount, TokenCounter
from refold.model.window import Violation


class Entry(Struct, frozen=True, gc=False):
    """One message in a view. Fields that end in `_to` are totals up to and including it."""

    message: Message
    tokens: int
    chain: bytes
    progress: Progress
    violations: tuple[Violation, ...]
    tokens_to: int
    result_tokens_to: int
    turns_to: int
    bytes_to: int
    violations_to: int


class Log:
    """What the views of one line share; only ever appended to."""

    __slots__ = ("entries", "first_seen", "starts")

    def __init__(self, entries: list[Entry], starts: list[int], first_seen: dict[str, int]) -> None:
        self.entries, self.starts, self.first_seen = entries, starts, first_seen

    def upto(self, size: int) -> Log:
        turns = self.entries[size - 1].turns_to if size else 0
        seen = {call_id: index for call_id, index in self.first_seen.items() if index < size}
        return Log(self.entries[:size], self.starts[:turns], seen)


class View(Struct, frozen=True, eq=False):
    """The messages of a branch, measured, verified and hashed as they arrived."""

    dialect: Dialect
    counter: TokenCounter
    key: bytes = b""
    """The owner's key for the chain hash."""
    size: int = 0
    log: Log = field(default_factory=lambda: Log([], [], {}))

    @classmethod
    def of(
        cls, messages: Iterable[Message], dialect: Dialect, counter: TokenCounter, *, key: bytes = b""
    ) -> View:
        return cls(dialect, counter, key).extend(messages)

    def append(self, message: Message) -> View:
        return self.extend((message,))

    def extend(self, messages: Iterable[Message]) -> View:
        log = self.log if len(self.log.entries) == self.size else self.log.upto(self.size)
        last = log.entries[-1] if log.entries else None
        for message in messages:
            last = self._entry(message, last, log)
            remember_calls(log.first_seen, message, len(log.entries))
            if starts_turn(message):
                log.starts.append(len(log.entries))
            log.entries.append(last)
        return structs.replace(self, log=log, size=len(log.entries))

    def prefix(self, size: int) -> View:
        """The view as it was when it had `size` messages."""
        return structs.replace(self, size=max(0, min(size, self.size)))

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Entry:
        if not -self.size <= index < self.size:
            raise IndexError(index)
        return self.log.entries[index if index >= 0 else index + self.size]

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.log.entries[: self.size])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, View):
            return NotImplemented
        return self.dialect == other.dialect and list(self) == list(other)

    def __hash__(self) -> int:
        return hash((self.dialect.name, self.chain))

    def messages(self, start: int = 0, stop: int | None = None) -> tuple[Message, ...]:
        end = self.size if stop is None else min(stop, self.size)
        return tuple(entry.message for entry in self.log.entries[start:end])

    @property
    def last(self) -> Entry | None:
        return self.log.entries[self.size - 1] if self.size else None

    @property
    def turn_starts(self) -> Sequence[int]:
        count = self.last.turns_to if self.last else 0
        starts = self.log.starts
        return starts if len(starts) == count else starts[:count]

    @property
    def chain(self) -> bytes:
        """The hash of everything said so far."""
        return self.last.chain if self.last else start_chain(self.key)

    @property
    def progress(self) -> Progress:
        """What verification knows after the last message."""
        return self.progress_at(self.size)

    def progress_at(self, index: int) -> Progress:
        """What verification knew before the message at `index`."""
        return self.log.entries[index - 1].progress if index > 0 else START

    @property
    def tokens(self) -> TokenCount:
        return self.tokens_between(0, self.size)

    def tokens_between(self, start: int, stop: int) -> TokenCount:
        return TokenCount.of(self.tokens_before(stop) - self.tokens_before(start), self.counter.source)

    def tokens_before(self, index: int) -> int:
        return self.log.entries[min(index, self.size) - 1].tokens_to if index > 0 and self.size else 0

    def result_tokens_between(self, start: int, stop: int) -> TokenCount:
        before = self.log.entries[start - 1].result_tokens_to if start > 0 else 0
        upto = self.log.entries[stop - 1].result_tokens_to if stop > 0 else 0
        return TokenCount.of(upto - before, self.counter.source)

    @property
    def size_bytes(self) -> int:
        return self.last.bytes_to if self.last else 0

    def suffix_within(self, tokens: int) -> int:
        """The smallest index from which the rest of the messages takes at most `tokens`."""
        total = self.tokens_before(self.size)
        return bisect_right(range(self.size), total - tokens - 1, key=self.tokens_before)

    def violations(self, *, as_request: bool = False) -> tuple[Violation, ...]:
        """Every broken rule; where there is none, nothing but the end is looked at."""
        ending = finish(self.progress, self.dialect, as_request=as_request)
        if not self.last or not self.last.violations_to:
            return ending
        return (*(broken for entry in self for broken in entry.violations), *ending)

    def _entry(self, message: Message, last: Entry | None, log: Log) -> Entry:
        tokens = self.counter.message(message)
        results = tokens if message.role == "tool" else 0
        raw = len(message.origin.raw) if message.origin else 0
        chain = extend_chain(last.chain if last else start_chain(self.key), message, self.key)
        state, broken = step(last.progress if last else START, message, self.dialect, log.first_seen)
        turn = int(starts_turn(message))
        if last is None:
            return Entry(message, tokens, chain, state, broken, tokens, results, turn, raw, len(broken))
        return Entry(
            message,
            tokens,
            chain,
            state,
            broken,
            last.tokens_to + tokens,
            last.result_tokens_to + results,
            last.turns_to + turn,
            last.bytes_to + raw,
            last.violations_to + len(broken),
        )
