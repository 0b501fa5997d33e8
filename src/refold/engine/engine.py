"""The engine: the conversations of one owner in one store.

Opens conversations by name, lists, searches, forks and deletes them. It holds no state of a conversation: two
programs with the same store see the same. It keeps weak references to open conversations only to stop their
background work.

    async with refold.Engine("sqlite:///chats.db", model="gpt-4o-mini") as engine:
        chat = await engine.conversation("support-42")
        await chat.add("Where is my order?")

This module is the composition root: only here a URL becomes a store and `"openai:gpt-4o-mini"` a summariser.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from hashlib import sha256
from os import PathLike
from typing import Any, Self
from uuid import uuid4
from weakref import WeakSet

import msgspec
from msgspec import Struct, structs

from refold.core.policy import Policy
from refold.core.search.query import limit_query, mark_words, parse_query
from refold.core.stage import handle_of
from refold.engine.arguments import (
    check_days,
    check_function,
    check_members,
    check_text,
    check_texts,
    check_unicode,
    check_whole,
)
from refold.engine.conversation import Conversation
from refold.engine.damage import readable_summaries
from refold.engine.doctor import Finding, examine
from refold.engine.effect import Savings, Stats, StatsBy, check_by, first_day, savings_of, stats_of
from refold.engine.events import Listener
from refold.engine.journal import (
    WINDOW,
    Journal,
    KnownTime,
    LearnedWindow,
    inherited,
    read_fill_level,
    read_learned,
)
from refold.engine.recall import PASSAGE, RECENT_CALLS, holds_all, is_copy, newest_reply, passage
from refold.engine.retention import (
    MAX_SHARE,
    HeldBack,
    Retention,
    checked_days,
    checked_moment,
    checked_share,
    held_back,
)
from refold.engine.search import (
    Meaning,
    TurnVectors,
    UnboundedEmbedder,
    checked,
    find_messages,
    find_sessions,
    is_able,
)
from refold.engine.settings import (
    SUMMARISER_TIMEOUT_S,
    ConversationSettings,
    NamedEmbedder,
    NamedSummariser,
    SystemPrompt,
    check_policy,
    named_embedder,
    policy_for,
    state_for,
    summariser_named,
)
from refold.engine.state import FillLevel
from refold.engine.status import stored_fill_level
from refold.engine.summary_jobs import LEASE_S, sweep
from refold.model.errors import ConfigError, Conflict, Damaged, NotFound
from refold.model.summary import Summary
from refold.model.tokens import TokenCounter
from refold.ports.models import Embedder, Summariser, SummaryCache, SummaryFunction
from refold.ports.records import (
    Head,
    LatestHead,
    Listed,
    SearchHit,
    Session,
    StoredMessage,
    StoredSummary,
    read_reply,
)
from refold.ports.store import Store
from refold.text_work import run_text_work
from refold.tokens.catalog import WindowSize, window_for

OWNER = "local"
"""The default owner: one person on one machine."""
OF_SURFACES = frozenset({"open_branch", "known_time"})
"""The members of an engine that the gateway uses; see `refold.engine.conversation.OF_SURFACES`."""
MAX_ID = 200
"""Characters of a name: names are for people and for URLs."""
OFF = "off"
"""The key of the setting with the names of the conversations that are switched off."""
COPIES = 4
"""Branches of one conversation that hold the same message: the store is asked for so many times as much."""


class FoundMessage(Struct, frozen=True):
    """A message that a search found, with the passage that matches."""

    conversation: str
    branch: str
    handle: str
    text: str
    score: float
    damage: str = ""
    """Why the message cannot be read, such as "message 3 cannot be read"; then there is no text. Empty where it can."""
    session: str = ""
    """The id of the session that holds it; empty if that was undone."""
    at: float = 0.0
    """When it was stored, in seconds since the epoch; 0 if not known."""
    marks: tuple[tuple[int, int], ...] = ()
    """Where the words of the query are in `text`, as pairs of offsets."""


class ConversationLine(Struct, frozen=True, kw_only=True):
    """A conversation in a page of the list, with how full its context was at the last write."""

    id: str
    branch: str
    title: str = ""
    model: str = ""
    messages: int = 0
    """Messages of the branch that was used last."""
    reply: int = 0
    """Messages of its newest reply, which the client has not sent back yet: they are not counted in `messages`."""
    branches: int = 1
    compactions: int = 0
    """Summaries of all branches that are in effect."""
    tokens: int = 0
    limit: int = 0
    window: int = 0
    window_source: str = ""
    reason: str = ""
    """Why a compaction is due; empty if none is, or if the conversation is off."""
    summary: str = ""
    off: bool = False
    at: float = 0.0
    updated_at: float = 0.0

    @property
    def ratio(self) -> float:
        return self.tokens / self.limit if self.limit else 0.0


class ConversationPage(Struct, frozen=True):
    """A page of the list of conversations, and the cursor of the next one; empty if this is the last."""

    lines: tuple[ConversationLine, ...]
    next: str = ""


class InstalledEmbedder(Struct, frozen=True):
    """Stands for the embedder of the extra `search`, if that is installed."""


class StoredCache:
    """Cache of model-written summaries in the store, for `refold.summarisers`."""

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
        """Reserve the key before the model is asked. If anything of the owner is deleted before the answer
        arrives, the reservation is deleted too, and the answer is not stored.
        """
        await self._store.reserve(self._owner, key, self._clock())
        self._asked[key] += 1


class Engine:
    """The conversations of one owner in one store. `async with` opens it.

        async with refold.Engine("sqlite:///chats.db", model="gpt-4o-mini") as engine:
            chat = await engine.conversation("support-42")

    The settings of a conversation (`model`, `window`, `preset`, …, see `refold.Conversation`) are the
    defaults of every conversation that is opened here.

    Everything is kept for ever, unless `keep_days` is set. Then conversations that were idle for so long are
    deleted, when the engine is opened and while it is open, except those that are open in it. More than
    `max_expired_share` of all conversations is deleted only by a second run a day later, and none by a clock
    that is far ahead of the store's last use: see `held_back`.

    Args:
        store: a URL (`sqlite:///path`, `postgresql://…`, `memory:`), a path, or a store; by default the
            default file.
        owner: the owner; every query is restricted to its conversations.
        embedder: finds messages and sessions by meaning: an object, or a name: `static` (extra `search`), `onnx` (extra `onnx`), or a
            model such as `openai:text-embedding-3-small`. By default, for a URL, the static one if it is installed.
        keeps_content: False stores counts and times, but no text.
        keep_days: days after which an idle conversation is deleted; None for never.
        max_expired_share: the share of all conversations that one run may delete.
        clock: returns seconds since the epoch.
        new_id: returns a new unique id.
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
        check_unicode(owner, "owner")
        check_function(clock, "clock")
        check_function(new_id, "new_id")
        if policy is not None:
            check_policy(policy)
        if not isinstance(store, str | PathLike) and store is not None:
            hint = "give a URL such as sqlite:///chats.db, a path, or a `refold.Store`"
            check_members(store, "store", "commit", "close", hint=hint)
        if isinstance(embedder, str):
            embedder = named_embedder(embedder)
        if embedder is not None and not isinstance(embedder, InstalledEmbedder):
            check_members(
                embedder, "embedder", "name", hint="leave it out, or give None for no search by meaning"
            )
        self.owner, self.clock, self.new_id, self.keeps_content = owner, clock, new_id, keeps_content
        self.steady: Callable[[], float] = time.monotonic if clock is time.time else clock
        """Measures how long this program has waited. A clock of the caller's own is taken for one that does not jump."""
        self.settings = ConversationSettings(
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
        self._named_summariser: NamedSummariser | None = None
        if isinstance(summariser, str):
            named = summariser_named(summariser, self.settings, cache=lambda: self.cache)
            self._named_summariser = named if isinstance(named, NamedSummariser) else None
            self.settings = structs.replace(self.settings, summariser=named)
        self._url = store if isinstance(store, str | PathLike) else None
        self._store = None if isinstance(store, str | PathLike) else store
        self._embedder = embedder
        self._keep_days = None if keep_days is None else checked_days(keep_days)
        self._max_expired_share = checked_share(max_expired_share)
        self._opened = WeakSet[Conversation]()
        self._holder = f"{os.getpid()}-{new_id()[:8]}"

    async def start(self) -> Self:
        """Open the store that the URL names, and clean up after crashed programs; `async with` calls it.

        Raises:
            ConfigError: the URL names no store, or a setting cannot work.
            StoreError: the store cannot be opened.
        """
        if self._store is None:
            from refold.stores.url import open_store

            state_for(self.settings)
            self._store = await open_store("" if self._url is None else self._url)
            try:
                await self.sweep()
            except BaseException:
                await self._store.close()
                self._store = None
                raise
        return self

    @property
    def store(self) -> Store:
        """The store.

        Raises:
            ConfigError: the engine is not open.
        """
        if self._store is None:
            raise ConfigError("the engine is not open", hint="use it in `async with`, or await its `start()`")
        return self._store

    @cached_property
    def _meaning(self) -> Meaning:
        embedder = self._embedder
        if isinstance(embedder, InstalledEmbedder):
            from refold.embeddings import installed

            embedder = installed() if self._url is not None else None
        from refold.embeddings import StaticEmbedder
        from refold.stores.memory import MemoryStore

        is_unasked = isinstance(embedder, StaticEmbedder) and isinstance(self._store, MemoryStore)
        if embedder is not None and not hasattr(embedder, "least"):
            embedder = UnboundedEmbedder(embedder)
        turns = (
            TurnVectors(self.store, self.owner, embedder)
            if embedder is not None and self.keeps_content and is_able()
            else None
        )
        return Meaning(embedder, turns=turns, is_quiet=is_unasked)

    @cached_property
    def _retention(self) -> Retention | None:
        """None if conversations are kept for ever."""
        if self._keep_days is None:
            return None
        return Retention(
            self.store, self.owner, self._keep_days, self.clock, self._max_expired_share, steady=self.steady
        )

    @cached_property
    def known_time(self) -> KnownTime:
        """The time that the store knows: no use of a conversation is stored as earlier."""
        return KnownTime(self.store, self.owner, self.clock)

    @cached_property
    def cache(self) -> SummaryCache:
        """Cache of the summaries that models wrote for any conversation of the owner: give it to a
        `ModelSummariser`.
        """
        if self.keeps_content:
            return StoredCache(self.store, self.owner, self.clock)
        from refold.summarisers import MemoryCache

        return MemoryCache()

    async def conversation(
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
        """Open a conversation by its name, or begin it.

        A setting that is not given is the engine's. The model is the given one, else the one that the
        conversation was begun with, else the engine's. The format is the one that it was begun with.

            chat = await engine.conversation("support-42", system="You answer in one sentence.")

        Args:
            name: 1 to 200 printable characters.
            branch: the id of a branch, see `fork`; by default the one that was used last.
            title: the title of a conversation that is begun; by default its first question.

        Raises:
            ConfigError: the name or a setting cannot work, or the format is another one. Nothing is begun
                then.
            NotFound: the conversation has no such branch.
        """
        given = {
            "system": system,
            "tools": tools,
            "format": format,
            "preset": preset,
            "policy": policy,
            "window": window,
            "max_output": max_output,
            "thinking_budget": thinking_budget,
            "limit": limit,
            "counter": counter,
            "sensitive": sensitive,
            "summariser": summariser,
            "summariser_timeout_s": summariser_timeout_s,
            "max_spend": max_spend,
            "on_event": on_event,
        }
        check_unicode(title, "title")
        own: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        if preset is not None and policy is None:
            own["policy"] = None
        settings = structs.replace(self.settings, **own)
        if self._retention is not None:
            await self._retention.begin_in_passing()
        head = await (self._existing_head(name, branch) if branch else self._head(name))
        if head is None:
            settings = structs.replace(settings, model=model or settings.model)
            self._check(settings)
            head = await self._create(*self._new_head(name, settings), title)
        elif format is not None and format != head.format:
            raise ConfigError(
                f"this conversation was begun in the format {head.format!r}",
                hint="leave the format out, or begin another conversation",
            )
        settings = structs.replace(settings, model=model or head.model or settings.model)
        if settings.reported_window is None and settings.model == head.model:
            settings = structs.replace(settings, reported_window=_reported_window(head))
        if head.conversation in await self.switched_off():
            settings = structs.replace(settings, policy=structs.replace(policy_for(settings), enabled=False))
        talk = await self.open_branch(head, settings)
        await talk.load()
        if self._retention is not None:
            await self._retention.apply_in_passing(self._open_names)
        return talk

    def _check(self, settings: ConversationSettings) -> None:
        """Check the settings before a conversation is stored.

        Raises:
            ConfigError: a setting cannot work.
        """
        state_for(settings)
        if isinstance(settings.summariser, str):
            summariser_named(settings.summariser, settings)

    async def open_branch(
        self,
        head: Head,
        settings: ConversationSettings | None = None,
        *,
        learns: str = "",
        is_empty: bool = False,
        finds_twins: bool = True,
        refuses_damage: bool = False,
    ) -> Conversation:
        """Open a branch; its messages are loaded by the first act. By default it has the engine's settings and
        the model that it was written with. Calibration and limits are stored under the name `learns`, by
        default that of the model. With `is_empty` the branch is known to be empty, and nothing is loaded. With
        `refuses_damage` no placeholder stands for a damaged message: a load raises `Damaged`.

        Raises:
            ConfigError: a setting cannot work.
            NotFound: the open session of the branch is gone.
        """
        if settings is None:
            settings = structs.replace(self.settings, model=head.model or self.settings.model)
        if is_empty:
            session = Session(id=head.session, branch=head.branch, first=0, at=self.clock())
        elif (found := await self.store.session(self.owner, head.session)) is not None:
            session = found
        else:
            raise NotFound("the open session of this conversation is gone", hint="run `refold doctor`")
        journal = Journal(
            self.store,
            head,
            session,
            self.clock,
            self.new_id,
            keeps_content=self.keeps_content,
            meaning=self._meaning,
            model=settings.model,
            learns=learns,
            known_time=self.known_time,
            refuses_damage=refuses_damage,
        )
        settings = structs.replace(settings, format=head.format, cache=self.cache)
        talk = Conversation.stored(
            journal, settings, holder=self._holder, is_empty=is_empty, finds_twins=finds_twins
        )
        self._opened.add(talk)
        return talk

    @property
    def _open_names(self) -> set[str]:
        return {talk.id for talk in self._opened}

    async def fork(self, name: str, at: int, *, branch: str = "") -> str:
        """Create a branch that shares the first `at` messages of a conversation, and return its id.

            branch = await engine.fork("support-42", 6)
            other = await engine.conversation("support-42", branch=branch)

        Raises:
            NotFound: there is no such conversation, or it has fewer messages.
        """
        check_whole(at, "the place of a fork", hint="give the number of messages to share")
        base = await self._existing_head(name, branch)
        if not 0 <= at <= base.next_seq:
            raise NotFound(
                f"there is no message {at} to fork at: the conversation has {base.next_seq}",
                hint="see `refold show`",
            )
        new, session = self.new_id(), self.new_id()
        head = Head(
            owner=self.owner,
            conversation=name,
            branch=new,
            session=session,
            format=base.format,
            model=base.model,
            notes=inherited(base.notes, at),
        )
        opened = Session(id=session, branch=new, first=at, at=self.clock())
        return (await self.store.fork(base, at, head, opened)).branch

    async def conversations(self, *, limit: int = 50, words: str = "") -> list[Listed]:
        """Return the latest conversations, newest first, each with its fill level at the last write. With
        `words`, only those that have all of them in their name or title. Of a longer text, the first 1,000
        characters are words to look for.
        """
        check_text(words, "words")
        words = limit_query(words)
        found = await self.store.conversations(self.owner, limit=checked(limit), words=words)
        off = await self.switched_off() if found else frozenset()
        return [await self._with_fill_level(one, is_off=one.id in off) for one in found]

    async def page(self, *, limit: int = 50, words: str = "", after: str = "") -> ConversationPage:
        """Return a page of the conversations, newest first, without their totals: it takes as long for thousands of
        long conversations as for a few. `after` is the `next` of the page before; `words` as in `conversations`.

        Raises:
            ConfigError: `after` is no cursor.
        """
        check_text(words, "words")
        most = checked(limit)
        found = await self.store.latest_heads(
            self.owner, limit=most + 1, words=limit_query(words), before=_place_of(after)
        )
        rows, off = found[:most], await self.switched_off() if found else frozenset()
        levels = [read_fill_level(one.head.notes) for one in rows]
        behind = [
            (row.head.branch, level.size)
            for row, level in zip(rows, levels, strict=True)
            if 0 <= level.size < row.head.next_seq
        ]
        since = await self.store.tokens_since(self.owner, behind) if behind else {}
        places = [(one.head.conversation, one.head.branch, one.head.next_seq) for one in rows]
        replies = await self.store.newest_replies(self.owner, places) if places else {}
        sizes = {branch: len(read_reply(body) or ()) for branch, body in replies.items()}
        lines = tuple(
            _line(
                row,
                level.after_tokens(since[row.head.branch], row.head.next_seq)
                if row.head.branch in since
                else level,
                off,
                sizes.get(row.head.branch, 0),
            )
            for row, level in zip(rows, levels, strict=True)
        )
        at, ordinal = rows[-1].place if rows else (0.0, 0)
        return ConversationPage(lines, f"{at!r}-{ordinal}" if len(found) > most else "")

    async def _with_fill_level(self, one: Listed, *, is_off: bool) -> Listed:
        head = await self.store.head(self.owner, one.id, one.branch)
        known = await stored_fill_level(self.store, head) if head else FillLevel()
        return structs.replace(
            one,
            tokens=known.tokens,
            limit=known.limit,
            reason="" if is_off else known.reason,
            off=is_off,
            window=known.window,
            window_source=known.window_source,
            arithmetic=known.arithmetic,
            summary=known.summary,
        )

    async def savings(self, *, days: float | None = None) -> Savings:
        """Return the tokens and dollars of all calls of the last days, those that compaction saved, and the
        price of its summaries; without `days`, since the beginning. A day is one of UTC, and today is one of them.
        """
        check_days(days)
        return await savings_of(self.store, self.owner, first_day(self.clock(), days))

    async def stats(self, *, by: StatsBy | None = None, days: float | None = None) -> Stats:
        """Return the effect of compaction in numbers: the savings, cache hits, recoveries, the time that was added,
        and the compactions by reason, author and outcome. They hold what was done in deleted conversations too.

        Args:
            by: also in groups: by `day`, `model`, `upstream` or `conversation`. Deleted conversations are no groups.
            days: only the last days, as in `savings`.
        """
        check_days(days)
        first = first_day(self.clock(), days)
        return await stats_of(self.store, [self.owner], by=check_by(by), first=first)

    async def switched_off(self) -> frozenset[str]:
        """Return the names of the conversations that are switched off, see `switch`."""
        saved = await self.store.setting(self.owner, OFF)
        return frozenset(msgspec.json.decode(saved, type=list[str])) if saved else frozenset()

    async def switch(self, name: str, *, on: bool) -> None:
        """Switch the compaction of a conversation off, or on again. While it is off, the gateway passes its requests
        on unchanged and stores nothing of them, and a program that opens it sends the messages as they are
        shown, without a new compaction.
        """
        check_text(name, "name")
        off = await self.switched_off()
        changed = off - {name} if on else off | {name}
        if changed != off:
            saved = msgspec.json.encode(sorted(changed)) if changed else None
            await self.store.put_setting(self.owner, OFF, saved, self.clock())

    async def learned_windows(self) -> list[LearnedWindow]:
        """Return the windows of models that providers stated when they refused a request as too long. Each is
        used for seven days, or until a larger request is answered.
        """
        rows = await self.store.all_learnt(self.owner, WINDOW)
        found = (read_learned(model, value) for model, value in rows)
        return [one for one in found if one is not None and self.clock() < one.until]

    async def forget_window(self, model: str) -> bool:
        """Forget the learned window of a model; False if none was learnt. Conversations that are open keep it
        until they are opened again.
        """
        check_text(model, "model")
        return await self.store.forget(self.owner, WINDOW, model)

    async def sessions(self, name: str = "", *, limit: int = 1_000) -> list[Session]:
        """Return the sessions of a conversation, or the latest of all."""
        check_text(name, "name")
        return await self.store.sessions(self.owner, name, checked(limit))

    async def find_sessions(
        self, words: str, *, name: str = "", limit: int = 10, by_meaning: bool = True
    ) -> list[tuple[str, Session]]:
        """Find sessions to resume, each with the name of its conversation: by id, by words in their messages,
        and, if they are closed and there is an embedder, by meaning. `name` restricts them to one
        conversation. Of a longer text, the first 1,000 characters are words to look for.
        """
        check_text(words, "words")
        check_text(name, "name")
        words = limit_query(words)
        meaning = self._meaning if by_meaning else Meaning()
        return await find_sessions(self.store, self.owner, meaning, words, name=name, limit=checked(limit))

    async def summaries(self, ids: Sequence[str]) -> list[StoredSummary]:
        """Return the stored summaries with these ids, without those that are damaged."""
        check_texts(ids, "ids", hint="give a list of ids")
        return await readable_summaries(self.store, self.owner, ids)

    async def search(self, words: str, *, name: str = "", limit: int = 20) -> list[FoundMessage]:
        """Find messages of every conversation by words, best first; last, of the conversations used last,
        replies that no request has sent back yet. `name` restricts them to one conversation. A message that
        several branches of a conversation hold is found once, in the branch used last if it is there. A
        damaged message has no text; its `damage` says why.

            await engine.search('"night boat" harbour -storm after:2026-05')

        Words count in all their forms, and stop words only if there is nothing else. `"a phrase"` must occur
        as it is, `-word` must not; `in:NAME`, `from:user`, `after:2026-05-31` and `before:2026-06` restrict
        the messages. Of a longer text, the first 1,000 characters are words to look for.
        With an embedder, messages that are near in meaning take part; `search_problem` says if they do not.
        """
        check_text(words, "words")
        check_text(name, "name")
        words = limit_query(words)
        most, branches = checked(limit), dict[str, str]()
        hits = await find_messages(
            self.store, self.owner, self._meaning.turns, words, conversation=name, limit=COPIES * most
        )
        messages = await self._stored(hits)
        found = dict[tuple[str, bytes], tuple[SearchHit, Head | None, StoredMessage | None]]()
        for hit in hits:
            if hit.conversation not in branches:
                latest = await self.store.head(self.owner, hit.conversation)
                branches[hit.conversation] = latest.branch if latest else ""
            head, message = messages.get((hit.branch, hit.seq), (None, None))
            body = message.body if message else b""
            if head is not None and message is not None:
                is_repeated: bool = await run_text_work(len(body), is_copy, message, head)
                if is_repeated:
                    continue
            key = hit.conversation, sha256(body or f"{hit.branch} {hit.seq}".encode()).digest()
            if key not in found:
                found[key] = hit, head, message
            elif hit.branch == branches[hit.conversation]:
                found[key] = structs.replace(hit, score=found[key][0].score), head, message
        for reply in await self._newest_replies(words, name) if len(found) < most else ():
            hit, _, stored = reply
            found.setdefault((hit.conversation, sha256(stored.body if stored else b"").digest()), reply)
        best = [*found.values()][:most]
        sessions = await self.store.holding(self.owner, [(hit.branch, hit.seq) for hit, _, _ in best])
        return [await self._found(*one, words, sessions) for one in best]

    @property
    def search_problem(self) -> str:
        """Why searches go by words alone for now, although there is an embedder; empty if they do not."""
        return self._meaning.problem

    async def _stored(
        self, hits: Sequence[SearchHit]
    ) -> dict[tuple[str, int], tuple[Head | None, StoredMessage | None]]:
        """Return the messages of hits, by branch and number, with the heads of their branches."""
        found = dict[tuple[str, int], tuple[Head | None, StoredMessage | None]]()
        for branch, conversation in {hit.branch: hit.conversation for hit in hits}.items():
            head = await self.store.head(self.owner, conversation, branch)
            numbers = [hit.seq for hit in hits if hit.branch == branch]
            for message in await self.store.pick(head, numbers) if head else ():
                found[branch, message.seq] = head, message
            for number in numbers:
                found.setdefault((branch, number), (head, None))
        return found

    async def _newest_replies(
        self, words: str, name: str
    ) -> list[tuple[SearchHit, Head | None, StoredMessage | None]]:
        """Return the replies of the conversations used last, of all branches that were used last there, that
        contain all the words and that no request has sent back yet.
        """
        names = [name] if name else [one.id for one in await self.store.conversations(self.owner, limit=50)]
        found = list[tuple[SearchHit, Head | None, StoredMessage | None]]()
        for one in names:
            calls = await self.store.calls(self.owner, one, RECENT_CALLS)
            for branch in dict.fromkeys(call.branch for call in reversed(calls)):
                head = await self.store.head(self.owner, one, branch)
                for reply in await newest_reply(self.store, head) if head else ():
                    assert head is not None
                    if await run_text_work(len(reply.body), holds_all, reply, head, words):
                        hit = SearchHit(conversation=one, branch=branch, seq=reply.seq, score=0.0)
                        found.append((hit, head, reply))
        return found

    async def _found(
        self,
        hit: SearchHit,
        head: Head | None,
        stored: StoredMessage | None,
        words: str,
        sessions: Sequence[Session],
    ) -> FoundMessage:
        """Return a found message with the passage that matches the words."""
        holder = next((one.id for one in sessions if one.branch == hit.branch and one.holds(hit.seq)), "")
        found = FoundMessage(
            hit.conversation,
            hit.branch,
            handle_of(hit.seq),
            "",
            hit.score,
            session=holder,
            at=stored.at if stored else 0.0,
        )
        if head is None or stored is None:
            return found

        def read() -> FoundMessage:
            text = passage(stored, head, words, max_tokens=PASSAGE)
            return structs.replace(found, text=text, marks=tuple(mark_words(text, parse_query(words))))

        try:
            return await run_text_work(len(stored.body), read)
        except Damaged as error:
            return structs.replace(found, damage=error.what)

    async def recall(
        self, name: str, what: str, *, branch: str = "", max_tokens: int = 1_000
    ) -> dict[str, Any] | str:
        """Return the original behind a handle of a conversation, or the passages that match the words. It is
        `Conversation.recall` without `conversation`, which cannot open a conversation whose snapshot is damaged.

            await engine.recall("support-42", "#m12")

        Raises:
            NotFound: there is no such conversation, or nothing has this handle.
            Damaged: this message cannot be read. Damage to another one does not matter.
        """
        head = await self._existing_head(name, branch)
        async with await self.open_branch(head) as talk:
            return await talk.recall(what, max_tokens=max_tokens)

    async def delete(self, name: str = "") -> int:
        """Delete a conversation for good, or everything of the owner if no name is given. Return how many
        there were.
        """
        check_text(name, "name")
        return await self.store.delete(self.owner, name)

    async def expire(self, before: float) -> int:
        """Delete at once every conversation that was idle since `before`, in seconds since the epoch, and
        return how many there were. The safeguards of `keep_days` do not apply: they are for automatic
        deletion.

        Raises:
            ConfigError: `before` is not a moment.
        """
        return await self.store.expire(self.owner, checked_moment(before))

    async def sweep(self) -> int:
        """Clean up after crashed programs: end their running compactions, drop planned ones, embed sessions
        that were closed without a vector, and delete expired conversations. Return how many rows were
        handled.
        """
        now = self.clock()
        await self.retain()
        seen_to = await self.store.forget_plans(self.owner, now - LEASE_S)
        if self.keeps_content:
            seen_to += await self._meaning.catch_up(self.store, self.owner, now)
            if (turns := self._meaning.turns) is not None:
                turns.begin_when_idle()
        return seen_to + await sweep(self.store, self.owner, now)

    async def embed_messages(self) -> int:
        """Embed the messages that have no vector yet, such as those of an earlier version, and return how many were looked at. It
        happens in the background anyhow; this waits for it.

        Raises:
            ConfigError: the embedder gives no vectors that can be used.
            UpstreamError: the embedder failed, such as an endpoint that refuses the key.
        """
        turns = self._meaning.turns
        return await turns.catch_up(is_asked=True) if turns is not None else 0

    async def retain(self) -> int:
        """Delete conversations that were idle for `keep_days`, if that is set, once an hour at most. Return
        how many there were.
        """
        return await self._retention.apply(self._open_names) if self._retention is not None else 0

    async def held_back(self) -> HeldBack | None:
        """Return how many conversations are past `keep_days` but not deleted yet, and why: the clock is in
        doubt, or there are more than one run may delete. None if there are none.
        """
        return await held_back(self.store, self.owner)

    async def examine(self, name: str) -> list[Finding]:
        """Check the stored messages, sessions and changes of a conversation. An empty list means that it is
        sound.
        """
        check_text(name, "name")
        return await examine(self.store, self.owner, name, self.clock())

    async def rest(self) -> None:
        """Stop the background work of open conversations; the store stays open."""
        await asyncio.gather(*(talk.close() for talk in list(self._opened)))
        if (turns := self._meaning.turns) is not None:
            await turns.close()

    async def close(self) -> None:
        """Stop the background work of open conversations while its results can still be stored, and close the
        store.
        """
        if self._store is None:
            return
        try:
            await self.rest()
            if self._named_summariser is not None:
                await self._named_summariser.close()
            if isinstance(self._embedder, NamedEmbedder):
                await self._embedder.close()  # it connects again if it is asked again
        finally:
            await self._store.close()
            if self._url is not None:  # it can be opened again
                self._store = None
                self.__dict__.pop("_retention", None)
                self.__dict__.pop("known_time", None)
                self.__dict__.pop("cache", None)
                self.__dict__.pop("_meaning", None)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _head(self, name: str, branch: str = "") -> Head | None:
        check_text(name, "the name of a conversation")
        check_text(branch, "branch", hint="`fork` returns the id of a branch")
        if not name.strip() or len(name) > MAX_ID or not name.isprintable():
            raise ConfigError(
                "this is not a valid name for a conversation",
                hint=f"use 1 to {MAX_ID} printable characters, not only spaces",
            )
        return await self.store.head(self.owner, name, branch)

    async def _existing_head(self, name: str, branch: str = "") -> Head:
        """
        Raises:
            NotFound: there is no such conversation, or it has no such branch.
        """
        head = await self._head(name, branch)
        if head is not None:
            return head
        if branch and await self._head(name) is not None:
            raise NotFound(
                f"the conversation {name[:80]!r} has no branch {branch[:80]!r}",
                hint="leave it out for the one that was used last",
            )
        raise NotFound(
            f"there is no conversation {name[:80]!r}",
            hint="`refold conversations` lists those that there are",
        )

    def _new_head(self, name: str, settings: ConversationSettings) -> tuple[Head, Session]:
        # Derived, not random: two programs that begin a conversation at the same moment begin the same one.
        branch = sha256(f"{self.owner}\0{name}".encode()).hexdigest()[:32]
        session = Session(id=self.new_id(), branch=branch, first=0, at=self.clock())
        head = Head(
            owner=self.owner,
            conversation=name,
            branch=session.branch,
            session=session.id,
            format=settings.format,
            model=settings.model,
        )
        return head, session

    async def _create(self, head: Head, session: Session, title: str) -> Head:
        at = await self.known_time.not_before(self.clock())
        try:
            return await self.store.create(head, session, title=title, at=at)
        except Conflict:
            if (found := await self._head(head.conversation)) is None:
                raise
            return found


def as_last_used(settings: ConversationSettings, head: Head, model: str = "") -> ConversationSettings:
    """Return the settings with the window, the room for a reply and the limit that a stored conversation was last used
    with, for a program that does not go on with it itself: it must not measure it in another window.
    """
    model = model or head.model or settings.model
    noted, output = read_fill_level(head.notes), settings.max_output
    if output is None and model == head.model:
        output = noted.output or None
    return structs.replace(
        settings,
        model=model,
        used_window=used_window(head, model),
        max_output=output,
        limit=settings.limit or noted.cap,
    )


def used_window(head: Head, model: str) -> WindowSize | None:
    """Return the window that a conversation was last used with; None if none was noted, or for another model."""
    noted = read_fill_level(head.notes)
    if not (noted.window and noted.window_source) or model != head.model:
        return None
    known = window_for(model)  # it has a warning if the window is only assumed
    return known if known.tokens == noted.window else WindowSize(noted.window, noted.window_source)


def _place_of(cursor: str) -> tuple[float, int] | None:
    """
    Raises:
        ConfigError: the text is no cursor of a page.
    """
    check_text(cursor, "after")
    if not cursor:
        return None
    found = re.fullmatch(r"([0-9]{1,12}\.[0-9]{1,20})-([0-9]{1,15})", cursor, re.ASCII)
    if found is None:
        raise ConfigError("this is no cursor of a list", hint="leave it out for the first page")
    return float(found[1]), int(found[2])


def _line(row: LatestHead, level: FillLevel, off: frozenset[str], reply: int) -> ConversationLine:
    head, is_off = row.head, row.head.conversation in off
    return ConversationLine(
        id=head.conversation,
        branch=head.branch,
        title=row.title,
        model=head.model,
        messages=head.next_seq,
        reply=reply,
        branches=row.branches,
        compactions=row.compactions,
        tokens=level.tokens,
        limit=level.limit,
        window=level.window,
        window_source=level.window_source,
        reason="" if is_off else level.reason,
        summary=level.summary,
        off=is_off,
        at=row.at,
        updated_at=row.updated_at,
    )


def _reported_window(head: Head) -> int | None:
    """Return the window that the upstream last reported for the conversation's model, if it did."""
    noted = read_fill_level(head.notes)
    return noted.window if noted.window_source == "upstream" else None
