"""Summaries written by a chain of models.

The models are asked in order until one gives a summary that passes the checks. If none does, there is no
summary, and nothing is lost: the caller still has the history, the previous summary, and a digest that needs
no model.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from refold.core.prompts import Recipe
from refold.core.summary_checks.headings import headings_once
from refold.core.summary_checks.must_keep import typed_by_user, with_facts
from refold.core.user_requests import missing_lines
from refold.model.errors import UpstreamError
from refold.model.summary import Summary
from refold.model.tokens import Usage
from refold.ports.models import SummaryCache, SummaryTask
from refold.summarisers.attempt import Rejected, SummaryAttempt, SummaryWriter, TaskAnswer, TaskCost
from refold.summarisers.cache import KeptInMemory, PaidAnswers, key_of
from refold.summarisers.long_input import Reader

_log = logging.getLogger("refold.summarisers")


class ModelSummariser:
    """Asks the models of a chain in order. Without a recipe of its own it uses the policy's."""

    def __init__(
        self, chain: Sequence[SummaryWriter], recipe: Recipe | None = None, cache: SummaryCache | None = None
    ) -> None:
        self.chain, self.recipe = tuple(chain), recipe
        self._answers = PaidAnswers(KeptInMemory() if cache is None else cache)
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
    def bill(self) -> Mapping[str, Usage]:
        """The cost by model: the models of a chain have different prices."""
        return self._cost.bill

    async def write(self, task: SummaryTask) -> Summary | None:
        """A summary that passed its checks, or None if no model of the chain gave one."""
        recipe = self.recipe or task.recipe
        cost = self._cost = TaskCost()
        if self._copied is not None:
            self._copied._cost = cost  # noqa: SLF001  # of the same class
        for writer in self.chain if recipe.strategy != "extractive" else ():
            reader = Reader(SummaryAttempt(writer, recipe, task, self._answers, cost))
            try:
                answer = await reader.summary()
            except Exception as error:  # noqa: BLE001  # after any failure, try the next model
                if not isinstance(error, Rejected):
                    cost.failures.append(_problem(error))
                cost.problems.append(f"{writer.upstream.model}: {_problem(error)}")
                _log.warning("no summary by %s", cost.problems[-1])
                continue
            return await reader.attempt.work(_summary, answer, reader, recipe, cost.spent)
        return None


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


def _problem(error: Exception) -> str:
    """Say in a few words why a model gave no summary, without any text of it or its server."""
    if isinstance(error, Rejected):
        return str(error)
    reason = error.reason if isinstance(error, UpstreamError) else ""
    return f"the summariser {reason}" if reason else type(error).__name__
