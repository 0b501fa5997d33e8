"""A model that writes the summaries of a replay, paid for by the call.

One idea: every call is counted where it is made. So what a rejected answer cost is on the bill as well, the purse is asked
before a call and not after it, and a summary that was found in the cache brings along what it cost when it was written: a
second run measures the same dollars and spends none.

A model that does not answer at all the first time it is asked is a mistake to be told; one that fails later is a failure to
be measured, and a digest serves.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from weakref import WeakValueDictionary

from msgspec import Struct, structs

from refold.core.cost import Prices, call_cost
from refold.core.prompts import Passage, Recipe, transcript
from refold.model.errors import ContextOverflow, UpstreamError
from refold.model.message import user
from refold.model.summary import Summary
from refold.model.tokens import Usage
from refold.ports.summariser import SummaryCache, SummaryTask
from refold.ports.upstream import Ask
from refold.replay.candidate import Stopped, Writing
from refold.replay.table import Spending
from refold.summarisers import ModelSummariser, Writer
from refold.wire.reply import Reply


class Purse:
    """What may be spent in all, by all authors; None for as much as it takes."""

    def __init__(self, most: float | None = None) -> None:
        self.most, self.spent, self.is_empty = most, 0.0, False
        self._held = 0.0

    def hold(self, dollars: float) -> None:
        """Set aside what a call may cost at most.

        Raises:
            Stopped: so much is not there any more.
        """
        if self.most is not None and (self.is_empty or self.spent + self._held + dollars > self.most):
            self.is_empty = True
            raise Stopped
        self._held += dollars

    def settle(self, held: float, dollars: float) -> None:
        """Pay what a call did cost."""
        self._held -= held
        self.spent += dollars


class Unusable(BaseException):  # it is told, and no digest serves instead: see `Stopped`
    """The model has not answered its first question."""

    def __init__(self, error: UpstreamError) -> None:
        super().__init__(error.message)
        self.error = error


class Written(Struct, frozen=True):
    """What came of asking for a summary."""

    summary: Summary | None
    writing: Writing


class Author:
    """One model. It is asked on one event loop; whoever asks may be on any thread."""

    def __init__(
        self,
        writer: Writer,
        told: Spending,
        *,
        cache: SummaryCache,
        purse: Purse,
        on_call: Callable[[], None] = lambda: None,
    ) -> None:
        self.writer, self.cache, self.purse, self.on_call = writer, cache, purse, on_call
        self.prices: Prices | None = told.prices
        self.has_answered = False
        self.locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By question: recordings may begin alike, and who asks the same at the same time asks once."""
        self._told = told
        self._failures: Counter[str] = Counter()

    @property
    def name(self) -> str:
        return self.writer.upstream.model

    @property
    def spending(self) -> Spending:
        """What was done in this run so far."""
        return structs.replace(self._told, failures=dict(sorted(self._failures.items())))

    async def write(self, task: SummaryTask, recipe: Recipe) -> Written:
        """A summary, or why there is none, and what it cost.

        Raises:
            Stopped: the purse is empty.
            Unusable: the model cannot be asked.
        """
        tab = _Tab(self)
        writer = structs.replace(self.writer, upstream=tab)
        summariser = ModelSummariser([writer], recipe, tab)
        try:
            summary = await summariser.write(task)
        finally:
            tab.release()
        if summary is None:
            self._failures[_kind(summariser.problems)] += 1
        elif tab.calls:
            self._told = structs.replace(self._told, written=self._told.written + 1)
        else:
            self._told = structs.replace(self._told, found=self._told.found + 1)
        cost, usage = self.cost(tab.usage), tab.usage
        return Written(summary, Writing(1, int(summary is None), usage.prompt, usage.output, cost))

    def cost(self, usage: Usage) -> float | None:
        return None if self.prices is None else call_cost(usage, self.prices)

    def note(self, usage: Usage, *, is_estimated: bool) -> None:
        """One more call was answered."""
        told, cost = self._told, self.cost(usage)
        spent = None if cost is None or told.spent is None else told.spent + cost
        is_estimated = told.is_estimated or is_estimated
        self._told = structs.replace(told, calls=told.calls + 1, spent=spent, is_estimated=is_estimated)
        self.has_answered = True
        self.on_call()


class _Tab:
    """What one summary takes: it stands between the summariser and the model, and before the cache."""

    def __init__(self, author: Author) -> None:
        self._author = author
        self.calls, self.usage = 0, Usage()
        self._asked = Usage()
        """What the question at hand has cost, all tries together."""
        self._lock: asyncio.Lock | None = None

    @property
    def model(self) -> str:
        return self._author.name

    async def ask(self, ask: Ask) -> Reply:
        author, count = self._author, self._author.writer.count
        read = count(_all_of(ask))
        held = author.cost(Usage(read, output=ask.max_output)) or 0.0
        author.purse.hold(held)
        self.calls += 1
        usage = Usage()
        try:
            reply = await author.writer.upstream.ask(ask)
            usage = reply.usage or Usage(read, output=sum(count(one.text) for one in reply.messages))
        except ContextOverflow:
            raise
        except UpstreamError as error:
            if not author.has_answered:
                raise Unusable(error) from None
            raise
        finally:
            author.purse.settle(held, author.cost(usage) or 0.0)
        self.usage, self._asked = self.usage + usage, self._asked + usage
        author.note(usage, is_estimated=reply.usage is None)
        return structs.replace(reply, usage=usage)

    async def get(self, key: str) -> Summary | None:
        """What was paid for; where there is nothing, whoever looks for the same waits until this task has gone on."""
        self.release()
        self._asked = Usage()
        lock = self._author.locks.setdefault(key, asyncio.Lock())
        await lock.acquire()
        self._lock = lock
        found = await self._author.cache.get(key)
        if found is not None:
            self.usage += found.usage
            self.release()
        return found

    async def put(self, key: str, summary: Summary) -> None:
        await self._author.cache.put(key, structs.replace(summary, usage=self._asked))
        self.release()

    def release(self) -> None:
        """Never more than one lock is held, and none while another is waited for."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def _all_of(ask: Ask) -> str:
    """Everything that the model reads, as one text to be counted."""
    prompt = (user(ask.system),) if isinstance(ask.system, str) else ask.system
    said = transcript(Passage(number, one) for number, one in enumerate((*prompt, *ask.messages)))
    return "\n".join((said, *(f"{tool.name} {tool.schema}" for tool in ask.tools)))


def _kind(problems: list[str]) -> str:
    """What went wrong first: the name of a fault or of an error, without the model's."""
    return problems[0].partition(": ")[2] if problems else "unknown"
