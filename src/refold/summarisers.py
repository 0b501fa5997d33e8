"""Summaries written by a chain of models, or by a function of the user.

The models are asked in order until one gives a summary that passes the checks. If none does, there is no
summary, and nothing is lost: the caller still has the history, the previous summary, and a digest that needs
no model. `refold.core` has the prompts, the checks and the division of a transcript; this module runs them.

If an answer has a fault, the model is told which and asked once more. A paid draft whose fault can be repaired
automatically is used as the last resort. Accepted answers are cached by their question. The cost of every try
is recorded, whether its answer is used or not. A refusal for length lowers the estimate of the model's window.

A transcript that is too long for a model's window is summarised in parts, which are then merged. Every question
fits the window, and the division into parts depends on the window alone. A part is therefore the same question
again when the conversation has grown or a later part has failed, and its answer comes from the cache. After a
refusal for length the following parts are smaller; earlier answers are kept.

If the conversation is to be compacted by its own provider, the provider is asked first, with the messages as
they came. Its compaction is kept as it is, beside a text that other models can read. If it gives none, the
models are asked, and the summary says why.

A text by the user's own function is checked like a model's. A function cannot be asked again, so faults that
can be repaired are repaired at once, and a text with any other fault is not used.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from itertools import islice
from typing import TypeVar
from weakref import WeakValueDictionary

import msgspec
from msgspec import Struct, structs

from refold.core.prompts import (
    VERSION,
    Count,
    Passage,
    PromptKind,
    Recipe,
    chunks,
    fenced,
    group_texts,
    instruction,
    question,
    said_by,
    split_text,
    transcript,
)
from refold.core.secrets import redact
from refold.core.summary_checks import (
    FAULTS,
    MAX_READ,
    AcceptedSummary,
    DraftSource,
    SummaryDraft,
    accept,
    typed_by_user,
    with_facts,
)
from refold.core.summary_text import headings_once, missing_lines, says_something, split_section
from refold.core.tool_use import has_failed
from refold.core.verify import count_breakpoints
from refold.model.errors import ContextOverflow, Overflow, UpstreamError
from refold.model.message import (
    DialectName,
    Message,
    Opaque,
    Reasoning,
    compaction_of,
    holds_compaction,
    readable_text,
    user,
)
from refold.model.summary import NativeCompaction, NativeItem, Summary
from refold.model.tokens import Usage
from refold.model.window import Tool
from refold.ports.models import Ask, PaidQuestion, SummaryCache, SummaryTask, Upstream
from refold.text_work import run_text_work
from refold.wire.json_codec import FIELDS, NULL, word
from refold.wire.reply import Reply

T = TypeVar("T")

# One model at one task: it asks a question, checks the answer, and records the cost

TRIES = 2
"""Attempts per question: a named fault is usually fixed; one that occurs twice stays."""
OWN_BREAKPOINTS = 3
"""Cache breakpoints allowed in the client's own messages: providers accept four, and the last is Refold's."""
PROSE = 0.75
"""The share of the summary that the model is told to fill; the rest is for facts that it leaves out. The
share does not depend on the facts, so that a new fact does not change the question and its cache key.
"""


class SummaryWriter(Struct, frozen=True):
    """A model that writes summaries, with its own window, which may be smaller than the conversation's."""

    upstream: Upstream
    window: int
    count: Count
    server: str = ""
    """The address of its server, see `upstreams.provider.server_of`; empty if it is not known."""
    upstream_name: str = ""
    """The gateway's name of its upstream; empty elsewhere."""


class TaskQuestion(Struct, frozen=True):
    body: str
    asked: PromptKind
    most: int
    """Limit of the answer, in tokens."""
    previous: str = ""
    facts: str = ""
    """The transcript behind a body that consists of summaries: further facts that the answer may name."""
    is_raw: bool = False
    """True if the messages themselves are sent, and not the body."""


class TaskAnswer(Struct, frozen=True):
    text: str
    mended: tuple[str, ...] = ()


class Rejected(Exception):  # never leaves this package
    """No answer could be used."""


class TaskCost:
    """The answered questions of a task so far, and the reasons for rejected answers."""

    def __init__(self) -> None:
        self.questions: list[PaidQuestion] = []
        self.problems: list[str] = []
        self.failures: list[str] = []
        """Why models gave no answer at all."""

    @property
    def spent(self) -> Usage:
        return sum((usage for _, usage in self.questions), Usage())

    def add(self, model: str, usage: Usage | None) -> None:
        self.questions.append((model, usage or Usage()))


class SummaryAttempt:
    def __init__(
        self, writer: SummaryWriter, recipe: Recipe, task: SummaryTask, answers: PaidAnswers, cost: TaskCost
    ) -> None:
        self.writer, self.recipe, self.task, self.answers, self.cost = writer, recipe, task, answers, cost
        self._text_size = task.characters
        self.window = writer.window
        """The estimated window of the model, in Refold's tokens; it shrinks with every refusal."""

    @property
    def can_read_raw(self) -> bool:
        """True if the messages themselves are available, with few enough cache breakpoints for a provider."""
        prompt = () if isinstance(self.task.system, str) else self.task.system
        marks = sum(count_breakpoints(message.parts) for message in (*prompt, *self.task.sent))
        return self.recipe.reading == "raw" and bool(self.task.sent) and marks <= OWN_BREAKPOINTS

    async def answer(self, asked: TaskQuestion) -> TaskAnswer:
        """The cached answer, or a new one.

        Raises:
            Rejected: no attempt passed the checks.
            ContextOverflow: the question was too long; `window` is now smaller than this question.
            UpstreamError: the model gave no answer.
        """
        key = await self.work(self._key, asked)
        async with self.answers.lock_for(key):
            kept = await self.answers.get(key)
            if kept is not None:
                return TaskAnswer(kept.text, kept.checks)
            found = await self._ask_checked(asked)
            await self.answers.put(key, await self.work(self._cache_entry, found, key))
            return found

    async def work(self, function: Callable[..., T], *args: object) -> T:
        """Run a function on the task's text; in a thread if the text is long."""
        return await run_text_work(self._text_size, function, *args)

    def _key(self, asked: TaskQuestion) -> str:
        return question_key(self.writer.upstream.model, self._ask(asked))

    async def _ask_checked(self, asked: TaskQuestion) -> TaskAnswer:
        """Ask, check, and ask again with the fault named. A repairable draft is used if the second attempt
        fails.
        """
        source: DraftSource | None = None
        fault, held = "", list[SummaryDraft]()
        for number in range(TRIES):
            try:
                draft = await self._ask_draft(asked, fault)
            except Exception as error:
                if not held:
                    raise
                self._note(type(error).__name__)
                break
            if source is None:  # only now: a long source would be in memory for as long as the model writes
                source = await self.work(self._source, asked)
            found = await self._check_draft(draft, source, asked, is_last_try=number + 1 == TRIES)
            if found.fault is None:
                return TaskAnswer(found.text, found.mended)
            held += [draft] if found.fault == "invented" else []
            fault = found.reason
            self._note(found.fault)
        for draft in held[:1]:
            assert source is not None  # a draft that is held was checked
            found = await self._check_draft(draft, source, asked, is_last_try=True)
            if found.fault is None:
                return TaskAnswer(found.text, found.mended)
        raise Rejected(fault)

    async def _ask_draft(self, asked: TaskQuestion, fault: str) -> SummaryDraft:
        reply = await self._reply(asked, fault)
        self.cost.add(self.writer.upstream.model, reply.usage)
        return _draft(reply)

    async def _check_draft(
        self, draft: SummaryDraft, source: DraftSource, asked: TaskQuestion, *, is_last_try: bool
    ) -> AcceptedSummary:
        """The result of the checks of a draft, with secrets redacted that the model may have copied or
        assembled.
        """

        def judge() -> AcceptedSummary:
            count, most = self.writer.count, asked.most
            found = accept(draft, source, most=most, count=count, is_last_try=is_last_try)
            return structs.replace(found, text=redact(found.text)) if found.fault is None else found

        return await run_text_work(self._text_size + len(draft.text), judge)

    def _note(self, problem: str) -> None:
        self.cost.problems.append(f"{self.writer.upstream.model}: {problem}")

    async def _reply(self, asked: TaskQuestion, fault: str) -> Reply:
        """Ask, with the estimated size attached: a refusal without a reason is then recognised as an overflow."""
        size = await self.work(self.size_of, asked)
        ask = await self.work(self._ask, asked, fault)
        ask = structs.replace(ask, estimated=size, budget=self.window - asked.most)
        try:
            return await self.writer.upstream.ask(ask)
        except ContextOverflow as error:
            self.window = min(self.window // 2, _window_after_overflow(error.overflow, size, asked.most))
            raise

    def size_of(self, asked: TaskQuestion) -> int:
        """The tokens of a question, in Refold's count."""
        words = instruction(
            asked.asked, self.recipe.prompts, max_tokens=int(asked.most * PROSE), focus=self.task.focus
        )
        read = self._read() if asked.is_raw else (asked.body, self.recipe.prompts.system)
        return sum(map(self.writer.count, (words, asked.previous, *read)))

    def _source(self, asked: TaskQuestion) -> DraftSource:
        """The material that an answer is checked against. Facts of the ledger are added later, so an answer
        need not contain them.
        """
        words = instruction(
            asked.asked, self.recipe.prompts, max_tokens=int(asked.most * PROSE), focus=self.task.focus
        )
        return DraftSource(
            told=asked.facts or asked.body,
            tokens=self.writer.count(asked.body) + self.writer.count(asked.previous),
            previous=asked.previous,
            beside="\n".join((asked.body if asked.facts else "", *(self._read() if asked.is_raw else ()))),
            asked=f"{self.recipe.prompts.system}\n{words}",
            spoken=said_by("user", self.task.passages, MAX_READ),
            answered=said_by("assistant", self.task.passages, MAX_READ),
        )

    def _read(self) -> Iterator[str]:
        """The texts of a question that sends the messages themselves: the whole window, the system prompt and
        the tools.
        """
        task = self.task
        yield transcript(Passage(number, one) for number, one in enumerate(task.sent))
        yield task.system if isinstance(task.system, str) else "\n".join(one.text for one in task.system)
        yield from (f"{tool.name} {tool.description} {tool.schema}" for tool in task.tools)

    def _ask(self, asked: TaskQuestion, fault: str = "") -> Ask:
        words = instruction(
            asked.asked,
            self.recipe.prompts,
            max_tokens=int(asked.most * PROSE),
            focus=self.task.focus,
            fault=fault,
        )
        if asked.is_raw:
            prompt = f"{self._previous_if_unseen(asked.previous)}{words}"
            sent, task = (*self.task.sent, user(prompt)), self.task
            return Ask(sent, task.system, task.tools, asked.most, self.recipe.temperature, is_cached=True)
        prompt = question(asked.body, words, previous=asked.previous)
        return Ask((user(prompt),), self.recipe.prompts.system, (), asked.most, self.recipe.temperature)

    def _previous_if_unseen(self, previous: str) -> str:
        """The previous summary, unless the messages contain it already."""
        is_shown = any(previous in message.text for message in self.task.sent)
        return f"{fenced(previous, 'previous-summary')}\n\n" if previous and not is_shown else ""

    def _cache_entry(self, answer: TaskAnswer, key: str) -> Summary:
        task, tokens = self.task, self.writer.count(answer.text)
        return Summary(answer.text, task.first, task.last, tokens, "model", recipe=key, checks=answer.mended)


def _window_after_overflow(found: Overflow | None, size: int, output: int) -> int:
    """The window of a model, in Refold's tokens, after a question of `size` tokens and an answer of `output`
    were too long.

    A stated window is used if it makes the next question smaller; otherwise half of this question is tried, as
    after a window that no model has.
    """
    limit, counted = 0, 0
    if found is not None and found.is_overflow:
        limit, counted = found.window or 0, found.prompt or (found.requested or output) - output
    ours = int(limit / max(1.0, counted / max(1, size)))
    return ours if 0 < ours < size + output else (size + output) // 2


def _draft(reply: Reply) -> SummaryDraft:
    messages: list[Message] = list(reply.messages)
    return SummaryDraft(
        "\n".join(message.text for message in messages if message.text),
        reply.finish,
        any(message.calls for message in messages),
        any(isinstance(part, Reasoning) for message in messages for part in message.parts),
    )


# Transcripts that are too long for the model's window

MARGIN = 0.9
"""Usable share of a summariser's window: counts of another model's text are a few percent off."""
LEAST_ROOM = 256
"""Tokens: with less room to read, every message would be a part of its own."""
SUMMARY_PART = 4
"""The answer takes at most the window divided by this: most of the window is for reading."""
PART_TOKENS = 4_000
"""The strategy `hierarchical` reads parts of at most so many tokens, however large the model's window is: each
part gets a summary of its own, so details of long conversations get more room than in one question."""
PART_OF_WINDOW = 8
"""The summary of a part takes at most the window divided by this, so that several can be merged at once."""
TURN = "## This Turn So Far"
"""The heading that the question about a turn asks for; the next summary finds the beginning of the turn under
it.
"""
FAR_CHARACTERS, FAR_TOKENS = 8, 2
"""A transcript of more characters than these times its window's tokens is counted message by message, and divided at once if that is
more than these times the window: the count of the whole may differ by some tokens for each message."""
_BETWEEN = "\n\n"
_JOINT = 2
"""Tokens that joining two parts adds."""


class Reader:
    """Reads one task with one model, in as many parts as its window requires."""

    def __init__(self, attempt: SummaryAttempt) -> None:
        self.attempt, self.task, self.recipe = attempt, attempt.task, attempt.recipe
        self.count = attempt.writer.count
        self.most = min(self.recipe.max_tokens, self.task.max_tokens, self.window // SUMMARY_PART)

    @property
    def window(self) -> int:
        return self.attempt.window

    async def summary(self) -> TaskAnswer:
        """A summary of the history, and of the beginning of a split turn as a section of its own.

        Raises:
            Rejected: no answer could be used, or there is nothing to summarise.
            UpstreamError: the model gave no answer.
        """
        start, passages, previous = self.task.turn_from, self.task.passages, self.task.previous
        if start is None:
            read = await self._work(self._select, passages)
            return await self._summarise(read, self._kind_of_question(previous), self.most, previous)
        history = await self._work(self._select, tuple(one for one in passages if one.number < start))
        turn = await self._work(self._select, tuple(one for one in passages if one.number >= start))
        found = _joined(await self._history_and_turn(history, turn))
        if not says_something(found.text):
            raise Rejected("there is nothing to summarise")
        return found

    async def _work(self, function: Callable[..., T], *args: object) -> T:
        return await self.attempt.work(function, *args)

    async def _history_and_turn(
        self, history: Sequence[Passage], turn: Sequence[Passage]
    ) -> list[TaskAnswer]:
        """The history before a split turn, and the turn. The previous summary may contain the beginning of
        the turn already.
        """
        previous, begun, share = self.task.previous, "", self.most * 2 // 3 if turn else self.most
        found = list[TaskAnswer]()
        if history:
            found.append(await self._summarise(history, self._kind_of_question(previous), share, previous))
        else:
            previous, begun = split_section(previous, TURN) if turn else (previous, "")
            found += [await self._shorten(previous, share)] if previous else []
        if turn:
            most = self.most // 3 - _JOINT if found else self.most
            found.append(await self._summarise(turn, "turn", most, begun))
        return found

    async def _shorten(self, text: str, most: int) -> TaskAnswer:
        """A summary without additions: unchanged, or shortened if it leaves no room for the turn."""
        if await self._work(self.count, text) <= most:
            return TaskAnswer(text)
        body, pieces = await self._work(lambda: (transcript(self.task.passages), self._split_text(text)))
        return await self._merge_all(pieces, TaskQuestion("", "merge", most, facts=body))

    def _kind_of_question(self, previous: str) -> PromptKind:
        return "update" if previous else "fresh"

    def _select(self, passages: tuple[Passage, ...]) -> tuple[Passage, ...]:
        """The passages to read. If the selection is empty, all of them are read."""
        return (_selected(passages) or passages) if self.recipe.strategy == "selective" else passages

    async def _summarise(
        self, passages: Sequence[Passage], asked: PromptKind, most: int, previous: str
    ) -> TaskAnswer:
        """A summary of some passages: at once if they fit, otherwise in parts."""
        whole = await self._at_once(passages, asked, most, previous)
        return whole or await self._in_parts(passages, asked, most, previous)

    async def _at_once(
        self, passages: Sequence[Passage], asked: PromptKind, most: int, previous: str
    ) -> TaskAnswer | None:
        """A summary by one question; None if the model cannot read so much at once."""
        if not self._is_raw() and await self._work(self._is_too_long, passages):
            return None
        body = await self._work(transcript, passages)
        for is_raw in (True, False) if self._is_raw() else (False,):
            whole = TaskQuestion(body, asked, most, previous, is_raw=is_raw)
            if self.recipe.strategy == "hierarchical" or not await self._work(self._fits, whole):
                continue
            with suppress(ContextOverflow):
                return await self.attempt.answer(whole)
        return None

    def _is_raw(self) -> bool:
        """True if the messages themselves may be sent: only if they are the whole source, summarised in one
        piece.
        """
        is_whole = self.recipe.strategy == "abstractive" and self.task.turn_from is None
        return is_whole and self.attempt.can_read_raw

    def _is_too_long(self, passages: Sequence[Passage]) -> bool:
        """True if the passages are far longer than the window. Found without the whole transcript, which may have megabytes."""
        left = FAR_TOKENS * self.window
        if sum(one.message.characters for one in passages) <= FAR_CHARACTERS * self.window:
            return False
        for passage in passages:
            left -= self.count(passage.text)
            if left < 0:
                return True
        return False

    def _fits(self, asked: TaskQuestion) -> bool:
        return self.attempt.size_of(asked) + asked.most <= int(self.window * MARGIN)

    async def _in_parts(
        self, passages: Sequence[Passage], asked: PromptKind, most: int, previous: str
    ) -> TaskAnswer:
        """Summarise part by part, then merge. A previous summary that is too long itself is the oldest part."""
        most = min(most, self.window // SUMMARY_PART)
        before = list[TaskAnswer]()
        if await self._work(self.count, previous) > self._room(asked, most) // 2:
            before, previous = await self._work(self._split_text, previous), ""
        whole = None if before else await self._in_one_chunk(passages, asked, most, previous)
        if whole is not None:
            return whole
        answers = [*before, *await self._parts(passages, "turn" if asked == "turn" else "fresh")]
        last: PromptKind = "turn" if asked == "turn" else "update" if previous else "merge"
        body = await self._work(transcript, passages)
        return await self._merge_all(answers, TaskQuestion("", last, most, previous, facts=body))

    async def _in_one_chunk(
        self, passages: Sequence[Passage], asked: PromptKind, most: int, previous: str
    ) -> TaskAnswer | None:
        """The answer if one chunk holds everything; otherwise None."""
        room = self._part_room(asked)

        def whole() -> TaskQuestion | None:
            found = [*islice(chunks(passages, room, self.count), 2)]
            one = TaskQuestion(transcript(found[0]), asked, most, previous) if len(found) == 1 else None
            return one if one is not None and self._fits(one) else None

        if (question := await self._work(whole)) is not None:
            with suppress(ContextOverflow):
                return await self.attempt.answer(question)
        return None

    async def _merge_all(self, answers: list[TaskAnswer], asked: TaskQuestion) -> TaskAnswer:
        """One answer that merges all of these, in reply to this question; its body is made of them."""
        most, merging = asked.most, asked.asked if asked.asked == "turn" else "merge"
        while True:
            most = min(most, self.window // SUMMARY_PART)
            room = self._room(asked.asked, most) - await self._work(self.count, asked.previous)
            answers = await self._merge_groups(answers, room, merging, asked.facts)
            if (
                len(answers) == 1
                and not asked.previous
                and await self._work(self.count, answers[0].text) <= most
            ):
                return answers[0]
            body = _BETWEEN.join(answer.text for answer in answers)
            with suppress(ContextOverflow):
                return await self.attempt.answer(structs.replace(asked, body=body, most=most))

    def _split_text(self, text: str) -> list[TaskAnswer]:
        return [TaskAnswer(piece) for piece in split_text(text, self._each, self.count)]

    async def _parts(self, passages: Sequence[Passage], asked: PromptKind) -> list[TaskAnswer]:
        """A summary of each chunk."""
        found, done = list[TaskAnswer](), 0
        while done < len(passages):
            left = chunks(passages[done:], self._part_room(asked), self.count)
            while (chunk := await self._work(next, left, None)) is not None:
                try:
                    body = await self._work(transcript, chunk)
                    most = await self._work(self._part_answer, body)
                    found.append(await self.attempt.answer(TaskQuestion(body, asked, most)))
                except ContextOverflow:
                    break
                done += len(chunk)
        return found

    async def _merge_groups(
        self, answers: list[TaskAnswer], room: int, asked: PromptKind, facts: str
    ) -> list[TaskAnswer]:
        """The parts, merged in groups until the rest can be read at once."""
        while await self._work(self.count, _BETWEEN.join(answer.text for answer in answers)) > room:
            texts = [answer.text for answer in answers]
            groups = await self._work(group_texts, texts, self._room(asked, self._each), self.count)
            if len(groups) >= len(texts):
                raise Rejected("its window is too small to merge the parts")
            answers = await self._merge_each_group(groups, asked, facts)
        return answers

    async def _merge_each_group(
        self, groups: list[list[str]], asked: PromptKind, facts: str
    ) -> list[TaskAnswer]:
        """One answer per group; from the first group that was too large on, the texts unchanged."""
        found = list[TaskAnswer]()
        for number, group in enumerate(groups):
            whole = TaskQuestion(_BETWEEN.join(group), asked, self._each, facts=facts)
            try:
                found.append(await self.attempt.answer(whole) if len(group) > 1 else TaskAnswer(group[0]))
            except ContextOverflow:
                return [*found, *(TaskAnswer(text) for left in groups[number:] for text in left)]
        return found

    @property
    def _each(self) -> int:
        """The limit of a part's summary: the same for every part of every task."""
        return max(1, min(self.recipe.max_tokens, self.window // PART_OF_WINDOW))

    def _part_answer(self, body: str) -> int:
        """The limit of one part's summary: a small part must not get a summary of its own length."""
        if self.recipe.strategy != "hierarchical":
            return self._each
        return max(1, min(self._each, self.count(body) // 2))

    def _part_room(self, asked: PromptKind) -> int:
        """The tokens of the messages that one part holds at most."""
        room = self._room(asked, self._each)
        return min(room, PART_TOKENS) if self.recipe.strategy == "hierarchical" else room

    def _room(self, asked: PromptKind, most: int) -> int:
        """The tokens that the summariser's window leaves for reading."""
        words = instruction(asked, self.recipe.prompts, max_tokens=most, focus=self.task.focus)
        used = self.count(words) + self.count(self.recipe.prompts.system) + most
        room = int(self.window * MARGIN) - used
        if room < LEAST_ROOM:
            raise Rejected("its window is too small to read the transcript")
        return room


def _selected(passages: Sequence[Passage]) -> tuple[Passage, ...]:
    """Texts of people, and failed results: calls and results of successful work can be looked up."""
    return tuple(
        passage
        for passage in passages
        if (passage.message.role != "tool" and passage.message.text)
        or any(has_failed(result) for result in passage.message.results)
    )


def _joined(parts: Sequence[TaskAnswer]) -> TaskAnswer:
    mended = dict.fromkeys(note for part in parts for note in part.mended)
    return TaskAnswer(_BETWEEN.join(part.text for part in parts), tuple(mended))


# Compactions by the conversation's own provider

NATIVE_OUTPUT, LEAST_NATIVE_OUTPUT = 4_096, 256
"""Tokens that the provider may write for a compaction, thoughts included, and the fewest worth asking for."""
SEALED_CHARACTERS = 16 // 3
"""Characters of sealed content per token: four characters of base64 are three bytes."""
_WITHOUT = ("answered 404", "answered 405", "answered 501", "has no compaction")
"""Reasons after which a provider is not asked for compactions again."""
NO_COMPACTION = "answered without a compaction"


class NoCompaction(Exception):  # never leaves this package
    """The provider gave no compaction that can be used."""


async def _compaction(attempt: SummaryAttempt) -> tuple[NativeCompaction, str]:
    """The provider's own compaction of a task's messages, and its text if it can be read.

    Raises:
        NoCompaction: there is none, or it cannot be used.
        UpstreamError: the provider gave no answer.
    """
    task, writer = attempt.task, attempt.writer
    if task.not_native or not task.native_for:
        raise NoCompaction(task.not_native)
    if task.native_for != writer.upstream.model:
        raise NoCompaction("the conversation has gone on with another model")
    size = await attempt.work(attempt.size_of, TaskQuestion("", "fresh", 0, is_raw=True))
    most = min(NATIVE_OUTPUT, int(writer.window * MARGIN) - size)
    if most < LEAST_NATIVE_OUTPUT:
        raise NoCompaction("the messages leave no room for it")
    ask = Ask(
        task.native_sent,
        task.system,
        task.tools,
        most,
        None,
        is_cached=True,
        estimated=size,
        budget=writer.window - most,
        compacts=True,
        instructions=_focused(attempt, most) if task.focus else "",
    )
    reply = await writer.upstream.ask(ask)
    attempt.cost.add(writer.upstream.model, reply.usage)
    items, text = _items_of(reply)
    if _size_of(items, writer) > writer.window // SUMMARY_PART:
        raise NoCompaction("its compaction takes more than a quarter of the window")
    dialect: DialectName = "anthropic" if text else "responses"
    made = NativeCompaction(dialect, writer.upstream.model, writer.upstream_name, items, server=writer.server)
    return made, text


def _focused(attempt: SummaryAttempt, most: int) -> str:
    words = instruction(
        "fresh", attempt.recipe.prompts, max_tokens=int(most * PROSE), focus=attempt.task.focus
    )
    return f"{words}\n\nDo not call tools."


def _items_of(reply: Reply) -> tuple[tuple[NativeItem, ...], str]:
    """The messages of a compaction, and its text if it can be read.

    Anthropic answers with one signed block; Responses with the messages that it keeps, and one sealed item at the end.
    """
    found = [part for message in reply.messages for part in message.parts if compaction_of(part) is not None]
    if len(found) != 1 or not isinstance(found[0], Opaque) or found[0].raw is None:
        ended = reply.finish if reply.finish in _ENDS and not found else ""
        raise NoCompaction(f"ended with {ended}" if ended else NO_COMPACTION)
    if text := readable_text(found[0]):
        if reply.finish != "compaction" or len(reply.messages) != 1 or len(reply.messages[0].parts) != 1:
            raise NoCompaction(NO_COMPACTION)
        if not word(FIELDS.decode(found[0].raw).get("signature", NULL)):
            raise NoCompaction("gave a compaction without a signature")
        return (NativeItem("assistant", bytes(found[0].raw).decode()),), text
    if not holds_compaction(reply.messages[-1]) or len(reply.messages[-1].parts) != 1:
        raise NoCompaction(NO_COMPACTION)
    raws = [message.origin.raw for message in reply.messages if message.origin is not None]
    if len(raws) != len(reply.messages) or any(message.calls for message in reply.messages):
        raise NoCompaction(NO_COMPACTION)
    pairs = zip(reply.messages, raws, strict=True)
    return tuple(NativeItem(one.role, bytes(raw).decode(), one.text) for one, raw in pairs), ""


_ENDS = frozenset({"max_tokens", "refusal", "tool_use", "model_context_window_exceeded", "end_turn"})


def _size_of(items: Sequence[NativeItem], writer: SummaryWriter) -> int:
    """Tokens of a compaction, in Refold's count. One that is far too long is not counted exactly."""
    characters = sum(len(one.text or one.raw) for one in items)
    if characters > SEALED_CHARACTERS * writer.window:
        return characters // SEALED_CHARACTERS
    return sum(writer.count(one.text) if one.text else len(one.raw) // SEALED_CHARACTERS for one in items)


def _native_summary(native: NativeCompaction, text: str, attempt: SummaryAttempt) -> Summary:
    """The summary for a compaction. It covers all before it. Its own text, if that passes the checks of a text; the engine
    writes one otherwise.
    """
    task, recipe, model = attempt.task, attempt.recipe, attempt.writer.upstream.model
    made = checked(text, task, attempt.writer.count) if text else None
    made = made or Summary("", task.first, task.last, 0)
    return structs.replace(
        made,
        first=0,
        kind="model",
        scope="cumulative",
        recipe=key_of(recipe, model, task),
        usage=attempt.cost.spent,
        model=model,
        native=native,
    )


# The chain of models

_log = logging.getLogger("refold.summarisers")


class ModelSummariser:
    """Asks the models of a chain in order. Without a recipe of its own it uses the policy's."""

    def __init__(
        self,
        chain: Sequence[SummaryWriter],
        recipe: Recipe | None = None,
        cache: SummaryCache | None = None,
        *,
        native: SummaryWriter | None = None,
        without: list[str] | None = None,
    ) -> None:
        """`native` is the conversation's own model, if its provider shall compact before the chain is asked. `without` is
        shared by all summarisers of the same provider and model: why it is not asked for compactions again.
        """
        self.chain, self.recipe, self.native = tuple(chain), recipe, native
        self._without: list[str] = [] if without is None else without
        self._answers = PaidAnswers(MemoryCache() if cache is None else cache)
        self._cost = TaskCost()
        self._copied: ModelSummariser | None = None
        """The summariser that this one is a copy of."""

    def __copy__(self) -> ModelSummariser:
        """A copy for one task, whose cost is read afterwards although other tasks may use the original
        meanwhile. The original reports the task too.
        """
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__, _copied=self._copied or self)
        return made

    @property
    def problems(self) -> list[str]:
        """The reasons for rejected answers to the last task, newest last; never their text."""
        return self._cost.problems

    @property
    def failure(self) -> str:
        """Why no model answered the last task, such as `the summariser answered 401`; empty if one did."""
        return "; ".join(dict.fromkeys(self._cost.failures))

    @property
    def spent(self) -> Usage:
        """The cost of the last task, with or without a summary."""
        return self._cost.spent

    @property
    def questions(self) -> Sequence[PaidQuestion]:
        """The questions of the last task, each with its model: the models of a chain have different prices."""
        return self._cost.questions

    async def write(self, task: SummaryTask) -> Summary | None:
        """A summary that passed its checks, or None if no model of the chain gave one."""
        recipe = self.recipe or task.recipe
        cost = self._cost = TaskCost()
        if self._copied is not None:
            self._copied._cost = cost  # noqa: SLF001  # of the same class
        if recipe.strategy == "extractive":
            return None
        made, why = await self._compacted(task, recipe, cost)
        if made is not None:
            return made
        for writer in self.chain:
            reader = Reader(SummaryAttempt(writer, recipe, task, self._answers, cost))
            try:
                answer = await reader.summary()
            except Exception as error:  # noqa: BLE001  # after any failure, try the next model
                if not isinstance(error, Rejected):
                    cost.failures.append(_problem(error))
                cost.problems.append(f"{writer.upstream.model}: {_problem(error)}")
                _log.warning("no summary by %s", cost.problems[-1])
                continue
            written = await reader.attempt.work(_summary, answer, reader, recipe, cost.spent)
            return structs.replace(written, why=why) if why else written
        return None

    async def _compacted(
        self, task: SummaryTask, recipe: Recipe, cost: TaskCost
    ) -> tuple[Summary | None, str]:
        """The summary by the conversation's own provider, or the reason for which there is none."""
        if self.native is None or not (task.native_for or task.not_native):
            return None, ""
        attempt, why = (
            SummaryAttempt(self.native, recipe, task, self._answers, cost),
            next(iter(self._without), ""),
        )
        if not why:
            try:
                asked = structs.replace(task, sent=task.native_sent)
                native, text = await _compaction(
                    SummaryAttempt(self.native, recipe, asked, self._answers, cost)
                )
                return await attempt.work(_native_summary, native, text, attempt), ""
            except Exception as error:  # noqa: BLE001  # after any failure, the models are asked
                why = _why_not_native(error)
                if why.startswith(_WITHOUT) or why == NO_COMPACTION:
                    self._without.append(why)
        why = f"the provider did not compact: {why}"
        if task.not_native:  # nobody was asked, so this is no failure
            return None, why
        cost.problems.append(f"{self.native.upstream.model}: {why}")
        cost.failures.append(why)
        _log.warning("no compaction by %s: %s", self.native.upstream.model, why)
        return None, why


def _with_facts(answer: TaskAnswer, reader: Reader) -> TaskAnswer:
    """The answer with the facts that must not get lost, as many as fit."""
    task, text = reader.task, headings_once(answer.text)
    typed = typed_by_user(task.passages)
    full = with_facts(text, task.ledger, most=reader.most, count=reader.count, said=typed)
    return TaskAnswer(
        full, (*answer.mended, "facts from the ledger added") if full != text else answer.mended
    )


def _summary(answer: TaskAnswer, reader: Reader, recipe: Recipe, usage: Usage) -> Summary:
    task, writer, full = reader.task, reader.attempt.writer, _with_facts(answer, reader)
    opening = missing_lines(full.text, task.word_for_word)
    text = f"{opening}{full.text}"
    return Summary(
        text,
        task.first,
        task.last,
        writer.count(text),
        "model",
        task.scope,
        recipe=key_of(recipe, writer.upstream.model, task),
        usage=usage,
        model=writer.upstream.model,
        checks=full.mended,
        requests=len(opening),
    )


def _why_not_native(error: Exception) -> str:
    """Say in a few words why a provider gave no compaction, without any text of it."""
    if isinstance(error, NoCompaction):
        return str(error)
    return (error.reason if isinstance(error, UpstreamError) else "") or type(error).__name__


def _problem(error: Exception) -> str:
    """Say in a few words why a model gave no summary, without any text of it or its server."""
    if isinstance(error, Rejected):
        return str(error)
    reason = error.reason if isinstance(error, UpstreamError) else ""
    return f"the summariser {reason}" if reason else type(error).__name__


# Summaries that a function of the user wrote


def checked(text: str, task: SummaryTask, count: Count) -> Summary | None:
    """A text as the summary of a task, with the facts that must not get lost; None if it has a fault."""
    found = accept(
        SummaryDraft(text), _source(task, count), most=task.max_tokens, count=count, is_last_try=True
    )
    if found.fault is not None:
        _log.warning("the summary of the function was not used: %s", FAULTS[found.fault])
        return None
    summary = redact(found.text)
    opening = missing_lines(summary, task.word_for_word)
    return Summary(
        f"{opening}{summary}",
        task.first,
        task.last,
        count(f"{opening}{summary}"),
        "model",
        task.scope,
        checks=found.mended,
        requests=len(opening),
    )


def _source(task: SummaryTask, count: Count) -> DraftSource:
    source = transcript(task.passages)
    return DraftSource(
        told=source,
        tokens=count(source) + count(task.previous),
        previous=task.previous,
        asked=task.focus,
        spoken=said_by("user", task.passages, MAX_READ),
        typed=typed_by_user(task.passages),
        answered=said_by("assistant", task.passages, MAX_READ),
        ledger=task.ledger,
    )


MOST = 1_000
"""Summaries of a few thousand tokens each: a few megabytes."""


class MemoryCache:
    """The newest summaries by key, in memory."""

    def __init__(self) -> None:
        self._kept: dict[str, Summary] = {}

    async def get(self, key: str) -> Summary | None:
        return self._kept.get(key)

    async def put(self, key: str, summary: Summary) -> None:
        self._kept[key] = summary
        while len(self._kept) > MOST:
            del self._kept[next(iter(self._kept))]


class PaidAnswers:
    """A cache with one lock per key, whose failures are logged and ignored."""

    def __init__(self, cache: SummaryCache) -> None:
        self._cache = cache
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def lock_for(self, key: str) -> asyncio.Lock:
        """The lock of a key, to be held during lookup and question: the next caller then finds the answer in
        the cache.
        """
        return self._locks.setdefault(key, asyncio.Lock())

    async def get(self, key: str) -> Summary | None:
        try:
            return await self._cache.get(key)
        except Exception as error:  # noqa: BLE001  # the cache may be the user's own
            _log.warning("a summary could not be looked up: %s", type(error).__name__)
            return None

    async def put(self, key: str, summary: Summary) -> None:
        try:
            await self._cache.put(key, summary)
        except Exception as error:  # noqa: BLE001  # the answer is used even if it cannot be cached
            _log.warning("a summary could not be cached: %s", type(error).__name__)


# Keys of answers and summaries


def key_of(recipe: Recipe, model: str, task: SummaryTask) -> str:
    """The hash of recipe, model and source."""
    settings = (recipe.strategy, recipe.reading, recipe.max_tokens, recipe.temperature, model, task.scope)
    numbers = (task.first, task.last, task.max_tokens, task.turn_from)
    ledger = (line for lines in msgspec.structs.astuple(task.ledger) for line in lines)
    source = (transcript(task.passages), task.previous, task.focus, *task.word_for_word)
    raw = _raw(task.sent, task.system, task.tools) if recipe.reading == "raw" else ()
    prompts = msgspec.structs.astuple(recipe.prompts)
    return _hash((VERSION, repr((*settings, *numbers)), *prompts, *source, *map(str, ledger), *raw))


def question_key(model: str, ask: Ask) -> str:
    """The hash of a question to a model."""
    settings = repr((model, ask.max_output, ask.temperature))
    return f"answer-{_hash((VERSION, settings, *_raw(ask.messages, ask.system, ask.tools)))}"


def _raw(
    messages: Iterable[Message], system: str | tuple[Message, ...], tools: Iterable[Tool]
) -> Iterator[str]:
    yield transcript(Passage(number, message) for number, message in enumerate(messages))
    yield system if isinstance(system, str) else "\n\n".join(message.text for message in system)
    yield from (f"{tool.name} {tool.schema}" for tool in tools)


def _hash(texts: Iterable[str]) -> str:
    """A key for these texts in this order. Accepts lone surrogates."""
    found = blake2b(digest_size=16)
    for text in texts:
        found.update(b"\0")
        found.update(text.encode("utf-8", "surrogatepass"))
    return found.hexdigest()
