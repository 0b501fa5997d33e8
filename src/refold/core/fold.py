"""The state of a branch that planning works on: its originals, the messages shown for them, and the summaries.

Compaction never changes the branch. It changes the messages that are shown, and each of them carries the
number of the original that it stands for. Between two compactions both sequences only grow, by the same
messages, so the bytes sent in one call are a prefix of the bytes sent in the next.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain, count
from operator import is_

from msgspec import Struct, field, structs

from refold.core.assemble import NO_LEAD, Lead, is_led_in, lead_of, needs_bridge
from refold.core.digest.facts import PORTION, SHORT, Facts, index_message, queue_messages
from refold.core.digest.ledger import EMPTY, Ledger, entries, merge
from refold.core.digest.shorten import MAX_LEDGER, with_ends
from refold.core.digest.typed_text import (
    client_summary,
    is_client_summary,
    is_typed,
    said_by_user,
)
from refold.core.pairs import repair
from refold.core.policy import Policy
from refold.core.stage import Edit, Item, ShownMessages, handle_of
from refold.core.system_messages import INSTRUCTION_ROLES, is_setting, joined, legal_order
from refold.core.tool_use import COMMON_TOOLS, ToolKinds
from refold.core.verify import is_refused
from refold.core.view import View, ViewEntry
from refold.model.message import (
    Message,
    Reasoning,
    ToolCall,
    compaction_span,
    holds_compaction,
    opening_span,
)
from refold.model.summary import Summary
from refold.model.tokens import TokenCounter
from refold.model.window import FixedFields, Violation

# Signed reasoning: a provider accepts reasoning that it has signed only if it is unchanged

_SIGNATURE_ERROR = re.compile(rb"(?i)signature.{0,80}thinking|thinking.{0,80}signature|prefix_binding")
"""Error texts of providers for signed reasoning that is no longer valid. The gaps are bounded, and only the
first `MOST_BYTES` of the error are searched."""
MOST_BYTES = 4_096


PREFIX_CHANGED = "what was said before these thoughts is shown another way"


def is_signature_error(status: int | None, refusal: object) -> bool:
    """True if a provider's error says that signed reasoning is no longer valid."""
    text = refusal if isinstance(refusal, bytes) else str(refusal).encode("utf-8", "replace")
    return status in (400, None) and bool(_SIGNATURE_ERROR.search(text[:MOST_BYTES]))


_NATIVE_ERROR = re.compile(
    rb"(?i)compaction_(?:signature_invalid|content_mismatch|block_misplaced)|invalid_encrypted_content"
    rb"|encrypted content.{0,400}could not be (?:verified|decrypted)|input tag 'compaction'|content\.\d{1,4}\.compaction\b"
)
"""Error texts of providers that refuse a compaction of their own: changed, expired, or not known here."""


def is_native_error(status: int | None, refusal: object) -> bool:
    """True if a provider's error says that it does not take a compaction back."""
    text = refusal if isinstance(refusal, bytes) else str(refusal).encode("utf-8", "replace")
    return status in (400, 404, 422, None) and bool(_NATIVE_ERROR.search(text[:MOST_BYTES]))


def has_thoughts(message: Message) -> bool:
    return any(isinstance(part, Reasoning) for part in message.parts)


def without_reasoning(items: Sequence[Item], until: int, counter: TokenCounter) -> tuple[Item, ...]:
    """The items without the reasoning of messages numbered below `until`. A message of reasoning alone is left unchanged."""
    return tuple(_item_without_reasoning(item, counter) if item.seq < until else item for item in items)


def thought_edits(before: Sequence[Item], after: Sequence[Item], known: Sequence[Edit]) -> tuple[Edit, ...]:
    """The edits for messages that lost their reasoning because a message before them changed, except those
    that `known` has already.
    """
    told = {edit.seq for edit in known}
    bare = {item.seq: item for item in after if not has_thoughts(item.message) and item.seq not in told}
    return tuple(
        Edit("thoughts", item.seq, item.tokens, bare[item.seq].tokens, PREFIX_CHANGED, handle_of(item.seq))
        for item in before
        if item.seq in bare and has_thoughts(item.message)
    )


def without_thoughts(message: Message) -> Message:
    """The message without its reasoning; a message of reasoning alone is returned unchanged."""
    parts = tuple(part for part in message.parts if not isinstance(part, Reasoning))
    return message.with_parts(parts) if parts and len(parts) < len(message.parts) else message


def _item_without_reasoning(item: Item, counter: TokenCounter) -> Item:
    message = without_thoughts(item.message)
    if message is item.message:
        return item
    return structs.replace(item, message=message, tokens=counter.message(message))


MAX_ASKED = 8
"""The task keeps at most so many user messages before the first reply, and a question so many of an open turn."""
MAX_BATCH = 64
"""A result is matched with the calls of so many messages before it: more calls at once are rare."""

_TURN_ROLES = frozenset(("user", "assistant", "tool"))
"""Roles that make up a turn. System messages may stand anywhere."""


class UserRequest(Struct, frozen=True):
    """A message in which the user asks for something, with its number."""

    number: int
    message: Message
    replies: int = -1
    """Replies before this message; -1 if unknown."""
    is_typed: bool = True
    """False if a program wrote all of the text."""


class LedgerPrefix(Struct, frozen=True):
    """The ledger of the originals below a number."""

    ledger: Ledger = EMPTY
    until: int = 0
    is_answered: bool = False
    """Whether a reply is among them: later messages of the user are not the task."""


class FoldedBranch(Struct, frozen=True, dict=True):
    """The state that planning works on: `branch` holds the originals, `shown` the messages that would be sent for them."""

    branch: View
    shown: View
    edited: tuple[int, ...] = ()
    """Numbers of the originals behind the first messages shown; the messages after them are consecutive originals."""
    base: int = 0
    """Number of the first original shown after the edited ones."""
    summaries: tuple[Summary, ...] = ()
    past: tuple[Summary, ...] = ()
    """Every summary that was ever shown, oldest first, except the first `numbered`, which only the store holds."""
    numbered: int = 0
    lead: Lead = NO_LEAD
    """The summaries in the form in which they are sent."""
    settled: int = -1
    """Number of originals when a summary was last written or attempted; -1 for never."""
    declined: int = -1
    """Number of originals when a compaction was undone. No automatic compaction happens until there are more."""
    pruned: int = 0
    """The prune boundary: tool results in messages below this number are not pruned again."""
    pinned: frozenset[int] = frozenset()
    facts: Facts = field(default_factory=Facts)
    """Index of every original, updated as it arrives."""
    noted: LedgerPrefix = LedgerPrefix()
    """The ledger as far as originals were read; `ledger` is that of all."""
    tools: ToolKinds = COMMON_TOOLS
    """The tools that read and change files, for the ledger."""
    replies: int = 0
    """Number of assistant messages among the originals."""
    origin: int = 0
    """Number of originals before those in `branch`: the store holds them, and summaries stand for them here."""
    told: int = 0
    """Tokens of the originals before `origin`."""
    task: tuple[UserRequest, ...] = ()
    """The first request of the user: the user messages before the first reply, as far as a person typed them."""
    asked: tuple[UserRequest, ...] = ()
    """The user's messages of the turn that is open at the start of `branch`, oldest first, as far as they are not of the
    task. Empty if no turn is open, or if they must not be recorded."""
    held: frozenset[int] = frozenset()
    """Numbers of the originals in `branch` that must not be recorded or indexed."""
    secrets: frozenset[str] = frozenset()
    """The secrets that were found in the conversation. No summary contains them, also where they stand without
    the name by which they were found."""
    made: dict[int, Message] = field(default_factory=dict)
    """Originals of compactions from another provider or model that are shown as plain text instead, by number."""

    @classmethod
    def of(cls, branch: View, tools: ToolKinds = COMMON_TOOLS) -> FoldedBranch:
        return cls(branch, branch, facts=Facts(), tools=tools)

    def with_tools(self, tools: ToolKinds) -> FoldedBranch:
        """The same state for the tools of a policy."""
        return self if self.tools is tools or self.tools == tools else structs.replace(self, tools=tools)

    def take(self, message: Message, *, later: bool = False) -> FoldedBranch:
        """Append an original: index it, but do not show it yet. `later` postpones indexing, for a large batch of messages."""
        last = self.branch.last
        number, said = (
            self.size,
            said_by_user(message) or client_summary(message, last.message if last else None),
        )
        is_long = number - self.noted.until >= SHORT and not later
        return structs.replace(
            self,
            branch=self.branch.append(message),
            facts=index_message(self.facts, message, number, later=later),
            noted=self._noted_until(self.noted.until + PORTION) if is_long else self.noted,
            replies=self.replies + (message.role == "assistant"),
            task=_with_request(self.task, UserRequest(number, said, self.replies)) if said else self.task,
        )

    def take_earlier(self, messages: Sequence[Message]) -> FoldedBranch:
        """Append originals that are not the last of their batch, and show them unchanged. They are indexed later: the same as
        `take` with `later` and `display` for each, in one step.
        """
        task, replies, last = self.task, self.replies, self.branch.last
        before = last.message if last else None
        for number, message in enumerate(messages, self.size):
            said = said_by_user(message) or client_summary(message, before)
            if said is not None:
                task = _with_request(task, UserRequest(number, said, replies))
            replies, before = replies + (message.role == "assistant"), message
        taken = structs.replace(
            self,
            branch=self.branch.extend(messages),
            facts=queue_messages(self.facts, messages, self.size),
            replies=replies,
            task=task,
        )
        return taken.display_newest(len(messages))

    @cached_property
    def ledger(self) -> Ledger:
        """The ledger of all originals, which are read only when it is needed: most conversations are never
        compacted. In a long one, `take` reads a few ahead, so that a compaction need not read all of them.
        """
        return self._noted_until(self.size).ledger

    def with_ledger(self, ledger: Ledger) -> FoldedBranch:
        """The same state with another ledger for all its originals."""
        return structs.replace(self, noted=LedgerPrefix(ledger, self.size, is_answered=self.replies > 0))

    def _noted_until(self, last: int) -> LedgerPrefix:
        """The ledger of the originals below number `last`."""
        ledger, is_answered = self.noted.ledger, self.noted.is_answered
        for number in range(max(self.noted.until, self.origin), last):
            if number not in self.held:
                ledger = merge(ledger, self._entries(number - self.origin, is_task=not is_answered))
            is_answered = is_answered or self.original(number).message.role == "assistant"
        return LedgerPrefix(ledger, last, is_answered)

    def _entries(self, place: int, *, is_task: bool) -> Ledger:
        """The entries that one message adds to the ledger. `place` is its place in `branch`."""
        message = self.branch[place].message
        calls, wanted = dict[str, ToolCall](), {result.call_id for result in message.results}
        for at in range(place - 1, max(-1, place - 1 - MAX_BATCH), -1):
            if not wanted:
                break
            found = {call.id: call for call in self.branch[at].message.calls if call.id in wanted}
            calls |= found
            wanted -= found.keys()
        return entries(with_ends(message, MAX_LEDGER), self.tools, is_task=is_task, calls=calls)

    def questions_before(self, last: int) -> tuple[UserRequest, ...]:
        """The user's messages of the turn that is open before number `last`, oldest first.

        These are the question of the turn and the additions made to it, in messages of their own or beside
        tool results. The search stops at a message that must not be recorded. A turn ends with a reply
        without calls if the next message is the user's or there is none.
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
            found += reversed(self.asked)
        return tuple(reversed(found if len(found) <= MAX_ASKED else [*found[: MAX_ASKED - 1], found[-1]]))

    def _role_from(self, number: int) -> str:
        """Role of the first message from `number` on that belongs to a turn. After the last message it is the
        user's, unless calls wait for their results.
        """
        for at in range(max(0, number - self.origin), len(self.branch)):
            if (role := self.branch[at].message.role) in _TURN_ROLES:
                return role
        return "tool" if self.branch.progress.open_calls else "user"

    def asked_before(self, last: int) -> tuple[UserRequest, ...]:
        """`questions_before` without messages of the task: what the store keeps. If all of them are of the task, the newest."""
        found, task = self.questions_before(last), {one.number for one in self.task}
        return tuple(one for one in found if one.number not in task) or found[-1:]

    def hold(self, message: Message) -> FoldedBranch:
        """Append an original that must not be recorded: it enters no index, ledger or task."""
        replies, held = self.replies + (message.role == "assistant"), self.held | {self.size}
        return structs.replace(self, branch=self.branch.append(message), replies=replies, held=held)

    def display(self, message: Message) -> FoldedBranch:
        """Show one more message, for the next original."""
        branch, shown = self.branch, self.shown
        number = self.number(shown.size)
        is_same_line = shown.log is branch.log or not shown.size
        if is_same_line and number == shown.size and self.is_original(message, number):
            return structs.replace(self, shown=branch.prefix(number + 1))
        last = branch.last
        known = last.tokens if last is not None and last.message is message else None
        return structs.replace(self, shown=shown.append(message, known))

    def display_newest(self, count: int) -> FoldedBranch:
        """Show the last `count` originals, of which none is shown yet, as they are."""
        branch, shown = self.branch, self.shown
        first, number = branch.size - count, self.number(shown.size)
        is_same_line = shown.log is branch.log or not shown.size
        if is_same_line and not self.origin and number == shown.size == first:
            return structs.replace(self, shown=branch)
        tokens = [branch[at].tokens for at in range(first, branch.size)]
        return structs.replace(self, shown=shown.extend(branch.messages(first), tokens))

    def extend(self, messages: Iterable[Message]) -> FoldedBranch:
        """Append originals and show them unchanged."""
        folded = self
        for message in messages:
            folded = folded.take(message).display(message)
        return folded

    @property
    def size(self) -> int:
        """Number of originals in the branch."""
        return self.origin + self.branch.size

    @property
    def asking(self) -> int:
        """Number at which a reply with unanswered calls begins; `size` if there is none."""
        progress = self.branch.progress
        return self.origin + progress.batch if progress.open_calls else self.size

    @property
    def whole(self) -> int:
        """Tokens of all originals."""
        return self.told + self.branch.end.tokens_to

    def original(self, number: int) -> ViewEntry:
        """The original with this number; it must be held in `branch`."""
        return self.branch[number - self.origin]

    def held_original(self, number: int) -> Message | None:
        """The original with this number; None if it is not held in `branch`."""
        index = number - self.origin
        return self.branch[index].message if 0 <= index < len(self.branch) else None

    def originals(self, first: int, last: int) -> tuple[Message, ...]:
        """The originals `first` to `last` (exclusive) that are held in `branch`."""
        return self.branch.messages(max(0, first - self.origin), max(0, last - self.origin))

    def is_original(self, message: Message, number: int) -> bool:
        """True if the message is the original with this number. False for originals that are not held in `branch`."""
        index = number - self.origin
        return 0 <= index < len(self.branch) and self.branch[index].message is message

    def number(self, index: int) -> int:
        """Number of the original behind the message shown at `index`."""
        return self.edited[index] if index < len(self.edited) else self.base + index - len(self.edited)

    @property
    def active(self) -> int:
        """Index in `shown` of the active turn's first message, the last user message."""
        starts = self.shown.turn_starts
        return starts[-1] if starts else 0

    @cached_property
    def items(self) -> ShownMessages:
        """The messages shown, in the form that stages take."""
        numbers, sizes = chain(self.edited, count(self.base)), [entry.tokens for entry in self.shown]
        return ShownMessages(tuple(map(Item, self.shown.messages(), numbers, sizes)), self.active)

    @cached_property
    def instructions(self) -> tuple[Item, ...]:
        """The system and developer messages among those shown: few of many."""
        return tuple([item for item in self.items.items if item.message.role in INSTRUCTION_ROLES])

    @property
    def settings(self) -> frozenset[int]:
        """Numbers of the messages shown that set an option at their provider."""
        return frozenset([item.seq for item in self.instructions if is_setting(item.message)])

    @cached_property
    def bridges(self) -> int:
        """Number of user messages that the dialect requires to be inserted."""
        view, first = self.shown, self.opening
        if first >= view.size:
            return int(view.size > 0 and is_led_in(view[0].message, view.dialect, self.lead))
        is_parted = needs_bridge(view[first].message, view.dialect, self.lead)
        return is_parted + is_led_in(view[0].message, view.dialect, self.lead)

    @property
    def is_turn_over(self) -> bool:
        """True if the last message is a reply without open calls: no turn is active until the next user message."""
        last = self.shown.last
        is_said = last is not None and last.message.role == "assistant"
        return is_said and not self.shown.progress.open_calls

    @property
    def seq_at_work(self) -> int:
        """Number of the first message of a turn in progress; `size` if there is none."""
        is_over = self.is_turn_over or not len(self.shown)
        return self.size if is_over else self.number(self.active)

    @property
    def is_bound(self) -> bool:
        """True if the turn in progress has signed reasoning, which a change before it would invalidate."""
        if not self.shown.dialect.signed_thinking or self.is_turn_over:
            return False
        return any(has_thoughts(message) for message in self.shown.messages(self.active))

    @property
    def touchable(self) -> ShownMessages:
        """The messages shown, in the form that the policy's stages take. A turn that is over is not protected."""
        items = self.items
        return structs.replace(items, protected=len(items.items)) if self.is_turn_over else items

    def show(self, items: Sequence[Item]) -> FoldedBranch:
        """The same branch with other messages shown.

        Signed reasoning is bound to everything before it, so it is removed, except that of the turn in
        progress, and except after a compaction that the provider made of the messages before it. System messages move to a place that the dialect allows, and a provider's own compaction
        to the front.
        """
        view = self.shown
        items = self._placed(_with_compaction_first(items, self._covered))
        if view.dialect.signed_thinking and not self._continues_native(items):
            items = without_reasoning(items, self.seq_at_work, view.counter)
        shown = view.with_messages([item.message for item in items], [item.tokens for item in items])
        edited = tuple([item.seq for item in items])
        folded = structs.replace(self, shown=shown, edited=edited, base=self.size)
        vars(folded)["items"] = ShownMessages(
            tuple(items), folded.active
        )  # the cached property, known already
        return folded

    def _continues_native(self, items: Sequence[Item]) -> bool:
        """True if the items are the originals that follow a compaction which the provider made on request."""
        if not self.lead.is_whole:
            return False
        return all(
            item.seq == number and self.is_original(item.message, number)
            for number, item in enumerate(items, self._covered)
        )

    def led_for(self, policy: Policy, fixed: FixedFields, room: int) -> FoldedBranch:
        """The same state with the summaries in the form that goes to the model of `fixed`: as a compaction of its own,
        or as text. `room` is that of older summaries.
        """
        if not any(one.native for one in self.summaries):
            return self
        lead = lead_of(
            self.summaries, policy, fixed.dialect, self.shown.counter, room, self.native_for(fixed)
        )
        if lead.is_native == self.lead.is_native:
            return self
        return structs.replace(self, lead=lead).show(self.items.items)

    def native_for(self, fixed: FixedFields) -> FixedFields:
        """`fixed` without its model if the shown messages hold a compaction already: a provider takes only one."""
        return structs.replace(fixed, model="") if self.shown.progress.compaction >= 0 else fixed

    def without_native(self, why: str) -> FoldedBranch:
        """The same state with summaries that have only their text, because the provider refuses its own compaction."""
        bare = tuple(
            structs.replace(one, native=None, why=why) if one.native else one for one in self.summaries
        )
        return structs.replace(self, summaries=bare)

    def _placed(self, items: Sequence[Item]) -> Sequence[Item]:
        """The items with system messages at places that the dialect allows."""
        view = self.shown
        if not view.dialect.system_follows_user:
            return items
        messages = [item.message for item in items]
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
        """Number of the first message that no summary covers."""
        return self.summaries[-1].last if self.summaries else 0

    @property
    def compacted(self) -> tuple[int, ...]:
        """Numbers of the message with the provider's newest compaction (original or as text) and of its calls' results."""
        items = self.items.items
        if self.made:
            span = compaction_span([self.made.get(item.seq, item.message) for item in items])
        else:
            span = self.shown.compaction_span
        return tuple(items[index].seq for index in span)

    def in_words(self, twins: Mapping[int, Message]) -> FoldedBranch:
        """Show the messages in `twins`, by number, instead of compactions that the provider cannot read, and
        all other compactions as originals.
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
        """Number of shown messages before the summaries: a provider's own compaction and the results of its calls."""
        return opening_span(self.shown.messages(0, 2)) if self.lead.messages else 0

    def with_gaps(self, summary: Summary) -> Summary:
        """A new summary, which names the messages that it does not cover: those of other sessions between what this session
        was begun with and its first message, and the gaps of the summaries before it.
        """
        carried = [item.seq + 1 for item in self.items.items if item.seq < self.origin]
        carried = [end for end in carried if end - 1 not in self.pinned]
        before = max((*carried, *(one.last for one in self.summaries)), default=summary.first)
        known = {(before, self.origin), *(gap for one in self.summaries for gap in one.gaps)}
        gaps = {(first, end) for first, end in known if summary.first <= first < end <= summary.last}
        return structs.replace(summary, gaps=tuple(sorted(gaps)))

    def lead_by(self, summaries: tuple[Summary, ...], lead: Lead) -> FoldedBranch:
        """The same messages after other summaries. The last summary is new and gets its number here. All
        originals are noted: the summary was written with their ledger.
        """
        number = self.numbered + len(self.past)
        new = tuple(structs.replace(summary, number=number) for summary in summaries[-1:])
        led = structs.replace(
            self,
            summaries=(*summaries[:-1], *new),
            past=(*self.past, *new),
            lead=lead,
            settled=self.size,
            noted=LedgerPrefix(self.ledger, self.size, is_answered=self.replies > 0),
        )
        if self.shown.progress.compaction < 0:
            return led
        items, covered = self.items.items, summaries[-1].last if summaries else 0
        return led if _with_compaction_first(items, covered) is items else led.show(items)

    def with_reason(self, why: str) -> FoldedBranch:
        """The same state, in which a note about removed messages says why no model wrote it."""
        newest = self.summaries[-1] if self.summaries else None
        if newest is None or newest.kind != "mechanical" or newest.why:
            return self
        told = structs.replace(newest, why=why)
        past = tuple(told if one is newest else one for one in self.past)
        return structs.replace(self, summaries=(*self.summaries[:-1], told), past=past)

    def settle(self) -> FoldedBranch:
        """Record that a compaction gained nothing, so that none is attempted until the branch grows."""
        return structs.replace(self, settled=self.size)

    @cached_property
    def tokens(self) -> int:
        """Tokens of summaries and messages."""
        return self.lead.tokens + self.shown.end.tokens_to


def _with_request(known: tuple[UserRequest, ...], new: UserRequest) -> tuple[UserRequest, ...]:
    """The task with one more user message.

    A message joins the task if it comes before the first reply. The first message typed by a person
    replaces one that a program wrote. A client's own summary joins it in any case, in place of an earlier one:
    it stands for all that was said before it.
    """
    if is_client_summary(new.message):
        others = [one for one in known if one.is_typed and not is_client_summary(one.message)]
        replies = known[0].replies if known else new.replies
        return (*others[: MAX_ASKED - 1], structs.replace(new, replies=replies))
    is_open = not known or (known[0].replies == new.replies and len(known) < MAX_ASKED)
    if not is_open and known[0].is_typed:
        return known
    new = structs.replace(new, is_typed=is_typed(new.message))
    if not known or (new.is_typed and not known[0].is_typed):
        return (new,)
    return (*known, new) if new.is_typed else known


def unread_by_model(summary: Summary, previous: Summary | None, folded: FoldedBranch, first: int) -> Summary:
    """A summary that no model wrote, with the text of the last model summary, and the number from which on no
    model has read the messages. `first` is the number of the first message shown until now.

    The number stays unknown in a resumed session, because other sessions lie between its messages. A summary
    of its own messages only is never merged into the next one.
    """
    if summary.scope == "own":
        return summary
    carried, read = (previous.model_text, previous.read_until) if previous else ("", folded.origin)
    is_one_range = (previous.last if previous else first) >= folded.origin
    return structs.replace(summary, carried=carried, model_read=read if is_one_range else -1)


def _with_compaction_first(items: Sequence[Item], covered: int) -> Sequence[Item]:
    """The items with the provider's newest compaction and its calls' results first, if a summary covers
    messages after it: a provider ignores everything before its own compaction, the summary included.
    """
    if not covered:
        return items
    span = compaction_span([item.message for item in items])
    if not span.start or items[span.start].seq >= covered:
        return items
    return [*items[span.start : span.stop], *items[: span.start], *items[span.stop :]]


# Repair of messages that arrived broken

_SET_RIGHT = ("starts_without_user", "too_many_breakpoints")
"""Violations that assembly solves: it inserts a bridge message, and leaves out the oldest breakpoints."""
_SET_RIGHT_FIRST = "system_without_user"
"""Solved by assembly for the first message after the summaries: a summary or a bridge stands before it."""
REASON = "the messages broke a rule of their format"
SIGNATURES_REFUSED = "the provider no longer takes the thoughts that it signed"


def violations_to_mend(folded: FoldedBranch) -> tuple[Violation, ...]:
    """The rules that the messages shown break, except those that assembling the window solves, and those that only
    some servers of the format have.
    """
    return tuple(
        found
        for found in folded.shown.violations()
        if found.rule not in _SET_RIGHT
        and (found.rule, found.index) != (_SET_RIGHT_FIRST, folded.opening)
        and is_refused(found, folded.shown.dialect)
    )


def is_broken(folded: FoldedBranch) -> bool:
    return bool(violations_to_mend(folded))


def forget_thoughts(folded: FoldedBranch) -> tuple[FoldedBranch, tuple[Edit, ...]]:
    """Remove all signed reasoning from the messages shown, because the provider says that it is no longer valid."""
    if not folded.shown.dialect.signed_thinking or not (folded.edited or folded.lead.tokens):
        return folded, ()  # every message is shown as it arrived, so Refold did not cause the error
    items = folded.items.items
    kept = without_reasoning(items, folded.size, folded.shown.counter)
    edits = tuple(
        Edit("mend", item.seq, item.tokens, left.tokens, SIGNATURES_REFUSED, handle_of(item.seq))
        for item, left in zip(items, kept, strict=True)
        if item is not left
    )
    return (folded.show(kept) if edits else folded), edits


def mend(folded: FoldedBranch, *, as_request: bool = False) -> tuple[FoldedBranch, tuple[Edit, ...]]:
    """Complete the calls and results of the messages shown. With `as_request`, calls without a result are removed too."""
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
