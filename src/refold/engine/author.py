"""Who writes summaries, as the engine deals with them: by name, and one question at a time.

One idea: a summary is work of somebody. Another model, or another function, is somebody else, whose work is not mistaken for
this one's; and what a question has cost is known afterwards, whatever came of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, Protocol, runtime_checkable

from refold.core.summary.chunks import Count
from refold.model.dialect import Dialect
from refold.model.summary import Summary
from refold.model.tokens import Usage
from refold.ports.summariser import Summariser, SummaryTask
from refold.summarisers import checked
from refold.text_work import run_text_work
from refold.wire.plain import plain_message


class Summarise(Protocol):
    """Writes a summary by whatever means; an empty text means that none could be written."""

    async def __call__(
        self, messages: Sequence[dict[str, Any]], *, previous: str, max_tokens: int
    ) -> str: ...


@runtime_checkable
class Accounting(Protocol):
    """A summariser that says what its last task has cost, by model, whether it ended with a summary or not."""

    @property
    def bill(self) -> Mapping[str, Usage]: ...


class Function:
    """A function as a summariser: it is given plain messages, and its text is checked as a model's is."""

    def __init__(self, function: Summarise, dialect: Dialect, count: Count) -> None:
        self.function, self._dialect, self._count = function, dialect, count

    async def write(self, task: SummaryTask) -> Summary | None:
        size = task.characters
        messages = await run_text_work(size, self._plain, task)
        text = (await self.function(messages, previous=task.previous, max_tokens=task.max_tokens)).strip()
        return await run_text_work(size + len(text), checked, text, task, self._count) if text else None

    def _plain(self, task: SummaryTask) -> list[dict[str, Any]]:
        return [plain_message(passage.message, self._dialect) for passage in task.passages]


class Question:
    """One task for a summariser that others may use at the same time."""

    def __init__(self, summariser: Summariser) -> None:
        # What the last task has cost is asked for afterwards: a copy has no other task meanwhile.
        self._summariser = copy(summariser) if isinstance(summariser, Accounting) else summariser
        self._is_asked = False

    async def write(self, task: SummaryTask) -> Summary | None:
        self._is_asked = True
        return await self._summariser.write(task)

    def bill(self, summary: Summary | None = None) -> Mapping[str, Usage]:
        """What it has cost so far, by model; the last of them wrote the summary that came of it, if any."""
        asked = self._summariser
        if isinstance(asked, Accounting):
            known = asked.bill if self._is_asked else {}
            return {**known, summary.model: known.get(summary.model, Usage())} if summary else known
        name = (summary.model if summary else "") or getattr(asked, "model", "")
        return {name: summary.usage} if summary else {}


def summariser_of(value: Summariser | Summarise | None, dialect: Dialect, count: Count) -> Summariser | None:
    """A summariser, or a function as one, whose texts are measured by `count`."""
    return Function(value, dialect, count) if callable(value) else value


def bill_of(asked: Summariser, summary: Summary | None) -> Mapping[str, Usage]:
    """What an answer has cost, by model, as far as that is known."""
    if isinstance(asked, Question):
        return asked.bill(summary)
    return {summary.model: summary.usage} if summary else {}


def name_of(summariser: Summariser) -> str:
    """Who it is: the code that writes, and the models that it asks and how, where it says so."""
    if isinstance(summariser, Function):
        return _path(summariser.function)
    models = [writer.upstream.model for writer in getattr(summariser, "chain", ())]
    how = (getattr(summariser, "model", None), getattr(summariser, "recipe", None))
    return repr((_path(summariser), models, *how))


def _path(value: object) -> str:
    code = value if hasattr(value, "__qualname__") else type(value)
    return f"{code.__module__}.{getattr(code, '__qualname__', '')}"
