"""The models that write summaries in a replay: opens them, limits their spending, and calls them from
blocking code.

A replay is blocking code, in one thread or several; models are called on one event loop in a thread of its
own, so that all of them share connections, the spending limit and the cache. The time that a thread waits for
a model is subtracted from its clock, because a real conversation does not wait for a summary.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, contextmanager
from hashlib import blake2b
from pathlib import Path
from tempfile import NamedTemporaryFile
from time import perf_counter
from typing import Any, NoReturn, TypeVar
from weakref import WeakValueDictionary

import msgspec
from msgspec import Struct, structs

from refold.core.prompts import Passage, Recipe, Strategy, transcript
from refold.model.errors import ConfigError, ContextOverflow, UpstreamError, UpstreamUnavailable
from refold.model.mask import mask_model
from refold.model.message import user
from refold.model.summary import Summary
from refold.model.tokens import Prices, Usage, call_cost
from refold.ports.models import Ask, SummaryCache, SummaryTask
from refold.replay.candidate import Stopped, WritingCost
from refold.replay.table import Spending
from refold.summarisers import ModelSummariser, SummaryWriter
from refold.tokens import counter_for, find_model
from refold.tokens.catalog import window_for
from refold.upstreams import KNOWN, Provider, open_upstream
from refold.wire.reply import Reply

# A model that writes summaries, and its cost


class SpendingLimit:
    """The spending limit for all authors together; None for no limit."""

    def __init__(self, most: float | None = None) -> None:
        self.most, self.spent, self.is_empty = most, 0.0, False
        self._held = 0.0

    def hold(self, dollars: float) -> None:
        """Reserve the maximum cost of a call.

        Raises:
            Stopped: the limit does not allow it.
        """
        if self.most is not None and (self.is_empty or self.spent + self._held + dollars > self.most):
            self.is_empty = True
            raise Stopped
        self._held += dollars

    def settle(self, held: float, dollars: float) -> None:
        """Replace a reservation by the real cost of the call."""
        self._held -= held
        self.spent += dollars


class Unusable(BaseException):  # must be reported, and not be replaced by a digest: see `Stopped`
    """The model has not answered its first question."""

    def __init__(self, error: UpstreamError) -> None:
        super().__init__(error.message)
        self.error = error


class WrittenSummary(Struct, frozen=True):
    """The result of asking for a summary."""

    summary: Summary | None
    writing: WritingCost


class ReplayAuthor:
    """One model. It is called on one event loop, for callers on any thread."""

    def __init__(
        self,
        writer: SummaryWriter,
        spending: Spending,
        *,
        cache: SummaryCache,
        limit: SpendingLimit,
        on_call: Callable[[], None] = lambda: None,
    ) -> None:
        self.writer, self.cache, self.limit, self.on_call = writer, cache, limit, on_call
        self.prices: Prices | None = spending.prices
        self.has_answered = False
        self.locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Locks by question: recordings may begin alike, and concurrent equal questions are asked once."""
        self._spending = spending
        self._failures: Counter[str] = Counter()

    @property
    def name(self) -> str:
        return self.writer.upstream.model

    @property
    def spending(self) -> Spending:
        """The calls and the cost of this run so far."""
        return structs.replace(self._spending, failures=dict(sorted(self._failures.items())))

    async def write(self, task: SummaryTask, recipe: Recipe) -> WrittenSummary:
        """A summary, if the model gave one, and its cost.

        Raises:
            Stopped: the spending limit is reached.
            Unusable: the model cannot be called.
        """
        metered = _MeteredUpstream(self)
        writer = structs.replace(self.writer, upstream=metered)
        summariser = ModelSummariser([writer], recipe, metered)
        try:
            summary = await summariser.write(task)
        finally:
            metered.release()
        if summary is None:
            self._failures[_kind(summariser.problems)] += 1
        elif metered.calls:
            self._spending = structs.replace(self._spending, written=self._spending.written + 1)
        else:
            self._spending = structs.replace(self._spending, found=self._spending.found + 1)
        cost, usage = self.cost(metered.usage), metered.usage
        return WrittenSummary(summary, WritingCost(1, int(summary is None), usage.prompt, usage.output, cost))

    def cost(self, usage: Usage) -> float | None:
        return None if self.prices is None else call_cost(usage, self.prices)

    def note(self, usage: Usage, *, is_estimated: bool) -> None:
        """Record an answered call."""
        spending, cost = self._spending, self.cost(usage)
        spent = None if cost is None or spending.spent is None else spending.spent + cost
        is_estimated = spending.is_estimated or is_estimated
        self._spending = structs.replace(
            spending, calls=spending.calls + 1, spent=spent, is_estimated=is_estimated
        )
        self.has_answered = True
        self.on_call()


class _MeteredUpstream:
    """Meters one summary: stands between the summariser and the model, and in front of the cache."""

    def __init__(self, author: ReplayAuthor) -> None:
        self._author = author
        self.calls, self.usage = 0, Usage()
        self._asked = Usage()
        """The usage for the current question, over all attempts."""
        self._lock: asyncio.Lock | None = None

    @property
    def model(self) -> str:
        return self._author.name

    async def ask(self, ask: Ask) -> Reply:
        author, count = self._author, self._author.writer.count
        read = count(_all_of(ask))
        held = author.cost(Usage(read, output=ask.max_output)) or 0.0
        author.limit.hold(held)
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
            author.limit.settle(held, author.cost(usage) or 0.0)
        self.usage, self._asked = self.usage + usage, self._asked + usage
        author.note(usage, is_estimated=reply.usage is None)
        return structs.replace(reply, usage=usage)

    async def get(self, key: str) -> Summary | None:
        """A cached summary. If there is none, the lock stays held until this task goes on, and other tasks
        wait for the same key.
        """
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
        """Release the lock. A task never holds more than one, and none while it waits for another."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def _all_of(ask: Ask) -> str:
    """Everything that the model reads, as one text to be counted."""
    prompt = (user(ask.system),) if isinstance(ask.system, str) else ask.system
    read = transcript(Passage(number, one) for number, one in enumerate((*prompt, *ask.messages)))
    return "\n".join((read, *(f"{tool.name} {tool.schema}" for tool in ask.tools)))


def _kind(problems: list[str]) -> str:
    """The first problem: the name of a fault or of an error, without the model's name."""
    return problems[0].partition(": ")[2] if problems else "unknown"


# The choice of a summariser, by a word on a command line
#
#     digest                            no model: the messages' own words
#     openai:gpt-4o-mini                a known provider and one of its models
#     ollama:qwen3:8b                   a model on this machine
#     my-model@https://host/v1          any server that speaks OpenAI Chat Completions
#     anthropic:my-model@https://host   a server that speaks another provider's format
#     local                             the small model that `refold local install` downloads

DIGEST = "digest"
LOCAL = "local"
FREE = Prices(0.0, 0.0, 0.0, 0.0)
"""A model on this machine costs time and no money."""
SERVER = "the server"
"""The name of a provider that has only an address."""
THIS_MACHINE = "this machine"
_OWN_MACHINE = frozenset(name for name, known in KNOWN.items() if not known.key_env)
_HINT = f"such as openai:gpt-4o-mini, my-model@http://localhost:8000/v1, {LOCAL} or {DIGEST}"


class ChosenSummariser(Struct, frozen=True):
    spec: str
    """The word from the command line, with secrets in its address masked: reports show it."""
    provider: Provider | None
    """None for the local model, which has no address before it runs."""
    window: int = 0
    """0 for the local model, which reports its window when it runs."""
    prices: Prices | None = FREE
    """None if they are not known."""
    priced_as: str = ""
    """The entry of the catalogue with the prices."""

    @property
    def address(self) -> str:
        """The address that the user gave; empty for a provider's own and for the local model, whose port changes."""
        return self.provider.base_url.rstrip("/") if self.provider else ""


def choose(spec: str, *, key_env: str = "") -> ChosenSummariser | None:
    """The summariser that a word stands for; None for the digest.

    `key_env` names the variable with the key for an address; a known provider has a variable of its own.

    Raises:
        ConfigError: the word names no model.
    """
    if spec == DIGEST:
        return None
    if spec == LOCAL:
        return ChosenSummariser(spec, None, priced_as=THIS_MACHINE)
    provider = _provider(spec, key_env)
    prices, priced_as = _prices(provider)
    window = window_for(provider.model, provider=provider.name, url=provider.base_url)
    return ChosenSummariser(mask_model(spec), provider, window.max_input or window.tokens, prices, priced_as)


def _provider(spec: str, key_env: str) -> Provider:
    before, at, rest = spec.partition("@http")
    name, colon, model = before.partition(":")
    is_known = bool(colon) and name in KNOWN
    if not (model if is_known else at and before):
        _refuse(name, spec, is_known=is_known or not colon)
    if not at:
        return Provider(name, model)
    name, model = (name, model) if is_known else (SERVER, before)
    return Provider(name, model, base_url=f"http{rest}", key_env=key_env)


def _refuse(name: str, spec: str, *, is_known: bool) -> NoReturn:
    if is_known:
        raise ConfigError(f"{mask_model(spec[:80])!r} does not name a provider and a model", hint=_HINT)
    hint = f"choose from: {', '.join(KNOWN)}; any other server is MODEL@URL"
    raise ConfigError(f"there is no provider {mask_model(name[:80])!r}", hint=hint)


def _prices(provider: Provider) -> tuple[Prices | None, str]:
    """By the provider and the model's name; for a custom address by the model's name alone."""
    if provider.name in _OWN_MACHINE and not provider.base_url:
        return FREE, THIS_MACHINE
    found = find_model(provider.model, provider.name if provider.name in KNOWN else None)
    if found is None or found.input_price is None or found.output_price is None:
        return None, ""
    prices = Prices(found.input_price, found.output_price, found.cache_read_price, found.cache_write_price)
    return prices, found.name


# Cache of paid summaries, in files


def summary_folder(environ: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path:
    """The platform's cache folder for summaries."""
    if platform == "win32":
        base = Path(environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "refold" / "summaries"


class FileCache:
    """A `SummaryCache` in a folder: one file per summary, in subfolders by the last letters of its name.

    Summaries of a server with an address of its own are kept apart: two servers may give different models the
    same name. Without an address the name of the model says which one it is.
    """

    def __init__(self, folder: Path, address: str = "") -> None:
        """
        Raises:
            ConfigError: the folder cannot be written.
        """
        self._folder = folder
        self._suffix = f"-{blake2b(address.encode(), digest_size=8).hexdigest()}" if address else ""
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"summaries cannot be stored in {folder.name}: {error.strerror}",
                hint="name another folder with --summary-cache",
            ) from error

    async def get(self, key: str) -> Summary | None:
        try:
            return msgspec.json.decode(self._file(key).read_bytes(), type=Summary)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None

    async def put(self, key: str, summary: Summary) -> None:
        try:
            _write(self._file(key), msgspec.json.encode(summary))
        except OSError as error:
            raise ConfigError(
                f"a summary cannot be stored: {error.strerror}",
                hint="name another folder with --summary-cache",
            ) from error

    def _file(self, key: str) -> Path:
        name = key + self._suffix
        return self._folder / name[-2:] / f"{name}.json"


def _write(file: Path, data: bytes) -> None:
    """Write to a temporary file and rename it: a reader finds the whole file or none. Temporary files are
    readable by their owner only.
    """
    file.parent.mkdir(mode=0o700, exist_ok=True)
    with NamedTemporaryFile(dir=file.parent, delete=False) as beside:
        beside.write(data)
    Path(beside.name).replace(file)


# Calls from blocking code

T = TypeVar("T")


class Stopwatch(threading.local):
    """A clock per thread, without the time that the thread waited for a model."""

    waited_s = 0.0

    def __call__(self) -> float:
        return perf_counter() - self.waited_s


class BlockingAuthor:
    """An author, called from blocking code."""

    def __init__(self, author: ReplayAuthor, loop: asyncio.AbstractEventLoop, clock: Stopwatch) -> None:
        self._author, self._loop, self._clock = author, loop, clock

    @property
    def name(self) -> str:
        return self._author.name

    @property
    def spending(self) -> Spending:
        return self._author.spending

    def write(self, task: SummaryTask, recipe: Recipe) -> WrittenSummary:
        """
        Raises:
            Stopped: the spending limit is reached.
            UpstreamError: the model did not answer its first question.
        """
        began = perf_counter()
        try:
            return _run_on(self._loop, self._author.write(task, recipe))
        except Unusable as unusable:
            raise _unusable_error(unusable.error, self.name) from None
        finally:
            self._clock.waited_s += perf_counter() - began


class ReplaySummarisers(Struct, frozen=True):
    """The summarisers of a replay, and their options."""

    chosen: tuple[ChosenSummariser | None, ...] = (None,)
    """None stands for the digest."""
    strategy: Strategy | None = None
    """Overrides the strategy of each policy's own recipe."""
    max_tokens: int | None = None
    """Overrides the length of each policy's own recipe."""
    folder: Path | None = None
    """The folder of the cache; None for the platform's cache folder."""
    most: float | None = None
    """The spending limit, in dollars."""

    def __post_init__(self) -> None:
        unpriced = next((one for one in self.chosen if one and one.prices is None), None)
        if self.most is not None and unpriced is not None:
            raise ConfigError(
                f"the price of {unpriced.spec!r} is not known, so a spending limit cannot be applied",
                hint="see `refold models` for known prices, or leave out --max-spend",
            )

    def recipe_of(self, usual: Recipe) -> Recipe:
        """A policy's own recipe, with the overrides."""
        strategy, max_tokens = self.strategy or usual.strategy, self.max_tokens or usual.max_tokens
        return structs.replace(usual, strategy=strategy, max_tokens=max_tokens)


class OpenSummarisers(Struct, frozen=True):
    """The summarisers of a replay, in the order of the request."""

    order: ReplaySummarisers
    authors: tuple[BlockingAuthor | None, ...]
    limit: SpendingLimit
    clock: Stopwatch

    @property
    def spending(self) -> tuple[Spending, ...]:
        """The calls and the cost of each so far."""
        return tuple(author.spending for author in self.authors if author)

    @property
    def stopped(self) -> str:
        """The reason for an incomplete result; empty if it is complete."""
        if not self.limit.is_empty:
            return ""
        return f"the limit of ${self.limit.most:,g} was reached; only recordings finished before that are measured"


@contextmanager
def open_summarisers(
    order: ReplaySummarisers,
    *,
    on_call: Callable[[], None] = lambda: None,
    environ: Mapping[str, str] = os.environ,
) -> Iterator[OpenSummarisers]:
    """The summarisers, open until the block ends.

    Raises:
        ConfigError: a key or the weights are missing, or a setting is invalid.
        MissingExtra: a required extra is not installed.
    """
    limit, clock = SpendingLimit(order.most), Stopwatch()
    if not any(order.chosen):
        yield OpenSummarisers(order, (None,) * len(order.chosen), limit, clock)
        return
    folder = order.folder or summary_folder(environ)
    with ExitStack() as stack:
        loop, upstreams = stack.enter_context(_loop()), AsyncExitStack()
        stack.callback(lambda: _run_on(loop, upstreams.aclose()))

        def open_author(one: ChosenSummariser) -> BlockingAuthor:
            provider, window = _provider_and_window(one, stack)
            upstream = _run_on(loop, upstreams.enter_async_context(open_upstream(provider, environ=environ)))
            writer = SummaryWriter(upstream, window, counter_for(provider.model).text)
            spent = None if one.prices is None else 0.0
            spending = Spending(one.spec, provider.model, one.prices, one.priced_as, spent=spent)
            cache = FileCache(folder, one.address)
            author = ReplayAuthor(writer, spending, cache=cache, limit=limit, on_call=on_call)
            return BlockingAuthor(author, loop, clock)

        yield OpenSummarisers(
            order, tuple(open_author(one) if one else None for one in order.chosen), limit, clock
        )


def _unusable_error(error: UpstreamError, model: str) -> UpstreamError:
    """The error for a model that never answered, with a hint for the user."""
    is_away = isinstance(error, UpstreamUnavailable)
    hint = "does the server run, and is its address right?" if is_away else error.hint
    return type(error)(f"{model} cannot write summaries: {error.message}", overflow=error.overflow, hint=hint)


def _provider_and_window(chosen: ChosenSummariser, stack: ExitStack) -> tuple[Provider, int]:
    """The provider of the model and its window; starts the local model first."""
    if chosen.provider is not None:
        return chosen.provider, chosen.window
    from refold.local import serve_local

    served = stack.enter_context(serve_local())
    provider = Provider("local", served.model, base_url=served.base_url, headers=served.headers)
    return provider, served.window


@contextmanager
def _loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop in a thread of its own; tasks that still run when the block ends are cancelled."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="refold-summaries", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        _run_on(loop, _cancel_others())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _cancel_others() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _run_on(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run_coroutine_threadsafe(work, loop).result()
