"""What the page shows and acts on: the conversations and settings of one owner, and the place that they are served from.

The page calls the engine for everything that it shows. A `Workspace` adds what depends on the place: the settings that a
conversation is opened with, the summariser, and where changed settings are stored. The gateway has one of its own; `StoreWorkspace`
is for a store without a gateway. A `PageBackend` makes workspaces, and knows the keys and the state of operations.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import DecodeError, Struct, structs
from msgspec.json import decode, encode
from starlette.types import Receive, Scope, Send

from refold.config import ResolvedSettings, policy_of, resolve, runtime_layer, update
from refold.config.layers import RUNTIME
from refold.config.upstream import embedder_of
from refold.engine.conversation import Conversation
from refold.engine.engine import OWNER, Engine, as_last_used
from refold.engine.settings import NamedSummariser
from refold.model.errors import ConfigError, NotFound, RefoldError
from refold.ports.models import Summariser
from refold.ports.records import ClientKey
from refold.ports.store import Store

NO_MODEL = "digest"
"""Stands for a summary that no model writes."""


class SummaryChoice(Struct, frozen=True):
    """The summariser for an act, and a note if no model can be asked."""

    summariser: Summariser | None = None
    note: str = ""


class OperationNote(Struct, frozen=True):
    """One line about the operation of the place: an upstream, the store, replies that wait to be stored."""

    name: str
    state: str
    is_wrong: bool = False


class Workspace(Protocol):
    """The conversations and settings of one owner."""

    @property
    def engine(self) -> Engine: ...

    @property
    def resolved(self) -> ResolvedSettings:
        """The settings in effect for this owner."""
        ...

    async def open(self, name: str, branch: str = "", *, preset: str = "") -> Conversation:
        """Open a conversation with the settings that its next call would have; with `preset`, by that policy.

        Raises:
            NotFound: the owner has no such conversation or branch.
            ConfigError: there is no such preset.
        """
        ...

    def writers(self) -> Sequence[str]:
        """The models that an act may name to write a summary, besides the configured one and none."""
        ...

    async def writer(self, talk: Conversation, model: str = "") -> SummaryChoice:
        """The summariser of an act: the configured one, or the named model of `writers`.

        Raises:
            ConfigError: the model is not among `writers`.
        """
        ...

    async def change_settings(self, changes: dict[str, object]) -> None:
        """Change settings with the checks of the settings tree, all or none, and store them.

        Raises:
            SettingError: a value cannot be used, or cannot be changed here.
        """
        ...

    async def switch(self, name: str, *, on: bool) -> None:
        """Switch the compaction of a conversation off, or on again."""
        ...

    def note_change(self, name: str) -> None:
        """Tell those who watch that a user has changed a conversation in a way that the engine has no event for."""
        ...


class PageBackend(Protocol):
    """The place that the page is served from."""

    @property
    def version(self) -> str: ...

    @property
    def events(self) -> Sequence[str]:
        """The names of the events of `stream`."""
        ...

    async def workspace(self, owner: str) -> Workspace: ...

    async def verify(self, key: str) -> ClientKey:
        """The stored key that a text belongs to.

        Raises:
            KeyRefused: the text is not a key, or the key was revoked.
        """
        ...

    async def operations(self) -> Sequence[OperationNote]:
        """The state of upstreams and store, without content."""
        ...

    async def stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The event stream of the owner in the scope, as an ASGI application."""
        ...


# A store without a gateway


class StoreWorkspace:
    """The conversations of one owner in a store that no gateway of this process serves."""

    def __init__(self, engine: Engine, resolved: ResolvedSettings, named: dict[str, NamedSummariser]) -> None:
        self.engine, self.resolved, self._named = engine, resolved, named

    async def open(self, name: str, branch: str = "", *, preset: str = "") -> Conversation:
        head = await self.engine.store.head(self.engine.owner, name, branch)
        if head is None:
            raise NotFound("there is no such conversation", hint="see the list of conversations")
        settings = structs.replace(
            as_last_used(self.engine.settings, head), policy=policy_of(self.resolved.settings, preset=preset)
        )
        talk = await self.engine.open_branch(head, settings)
        await talk.load()
        return talk

    def writers(self) -> Sequence[str]:
        return self.resolved.settings.summariser.models

    async def writer(self, talk: Conversation, model: str = "") -> SummaryChoice:
        model = model or next(iter(self.writers()), NO_MODEL)
        if model == NO_MODEL:
            return SummaryChoice()
        if model not in self.writers():
            raise ConfigError(
                "this model is not one of those that may write summaries here",
                hint="name it in summariser.models",
            )
        if model not in self._named:
            settings = structs.replace(self.engine.settings, model=talk.model)
            self._named[model] = NamedSummariser(model, settings, cache=lambda: self.engine.cache)
        return SummaryChoice(self._named[model])

    async def change_settings(self, changes: dict[str, object]) -> None:
        self.resolved = update(self.resolved, changes)
        saved = encode(self.resolved.runtime)
        await self.engine.store.put_setting(self.engine.owner, RUNTIME, saved, self.engine.clock())

    async def switch(self, name: str, *, on: bool) -> None:
        await self.engine.switch(name, on=on)

    def note_change(self, name: str) -> None:
        """The stream of a store looks at the store itself."""


class KeyChecks(Protocol):
    """Checks keys against the store."""

    async def verify(self, text: str) -> ClientKey: ...

    async def is_valid(self, which: str, owner: str) -> bool: ...


POLL_S = 1.0
"""Seconds between two looks at the store while somebody watches."""
BEAT_S = 15.0
"""Seconds of silence after which a heartbeat is sent: proxies close silent connections."""
WATCHED = 20
"""The conversations used last whose changes are noticed."""


class StoreBackend:
    """The page of a store. `owner` is the one whose conversations are shown where there are no keys."""

    events = ("changed",)

    def __init__(
        self, store: Store, resolved: ResolvedSettings, keys: KeyChecks, version: str, *, owner: str = OWNER
    ) -> None:
        self._store, self._resolved, self._keys, self.version, self._owner = (
            store,
            resolved,
            keys,
            version,
            owner,
        )
        self._engines: dict[str, Engine] = {}
        self._named: dict[str, NamedSummariser] = {}
        self._is_closed = asyncio.Event()

    async def workspace(self, owner: str) -> StoreWorkspace:
        owner = self._owner if owner == OWNER else owner
        if owner not in self._engines:
            kept, spend = self._resolved.settings.store, self._resolved.settings.summariser
            self._engines[owner] = Engine(
                self._store,
                owner=owner,
                embedder=embedder_of(self._resolved.settings),
                keeps_content=kept.content,
                max_spend=spend.max_spend,
                summariser_timeout_s=spend.timeout_s,
            )
        return StoreWorkspace(self._engines[owner], await self._settings(owner), self._named)

    async def _settings(self, owner: str) -> ResolvedSettings:
        """The settings of this place with the owner's changes, as a gateway on this store has them."""
        saved = await self._store.setting(owner, RUNTIME)
        try:
            return (
                resolve([*self._resolved.layers, runtime_layer(decode(saved))]) if saved else self._resolved
            )
        except (RefoldError, DecodeError):
            return self._resolved

    async def verify(self, key: str) -> ClientKey:
        return await self._keys.verify(key)

    async def operations(self) -> Sequence[OperationNote]:
        return [
            OperationNote("store", "reachable"),
            OperationNote("gateway", "none: this is the store alone"),
        ]

    async def stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Look at the store every second, and send an event when something was stored."""
        owner, key_id = scope["state"]["owner"], scope["state"]["key_id"]
        engine = (await self.workspace(owner)).engine
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        gone = asyncio.ensure_future(_disconnect(receive))
        try:
            await self._watch(engine, key_id, gone, send)
        finally:
            gone.cancel()
        await send({"type": "http.response.body", "body": b""})

    async def _watch(self, engine: Engine, key_id: str, gone: asyncio.Future[None], send: Send) -> None:
        seen, silent_s = await _places(engine), BEAT_S
        closed = asyncio.ensure_future(self._is_closed.wait())
        try:
            while not (gone.done() or closed.done()):
                if key_id and not await self._keys.is_valid(key_id, engine.owner):
                    return
                now = await _places(engine)
                if now != seen or silent_s >= BEAT_S:
                    body = b"event: changed\ndata: {}\n\n" if now != seen else b":\n\n"
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                    silent_s = 0.0
                seen, silent_s = now, silent_s + POLL_S
                ends: set[asyncio.Future[Any]] = {gone, closed}
                await asyncio.wait(ends, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            closed.cancel()

    def end_streams(self) -> None:
        self._is_closed.set()

    async def close(self) -> None:
        """Stop the background work. The store stays open."""
        for engine in self._engines.values():
            await engine.rest()
        for one in self._named.values():
            await one.close()


async def _places(engine: Engine) -> list[tuple[object, ...]]:
    rows = await engine.store.latest_heads(engine.owner, limit=WATCHED)
    off = sorted(await engine.switched_off())
    return [(one.head.conversation, one.head.branch, *one.head.place) for one in rows] + [tuple(off)]


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
