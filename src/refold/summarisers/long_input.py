"""Reading what is too long for a model: in parts, which are merged.

One idea: every question fits the model's window, and how a source is parted depends on that window alone. So a part is the
same question again when the conversation has gone on, or a later part has failed, and its answer is at hand. A model that
says that it was given too much gets less from there on; what it has answered already stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from msgspec import structs

from refold.core.prompts import Asked, Passage, instruction, transcript
from refold.core.summary_checks.headings import says_something, split_section
from refold.core.tool_kinds import has_failed
from refold.core.transcript_chunks import chunks, group_texts, split_text
from refold.model.errors import ContextOverflow
from refold.summarisers.attempt import Rejected, SummaryAttempt, TaskAnswer, TaskQuestion

T = TypeVar("T")

MARGIN = 0.9
"""Of a summariser's window: counts of another model's text are a few percent off."""
LEAST_ROOM = 256
"""Tokens: with less room to read, every message would be a part of its own."""
SUMMARY_PART = 4
"""The answer takes no more than this part of the window: most of it is for reading."""
PART_OF_WINDOW = 8
"""The summary of a part takes no more than this part of the window, so that several can be merged at once."""
TURN = "## This Turn So Far"
"""The heading that the question about a turn asks for: under it, the next one finds what was told already."""
_BETWEEN = "\n\n"
_JOINT = 2
"""Tokens that two parts take together, and neither alone."""


class Reader:
    """One model that reads one task, as its window allows."""

    def __init__(self, desk: SummaryAttempt) -> None:
        self.desk, self.task, self.recipe = desk, desk.task, desk.recipe
        self.count = desk.writer.count
        self.most = min(self.recipe.max_tokens, self.task.max_tokens, self.window // SUMMARY_PART)

    @property
    def window(self) -> int:
        return self.desk.window

    async def summary(self) -> TaskAnswer:
        """A summary of the history, and where a turn is split, of its beginning apart from that.

        Raises:
            Rejected: no answer could be used, or there is nothing to say.
            UpstreamError: there is no answer.
        """
        start, passages, previous = self.task.turn_from, self.task.passages, self.task.previous
        if start is None:
            read = await self._work(self._read, passages)
            return await self._told(read, self._whole(previous), self.most, previous)
        history = await self._work(self._read, tuple(one for one in passages if one.number < start))
        turn = await self._work(self._read, tuple(one for one in passages if one.number >= start))
        found = _joined(await self._apart(history, turn))
        if not says_something(found.text):
            raise Rejected("there is nothing to summarise")
        return found

    async def _work(self, function: Callable[..., T], *args: object) -> T:
        return await self.desk.work(function, *args)

    async def _apart(self, history: Sequence[Passage], turn: Sequence[Passage]) -> list[TaskAnswer]:
        """What came before a turn that is split, and the turn, whose beginning the previous summary may tell already."""
        previous, begun, share = self.task.previous, "", self.most * 2 // 3 if turn else self.most
        found = list[TaskAnswer]()
        if history:
            found.append(await self._told(history, self._whole(previous), share, previous))
        else:
            previous, begun = split_section(previous, TURN) if turn else (previous, "")
            found += [await self._kept(previous, share)] if previous else []
        if turn:
            most = self.most // 3 - _JOINT if found else self.most
            found.append(await self._told(turn, "turn", most, begun))
        return found

    async def _kept(self, text: str, most: int) -> TaskAnswer:
        """A summary that nothing is added to: as it is, or shortened where it leaves no room for the turn."""
        if await self._work(self.count, text) <= most:
            return TaskAnswer(text)
        body, pieces = await self._work(lambda: (transcript(self.task.passages), self._cut(text)))
        return await self._together(pieces, TaskQuestion("", "merge", most, facts=body))

    def _whole(self, previous: str) -> Asked:
        return "update" if previous else "fresh"

    def _read(self, passages: tuple[Passage, ...]) -> tuple[Passage, ...]:
        """What is read of some passages. Where nobody said a word, what was done is all there is."""
        return (_selected(passages) or passages) if self.recipe.strategy == "selective" else passages

    async def _told(self, passages: Sequence[Passage], asked: Asked, most: int, previous: str) -> TaskAnswer:
        """A summary of some passages: at once where they fit, else in parts."""
        body = await self._work(transcript, passages)
        for is_raw in (True, False) if self._is_raw() else (False,):
            whole = TaskQuestion(body, asked, most, previous, is_raw=is_raw)
            if self.recipe.strategy == "hierarchical" or not await self._work(self._fits, whole):
                continue
            with suppress(ContextOverflow):
                return await self.desk.answer(whole)
        return await self._in_parts(passages, body, asked, most, previous)

    def _is_raw(self) -> bool:
        """Messages themselves are read only where they are all of it, told in one piece."""
        is_whole = self.recipe.strategy == "abstractive" and self.task.turn_from is None
        return is_whole and self.desk.can_read_raw

    def _fits(self, asked: TaskQuestion) -> bool:
        return self.desk.size_of(asked) + asked.most <= int(self.window * MARGIN)

    async def _in_parts(
        self, passages: Sequence[Passage], body: str, asked: Asked, most: int, previous: str
    ) -> TaskAnswer:
        """Parts one by one, then merged, with the previous summary as the oldest of them where it is too long itself."""
        most = min(most, self.window // SUMMARY_PART)
        before = list[TaskAnswer]()
        if await self._work(self.count, previous) > self._room(asked, most) // 2:
            before, previous = await self._work(self._cut, previous), ""
        whole = None if before else await self._in_one(passages, asked, most, previous)
        if whole is not None:
            return whole
        answers = [*before, *await self._parts(passages, "turn" if asked == "turn" else "fresh")]
        last: Asked = "turn" if asked == "turn" else "update" if previous else "merge"
        return await self._together(answers, TaskQuestion("", last, most, previous, facts=body))

    async def _in_one(
        self, passages: Sequence[Passage], asked: Asked, most: int, previous: str
    ) -> TaskAnswer | None:
        """The answer where one chunk holds all there is; None where none does."""
        room = self._room(asked, self._each)

        def whole() -> TaskQuestion | None:
            found = chunks(passages, room, self.count)
            one = TaskQuestion(transcript(found[0]), asked, most, previous) if len(found) == 1 else None
            return one if one is not None and self._fits(one) else None

        if (question := await self._work(whole)) is not None:
            with suppress(ContextOverflow):
                return await self.desk.answer(question)
        return None

    async def _together(self, answers: list[TaskAnswer], asked: TaskQuestion) -> TaskAnswer:
        """One answer for all of them, in reply to this question, whose body they are."""
        most, merging = asked.most, asked.asked if asked.asked == "turn" else "merge"
        while True:
            most = min(most, self.window // SUMMARY_PART)
            room = self._room(asked.asked, most) - await self._work(self.count, asked.previous)
            answers = await self._merged(answers, room, merging, asked.facts)
            if (
                len(answers) == 1
                and not asked.previous
                and await self._work(self.count, answers[0].text) <= most
            ):
                return answers[0]
            told = _BETWEEN.join(answer.text for answer in answers)
            with suppress(ContextOverflow):
                return await self.desk.answer(structs.replace(asked, body=told, most=most))

    def _cut(self, text: str) -> list[TaskAnswer]:
        return [TaskAnswer(piece) for piece in split_text(text, self._each, self.count)]

    async def _parts(self, passages: Sequence[Passage], asked: Asked) -> list[TaskAnswer]:
        """A summary of each chunk."""
        found, done = list[TaskAnswer](), 0
        while done < len(passages):
            room = self._room(asked, self._each)
            for chunk in await self._work(chunks, passages[done:], room, self.count):
                try:
                    body = await self._work(transcript, chunk)
                    found.append(await self.desk.answer(TaskQuestion(body, asked, self._each)))
                except ContextOverflow:
                    break
                done += len(chunk)
        return found

    async def _merged(
        self, answers: list[TaskAnswer], room: int, asked: Asked, facts: str
    ) -> list[TaskAnswer]:
        """The parts, merged in groups until all that is left can be read at once."""
        while await self._work(self.count, _BETWEEN.join(answer.text for answer in answers)) > room:
            texts = [answer.text for answer in answers]
            groups = await self._work(group_texts, texts, self._room(asked, self._each), self.count)
            if len(groups) >= len(texts):
                raise Rejected("its window is too small for the parts of the whole")
            answers = await self._merged_once(groups, asked, facts)
        return answers

    async def _merged_once(self, groups: list[list[str]], asked: Asked, facts: str) -> list[TaskAnswer]:
        """One answer for each group; from the first that was too large on, the texts as they were."""
        found = list[TaskAnswer]()
        for number, group in enumerate(groups):
            whole = TaskQuestion(_BETWEEN.join(group), asked, self._each, facts=facts)
            try:
                found.append(await self.desk.answer(whole) if len(group) > 1 else TaskAnswer(group[0]))
            except ContextOverflow:
                return [*found, *(TaskAnswer(text) for left in groups[number:] for text in left)]
        return found

    @property
    def _each(self) -> int:
        """How long the summary of a part may be: the same for every part of every task."""
        return max(1, min(self.recipe.max_tokens, self.window // PART_OF_WINDOW))

    def _room(self, asked: Asked, most: int) -> int:
        """What the summariser's window leaves for reading."""
        words = instruction(asked, self.recipe.prompts, max_tokens=most, focus=self.task.focus)
        used = self.count(words) + self.count(self.recipe.prompts.system) + most
        room = int(self.window * MARGIN) - used
        if room < LEAST_ROOM:
            raise Rejected("its window is too small for what it has to read")
        return room


def _selected(passages: Sequence[Passage]) -> tuple[Passage, ...]:
    """What people said, and what failed: calls and results of work that went well can be looked up."""
    return tuple(
        passage
        for passage in passages
        if (passage.message.role != "tool" and passage.message.text)
        or any(has_failed(result) for result in passage.message.results)
    )


def _joined(parts: Sequence[TaskAnswer]) -> TaskAnswer:
    mended = dict.fromkeys(note for part in parts for note in part.mended)
    return TaskAnswer(_BETWEEN.join(part.text for part in parts), tuple(mended))
