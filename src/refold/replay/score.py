"""Replays one recording under one candidate, and scores every call.

The candidate always gets the real reply, so that every candidate faces the same conversation, and the
literals of a reply can be looked up in the context before it. Apart from the measured times, the same
recording and candidate give the same score.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct, structs

from refold.model.dialect import Dialect
from refold.model.errors import BudgetError, WindowError
from refold.replay.candidate import (
    WHOLE_WINDOW,
    CallsModels,
    Candidate,
    CandidateChange,
    Explains,
    HasHandles,
    HasWriter,
    PlansOutput,
    Recalls,
    ReplayBudget,
    WritingCost,
)
from refold.replay.cost import REFERENCE_TARIFFS, CallBill, ConversationCost, PromptNames, Tariff
from refold.replay.facts import Context, MessageFacts, argument_names, holds, literals, surroundings
from refold.replay.recordings import CountedRecording, Recording, Repeats

# Demands: literals that the model needed, as its real reply shows

DistanceBand: TypeAlias = Literal["near", "mid", "far"]
Extract: TypeAlias = Callable[[MessageFacts], Collection[str]]

NEAR = 4
"""Near means less than the window divided by this: the newest messages, which every candidate keeps."""
SOURCE_REACH, CONTEXT_REACH = 80, 160
"""Characters around a literal that belong to it, in its source and in the context: a digest may spread them
out.
"""
SOURCE_MENTIONS, CONTEXT_MENTIONS = 4, 6
LATEST = 3
"""The latest messages that mention it: in older ones it may have another meaning."""
BOUND_WORDS = 2
"""Common words required: one occurs by chance."""


class Demand(Struct, frozen=True, gc=False):
    """A literal that a reply needed, and whether the context held it."""

    literal: str
    band: DistanceBand
    kept: bool
    bound: bool = False
    """True if it stands with words of its original surroundings: a fact, and not an entry of a list."""

    @property
    def is_old(self) -> bool:
        return self.band != "near"


class Mentions:
    """The messages that mention each literal."""

    def __init__(self, extract: Extract, fixed: Collection[str]) -> None:
        self._extract, self._fixed = extract, fixed
        self._places: dict[str, list[int]] = {}

    def note(self, facts: MessageFacts, index: int) -> None:
        for literal in self._extract(facts):
            self._places.setdefault(literal, []).append(index)

    def __contains__(self, literal: str) -> bool:
        return literal in self._places or literal in self._fixed

    def demanded_by(self, reply: Iterable[MessageFacts]) -> list[str]:
        """The literals of a reply that the model must have had in its context."""
        used = {literal for facts in reply for literal in self._extract(facts)}
        return sorted(literal for literal in used if literal in self._places and literal not in self._fixed)

    def latest(self, literal: str) -> Sequence[int]:
        return self._places[literal][-LATEST:]

    def is_in(self, literal: str, context: Context) -> bool:
        return any(literal in self._extract(facts) for facts in context.facts) or holds(context.text, literal)


class RepeatedTexts:
    """Lines or phrases that a reply repeats: which messages of the contexts have each of them."""

    def __init__(self, repeats: Repeats, extract: Callable[[MessageFacts], frozenset[str]]) -> None:
        self._repeats, self._extract = repeats, extract
        self._holders: dict[str, set[int]] = {}
        self._seen: set[int] = set()

    def demanded_by(self, reply: int) -> Iterable[tuple[str, int]]:
        """The texts that a reply repeats, each with the last message before that has it."""
        return self._repeats.by_reply[reply].items()

    def note(self, context: Context) -> None:
        """Look into the messages of a context that are new."""
        for facts in context.facts:
            if facts.number not in self._seen:
                self._seen.add(facts.number)
                for text in self._repeats.texts & self._extract(facts):
                    self._holders.setdefault(text, set()).add(facts.number)

    def is_in(self, text: str, context: Context) -> bool:
        return not context.numbers.isdisjoint(self._holders.get(text, ()))


def band(distance: int, window: int) -> DistanceBand:
    if distance * NEAR < window:
        return "near"
    return "mid" if distance < window else "far"


def is_bound(literal: str, sources: Iterable[MessageFacts], context: Context) -> bool:
    """True if the literal stands in the context among words of its sources."""
    words: set[str] = set()
    for facts in sources:
        words.update(*surroundings(facts.text, literal, reach=SOURCE_REACH, most=SOURCE_MENTIONS))
    words.discard(literal.lower())
    if len(words) < BOUND_WORDS:
        return True
    found = surroundings(context.text, literal, reach=CONTEXT_REACH, most=CONTEXT_MENTIONS)
    return any(len(words & around) >= BOUND_WORDS for around in found)


# Validity: would a provider accept this context? Written independently of the code that builds contexts.

Problem: TypeAlias = Literal[
    "bad_arguments",
    "duplicate_call_id",
    "empty_message",
    "ends_with_assistant",
    "no_messages",
    "orphan_result",
    "refused",
    "split_results",
    "starts_without_user",
    "system_in_middle",
    "unanswered_call",
]


def problems(context: Context, dialect: Dialect) -> frozenset[Problem]:
    """All problems of a context that is about to be sent."""
    body = context.facts[context.system_size :]
    if not body:
        return frozenset({"no_messages"})
    found = set(_of_pairs(body, dialect))
    found.update(_of_order(body, dialect))
    for known in context.facts:
        if known.is_empty or (known.is_only_thought and not dialect.spreads_calls):
            found.add("empty_message")
        if known.has_bad_arguments:
            found.add("bad_arguments")
    return frozenset(found)


def _of_order(body: Sequence[MessageFacts], dialect: Dialect) -> Iterator[Problem]:
    # OpenAI's formats take a message of the assistant first: the presets lis and llms put their summary there.
    may_start = ("user",) if dialect.starts_with_user else ("user", "assistant")
    if body[0].role not in may_start:
        yield "starts_without_user"
    if body[-1].role == "assistant":
        yield "ends_with_assistant"
    if any(known.role in ("system", "developer") for known in body):
        yield "system_in_middle"


def _of_pairs(body: Sequence[MessageFacts], dialect: Dialect) -> Iterator[Problem]:
    waiting: list[str] = []
    seen: set[str] = set()
    last = ""
    for known in body:
        if known.role == "tool":
            if dialect.joint_results and last == "tool":
                yield "split_results"
            yield from _answered(known, waiting)
        elif waiting and dialect.results_at_once:
            yield "unanswered_call"
            waiting.clear()
        yield from _called(known, waiting, seen)
        last = known.role
    if waiting:
        yield "unanswered_call"


def _answered(known: MessageFacts, waiting: list[str]) -> Iterator[Problem]:
    for call_id in known.result_ids:
        if call_id in waiting:
            waiting.remove(call_id)
        else:
            yield "orphan_result"


def _called(known: MessageFacts, waiting: list[str], seen: set[str]) -> Iterator[Problem]:
    for call_id in known.call_ids:
        if call_id in seen:
            yield "duplicate_call_id"
        seen.add(call_id)
        waiting.append(call_id)


MonotonicClock: TypeAlias = Callable[[], float]
"""A monotonic clock in seconds, such as `time.perf_counter`."""

RECALL_TOKENS = 1_000
"""The result of one call of the recall tool, at most."""
_QUERY_OWN, _QUERY_USER = 600, 400
"""Characters of the reply and of the last user message that a model would put into its query."""


class Ratio(Struct, frozen=True, gc=False):
    """A count out of a total."""

    part: int = 0
    whole: int = 0

    def __add__(self, other: Ratio) -> Ratio:
        return Ratio(self.part + other.part, self.whole + other.whole)

    @classmethod
    def of(cls, verdicts: Iterable[bool]) -> Ratio:
        judged = list(verdicts)
        return cls(sum(judged), len(judged))


class NearOld(Struct, frozen=True, gc=False):
    """Repeated texts that the context had, of all that a reply repeated, by their age."""

    near: Ratio = Ratio()
    old: Ratio = Ratio()

    def __add__(self, other: NearOld) -> NearOld:
        return NearOld(self.near + other.near, self.old + other.old)


class SentContext(Struct, frozen=True):
    """One context as it would have been sent, without its content."""

    tokens: int
    added: int
    """Tokens of the messages since the previous context."""
    bill: CallBill
    """By the first tariff."""
    is_rewritten: bool
    changes: tuple[CandidateChange, ...] = ()
    """The candidate's changes since the previous context."""


class CallScore(Struct, frozen=True):
    """One context, judged by the reply that followed."""

    problems: frozenset[Problem]
    fits: bool
    fill: float
    demands: tuple[Demand, ...]
    recalled: int
    """Demands that were not in the context and that one recall brought back."""
    old_second: Ratio
    lines: NearOld
    phrases: NearOld
    made_up: Ratio
    rules: Ratio
    is_rewritten: bool
    is_compacted: bool
    """Rewritten, and smaller than the previous context."""
    bills: tuple[CallBill, ...]
    sent: SentContext
    prepare_ms: float
    add_ms: float
    writing: WritingCost | None = None


class Score(Struct, frozen=True):
    """One recording under one candidate in one window."""

    recording: str
    source: str
    calls: int
    valid: int
    fits: int
    fill: float
    bands: dict[DistanceBand, Ratio]
    bound: Ratio
    recalled: int | None
    """None if the candidate cannot recall."""
    old_second: Ratio
    made_up: Ratio
    rules: Ratio
    rewrites: int
    compactions: int
    bills: dict[str, CallBill]
    problems: dict[Problem, int]
    prepare_ms: tuple[float, ...]
    add_ms: tuple[float, ...]
    sent: tuple[SentContext, ...] = ()
    writing: WritingCost | None = None
    """None if no model writes the summaries. Its dollars are in the bills."""
    lines: NearOld = NearOld()
    """Whole lines that replies repeated."""
    phrases: NearOld = NearOld()
    """Runs of five words that replies repeated."""

    @property
    def all(self) -> Ratio:
        return self.bands["near"] + self.old

    @property
    def old(self) -> Ratio:
        return self.bands["mid"] + self.bands["far"]


def score(
    script: CountedRecording,
    candidate: Candidate,
    window: int,
    *,
    clock: MonotonicClock,
    tariffs: Sequence[Tariff] = REFERENCE_TARIFFS,
    budget: ReplayBudget = WHOLE_WINDOW,
) -> Score:
    """Replay a recording: one context for every reply, except a reply at the very beginning."""
    replay = _Replay(script, candidate, window, clock, tariffs, budget)
    calls = [replay.call(at) for at in script.replies]
    found = _sum_up(script.recording, calls, [tariff.name for tariff in tariffs])
    return found if isinstance(candidate, Recalls) else structs.replace(found, recalled=None)


class _Replay:
    """The state of one replay."""

    def __init__(
        self,
        script: CountedRecording,
        candidate: Candidate,
        window: int,
        clock: MonotonicClock,
        tariffs: Sequence[Tariff],
        budget: ReplayBudget,
    ) -> None:
        self.script, self.candidate, self.window, self.clock = script, candidate, window, clock
        self.book, self.prompts = script.book(), PromptNames(script.head_tokens)
        self.accounts = [ConversationCost(tariff) for tariff in tariffs]
        self.mentions = Mentions(lambda facts: facts.literals, script.fixed_literals)
        self.second = Mentions(lambda facts: facts.rare_words, script.fixed_rare_words)
        self.lines = RepeatedTexts(script.repeated_lines, lambda facts: facts.lines)
        self.phrases = RepeatedTexts(script.repeated_phrases, lambda facts: facts.phrases)
        self.fed: set[int] = set()
        self.rules: dict[str, set[int]] = {}
        self.position = 0
        self.context: Context | None = None
        handle = candidate.handle if isinstance(candidate, HasHandles) else ""
        self.handle = re.compile(handle) if handle else None
        self.written: dict[int, frozenset[str]] = {}
        self.output = budget.output_in(window)
        self.has_room = self._start(budget)

    def _start(self, budget: ReplayBudget) -> bool:
        """Start the candidate; False if the system prompt leaves no room, so that it can send nothing."""
        candidate, recording, room = self.candidate, self.script.recording, budget.room_in(self.window)
        if isinstance(candidate, PlansOutput):
            candidate.leave(budget)
            room = self.window
        try:
            candidate.start(recording.system, recording.tools, room, self.script.counter)
        except BudgetError:
            return False
        return True

    def call(self, at: range) -> CallScore:
        added = self.script.offsets[at.start] - self.script.offsets[self.position]
        add_ms = self._feed(at.start)
        before, was_refused, prepare_ms = self.context, *self._ask()
        context = self.context or Context((), None)
        demands = self._demands(at, context)
        writing = self.candidate.writing() if isinstance(self.candidate, HasWriter) else None
        recalled, bills = self._recall(at, demands), self._bill(at, context, writing)
        is_compacted = context.is_rewritten and before is not None and context.tokens < before.tokens
        return CallScore(
            problems=frozenset({"refused"}) if was_refused else self._problems(at, context),
            fits=not was_refused and context.tokens + self._output() <= self.window,
            fill=min(1.0, context.tokens / self.window),
            demands=demands,
            recalled=recalled,
            old_second=self._old_second(at, context),
            lines=self._repeated(self.lines, at, context, is_line=True),
            phrases=self._repeated(self.phrases, at, context),
            made_up=Ratio.of(literal not in self.mentions for literal in self._written_literals(context)),
            rules=Ratio.of(self._is_kept(rule, context) for rule in self.rules),
            is_rewritten=context.is_rewritten,
            is_compacted=is_compacted,
            bills=bills,
            sent=self._sent(context, added, bills),
            prepare_ms=prepare_ms,
            add_ms=add_ms,
            writing=writing,
        )

    def _feed(self, stop: int) -> float:
        """Give the candidate the messages up to `stop`; returns the longest time for one message, in
        milliseconds.
        """
        slowest = 0.0
        for index in range(self.position, stop):
            facts = self.script.body[index]
            self.fed.add(facts.number)
            self.mentions.note(facts, index)
            self.second.note(facts, index)
            for rule in facts.rules:
                self.rules.setdefault(rule, set()).add(facts.number)
            if not self.has_room:
                continue
            began = self.clock()
            self.candidate.add(self.script.recording.messages[index])
            slowest = max(slowest, self.clock() - began)
        self.position = stop
        return slowest * 1e3

    def _ask(self) -> tuple[bool, float]:
        """Ask for the next context; returns whether it was refused, and the time in milliseconds."""
        if not self.has_room:
            self.context = Context((), None)
            return True, 0.0
        began = self.clock()
        try:
            messages, was_refused = self.candidate.context(), False
        except WindowError:
            messages, was_refused = (), True
        took = self.clock() - began
        self.context = Context(self.book.all_of(messages), self.context)
        return was_refused, took * 1e3

    def _output(self) -> int:
        """The output that goes with the context."""
        return self.candidate.output if isinstance(self.candidate, PlansOutput) else self.output

    def _problems(self, at: range, context: Context) -> frozenset[Problem]:
        """The problems of a context. If the recording has two replies in a row, the context may end with a
        reply.
        """
        found = problems(context, self.script.recording.dialect)
        is_recorded_so = self.script.body[at.start - 1].role == "assistant"
        return found - {"ends_with_assistant"} if is_recorded_so else found

    def _demands(self, at: range, context: Context) -> tuple[Demand, ...]:
        needed = self.mentions.demanded_by(self.script.reply(at))
        return tuple(self._judge(literal, at.start, context) for literal in needed)

    def _judge(self, literal: str, now: int, context: Context) -> Demand:
        latest = self.mentions.latest(literal)
        where = self._band(latest[-1], now)
        kept = self.mentions.is_in(literal, context)
        if not kept or where == "near":
            return Demand(literal, where, kept)
        sources = (self.script.body[index] for index in latest)
        return Demand(literal, where, kept, is_bound(literal, sources, context))

    def _band(self, mentioned: int, now: int) -> DistanceBand:
        """By the tokens since the message that mentioned it last, including that message."""
        return band(self.script.offsets[now] - self.script.offsets[mentioned], self.window)

    def _old_second(self, at: range, context: Context) -> Ratio:
        needed = self.second.demanded_by(self.script.reply(at))
        old = [word for word in needed if self._band(self.second.latest(word)[-1], at.start) != "near"]
        return Ratio.of(self.second.is_in(word, context) for word in old)

    def _repeated(
        self, texts: RepeatedTexts, at: range, context: Context, *, is_line: bool = False
    ) -> NearOld:
        """A line counts as kept also if the context has it inside a longer one."""
        texts.note(context)
        near: list[bool] = []
        old: list[bool] = []
        for text, mentioned in texts.demanded_by(at.start):
            kept = texts.is_in(text, context) or (is_line and holds(context.text, text))
            (near if self._band(mentioned, at.start) == "near" else old).append(kept)
        return NearOld(Ratio.of(near), Ratio.of(old))

    def _recall(self, at: range, demands: Sequence[Demand]) -> int:
        missing = [demand.literal for demand in demands if not demand.kept]
        if not missing or not self.has_room or not isinstance(self.candidate, Recalls):
            return 0
        found = self.candidate.recall(self._query(at, demands), RECALL_TOKENS)
        tokens = self.script.counter.text(found)
        allowed = found if tokens <= RECALL_TOKENS else found[: len(found) * RECALL_TOKENS // tokens]
        return sum(literal in allowed for literal in missing)

    def _query(self, at: range, demands: Sequence[Demand]) -> str:
        """A query that a model could have asked: its own words and the user's, without the literals that it
        looks for.
        """
        reply = self.script.reply(at)
        calls = [call for facts in reply for call in facts.message.calls]
        named = " ".join(" ".join((call.name, *argument_names(call.arguments))) for call in calls)
        own = "\n".join(facts.spoken_text for facts in reply)[:_QUERY_OWN]
        query = f"{own} {named} {self.script.last_user_text(at.start)[-_QUERY_USER:]}"
        for literal in sorted((demand.literal for demand in demands), key=len, reverse=True):
            query = query.replace(literal, " ")
        return query

    def _written_literals(self, context: Context) -> Iterable[str]:
        """The literals of messages that the candidate wrote itself."""
        for facts in context.facts[context.system_size :]:
            if facts.number not in self.fed:
                yield from self._literals_of(facts)

    def _literals_of(self, facts: MessageFacts) -> Iterable[str]:
        if self.handle is None:
            return facts.literals
        if facts.number not in self.written:
            self.written[facts.number] = frozenset(literals(self.handle.sub(" ", facts.text)))
        return self.written[facts.number]

    def _is_kept(self, rule: str, context: Context) -> bool:
        return not self.rules[rule].isdisjoint(context.numbers) or rule in context.text

    def _sent(self, context: Context, added: int, bills: tuple[CallBill, ...]) -> SentContext:
        changes: tuple[CandidateChange, ...] = ()
        if self.has_room and isinstance(self.candidate, Explains):
            changes = tuple(self.candidate.changes())
        return SentContext(
            context.tokens, added, bills[0] if bills else CallBill(), context.is_rewritten, changes
        )

    def _bill(self, at: range, context: Context, writing: WritingCost | None) -> tuple[CallBill, ...]:
        asked = self.candidate.model_calls() if isinstance(self.candidate, CallsModels) else ()
        output = sum(facts.tokens for facts in self.script.reply(at))
        now = self.script.seconds[at.start - 1]
        prompt = self.prompts.of(context)
        written = CallBill((writing.dollars if writing else None) or 0.0)
        bills = []
        for account in self.accounts:
            bill = account.send(prompt, output, now) if context.facts else CallBill()
            bills.append(sum((account.ask(*tokens) for tokens in asked), start=bill + written))
        return tuple(bills)


def _sum_up(recording: Recording, calls: Sequence[CallScore], tariffs: Sequence[str]) -> Score:
    demands = [demand for call in calls for demand in call.demands]
    bands: dict[DistanceBand, Ratio] = {
        name: Ratio.of(demand.kept for demand in demands if demand.band == name)
        for name in ("near", "mid", "far")
    }
    return Score(
        recording=recording.id,
        source=recording.source,
        calls=len(calls),
        valid=sum(not call.problems for call in calls),
        fits=sum(call.fits for call in calls),
        fill=sum(call.fill for call in calls),
        bands=bands,
        bound=Ratio.of(demand.bound for demand in demands if demand.is_old),
        recalled=sum(call.recalled for call in calls),
        old_second=sum((call.old_second for call in calls), start=Ratio()),
        lines=sum((call.lines for call in calls), start=NearOld()),
        phrases=sum((call.phrases for call in calls), start=NearOld()),
        made_up=sum((call.made_up for call in calls), start=Ratio()),
        rules=sum((call.rules for call in calls), start=Ratio()),
        rewrites=sum(call.is_rewritten for call in calls),
        compactions=sum(call.is_compacted for call in calls),
        bills={
            name: sum((call.bills[at] for call in calls), start=CallBill()) for at, name in enumerate(tariffs)
        },
        problems=dict(Counter(problem for call in calls for problem in sorted(call.problems))),
        prepare_ms=tuple(call.prepare_ms for call in calls),
        add_ms=tuple(call.add_ms for call in calls),
        sent=tuple(call.sent for call in calls),
        writing=sum_writing(call.writing for call in calls),
    )


def sum_writing(found: Iterable[WritingCost | None]) -> WritingCost | None:
    """The sum; None if no model wrote summaries."""
    known = [one for one in found if one is not None]
    return sum(known, start=WritingCost()) if known else None
