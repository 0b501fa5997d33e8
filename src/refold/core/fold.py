"""A branch as it is shown: the originals, what stands for them now, and the summaries before them.

One idea: compaction never touches the branch. It changes what is shown of it, and what is shown remembers for every message
which original it stands for. Between two changes both only grow, by the same messages, so the bytes that left before stay
the prefix of the bytes that leave next.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct, field, structs

from refold.core.stages.shown import Item, Shown
from refold.core.summary.facts import Facts, index_message
from refold.core.summary.ledger import EMPTY, Ledger, entries, merge
from refold.core.view import View
from refold.model.message import Message
from refold.model.summary import Summary


class Folded(Struct, frozen=True):
    """What planning works on. `branch` holds every original, `shown` what would be sent of it."""

    branch: View
    shown: View
    edited: tuple[int, ...] = ()
    """Numbers of the originals behind the first messages shown; those after them are originals themselves."""
    base: int = 0
    """The number of the first original that is shown as it is after the edited ones."""
    summaries: tuple[Summary, ...] = ()
    pinned: frozenset[int] = frozenset()
    facts: Facts = field(default_factory=Facts)
    """What is known about every original, noted as it arrived."""
    ledger: Ledger = EMPTY

    @classmethod
    def of(cls, branch: View) -> Folded:
        return cls(branch, branch, facts=Facts())

    def extend(self, messages: Iterable[Message]) -> Folded:
        new = tuple(messages)
        branch = self.branch.extend(new)
        shown = branch if self.shown is self.branch else self.shown.extend(new)
        facts, ledger = self.facts, self.ledger
        for number, message in enumerate(new, len(self.branch)):
            facts = index_message(facts, message, number)
            ledger = merge(ledger, entries(message))
        return structs.replace(self, branch=branch, shown=shown, facts=facts, ledger=ledger)

    def number(self, index: int) -> int:
        """The number of the original behind the message shown at `index`."""
        return self.edited[index] if index < len(self.edited) else self.base + index - len(self.edited)

    @property
    def active(self) -> int:
        """The index in `shown` at which the active turn begins: its last user message."""
        starts = self.shown.turn_starts
        return starts[-1] if starts else 0

    @property
    def items(self) -> Shown:
        """What is shown, as stages take it."""
        entries = enumerate(self.shown)
        items = tuple(Item(entry.message, self.number(index), entry.tokens) for index, entry in entries)
        return Shown(items, self.active)

    def show(self, items: Sequence[Item], summaries: tuple[Summary, ...] | None = None) -> Folded:
        """The same branch shown another way."""
        view = self.shown
        shown = View(view.dialect, view.counter, view.key, view.continues).extend(
            item.message for item in items
        )
        return structs.replace(
            self,
            shown=shown,
            edited=tuple(item.seq for item in items),
            base=len(self.branch),
            summaries=self.summaries if summaries is None else summaries,
        )

    @property
    def summary_tokens(self) -> int:
        return sum(summary.tokens for summary in self.summaries)
