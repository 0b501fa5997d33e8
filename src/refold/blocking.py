"""Stored conversations for scripts and notebooks: `refold.sync.Engine`.

One idea: there is one engine, and it is asynchronous. A thread of its own runs it, so that a script, or a notebook that has a
loop running already, can wait for every act as for any other function.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from refold import keeping
from refold.conversation import Summarise
from refold.core.policy import Policy
from refold.durable import DurableConversation, Preview, Status
from refold.engine.bill import Bill
from refold.engine.doctor import Finding
from refold.engine.memory import Memory
from refold.engine.receipts import Receipt
from refold.engine.sessions import Resumed
from refold.keeping import Found
from refold.model.tokens import Measurement
from refold.ports.store import Listed, Session
from refold.ports.summariser import Summariser

T = TypeVar("T")


class _Thread:
    """A loop in the background, until it is closed."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="refold", daemon=True)
        self._thread.start()

    def run(self, act: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(act, self._loop).result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Talk:
    """One stored conversation; see `refold.durable.DurableConversation`."""

    def __init__(self, talk: DurableConversation, thread: _Thread) -> None:
        self._talk, self._run = talk, thread.run

    def add(self, *messages: object, sensitive: bool = False, key: str = "") -> None:
        self._run(self._talk.add(*messages, sensitive=sensitive, key=key))

    def context(self) -> dict[str, Any]:
        return self._run(self._talk.context())

    def record(self, usage: object) -> None:
        self._run(self._talk.record(usage))

    def compact(self, *, focus: str = "") -> dict[str, Any]:
        return self._run(self._talk.compact(focus=focus))

    def preview(self) -> Preview:
        return self._run(self._talk.preview())

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

    @property
    def memory(self) -> Memory:
        """The engine's own state."""
        return self._talk.memory

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

    def conversation(self, name: str, **settings: Any) -> Talk:
        return Talk(self._thread.run(self._engine.conversation(name, **settings)), self._thread)

    def conversations(self, *, limit: int = 50, words: str = "") -> list[Listed]:
        return self._thread.run(self._engine.conversations(limit=limit, words=words))

    def sessions(self, name: str = "", *, limit: int = 1_000) -> list[Session]:
        return self._thread.run(self._engine.sessions(name, limit=limit))

    def find_sessions(
        self, words: str, *, name: str = "", limit: int = 10, by_meaning: bool = True
    ) -> list[tuple[str, Session]]:
        found = self._engine.find_sessions(words, name=name, limit=limit, by_meaning=by_meaning)
        return self._thread.run(found)

    def search(self, words: str, *, name: str = "", limit: int = 20) -> list[Found]:
        return self._thread.run(self._engine.search(words, name=name, limit=limit))

    def fork(self, name: str, at: int) -> str:
        return self._thread.run(self._engine.fork(name, at))

    def delete(self, name: str = "") -> int:
        return self._thread.run(self._engine.delete(name))

    def examine(self, name: str) -> list[Finding]:
        return self._thread.run(self._engine.examine(name))

    def close(self) -> None:
        self._thread.run(self._engine.close())
        self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
