"""The engine: conversations that are kept, opened by name, listed, searched, forked and deleted.

One idea: an engine is a store, an owner and the settings that conversations are opened with. It holds no conversation itself,
so two programs with the same store see the same, and closing one loses nothing: it knows those that are open only to stop what
they do in the background.

    async with await refold.Engine.open("sqlite:///chats.db") as engine:
        talk = await engine.conversation("support-42", model="gpt-4o-mini")
        await talk.add("Where is my order?")
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from hashlib import sha256
from typing import Any, Self
from uuid import uuid4
from weakref import WeakSet

from msgspec import Struct, structs

from refold.conversation import Summarise
from refold.core.stages.shown import handle_of
from refold.durable import DurableConversation
from refold.engine.doctor import Finding, examine
from refold.engine.finding import checked, find_sessions
from refold.engine.journal import Journal
from refold.engine.meaning import Meaning
from refold.engine.notes import inherited
from refold.engine.recalling import passage
from refold.engine.retention import MAX_SHARE, HeldBack, Retention, checked_moment, held_back
from refold.engine.standing import Standing
from refold.engine.status import standing_in
from refold.engine.work import LEASE_S, sweep
from refold.model.errors import ConfigError, Conflict, NotFound
from refold.model.summary import Summary
from refold.ports.embedder import Embedder
from refold.ports.store import Head, Hit, Listed, Session, Store, Written
from refold.ports.summariser import Summariser, SummaryCache
from refold.text_work import run_text_work

OWNER = "local"
"""Whose conversations these are where nobody says: one person on one machine."""
MAX_ID = 200
"""Characters of a name: names are for people and for URLs."""
PASSAGE = 80
"""Tokens of each message that a search found: a few lines, and its handle opens the rest."""


class Found(Struct, frozen=True):
    """A message that a search found, with what it says."""

    conversation: str
    branch: str
    handle: str
    text: str
    score: float


class StoredCache:
    """Summaries that were paid for, kept in the store: a cache for `refold.summarisers`."""

    def __init__(self, store: Store, owner: str, clock: Callable[[], float]) -> None:
        self._store, self._owner, self._clock = store, owner, clock
        self._asked = Counter[str]()

    async def get(self, key: str) -> Summary | None:
        found = await self._store.cached(self._owner, key)
        if found is None:
            await self._reserve(key)
        return found

    async def put(self, key: str, summary: Summary) -> None:
        if not self._asked[key]:
            await self._reserve(key)
        self._asked -= Counter([key])
        await self._store.cache(self._owner, key, summary, self._clock())

    async def _reserve(self, key: str) -> None:
        """Before it is asked for: what is deleted until it comes must not come back with it."""
        await self._store.reserve(self._owner, key, self._clock())
        self._asked[key] += 1


class Engine:
    """Conversations of one owner in one store.

    Everything is kept for ever, since what somebody said is not ours to delete; `keep_days` deletes conversations that nothing
    happened in for so long, when the engine is opened and while it is, apart from those that are open in it. More than
    `max_expired_share` of all is deleted only by a second run a day later, and nothing by a clock that is far ahead of the
    store's last use: see `held_back`.
    """

    def __init__(
        self,
        store: Store,
        *,
        owner: str = OWNER,
        summariser: Summariser | Summarise | None = None,
        max_spend: float | None = None,
        embedder: Embedder | None = None,
        keeps_content: bool = True,
        keep_days: float | None = None,
        max_expired_share: float = MAX_SHARE,
        model: str = "",
        clock: Callable[[], float] = time.time,
        new_id: Callable[[], str] = lambda: uuid4().hex,
        **settings: Any,
    ) -> None:
        self.store, self.owner = store, owner
        self._summariser, self._max_spend, self._settings = summariser, max_spend, settings
        self._model, self._opened = model, WeakSet[DurableConversation]()
        self._clock, self._new_id, self._keeps_content = clock, new_id, keeps_content
        self._meaning = Meaning(embedder)
        self._retention = Retention(store, owner, keep_days, clock, max_expired_share)
        self._holder = f"{os.getpid()}-{new_id()[:8]}"

    @classmethod
    async def open(cls, url: str = "", **settings: Any) -> Self:
        """The engine over a store by its URL: `sqlite:///path`, `postgresql://…` or `memory:`; without one, the default file.

        Where the extra `search` is installed sessions are found by meaning too, unless `embedder` is another, or None.

        Raises:
            ConfigError: the URL names no store, or a setting cannot work.
            StoreError: the store cannot be opened.
        """
        from refold.embeddings import installed
        from refold.store.place import open_store

        if "embedder" not in settings:
            settings["embedder"] = installed()
        store = await open_store(url)
        try:
            engine = cls(store, **settings)
            await engine.sweep()
        except BaseException:
            await store.close()
            raise
        return engine

    @cached_property
    def cache(self) -> SummaryCache:
        """What models wrote for any of the owner's conversations: give it to a `ModelSummariser`."""
        if self._keeps_content:
            return StoredCache(self.store, self.owner, self._clock)
        from refold.summarisers.cache import KeptInMemory

        return KeptInMemory()

    async def conversation(
        self, name: str, *, model: str = "", branch: str = "", **settings: Any
    ) -> DurableConversation:
        """A conversation by its name; one that is not there yet is begun.

        Takes the settings of `refold.Conversation`; those of the engine serve where none are given. The model is the one that is
        given, else the one it was begun with, else the engine's. The format is the one it was begun with.

        Raises:
            ConfigError: the name or a setting cannot work, or the format is another one. Nothing is begun then.
            NotFound: it has no such branch.
        """
        await self._retention.begin_in_passing()
        head = await self._head(name, branch)
        if head is None and branch:
            raise NotFound(
                f"the conversation has no branch {branch[:80]!r}",
                hint="leave it out for the one that was begun last",
            )
        talk = await self._talk(head, model, settings) if head else await self._begun(name, model, settings)
        await talk.load()
        self._opened.add(talk)
        await self._retention.apply_in_passing(self._open_names)
        return talk

    async def _talk(self, head: Head, model: str, settings: dict[str, Any]) -> DurableConversation:
        """One that is there."""
        if settings.get("format", head.format) != head.format:
            raise ConfigError(
                f"this conversation was begun in the format {head.format!r}",
                hint="leave the format out, or begin another conversation",
            )
        return self._made(await self._journal(head), model or head.model or self._model, settings)

    async def _begun(self, name: str, model: str, settings: dict[str, Any]) -> DurableConversation:
        """A new one: made before it is begun, so that nothing is kept of one whose settings cannot work."""
        chosen = {**self._settings, **settings}
        head, session = self._new_head(name, model or self._model, chosen.get("format", "chat"))
        journal = Journal(self.store, head, session, self._clock, self._new_id)
        self._made(journal, head.model, settings)
        begun = await self._begin(head, session, chosen.get("title", ""))
        return await self._talk(begun, model, settings)

    def _made(self, journal: Journal, model: str, settings: dict[str, Any]) -> DurableConversation:
        own = {"summariser": self._summariser, "max_spend": self._max_spend}
        chosen = {**own, **self._settings, **settings, "format": journal.seen.format}
        chosen.pop("title", None)
        return DurableConversation(model, journal, holder=self._holder, **chosen)

    @property
    def _open_names(self) -> set[str]:
        return {talk.id for talk in self._opened}

    async def _journal(self, head: Head) -> Journal:
        session = await self.store.session(self.owner, head.session)
        if session is None:
            raise NotFound("the open session of this conversation is gone", hint="run `refold doctor`")
        keeps = self._keeps_content
        return Journal(
            self.store, head, session, self._clock, self._new_id, keeps_content=keeps, meaning=self._meaning
        )

    async def fork(self, name: str, at: int, *, branch: str = "") -> str:
        """A branch that shares the first `at` messages of a conversation; its name.

        Raises:
            NotFound: there is no such conversation, or it has fewer messages.
        """
        base = await self._head(name, branch)
        if base is None or not 0 <= at <= base.next_seq:
            raise NotFound(f"there is no message {at} to fork at", hint="see `refold show`")
        new, session = self._new_id(), self._new_id()
        head = Head(
            owner=self.owner,
            conversation=name,
            branch=new,
            session=session,
            format=base.format,
            model=base.model,
            notes=inherited(base.notes, at),
        )
        opened = Session(id=session, branch=new, first=at, at=self._clock())
        return (await self.store.fork(base, at, head, opened)).branch

    async def conversations(self, *, limit: int = 50, words: str = "") -> list[Listed]:
        """The latest conversations first, each with how full it was when it was last written to."""
        found = await self.store.conversations(self.owner, limit=checked(limit), words=words)
        return [await self._with_standing(one) for one in found]

    async def _with_standing(self, one: Listed) -> Listed:
        head = await self.store.head(self.owner, one.id, one.branch)
        known = await standing_in(self.store, head) if head else Standing()
        return structs.replace(one, tokens=known.tokens, limit=known.limit, reason=known.reason)

    async def sessions(self, name: str = "", *, limit: int = 1_000) -> list[Session]:
        """The sessions of a conversation, or the latest of all."""
        return await self.store.sessions(self.owner, name, checked(limit))

    async def find_sessions(
        self, words: str, *, name: str = "", limit: int = 10, by_meaning: bool = True
    ) -> list[tuple[str, Session]]:
        """Sessions to resume, each with its conversation: by id, by words that were said in them, and, closed ones, by what
        they were about where there is an embedder. Of one conversation where it is named.
        """
        meaning = self._meaning if by_meaning else Meaning()
        return await find_sessions(self.store, self.owner, meaning, words, name=name, limit=checked(limit))

    async def summaries(self, ids: Sequence[str]) -> list[Written]:
        return await self.store.written(self.owner, ids)

    async def search(self, words: str, *, name: str = "", limit: int = 20) -> list[Found]:
        """Messages of every conversation that hold the words, best first."""
        hits = await self.store.search(self.owner, words, conversation=name, limit=checked(limit))
        return [
            Found(
                hit.conversation, hit.branch, handle_of(hit.seq), await self._passage(hit, words), hit.score
            )
            for hit in hits
        ]

    async def _passage(self, hit: Hit, words: str) -> str:
        """What a message that was found says about the words."""
        head = await self.store.head(self.owner, hit.conversation, hit.branch)
        stored = await self.store.pick(head, [hit.seq]) if head else []
        if not stored:
            return ""
        return await run_text_work(
            len(stored[0].body), partial(passage, stored[0], words, max_tokens=PASSAGE)
        )

    async def delete(self, name: str = "") -> int:
        """Really delete a conversation, or everything that the owner has. How many there were."""
        return await self.store.delete(self.owner, name)

    async def expire(self, before: float) -> int:
        """Delete what nothing happened in since then, in seconds since the epoch: all of it, at once. The limits of `keep_days`
        are for what happens by itself; who gives a moment is taken at their word.

        Raises:
            ConfigError: this is no moment.
        """
        return await self.store.expire(self.owner, checked_moment(before))

    async def sweep(self) -> int:
        """End compactions that a program left behind when it died, forget those that it only planned, give vectors to sessions
        that were closed without, and delete what is past its time.
        """
        now = self._clock()
        await self.retain()
        seen_to = await self.store.forget_plans(self.owner, now - LEASE_S)
        if self._keeps_content:
            seen_to += await self._meaning.catch_up(self.store, self.owner, now)
        return seen_to + await sweep(self.store, self.owner, now)

    async def retain(self) -> int:
        """Delete what nothing happened in for `keep_days`, where that was set; once an hour at most. How many there were."""
        return await self._retention.apply(self._open_names)

    async def held_back(self) -> HeldBack | None:
        """How many conversations are past their `keep_days` and are not deleted yet, and why: the clock is in doubt, or they are
        more than a run may delete. None where there are none.
        """
        return await held_back(self.store, self.owner)

    async def examine(self, name: str) -> list[Finding]:
        """Is everything that was said where it belongs?"""
        return await examine(self.store, self.owner, name, self._clock())

    async def close(self) -> None:
        """Stop what open conversations do in the background, while it can still be written down, and close the store."""
        try:
            for talk in list(self._opened):
                await talk.close()
        finally:
            await self.store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _head(self, name: str, branch: str = "") -> Head | None:
        if not name.strip() or len(name) > MAX_ID or not name.isprintable():
            raise ConfigError(
                "this cannot be the name of a conversation",
                hint=f"use 1 to {MAX_ID} printable characters, not only spaces",
            )
        return await self.store.head(self.owner, name, branch)

    def _new_head(self, name: str, model: str, wire: str) -> tuple[Head, Session]:
        # Not by chance: two who begin a conversation at the same moment begin the same one.
        branch = sha256(f"{self.owner}\0{name}".encode()).hexdigest()[:32]
        session = Session(id=self._new_id(), branch=branch, first=0, at=self._clock())
        head = Head(
            owner=self.owner,
            conversation=name,
            branch=session.branch,
            session=session.id,
            format=wire,
            model=model,
        )
        return head, session

    async def _begin(self, head: Head, session: Session, title: str) -> Head:
        try:
            return await self.store.create(head, session, title=title, at=self._clock())
        except Conflict:
            if (found := await self._head(head.conversation)) is None:
                raise
            return found
