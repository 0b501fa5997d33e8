"""A branch as it is shown: the originals, what stands for them now, and the summaries before them.

One idea: compaction never touches the branch. It changes what is shown of it, and what is shown remembers for every message
which original it stands for. Between two changes both only grow, by the same messages, so the bytes that left before stay
the prefix of the bytes that leave next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import chain, count

from msgspec import Struct, field, structs

from refold.core.assemble import NO_LEAD, Lead
from refold.core.stages.shown import Item, Shown
from refold.core.summary.facts import Facts, index_message
from refold.core.summary.ledger import EMPTY, Ledger, entries, merge
from refold.core.summary.long_texts import MAX_LEDGER, with_ends
from refold.core.system_messages import joined, legal_order
from refold.core.thoughts import has_thoughts, thoughtless
from refold.core.turns import starts_turn
from refold.core.view import Entry, View
from refold.model.message import Message
from refold.model.summary import Summary


class Asked(Struct, frozen=True):
    """What the user said first, and the number of it."""

    number: int
    message: Message


class Folded(Struct, frozen=True, dict=True):
    """What planning works on. `branch` holds the originals, `shown` what would be sent of them."""

    branch: View
    shown: View
    edited: tuple[int, ...] = ()
    """Numbers of the originals behind the first messages shown; those after them are shown in their order."""
    base: int = 0
    """The number of the first original that is shown after the edited ones."""
    summaries: tuple[Summary, ...] = ()
    past: tuple[Summary, ...] = ()
    """Every summary that was shown, oldest first, apart from the first `numbered`: a store has those."""
    numbered: int = 0
    lead: Lead = NO_LEAD
    """The summaries as they are sent."""
    settled: int = -1
    """How many originals there were when a summary was last written, or tried in vain; -1 for never."""
    declined: int = -1
    """How many originals there were when a change was taken back: until there are more, none is made unasked."""
    pinned: frozenset[int] = frozenset()
    facts: Facts = field(default_factory=Facts)
    """What is known about every original, noted as it arrived."""
    ledger: Ledger = EMPTY
    replies: int = 0
    """How many of the originals are the assistant's."""
    origin: int = 0
    """How many originals come before those in `branch`: a store has them, and summaries stand for them here."""
    told: int = 0
    """What they take, in tokens."""
    task: Asked | None = None

    @classmethod
    def of(cls, branch: View) -> Folded:
        return cls(branch, branch, facts=Facts())

    def take(self, message: Message, *, later: bool = False) -> Folded:
        """One more original, indexed and not yet shown. One of many that come at once is read `later`."""
        number = self.size
        return structs.replace(
            self,
            branch=self.branch.append(message),
            facts=index_message(self.facts, message, number, later=later),
            ledger=merge(self.ledger, entries(with_ends(message, MAX_LEDGER), is_task=not self.replies)),
            replies=self.replies + (message.role == "assistant"),
            task=self.task or (Asked(number, message) if starts_turn(message) else None),
        )

    def hold(self, message: Message) -> Folded:
        """One more original of which nothing is noted, not even that it was the first: it is nobody else's business."""
        replies = self.replies + (message.role == "assistant")
        return structs.replace(self, branch=self.branch.append(message), replies=replies)

    def display(self, message: Message) -> Folded:
        """Show one more message, which stands for the next original."""
        branch, shown = self.branch, self.shown
        number = self.number(len(shown))
        is_same_line = shown.log is branch.log or not len(shown)
        if is_same_line and number == len(shown) and self.is_original(message, number):
            return structs.replace(self, shown=branch.prefix(number + 1))
        return structs.replace(self, shown=shown.append(message))

    def extend(self, messages: Iterable[Message]) -> Folded:
        """More originals, shown as they are."""
        folded = self
        for message in messages:
            folded = folded.take(message).display(message)
        return folded

    @property
    def size(self) -> int:
        """How many originals there are."""
        return self.origin + len(self.branch)

    @property
    def asking(self) -> int:
        """The number at which a reply begins whose calls wait for their results; `size` where none does."""
        progress = self.branch.progress
        return self.origin + progress.batch if progress.open_calls else self.size

    @property
    def whole(self) -> int:
        """What all originals take, in tokens."""
        return self.told + self.branch.tokens.tokens

    def original(self, number: int) -> Entry:
        """One of the originals that are held here."""
        return self.branch[number - self.origin]

    def originals(self, first: int, last: int) -> tuple[Message, ...]:
        """Those of the originals `first` up to, not including, `last` that are held here."""
        return self.branch.messages(max(0, first - self.origin), max(0, last - self.origin))

    def is_original(self, message: Message, number: int) -> bool:
        """Is this the original of this number itself? Of one that is not held here, nobody knows."""
        return self.origin <= number < self.size and self.original(number).message is message

    def number(self, index: int) -> int:
        """The number of the original behind the message shown at `index`."""
        return self.edited[index] if index < len(self.edited) else self.base + index - len(self.edited)

    @property
    def active(self) -> int:
        """The index in `shown` at which the active turn begins: its last user message."""
        starts = self.shown.turn_starts
        return starts[-1] if starts else 0

    @cached_property
    def items(self) -> Shown:
        """What is shown, as stages take it."""
        numbered = zip(self.shown, chain(self.edited, count(self.base)), strict=False)
        return Shown(tuple([Item(entry.message, seq, entry.tokens) for entry, seq in numbered]), self.active)

    @property
    def is_turn_over(self) -> bool:
        """Has the assistant had the last word? Then no turn is active until the user speaks again."""
        last = self.shown.last
        is_said = last is not None and last.message.role == "assistant"
        return is_said and not self.shown.progress.open_calls

    @property
    def seq_at_work(self) -> int:
        """The number of the first message of a turn that is still at work; `size` where none is."""
        is_over = self.is_turn_over or not len(self.shown)
        return self.size if is_over else self.number(self.active)

    @property
    def is_bound(self) -> bool:
        """Is a turn at work that has signed thoughts? Then a change before them would make them void."""
        if not self.shown.dialect.signed_thinking or self.is_turn_over:
            return False
        return any(has_thoughts(message) for message in self.shown.messages(self.active))

    @property
    def touchable(self) -> Shown:
        """What is shown, as a policy's own stages take it: a turn that is over is protected no more."""
        items = self.items
        return structs.replace(items, protected=len(items.items)) if self.is_turn_over else items

    def show(self, items: Sequence[Item]) -> Folded:
        """The same branch shown another way. A thought is bound to all that was said before it, so those that are signed leave
        whole; only a turn that is still at work needs its own. System messages are put where they may stand.
        """
        view = self.shown
        items = self._placed(items)
        if view.dialect.signed_thinking:
            items = thoughtless(items, self.seq_at_work, view.counter)
        shown = View(view.dialect, view.counter, view.key, view.continues).extend(
            (item.message for item in items), (item.tokens for item in items)
        )
        return structs.replace(self, shown=shown, edited=tuple(item.seq for item in items), base=self.size)

    def _placed(self, items: Sequence[Item]) -> Sequence[Item]:
        """The items with system messages where the dialect allows them."""
        view, messages = self.shown, [item.message for item in items]
        order = legal_order(messages, view.dialect, follows_user=self.lead.ends_with_user)
        return [
            items[group[-1]] if len(group) == 1 else _joined(items, group, view.counter.message)
            for group in order
        ]

    def lead_by(self, summaries: tuple[Summary, ...], lead: Lead) -> Folded:
        """The same messages after other summaries, of which the last is new and gets its number."""
        number = self.numbered + len(self.past)
        new = tuple(structs.replace(summary, number=number) for summary in summaries[-1:])
        return structs.replace(
            self,
            summaries=(*summaries[:-1], *new),
            past=(*self.past, *new),
            lead=lead,
            settled=self.size,
        )

    def settle(self) -> Folded:
        """Nothing could be gained from what is there now."""
        return structs.replace(self, settled=self.size)

    def shown_as(self, earlier: Folded) -> Folded:
        """All that is known now, shown as it was at an earlier time; what came since is not shown yet.

        Whoever takes a change back does not want it made again at once.
        """
        return structs.replace(
            earlier,
            branch=self.branch,
            facts=self.facts,
            ledger=self.ledger,
            replies=self.replies,
            task=self.task,
            past=self.past,
            numbered=self.numbered,
            declined=self.size,
        )

    @property
    def tokens(self) -> int:
        """What summaries and messages take."""
        return self.lead.tokens + self.shown.tokens.tokens


def _joined(items: Sequence[Item], group: tuple[int, ...], count: Callable[[Message], int]) -> Item:
    """System messages that would stand in a row, as one."""
    message = joined([item.message for item in items], group)
    return Item(message, items[group[-1]].seq, count(message))
