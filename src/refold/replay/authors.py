"""Opening the summarisers of a replay, and asking them from code that waits.

One idea: a replay is plain code, one recording after the other or several in threads; models are asked on one event loop in
a thread of its own, so that all of them share connections, the purse and the cache. What a thread has waited there is taken
off its clock: in a real conversation nobody waits for a summary.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

from msgspec import Struct, structs

from refold.core.prompts import Recipe, Strategy
from refold.model.errors import ConfigError, UpstreamError, UpstreamUnavailable
from refold.ports.summariser import SummaryTask
from refold.replay.author import Author, Purse, Unusable, Written
from refold.replay.chosen import Chosen
from refold.replay.kept import KeptInFiles, summary_folder
from refold.replay.table import Spending
from refold.summarisers import Writer
from refold.tokens import counter_for
from refold.upstreams import Provider, open_upstream

T = TypeVar("T")


class Stopwatch(threading.local):
    """Seconds as a thread lives them, less those it has waited for a model."""

    waited_s = 0.0

    def __call__(self) -> float:
        return perf_counter() - self.waited_s


class Clerk:
    """An author as plain code asks it."""

    def __init__(self, author: Author, loop: asyncio.AbstractEventLoop, clock: Stopwatch) -> None:
        self._author, self._loop, self._clock = author, loop, clock

    @property
    def name(self) -> str:
        return self._author.name

    @property
    def spending(self) -> Spending:
        return self._author.spending

    def write(self, task: SummaryTask, recipe: Recipe) -> Written:
        """
        Raises:
            Stopped: there is no more money.
            UpstreamError: the model did not answer its first question.
        """
        began = perf_counter()
        try:
            return _on(self._loop, self._author.write(task, recipe))
        except Unusable as unusable:
            raise _explained(unusable.error, self.name) from None
        finally:
            self._clock.waited_s += perf_counter() - began


class Order(Struct, frozen=True):
    """Who is to write the summaries of a replay, and how."""

    chosen: tuple[Chosen | None, ...] = (None,)
    """None stands for the digest."""
    strategy: Strategy | None = None
    """Instead of the one of each policy's own recipe."""
    max_tokens: int | None = None
    """Likewise."""
    folder: Path | None = None
    """Where what was paid for is kept; None for the platform's cache folder."""
    most: float | None = None
    """Dollars that may be spent in all."""

    def __post_init__(self) -> None:
        unpriced = next((one for one in self.chosen if one and one.prices is None), None)
        if self.most is not None and unpriced is not None:
            raise ConfigError(
                f"the price of {unpriced.spec!r} is not known, so no limit of spending can be kept",
                hint="see `refold models` for those that are known, or leave out --max-spend",
            )

    def recipe_of(self, usual: Recipe) -> Recipe:
        """A policy's own recipe, with what was asked for instead."""
        strategy, max_tokens = self.strategy or usual.strategy, self.max_tokens or usual.max_tokens
        return structs.replace(usual, strategy=strategy, max_tokens=max_tokens)


class Opened(Struct, frozen=True):
    """The summarisers of a replay, in the order in which they were asked for."""

    order: Order
    clerks: tuple[Clerk | None, ...]
    purse: Purse
    clock: Stopwatch

    @property
    def spending(self) -> tuple[Spending, ...]:
        """What each has done so far."""
        return tuple(clerk.spending for clerk in self.clerks if clerk)

    @property
    def stopped(self) -> str:
        """Why not everything could be measured; empty where it could."""
        if not self.purse.is_empty:
            return ""
        return f"the limit of ${self.purse.most:,g} was reached; only recordings finished before that are measured"


@contextmanager
def open_summarisers(
    order: Order,
    *,
    on_call: Callable[[], None] = lambda: None,
    environ: Mapping[str, str] = os.environ,
) -> Iterator[Opened]:
    """The summarisers, ready to be asked until the block ends.

    Raises:
        ConfigError: a key or the weights are missing, or a setting cannot work.
        MissingExtra: what is needed for it is not installed.
    """
    purse, clock = Purse(order.most), Stopwatch()
    if not any(order.chosen):
        yield Opened(order, (None,) * len(order.chosen), purse, clock)
        return
    cache = KeptInFiles(order.folder or summary_folder(environ))
    with ExitStack() as stack:
        loop, upstreams = stack.enter_context(_loop()), AsyncExitStack()
        stack.callback(lambda: _on(loop, upstreams.aclose()))

        def clerk(one: Chosen) -> Clerk:
            provider, window = _served(one, stack)
            upstream = _on(loop, upstreams.enter_async_context(open_upstream(provider, environ=environ)))
            writer = Writer(upstream, window, counter_for(provider.model).text)
            spent = None if one.prices is None else 0.0
            told = Spending(one.spec, provider.model, one.prices, one.priced_as, spent=spent)
            author = Author(writer, told, cache=cache, purse=purse, on_call=on_call)
            return Clerk(author, loop, clock)

        yield Opened(order, tuple(clerk(one) if one else None for one in order.chosen), purse, clock)


def _explained(error: UpstreamError, model: str) -> UpstreamError:
    """What is wrong with a model that never answered, for whoever has just named it."""
    is_away = isinstance(error, UpstreamUnavailable)
    hint = "does the server run, and is its address right?" if is_away else error.hint
    return type(error)(f"{model} cannot write summaries: {error.message}", overflow=error.overflow, hint=hint)


def _served(chosen: Chosen, stack: ExitStack) -> tuple[Provider, int]:
    """Where the model is; the small one is started first."""
    if chosen.provider is not None:
        return chosen.provider, chosen.window
    from refold.local import serve_local

    served = stack.enter_context(serve_local())
    provider = Provider("local", served.model, base_url=served.base_url, headers=served.headers)
    return provider, served.window


@contextmanager
def _loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop in a thread of its own; whatever still goes on when the block ends is cancelled."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="refold-summaries", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        _on(loop, _cancel_others())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _cancel_others() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _on(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run_coroutine_threadsafe(work, loop).result()
