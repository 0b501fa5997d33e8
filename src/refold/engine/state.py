"""The state of a conversation: one frozen value, and the figures that are read from it.

A `State` holds everything about one branch that planning needs: the messages as they came and as they are
shown, the limits that providers stated, the calibration from their usage reports, and the last window.
Actions (`refold.engine.actions`) return the next state and never change one, so a rollback is to keep the
earlier value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from math import ceil
from typing import Literal, TypeAlias

from msgspec import Struct, field, structs

from refold.core.assemble import BRIDGE, assemble
from refold.core.budget import (
    NO_SEQ,
    STATED_SOURCES,
    Frame,
    Now,
    OutputRoom,
    arithmetic,
    check_room,
    output_room,
    room_of,
    size_of,
    wall_of,
    with_window,
)
from refold.core.digest.facts import PORTION
from refold.core.digest.shorten import searchable
from refold.core.fold import FoldedBranch
from refold.core.measure import (
    Calibration,
    FixedCost,
    Meter,
    count_fixed,
    estimate_window,
    holds,
    observed_instructions,
)
from refold.core.plan import Decision, Plan, SummaryRequest
from refold.core.policy import Moment, Policy
from refold.core.prompt_cache import breakpoint_edits
from refold.core.regex_safety import ambiguity
from refold.core.secrets import texts_of, values_of
from refold.core.stage import Edit
from refold.core.triggers import TopicTrack, fold_point, pressure
from refold.core.view import View
from refold.model.errors import MAX_TOKENS, MIN_WINDOW, ConfigError, Overflow
from refold.model.message import Message, holds_sealed, user
from refold.model.summary import Author, Summary
from refold.model.tokens import (
    Budget,
    Measurement,
    Prices,
    TokenCounter,
    Tokens,
    Usage,
    WindowSource,
    call_cost,
    growing_cost,
    tokens_of,
)
from refold.model.window import FixedFields, Window
from refold.ports.records import StoredMessage

# Authors of summaries, and the reasons for which a configured model did not write one

NO_SUMMARISER = "no summariser is configured"
STILL_WRITING = "the model is still writing"
RECOVERY = "recovery from an overflow asks no model"
TOO_LITTLE = "the model was not asked: too little text leaves for a summary"
NO_ROOM = "the window was full, and the policy asks no model then"
UNUSABLE = "the model's summary could not be used"
MODEL_FAILED = "the model failed"
OUT_OF_MONEY = "max_spend is reached"
READY = "model summary ready"
AS_TEXT = "as text, because another model or upstream is asked"
SEALED = "only the model that made the provider's compaction can read it"
WROTE_NONE = "the model wrote none"


class SummaryAuthor(Struct, frozen=True):
    """The author of the text that stands for messages which left the window."""

    author: Author = ""
    model: str = ""
    """The model that wrote it, if known."""
    why: str = ""
    """Why no model wrote it, or why a model wrote it although the provider was to compact; otherwise empty."""

    @classmethod
    def of(cls, summary: Summary) -> SummaryAuthor:
        return cls(summary.author, summary.model, summary.why)

    @property
    def text(self) -> str:
        """The author in a line, such as `model gpt-4o-mini` or `digest; the model is still writing`."""
        named = f"{self.author} {self.model}".rstrip() if self.author in ("model", "native") else self.author
        return f"{named}; {self.why}" if self.why else named


def author_of(shown: FoldedBranch, *, has_late: bool = False, is_writing: bool = False) -> SummaryAuthor:
    """Return the author of the summary that a window shows. `has_late` says that a model's summary of the
    same messages is ready, `is_writing` that a model writes one.
    """
    if not shown.summaries:
        if shown.lead.tokens:
            return SummaryAuthor("mechanical", why=NO_ROOM)
        if shown.made:  # the client's own compactions, shown as text to another model
            is_sealed = any(map(holds_sealed, shown.made.values()))
            return SummaryAuthor("digest", why=SEALED) if is_sealed else SummaryAuthor("native", why=AS_TEXT)
        return SummaryAuthor("native" if shown.shown.progress.compaction >= 0 else "")
    newest = shown.summaries[-1]
    found = SummaryAuthor.of(newest)
    if newest.native is not None and not shown.lead.is_native:
        found = (
            SummaryAuthor("digest", why=SEALED) if newest.is_digest else structs.replace(found, why=AS_TEXT)
        )
    if has_late:
        return structs.replace(found, why=READY)
    if found.why == STILL_WRITING and not is_writing:
        return structs.replace(found, why=WROTE_NONE)
    return found


# Sensitive messages and secrets
#
# A message is sensitive because it was marked when it was added, or because a pattern matches it.
# It stays in the branch, is sent to the conversation's own model and can be recalled by its
# handle. It is not indexed, leaves nothing in the ledger and is not taken for the task, so no
# digest, search result or summary made from these contains it.


class Secrecy(Struct, frozen=True):
    """The sensitive messages of one conversation, and the secrets that were found in it."""

    patterns: tuple[re.Pattern[str], ...] = ()
    """Messages that one of these matches are sensitive."""
    numbers: frozenset[int] = frozenset()
    """The numbers of the sensitive messages."""
    holders: frozenset[int] = frozenset()
    """The numbers of messages in which secrets were found. They are not sensitive as a whole."""
    is_prompt_marked: bool = False
    """Whether the system prompt was marked as sensitive."""
    known: frozenset[str] = frozenset()
    """The secrets of the first `searched` messages."""
    searched: int = 0
    found: dict[int, tuple[Message, frozenset[str]]] = {}
    """Cache: the secrets of each message. All values of one conversation share it, across threads too: two
    threads that search the same message store the same result."""
    ahead: int = 0
    """The number of the next message that is searched as messages arrive, so that a compaction finds the
    secrets of all earlier ones in the cache."""

    @classmethod
    def of(cls, patterns: Sequence[str] = ()) -> Secrecy:
        """Compile the patterns; a single string is one pattern.

        Raises:
            ConfigError: a pattern is not a regular expression, or could take exponential time.
        """
        return cls(tuple(map(_compile, [patterns] if isinstance(patterns, str) else patterns)))

    def take(
        self, folded: FoldedBranch, message: Message, *, is_marked: bool, later: bool = False
    ) -> tuple[Secrecy, FoldedBranch]:
        """Return both values with one more message. A sensitive message is neither indexed nor put into the
        ledger; another one is indexed now, or lazily with `later`. What is indexed now is searched now.
        """
        if is_marked or self.matches(message):
            return structs.replace(self, numbers=self.numbers | {folded.size}), folded.hold(message)
        taken = folded.take(message, later=later)
        return self if later else self._search_ahead(taken), taken

    def restored(
        self, numbers: Iterable[int], holders: Iterable[int], messages: Iterable[Message]
    ) -> Secrecy:
        """Return the secrecy that a store has: the stored numbers, and the secrets of the holders, which are
        found again here in their `messages`. The next `search` reads the messages in memory again.
        """
        known = frozenset[str]().union(*(values_of(searchable(one)) for one in messages))
        return structs.replace(
            self,
            numbers=frozenset(numbers),
            holders=frozenset(holders),
            known=known,
            searched=0,
            found={},
            ahead=0,
        )

    def matches(self, message: Message) -> bool:
        """Whether a pattern matches any text of the message."""
        return bool(self.patterns) and any(
            pattern.search(text) for text in texts_of(message) for pattern in self.patterns
        )

    def covers(self, window: Window, first: int, last: int) -> bool:
        """Whether a window of the messages `first` up to, not including, `last` holds anything sensitive."""
        is_among = any(first <= number < last for number in self.numbers)
        unnumbered = (*window.system, *window.summaries, *window.messages[: window.opening])
        return is_among or self.is_prompt_marked or any(map(self.matches, unnumbered))

    def search(self, folded: FoldedBranch) -> Secrecy:
        """Return the secrecy with the secrets of all messages so far as `known`; each message is searched
        once.
        """
        first = max(self.searched, folded.origin)
        if first >= folded.size:
            return self
        cached, found = self.found.get, dict[int, frozenset[str]]()
        for number, message in enumerate(folded.originals(first, folded.size), first):
            searched = cached(number)
            values = searched[1] if searched and searched[0] is message else self._values(number, message)
            if values:
                found[number] = values
        return structs.replace(
            self,
            known=self.known.union(*found.values()),
            holders=self.holders.union(found),
            searched=folded.size,
        )

    def queued_characters(self, folded: FoldedBranch) -> int:
        """Characters of the earlier message that is searched with the next arrival."""
        number = max(self.ahead, folded.origin)
        return folded.original(number).message.characters if number < folded.size else 0

    def _search_ahead(self, folded: FoldedBranch) -> Secrecy:
        """Search as many messages as are indexed with an arrival. Only the cache gets the result: `known` and
        `holders` change with `search`.
        """
        first = max(self.ahead, self.searched, folded.origin)
        last = min(first + PORTION, folded.size)
        for number in range(first, last):
            self._values(number, folded.original(number).message)
        return structs.replace(self, ahead=last)

    def _values(self, number: int, message: Message) -> frozenset[str]:
        searched = self.found.get(number)
        if searched is None or searched[0] is not message:
            searched = self.found[number] = message, values_of(searchable(message))
        return searched[1]


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except (re.error, TypeError) as error:
        # The text of `re.error` quotes the pattern, which is as private as the words it is to hide.
        position = getattr(error, "pos", None)
        place = "" if position is None else f" (at character {position + 1})"
        raise ConfigError(
            f"a pattern for sensitive messages is no regular expression{place}",
            hint=r"give texts such as r'(?i)\bsalary\b', and escape literal text with re.escape",
        ) from None
    if ambiguity(compiled):
        raise ConfigError(
            "a pattern for sensitive messages could take for ever on some text",
            hint="it can read one text in several ways: write .{0,200} for .*, and no repetition inside of another",
        )
    return compiled


# Changes, calls and limits

SummaryPlace: TypeAlias = tuple[int, ...]
"""Identifies the messages that the shown summaries cover: for each, the number of the message it ends before. A
summary that was prepared for one place cannot be used at another."""
Summarise: TypeAlias = Callable[[SummaryRequest, FoldedBranch, Frame], Summary | None]
"""Writes the summary that a plan asks for without waiting. None means that it cannot: then the policy's
`on_failure` decides."""

READ_AHEAD_PARTS = 3
"""Messages are indexed as they arrive from this part of the limit on."""
RECOVERY_MARGIN = 0.95
"""A learnt limit is in the provider's tokens; our count differs from it by a few percent."""
BLIND_RECOVERY = 0.7
"""The share of the last window to try next if the provider stated no limit."""
IN_TURN = "in_turn"
"""The stage of the edit for a window in which user and assistant take turns."""
NEAR_LIMIT, ESTIMATED_PART = 0.9, 0.1
"""Shares of the limit: from the first on, a request is very large; from the second on, the part of it that no provider
has counted yet is worth a round trip."""
MOST_SINCE = 16
"""Messages after which the fill level is stored anew. Listing a conversation reads at most so many messages
to tell how full it is."""


class Receipt(Struct, frozen=True):
    """One automatic change to the shown messages, and its reason."""

    decision: Decision | Literal["undo"]
    reason: str
    before: int
    """Tokens of the messages and summaries before the change; `after` is the same after it."""
    after: int
    edits: tuple[Edit, ...] = ()
    summary: Summary | None = None
    author: Author = ""
    """The author of the text that stands for messages which left; empty if none left."""
    why: str = ""
    """Why no model wrote that text; empty if one did."""
    is_for_call: bool = False
    """Whether the change holds for one call only: it is not stored, and cannot be undone."""


class Change(Struct, frozen=True):
    """The shown messages before and after an action. `raw` is the number of messages that were shortened as
    they arrived.
    """

    before: FoldedBranch
    after: FoldedBranch
    receipt: Receipt
    raw: int = 0
    moment: str = ""
    """When it was made: a `Moment`; empty for one as a message arrived."""


class CallSize(Struct, frozen=True, array_like=True):
    """The size of a call's window, region by region and in our count, and the sizes at which the policy would have acted."""

    system: int = 0
    tools: int = 0
    summary: int = 0
    history: int = 0
    tool_results: int = 0
    tail: int = 0
    input: int = 0
    reserve: int = 0
    """Room for the reply and the policy's own reserve."""
    fold: int = 0
    """The fold point, in the provider's tokens as far as its reports told."""
    wall: int = 0
    """The largest request allowed, in the provider's tokens."""

    @property
    def content(self) -> int:
        """Everything that was sent."""
        return (
            self.system
            + self.tools
            + self.summary
            + self.history
            + self.tool_results
            + self.tail
            + self.input
        )


class SentWindow(Struct, frozen=True):
    """The data that is stored with a call, from which its window can be rebuilt."""

    size: int = 0
    """Messages in the branch when the window was made."""
    change: str = ""
    """The id of the change in effect; empty if every message was shown as it came."""
    only: bytes = b""
    """A snapshot of the shown messages, if they were shown like this for one call only."""
    marks: tuple[Edit, ...] = ()
    """The cache breakpoints that were set."""
    raw: tuple[int, ...] = ()
    """Messages since the change that were shown as they came, although they were shortened on arrival."""
    window: int = 0
    """The window of the request in tokens; 0 if it is not known."""
    sizes: CallSize | None = None
    """None in rows of earlier versions, and for a request that was sent without a window of ours."""
    instructions: bytes | None = None
    """The hash of the system prompt and the tools, by which the store has them; empty if there were none. None in rows of
    earlier versions, and if no content is stored."""


class Bill(Struct, frozen=True):
    """The cost of a conversation's calls in dollars, and their cost without any compaction.

    Both are 0 if the prices of the model are not known. A call that sent everything costs the same in both. For the others
    the second is a lower bound: it assumes a cache that never misses, and a window that overflows would not have been
    answered at all.
    """

    spent: float = 0.0
    without: float = 0.0
    """The cost of the same calls if nothing had been left out."""
    whole: int = 0
    """The size of the last call in that case, in the provider's tokens."""

    @property
    def saved(self) -> float:
        return self.without - self.spent

    def add(self, usage: Usage, prices: Prices | None, *, sent: int, whole: int) -> Bill:
        """Return the bill with one more call, which sent `sent` of `whole` tokens by our count."""
        if prices is None:
            return self
        everything, spent = round(whole * usage.context / max(1, sent)), call_cost(usage, prices)
        is_whole = whole <= sent  # then the call is the same without any compaction, cache misses included
        without = spent if is_whole else growing_cost(self.whole, everything, usage.output, prices)
        return Bill(self.spent + spent, self.without + without, everything)


class Limits(Struct, frozen=True):
    """The limits that a provider's refusals have taught.

    A window that the provider stated is taken as a fact once a smaller request was answered. A refusal without
    a number says only that this request was too large: the limit taken from it holds for one turn.
    """

    attempts: int = 0
    """How many times the current call was refused as too long."""
    learned: int | None = None
    """The model's window, in the provider's tokens, by an earlier refusal of this or another conversation."""
    stated_window: int | None = None
    """The window that the provider stated in a refusal of the current call."""
    output: int | None = None
    """The output that the current call is lowered to after a refusal."""
    own: int | None = None
    """The input limit of this conversation alone, in our tokens: its prompt also holds tokens that only the
    provider can count, see `refuse`."""
    for_turn: int | None = None
    """The input limit of this turn, in our tokens."""
    tried: int | None = None
    """The size that the current call is shrunk to, in our tokens."""
    proven: int | None = None
    """The input limit that is proven if the current call is answered."""
    is_stated: bool = False
    """Whether `proven` comes from a number in the refusal."""
    is_counted: bool = True
    """Whether all of the refused prompt could be counted here."""
    ignored: int | None = None
    """A window that a refusal stated although no model has it; it is not used."""

    @property
    def limit(self) -> int | None:
        if self.own is self.for_turn is self.tried is None:
            return None
        return min(limit for limit in (self.own, self.for_turn, self.tried) if limit is not None)

    def budget(self, given: Budget) -> Budget:
        """Return the budget that holds now. In the current call the stated window holds in any case; later
        ones keep a window that the user or the upstream has stated.
        """
        if self.stated_window is not None:
            return with_window(given, min(self.stated_window, given.window))
        if self.learned is None or given.source in STATED_SOURCES:
            return given
        return with_window(given, self.learned)

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
        """Return the limits after a request of `sent` of our tokens was refused. `ratio` is provider tokens
        per token of ours. The next request is smaller, and asks for `lowered` output if that is given.

        If not `is_counted`, the prompt also holds tokens that only the provider can count. No reduction
        removes them, so they are subtracted from the limit, and the limit is not shared with other
        conversations.
        """
        output = found.output or max_output
        counted = found.prompt or (found.requested - output if found.requested else 0)
        extra = 0 if is_counted else max(0, counted - int(sent * ratio))
        ratio = max(ratio, counted / sent) if sent and is_counted else ratio
        known = self._with_window(found)
        window = known.stated_window or 0
        output = output if lowered is None else lowered
        room = int((window - output - extra) * RECOVERY_MARGIN / ratio)
        is_stated = 0 < room < sent
        return structs.replace(
            known,
            attempts=self.attempts + 1,
            output=lowered,
            is_stated=is_stated,
            is_counted=is_counted,
            proven=room if is_stated else int(sent * RECOVERY_MARGIN),
            tried=room if is_stated else int(sent * BLIND_RECOVERY),
        )

    def lower_output(self, found: Overflow, output: int, *, sent: int, is_counted: bool) -> Limits:
        """Return the limits after input and output together were refused: the same messages are tried with
        less output.
        """
        return structs.replace(
            self._with_window(found),
            attempts=self.attempts + 1,
            output=output,
            tried=sent,
            proven=None,
            is_counted=is_counted,
        )

    def ignore(self, found: Overflow) -> tuple[Limits, Overflow]:
        """Return the limits and the refusal without a stated window that no model has."""
        if found.limit is None or found.limit_of != "window" or MIN_WINDOW <= found.limit <= MAX_TOKENS:
            return self, found
        return structs.replace(self, ignored=found.limit), structs.replace(found, limit=None)

    def _with_window(self, found: Overflow) -> Limits:
        is_window = found.limit is not None and found.limit_of == "window"
        return structs.replace(self, stated_window=found.limit) if is_window else self

    def give_up(self) -> Limits:
        """Return the limits after no smaller request could be sent: the attempts proved nothing."""
        return structs.replace(self, tried=None, output=None, stated_window=None)

    def answer(self) -> Limits:
        """Return the limits after a reply: the next call has all its attempts again, and the limit that was
        tried is proven.
        """
        if not self.attempts:
            return self  # nothing was refused, so nothing was tried
        is_proven = self.tried is not None and self.proven is not None
        is_own = is_proven and self.is_stated and not self.is_counted
        is_models = self.stated_window is not None and self.is_counted
        return structs.replace(
            self,
            attempts=0,
            output=None,
            tried=None,
            stated_window=None,
            learned=self.stated_window if is_models else self.learned,
            own=self.proven if is_own else self.own,
            for_turn=self.proven if is_proven and not is_own else self.for_turn,
        )

    def observe(self, usage: Usage) -> Limits:
        """Return the limits after a provider's report: a window that an answered request exceeds is wrong."""
        is_wrong = self.learned is not None and usage.context + usage.output > self.learned
        return structs.replace(self, learned=None) if is_wrong else self

    def begin_turn(self) -> Limits:
        """Return the limits at the start of a user's turn: the limit of the last turn is dropped."""
        return structs.replace(self, for_turn=None) if self.for_turn is not None else self


class FillLevel(Struct, frozen=True):
    """How full a context is, by the window and the policy of the program that wrote last."""

    counted: int = field(default=0, name="tokens")
    """The size of the next request by our count, instructions included."""
    limit: int = 0
    """The size that it may have; 0 if no level was stored."""
    reason: str = ""
    """Why it has to be compacted; empty if it does not."""
    size: int = -1
    """Messages in the branch at this level; below 0 if not known."""
    summary: str = ""
    """The author of the summary in the window, see `SummaryAuthor.text`."""
    window: int = 0
    window_source: WindowSource | Literal[""] = ""
    """The size of the window, and the source of that figure; empty if no level was stored."""
    arithmetic: str = ""
    """How the limit follows from the window."""
    scale: float = 1.0
    offset: float = 0.0
    """See `State.measure`."""
    output: int = 0
    """The room for a reply that the last request asked for; 0 if it is the usual one."""
    cap: int = 0
    """The limit of the settings, see `Budget.limit`."""

    @property
    def tokens(self) -> int:
        """The size of the next request: the provider's last report of it, and an estimate of the messages
        since. Without a report, our count.
        """
        return round(self.counted * self.scale + self.offset)

    @property
    def ratio(self) -> float:
        return self.tokens / self.limit if self.limit else 0.0

    def after(self, messages: Sequence[StoredMessage]) -> FillLevel:
        """Return the level with messages that followed, provided that they changed nothing but the size."""
        if self.size < 0:
            return self
        return self.after_tokens(sum(message.tokens for message in messages), self.size + len(messages))

    def after_tokens(self, tokens: int, size: int) -> FillLevel:
        """Return the level with so many tokens more, in a branch of `size` messages."""
        return structs.replace(self, counted=self.counted + tokens, size=size)


# The state


class State(Struct, frozen=True, kw_only=True, dict=True):
    """One branch of a conversation, as planning sees it."""

    frame: Frame
    """System prompt, tools, budget, policy and prices."""
    given: Budget
    """The budget by the settings, without the limits that refusals have taught."""
    folded: FoldedBranch
    """The messages as they came, and as they are shown."""
    sent: FoldedBranch
    """The branch as the last window was made from it."""
    window: Window | None = None
    """The last window; None before the first."""
    secrecy: Secrecy = Secrecy()
    meter: Meter = Meter()
    calibration: Calibration = Calibration()
    bill: Bill = Bill()
    limits: Limits = Limits()
    receipts: tuple[Receipt, ...] = ()
    """Every automatic change that this program made."""
    flag: str = ""
    """The reason for which an earlier moment asked for a compaction at the next call."""
    in_vain: int = 0
    """How many compactions in a row gained nothing."""
    twins: Mapping[int, Message] = {}
    """Readable replacements for compactions that another provider or model made, by message number."""
    prepared: Summary | None = None
    """A summary that a model has written and that is not used yet."""
    late: Summary | None = None
    """A model's summary that was ready only after a digest had taken its place. It replaces the digest."""
    has_model: bool = False
    """Whether a model writes the summaries and may be asked."""
    no_model: str = ""
    """Why the configured summariser may not be asked; empty if it may be, or if none is configured."""
    has_failed: bool = False
    """Whether a summary of the messages shown now was tried and could not be written."""
    looks_ahead: bool = False
    """Whether a summary is to be requested before it is needed."""
    at: float = 0.0
    """The time of the action, by the engine's clock; 0 without a clock."""
    called_at: float = 0.0
    """The time at which the last window was made; 0 if there was none, or if it is not known."""
    outputs: tuple[int, ...] = ()
    """The outputs that the last calls asked for."""
    topics: TopicTrack = TopicTrack()
    """The topic of the messages, if the policy has a trigger for a change of it. It is made anew from the messages after a load."""
    summarise: Summarise | None = None
    """Writes a summary at once if none is prepared; None takes the policy's fallback."""

    @classmethod
    def begin(
        cls,
        fixed: FixedFields,
        budget: Budget,
        policy: Policy,
        counter: TokenCounter,
        *,
        prices: Prices | None = None,
        secrecy: Secrecy | None = None,
        summarise: Summarise | None = None,
    ) -> State:
        """Return the state of a conversation without messages.

        Raises:
            BudgetError: instructions and reserve leave no room for messages.
        """
        empty = FoldedBranch.of(View(fixed.dialect, counter), policy.file_tools)
        frame = frame_for(fixed, budget, policy, counter, prices)
        return cls(
            frame=frame,
            given=budget,
            folded=empty,
            sent=empty,
            secrecy=secrecy or Secrecy(),
            summarise=summarise,
        )

    @property
    def size(self) -> int:
        """Messages in the branch."""
        return self.folded.size

    @property
    def counter(self) -> TokenCounter:
        return self.folded.shown.counter

    @property
    def place(self) -> SummaryPlace:
        return tuple([one.last for one in self.folded.summaries])

    @property
    def text_size(self) -> int:
        """Characters that an action may read: the originals in memory or their shown form, whichever is more,
        and the system prompt.
        """
        held = max(self.folded.branch.characters, self.folded.shown.characters)
        return held + sum(one.characters for one in self.frame.fixed.system)

    def text_read(self, new: int) -> int:
        """Characters that an action with `new` characters of new text may read.

        If nothing can be due after it, these are the new text and the queued messages that are indexed and
        searched next. Policies with triggers, and a summary that waits to be used, may read everything at any size.
        """
        policy, folded = self.frame.policy, self.folded
        acts_early = policy.triggers or policy.reduce_at or policy.arrival or self.late is not None
        if acts_early or size_of(folded, self.frame) + new > self.limit // 2:
            return new + self.text_size
        if not self.reads_ahead:
            return new
        return new + folded.facts.queued_characters + self.secrecy.queued_characters(folded)

    @property
    def runs_plugins(self) -> bool:
        """Whether a plan calls code of plugins, and is made apart from other work on text."""
        return self.frame.policy.runs_plugins

    @property
    def reads_ahead(self) -> bool:
        """Whether messages are indexed as they arrive, each with an earlier one. This begins at a third of the
        limit, so that all are indexed at two thirds; most conversations end before and are never compacted.
        """
        return READ_AHEAD_PARTS * size_of(self.folded, self.frame) >= self.limit

    @property
    def ratio(self) -> float:
        """Provider tokens per token of ours; 1.0 if the policy does not calibrate."""
        is_learnt = self.frame.policy.measure in ("hybrid", "calibrated")
        return self.calibration.ratio if is_learnt else 1.0

    @property
    def idle_s(self) -> float | None:
        """Seconds since the last call; None if there was none, or if it is not known."""
        return max(0.0, self.at - self.called_at) if self.at and self.called_at else None

    @property
    def reported(self) -> int | None:
        """The size of the last call by the provider's report; None if it is not about the messages shown now."""
        last = self.meter.anchor
        return last.prompt if last is not None and self.is_reported else None

    @property
    def output(self) -> int:
        """The output to ask for with the last window: the stated one, or less if it had to be lowered."""
        lowered = self.window.output if self.window else None
        return self.frame.budget.max_output if lowered is None else lowered

    @property
    def most_output(self) -> int:
        """The most output that the window has room for beside the messages that were sent last."""
        budget, now = self.frame.budget, self.now("before_call")
        if now.output is not None:  # the provider has refused more
            return self.output
        sent = ceil(size_of(self.sent, self.frame) * now.ratio)
        return max(self.output, budget.window - tokens_of(budget.reserve, budget) - sent)

    @property
    def room(self) -> OutputRoom:
        """The room for messages beside instructions and output."""
        return room_of(self.frame, self.now("before_call"))

    @property
    def tight_room(self) -> OutputRoom | None:
        """The room for messages if it is less than a quarter of the window, else None."""
        room = self.room
        return room if room.is_tight and self.frame.policy.enabled else None

    @cached_property
    def limit(self) -> int:
        """The largest request allowed by the budget and by the limit that the provider stated."""
        allowed = wall_of(self.frame, ratio=self.ratio).room
        return allowed if self.limits.own is None else min(allowed, self.limits.own)

    @property
    def arithmetic(self) -> str:
        """The limit as a sum, for displays."""
        text = arithmetic(self.frame.budget, wall_of(self.frame, ratio=self.ratio).output)
        own = self.limits.own
        return text if own is None else f"{text}, at most {own:,} by the provider's refusal"

    @cached_property
    def fill_level(self) -> FillLevel:
        """Computed from totals alone, because it is needed with every message."""
        author = author_of(self.folded, has_late=self.late is not None, is_writing=True)
        budget, (scale, offset) = self.frame.budget, self.measure
        return FillLevel(
            size_of(self.folded, self.frame),
            self.limit,
            self.pressure,
            self.folded.size,
            author.text,
            budget.window,
            budget.source,
            self.arithmetic,
            scale,
            offset,
            budget.max_output if budget.is_output_stated else 0,
            budget.limit,
        )

    def billed(self, usage: Usage) -> Bill:
        """The bill with the call of the last window."""
        sent, whole = size_of(self.sent, self.frame), self.frame.instructions + self.sent.whole
        return self.bill.add(usage, self.frame.prices, whole=whole, sent=sent)

    def savings(self, usage: Usage) -> tuple[int, float]:
        """The tokens that the call of the last window did not send, by the provider's count, and the dollars that it saved."""
        sent = size_of(self.sent, self.frame)
        unsent = self.frame.instructions + self.sent.whole - sent
        return round(unsent * usage.context / max(1, sent)), self.billed(usage).saved - self.bill.saved

    @cached_property
    def is_reported(self) -> bool:
        """Whether the provider's last report is about the messages that are shown now, or the first of them."""
        last = self.meter.anchor
        return last is not None and holds(last, self.folded.shown)

    @property
    def measure(self) -> tuple[float, float]:
        """The scale and the offset that turn our count of the next request into its size in the provider's
        tokens: by its last report if that is about these messages, else by the ratio of earlier reports.
        """
        last, shown = self.meter.anchor, self.folded.shown
        is_only_reported = self.frame.policy.measure == "reported"
        ratio = (self.meter.ratio or 1.0) if is_only_reported else self.ratio
        if last is None or not self.is_reported:
            return ratio, 0.0
        since = shown.end.tokens_to - shown.tokens_before(last.messages)
        return ratio, last.prompt - (size_of(self.folded, self.frame) - since) * ratio

    @property
    def size_source(self) -> str:
        """The source of the size of the next request, in words."""
        own = "our count" if self.counter.source == "counted" else "our estimate"
        if self.is_reported:
            return f"the provider's last report, with {own} of what was added since"
        return own if self.measure[0] == 1 else f"{own}, in the provider's tokens by its earlier reports"

    @property
    def compared(self) -> int:
        """The size of the context that the policy compares with its thresholds, in the provider's tokens. A
        policy that looks at reports only leaves out the messages since.
        """
        last = self.meter.anchor
        if self.frame.policy.measure == "reported" and last is not None and self.is_reported:
            return last.prompt
        scale, offset = self.measure
        return round(size_of(self.folded, self.frame) * scale + offset)

    @property
    def pressure(self) -> str:
        """Why the context has to be compacted, at any moment that the policy looks at; empty if it does not."""
        for moment in dict.fromkeys((*self.frame.policy.triggers, "before_call")):
            if reason := pressure(self.folded, self.frame, self.now(moment)):
                return reason
        return ""

    @property
    def measurement(self) -> Measurement:
        """The size of the window, region by region."""
        return self.measured(self.folded)

    @property
    def window_edits(self) -> tuple[Edit, ...]:
        """The cache breakpoints of the last window, a user message at its end, and its lowered output: edits
        that are made anew with every call.
        """
        if self.window is None:
            return ()
        has_marks = self.window.fixed.dialect.max_breakpoints > 0
        cached = breakpoint_edits(self.window, self.sent) if has_marks else ()
        marks = [*cached, *self._last_word, *self._turns]
        if self.window.output is None or not self.frame.budget.is_output_stated:
            return tuple(marks)
        return (*marks, self.room.edit(self.window.output))

    @property
    def _last_word(self) -> list[Edit]:
        """The edit for the user message that was added because the format refuses a reply at the end."""
        added = self.window.after if self.window else ()
        tokens = sum(map(self.counter.message, added))
        return [Edit("continue", NO_SEQ, 0, tokens, "the format requires the user to speak last")] * len(
            added
        )

    @property
    def _turns(self) -> list[Edit]:
        """The edit for a summary that stands where a server that wants the two sides in turn accepts it."""
        is_made = self.window is not None and self.window.fixed.dialect.alternates and self.sent.lead.messages
        return [Edit(IN_TURN, NO_SEQ, 0, 0, "the server wants user and assistant in turn")] if is_made else []

    @property
    def is_sent_as_shown(self) -> bool:
        """Whether the last window was made from the messages as they are shown from now on, and not from a
        view for one call only.
        """
        sent, shown = self.sent, self.folded
        return sent.shown is shown.shown and sent.lead is shown.lead and not sent.made

    @property
    def is_worth_counting(self) -> bool:
        """Whether the provider should count the last window before it is sent: the window is near the limit,
        and a large part of it was only estimated here.
        """
        if self.window is None or self.counter.source != "estimated" or not self.frame.policy.enabled:
            return False
        last, shown = self.meter.anchor, self.sent.shown
        size = size_of(self.sent, self.frame) * self.ratio
        is_known = last is not None and holds(last, shown)
        known = last.prompt if last is not None and is_known else 0
        return size >= NEAR_LIMIT * self.limit and size - known >= ESTIMATED_PART * self.limit

    def measured(self, folded: FoldedBranch) -> Measurement:
        """The size of the window if this branch were shown, region by region."""
        return Plan(self.frame, self._next_call, folded, folded, "keep", "").measurement

    def call_size(self, sent: FoldedBranch) -> CallSize:
        """Return the regions of a window that is made from `sent`, and the fold point and the wall at this time."""
        measured, counted = self.measured(sent), size_of(self.folded, self.frame)
        now = self.now(next(iter(self.frame.policy.triggers), "before_call"))
        known = now.size if now.size is not None else counted * now.ratio
        factor = known / counted if counted > 0 and known > 0 else now.ratio
        return CallSize(
            measured.system.tokens,
            measured.tools.tokens,
            measured.summary.tokens,
            measured.history.tokens,
            measured.tool_results.tokens,
            measured.tail.tokens,
            measured.input.tokens,
            measured.reserve,
            min(self.limit, round(fold_point(self.folded, self.frame, now) * factor)),
            self.limit,
        )

    def now(self, moment: Moment, keep: int | None = None, cut: int | None = None) -> Now:
        """Return a moment as the planner takes it; `keep` and `cut` come from a manual request."""
        if self.frame.policy.measure == "characters":  # the size by its triggers depends on the moment
            return self._now(moment, keep, cut)
        now = self._before_call
        if moment == "before_call" and keep is None and cut is None:
            return now
        return structs.replace(
            now, moment=moment, flag=now.flag if moment == "before_call" else "", keep=keep, cut=cut
        )

    @cached_property
    def _before_call(self) -> Now:
        return self._now("before_call")

    def _now(self, moment: Moment, keep: int | None = None, cut: int | None = None) -> Now:
        ratio, size, counted = self.ratio, self._size_at(moment), size_of(self.folded, self.frame)
        if self.frame.policy.measure == "hybrid" and counted > 0:
            # After a fold the last report is about another window, but about the same instructions and
            # by the same tokenizer.
            ratio = max(ratio, self.meter.ratio if size is None else size / counted)
        elif self.frame.policy.measure in ("reported", "characters"):
            # The policy's own measure decides about its triggers; what fits is the provider's to say.
            ratio = max(self.calibration.ratio, self.meter.ratio)
        return Now(
            moment,
            size,
            reported=self.reported,
            idle_s=self.idle_s,
            is_prepared=self.prepared is not None,
            largest_output=max(self.outputs, default=0),
            limit=self.limits.limit,
            output=self.limits.output,
            ratio=ratio,
            flag=self.flag if moment == "before_call" else "",
            in_vain=self.in_vain,
            keep=keep,
            cut=cut,
            topic=self.topics.change,
        )

    def with_frame(
        self, fixed: FixedFields, budget: Budget | None = None, policy: Policy | None = None
    ) -> State:
        """Return the state with another system prompt, other tools, another budget or policy; the format
        stays.

        Raises:
            BudgetError: they leave no room for messages.
        """
        old, given = self.frame, budget or self.given
        budget, policy = self.limits.budget(given), policy or old.policy
        frame = frame_for(fixed, budget, policy, self.counter, old.prices, bridge=old.bridge)
        return structs.replace(self, frame=frame, given=given).with_calibration(self.calibration)

    def with_calibration(self, calibration: Calibration) -> State:
        """Return the state with another calibration. A policy that calibrates its counts also plans with the
        size of the instructions that the provider's reports show.
        """
        frame, overhead = self.frame, None
        if frame.policy.measure == "calibrated":
            overhead = observed_instructions(frame.cost.total.tokens, calibration)
        if overhead != frame.overhead:
            frame = structs.replace(frame, overhead=overhead)
        return structs.replace(self, frame=frame, calibration=calibration)

    def with_limits(self, limits: Limits) -> State:
        """Return the state with other limits, and with the budget that they leave. A budget without room for
        messages is no error here: the next plan says what does not fit.
        """
        if limits is self.limits:
            return self
        state, budget = structs.replace(self, limits=limits), limits.budget(self.given)
        if budget == self.limits.budget(self.given):
            return state
        old = self.frame
        frame = _frame(old.fixed, old.cost, budget, old.policy, old.prices, old.bridge)
        return structs.replace(state, frame=structs.replace(frame, overhead=old.overhead))

    def showing(self, folded: FoldedBranch) -> State:
        """Return the state with a branch that was read from a store, and no window yet."""
        return structs.replace(
            self, folded=folded, sent=folded, window=None, prepared=None, late=None, topics=TopicTrack()
        )

    @property
    def _next_call(self) -> Now:
        return Now("before_call", ratio=self.ratio)

    def _size_at(self, moment: Moment) -> int | None:
        """The size of the context as the policy measures it; None if the policy uses our own count."""
        last, shown, policy = self.meter.anchor, self.folded.shown, self.frame.policy
        if policy.measure == "characters" and moment in policy.triggers:
            return estimate_window(assemble(self.frame.fixed, shown.messages(), self.folded.lead))
        if last is None or policy.measure not in ("hybrid", "reported") or not self.is_reported:
            return None
        if policy.measure == "reported":
            return last.prompt
        since = shown.end.tokens_to - shown.tokens_before(last.messages)
        return last.prompt + round(since * self.ratio)


def frame_for(
    fixed: FixedFields,
    budget: Budget,
    policy: Policy,
    counter: TokenCounter,
    prices: Prices | None,
    *,
    bridge: int | None = None,
) -> Frame:
    """Return the frame that plans are made in, with a reserve that leaves room for messages. `bridge` is
    the size of a bridge message by the counter, if it is known.

    Raises:
        BudgetError: instructions and reserve leave no room for messages.
    """
    bridge = counter.message(user(BRIDGE)) if bridge is None else bridge
    frame = _frame(fixed, count_fixed(fixed, counter), budget, policy, prices, bridge)
    check_room(frame.budget, instructions=frame.instructions, lowers=policy.enabled)
    return frame


def _frame(
    fixed: FixedFields,
    cost: FixedCost,
    budget: Budget,
    policy: Policy,
    prices: Prices | None,
    bridge: int,
) -> Frame:
    if tokens_of(policy.reserve, budget) > tokens_of(budget.reserve, budget):
        budget = structs.replace(budget, reserve=policy.reserve)
    budget = _with_less_reserve(budget, cost.total.tokens, lowers=policy.enabled)
    return Frame(fixed, cost, budget, policy, prices, bridge)


def _with_less_reserve(budget: Budget, instructions: int, *, lowers: bool) -> Budget:
    """Limit the reserve to half of the room that instructions and output leave, because messages need room
    too.
    """
    output = output_room(budget, instructions).lowered if lowers else budget.max_output
    most = max(0, budget.window - output - instructions) // 2
    return (
        structs.replace(budget, reserve=Tokens(most)) if tokens_of(budget.reserve, budget) > most else budget
    )
