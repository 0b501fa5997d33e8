"""Stored conversations for scripts and notebooks: `refold.sync.Engine`.

One idea: there is one engine, and it is asynchronous. A thread of its own runs it, so that a script, or a notebook that has a
loop running already, can wait for every act as for any other function.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Self, TypeVar

from refold import keeping
from refold.conversation import Summarise
from refold.core.policy import Policy
from refold.durable import DurableConversation, Preview, Status
from refold.engine.accounts import MessageTokens
from refold.engine.bill import Bill
from refold.engine.doctor import Finding
from refold.engine.hindsight import Difference
from refold.engine.memory import Memory
from refold.engine.receipts import Receipt
from refold.engine.retention import HeldBack
from refold.engine.sessions import Resumed
from refold.keeping import Found
from refold.model.errors import ConfigError
from refold.model.tokens import Measurement
from refold.ports.store import Call, Compaction, Listed, Session, Store, Written
from refold.ports.summariser import Summariser, SummaryCache
from refold.ports.upstream import CountingUpstream, Upstream
from refold.wire.reply import Reply

T = TypeVar("T")


class _Thread:
    """A loop in the background, until it is closed, for the process that began it: no fork has its threads."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="refold", daemon=True)
        self._thread.start()

    @property
    def is_here(self) -> bool:
        return self._process == os.getpid()

    def run(self, act: Coroutine[Any, Any, T]) -> T:
        """
        Raises:
            ConfigError: it runs in another process, of which this one is a fork.
        """
        if not self.is_here:
            act.close()
            raise ConfigError(
                "this engine was opened in another process, before a fork",
                hint="open one in the new process and none before it is forked, or have multiprocessing start it by `spawn`",
            )
        return asyncio.run_coroutine_threadsafe(act, self._loop).result()

    def close(self) -> None:
        self.run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _Store:
    """A store, every act of which is waited for; see `refold.ports.store.Store`."""

    def __init__(self, store: Store, thread: _Thread) -> None:
        self._store, self._run = store, thread.run

    def __getattr__(self, name: str) -> Callable[..., Any]:
        act = getattr(self._store, name)
        return lambda *args, **settings: self._run(act(*args, **settings))


class Talk:
    """One stored conversation; see `refold.durable.DurableConversation`."""

    def __init__(self, talk: DurableConversation, thread: _Thread) -> None:
        self._talk, self._run = talk, thread.run

    @property
    def id(self) -> str:
        return self._talk.id

    @property
    def branch(self) -> str:
        return self._talk.branch

    def load(self) -> None:
        self._run(self._talk.load())

    def add(self, *messages: object, sensitive: bool = False, key: str = "") -> None:
        self._run(self._talk.add(*messages, sensitive=sensitive, key=key))

    def context(self) -> dict[str, Any]:
        return self._run(self._talk.context())

    def record(self, usage: object) -> None:
        self._run(self._talk.record(usage))

    def count(self, upstream: CountingUpstream) -> int | None:
        return self._run(self._talk.count(upstream))

    def ask(self, upstream: Upstream, *, max_output: int | None = None) -> Reply:
        return self._run(self._talk.ask(upstream, max_output=max_output))

    def came_with(self, fields: bytes) -> None:
        self._run(self._talk.came_with(fields))

    def compact(self, *, focus: str = "") -> dict[str, Any]:
        return self._run(self._talk.compact(focus=focus))

    def fold(self, *, focus: str = "") -> None:
        self._run(self._talk.fold(focus=focus))

    def preview(self, *, preset: Policy | None = None) -> Preview:
        return self._run(self._talk.preview(preset=preset))

    def undo(self) -> bool:
        return self._run(self._talk.undo())

    def rerun(
        self, *, preset: Policy | None = None, summariser: Summariser | Summarise | None = None
    ) -> bool:
        return self._run(self._talk.rerun(preset=preset, summariser=summariser))

    def recall(self, what: str, *, max_tokens: int = 1_000) -> dict[str, Any] | str:
        return self._run(self._talk.recall(what, max_tokens=max_tokens))

    def recover(self, error: object) -> dict[str, Any]:
        return self._run(self._talk.recover(error))

    def new(self) -> Session:
        return self._run(self._talk.new())

    def resume(self, session: Session) -> Resumed:
        return self._run(self._talk.resume(session))

    def status(self) -> Status:
        return self._run(self._talk.status())

    def accounts(self) -> list[MessageTokens]:
        return self._run(self._talk.accounts())

    def difference(self, change: Compaction) -> Difference:
        return self._run(self._talk.difference(change))

    def as_sent(self, call: Call) -> dict[str, Any]:
        return self._run(self._talk.as_sent(call))

    def ready(self) -> None:
        self._run(self._talk.ready())

    def close(self) -> None:
        self._run(self._talk.close())

    @property
    def memory(self) -> Memory:
        """The engine's own state."""
        return self._talk.memory

    @property
    def max_output(self) -> int:
        """How many tokens of output to ask for with the last context; see `refold.sync.Conversation.max_output`."""
        return self._talk.max_output

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        return self._talk.receipts

    @property
    def measurement(self) -> Measurement:
        return self._talk.measurement

    @property
    def bill(self) -> Bill:
        return self._talk.bill


class Engine:
    """Conversations of one owner in one store; see `refold.Engine`. Close it, or use it in a `with` block."""

    def __init__(self, url: str = "", **settings: Any) -> None:
        self._thread = _Thread()
        try:
            self._engine = self._thread.run(keeping.Engine.open(url, **settings))
        except BaseException:
            self._thread.close()
            raise

    @property
    def owner(self) -> str:
        return self._engine.owner

    @property
    def store(self) -> Any:
        """What an engine does not ask for by itself, such as `store.calls(owner, name)`."""
        return _Store(self._engine.store, self._thread)

    @property
    def cache(self) -> SummaryCache:
        return self._engine.cache

    def conversation(self, name: str, *, model: str = "", branch: str = "", **settings: Any) -> Talk:
        opened = self._engine.conversation(name, model=model, branch=branch, **settings)
        return Talk(self._thread.run(opened), self._thread)

    def conversations(self, *, limit: int = 50, words: str = "") -> list[Listed]:
        return self._thread.run(self._engine.conversations(limit=limit, words=words))

    def sessions(self, name: str = "", *, limit: int = 1_000) -> list[Session]:
        return self._thread.run(self._engine.sessions(name, limit=limit))

    def find_sessions(
        self, words: str, *, name: str = "", limit: int = 10, by_meaning: bool = True
    ) -> list[tuple[str, Session]]:
        found = self._engine.find_sessions(words, name=name, limit=limit, by_meaning=by_meaning)
        return self._thread.run(found)

    def summaries(self, ids: Sequence[str]) -> list[Written]:
        return self._thread.run(self._engine.summaries(ids))

    def search(self, words: str, *, name: str = "", limit: int = 20) -> list[Found]:
        return self._thread.run(self._engine.search(words, name=name, limit=limit))

    def fork(self, name: str, at: int, *, branch: str = "") -> str:
        return self._thread.run(self._engine.fork(name, at, branch=branch))

    def delete(self, name: str = "") -> int:
        return self._thread.run(self._engine.delete(name))

    def expire(self, before: float) -> int:
        return self._thread.run(self._engine.expire(before))

    def sweep(self) -> int:
        return self._thread.run(self._engine.sweep())

    def retain(self) -> int:
        return self._thread.run(self._engine.retain())

    def held_back(self) -> HeldBack | None:
        return self._thread.run(self._engine.held_back())

    def examine(self, name: str) -> list[Finding]:
        return self._thread.run(self._engine.examine(name))

    def close(self) -> None:
        if not self._thread.is_here:
            return  # it is the other process's, which goes on with it
        self._thread.run(self._engine.close())
        self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
