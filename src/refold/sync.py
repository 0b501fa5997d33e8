"""Refold without `await`: `Conversation`, `Engine` and `Chat` for scripts and notebooks.

They are proxies of the classes of the same names in `refold`, with the same constructors and members, except
for those that only Refold's own surfaces use (`refold.engine.conversation.OF_SURFACES`, `refold.engine.engine.OF_SURFACES`). One
daemon thread per process runs an event loop for all of them, so they also work in a notebook that has a loop
running. They may be called from several threads; the calls of one conversation are serialised. A forked
process has none of its parent's threads: open engines after the fork.

    chat = refold.sync.Conversation("gpt-4o-mini", system="You fix bugs.", tools=tools)
    chat.add("Why does the build fail?")
    reply = client.chat.completions.create(model="gpt-4o-mini", **chat.context())
    chat.record(reply.usage)
    chat.add(reply.choices[0].message)

No message that was added is ever changed or forgotten; only the request that `context` returns is made to
fit.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, Self, TypeVar
from uuid import uuid4

from refold.chat import chat as async_chat
from refold.chat.chat import LEASE_S, PARALLEL_TOOLS, ChatEvent, ChatEvents, Confirm
from refold.chat.commands import Command
from refold.chat.tools import ChatTool
from refold.core.fold import FoldedBranch
from refold.core.policy import Policy
from refold.core.stages.tool_results import ToolRule
from refold.engine import conversation as async_conversation
from refold.engine import engine as async_engine
from refold.engine.doctor import Finding
from refold.engine.effect import Savings, Stats, StatsBy
from refold.engine.engine import OWNER, ConversationPage, FoundMessage, InstalledEmbedder
from refold.engine.events import Event, Listener, Pruned
from refold.engine.history import Difference, MessageTokens
from refold.engine.journal import LearnedWindow
from refold.engine.recall import MAX_TOKENS
from refold.engine.recall import answer_recall as answer_recall_async
from refold.engine.retention import MAX_SHARE, HeldBack
from refold.engine.sessions import OpenedSession
from refold.engine.settings import SUMMARISER_TIMEOUT_S, ConversationSettings, SystemPrompt
from refold.engine.state import Bill, Receipt, State
from refold.engine.status import Preview, Status
from refold.model.errors import ConfigError
from refold.model.tokens import Measurement, TokenCounter
from refold.ports.models import (
    CountingUpstream,
    Embedder,
    StreamingUpstream,
    Summariser,
    SummaryCache,
    SummaryFunction,
    Upstream,
)
from refold.ports.records import Call, CommandEntry, Compaction, Listed, Session, StoredSummary
from refold.ports.store import Store
from refold.tokens.catalog import WindowSize
from refold.upstreams.provider import Provider
from refold.wire.reply import Reply
from refold.wire.sse import Delta

__all__ = ["Chat", "Conversation", "Engine", "answer_recall"]

T = TypeVar("T")


class _Loop:
    """An event loop in a daemon thread, for the process that started it."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="refold", daemon=True)
        self._thread.start()

    def run(self, act: Coroutine[Any, Any, T]) -> T:
        if threading.current_thread() is self._thread:
            act.close()
            raise ConfigError(
                "a listener of `refold.sync` cannot wait for the conversation that called it",
                hint="put the event into a queue, and act on it in another thread",
            )
        return asyncio.run_coroutine_threadsafe(act, self._loop).result()


_loop: _Loop | None = None
_starting = threading.Lock()


def _run(act: Coroutine[Any, Any, T], process: int) -> T:
    """Run a coroutine to its end in the loop of this process. `process` is the id of the process that opened
    the engine or conversation: connections, tasks and threads do not survive a fork.

    Raises:
        ConfigError: this process is a fork of that one.
    """
    global _loop  # noqa: PLW0603
    if process != os.getpid():
        act.close()
        raise ConfigError(
            "this engine or conversation was opened in another process, before a fork",
            hint="open one in the new process and none before it is forked, or have multiprocessing start it by `spawn`",
        )
    with _starting:
        if _loop is None or _loop.process != os.getpid():
            _loop = _Loop()
    return _loop.run(act)


def _forget_lock() -> None:
    """Replace the lock after a fork, because another thread may have held it."""
    global _starting  # noqa: PLW0603
    _starting = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_lock)


class _Store:
    """A store without `await`; see `refold.ports.store.Store`."""

    def __init__(self, store: Store, process: int) -> None:
        self._store, self._process = store, process

    def __getattr__(self, name: str) -> Callable[..., Any]:
        act = getattr(self._store, name)
        return lambda *args, **settings: _run(act(*args, **settings), self._process)


class Conversation:
    """One chat and its context window; see `refold.Conversation`."""

    def __init__(
        self,
        model: str = "",
        *,
        system: SystemPrompt = None,
        tools: Sequence[object] = (),
        format: str = "chat",  # noqa: A002  # the word users know
        preset: str = "refold",
        policy: Policy | None = None,
        window: int | None = None,
        max_output: int | None = None,
        thinking_budget: int = 0,
        limit: int = 0,
        counter: TokenCounter | None = None,
        sensitive: Sequence[str] = (),
        summariser: Summariser | SummaryFunction | str | None = None,
        summariser_timeout_s: float = SUMMARISER_TIMEOUT_S,
        max_spend: float | None = None,
        on_event: Listener | None = None,
    ) -> None:
        self._async = async_conversation.Conversation(
            model,
            system=system,
            tools=tools,
            format=format,
            preset=preset,
            policy=policy,
            window=window,
            max_output=max_output,
            thinking_budget=thinking_budget,
            limit=limit,
            counter=counter,
            sensitive=sensitive,
            summariser=summariser,
            summariser_timeout_s=summariser_timeout_s,
            max_spend=max_spend,
            on_event=on_event,
        )
        self._process = os.getpid()

    @classmethod
    def _of(cls, conversation: async_conversation.Conversation, process: int) -> Conversation:
        """Wrap a conversation of an engine that was opened in `process`."""
        made = cls.__new__(cls)
        made._async, made._process = conversation, process  # noqa: SLF001
        return made

    def _run(self, act: Coroutine[Any, Any, T]) -> T:
        return _run(act, self._process)

    @property
    def id(self) -> str:
        return self._async.id

    @property
    def branch(self) -> str:
        return self._async.branch

    @property
    def model(self) -> str:
        return self._async.model

    @property
    def format(self) -> str:
        return self._async.format

    @property
    def size(self) -> int:
        return self._async.size

    @property
    def window(self) -> WindowSize:
        return self._async.window

    @property
    def summariser(self) -> Summariser | None:
        return self._async.summariser

    @summariser.setter
    def summariser(self, summariser: Summariser | None) -> None:
        self._async.summariser = summariser

    @property
    def state(self) -> State:
        return self._async.state

    @property
    def max_output(self) -> int:
        return self._async.max_output

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        return self._async.receipts

    @property
    def measurement(self) -> Measurement:
        return self._async.measurement

    @property
    def bill(self) -> Bill:
        return self._async.bill

    def load(self) -> None:
        self._run(self._async.load())

    def add(self, *messages: object, sensitive: bool = False, key: str = "") -> None:
        self._run(self._async.add(*messages, sensitive=sensitive, key=key))

    def context(self) -> dict[str, Any]:
        return self._run(self._async.context())

    def record(self, usage: object) -> None:
        self._run(self._async.record(usage))

    def count(self, upstream: CountingUpstream) -> int | None:
        return self._run(self._async.count(upstream))

    def ask(self, upstream: Upstream, *, max_output: int | None = None) -> Reply:
        return self._run(self._async.ask(upstream, max_output=max_output))

    def stream(
        self, upstream: StreamingUpstream, *, max_output: int | None = None
    ) -> Iterator[Delta | Reply]:
        items = self._async.stream(upstream, max_output=max_output)

        async def read() -> Delta | Reply | None:
            return await anext(items, None)

        try:
            while (item := self._run(read())) is not None:
                yield item
        finally:
            self._run(items.aclose())

    def set_instructions(self, fields: bytes) -> None:
        self._run(self._async.set_instructions(fields))

    def set_tools(self, tools: Sequence[object], *, rules: Mapping[str, ToolRule] | None = None) -> None:
        self._run(self._async.set_tools(tools, rules=rules))

    def set_system(self, system: SystemPrompt) -> None:
        self._run(self._async.set_system(system))

    def reconfigure(self, *, model: str = "", preset: str = "") -> None:
        self._run(self._async.reconfigure(model=model, preset=preset))

    def prune(self) -> Pruned | None:
        return self._run(self._async.prune())

    def compact(self, *, keep: int | None = None, focus: str = "") -> dict[str, Any]:
        return self._run(self._async.compact(keep=keep, focus=focus))

    def stop_summary(self) -> None:
        self._run(self._async.stop_summary())

    def preview(self, *, policy: Policy | None = None, keep: int | None = None) -> Preview:
        return self._run(self._async.preview(policy=policy, keep=keep))

    def undo(self) -> bool:
        return self._run(self._async.undo())

    def rerun(
        self, *, policy: Policy | None = None, summariser: Summariser | SummaryFunction | str | None = None
    ) -> bool:
        return self._run(self._async.rerun(policy=policy, summariser=summariser))

    def recall(self, what: str, *, max_tokens: int = 1_000) -> dict[str, Any] | str:
        return self._run(self._async.recall(what, max_tokens=max_tokens))

    def search(self, words: str, *, max_tokens: int = 1_000) -> str:
        return self._run(self._async.search(words, max_tokens=max_tokens))

    def pin(self, handle: str) -> None:
        self._run(self._async.pin(handle))

    def unpin(self, handle: str) -> None:
        self._run(self._async.unpin(handle))

    def pins(self) -> list[str]:
        return self._run(self._async.pins())

    def recover(self, error: object) -> dict[str, Any]:
        return self._run(self._async.recover(error))

    def start_session(self) -> Session:
        return self._run(self._async.start_session())

    def resume(self, session: Session) -> OpenedSession:
        return self._run(self._async.resume(session))

    def status(self) -> Status:
        return self._run(self._async.status())

    def message_usage(self) -> list[MessageTokens]:
        return self._run(self._async.message_usage())

    def compactions(self, *, limit: int = 1_000) -> list[Compaction]:
        return self._run(self._async.compactions(limit=limit))

    def calls(self, *, limit: int = 1_000) -> list[Call]:
        return self._run(self._async.calls(limit=limit))

    def diff(self, change: Compaction) -> Difference:
        return self._run(self._async.diff(change))

    def window_of(self, call: Call) -> dict[str, Any]:
        return self._run(self._async.window_of(call))

    def shown_with(self, call: Call) -> FoldedBranch:
        return self._run(self._async.shown_with(call))

    def ready(self) -> None:
        self._run(self._async.ready())

    def events(self) -> Iterator[Event]:
        return self._each_event(self._run(self._stream_events()))

    async def _stream_events(self) -> AsyncIterator[Event]:
        return self._async.events()

    def _each_event(self, stream: AsyncIterator[Event]) -> Iterator[Event]:
        async def read() -> Event | None:
            return await anext(stream, None)

        while (event := self._run(read())) is not None:
            yield event

    def close(self) -> None:
        self._run(self._async.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Engine:
    """The conversations of one owner in one store; see `refold.Engine`. The constructor opens it: close it,
    or use it in a `with` block.
    """

    def __init__(
        self,
        store: str | PathLike[str] | Store = "",
        *,
        owner: str = OWNER,
        model: str = "",
        system: SystemPrompt = None,
        tools: Sequence[object] = (),
        format: str = "chat",  # noqa: A002  # the word users know
        preset: str = "refold",
        policy: Policy | None = None,
        window: int | None = None,
        max_output: int | None = None,
        thinking_budget: int = 0,
        limit: int = 0,
        counter: TokenCounter | None = None,
        sensitive: Sequence[str] = (),
        summariser: Summariser | SummaryFunction | str | None = None,
        summariser_timeout_s: float = SUMMARISER_TIMEOUT_S,
        max_spend: float | None = None,
        on_event: Listener | None = None,
        embedder: Embedder | InstalledEmbedder | str | None = InstalledEmbedder(),  # noqa: B008  # a frozen value
        keeps_content: bool = True,
        keep_days: float | None = None,
        max_expired_share: float = MAX_SHARE,
        clock: Callable[[], float] = time.time,
        new_id: Callable[[], str] = lambda: uuid4().hex,
    ) -> None:
        self._async = async_engine.Engine(
            store,
            owner=owner,
            model=model,
            system=system,
            tools=tools,
            format=format,
            preset=preset,
            policy=policy,
            window=window,
            max_output=max_output,
            thinking_budget=thinking_budget,
            limit=limit,
            counter=counter,
            sensitive=sensitive,
            summariser=summariser,
            summariser_timeout_s=summariser_timeout_s,
            max_spend=max_spend,
            on_event=on_event,
            embedder=embedder,
            keeps_content=keeps_content,
            keep_days=keep_days,
            max_expired_share=max_expired_share,
            clock=clock,
            new_id=new_id,
        )
        self._process = os.getpid()
        self._start()

    def _start(self) -> None:
        """Open the store. Its warnings are given here, where the caller's line is on the stack."""
        from refold.stores.url import WARN, warn_caller

        warnings = list[str]()
        before = WARN.set(warnings.append)
        try:
            self._run(self._async.start())
        finally:
            WARN.reset(before)
            for text in warnings:
                warn_caller(text)

    def _run(self, act: Coroutine[Any, Any, T]) -> T:
        return _run(act, self._process)

    def start(self) -> Self:
        return self

    @property
    def owner(self) -> str:
        return self._async.owner

    @property
    def settings(self) -> ConversationSettings:
        return self._async.settings

    @property
    def store(self) -> Any:
        """The store, for queries that the engine does not offer, such as `store.calls(owner, name)`."""
        return _Store(self._async.store, self._process)

    @property
    def cache(self) -> SummaryCache:
        return self._async.cache

    def conversation(
        self,
        name: str,
        *,
        branch: str = "",
        title: str = "",
        model: str = "",
        system: SystemPrompt = None,
        tools: Sequence[object] | None = None,
        format: str | None = None,  # noqa: A002  # the word users know
        preset: str | None = None,
        policy: Policy | None = None,
        window: int | None = None,
        max_output: int | None = None,
        thinking_budget: int | None = None,
        limit: int | None = None,
        counter: TokenCounter | None = None,
        sensitive: Sequence[str] | None = None,
        summariser: Summariser | SummaryFunction | str | None = None,
        summariser_timeout_s: float | None = None,
        max_spend: float | None = None,
        on_event: Listener | None = None,
    ) -> Conversation:
        opened = self._async.conversation(
            name,
            branch=branch,
            title=title,
            model=model,
            system=system,
            tools=tools,
            format=format,
            preset=preset,
            policy=policy,
            window=window,
            max_output=max_output,
            thinking_budget=thinking_budget,
            limit=limit,
            counter=counter,
            sensitive=sensitive,
            summariser=summariser,
            summariser_timeout_s=summariser_timeout_s,
            max_spend=max_spend,
            on_event=on_event,
        )
        return Conversation._of(self._run(opened), self._process)  # noqa: SLF001

    def page(self, *, limit: int = 50, words: str = "", after: str = "") -> ConversationPage:
        return self._run(self._async.page(limit=limit, words=words, after=after))

    def conversations(self, *, limit: int = 50, words: str = "") -> list[Listed]:
        return self._run(self._async.conversations(limit=limit, words=words))

    def savings(self, *, days: float | None = None) -> Savings:
        return self._run(self._async.savings(days=days))

    def stats(self, *, by: StatsBy | None = None, days: float | None = None) -> Stats:
        return self._run(self._async.stats(by=by, days=days))

    def switched_off(self) -> frozenset[str]:
        return self._run(self._async.switched_off())

    def switch(self, name: str, *, on: bool) -> None:
        self._run(self._async.switch(name, on=on))

    def learned_windows(self) -> list[LearnedWindow]:
        return self._run(self._async.learned_windows())

    def forget_window(self, model: str) -> bool:
        return self._run(self._async.forget_window(model))

    def sessions(self, name: str = "", *, limit: int = 1_000) -> list[Session]:
        return self._run(self._async.sessions(name, limit=limit))

    def find_sessions(
        self, words: str, *, name: str = "", limit: int = 10, by_meaning: bool = True
    ) -> list[tuple[str, Session]]:
        found = self._async.find_sessions(words, name=name, limit=limit, by_meaning=by_meaning)
        return self._run(found)

    def summaries(self, ids: Sequence[str]) -> list[StoredSummary]:
        return self._run(self._async.summaries(ids))

    def search(self, words: str, *, name: str = "", limit: int = 20) -> list[FoundMessage]:
        return self._run(self._async.search(words, name=name, limit=limit))

    @property
    def search_problem(self) -> str:
        return self._async.search_problem

    def recall(
        self, name: str, what: str, *, branch: str = "", max_tokens: int = 1_000
    ) -> dict[str, Any] | str:
        return self._run(self._async.recall(name, what, branch=branch, max_tokens=max_tokens))

    def fork(self, name: str, at: int, *, branch: str = "") -> str:
        return self._run(self._async.fork(name, at, branch=branch))

    def delete(self, name: str = "") -> int:
        return self._run(self._async.delete(name))

    def expire(self, before: float) -> int:
        return self._run(self._async.expire(before))

    def sweep(self) -> int:
        return self._run(self._async.sweep())

    def embed_messages(self) -> int:
        return self._run(self._async.embed_messages())

    def retain(self) -> int:
        return self._run(self._async.retain())

    def held_back(self) -> HeldBack | None:
        return self._run(self._async.held_back())

    def examine(self, name: str) -> list[Finding]:
        return self._run(self._async.examine(name))

    def rest(self) -> None:
        self._run(self._async.rest())

    def close(self) -> None:
        if self._process == os.getpid():  # else it belongs to the parent process, which still uses it
            self._run(self._async.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Chat:
    """A conversation with a model that streams and calls tools; see `refold.Chat`. The constructor opens it: close
    it, or use it in a `with` block. `tools` that are not async run in threads, as there.
    """

    def __init__(
        self,
        conversation: Conversation,
        upstream: StreamingUpstream | Provider | str,
        *,
        tools: Sequence[ChatTool | Callable[..., Any]] = (),
        mcp: Sequence[str] = (),
        recall: bool = True,
        commands: Sequence[Command] = (),
        confirm: Confirm | None = None,
        debounce_s: float = 0.0,
        parallel_tools: int = PARALLEL_TOOLS,
        lease_s: float = LEASE_S,
    ) -> None:
        self.conversation, self._process = conversation, os.getpid()

        async def opened() -> async_chat.Chat:
            chat = async_chat.Chat(
                conversation._async,  # noqa: SLF001
                upstream,
                tools=tools,
                mcp=mcp,
                recall=recall,
                commands=commands,
                confirm=confirm,
                debounce_s=debounce_s,
                parallel_tools=parallel_tools,
                lease_s=lease_s,
            )
            return await chat.start()

        self._async = self._run(opened())
        self.table, self.problems = self._async.table, self._async.problems

    def _run(self, act: Coroutine[Any, Any, T]) -> T:
        return _run(act, self._process)

    def start(self) -> Self:
        return self

    def send(self, content: object) -> Iterator[ChatEvent]:
        items = self._async.send(content)

        async def read() -> ChatEvent | None:
            return await anext(items, None)

        try:
            while (event := self._run(read())) is not None:
                yield event
        finally:
            self._run(items.aclose())

    def put(self, content: object) -> str:
        return self._run(self._async.put(content))

    def typing(self) -> None:
        async def act() -> None:
            self._async.typing()

        self._run(act())

    def abort(self) -> bool:
        async def act() -> bool:
            return self._async.abort()

        return self._run(act())

    def events(self) -> Iterator[ChatEvent]:
        async def begin() -> ChatEvents:
            return self._async.events()

        stream = self._run(begin())

        async def read() -> ChatEvent | None:
            return await anext(stream, None)

        while (event := self._run(read())) is not None:
            yield event

    def history(self) -> list[Mapping[str, Any] | CommandEntry]:
        return self._run(self._async.history())

    @property
    def model(self) -> str:
        return self._async.model

    @property
    def servers(self) -> list[str]:
        return self._async.servers

    @property
    def waiting(self) -> int:
        return self._async.waiting

    @property
    def provider(self) -> Provider | None:
        return self._async.provider

    @property
    def is_busy(self) -> bool:
        return self._async.is_busy

    @property
    def activity(self) -> str:
        return self._async.activity

    def is_held_elsewhere(self) -> bool:
        return self._run(self._async.is_held_elsewhere())

    def use_model(self, model: str) -> None:
        self._run(self._async.use_model(model))

    def close(self) -> None:
        self._run(self._async.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _copy_docstrings(proxy: type, original: type) -> None:
    """Give the members of a proxy the docstrings of its original, so that `help` shows them, without `await`."""
    for name, member in vars(proxy).items():
        text = getattr(getattr(original, name, None), "__doc__", None)
        if text and not name.startswith("_") and member.__doc__ is None:
            member.__doc__ = (
                text.replace("await ", "").replace("async with ", "with ").replace("async for ", "for ")
            )


_copy_docstrings(Conversation, async_conversation.Conversation)
_copy_docstrings(Engine, async_engine.Engine)
_copy_docstrings(Chat, async_chat.Chat)


def answer_recall(
    chat: Conversation, arguments: str | Mapping[str, object], *, max_tokens: int = MAX_TOKENS
) -> str:
    """Return the answer to a call of the recall tool; see `refold.answer_recall`."""
    return chat._run(answer_recall_async(chat._async, arguments, max_tokens=max_tokens))  # noqa: SLF001
