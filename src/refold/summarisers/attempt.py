"""One model at one task: asks a question, checks the answer, and records the cost.

If an answer has a fault, the model is told which and asked once more. A paid draft whose fault can be
repaired automatically is used as the last resort. Accepted answers are cached by their question. The cost of
every try is recorded, whether its answer is used or not. A refusal for length lowers the estimate of the
model's window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias, TypeVar

from msgspec import Struct, structs

from refold.core.prompts import Asked, Passage, Recipe, fenced, instruction, question, said_by, transcript
from refold.core.secrets.redact import redact
from refold.core.summary_checks.accept import Accepted, DraftSource, SummaryDraft, accept
from refold.core.verify import count_breakpoints
from refold.model.errors import ContextOverflow, Overflow
from refold.model.message import Message, Reasoning, user
from refold.model.summary import Summary
from refold.model.tokens import Usage
from refold.ports.models import Ask, SummaryTask, Upstream
from refold.summarisers.cache import PaidAnswers, question_key
from refold.text_work import run_text_work
from refold.wire.reply import Reply

T = TypeVar("T")

Count: TypeAlias = Callable[[str], int]

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


class TaskQuestion(Struct, frozen=True):
    body: str
    asked: Asked
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
    """The cost of a task so far, by model, and the reasons for rejected answers."""

    def __init__(self) -> None:
        self.bill: dict[str, Usage] = {}
        """By the model's name, in the order of the questions."""
        self.problems: list[str] = []
        self.failures: list[str] = []
        """Why models gave no answer at all."""

    @property
    def spent(self) -> Usage:
        return sum(self.bill.values(), Usage())

    def add(self, model: str, usage: Usage | None) -> None:
        self.bill[model] = self.bill.get(model, Usage()) + (usage or Usage())


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
        source, fault, held = await self.work(self._source, asked), "", list[SummaryDraft]()
        for number in range(TRIES):
            try:
                draft = await self._ask_draft(asked, fault)
            except Exception as error:
                if not held:
                    raise
                self._note(type(error).__name__)
                break
            found = await self._check_draft(draft, source, asked, is_last_try=number + 1 == TRIES)
            if found.fault is None:
                return TaskAnswer(found.text, found.mended)
            held += [draft] if found.fault == "invented" else []
            fault = found.reason
            self._note(found.fault)
        for draft in held[:1]:
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
    ) -> Accepted:
        """The result of the checks of a draft, with secrets redacted that the model may have copied or
        assembled.
        """

        def judge() -> Accepted:
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
            spoken=said_by("user", self.task.passages),
            answered=said_by("assistant", self.task.passages),
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
