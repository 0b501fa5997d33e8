"""Conversations behind the gateway: which one a request belongs to, and what leaves in its place.

One idea: a request says everything, so nothing is kept in memory that could not be read again. What is kept is a table of the
branches that were used last, with the bytes that their clients sent, so that the next request is compared instead of parsed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any
from weakref import WeakValueDictionary

from msgspec import Raw, Struct, structs

from refold.compose import Settings, budget_for, policy_for
from refold.config import Resolved, limit_for, policy_of
from refold.engine.compactions import Compactions, Maker
from refold.engine.journal import Journal
from refold.engine.notes import inherited
from refold.engine.snapshot import summaries_in
from refold.gateway.hosted import HostedConversation, Made, Moved, NeedsBranch, NotStored, Terms
from refold.gateway.incoming import Incoming, Wishes
from refold.gateway.lines import (
    Found,
    Line,
    Seen,
    boundary,
    chain_key,
    check_new,
    find,
    is_own_way,
    read_line,
)
from refold.gateway.table import Table, before
from refold.gateway.watching import Outcome
from refold.keeping import Engine
from refold.model.budget import Budget
from refold.model.errors import Conflict, HeldElsewhere, NotFound, StoreError
from refold.model.message import Message
from refold.model.summary import Summary
from refold.model.window import Fixed
from refold.ports.store import Head, Place, Session
from refold.ports.summariser import Summariser
from refold.text_work import run_text_act, run_text_work
from refold.tokens.windows import window_for
from refold.wire.request import fixed_of

TRIES = 5
"""How often a request is matched again because its branch moved meanwhile: each time somebody else was served."""
MODELS = 256
"""Of which it is remembered what was looked up: a name is searched for in every spelling, and clients use few."""
NONE = Wishes()
_INSTRUCTIONS = ("system", "instructions", "tools", "cache_control")


class Live:
    """A branch in use, and the last request that went on with it."""

    def __init__(self, talk: HostedConversation, name: str, *, is_earlier: bool = False) -> None:
        self.talk, self.name = talk, name
        self.is_earlier = is_earlier
        """Opened for one request that the branch has gone on from: it is no branch in use."""
        self.line: Line | None = None
        self.lock = asyncio.Lock()
        self._told: dict[str, Raw] = {}
        self._fixed: Fixed | None = None

    def serves(self, incoming: Incoming) -> bool:
        """Is it open for the same model, in the same format?"""
        return self.talk.model == incoming.model and self.talk.format == incoming.dialect.name

    @property
    def weight(self) -> int:
        return len(self.line.history.array) if self.line else 0

    def instructions(self, incoming: Incoming, line: Line) -> Fixed:
        """The system prompt and the tools of a request; where they are those of the one before, the very same value."""
        fields, dialect = incoming.fields, incoming.dialect
        told = {key: Raw(bytes(fields[key])) for key in _INSTRUCTIONS if key in fields}
        leading = line.history.array[: line.leading] if line.offset else b"["
        told[dialect.messages_key] = Raw(leading + b"]")
        if self._fixed is None or told != self._told:
            # Read from bytes of their own: they are held for long, and would hold on to the whole request.
            self._fixed, self._told = fixed_of(told, dialect), told
        return self._fixed


class Hosted(Struct, frozen=True):
    """A request that was taken in: the branch, its line, and the window that was made for it."""

    host: Host
    live: Live
    line: Line
    made: Made
    compactions: dict[int, Message]
    """The messages of the request that hold compactions of a provider's own, by their numbers."""
    is_stored: bool = True
    """False where the window was made and the store did not take the request."""
    is_first: bool = False
    """Is it the first request of its branch?"""


class HostEngine(Engine):
    """An owner's conversations, as requests open them."""

    async def host(self, head: Head, **settings: Any) -> HostedConversation:
        chosen = {"summariser": self._summariser, "max_spend": self._max_spend, **self._settings, **settings}
        model = chosen.pop("model", "") or head.model
        upstream, is_new = chosen.pop("upstream", ""), not (head.next_seq or head.notes or head.epoch)
        journal = self._empty_journal(head) if is_new else await self._journal(head)
        # The same name may mean another window elsewhere.
        journal.learns = f"{model}@{upstream}" if model else ""
        talk = HostedConversation(model, journal, holder=self._holder, **chosen)
        await (talk.begin() if is_new else talk.load())
        self._opened.add(talk)
        return talk

    def _empty_journal(self, head: Head) -> Journal:
        """A branch of which nothing is there to be read yet."""
        session = Session(id=head.session, branch=head.branch, first=0, at=self._clock())
        keeps, meaning = self._keeps_content, self._meaning
        return Journal(
            self.store, head, session, self._clock, self._new_id, keeps_content=keeps, meaning=meaning
        )

    async def root(self, name: str, mark: bytes, model: str, wire: str) -> Head:
        """A line that goes on from nothing that was seen before. Two who begin the same at the same time begin one."""
        branch = sha256(b"\0".join((self.owner.encode(), name.encode(), mark))).hexdigest()[:32]
        session = Session(id=self._new_id(), branch=branch, first=0, at=self._clock())
        head = Head(
            owner=self.owner, conversation=name, branch=branch, session=session.id, format=wire, model=model
        )
        return await self.store.create(head, session, at=self._clock())

    @property
    def now(self) -> float:
        return self._clock()

    def new_mark(self) -> bytes:
        """What tells a branch from another that began with the same words."""
        return sha256(self._new_id().encode()).digest()

    async def rest(self) -> None:
        """Stop what conversations do in the background; the store stays open."""
        for talk in list(self._opened):
            await talk.close()

    async def look(self, hashes: Sequence[bytes]) -> list[Place]:
        return await self.store.places(self.owner, hashes)

    async def carried(self, at: Place, line: Line) -> Summary | None:
        """What stood for the beginning of a conversation in the branch of another format, as far as it fits this line."""
        head = await self.store.head(self.owner, at.conversation, at.branch)
        latest = await self.store.latest(head, at.size) if head else None
        shown = latest.shown if latest else b""
        summaries = await run_text_work(len(shown), summaries_in, shown) if shown else ()
        if not summaries:
            return None
        last = await boundary(line.hashes, self.look, at.branch, summaries[-1].last)
        text = "\n\n".join(one.text for one in summaries)
        tokens = sum(one.tokens for one in summaries)
        return structs.replace(summaries[-1], id="", text=text, tokens=tokens, first=0, last=last, reserve=())

    async def part(self, at: Place, model: str) -> Head:
        """A line that agrees with a branch up to some message, and then says something else."""
        base = await self._head(at.conversation, at.branch)
        if base is None:
            raise Moved
        branch, session = self._new_id(), self._new_id()
        head = Head(
            owner=self.owner, conversation=at.conversation, branch=branch, session=session, format=base.format,
            model=model, notes=inherited(base.notes, at.size),
        )  # fmt: skip
        opened = Session(id=session, branch=branch, first=at.size, at=self._clock())
        return await self.store.fork(base, at.size, head, opened)


class Host:
    """All conversations of one owner that requests go on with."""

    def __init__(self, engine: HostEngine, resolved: Resolved) -> None:
        self.engine, self.table = engine, Table()
        self.compactions = Compactions(engine.store, engine.owner)
        self._opening: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()
        """By the hash of a first message: two who begin the same at the same time begin one branch, and nobody else waits."""
        self.use(resolved)

    def use(self, resolved: Resolved) -> None:
        """Go on by other settings. Requests on their way end by the old ones."""
        self.resolved, self.policy = resolved, policy_of(resolved.settings)

    def terms(
        self,
        model: str,
        wire: str,
        *,
        window: int | None,
        wishes: Wishes = NONE,
        max_output: int | None = None,
        thinking_budget: int = 0,
        held: int = 0,
    ) -> Settings:
        """What a conversation is made with; `held` tokens of the window are taken by what the provider alone has.

        Raises:
            ConfigError: there is no such preset.
        """
        ours = self.resolved.settings.compaction
        policy = policy_of(self.resolved.settings, preset=wishes.preset) if wishes.preset else self.policy
        size = wishes.window or ours.window or window
        if held:
            size = max(1, _window(model, size) - held)
        known = _window(model, size)
        return Settings(
            model=model,
            window=size,
            max_output=max_output or ours.max_output,
            thinking_budget=thinking_budget,
            limit=limit_for(self.resolved.settings, known),
            format=wire,
            policy=policy,
            sensitive=ours.sensitive,
        )

    async def take(
        self,
        incoming: Incoming,
        settings: Settings,
        author: Summariser | None = None,
        upstream: str = "",
        seen: Seen | None = None,
    ) -> Hosted:
        """Take a request in, and make its window. `author` writes summaries, `upstream` will be asked, and `seen` is what was read of
        its messages, where they were read already.

        Raises:
            WireError: it cannot be read.
            StoreError: it cannot be kept.
        """
        array = incoming.array or b"[]"
        is_live, is_earlier = True, True
        for _ in range(TRIES):
            seen = seen or await self._read(incoming, array)
            held = self.table.ending(seen.line.hashes, incoming) if is_live else None
            live, found = held or await self._open(
                incoming, seen.line, settings, upstream, is_earlier=is_earlier
            )
            async with live.lock:
                known = live.line
                live.talk.written_by(author)
                try:
                    return await self._take(live, incoming, seen, found, settings, upstream)
                except (Moved, HeldElsewhere):
                    is_live = False  # the store knows where the conversation went on
                    if live.line is known:
                        self.table.drop(live)
                except NeedsBranch:
                    is_earlier = False
        raise Conflict("The conversation is written to by somebody else all the time.")

    async def marks(self, incoming: Incoming) -> tuple[bytes, ...]:
        """The hash of the whole history of a request, where it can be read."""
        array = incoming.array or b"[]"
        return (await self._read(incoming, array)).line.hashes[-1:]

    async def _take(
        self,
        live: Live,
        incoming: Incoming,
        seen: Seen,
        found: Found | None,
        settings: Settings,
        upstream: str,
    ) -> Hosted:
        line, known, size = seen.line, found.known if found else 0, found.place.size if found else 0
        array, is_unread = line.history.array, known < seen.first
        text_size = len(incoming.body) + len(array)

        def read_new() -> tuple[Fixed, tuple[Message, ...], dict[int, Message]]:
            # Where not all that is new to this branch was read, it is read again.
            whole = self.read(incoming, array) if is_unread else seen
            new = whole.since(known, incoming.dialect)
            return live.instructions(incoming, line), new, line.with_compactions(incoming.dialect)

        instructions = len(incoming.body) - len(array) + line.leading
        size_read = len(array) if is_unread else line.bytes_after(known)
        fixed, new, compactions = await run_text_act(instructions + size_read, read_new)
        budget = _budget(
            settings.model,
            settings.window,
            settings.max_output,
            settings.limit,
            settings.thinking_budget,
            is_output_stated=incoming.max_output is not None,
        )
        twins = await self.twins(live, compactions, upstream)
        terms = Terms(fixed, budget, policy_for(settings), twins)
        if live.is_earlier:
            made = await live.talk.take_earlier(size, terms, text_size)
            return Hosted(self, live, line, made, compactions)
        claims = line.claimed_after(known)
        try:
            made = await live.talk.take(size, new, line.hashes[known:], terms, claims=claims, new=text_size)
        except NotStored as error:
            if isinstance(error.__cause__, NotFound):
                self.table.drop(live)  # it was deleted: the next request begins it anew
            return Hosted(self, live, line, error.made, compactions, is_stored=False, is_first=not size)
        self.table.note(live, line)
        return Hosted(self, live, line, made, compactions, is_first=not size)

    async def twins(
        self, live: Live, compactions: Mapping[int, Message], upstream: str
    ) -> dict[int, Message]:
        """What to send to an upstream instead of compactions that another one, or another model, made."""
        talk = live.talk
        here = Maker(talk.model, upstream, talk.id, talk.branch)
        return await self.compactions.twins(compactions, here, talk.memory) if compactions else {}

    async def note_compactions(self, live: Live, made: Made, outcome: Outcome, upstream: str) -> None:
        """Keep who made the compactions that a reply brought, and who was sent some that nobody had seen before."""
        talk = live.talk
        maker = Maker(talk.model, upstream, talk.id, talk.branch, made.sent.size)
        self.compactions.note(outcome.compactions, maker)
        await self.compactions.keep(self.engine.now)

    async def _read(self, incoming: Incoming, array: bytes) -> Seen:
        lines = self.table.lines(incoming.line_name, array)
        return await run_text_work(
            len(array), lambda: self.read(incoming, array, before(lines, incoming.line_name, array))
        )

    def read(self, incoming: Incoming, array: bytes, earlier: Line | None = None) -> Seen:
        """Read a request's list of messages, as far as it is not that of an earlier request.

        Raises:
            WireError: it cannot be read.
        """
        return read_line(array, incoming.dialect, chain_key(self.engine.owner, incoming.line_name), earlier)

    async def _open(
        self, incoming: Incoming, line: Line, settings: Settings, upstream: str, *, is_earlier: bool
    ) -> tuple[Live, Found | None]:
        """The branch of the store that a request goes on with, and up to where they agree. A request that is the beginning of
        a longer branch asks again for an earlier answer: it needs no branch of its own where `is_earlier`.
        """
        engine = self.engine
        first = line.hashes[0] if line.hashes else b""
        async with self._opening.setdefault(first, asyncio.Lock()):
            found, foreign = await find(line.hashes, engine.look, incoming.dialect.name)
            is_earlier = is_earlier and found is not None and not found.goes_on and found.known == len(line)
            if found is not None and is_earlier:
                head, foreign = await self._stored(found.place), None
            else:
                is_another = found is not None and not found.goes_on and is_own_way(line, found.known)
                found = None if is_another else found
                if foreign and (found or is_own_way(line, foreign.known)):
                    foreign = None
                apart = engine.new_mark() if is_another else b""
                head = await self._head(incoming, line, found, foreign, apart)
                if found and not found.goes_on:
                    found = Found(_ended(found.place, head), found.known)
        own = {"model": incoming.model, "format": incoming.dialect.name, "policy": policy_for(settings)}
        spend = self.resolved.settings.summariser.max_spend
        talk = await engine.host(
            head,
            window=settings.window,
            sensitive=settings.sensitive,
            max_spend=spend,
            upstream=upstream,
            **own,
        )
        if foreign:
            talk.carry(await engine.carried(foreign.place, line))
        return Live(talk, incoming.line_name, is_earlier=is_earlier), found

    async def _head(
        self, incoming: Incoming, line: Line, found: Found | None, foreign: Found | None, apart: bytes
    ) -> Head:
        """The branch to go on with. A conversation that goes on in another format has a branch for each: what the client
        sends is kept as it sends it.
        """
        check_new(line, found)
        engine, model, wire = self.engine, incoming.model, incoming.dialect.name
        if found is None:
            mark = line.hashes[-1] if line.hashes else b""
            known = foreign.place.conversation if foreign else ""
            name = incoming.name or known or f"chat-{(apart or mark).hex()[:12]}"
            return await engine.root(name, wire.encode() + mark + apart, model, wire)
        if not found.goes_on:
            return await engine.part(found.place, model)
        return await self._stored(found.place)

    async def _stored(self, place: Place) -> Head:
        head = await self.engine.store.head(self.engine.owner, place.conversation, place.branch)
        if head is None:
            raise StoreError("The conversation is gone.", hint="it was deleted at this moment: ask again")
        return head


@lru_cache(maxsize=MODELS)
def _window(model: str, size: int | None) -> int:
    return window_for(model, override=size).tokens


@lru_cache(maxsize=MODELS)
def _budget(
    model: str,
    window: int | None,
    max_output: int | None,
    limit: int,
    thinking_budget: int,
    *,
    is_output_stated: bool,
) -> Budget:
    settings = Settings(
        model=model, window=window, max_output=max_output, limit=limit, thinking_budget=thinking_budget
    )
    return structs.replace(budget_for(settings), is_output_stated=is_output_stated)


def _ended(at: Place, head: Head) -> Place:
    return Place(at.hash, head.conversation, head.branch, at.size, head.next_seq)
