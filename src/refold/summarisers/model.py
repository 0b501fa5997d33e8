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
LEAST_ROOM = 256
"""Tokens: with less room to read, every message would be a part of its own."""
PARTS_TO_MERGE = 4
"""How many parts must fit into one question, so that merging makes them fewer."""
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
        """The whole summary, with the facts that must not get lost."""
        written = await self._summary()
        text = headings_once(written.text)
        full = self._with_facts(text)
        mended = (*written.mended, "facts from the ledger added") if full != text else written.mended
        return structs.replace(written, text=full, mended=mended)

    def _with_facts(self, text: str) -> str:
        """As many facts as there are tokens for: characters alone do not tell."""
        full = text
        for share in (1.0, 0.5, 0.25):
            full = with_facts(text, self.task.ledger, int(self.most * CHARACTERS_PER_TOKEN * share))
            if self.writer.count(full) <= self.most:
                break
        return full

    async def _summary(self) -> _Written:
        """A summary of the history, and where a turn is split, of its beginning apart from that."""
        is_selective, passages = self.recipe.strategy == "selective", self.task.passages
        passages = _selected(passages) if is_selective else passages
        start, previous = self.task.turn_from, self.task.previous
        if start is None:
            return await self._told(passages, "update" if previous else "fresh", self.most)
        history = tuple(passage for passage in passages if passage.number < start)
        turn = tuple(passage for passage in passages if passage.number >= start)
        parts = list[_Written]()
        if history:
            parts.append(await self._told(history, "update" if previous else "fresh", self.most * 2 // 3))
        elif previous:
            parts.append(_Written(previous, Usage()))
        if turn:
            parts.append(await self._told(turn, "turn", self.most // 3 if parts else self.most))
        return _joined(parts)

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
        text, count = transcript(passages), self.writer.count
        previous = "" if asked == "turn" else self.task.previous
        if room < LEAST_ROOM or count(previous) > room // 2:
            raise _Rejected("its window is too small for what it has to read")
        if count(text) + count(previous) <= room and self.recipe.strategy != "hierarchical":
            return await self._checked(text, asked, most, previous, is_whole=True)
        room -= count(previous)
        most_each = max(1, min(most, room // PARTS_TO_MERGE))
        parts = [await self._part(chunk, most_each) for chunk in chunks(passages, room, count)]
        parts, usage = await self._merged(parts, most_each, room, text)
        if len(parts) == 1 and not previous:
            return structs.replace(parts[0], usage=usage)
        merged = "\n\n".join(part.text for part in parts)
        written = await self._checked(merged, "update" if previous else "merge", most, previous, facts=text)
        return structs.replace(written, usage=usage + written.usage)

    async def _merged(
        self, parts: list[_Written], most: int, room: int, facts: str
    ) -> tuple[list[_Written], Usage]:
        """The parts, merged in groups until all that is left can be read at once, and what all of it cost."""
        usage = _sum(parts)
        while self.writer.count("\n\n".join(part.text for part in parts)) > room:
            groups = _grouped([part.text for part in parts], room, self.writer.count)
            if len(groups) >= len(parts):
                raise _Rejected("its window is too small for the parts of the whole")
            parts = [await self._checked(group, "merge", most, "", facts=facts) for group in groups]
            usage += _sum(parts)
        return parts, usage

    async def _part(self, chunk: tuple[Passage, ...], most: int) -> _Written:
        """A chunk's own summary, kept under its own key: if a later chunk fails, this one is not paid for again."""
        part = SummaryTask(chunk, chunk[0].number, chunk[-1].number + 1, most, focus=self.task.focus)
        key = f"part-{key_of(self.recipe, self.writer.upstream.model, part)}"
        kept = await self.cache.get(key)
        if kept is not None:
            return _Written(kept.text, Usage(), kept.checks)
        written = await self._checked(transcript(chunk), "fresh", most, "")
        await self.cache.put(key, _summary(part, written, self.writer, key))
        return written

    async def _checked(
        self, body: str, asked: Asked, most: int, previous: str, *, facts: str = "", is_whole: bool = False
    ) -> _Written:
        """Ask, check, and ask once more with the fault named. Raw messages are read only where they are all of it."""
        is_raw = is_whole and self.recipe.reading == "raw" and bool(self.task.sent) and asked != "turn"
        source, fault, usage = self._source(body, previous, facts, is_raw=is_raw), "", Usage()
        for number in range(TRIES):
            reply = await self.writer.upstream.ask(
                self._ask(body, asked, most, previous, fault, is_raw=is_raw)
            )
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

    def _source(self, body: str, previous: str, facts: str, *, is_raw: bool) -> Source:
        said = (one.message.text for one in self.task.passages if one.message.role == "user")
        read = transcript(Passage(number, one) for number, one in enumerate(self.task.sent)) if is_raw else ""
        text = f"{previous}\n{body}\n{facts}\n{self.task.focus}\n{read}"
        tokens = self.writer.count(body) + self.writer.count(previous)
        return Source(text, body, "\n".join(said), tokens, EMPTY)

    def _ask(self, body: str, asked: Asked, most: int, previous: str, fault: str, *, is_raw: bool) -> Ask:
        words = instruction(asked, self.recipe.prompts, max_tokens=most, focus=self.task.focus, fault=fault)
        if is_raw:
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


def _grouped(texts: Sequence[str], room: int, count: Count) -> list[str]:
    """Neighbouring texts joined into as few as fit the room."""
    groups: list[str] = []
    for text in texts:
        joined = f"{groups[-1]}\n\n{text}" if groups else text
        if groups and count(joined) <= room:
            groups[-1] = joined
        else:
            groups.append(text)
    return groups


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
