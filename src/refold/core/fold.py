"""A branch as it is shown: the originals, what stands for them now, and the summaries before them.

One idea: compaction never touches the branch. It changes what is shown of it, and what is shown remembers for every message
which original it stands for. Between two changes both only grow, by the same messages, so the bytes that left before stay
the prefix of the bytes that leave next.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain, count
from operator import is_

from msgspec import Struct, field, structs

from refold.core.assemble import NO_LEAD, Lead, is_led_in, needs_bridge
from refold.core.digest.facts import Facts, index_message
from refold.core.digest.ledger import EMPTY, Ledger, entries, merge
from refold.core.digest.shorten import MAX_LEDGER, with_ends
from refold.core.digest.typed_text import is_typed, request_text, said_by_user
from refold.core.pairs import repair
from refold.core.shown import Edit, Item, Shown, handle_of
from refold.core.system_messages import joined, legal_order
from refold.core.view import View, ViewEntry
from refold.model.message import Message, Reasoning, Text, compaction_span, holds_compaction, opening_span
from refold.model.summary import Summary
from refold.model.tokens import TokenCounter

# Thoughts that a provider has signed: they are sent back as they came, or not at all.

_SIGNATURE_ERROR = re.compile(rb"(?i)signature.{0,80}thinking|thinking.{0,80}signature|prefix_binding")
"""Providers' words for a thought that does not hold. Bounded, and over the beginning of an answer only."""
MOST_BYTES = 4_096


PREFIX_CHANGED = "what was said before these thoughts is shown another way"


def is_void(status: int | None, refusal: object) -> bool:
    """Does a refusal say that a thought no longer holds?"""
    text = refusal if isinstance(refusal, bytes) else str(refusal).encode("utf-8", "replace")
    return status in (400, None) and bool(_SIGNATURE_ERROR.search(text[:MOST_BYTES]))


def has_thoughts(message: Message) -> bool:
    return any(isinstance(part, Reasoning) for part in message.parts)


def thoughtless(items: Sequence[Item], until: int, counter: TokenCounter) -> tuple[Item, ...]:
    """The items without the thoughts of messages before number `until`; one that is all thought stays as it is."""
    return tuple(_without(item, counter) if item.seq < until else item for item in items)


def thought_edits(before: Sequence[Item], after: Sequence[Item], known: Sequence[Edit]) -> tuple[Edit, ...]:
    """What became of messages that lost their thoughts when something before them changed, those that are told already apart."""
    told = {edit.seq for edit in known}
    bare = {item.seq: item for item in after if not has_thoughts(item.message) and item.seq not in told}
    return tuple(
        Edit("thoughts", item.seq, item.tokens, bare[item.seq].tokens, PREFIX_CHANGED, handle_of(item.seq))
        for item in before
        if item.seq in bare and has_thoughts(item.message)
    )


def _bare(message: Message) -> Message:
    """A message without its thoughts; one that is all thought stays as it is."""
    parts = tuple(part for part in message.parts if not isinstance(part, Reasoning))
    return message.with_parts(parts) if parts and len(parts) < len(message.parts) else message


def _without(item: Item, counter: TokenCounter) -> Item:
    message = _bare(item.message)
    if message is item.message:
        return item
    return structs.replace(item, message=message, tokens=counter.message(message))


MAX_ASKED = 8
"""Messages of the user's before the first reply that are kept as the task, and messages of an open turn that are kept as its question."""

_TURN_ROLES = frozenset(("user", "assistant", "tool"))
"""What the system says may stand anywhere."""


class UserRequest(Struct, frozen=True):
    """A message in which the user asks for something, and its number."""

    number: int
    message: Message
    replies: int = -1
    """How many replies came before it; -1 where that is not known."""
    is_typed: bool = True
    """Did a user type anything of it?"""


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
    task: tuple[UserRequest, ...] = ()
    """What the user asked for first: the messages before the first reply, as far as a user typed them."""
    asked: UserRequest | None = None
    """What the user asked in the turn that is open where `branch` begins; None where none is, or nothing of it may be noted."""
    held: frozenset[int] = frozenset()
    """Numbers of the originals in `branch` of which nothing is noted."""
    made: dict[int, Message] = field(default_factory=dict)
    """Compactions of another provider or model that are shown in words instead, by their numbers: the messages as they were made."""

    @classmethod
    def of(cls, branch: View) -> Folded:
        return cls(branch, branch, facts=Facts())

    def take(self, message: Message, *, later: bool = False) -> Folded:
        """One more original, indexed and not yet shown. One of many that come at once is read `later`."""
        number, said = self.size, said_by_user(message)
        return structs.replace(
            self,
            branch=self.branch.append(message),
            facts=index_message(self.facts, message, number, later=later),
            ledger=merge(self.ledger, entries(with_ends(message, MAX_LEDGER), is_task=not self.replies)),
            replies=self.replies + (message.role == "assistant"),
            task=self._task_with(number, said) if said else self.task,
        )

    def _task_with(self, number: int, message: Message) -> tuple[UserRequest, ...]:
        """The task with one more message of the user's: with those before the first reply, and with the first that a user typed in place
        of one that a program wrote.
        """
        known = self.task
        is_open = not known or (known[0].replies == self.replies and len(known) < MAX_ASKED)
        if not is_open and known[0].is_typed:
            return known
        new = UserRequest(number, message, self.replies, is_typed(message))
        if not known or (new.is_typed and not known[0].is_typed):
            return (new,)
        return (*known, new) if new.is_typed else known

    def questions_before(self, last: int) -> tuple[UserRequest, ...]:
        """What the user said before the number `last` in the turn that is open there, oldest first: the question of the turn, and what
        was added to it since, in messages of its own or beside tool results. Nothing before a message of which nothing may be noted.

        A turn ends with a reply without calls after which the user speaks, or nobody.
        """
        found, following = list[UserRequest](), self._role_from(last)
        for at in reversed(range(min(last - self.origin, len(self.branch)))):
            number, message = self.origin + at, self.branch[at].message
            if message.role == "assistant" and following == "user" and not message.calls:
                break
            if (said := said_by_user(message)) is not None:
                if number in self.held:
                    break
                if is_typed(said):
                    found.append(UserRequest(number, said))
            if message.role in _TURN_ROLES:
                following = message.role
        else:
            found += [self.asked] if self.asked else []
        return tuple(reversed(found if len(found) <= MAX_ASKED else [*found[: MAX_ASKED - 1], found[-1]]))

    def _role_from(self, number: int) -> str:
        """The role of the first message from a number on that belongs to a turn. After the last one the user is expected to speak,
        unless calls wait for their results.
        """
        for at in range(max(0, number - self.origin), len(self.branch)):
            if (role := self.branch[at].message.role) in _TURN_ROLES:
                return role
        return "tool" if self.branch.progress.open_calls else "user"

    def question_before(self, last: int) -> UserRequest | None:
        """The same in one message with the number of the newest, without what is part of the task, as a store keeps it."""
        found, task = self.questions_before(last), {one.number for one in self.task}
        own = [one for one in found if one.number not in task] or found[-1:]
        if len(own) < 2:
            return own[0] if own else None
        said = [Text(request_text(one.message)) for one in own]
        return UserRequest(own[-1].number, Message("user", tuple(said)))

    def hold(self, message: Message) -> Folded:
        """One more original of which nothing is noted, not even that it was the first: it is nobody else's business."""
        replies, held = self.replies + (message.role == "assistant"), self.held | {self.size}
        return structs.replace(self, branch=self.branch.append(message), replies=replies, held=held)

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

    def original(self, number: int) -> ViewEntry:
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

    @cached_property
    def bridges(self) -> int:
        """How many user messages are put between what is shown, where the dialect wants them."""
        view, first = self.shown, self.opening
        is_parted = first < len(view) and needs_bridge(view[first].message, view.dialect, self.lead)
        return is_parted + (len(view) > 0 and is_led_in(view[0].message, view.dialect, self.lead))

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
        whole; only a turn that is still at work needs its own. System messages are put where they may stand, and a provider's own
        compaction first.
        """
        view = self.shown
        items = self._placed(_with_compaction_first(items, self._covered))
        if view.dialect.signed_thinking:
            items = thoughtless(items, self.seq_at_work, view.counter)
        shown = View(view.dialect, view.counter, view.key, view.continues).extend(
            (item.message for item in items), (item.tokens for item in items)
        )
        return structs.replace(self, shown=shown, edited=tuple(item.seq for item in items), base=self.size)

    def _placed(self, items: Sequence[Item]) -> Sequence[Item]:
        """The items with system messages where the dialect allows them."""
        view, messages = self.shown, [item.message for item in items]
        first = opening_span(messages) if self.lead.messages else 0
        rest, follows_user = messages[first:], self.lead.ends_with_user
        order = legal_order(rest, view.dialect, follows_user=follows_user)
        found = list(items[:first])
        for group in order:
            own = items[first + group[-1]]
            joint = joined(rest, group)
            found.append(own if joint is own.message else Item(joint, own.seq, view.counter.message(joint)))
        return found

    @property
    def _covered(self) -> int:
        """The number of the first message that no summary covers."""
        return self.summaries[-1].last if self.summaries else 0

    @property
    def compacted(self) -> tuple[int, ...]:
        """Numbers of the message with the provider's newest compaction, as it was made or in words, and of the results of its calls."""
        items = self.items.items
        span = compaction_span([self.made.get(item.seq, item.message) for item in items])
        return tuple(items[index].seq for index in span)

    def in_words(self, twins: Mapping[int, Message]) -> Folded:
        """The same messages with these in the place of compactions that the provider does not know, by their numbers, and all other
        compactions as they were made.
        """
        items, made, count = list[Item](), dict[int, Message](), self.shown.counter.message
        for item in self.items.items:
            own = self.made.get(item.seq, item.message)
            told = twins.get(item.seq) if holds_compaction(own) else None
            if told is not None:
                made[item.seq] = own
            wanted = told or own
            is_shown = wanted is item.message or wanted == item.message
            items.append(item if is_shown else Item(wanted, item.seq, count(wanted)))
        is_same = all(map(is_, items, self.items.items))
        if is_same and _with_compaction_first(items, self._covered) is items:
            return self
        return structs.replace(self, made=made).show(items)

    @cached_property
    def opening(self) -> int:
        """How many of the messages shown stand before the summaries: a provider's own compaction and the results of its calls."""
        return opening_span(self.shown.messages(0, 2)) if self.lead.messages else 0

    def lead_by(self, summaries: tuple[Summary, ...], lead: Lead) -> Folded:
        """The same messages after other summaries, of which the last is new and gets its number."""
        number = self.numbered + len(self.past)
        new = tuple(structs.replace(summary, number=number) for summary in summaries[-1:])
        led = structs.replace(
            self,
            summaries=(*summaries[:-1], *new),
            past=(*self.past, *new),
            lead=lead,
            settled=self.size,
        )
        items, covered = self.items.items, summaries[-1].last if summaries else 0
        return led if _with_compaction_first(items, covered) is items else led.show(items)

    def settle(self) -> Folded:
        """Nothing could be gained from what is there now."""
        return structs.replace(self, settled=self.size)

    @cached_property
    def tokens(self) -> int:
        """What summaries and messages take."""
        return self.lead.tokens + self.shown.tokens.tokens


def _with_compaction_first(items: Sequence[Item], covered: int) -> Sequence[Item]:
    """The items with the provider's newest compaction and the results of its calls first, where a summary tells what came after it:
    the provider ignores what stands before its own compaction, and so it would the summary.
    """
    span = compaction_span([item.message for item in items])
    if not span.start or items[span.start].seq >= covered:
        return items
    return [*items[span.start : span.stop], *items[: span.start], *items[span.stop :]]


# Make what is shown whole again where messages arrived broken.

_SET_RIGHT = ("starts_without_user", "too_many_breakpoints")
"""A bridge helps the one; of too many breakpoints the oldest are left out."""
_SET_RIGHT_FIRST = "system_without_user"
"""Of the first message after the summaries: one of them or a bridge stands before it."""
REASON = "the messages broke a rule of their format"
SIGNATURES_REFUSED = "the provider no longer takes the thoughts that it signed"


def is_broken(folded: Folded) -> bool:
    """Is anything wrong with the messages shown that assembling a window does not set right?"""
    return any(
        found.rule not in _SET_RIGHT and (found.rule, found.index) != (_SET_RIGHT_FIRST, folded.opening)
        for found in folded.shown.violations()
    )


def forget_thoughts(folded: Folded) -> tuple[Folded, tuple[Edit, ...]]:
    """What is shown, without any signed thought: the provider says that they no longer hold."""
    if not folded.shown.dialect.signed_thinking or not (folded.edited or folded.lead.tokens):
        return folded, ()  # nothing was shown another way than it came, so it is not our doing
    items = folded.items.items
    kept = thoughtless(items, folded.size, folded.shown.counter)
    edits = tuple(
        Edit("mend", item.seq, item.tokens, left.tokens, SIGNATURES_REFUSED, handle_of(item.seq))
        for item, left in zip(items, kept, strict=True)
        if item is not left
    )
    return (folded.show(kept) if edits else folded), edits


def mend(folded: Folded, *, as_request: bool = False) -> tuple[Folded, tuple[Edit, ...]]:
    """What is shown, with calls and results made whole. As a request, calls that still wait for a result go as well."""
    items, view = folded.items.items, folded.shown
    messages = [item.message for item in items]
    found = repair(
        messages,
        view.dialect,
        as_request=as_request,
        continues=view.continues,
        follows_user=folded.lead.ends_with_user,
    )
    count = view.counter.message
    pairs = zip(found.messages, found.origins, strict=True)
    kept = [Item(message, items[at].seq, count(message)) for message, at in pairs]
    mended = folded.show(kept)
    after = dict[int, int]()
    for index, item in enumerate(kept):
        after[item.seq] = after.get(item.seq, 0) + mended.shown[index].tokens
    edits = tuple(
        Edit("mend", item.seq, item.tokens, after.get(item.seq, 0), REASON, handle_of(item.seq))
        for item in items
        if after.get(item.seq, 0) != item.tokens
    )
    return mended, edits
