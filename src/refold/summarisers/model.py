"""Summaries written by models.

One idea: one model after the other is asked until one gives a summary that passes. If none of them does, there is no summary,
and whoever asked still has everything: the history, the previous summary, and a digest that needs no model.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from refold.core.prompts import Recipe
from refold.core.summary_checks.headings import headings_once
from refold.core.summary_checks.must_keep import typed_by_user, with_facts
from refold.core.user_requests import missing_lines
from refold.model.summary import Summary
from refold.model.tokens import Usage
from refold.ports.summariser import SummaryCache, SummaryTask
from refold.summarisers.attempt import Rejected, SummaryAttempt, SummaryWriter, TaskAnswer, TaskCost
from refold.summarisers.cache import KeptInMemory, PaidAnswers, key_of
from refold.summarisers.long_input import Reader

_log = logging.getLogger("refold.summarisers")


class ModelSummariser:
    """Asks one model after the other. Without a recipe of its own it follows the policy's."""

    def __init__(
        self, chain: Sequence[SummaryWriter], recipe: Recipe | None = None, cache: SummaryCache | None = None
    ) -> None:
        self.chain, self.recipe = tuple(chain), recipe
        self._shelf = PaidAnswers(KeptInMemory() if cache is None else cache)
        self._account = TaskCost()
        self._copied: ModelSummariser | None = None
        """The summariser that this one is a copy of."""

    def __copy__(self) -> ModelSummariser:
        """For one task whose cost is asked for afterwards, though others may have the summariser write meanwhile. The original tells
        of the task, too.
        """
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__, _copied=self._copied or self)
        return made

    @property
    def problems(self) -> list[str]:
        """Why answers to the last task could not be used, newest last; never what they said."""
        return self._account.problems

    @property
    def spent(self) -> Usage:
        """What the last task has cost, whether it ended with a summary or not."""
        return self._account.spent

    @property
    def bill(self) -> Mapping[str, Usage]:
        """The same by model: those of a chain have prices of their own."""
        return self._account.bill

    async def write(self, task: SummaryTask) -> Summary | None:
        """A summary that passed its checks, or None where no model of the chain gave one."""
        recipe = self.recipe or task.recipe
        account = self._account = TaskCost()
        if self._copied is not None:
            self._copied._account = account  # noqa: SLF001  # of the same class
        for writer in self.chain if recipe.strategy != "extractive" else ():
            reader = Reader(SummaryAttempt(writer, recipe, task, self._shelf, account))
            try:
                answer = await reader.summary()
            except Exception as error:  # noqa: BLE001  # whatever it is, the next one may know better
                account.problems.append(f"{writer.upstream.model}: {_said(error)}")
                _log.warning("no summary by %s", account.problems[-1])
                continue
            return await reader.desk.work(_summary, answer, reader, recipe, account.spent)
        return None


def _with_facts(answer: TaskAnswer, reader: Reader) -> TaskAnswer:
    """The answer with the facts that must not get lost, as many as there are tokens for."""
    task, text = reader.task, headings_once(answer.text)
    said = typed_by_user(task.passages)
    full = with_facts(text, task.ledger, most=reader.most, count=reader.count, said=said)
    return TaskAnswer(
        full, (*answer.mended, "facts from the ledger added") if full != text else answer.mended
    )


def _summary(answer: TaskAnswer, reader: Reader, recipe: Recipe, usage: Usage) -> Summary:
    task, writer, full = reader.task, reader.desk.writer, _with_facts(answer, reader)
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


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, Rejected) else type(error).__name__
