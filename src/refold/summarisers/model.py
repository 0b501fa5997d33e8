"""Summaries written by models.

One idea: a model is asked, its answer is checked, and if it has a fault the model is told which and asked once more. Then the
next model of the chain is asked. If none of them gives an answer that passes, there is no summary, and whoever asked still has
everything: the history, the previous summary, and a digest that needs no model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from msgspec import Struct, structs

from refold.core.summary.accept import Accepted, Draft, Source, accept, headings_once, with_facts
from refold.core.summary.chunks import chunks
from refold.core.summary.ledger import EMPTY
from refold.core.summary.prompts import Asked, Passage, instruction, question, transcript
from refold.core.summary.redact import redact
from refold.core.tool_kinds import has_failed
from refold.model.errors import ContextOverflow, RefoldError
from refold.model.message import Message, Reasoning, user
from refold.model.summary import Summary
from refold.model.tokens import Usage
from refold.ports.summariser import SummaryCache, SummaryTask
from refold.ports.upstream import Ask, Upstream
from refold.summarisers.cache import KeptInMemory
from refold.summarisers.recipe import Recipe, key_of
from refold.wire.reply import Reply

Count: TypeAlias = Callable[[str], int]

TRIES = 2
"""A fault that was named is mostly mended; one that comes twice stays."""
MARGIN = 0.9
"""Of a summariser's window: counts of another model's text are a few percent off."""
SMALLER = 3
"""How often a source is parted more finely when a summariser says that it is too long."""
CHARACTERS_PER_TOKEN = 4


class Writer(Struct, frozen=True):
    """A model that writes summaries, with its own window, which may be smaller than the conversation's."""

    upstream: Upstream
    window: int
    count: Count


class _Written(Struct, frozen=True):
    text: str
    usage: Usage
    mended: tuple[str, ...] = ()


class _Rejected(Exception):  # it never leaves this module
    """No try passed the checks."""


class ModelSummariser:
    """Asks one model after the other until one writes a summary that passes."""

    def __init__(
        self, chain: Sequence[Writer], recipe: Recipe | None = None, cache: SummaryCache | None = None
    ) -> None:
        self.chain, self.recipe = tuple(chain), recipe or Recipe()
        self.cache: SummaryCache = cache or KeptInMemory()
        self.problems: list[str] = []
        """Why the last answers could not be used, newest last; never what they said."""

    async def write(self, task: SummaryTask) -> Summary | None:
        """A summary that passed its checks, or None where no model of the chain gave one."""
        self.problems = []
        for writer in self.chain:
            key = key_of(self.recipe, writer.upstream.model, task)
            kept = await self.cache.get(key)
            if kept is not None:
                return structs.replace(kept, usage=Usage())
            try:
                written = await _Session(writer, self.recipe, task, self.cache, self.problems).summary()
            except (RefoldError, _Rejected) as error:
                self.problems.append(f"{writer.upstream.model}: {_said(error)}")
                continue
            summary = _summary(task, written, writer, key)
            await self.cache.put(key, summary)
            return summary
        return None


class _Session:
    """One model at work on one task."""

    def __init__(
        self, writer: Writer, recipe: Recipe, task: SummaryTask, cache: SummaryCache, problems: list[str]
    ) -> None:
        self.writer, self.recipe, self.task, self.cache, self.problems = writer, recipe, task, cache, problems
        self.most = min(recipe.max_tokens, task.max_tokens)

    async def summary(self) -> _Written:
        """The whole summary: of the history, and where a turn is split, of its beginning apart from that."""
        passages = (
            _selected(self.task.passages) if self.recipe.strategy == "selective" else self.task.passages
        )
        start = self.task.turn_from
        if start is None:
            return await self._told(passages, "update" if self.task.previous else "fresh", self.most)
        history = tuple(passage for passage in passages if passage.number < start)
        turn = tuple(passage for passage in passages if passage.number >= start)
        parts, previous = list[_Written](), self.task.previous
        if history:
            parts.append(await self._told(history, "update" if previous else "fresh", self.most * 2 // 3))
        elif previous:
            parts.append(_Written(previous, Usage()))
        if turn:
            parts.append(await self._told(turn, "turn", self.most // 3 if parts else self.most))
        joined = _joined(parts)
        whole = with_facts(headings_once(joined.text), self.task.ledger, self.most * CHARACTERS_PER_TOKEN)
        return structs.replace(joined, text=whole)

    async def _told(self, passages: Sequence[Passage], asked: Asked, most: int) -> _Written:
        """A summary of some passages: at once where they fit, else in parts; in smaller parts where the model says so."""
        room = self._room(asked, most)
        for _ in range(SMALLER):
            try:
                return await self._in_room(passages, asked, most, room)
            except ContextOverflow as error:
                limit = error.overflow.limit if error.overflow else None
                room = min(room // 2, int((limit - most) * MARGIN) if limit and limit > most else room)
        return await self._in_room(passages, asked, most, room)

    async def _in_room(self, passages: Sequence[Passage], asked: Asked, most: int, room: int) -> _Written:
        text = transcript(passages)
        previous = "" if asked == "turn" else self.task.previous
        fits = self.writer.count(text) + self.writer.count(previous) <= room
        if fits and self.recipe.strategy != "hierarchical":
            return await self._checked(text, asked, most, previous)
        parts = [
            await self._part(chunk, most)
            for chunk in chunks(passages, max(1, room - self.writer.count(previous)), self.writer.count)
        ]
        if len(parts) == 1 and not previous:
            return parts[0]
        merged = "\n\n".join(part.text for part in parts)
        final: Asked = "update" if previous else "merge"
        written = await self._checked(merged, final, most, previous, facts=text)
        return structs.replace(written, usage=_sum((*parts, written)))

    async def _part(self, chunk: tuple[Passage, ...], most: int) -> _Written:
        """A chunk's own summary, kept under its own key: if a later chunk fails, this one is not paid for again."""
        model = self.writer.upstream.model
        part = structs.replace(self.task, passages=chunk, previous="", turn_from=None, max_tokens=most)
        key = f"part-{key_of(self.recipe, model, part)}"
        kept = await self.cache.get(key)
        if kept is not None:
            return _Written(kept.text, Usage(), kept.checks)
        written = await self._checked(transcript(chunk), "fresh", most, "")
        await self.cache.put(key, _summary(part, written, self.writer, key))
        return written

    async def _checked(
        self, body: str, asked: Asked, most: int, previous: str, *, facts: str = ""
    ) -> _Written:
        """Ask, check, and ask once more with the fault named."""
        source, fault, usage = self._source(body, previous, facts), "", Usage()
        for number in range(TRIES):
            reply = await self.writer.upstream.ask(self._ask(body, asked, most, previous, fault))
            usage += reply.usage or Usage()
            draft = _draft(reply)
            found = self._judged(draft, source, most, is_last=number + 1 == TRIES)
            if found.fault is None:
                return _Written(redact(found.text), usage, found.mended)
            fault = found.reason
            self.problems.append(f"{self.writer.upstream.model}: {found.fault}")
        raise _Rejected(fault)

    def _judged(self, draft: Draft, source: Source, most: int, *, is_last: bool) -> Accepted:
        tokens = self.writer.count(draft.text)
        return accept(draft, source, tokens=tokens, room=most * CHARACTERS_PER_TOKEN, is_last_try=is_last)

    def _source(self, body: str, previous: str, facts: str) -> Source:
        spoken = "\n".join(
            passage.message.text for passage in self.task.passages if passage.message.role == "user"
        )
        text = f"{previous}\n{body}\n{facts}"
        tokens = self.writer.count(body) + self.writer.count(previous)
        ledger = self.task.ledger if self.task.turn_from is None else EMPTY
        return Source(text, body, spoken, tokens, ledger)

    def _ask(self, body: str, asked: Asked, most: int, previous: str, fault: str) -> Ask:
        words = instruction(asked, self.recipe.prompts, max_tokens=most, focus=self.task.focus, fault=fault)
        if self.recipe.reading == "raw" and self.task.sent and asked in ("fresh", "update"):
            sent = (*self.task.sent, user(words))
            return Ask(sent, self.task.system, self.task.tools, most, self.recipe.temperature)
        said = question(body, words, previous=previous)
        return Ask((user(said),), self.recipe.prompts.system, (), most, self.recipe.temperature)

    def _room(self, asked: Asked, most: int) -> int:
        """What the summariser's window leaves for a transcript."""
        words = instruction(asked, self.recipe.prompts, max_tokens=most, focus=self.task.focus)
        used = self.writer.count(words) + self.writer.count(self.recipe.prompts.system) + most
        return max(1, int(self.writer.window * MARGIN) - used)


def _selected(passages: Sequence[Passage]) -> tuple[Passage, ...]:
    """What people said, and what failed: calls and results of work that went well can be looked up."""
    return tuple(
        passage
        for passage in passages
        if (passage.message.role != "tool" and passage.message.text)
        or any(has_failed(result) for result in passage.message.results)
    )


def _draft(reply: Reply) -> Draft:
    said: list[Message] = list(reply.messages)
    return Draft(
        "\n".join(message.text for message in said if message.text),
        reply.finish,
        any(message.calls for message in said),
        any(isinstance(part, Reasoning) for message in said for part in message.parts),
    )


def _joined(parts: Sequence[_Written]) -> _Written:
    mended = dict.fromkeys(note for part in parts for note in part.mended)
    return _Written("\n\n".join(part.text for part in parts), _sum(parts), tuple(mended))


def _sum(parts: Sequence[_Written]) -> Usage:
    total = Usage()
    for part in parts:
        total += part.usage
    return total


def _summary(task: SummaryTask, written: _Written, writer: Writer, key: str) -> Summary:
    return Summary(
        written.text,
        task.first,
        task.last,
        writer.count(written.text),
        "model",
        task.scope,
        recipe=key,
        usage=written.usage,
        checks=written.mended,
    )


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, _Rejected) else type(error).__name__
