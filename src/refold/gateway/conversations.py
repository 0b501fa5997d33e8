"""Conversations behind the gateway: which one a request belongs to, and what leaves in its place.

The gateway composes: it recognises the branch (`refold.gateway.recognition`), opens its conversation with the engine, and applies
`actions.take_request` to it. Taking a request in is one act: what is new is added, the window is made, and both are stored together
or not at all. What a provider answers is stored beside the call; it joins the branch when the client sends it back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from hashlib import sha256
from operator import is_
from weakref import WeakValueDictionary

from msgspec import Raw, Struct, structs

from refold.config import Resolved, limit_for, policy_of
from refold.core.assemble import assemble
from refold.core.fold import Folded
from refold.core.plan_inputs import output_for
from refold.engine import actions
from refold.engine.actions import FOREIGN, RequestTerms
from refold.engine.actions import Outcome as ActionOutcome
from refold.engine.conversation import Conversation
from refold.engine.engine import Engine
from refold.engine.history import sent_once
from refold.engine.journal import inherited, summaries_in
from refold.engine.provider_compactions import Compactions, Maker
from refold.engine.settings import ConversationSettings, budget_for, policy_for
from refold.engine.state import Receipt, Sent, State
from refold.gateway.recognition import (
    KnownHistory,
    Line,
    LiveBranches,
    Seen,
    before,
    boundary,
    chain_key,
    check_new,
    find,
    is_own_way,
    read_line,
)
from refold.gateway.request import Incoming, Wishes
from refold.gateway.response_tap import CallResult
from refold.model.budget import Budget
from refold.model.errors import Conflict, HeldElsewhere, InvalidWindow, NotFound, RefoldError, StoreError
from refold.model.message import Message
from refold.model.summary import Summary
from refold.model.tokens import Usage
from refold.model.window import Fixed, Window
from refold.ports.records import Head, HistoryPlace, Session
from refold.ports.summariser import Summariser
from refold.text_work import run_text_act, run_text_work
from refold.tokens.catalog import window_for
from refold.wire.request import fixed_of

TRIES = 5
"""How often a request is matched again because its branch moved meanwhile: each time another request was served."""
MODELS = 256
"""Of which it is remembered what was looked up: a name is searched for in every spelling, and clients use few."""
NONE = Wishes()
_INSTRUCTIONS = ("system", "instructions", "tools", "cache_control")


class Moved(RefoldError):
    """The branch is no longer where the request was thought to go on."""


class NotStored(RefoldError):
    """A request was taken in and its window made, and the store did not take it."""

    def __init__(self, made: Made) -> None:
        super().__init__()
        self.made = made


class NeedsBranch(RefoldError):
    """An earlier request cannot be answered again without a change to what is shown, which needs a branch of its own."""


class Made(Struct, frozen=True, dict=True):
    """A window that was made, of what, and what was done for it. Where none could be made, `problem` says why."""

    window: Window | None
    sent: Folded
    note: Sent
    receipts: tuple[Receipt, ...] = ()
    problem: RefoldError | None = None

    @cached_property
    def is_plain(self) -> bool:
        """Is every message shown as it came, and nothing besides? Then the client's own bytes say it."""
        window, sent = self.window, self.sent
        if window is None:
            return True
        is_more = window.before or window.summaries or window.block
        is_whole = not (is_more or sent.origin) and len(sent.shown) == len(sent.branch)
        return is_whole and all(map(is_, window.messages, sent.branch.messages()))

    @property
    def is_as_sent(self) -> bool:
        """Is nothing of it to be written in another way than the client did?"""
        return self.is_plain and not (self.window and self.window.breakpoints)

    @property
    def bare(self) -> Window | None:
        """The window without any cache breakpoints of ours."""
        window = self.window
        return window and assemble(window.fixed, self.sent.shown.messages(), self.sent.lead)


def made_of(before: State, done: ActionOutcome) -> Made:
    """The window that an action has made of a state."""
    state = done.state
    receipts = state.receipts[len(before.receipts) :]
    window, sent = done.window, state.sent if done.window else state.folded
    if isinstance(done.problem, InvalidWindow) and (sent.lead.tokens or sent.edited):
        # What is wrong is the client's own, and the provider's to judge; what was compacted stays so.
        window = assemble(state.frame.fixed, sent.shown.messages(), sent.lead)
        output = output_for(sent, state.frame, state.now("before_call"))
        if output < state.frame.budget.max_output:
            window = structs.replace(window, output=output)
    return Made(window, sent, done.sent or Sent(sent.size), receipts, done.problem)


class LiveBranch:
    """A branch in use: its conversation, and the last request that went on with it."""

    def __init__(self, conversation: Conversation, name: str, *, is_earlier: bool = False) -> None:
        self.conversation, self.name = conversation, name
        self.is_earlier = is_earlier
        """Opened for one request that the branch has gone on from: it is no branch in use."""
        self.line: Line | None = None
        self.lock = asyncio.Lock()
        self._told: dict[str, Raw] = {}
        self._fixed: Fixed | None = None

    def serves(self, incoming: Incoming) -> bool:
        """Is it open for the same model, in the same format?"""
        talk = self.conversation
        return talk.model == incoming.model and talk.format == incoming.dialect.name

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

    async def take(
        self,
        size: int,
        messages: Sequence[Message],
        hashes: Sequence[bytes],
        request: RequestTerms,
        *,
        claims: bytes = b"",
        text_size: int = 0,
    ) -> Made:
        """Add what a request brings to the first `size` messages, and make the window for it. `claims` is the hash that no other branch
        may hold, see `Batch.claims`; `text_size` is how much text the request has.

        Raises:
            Moved: the branch has another number of messages.
            HeldElsewhere: the conversation went on in another branch; nothing was stored.
            NotStored: the window is there, but nothing was stored, or the outcome is not known.
            StoreError: the branch cannot be read.
        """
        made: Made | None = None

        def act(state: State) -> ActionOutcome:
            nonlocal made
            if state.size != size:
                raise Moved
            done = actions.take_request(state, messages, request)
            made = made_of(state, done)
            return done

        try:
            done = await self.conversation.apply(
                act, chains=hashes, claims=claims, is_blind=bool(messages), text_size=text_size
            )
        except StoreError as error:
            if made is None or isinstance(error, HeldElsewhere):
                raise
            raise NotStored(made) from error
        assert made is not None
        return structs.replace(made, note=done.sent) if done.sent else made

    async def take_earlier(self, size: int, request: RequestTerms, text_size: int) -> Made:
        """The window for the first `size` messages, where a client asks again for an answer that the branch has gone on from.
        Nothing is added to the branch: it is read as it was then.

        Raises:
            NeedsBranch: the messages do not fit as they were shown then.
            StoreError: they are not stored, or cannot be read.
        """
        state = await self.conversation.state_at(size)

        def take() -> Made:
            done = actions.take_request(state, (), request)
            made = made_of(state, done)
            if made.is_plain:
                return structs.replace(made, note=Sent(made.sent.size, marks=done.state.window_edits))
            return structs.replace(made, note=sent_once(done.state, made.sent, done.state.window_edits))

        made = await run_text_act(text_size, take)
        if made.problem or any(receipt.reason != FOREIGN for receipt in made.receipts):
            raise NeedsBranch
        return made

    def in_words(self, made: Made, twins: Mapping[int, Message]) -> Made:
        """A window that was made for one upstream, for another one: with other twins, see `actions.Request`."""
        if made.window is None:
            return made
        sent = made.sent.in_words(twins)
        window = assemble(made.window.fixed, sent.shown.messages(), sent.lead)
        return structs.replace(made, window=window, sent=sent, note=sent_once(self.conversation.state, sent))

    async def shrink(self, status: int | None, body: bytes, *, held: int | None = 0) -> Made:
        """The next smaller window after a provider's refusal as too long; `held` as in `actions.recover`.

        Raises:
            RecoverySpent: it was no such refusal, or nothing smaller can be sent.
        """
        made: Made | None = None

        def act(state: State) -> ActionOutcome:
            nonlocal made
            done = actions.recover(state, status, body, held=held)
            made = made_of(state, done)
            return done

        done = await self.conversation.apply(act, text_size=len(body))
        assert made is not None
        if made.problem is not None:
            raise made.problem
        return structs.replace(made, note=done.sent) if done.sent else made

    def count_sent(self, made: Made) -> int:
        """What a request takes with its instructions, in tokens, as far as it was sent from here."""
        return self.conversation.state.frame.instructions + made.sent.tokens

    async def answered(self, made: Made, outcome: CallResult, call_id: str, *, held: int = 0) -> None:
        """Store what came of a call: what was used, and what was said. Of the usage, `held` tokens are of messages that the provider
        alone has.
        """

        def act(state: State) -> ActionOutcome:
            if state.sent is not made.sent or not outcome.is_answered:
                return ActionOutcome(state=state)  # the answer to an earlier window tells nothing of this one
            return actions.take_answer(state, outcome.usage and outcome.usage.without(held))

        await self.conversation.record_call(
            act, outcome.usage or Usage(), made.note, call_id=call_id, reply=outcome.reply, is_blind=True
        )


class TakenRequest(Struct, frozen=True):
    """A request that was taken in: the branch, its line, and the window that was made for it."""

    host: OwnerConversations
    live: LiveBranch
    line: Line
    made: Made
    compactions: dict[int, Message]
    """The messages of the request that hold compactions of a provider's own, by their numbers."""
    is_stored: bool = True
    """False where the window was made and the store did not take the request."""
    is_first: bool = False
    """Is it the first request of its branch?"""


class OwnerConversations:
    """The conversations of one owner, as requests go on with them."""

    def __init__(self, engine: Engine, resolved: Resolved) -> None:
        self.engine, self.table = engine, LiveBranches()
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
    ) -> ConversationSettings:
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
        return ConversationSettings(
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
        settings: ConversationSettings,
        author: Summariser | None = None,
        upstream: str = "",
        seen: Seen | None = None,
    ) -> TakenRequest:
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
                live.conversation.summariser = author
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
        live: LiveBranch,
        incoming: Incoming,
        seen: Seen,
        found: KnownHistory | None,
        settings: ConversationSettings,
        upstream: str,
    ) -> TakenRequest:
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
        request = RequestTerms(fixed, budget, policy_for(settings), twins)
        if live.is_earlier:
            made = await live.take_earlier(size, request, text_size)
            return TakenRequest(self, live, line, made, compactions)
        claims = line.claimed_after(known)
        try:
            made = await live.take(
                size, new, line.hashes[known:], request, claims=claims, text_size=text_size
            )
        except NotStored as error:
            if isinstance(error.__cause__, NotFound):
                self.table.drop(live)  # it was deleted: the next request begins it anew
            return TakenRequest(self, live, line, error.made, compactions, is_stored=False, is_first=not size)
        self.table.note(live, line)
        return TakenRequest(self, live, line, made, compactions, is_first=not size)

    async def twins(
        self, live: LiveBranch, compactions: Mapping[int, Message], upstream: str
    ) -> dict[int, Message]:
        """What to send to an upstream instead of compactions that another one, or another model, made."""
        talk = live.conversation
        here = Maker(talk.model, upstream, talk.id, talk.branch)
        return await self.compactions.twins(compactions, here, talk.state) if compactions else {}

    async def note_compactions(
        self, live: LiveBranch, made: Made, outcome: CallResult, upstream: str
    ) -> None:
        """Keep who made the compactions that a reply brought, and who was sent some that nobody had seen before."""
        talk = live.conversation
        maker = Maker(talk.model, upstream, talk.id, talk.branch, made.sent.size)
        self.compactions.note(outcome.compactions, maker)
        await self.compactions.keep(self.engine.clock())

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
        self,
        incoming: Incoming,
        line: Line,
        settings: ConversationSettings,
        upstream: str,
        *,
        is_earlier: bool,
    ) -> tuple[LiveBranch, KnownHistory | None]:
        """The branch of the store that a request goes on with, and up to where they agree. A request that is the beginning of
        a longer branch asks again for an earlier answer: it needs no branch of its own where `is_earlier`.
        """
        engine = self.engine
        first = line.hashes[0] if line.hashes else b""
        async with self._opening.setdefault(first, asyncio.Lock()):
            found, foreign = await find(line.hashes, self._look, incoming.dialect.name)
            is_earlier = is_earlier and found is not None and not found.goes_on and found.known == len(line)
            if found is not None and is_earlier:
                head, foreign = await self._stored(found.place), None
            else:
                is_another = found is not None and not found.goes_on and is_own_way(line, found.known)
                found = None if is_another else found
                if foreign and (found or is_own_way(line, foreign.known)):
                    foreign = None
                apart = sha256(engine.new_id().encode()).digest() if is_another else b""
                head = await self._head(incoming, line, found, foreign, apart)
                if found and not found.goes_on:
                    found = KnownHistory(_ended(found.place, head), found.known)
        talk = await self._open_branch(head, incoming, settings, upstream)
        if foreign and (carried := await self._carried(foreign.place, line)) and carried.last:
            talk.prepare(carried)
        return LiveBranch(talk, incoming.line_name, is_earlier=is_earlier), found

    async def _head(
        self,
        incoming: Incoming,
        line: Line,
        found: KnownHistory | None,
        foreign: KnownHistory | None,
        apart: bytes,
    ) -> Head:
        """The branch to go on with. A conversation that goes on in another format has a branch for each: what the client
        sends is kept as it sends it.
        """
        check_new(line, found)
        model, wire = incoming.model, incoming.dialect.name
        if found is None:
            mark = line.hashes[-1] if line.hashes else b""
            known = foreign.place.conversation if foreign else ""
            name = incoming.name or known or f"chat-{(apart or mark).hex()[:12]}"
            return await self._root(name, wire.encode() + mark + apart, model, wire)
        if not found.goes_on:
            return await self._fork(found.place, model)
        return await self._stored(found.place)

    async def _stored(self, place: HistoryPlace) -> Head:
        head = await self.engine.store.head(self.engine.owner, place.conversation, place.branch)
        if head is None:
            raise StoreError("The conversation is gone.", hint="it was deleted at this moment: ask again")
        return head

    async def _open_branch(
        self, head: Head, incoming: Incoming, settings: ConversationSettings, upstream: str
    ) -> Conversation:
        own = structs.replace(
            self.engine.settings,
            model=incoming.model,
            window=settings.window,
            policy=policy_for(settings),
            sensitive=settings.sensitive,
            max_spend=self.resolved.settings.summariser.max_spend,
        )
        is_empty = not (head.next_seq or head.notes or head.epoch)
        # The same name may mean another window elsewhere.
        learns = f"{incoming.model}@{upstream}" if incoming.model else ""
        talk = await self.engine.open_branch(head, own, learns=learns, is_empty=is_empty, finds_twins=False)
        if not is_empty:
            await talk.load()  # what stands for another model's compactions depends on what is shown
        return talk

    async def _look(self, hashes: Sequence[bytes]) -> list[HistoryPlace]:
        return await self.engine.store.places(self.engine.owner, hashes)

    async def _root(self, name: str, mark: bytes, model: str, wire: str) -> Head:
        """A branch that goes on from nothing that was seen before. Two requests that begin the same at the same time begin one."""
        engine = self.engine
        branch = sha256(b"\0".join((engine.owner.encode(), name.encode(), mark))).hexdigest()[:32]
        session = Session(id=engine.new_id(), branch=branch, first=0, at=engine.clock())
        head = Head(
            owner=engine.owner, conversation=name, branch=branch, session=session.id, format=wire, model=model
        )
        return await engine.store.create(head, session, at=engine.clock())

    async def _fork(self, at: HistoryPlace, model: str) -> Head:
        """A branch that agrees with another up to some message."""
        engine = self.engine
        base = await engine.store.head(engine.owner, at.conversation, at.branch)
        if base is None:
            raise Moved
        branch, session = engine.new_id(), engine.new_id()
        head = Head(
            owner=engine.owner,
            conversation=at.conversation,
            branch=branch,
            session=session,
            format=base.format,
            model=model,
            notes=inherited(base.notes, at.size),
        )
        opened = Session(id=session, branch=branch, first=at.size, at=engine.clock())
        return await engine.store.fork(base, at.size, head, opened)

    async def _carried(self, at: HistoryPlace, line: Line) -> Summary | None:
        """The summary of the beginning in the branch of another format, as far as it fits this line."""
        store = self.engine.store
        head = await store.head(self.engine.owner, at.conversation, at.branch)
        latest = await store.latest(head, at.size) if head else None
        shown = latest.shown if latest else b""
        summaries = await run_text_work(len(shown), summaries_in, shown) if shown else ()
        if not summaries:
            return None
        last = await boundary(line.hashes, self._look, at.branch, summaries[-1].last)
        text = "\n\n".join(one.text for one in summaries)
        tokens = sum(one.tokens for one in summaries)
        return structs.replace(summaries[-1], id="", text=text, tokens=tokens, first=0, last=last, reserve=())


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
    settings = ConversationSettings(
        model=model, window=window, max_output=max_output, limit=limit, thinking_budget=thinking_budget
    )
    return structs.replace(budget_for(settings), is_output_stated=is_output_stated)


def _ended(at: HistoryPlace, head: Head) -> HistoryPlace:
    return HistoryPlace(at.hash, head.conversation, head.branch, at.size, head.next_seq)
