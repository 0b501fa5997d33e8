"""Opening the summarisers of a replay, and asking them from code that waits.

One idea: a replay is plain code, one recording after the other or several in threads; models are asked on one event loop in
a thread of its own, so that all of them share connections, the purse and the cache. What a thread has waited there is taken
off its clock: in a real conversation nobody waits for a summary.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from time import perf_counter
from typing import Any, NoReturn, TypeVar
from weakref import WeakValueDictionary

import msgspec
from msgspec import Struct, structs

from refold.core.cost import Prices, call_cost
from refold.core.prompts import Passage, Recipe, Strategy, transcript
from refold.model.errors import ConfigError, ContextOverflow, UpstreamError, UpstreamUnavailable
from refold.model.mask import mask_model
from refold.model.message import user
from refold.model.summary import Summary
from refold.model.tokens import Usage
from refold.ports.summariser import SummaryCache, SummaryTask
from refold.ports.upstream import Ask
from refold.replay.candidate import Stopped, Writing
from refold.replay.table import Spending
from refold.summarisers import ModelSummariser, SummaryWriter
from refold.tokens import counter_for, find_model
from refold.tokens.catalog import window_for
from refold.upstreams import KNOWN, Provider, open_upstream
from refold.wire.reply import Reply

# A model that writes the summaries of a replay, paid for by the call.


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


class WrittenSummary(Struct, frozen=True):
    """What came of asking for a summary."""

    summary: Summary | None
    writing: Writing


class Author:
    """One model. It is asked on one event loop; whoever asks may be on any thread."""

    def __init__(
        self,
        writer: SummaryWriter,
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

    async def write(self, task: SummaryTask, recipe: Recipe) -> WrittenSummary:
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
        return WrittenSummary(summary, Writing(1, int(summary is None), usage.prompt, usage.output, cost))

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


# Who writes the summaries of a replay: from a word on a command line to a model, its window and its
# prices. digest no model: the messages' own words openai:gpt-4o-mini a provider that is known by
# its name, and one of its models ollama:qwen3:8b likewise on this machine my-model@https://host/v1
# any server that speaks OpenAI Chat Completions anthropic:my-model@https://host a server that
# speaks another provider's format local the small model that `refold local install` fetches

DIGEST = "digest"
LOCAL = "local"
FREE = Prices(0.0, 0.0, 0.0, 0.0)
"""A model on this machine costs time and no money."""
SERVER = "the server"
"""The name of a provider that has an address and no other name."""
THIS_MACHINE = "this machine"
_OWN_MACHINE = frozenset(name for name, known in KNOWN.items() if not known.key_env)
_HINT = f"such as openai:gpt-4o-mini, my-model@http://localhost:8000/v1, {LOCAL} or {DIGEST}"


class Chosen(Struct, frozen=True):
    spec: str
    """As it was asked for, without what is secret in its address: reports show it."""
    provider: Provider | None
    """None for the small model, which has no address before it runs."""
    window: int = 0
    """0 for the small model, which says it when it runs."""
    prices: Prices | None = FREE
    """None where they are not known."""
    priced_as: str = ""
    """The entry of the catalogue that they are from."""


def choose(spec: str, *, key_env: str = "") -> Chosen | None:
    """The summariser that a word stands for; None for the digest.

    `key_env` names the variable that holds the key for an address; a provider that is known has a variable of its own.

    Raises:
        ConfigError: it stands for nothing.
    """
    if spec == DIGEST:
        return None
    if spec == LOCAL:
        return Chosen(spec, None, priced_as=THIS_MACHINE)
    provider = _provider(spec, key_env)
    prices, priced_as = _prices(provider)
    window = window_for(provider.model, provider=provider.name, url=provider.base_url).tokens
    return Chosen(mask_model(spec), provider, window, prices, priced_as)


def _provider(spec: str, key_env: str) -> Provider:
    told, at, rest = spec.partition("@http")
    name, colon, model = told.partition(":")
    is_known = bool(colon) and name in KNOWN
    if not (model if is_known else at and told):
        _refuse(name, spec, is_known=is_known or not colon)
    if not at:
        return Provider(name, model)
    name, model = (name, model) if is_known else (SERVER, told)
    return Provider(name, model, base_url=f"http{rest}", key_env=key_env)


def _refuse(name: str, spec: str, *, is_known: bool) -> NoReturn:
    if is_known:
        raise ConfigError(
            f"{mask_model(spec[:80])!r} does not say which model is meant, and whose", hint=_HINT
        )
    hint = f"choose from: {', '.join(KNOWN)}; any other server is MODEL@URL"
    raise ConfigError(f"there is no provider {mask_model(name[:80])!r}", hint=hint)


def _prices(provider: Provider) -> tuple[Prices | None, str]:
    """By the provider and the model's name; at an address of your own by the name alone."""
    if provider.name in _OWN_MACHINE and not provider.base_url:
        return FREE, THIS_MACHINE
    found = find_model(provider.model, provider.name if provider.name in KNOWN else None)
    if found is None or found.input_price is None or found.output_price is None:
        return None, ""
    prices = Prices(found.input_price, found.output_price, found.cache_read_price, found.cache_write_price)
    return prices, found.name


# Summaries that were paid for, kept in files.


def summary_folder(environ: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path:
    """Where this platform keeps what can be made again."""
    if platform == "win32":
        base = Path(environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "refold" / "summaries"


class KeptInFiles:
    """A `SummaryCache` in a folder: one file for each summary, in subfolders by the last letters of its key."""

    def __init__(self, folder: Path) -> None:
        """
        Raises:
            ConfigError: nothing can be written there.
        """
        self._folder = folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"summaries cannot be kept in {folder.name}: {error.strerror}",
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
                f"a summary cannot be kept: {error.strerror}", hint="name another folder with --summary-cache"
            ) from error

    def _file(self, key: str) -> Path:
        return self._folder / key[-2:] / f"{key}.json"


def _write(file: Path, data: bytes) -> None:
    """Written beside and renamed: a reader finds all of it or nothing. A temporary file is its owner's alone."""
    file.parent.mkdir(mode=0o700, exist_ok=True)
    with NamedTemporaryFile(dir=file.parent, delete=False) as beside:
        beside.write(data)
    Path(beside.name).replace(file)


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

    def write(self, task: SummaryTask, recipe: Recipe) -> WrittenSummary:
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


class SummariserOptions(Struct, frozen=True):
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


class OpenSummarisers(Struct, frozen=True):
    """The summarisers of a replay, in the order in which they were asked for."""

    order: SummariserOptions
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
    order: SummariserOptions,
    *,
    on_call: Callable[[], None] = lambda: None,
    environ: Mapping[str, str] = os.environ,
) -> Iterator[OpenSummarisers]:
    """The summarisers, ready to be asked until the block ends.

    Raises:
        ConfigError: a key or the weights are missing, or a setting cannot work.
        MissingExtra: what is needed for it is not installed.
    """
    purse, clock = Purse(order.most), Stopwatch()
    if not any(order.chosen):
        yield OpenSummarisers(order, (None,) * len(order.chosen), purse, clock)
        return
    cache = KeptInFiles(order.folder or summary_folder(environ))
    with ExitStack() as stack:
        loop, upstreams = stack.enter_context(_loop()), AsyncExitStack()
        stack.callback(lambda: _on(loop, upstreams.aclose()))

        def clerk(one: Chosen) -> Clerk:
            provider, window = _served(one, stack)
            upstream = _on(loop, upstreams.enter_async_context(open_upstream(provider, environ=environ)))
            writer = SummaryWriter(upstream, window, counter_for(provider.model).text)
            spent = None if one.prices is None else 0.0
            told = Spending(one.spec, provider.model, one.prices, one.priced_as, spent=spent)
            author = Author(writer, told, cache=cache, purse=purse, on_call=on_call)
            return Clerk(author, loop, clock)

        yield OpenSummarisers(order, tuple(clerk(one) if one else None for one in order.chosen), purse, clock)


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
