"""The state of a conversation: one frozen value, and what can be read from it.

A `State` holds everything about one branch that planning needs: the messages as they came and as they are shown, the limits that
providers stated, what their reports taught, and the window that was sent last. Actions (`refold.engine.actions`) return the next
state and never change one, so going back to an earlier state is keeping the earlier value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct, structs

from refold.core import extractive_summary
from refold.core.assemble import BRIDGE, assemble
from refold.core.budget import OutputRoom, check_room, input_limit, limit_of, output_room, tokens_of
from refold.core.cost import Prices, call_cost, growing_cost
from refold.core.digest.shorten import searchable
from refold.core.fold import Folded
from refold.core.measure import Calibration, Meter, count_fixed, estimate_window, holds
from refold.core.plan import Decision, Plan, SummaryRequest
from refold.core.plan_inputs import Frame, Now, lowered_output, room_of, size_of
from refold.core.policy import Policy
from refold.core.prompt_cache import breakpoint_edits
from refold.core.regex_safety import ambiguity
from refold.core.secrets.redact import texts_of, values_of
from refold.core.shown import Edit
from refold.core.triggers import pressure
from refold.core.view import View
from refold.model.budget import Budget, Tokens
from refold.model.errors import ConfigError
from refold.model.message import Message, user
from refold.model.overflow import Overflow
from refold.model.summary import Summary
from refold.model.tokens import Measurement, TokenCounter, Usage
from refold.model.trigger import Moment
from refold.model.window import Fixed, Window
from refold.ports.records import StoredMessage

# What a conversation keeps to itself: messages that are sensitive, and secrets that were found in
# it. A message is sensitive because it was marked when it was added, or because a pattern matches
# it. It stays in the branch, is sent to the conversation's own model and can be recalled by its
# handle. It is not indexed, leaves nothing in the ledger and is not taken for the task, so no
# digest, no search and no summary that is made from these holds it.


class Secrecy(Struct, frozen=True):
    """The secrets of one conversation."""

    patterns: tuple[re.Pattern[str], ...] = ()
    numbers: frozenset[int] = frozenset()
    """The sensitive messages."""
    holders: frozenset[int] = frozenset()
    """Messages in which secrets were found: not sensitive as a whole."""
    is_prompt_marked: bool = False
    known: frozenset[str] = frozenset()
    """The secrets of the first `searched` messages."""
    searched: int = 0
    found: dict[int, tuple[Message, frozenset[str]]] = {}
    """A cache of what was found in each message. Values of one conversation share it: a summary is written in another thread, and
    the result of a search is the same in both."""

    @classmethod
    def of(cls, patterns: Sequence[str] = ()) -> Secrecy:
        """
        Raises:
            ConfigError: a pattern is no regular expression.
        """
        return cls(tuple(map(_compiled, [patterns] if isinstance(patterns, str) else patterns)))

    def take(
        self, folded: Folded, message: Message, *, is_marked: bool, later: bool = False
    ) -> tuple[Secrecy, Folded]:
        """With one more original; a sensitive one is neither indexed nor put into the ledger, another one maybe `later`."""
        if not is_marked and not self.matches(message):
            return self, folded.take(message, later=later)
        return structs.replace(self, numbers=self.numbers | {folded.size}), folded.hold(message)

    def restored(self, numbers: Iterable[int], holders: Iterable[int], told: Iterable[Message]) -> Secrecy:
        """With what was marked and found before; `told` are the messages of the holders. The messages that are held are searched again."""
        known = frozenset[str]().union(*(values_of(searchable(one)) for one in told))
        return structs.replace(
            self, numbers=frozenset(numbers), holders=frozenset(holders), known=known, searched=0, found={}
        )

    def matches(self, message: Message) -> bool:
        """Does any of the patterns match anything in it?"""
        return bool(self.patterns) and any(
            pattern.search(text) for text in texts_of(message) for pattern in self.patterns
        )

    def covers(self, window: Window, first: int, last: int) -> bool:
        """Is anything sensitive in a window of the messages `first` up to, not including, `last`?"""
        is_among = any(first <= number < last for number in self.numbers)
        told = (*window.system, *window.summaries, *window.messages[: window.opening])
        return is_among or self.is_prompt_marked or any(map(self.matches, told))

    def search(self, folded: Folded) -> Secrecy:
        """With the secrets of all messages so far as `known`; each message is searched once."""
        first = max(self.searched, folded.origin)
        if first >= folded.size:
            return self
        originals = enumerate(folded.originals(first, folded.size), first)
        found = {number: values for number, message in originals if (values := self._values(number, message))}
        return structs.replace(
            self,
            known=self.known.union(*found.values()),
            holders=self.holders.union(found),
            searched=folded.size,
        )

    def _values(self, number: int, message: Message) -> frozenset[str]:
        searched = self.found.get(number)
        if searched is None or searched[0] is not message:
            searched = self.found[number] = message, values_of(searchable(message))
        return searched[1]


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except (re.error, TypeError) as error:
        # What `re` says quotes the pattern, which is as private as what it is to hide.
        position = getattr(error, "pos", None)
        told = "" if position is None else f" (at character {position + 1})"
        raise ConfigError(
            f"a pattern for sensitive messages is no regular expression{told}",
            hint=r"give texts such as r'(?i)\bsalary\b', and escape what is meant letter for letter with re.escape",
        ) from None
    if ambiguity(compiled):
        raise ConfigError(
            "a pattern for sensitive messages could take for ever on some text",
            hint="it can read one text in several ways: write .{0,200} for .*, and no repetition inside of another",
        )
    return compiled


Place: TypeAlias = tuple[tuple[int, int], ...]
"""The summaries that are shown, each by the message it ends before and its number. What is written for one place is of no use at
another."""
Summarise: TypeAlias = Callable[[SummaryRequest, Folded, Frame], Summary | None]
"""Writes the summary that a plan asks for without waiting, or gives up with None: then the policy's `on_failure` decides."""

RECOVERY_MARGIN = 0.95
"""A learnt limit is the provider's count; ours differs from it by a few percent."""
BLIND_RECOVERY = 0.7
"""How much of the last window to try next where the provider stated no limit."""
MOST_SINCE = 16
"""Messages after which the fill level is stored anew: so many are read to tell how full a conversation is."""


class Receipt(Struct, frozen=True):
    """One automatic change to what is shown, and its reason."""

    decision: Decision
    reason: str
    before: int
    """Tokens of the messages and summaries before and after."""
    after: int
    edits: tuple[Edit, ...] = ()
    summary: Summary | None = None


class Change(Struct, frozen=True):
    """What was shown before and after an action. A change with `raw` messages shortened them as they arrived."""

    before: Folded
    after: Folded
    receipt: Receipt
    raw: int = 0


class Sent(Struct, frozen=True):
    """What is stored with a call, so that the window that left with it can be put together again."""

    size: int = 0
    """How many messages there were."""
    change: str = ""
    """The id of the change in effect; empty where everything was shown as it came."""
    only: bytes = b""
    """What was shown, where it was for this call only."""
    marks: tuple[Edit, ...] = ()
    """The cache breakpoints that were set."""
    raw: tuple[int, ...] = ()
    """Messages since the change that were shown as they came though they were shortened when they did."""


class Bill(Struct, frozen=True):
    """What the calls of a conversation cost in dollars, and what they would have cost without any compaction.

    Both are 0 where the prices of the model are not known. The second is a lower bound: it assumes a cache that never misses, and a
    window that overflows would not have been answered at all.
    """

    spent: float = 0.0
    without: float = 0.0
    """What the same calls would have cost had nothing been left out."""
    whole: int = 0
    """What the last call would have sent then, in the provider's tokens."""

    @property
    def saved(self) -> float:
        return self.without - self.spent

    def add(self, usage: Usage, prices: Prices | None, *, sent: int, whole: int) -> Bill:
        """One more call, which sent `sent` of the `whole` tokens there were, as we count."""
        if prices is None:
            return self
        everything = round(whole * usage.context / max(1, sent))
        without = growing_cost(self.whole, everything, usage.output, prices)
        return Bill(self.spent + call_cost(usage, prices), self.without + without, everything)


class Limits(Struct, frozen=True):
    """What refusals have taught about how much a provider takes, in our own tokens.

    A limit that the provider stated is a fact once a smaller window was answered. A refusal without a number says only that this
    much was too much: it holds for one turn.
    """

    attempts: int = 0
    """How often the call at hand was refused as too long."""
    stated: int | None = None
    """The limit that the provider stated."""
    output: int | None = None
    """The output that the call at hand is lowered to after a refusal."""
    for_turn: int | None = None
    tried: int | None = None
    """What the call at hand is shrunk to."""
    known_window: int | None = None
    stated_window: int | None = None
    """The window as a provider stated it when it refused input and output together: of earlier calls, and of the call at hand."""
    learnt: int | None = None
    """What the answer to the call at hand will prove."""
    is_stated: bool = False
    is_counted: bool = True
    """Could all of the refused prompt be counted here?"""
    is_of_model: bool = True
    """Is `stated` a limit of the model? Otherwise it is one of this conversation alone, see `refuse`."""

    @property
    def limit(self) -> int | None:
        known = (limit for limit in (self.stated, self.for_turn, self.tried) if limit is not None)
        return min(known, default=None)

    @property
    def window(self) -> int | None:
        """The window that a provider stated, as it counts."""
        return self.stated_window or self.known_window

    def refuse(
        self,
        found: Overflow,
        *,
        sent: int,
        ratio: float,
        max_output: int,
        lowered: int | None = None,
        is_counted: bool = True,
    ) -> Limits:
        """After a window of `sent` of our tokens was refused; `ratio` of the provider's make one of them. The next window is smaller,
        and asks for `lowered` output where given.

        Where not `is_counted`, the prompt also holds tokens that only the provider can count. They stay whatever else is taken away,
        so they are taken off the limit, and that limit is no other conversation's.
        """
        output = found.output or max_output
        counted = found.prompt or (found.requested - output if found.requested else 0)
        extra = 0 if is_counted else max(0, counted - int(sent * ratio))
        ratio = max(ratio, counted / sent) if sent and is_counted else ratio
        is_window = found.limit is not None and found.limit_of == "window"
        output = output if lowered is None else lowered
        room = int(((found.limit or 0) - output - extra) * RECOVERY_MARGIN / ratio) if is_window else 0
        is_stated = 0 < room < sent
        return structs.replace(
            self._with_window(found),
            attempts=self.attempts + 1,
            output=lowered,
            is_stated=is_stated,
            is_counted=is_counted,
            learnt=room if is_stated else int(sent * RECOVERY_MARGIN),
            tried=room if is_stated else int(sent * BLIND_RECOVERY),
        )

    def lower_output(self, found: Overflow, output: int, *, sent: int) -> Limits:
        """After input and output together were refused: the same window is tried with less output."""
        known = self._with_window(found)
        return structs.replace(known, attempts=self.attempts + 1, output=output, tried=sent, learnt=None)

    def _with_window(self, found: Overflow) -> Limits:
        if found.kind == "input_plus_output" and found.limit_of == "window":
            return structs.replace(self, stated_window=found.limit)
        return self

    def give_up(self) -> Limits:
        """Nothing smaller could be sent: what was tried says nothing."""
        return structs.replace(self, tried=None, output=None, stated_window=None)

    def answer(self) -> Limits:
        """A reply came: the next call has all its attempts, and what was tried is proven."""
        is_proven = self.tried is not None and self.learnt is not None
        is_stated = is_proven and self.is_stated
        return structs.replace(
            self,
            attempts=0,
            output=None,
            tried=None,
            stated_window=None,
            known_window=self.window,
            stated=self.learnt if is_stated else self.stated,
            is_of_model=self.is_counted if is_stated else self.is_of_model,
            for_turn=self.learnt if is_proven and not is_stated else self.for_turn,
        )

    def begin_turn(self) -> Limits:
        """The user speaks: a limit that no provider stated is forgotten."""
        return structs.replace(self, for_turn=None) if self.for_turn is not None else self


class FillLevel(Struct, frozen=True):
    """How full a context is, by the window and the policy of the program that wrote last."""

    tokens: int = 0
    """What the next request would have, instructions included, as we count."""
    limit: int = 0
    """What it may have; 0 where nothing was noted."""
    reason: str = ""
    """Why it has to be compacted; empty where it has not."""
    size: int = -1
    """With how many messages; below 0 where that is not known."""

    @property
    def ratio(self) -> float:
        return self.tokens / self.limit if self.limit else 0.0

    def after(self, messages: Sequence[StoredMessage]) -> FillLevel:
        """With messages that followed, and that changed nothing else."""
        if self.size < 0:
            return self
        tokens = self.tokens + sum(message.tokens for message in messages)
        return structs.replace(self, tokens=tokens, size=self.size + len(messages))


class State(Struct, frozen=True, kw_only=True):
    """One branch of a conversation, as planning sees it."""

    frame: Frame
    """System prompt, tools, budget, policy and prices."""
    folded: Folded
    """The messages as they came, and as they are shown."""
    sent: Folded
    """What the last window was made of."""
    window: Window | None = None
    """The window that was made last; None where none was."""
    secrecy: Secrecy = Secrecy()
    meter: Meter = Meter()
    calibration: Calibration = Calibration()
    bill: Bill = Bill()
    limits: Limits = Limits()
    receipts: tuple[Receipt, ...] = ()
    """Every automatic change that this program made."""
    flag: str = ""
    """Why an earlier moment asked for a compaction at the next call."""
    in_vain: int = 0
    """How many compactions in a row gained nothing."""
    twins: Mapping[int, Message] = {}
    """What to show instead of compactions that another provider or model made, by their numbers."""
    prepared: Summary | None = None
    """A summary that was written ahead of time, for the moment at which the window is full."""
    has_failed: bool = False
    """Could no summary be written for what is shown now?"""
    looks_ahead: bool = False
    """Is a summary to be asked for before it is needed?"""
    summarise: Summarise = extractive_summary.summarise
    """Stands in where no summary is prepared."""

    @classmethod
    def begin(
        cls,
        fixed: Fixed,
        budget: Budget,
        policy: Policy,
        counter: TokenCounter,
        *,
        prices: Prices | None = None,
        secrecy: Secrecy | None = None,
        summarise: Summarise = extractive_summary.summarise,
    ) -> State:
        """A conversation in which nothing was said yet.

        Raises:
            BudgetError: instructions and reserve leave no room for a conversation.
        """
        empty = Folded.of(View(fixed.dialect, counter))
        frame = frame_for(fixed, budget, policy, counter, prices)
        return cls(frame=frame, folded=empty, sent=empty, secrecy=secrecy or Secrecy(), summarise=summarise)

    @property
    def size(self) -> int:
        """How many messages the branch has."""
        return self.folded.size

    @property
    def counter(self) -> TokenCounter:
        return self.folded.shown.counter

    @property
    def place(self) -> Place:
        return tuple((one.last, one.number) for one in self.folded.summaries)

    @property
    def text_size(self) -> int:
        """How much text an action may read, in characters: the originals that are held, what is shown of them, the system prompt."""
        held = max(self.folded.branch.characters, self.folded.shown.characters)
        return held + sum(one.characters for one in self.frame.fixed.system)

    @property
    def ratio(self) -> float:
        """How many of the provider's tokens one of ours is, where the policy learns that."""
        is_learnt = self.frame.policy.measure in ("hybrid", "calibrated")
        return self.calibration.ratio if is_learnt else 1.0

    @property
    def output(self) -> int:
        """The output to ask for with the last window: less than was asked for where it had to be lowered."""
        lowered = self.window.output if self.window else None
        return self.frame.budget.max_output if lowered is None else lowered

    @property
    def room(self) -> OutputRoom:
        """What instructions and output leave for messages."""
        return room_of(self.frame, self.now("before_call"))

    @property
    def tight_room(self) -> OutputRoom | None:
        """What is left for messages, where that is less than a quarter of the window."""
        room = self.room
        return room if room.is_tight and self.frame.policy.enabled else None

    @property
    def limit(self) -> int:
        """The most that a request may have: by the budget, and by what the provider has stated."""
        allowed = input_limit(self.frame.budget, lowered_output(self.frame, self._next_call))
        return allowed if self.limits.stated is None else min(allowed, self.limits.stated)

    @property
    def fill_level(self) -> FillLevel:
        """By totals alone: it is asked for with every message."""
        tokens = self.frame.instructions + self.folded.tokens
        return FillLevel(tokens, self.limit, self.pressure, self.folded.size)

    @property
    def pressure(self) -> str:
        """Why the context has to be compacted, at any moment that the policy looks at; empty where it has not."""
        moments: dict[Moment, None] = dict.fromkeys((*self.frame.policy.triggers, "before_call"))
        reasons = (pressure(self.folded, self.frame, self.now(moment)) for moment in moments)
        return next(filter(None, reasons), "")

    @property
    def measurement(self) -> Measurement:
        """The size of the window, region by region."""
        return self.measured(self.folded)

    @property
    def window_edits(self) -> tuple[Edit, ...]:
        """The cache breakpoints of the last window, and the output that was lowered for it: edits that are made anew with every call."""
        if self.window is None:
            return ()
        marks = breakpoint_edits(self.window, self.sent)
        if self.window.output is None or not self.frame.budget.is_output_stated:
            return tuple(marks)
        return (*marks, self.room.edit(self.window.output))

    @property
    def is_sent_as_shown(self) -> bool:
        """Was the last window made of what is shown from now on, and not of something that was for one call only?"""
        sent, shown = self.sent, self.folded
        return sent.shown is shown.shown and sent.lead is shown.lead and not sent.made

    def measured(self, folded: Folded) -> Measurement:
        """The size of the window if this were shown, region by region."""
        return Plan(self.frame, self._next_call, folded, folded, "keep", "").measurement

    def now(self, moment: Moment, keep: int | None = None, cut: int | None = None) -> Now:
        """A moment as a plan takes it; `keep` and `cut` are what somebody asked for."""
        ratio, size, counted = self.ratio, self._size_at(moment), size_of(self.folded, self.frame)
        if self.frame.policy.measure == "hybrid" and counted > 0:
            # After a fold the last report is of another window, but of the same instructions, counted in the same way.
            ratio = max(ratio, self.meter.ratio if size is None else size / counted)
        return Now(
            moment,
            size,
            limit=self.limits.limit,
            window=self.limits.window,
            output=self.limits.output,
            ratio=ratio,
            flag=self.flag if moment == "before_call" else "",
            in_vain=self.in_vain,
            keep=keep,
            cut=cut,
        )

    def with_frame(self, fixed: Fixed, budget: Budget | None = None, policy: Policy | None = None) -> State:
        """The conversation with another system prompt or other tools, budget or policy; the format stays.

        Raises:
            BudgetError: they leave no room for a conversation.
        """
        old = self.frame
        frame = frame_for(fixed, budget or old.budget, policy or old.policy, self.counter, old.prices)
        return structs.replace(self, frame=frame)

    def showing(self, folded: Folded) -> State:
        """The conversation with a branch that was read from a store; no window was made of it."""
        return structs.replace(self, folded=folded, sent=folded, window=None, prepared=None)

    @property
    def _next_call(self) -> Now:
        return Now("before_call", window=self.limits.window, ratio=self.ratio)

    def _size_at(self, moment: Moment) -> int | None:
        """The context as the policy measures it; None where that is our own count."""
        last, shown, policy = self.meter.anchor, self.folded.shown, self.frame.policy
        if policy.measure == "characters" and moment in policy.triggers:
            return estimate_window(assemble(self.frame.fixed, shown.messages(), self.folded.lead))
        if last is None or policy.measure not in ("hybrid", "reported") or not holds(last, shown):
            return None
        if policy.measure == "reported":
            return last.prompt
        since = shown.tokens_between(last.messages, len(shown)).tokens
        return last.prompt + round(since * self.ratio)


def frame_for(
    fixed: Fixed, budget: Budget, policy: Policy, counter: TokenCounter, prices: Prices | None
) -> Frame:
    """
    Raises:
        BudgetError: instructions and reserve leave no room for a conversation.
    """
    cost = count_fixed(fixed, counter)
    budget = _with_less_reserve(budget, cost.total.tokens, lowers=policy.enabled)
    if tokens_of(policy.reserve, budget) > tokens_of(budget.reserve, budget):
        budget = structs.replace(budget, reserve=policy.reserve)
    check_room(budget, instructions=cost.total.tokens, lowers=policy.enabled)
    return Frame(fixed, cost, budget, policy, prices, counter.message(user(BRIDGE)))


def _with_less_reserve(budget: Budget, instructions: int, *, lowers: bool) -> Budget:
    """The budget with half of what instructions and output leave as its reserve, where it would be more: messages need room, too."""
    output = output_room(budget, instructions).lowered if lowers else budget.max_output
    most = max(0, limit_of(budget) - output - instructions) // 2
    return (
        structs.replace(budget, reserve=Tokens(most)) if tokens_of(budget.reserve, budget) > most else budget
    )
