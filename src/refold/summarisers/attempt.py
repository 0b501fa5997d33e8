"""One model at one task: a question, its answer, and what it cost.

One idea: an answer is checked, and if it has a fault the model is told which and asked once more; what was paid for and can be
mended by machine is used before nothing is. What passes is kept under its question. What every try has cost is noted, whatever became of it, and a question that was too long teaches how much the
model reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias, TypeVar

from msgspec import Struct, structs

from refold.core.prompts import Asked, Passage, Recipe, fenced, instruction, question, said_by, transcript
from refold.core.secrets.redact import redact
from refold.core.summary_checks.accept import Accepted, DraftSource, SummaryDraft, accept
from refold.core.verify import count_breakpoints
from refold.model.errors import ContextOverflow
from refold.model.message import Message, Reasoning, user
from refold.model.overflow import Overflow
from refold.model.summary import Summary
from refold.model.tokens import Usage
from refold.ports.summariser import SummaryTask
from refold.ports.upstream import Ask, Upstream
from refold.summarisers.cache import PaidAnswers, question_key
from refold.text_work import run_text_work
from refold.wire.reply import Reply

T = TypeVar("T")

Count: TypeAlias = Callable[[str], int]

TRIES = 2
"""A fault that was named is mostly mended; one that comes twice stays."""
OWN_BREAKPOINTS = 3
"""Cache breakpoints that a client's own messages may bring: providers take four, and the last is ours."""
PROSE = 0.75
"""Of the summary, what the model is told to take: the facts that it leaves out have the rest. The same whatever facts there are,
so that the same question stays the same question when another one is noted."""


class SummaryWriter(Struct, frozen=True):
    """A model that writes summaries, with its own window, which may be smaller than the conversation's."""

    upstream: Upstream
    window: int
    count: Count


class TaskQuestion(Struct, frozen=True):
    body: str
    asked: Asked
    most: int
    """How many tokens the answer may have."""
    previous: str = ""
    facts: str = ""
    """The transcript behind a body that is itself made of summaries: what the answer may name besides."""
    is_raw: bool = False
    """The messages themselves are read, not the body."""


class TaskAnswer(Struct, frozen=True):
    text: str
    mended: tuple[str, ...] = ()


class Rejected(Exception):  # it never leaves this package
    """No answer could be used."""


class TaskCost:
    """What a task has cost so far, by whom was asked, and why answers were not used."""

    def __init__(self) -> None:
        self.bill: dict[str, Usage] = {}
        """By the name of the model, in the order in which they were asked."""
        self.problems: list[str] = []

    @property
    def spent(self) -> Usage:
        return sum(self.bill.values(), Usage())

    def add(self, model: str, usage: Usage | None) -> None:
        self.bill[model] = self.bill.get(model, Usage()) + (usage or Usage())


class SummaryAttempt:
    def __init__(
        self, writer: SummaryWriter, recipe: Recipe, task: SummaryTask, shelf: PaidAnswers, account: TaskCost
    ) -> None:
        self.writer, self.recipe, self.task, self.shelf, self.account = writer, recipe, task, shelf, account
        self._text_size = task.characters
        self.window = writer.window
        """What the model is believed to read and write at once, in our tokens: less after every refusal."""

    @property
    def can_read_raw(self) -> bool:
        """Are the messages themselves at hand, in a form that a provider takes?"""
        prompt = () if isinstance(self.task.system, str) else self.task.system
        marks = sum(count_breakpoints(message.parts) for message in (*prompt, *self.task.sent))
        return self.recipe.reading == "raw" and bool(self.task.sent) and marks <= OWN_BREAKPOINTS

    async def answer(self, asked: TaskQuestion) -> TaskAnswer:
        """The answer that was paid for, or a new one.

        Raises:
            Rejected: none of the tries passed the checks.
            ContextOverflow: it was too long; by then the window is smaller than this question.
            UpstreamError: there is no answer.
        """
        key = await self.work(self._key, asked)
        async with self.shelf.alone(key):
            kept = await self.shelf.get(key)
            if kept is not None:
                return TaskAnswer(kept.text, kept.checks)
            found = await self._checked(asked)
            await self.shelf.put(key, await self.work(self._kept, found, key))
            return found

    async def work(self, function: Callable[..., T], *args: object) -> T:
        """Call a function that reads the task, or what a model has made of it: in a thread where that is much text."""
        return await run_text_work(self._text_size, function, *args)

    def _key(self, asked: TaskQuestion) -> str:
        return question_key(self.writer.upstream.model, self._ask(asked))

    async def _checked(self, asked: TaskQuestion) -> TaskAnswer:
        """Ask, check, and ask once more with the fault named. A draft that can be mended is at hand if nothing better comes."""
        source, fault, held = await self.work(self._source, asked), "", list[SummaryDraft]()
        for number in range(TRIES):
            try:
                draft = await self._drafted(asked, fault)
            except Exception as error:
                if not held:
                    raise
                self._note(type(error).__name__)
                break
            found = await self._judged(draft, source, asked, is_last_try=number + 1 == TRIES)
            if found.fault is None:
                return TaskAnswer(found.text, found.mended)
            held += [draft] if found.fault == "invented" else []
            fault = found.reason
            self._note(found.fault)
        for draft in held[:1]:
            found = await self._judged(draft, source, asked, is_last_try=True)
            if found.fault is None:
                return TaskAnswer(found.text, found.mended)
        raise Rejected(fault)

    async def _drafted(self, asked: TaskQuestion, fault: str) -> SummaryDraft:
        reply = await self._reply(asked, fault)
        self.account.add(self.writer.upstream.model, reply.usage)
        return _draft(reply)

    async def _judged(
        self, draft: SummaryDraft, source: DraftSource, asked: TaskQuestion, *, is_last_try: bool
    ) -> Accepted:
        """What is accepted of a draft, without the secrets that a model may have made of what it read."""

        def judge() -> Accepted:
            count, most = self.writer.count, asked.most
            found = accept(draft, source, most=most, count=count, is_last_try=is_last_try)
            return structs.replace(found, text=redact(found.text)) if found.fault is None else found

        return await run_text_work(self._text_size + len(draft.text), judge)

    def _note(self, problem: str) -> None:
        self.account.problems.append(f"{self.writer.upstream.model}: {problem}")

    async def _reply(self, asked: TaskQuestion, fault: str) -> Reply:
        """Ask, and tell what we think of the length: who refuses without a word is understood by it."""
        size = await self.work(self.size_of, asked)
        ask = await self.work(self._ask, asked, fault)
        ask = structs.replace(ask, estimated=size, budget=self.window - asked.most)
        try:
            return await self.writer.upstream.ask(ask)
        except ContextOverflow as error:
            self.window = min(self.window // 2, _learnt(error.overflow, size, asked.most))
            raise

    def size_of(self, asked: TaskQuestion) -> int:
        """The tokens of a question, as we count them."""
        words = instruction(
            asked.asked, self.recipe.prompts, max_tokens=int(asked.most * PROSE), focus=self.task.focus
        )
        read = self._read() if asked.is_raw else (asked.body, self.recipe.prompts.system)
        return sum(map(self.writer.count, (words, asked.previous, *read)))

    def _source(self, asked: TaskQuestion) -> DraftSource:
        """What an answer is held against. Facts are added to the whole, so an answer need not carry them."""
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
        """What a model that reads the messages themselves is shown: the whole window, and what it is told to be."""
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
            said = f"{self._unseen(asked.previous)}{words}"
            sent, task = (*self.task.sent, user(said)), self.task
            return Ask(sent, task.system, task.tools, asked.most, self.recipe.temperature, is_cached=True)
        said = question(asked.body, words, previous=asked.previous)
        return Ask((user(said),), self.recipe.prompts.system, (), asked.most, self.recipe.temperature)

    def _unseen(self, previous: str) -> str:
        """The summary so far, where the messages do not show it already."""
        is_shown = any(previous in message.text for message in self.task.sent)
        return f"{fenced(previous, 'previous-summary')}\n\n" if previous and not is_shown else ""

    def _kept(self, answer: TaskAnswer, key: str) -> Summary:
        task, tokens = self.task, self.writer.count(answer.text)
        return Summary(answer.text, task.first, task.last, tokens, "model", recipe=key, checks=answer.mended)


def _learnt(found: Overflow | None, size: int, output: int) -> int:
    """What a model reads and writes at once, in our tokens, after a question of `size` and an answer of `output` were too much.

    A limit that was stated counts where it makes the next question smaller; else half of this one is tried.
    """
    limit, counted = 0, 0
    if found is not None and found.is_overflow:
        limit, counted = found.limit or 0, found.prompt or (found.requested or output) - output
    ours = int(limit / max(1.0, counted / max(1, size)))
    return ours if 0 < ours < size + output else (size + output) // 2


def _draft(reply: Reply) -> SummaryDraft:
    said: list[Message] = list(reply.messages)
    return SummaryDraft(
        "\n".join(message.text for message in said if message.text),
        reply.finish,
        any(message.calls for message in said),
        any(isinstance(part, Reasoning) for message in said for part in message.parts),
    )
