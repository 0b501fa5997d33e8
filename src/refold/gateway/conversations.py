"""The conversations behind the gateway: matches a request with its branch and makes the window to send.

A request is matched with a branch (`refold.gateway.recognition`), the engine opens the conversation of that
branch, and `actions.take_request` is applied to it. New messages and the new window are stored in one
transaction or not at all. If there are many megabytes of them, the first ones are stored before the others, in
transactions of their own: each leaves a branch with a shorter history, which the same request goes on. A
provider's reply is stored with the record of the call; it joins the branch when
the client sends it back with its next request.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache, partial, reduce
from hashlib import sha256
from operator import is_
from weakref import WeakValueDictionary

from msgspec import Raw, Struct, structs

from refold.config import ResolvedSettings, policy_of, summarisers_of
from refold.core.assemble import assemble
from refold.core.budget import output_for
from refold.core.fold import FoldedBranch
from refold.core.identity import extend_chain
from refold.core.plan import SummaryRequest
from refold.engine import actions
from refold.engine.actions import FOREIGN, RequestTerms
from refold.engine.actions import Outcome as ActionOutcome
from refold.engine.conversation import Conversation
from refold.engine.engine import Engine
from refold.engine.history import window_of
from refold.engine.journal import inherited, sent_once, summaries_in
from refold.engine.provider_compactions import Compactions, Maker
from refold.engine.settings import ConversationSettings, budget_for, policy_for
from refold.engine.state import Receipt, SentWindow, State
from refold.gateway.recall_rounds import HiddenReplies
from refold.gateway.recognition import (
    DecodedLine,
    KnownHistory,
    Line,
    LiveBranches,
    Look,
    boundary,
    chain_key,
    check_new,
    find,
    find_earlier,
    is_own_way,
    read_line,
)
from refold.gateway.request import IncomingRequest, Wishes
from refold.gateway.response_tap import CallResult
from refold.model.dialect import DIALECTS, Dialect, alternating
from refold.model.errors import (
    ConfigError,
    Conflict,
    Damaged,
    HeldElsewhere,
    InvalidWindow,
    NotFound,
    RefoldError,
    StoreError,
    WireError,
)
from refold.model.message import Message
from refold.model.summary import Summary
from refold.model.tokens import Budget, Share, Tokens, Usage, exact, tokens_of
from refold.model.window import FixedFields, Window
from refold.ports.models import Summariser
from refold.ports.records import NOT_KNOWN, Delivery, Head, HistoryPlace, Session, read_reply
from refold.ports.store import SummaryQueue
from refold.text_work import run_text_act, run_text_work
from refold.tokens.catalog import window_for
from refold.upstreams.provider import server_of
from refold.wire.request import decode_message, fixed_of

TRIES = 5
"""Attempts to match one request. A further attempt is needed when another request moved the branch in the
meantime.
"""
MODELS = 256
"""Size of the caches of windows and budgets, in models: a lookup tries every spelling of the name, and
clients use few models.
"""
REPLIES = 8
"""Stored replies that the beginning of a chat is compared with, the newest ones: a first request is rarely repeated more often."""
PART_BYTES = 8_000_000
"""Characters of messages that one transaction stores, if a request has more new ones: other writers wait for a transaction, about 40 ms
for this much.
"""
NO_WISHES = Wishes()
_log = logging.getLogger("refold.gateway")
_INSTRUCTIONS = ("system", "instructions", "tools", "cache_control")


class Moved(RefoldError):
    """The branch has another number of messages than the request was matched with."""


class NotStored(RefoldError):
    """The window of a request was made, but the store did not accept the request."""

    def __init__(self, made: PreparedWindow) -> None:
        super().__init__()
        self.made = made


class NeedsBranch(RefoldError):
    """An earlier request needs another window than it was answered with, and therefore a branch of its own."""


class DamagedBranch(RefoldError):
    """The branch that a request continues cannot be loaded. `found` is the common prefix with it; `branches`
    are the ids not to be tried again: the branch, and the fork that was made of it.
    """

    def __init__(self, found: KnownHistory, damage: Damaged, *branches: str) -> None:
        super().__init__()
        self.found, self.damage = found, damage
        self.branches = frozenset((found.place.branch, *branches))


class SummaryWait:
    """The time that one request of a client has waited for summaries, or behind another request of its conversation that
    waits for one. All of it together may take as long as the settings say (`summariser.timeout_s`).
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """The time of the block counts."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds += time.monotonic() - began

    async def acquire(self, lock: asyncio.Lock) -> None:
        """Acquire a lock; the time until it is free counts."""
        began = time.monotonic()
        try:
            await lock.acquire()
        finally:
            self.seconds += time.monotonic() - began


class PreparedWindow(Struct, frozen=True, dict=True):
    """A window, the folded branch it was made from, and the receipts of the compaction. `problem` is the
    reason if there is no window.
    """

    window: Window | None
    sent: FoldedBranch
    note: SentWindow
    receipts: tuple[Receipt, ...] = ()
    problem: RefoldError | None = None

    @cached_property
    def is_plain(self) -> bool:
        """True if the window shows every message and adds nothing but cache breakpoints."""
        return self._shows_all and (self._is_unmarked or _are_same(self.bare, self.sent))

    @property
    def is_as_sent(self) -> bool:
        """True if the client's own bytes can be sent: the window is plain, and no cache breakpoint was set or
        taken out.
        """
        return self._shows_all and self._is_unmarked and not (self.window and self.window.breakpoints)

    @property
    def _shows_all(self) -> bool:
        window, sent = self.window, self.sent
        if window is None:
            return True
        is_more = window.before or window.summaries or window.block
        return not (is_more or sent.origin) and len(sent.shown) == len(sent.branch)

    @cached_property
    def _is_unmarked(self) -> bool:
        """True if no message of the window was changed, and no cache breakpoint taken out of one."""
        return _are_same(self.window, self.sent)

    @property
    def bare(self) -> Window | None:
        """The window without the cache breakpoints that Refold set."""
        window = self.window
        return window and assemble(window.fixed, self.sent.shown.messages(), self.sent.lead)


def _are_same(window: Window | None, sent: FoldedBranch) -> bool:
    """True if the messages of a window are those of the branch."""
    return window is None or all(map(is_, window.messages, sent.branch.messages()))


def made_of(before: State, done: ActionOutcome) -> PreparedWindow:
    """The result of an action on a state, as a `PreparedWindow`."""
    state = done.state
    receipts = state.receipts[len(before.receipts) :]
    window, sent = done.window, state.sent if done.window else state.folded
    if isinstance(done.problem, InvalidWindow) and (sent.lead.tokens or sent.edited):
        # The fault is in the client's own messages: the provider judges them. The compaction stays in effect.
        window = assemble(state.frame.fixed, sent.shown.messages(), sent.lead)
        output = output_for(sent, state.frame, state.now("before_call"))
        if output < state.frame.budget.max_output:
            window = structs.replace(window, output=output)
    return PreparedWindow(window, sent, done.sent or SentWindow(sent.size), receipts, done.problem)


class LiveBranch:
    """A branch in use: its conversation and the last request that continued it."""

    def __init__(self, conversation: Conversation, name: str, *, is_earlier: bool = False) -> None:
        self.conversation, self.name = conversation, name
        self.is_earlier = is_earlier
        """Opened for one repeated request at an earlier point of the branch. It is not entered in the table
        of branches in use.
        """
        self.line: Line | None = None
        self.has_news = False
        """True from a compaction until a reply has told of it, see `refold.gateway.marker`."""
        self.lock = asyncio.Lock()
        self.rewritten: dict[int, tuple[Message, Message]] = {}
        """The changed messages of the last body by their `id()`, each before and after it got its JSON: most of
        them are sent again with the next request.
        """
        self._instruction_fields: dict[str, Raw] = {}
        self._fixed: FixedFields | None = None

    def serves(self, incoming: IncomingRequest) -> bool:
        """True if the branch is open for the same model and the same format."""
        talk = self.conversation
        return talk.model == incoming.model and talk.format == incoming.dialect.name

    @property
    def weight(self) -> int:
        return len(self.line.history.array) if self.line else 0

    def instructions(
        self,
        incoming: IncomingRequest,
        line: Line,
        *,
        upstream: str = "",
        server: str = "",
        alternates: bool = False,
    ) -> FixedFields:
        """The system prompt and the tools of a request, and the model of `upstream` at `server` that it goes to, in the dialect
        of a server that `alternates` or not. Returns the same object again if they did not change.
        """
        fields, dialect = incoming.fields, incoming.dialect
        dialect = alternating(dialect) if alternates else dialect
        instruction_fields = {key: Raw(bytes(fields[key])) for key in _INSTRUCTIONS if key in fields}
        leading = bytes(line.history.array[: line.leading]) if line.offset else b"["
        instruction_fields[dialect.messages_key] = Raw(leading + b"]")
        is_known = self._fixed is not None and self._fixed.dialect is dialect
        if self._fixed is None or not is_known or instruction_fields != self._instruction_fields:
            # Decoded from copies: the value lives long and would otherwise keep the whole request in memory.
            self._fixed, self._instruction_fields = fixed_of(instruction_fields, dialect), instruction_fields
        # A client that leaves compactions to the provider gets none of ours: the provider takes only one.
        model = "" if incoming.has_provider_compact else incoming.model
        if (self._fixed.model, self._fixed.upstream, self._fixed.server) != (model, upstream, server):
            self._fixed = structs.replace(self._fixed, model=model, upstream=upstream, server=server)
        return self._fixed

    async def take(
        self,
        size: int,
        messages: Sequence[Message],
        hashes: Sequence[bytes],
        request: RequestTerms,
        *,
        identities: Sequence[bytes | None] = (),
        claims: bytes = b"",
        text_size: int = 0,
        wait: SummaryWait,
    ) -> PreparedWindow:
        """Add the new messages of a request after the first `size` messages and make its window. `identities` are
        those of the messages, as far as they are known; `claims` is the hash that no other branch may hold, see
        `Batch.claims`; `text_size` is the size of the request's text; `wait` counts its time for summaries.

        Raises:
            Moved: the branch has another number of messages.
            HeldElsewhere: the conversation went on in another branch; nothing was stored.
            NotStored: the window was made, but nothing was stored, or the outcome of the commit is unknown.
            StoreError: the branch cannot be read.
        """
        made: PreparedWindow | None = None
        expected, new = size, messages

        def act(state: State) -> ActionOutcome:
            nonlocal made
            if state.size != expected:
                raise Moved
            done = actions.take_request(state, new, request)
            if new:
                done.state.folded.branch.note_identities(identities)
            made = made_of(state, done)
            return done

        try:
            done = await self.conversation.apply(
                act, chains=hashes, claims=claims, is_blind=bool(messages), text_size=text_size
            )
            if done.awaited is not None:  # the messages are stored, and a model writes their summary
                await self._wait(done.awaited, wait)
                expected, new = size + len(messages), ()
                done = await self.conversation.apply(actions.at_once(act), text_size=text_size)
        except StoreError as error:
            if made is None or isinstance(error, HeldElsewhere):
                raise
            raise NotStored(made) from error
        assert made is not None
        return structs.replace(made, note=done.sent) if done.sent else made

    async def take_part(
        self,
        size: int,
        messages: Sequence[Message],
        hashes: Sequence[bytes],
        request: RequestTerms,
        *,
        claims: bytes = b"",
    ) -> tuple[Receipt, ...] | None:
        """Add the first ones of the new messages of a request after the first `size` messages. None if no window can be made for
        the request, and nothing was added. Raises the errors of `take`.
        """
        receipts: tuple[Receipt, ...] | None = None

        def act(state: State) -> ActionOutcome:
            nonlocal receipts
            if state.size != size:
                raise Moved
            done = actions.take_part(state, messages, request)
            receipts = None if done.problem else done.state.receipts[len(state.receipts) :]
            return done

        text_size = sum(message.characters for message in messages)
        await self.conversation.apply(act, chains=hashes, claims=claims, is_blind=True, text_size=text_size)
        return receipts

    async def take_unstored(
        self, size: int, messages: Sequence[Message], request: RequestTerms, text_size: int
    ) -> PreparedWindow:
        """The window of a request whose messages after the first `size` ones the store does not take. Adds nothing.

        Raises:
            Moved: the messages in memory are others.
        """
        state = self.conversation.state
        if state.size != size:
            raise Moved

        def take() -> PreparedWindow:
            act = actions.at_once(lambda now: actions.take_request(now, messages, request))
            return made_of(state, act(state))

        return await run_text_act(text_size, take)

    async def take_earlier(
        self,
        size: int,
        request: RequestTerms,
        text_size: int,
        *,
        earlier: actions.AnsweredWindow | None = None,
        is_answered: bool = False,
    ) -> PreparedWindow:
        """The window for the first `size` messages, if a client repeats a request and the branch has messages
        after it. Adds nothing to the branch and reads it in its state at that size. `earlier` is the
        same window if it was answered, see `actions.repeat_request`. With `is_answered` the window is not sent any more, and need not fit.

        Raises:
            NeedsBranch: the messages do not fit in the request's window in the form of that time.
            StoreError: the messages are not stored or cannot be read.
        """
        state = await self.conversation.state_at(size)

        def take() -> PreparedWindow:
            done = actions.repeat_request(state, request, earlier)
            made = made_of(state, done)
            if made.is_plain:
                marks, window = done.state.window_edits, done.state.frame.budget.window
                sizes = done.state.call_size(made.sent)
                return structs.replace(
                    made, note=SentWindow(made.sent.size, marks=marks, window=window, sizes=sizes)
                )
            return structs.replace(made, note=sent_once(done.state, made.sent, done.state.window_edits))

        made = await run_text_act(text_size, take, is_apart=request.policy.runs_plugins)
        does_fit = not made.problem and all(receipt.reason == FOREIGN for receipt in made.receipts)
        if not does_fit and not is_answered:
            raise NeedsBranch
        return made

    def in_words(
        self,
        made: PreparedWindow,
        twins: Mapping[int, Message],
        upstream: str = "",
        *,
        server: str = "",
        alternates: bool = False,
    ) -> PreparedWindow:
        """Rewrite a window for another `upstream` at `server`, with that upstream's twins of provider compactions, see
        `actions.RequestTerms`, and with the two sides in turn if it `alternates`.
        """
        if made.window is None:
            return made
        base, policy = DIALECTS[made.window.fixed.dialect.name], self.conversation.state.frame.policy
        fixed = structs.replace(
            made.window.fixed,
            dialect=alternating(base) if alternates else base,
            upstream=upstream,
            server=server,
        )
        older = tokens_of(policy.ancestors, self.conversation.state.frame.budget)
        sent = made.sent.in_words(twins).led_for(policy, fixed, older)
        window = assemble(fixed, sent.shown.messages(), sent.lead)
        return structs.replace(made, window=window, sent=sent, note=sent_once(self.conversation.state, sent))

    async def shrink(self, status: int | None, body: bytes, *, held: int | None = 0) -> PreparedWindow:
        """The next smaller window after a provider refused a request as too long; `held` as in
        `actions.recover`.

        Raises:
            RecoverySpent: the response is no such refusal, or nothing smaller can be sent.
        """
        made: PreparedWindow | None = None

        def act(state: State) -> ActionOutcome:
            nonlocal made
            done = actions.recover(state, status, body, held=held)
            made = made_of(state, done)
            return done

        done = await self.conversation.apply(act, text_size=len(body))
        assert made is not None
        if made.problem is not None:
            try:
                raise made.problem
            finally:
                del made, done  # they refer to the error, whose traceback refers to them
        return structs.replace(made, note=done.sent) if done.sent else made

    async def _wait(self, request: SummaryRequest, wait: SummaryWait) -> None:
        with wait.counted():
            await self.conversation.wait_for_summary(request, wait.seconds)

    async def take_count(self, made: PreparedWindow, tokens: int, wait: SummaryWait) -> PreparedWindow:
        """The window of a request after the provider has counted it: the same one, or a smaller one if it does
        not fit.
        """
        again: PreparedWindow | None = None

        def act(state: State) -> ActionOutcome:
            nonlocal again
            if state.sent is not made.sent:
                return ActionOutcome(state=state)  # another request was taken meanwhile
            done = actions.take_count(state, tokens)
            if tokens > state.limit:
                done = actions.context(done.state)
                again = made_of(state, done)
            return done

        done = await self.conversation.apply(act)
        if done.awaited is not None:
            await self._wait(done.awaited, wait)
            before = self.conversation.state
            done = await self.conversation.apply(actions.at_once(actions.context))
            again = made_of(before, done)
        if again is None or again.problem is not None:
            return made
        return structs.replace(
            again, note=done.sent or again.note, receipts=(*made.receipts, *again.receipts)
        )

    def count_sent(self, made: PreparedWindow) -> int:
        """Tokens of a request with its instructions, without the messages that only the provider holds."""
        return self.conversation.state.frame.instructions + made.sent.tokens

    async def answered(
        self,
        made: PreparedWindow,
        outcome: CallResult,
        call_id: str,
        *,
        held: int = 0,
        delivery: Delivery = NOT_KNOWN,
    ) -> None:
        """Store the result of a call: its usage and its reply. `held` tokens of the usage belong to messages
        that only the provider holds, and are subtracted.
        """

        def act(state: State) -> ActionOutcome:
            if state.sent is not made.sent or not outcome.is_answered:
                return ActionOutcome(state=state)  # this usage belongs to an earlier window
            return actions.take_answer(state, outcome.usage and outcome.usage.without(held))

        is_estimated = outcome.usage is None and outcome.is_answered
        usage = self._estimated(made, outcome) if is_estimated else outcome.usage or Usage()
        await self.conversation.record_call(
            act,
            usage,
            made.note,
            call_id=call_id,
            reply=outcome.reply,
            is_estimated=is_estimated,
            is_blind=True,
            delivery=delivery,
        )

    def _estimated(self, made: PreparedWindow, outcome: CallResult) -> Usage:
        """The usage of a call whose provider reported none, by our count."""
        state, dialect = self.conversation.state, DIALECTS[self.conversation.format]  # type: ignore[index]
        items = read_reply(outcome.reply) or ()
        said = sum(state.counter.message(decode_message(item, dialect)) for item in items)
        return Usage(input=round(self.count_sent(made) * state.ratio), output=said)


class TakenRequest(Struct, frozen=True):
    """A request that was added to its branch, with the window made for it."""

    host: OwnerConversations
    live: LiveBranch
    line: Line
    made: PreparedWindow
    compactions: dict[int, Message]
    """Messages of the request that hold compactions made by a provider, by message number."""
    is_stored: bool = True
    """False if the window was made but the store did not accept the request."""
    is_first: bool = False
    """True for the first request of its branch."""


class OwnerConversations:
    """The conversations of one owner."""

    def __init__(self, engine: Engine, resolved: ResolvedSettings) -> None:
        self.engine, self.table = engine, LiveBranches()
        self.compactions = Compactions(engine.store, engine.owner)
        self.hidden = HiddenReplies(engine)
        self.off = frozenset[str]()
        """The names of the conversations that are switched off."""
        self._opening: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()
        """Locks by the hash of the first message: two equal first requests at the same time create one
        branch, and other requests do not wait.
        """
        self.use(resolved)

    def use(self, resolved: ResolvedSettings) -> None:
        """Replace the settings. Requests in progress finish with the old ones."""
        self.resolved, self.policy = resolved, policy_of(resolved.settings)
        self.summarisers = summarisers_of(resolved.settings)

    def terms(
        self,
        model: str,
        wire: str,
        *,
        window: int | None,
        reported: int | None = None,
        url: str = "",
        alternates: bool = False,
        wishes: Wishes = NO_WISHES,
        max_output: int | None = None,
        thinking_budget: int = 0,
        held: int = 0,
    ) -> ConversationSettings:
        """The settings of one request's conversation. `window` is the operator's figure for the upstream,
        `reported` the upstream's own, and `url` its address; `held` tokens of the window are used by messages
        that only the provider holds.

        Raises:
            ConfigError: there is no such preset.
        """
        ours = self.resolved.settings.compaction
        policy = policy_of(self.resolved.settings, preset=wishes.preset) if wishes.preset else self.policy
        size = wishes.window or ours.window or window
        if not (size or reported) and ours.max_output:
            size = policy.window_outputs * ours.max_output or None
        known = max(1, _window(model, size, reported, url) - held)
        return ConversationSettings(
            model=model,
            window=size,
            reported_window=reported,
            url=url,
            alternates=alternates,
            held=held,
            max_output=max_output or ours.max_output,
            thinking_budget=thinking_budget,
            limit=limit_in(known, ours.limit),
            format=wire,
            policy=policy,
            sensitive=ours.sensitive,
        )

    def branch_settings(self, terms: ConversationSettings) -> ConversationSettings:
        """The settings to open a branch with. A request brings its own budget."""
        summariser = self.resolved.settings.summariser
        return structs.replace(
            self.engine.settings,
            model=terms.model,
            window=terms.window,
            reported_window=terms.reported_window,
            url=terms.url,
            held=terms.held,
            max_output=terms.max_output,
            limit=terms.limit,
            policy=policy_for(terms),
            sensitive=terms.sensitive,
            max_spend=summariser.max_spend,
            summariser_timeout_s=summariser.timeout_s,
            lease_s=self.resolved.settings.cluster.lease_s,
        )

    async def take(
        self,
        incoming: IncomingRequest,
        settings: ConversationSettings,
        author: Summariser | None = None,
        upstream: str = "",
        seen: DecodedLine | None = None,
        *,
        queue: SummaryQueue | None = None,
        wait: SummaryWait | None = None,
        is_answered: bool = False,
    ) -> TakenRequest:
        """Add a request to its branch and make its window. `author` writes the summaries, in another process if
        there is a `queue`; `wait` counts the time that the client's request waits for them. `upstream` is the
        upstream to be asked, and `seen` holds the request's messages if they were read already. A request that
        `is_answered` is stored late: it never gets a branch of its own because of its size.

        If the branch that a request continues is damaged, the conversation goes on in a new branch: the client
        has sent all messages again, so nothing has to be read from the store.

        Raises:
            WireError: the request cannot be read.
            StoreError: the request cannot be stored.
        """
        seen = seen or await self._read(incoming, incoming.array or b"[]")
        damaged: tuple[DamagedBranch, ...] = ()
        wait = wait or SummaryWait()
        while True:  # each round leaves out one more branch
            try:
                taken = await self._take_in_branch(
                    incoming,
                    settings,
                    author,
                    upstream,
                    seen,
                    damaged,
                    queue=queue,
                    wait=wait,
                    is_answered=is_answered,
                )
            except DamagedBranch as error:
                damaged = (*damaged, error)
                continue
            for one in damaged:
                _log.warning(
                    "the conversation %r is damaged (%s) and goes on in the branch %s: run `refold doctor`",
                    one.found.place.conversation,
                    one.damage.what,
                    taken.live.conversation.branch,
                )
            return taken

    async def _take_in_branch(
        self,
        incoming: IncomingRequest,
        settings: ConversationSettings,
        author: Summariser | None,
        upstream: str,
        seen: DecodedLine,
        damaged: Sequence[DamagedBranch],
        *,
        queue: SummaryQueue | None,
        wait: SummaryWait,
        is_answered: bool,
    ) -> TakenRequest:
        """Add a request to a branch that is not among the `damaged` ones.

        Raises:
            DamagedBranch: this branch is damaged too.
        """
        is_live, is_earlier = not damaged, True
        for _ in range(
            TRIES + len(incoming.body) // PART_BYTES
        ):  # an equal request may store each part first
            held = await self._find_live(incoming, seen) if is_live else None
            live, found = held or await self._open(
                incoming, seen.line, settings, upstream, damaged, is_earlier=is_earlier
            )
            await wait.acquire(live.lock)
            known = live.line
            try:
                live.conversation.summariser, live.conversation.queue = author, queue
                return await self._take(
                    live,
                    incoming,
                    seen,
                    found,
                    settings,
                    upstream,
                    damaged,
                    wait=wait,
                    is_answered=is_answered,
                )
            except Moved:
                is_live = False  # another process has served this conversation: match with the store
            except HeldElsewhere:
                is_live = False
                if live.line is known:
                    self.table.drop(live)
            except NeedsBranch:
                is_earlier = False
            except NotFound:
                self.table.drop(live)  # the conversation was deleted: a new request creates it again
                is_live = False
                if is_answered:
                    raise
            except Damaged as error:
                if found is None:
                    raise
                self.table.drop(live)
                raise DamagedBranch(found, error) from error
            finally:
                live.lock.release()
        raise Conflict("other requests keep writing to this conversation", hint="send the request again")

    async def _find_live(
        self, incoming: IncomingRequest, seen: DecodedLine
    ) -> tuple[LiveBranch, KnownHistory] | None:
        """The branch in the table that a request continues, up to date if another process has answered since."""
        held = self.table.find_by_end(seen.line.hashes, incoming)
        if held is None or held[0].conversation.id in self.off:
            return None
        live, found = held
        return (
            await self._follow_line(live, found.known, seen.line) if seen.skips_turns(found.known) else held
        )

    async def is_off(self, incoming: IncomingRequest) -> bool:
        """True if the conversation of a request is switched off. Switches it first, if the request wishes that.

        Raises:
            ConfigError: the request wishes to switch a conversation that has no name and is not known yet.
        """
        wish = incoming.wishes.conversation
        if not (wish or self.off):
            return False
        name = incoming.name or await self._known_name(incoming)
        if wish and not name:
            raise ConfigError(
                "X-Refold switches a conversation that is not known here",
                hint="name it: X-Refold-Conversation: NAME with every request; or send X-Refold: off with this one",
            )
        if wish:
            await self.engine.switch(name, on=wish == "on")
            self.off = await self.engine.switched_off()
        return wish == "off" or name in self.off

    async def _known_name(self, incoming: IncomingRequest) -> str:
        """The stored conversation that a request without a name continues; empty if it is not known."""
        line = (await self._read(incoming, incoming.array or b"[]")).line
        for one in await find(line.hashes, self._find_places, incoming.dialect.name):
            if one is None:
                continue
            if not is_own_way(line, one.known) or await self._is_answered(one, line, incoming.dialect):
                return one.place.conversation
        return ""

    async def _is_answered(self, found: KnownHistory, line: Line, dialect: Dialect) -> bool:
        """True if a line goes on from the end of a branch with the reply that was stored there. This tells chats
        with equal openings apart before the first reply is a message of the branch. A line without a reply, and a
        branch whose reply was not stored, go on as they do in `_open`.
        """
        if not found.goes_on or found.known == len(line):
            return found.goes_on
        place, owner = found.place, self.engine.owner
        calls = await self.engine.store.calls(owner, place.conversation)
        ids = [
            one.id for one in calls if (one.branch, one.kind, one.size) == (place.branch, "reply", place.size)
        ]
        replies = [read_reply(await self.engine.store.reply_to(owner, one)) for one in ids[-REPLIES:]]
        items = [line.history.item(at + line.offset) for at in range(found.known, len(line))]
        next_one = next(
            (one for one in (decode_message(item, dialect) for item in items) if any(_said(one))), None
        )
        if next_one is None or next_one.role != "assistant" or not replies or not all(replies):
            return True
        try:
            stored = [decode_message(item, dialect) for reply in replies for item in reply or ()]
        except WireError:
            return True  # it was answered in another format
        return any(_said(one) == _said(next_one) for one in stored)

    async def history_hash(self, incoming: IncomingRequest) -> tuple[bytes, ...]:
        """The hash of a request's whole history, or an empty tuple for an empty history."""
        array = incoming.array or b"[]"
        return (await self._read(incoming, array)).line.hashes[-1:]

    async def _take(
        self,
        live: LiveBranch,
        incoming: IncomingRequest,
        seen: DecodedLine,
        found: KnownHistory | None,
        settings: ConversationSettings,
        upstream: str,
        damaged: Sequence[DamagedBranch],
        *,
        wait: SummaryWait,
        is_answered: bool,
    ) -> TakenRequest:
        line, known, size = seen.line, found.known if found else 0, found.place.size if found else 0
        array, is_unread = line.history.array, known < seen.first
        text_size = len(incoming.body) + len(array)

        def read_new() -> tuple[FixedFields, tuple[Message, ...], Sequence[bytes | None], dict[int, Message]]:
            # If not all messages that are new to this branch were read, read the whole list again.
            whole = self.read(incoming, array) if is_unread else seen
            new = whole.since(known, incoming.dialect)
            fixed = live.instructions(
                incoming,
                line,
                upstream=upstream,
                server=server_of(settings.url),
                alternates=settings.alternates,
            )
            return fixed, new, whole.identities_since(known), line.with_compactions(incoming.dialect)

        instructions = len(incoming.body) - len(array) + line.leading
        size_read = instructions + (len(array) if is_unread else line.bytes_after(known))
        fixed, new, identities, compactions = await run_text_act(size_read, read_new)
        budget = _budget(
            settings.model,
            settings.window,
            settings.reported_window,
            settings.url,
            settings.held,
            settings.max_output,
            settings.limit,
            settings.thinking_budget,
            is_output_stated=incoming.max_output is not None,
        )
        twins = await self.twins(live, compactions, upstream)
        policy = policy_for(settings)
        request = RequestTerms(fixed, budget, policy, twins)
        if incoming.asks_compaction:  # the provider shall compact all of it, if that fits
            request = structs.replace(request, policy=policy.only_if_full)
        if live.is_earlier:
            earlier = await self._answered_at(live.conversation, size)
            made = await live.take_earlier(size, request, text_size, earlier=earlier, is_answered=is_answered)
            return TakenRequest(self, live, line, made, compactions)
        opened = (
            await live.conversation.open_again() if actions.may_open_again(live.conversation.state) else None
        )
        # A damaged branch holds the same history up to here, and cannot go on.
        claims = line.claimed_after(max([known, *(one.found.known for one in damaged)]))
        hashes, first = line.hashes[known:], 0
        receipts: tuple[Receipt, ...] = (opened,) if opened else ()
        is_refused = False
        if size_read > PART_BYTES and live.conversation.journal.keeps_content:
            first, before, is_refused = await self._take_parts(live, line, size, new, hashes, request, claims)
            receipts += before
        try:
            made = await live.take(
                size + first,
                new[first:],
                hashes[first:],
                request,
                identities=identities[first:],
                claims=claims,
                text_size=size_read,
                wait=wait,
            )
        except NotStored as error:
            if isinstance(error.__cause__, NotFound):
                raise error.__cause__ from None
            return TakenRequest(self, live, line, error.made, compactions, is_stored=False, is_first=not size)
        except StoreError as error:
            if not is_refused or isinstance(error, HeldElsewhere | NotFound | Damaged):
                raise
            # The store is down since a part, so that the branch cannot even be loaded.
            made = await live.take_unstored(size + first, new[first:], request, size_read)
            return TakenRequest(self, live, line, made, compactions, is_stored=False, is_first=not size)
        self.table.note(live, line)
        if receipts:
            made = structs.replace(made, receipts=(*receipts, *made.receipts))
        return TakenRequest(self, live, line, made, compactions, is_first=not size)

    async def _take_parts(
        self,
        live: LiveBranch,
        line: Line,
        size: int,
        new: Sequence[Message],
        hashes: Sequence[bytes],
        request: RequestTerms,
        claims: bytes,
    ) -> tuple[int, tuple[Receipt, ...], bool]:
        """Store the first ones of the new messages, if there are many bytes of them, in transactions of their own. Returns their
        number, the receipts, and whether the store refused a part: then the others are left to `LiveBranch.take`, which makes a
        window without it. Not for a store without content: a branch that it has cannot be gone on with after a crash.
        """
        first, receipts = 0, tuple[Receipt, ...]()
        for end in _part_ends(new, hashes, claims):
            part, marks = new[first:end], hashes[first:end]
            try:
                made = await live.take_part(size + first, part, marks, request, claims=claims)
            except (HeldElsewhere, NotFound):
                raise
            except StoreError:
                return first, receipts, True
            if made is None:
                break
            first, receipts = end, (*receipts, *made)
            self.table.note(live, line)  # an equal request waits for this one
        return first, receipts, False

    async def _answered_at(self, talk: Conversation, size: int) -> actions.AnsweredWindow | None:
        """The newest window that the same model answered when a branch had `size` messages, if there is one."""
        calls = await self.engine.store.calls(self.engine.owner, talk.id)
        same = ("reply", talk.branch, size, talk.model)
        found = [call for call in calls if (call.kind, call.branch, call.size, call.model) == same]
        if not found or not found[-1].usage.context:
            return None
        return actions.AnsweredWindow(found[-1].usage.context, window_of(found[-1]))

    async def twins(
        self, live: LiveBranch, compactions: Mapping[int, Message], upstream: str
    ) -> dict[int, Message]:
        """Replacements to send to an upstream for compactions made by another upstream or model."""
        talk = live.conversation
        here = Maker(talk.model, upstream, talk.id, talk.branch)
        return await self.compactions.twins(compactions, here, talk.state) if compactions else {}

    async def note_compactions(
        self, live: LiveBranch, made: PreparedWindow, outcome: CallResult, upstream: str
    ) -> None:
        """Store the maker of each compaction in a reply, and the upstream that first received compactions of
        unknown origin.
        """
        if outcome.compactions:
            talk = live.conversation
            maker = Maker(talk.model, upstream, talk.id, talk.branch, made.sent.size)
            self.compactions.note(outcome.compactions, maker)
        if self.compactions.unstored:
            await self.compactions.keep(self.engine.clock())

    async def _read(self, incoming: IncomingRequest, array: bytes | memoryview) -> DecodedLine:
        lines = self.table.lines(incoming.line_name, array, incoming.dialect)
        return await run_text_work(
            len(array), lambda: self.read(incoming, array, find_earlier(lines, incoming.line_name, array))
        )

    def read(
        self, incoming: IncomingRequest, array: bytes | memoryview, earlier: Line | None = None
    ) -> DecodedLine:
        """Read the messages of a request, except those that are equal to an earlier request's.

        Raises:
            WireError: the list cannot be read.
        """
        return read_line(array, incoming.dialect, chain_key(self.engine.owner, incoming.line_name), earlier)

    async def _open(
        self,
        incoming: IncomingRequest,
        line: Line,
        settings: ConversationSettings,
        upstream: str,
        damaged: Sequence[DamagedBranch],
        *,
        is_earlier: bool,
    ) -> tuple[LiveBranch, KnownHistory | None]:
        """The stored branch that a request continues, and the common prefix. A request that is a prefix of a
        longer branch repeats an earlier request: with `is_earlier` it gets no branch of its own. The
        `damaged` branches are left out, and their conversation is kept.

        Raises:
            DamagedBranch: the branch cannot be loaded.
        """
        matched: KnownHistory | None = None
        branch, first = "", line.hashes[0] if line.hashes else b""
        try:
            async with self._opening.setdefault(first, asyncio.Lock()):
                matched, foreign = await find(
                    line.hashes,
                    self._look_beside(damaged),
                    incoming.dialect.name,
                    is_filtered=bool(damaged),
                )
                found = matched
                is_earlier = (
                    is_earlier and found is not None and not found.goes_on and found.known == len(line)
                )
                if found is not None and is_earlier:
                    head, foreign = await self._read_head(found.place), None
                else:
                    # A request of a conversation that is switched off does not come here: an equal opening of
                    # such a one belongs to another chat.
                    is_end = found is not None and found.goes_on and found.place.conversation not in self.off
                    is_another = found is not None and not is_end and is_own_way(line, found.known)
                    found = None if is_another else found
                    if foreign and (found or is_own_way(line, foreign.known)):
                        foreign = None
                    apart = sha256(self.engine.new_id().encode()).digest() if is_another else b""
                    head = await self._head(incoming, line, found, foreign, apart, damaged)
                    if found and not found.goes_on:
                        found = KnownHistory(_place_in_fork(found.place, head), found.known)
            branch = head.branch
            is_followed = found is not None and found.goes_on
            if is_followed and (held := await self._follow(head, incoming)) is not None:
                return held, found
            talk = await self.open_branch(head, settings, upstream, refuses_damage=True)
        except Damaged as error:
            if matched is None:
                raise
            raise DamagedBranch(matched, error, branch) from error
        if foreign and (carried := await self._summary_of_other_format(foreign.place, line)) and carried.last:
            talk.prepare(carried)
        return LiveBranch(talk, incoming.line_name, is_earlier=is_earlier), found

    async def _head(
        self,
        incoming: IncomingRequest,
        line: Line,
        found: KnownHistory | None,
        foreign: KnownHistory | None,
        apart: bytes,
        damaged: Sequence[DamagedBranch],
    ) -> Head:
        """The head of the branch to continue. A conversation in two formats has one branch per format,
        because messages are stored in the format in which the client sent them.
        """
        check_new(line, found)
        model, wire = incoming.model, incoming.dialect.name
        if found is None:
            mark = line.hashes[-1] if line.hashes else b""
            known = foreign.place.conversation if foreign else ""
            if damaged:
                # Derived, not random: two equal requests at the same time get the same new branch.
                place = damaged[-1].found.place
                known, apart = place.conversation, sha256(place.branch.encode()).digest()
            name = incoming.name or known or f"chat-{(apart or mark).hex()[:12]}"
            return await self._root(name, wire.encode() + mark + apart, model, wire)
        if not found.goes_on:
            return await self._fork(found.place, model)
        return await self._read_head(found.place)

    async def _read_head(self, place: HistoryPlace) -> Head:
        head = await self.engine.store.head(self.engine.owner, place.conversation, place.branch)
        if head is None:
            raise StoreError("the conversation was deleted during the request", hint="send the request again")
        return head

    async def _follow(self, head: Head, incoming: IncomingRequest) -> LiveBranch | None:
        """The branch in the table, brought up to date with the store: only the messages that another process has added are
        read. None if it is not there.
        """
        live = self.table.find_by_branch(head.branch, incoming)
        return live if live is not None and await self._loaded(live) else None

    async def _follow_line(
        self, live: LiveBranch, known: int, line: Line
    ) -> tuple[LiveBranch, KnownHistory] | None:
        """A branch in the table whose first `known` messages a request begins with, brought up to date with the store. None if
        the request does not go on from its end: then the store is searched.
        """
        if not await self._loaded(live):
            return None
        talk = live.conversation
        size, added = talk.size, talk.state.folded.originals(known, talk.size)
        if known + len(added) != size or size > len(line):
            return None
        key, characters = chain_key(self.engine.owner, live.name), sum(one.characters for one in added)
        mark = await run_text_work(
            characters, reduce, partial(extend_chain, key=key), added, line.hashes[known - 1]
        )
        if mark != line.hashes[size - 1]:
            return None
        return live, KnownHistory(HistoryPlace(mark, talk.id, talk.branch, size, size), size)

    async def _loaded(self, live: LiveBranch) -> bool:
        try:
            await live.conversation.load()
        except (NotFound, Damaged):  # deleted and begun anew under the same name, or not to be read
            self.table.drop(live)
            return False
        return True

    async def open_branch(
        self,
        head: Head,
        settings: ConversationSettings,
        upstream: str,
        *,
        finds_twins: bool = False,
        refuses_damage: bool = False,
    ) -> Conversation:
        """Open a branch with the settings of a request to an upstream, see `terms`. A request has the messages that are damaged
        in the store, so it `refuses_damage`.
        """
        own = self.branch_settings(settings)
        is_empty = not (head.next_seq or head.notes or head.epoch)
        # The same model name may have another window at another upstream.
        learns = f"{settings.model}@{upstream}" if settings.model else ""
        talk = await self.engine.open_branch(
            head,
            own,
            learns=learns,
            is_empty=is_empty,
            finds_twins=finds_twins,
            refuses_damage=refuses_damage,
        )
        if not is_empty:
            await talk.load()  # replacements of another model's compactions depend on the messages in effect
        return talk

    def _look_beside(self, damaged: Sequence[DamagedBranch]) -> Look:
        """A search for places that leaves out damaged branches and then stays in their conversation: equal
        openings of others are not its history.
        """
        if not damaged:
            return self._find_places
        conversation = damaged[0].found.place.conversation
        branches = frozenset[str]().union(*(one.branches for one in damaged))

        async def look(hashes: Sequence[bytes]) -> list[HistoryPlace]:
            places = await self._find_places(hashes)
            return [at for at in places if at.conversation == conversation and at.branch not in branches]

        return look

    async def _find_places(self, hashes: Sequence[bytes]) -> list[HistoryPlace]:
        return await self.engine.store.places(self.engine.owner, hashes)

    async def _root(self, name: str, mark: bytes, model: str, wire: str) -> Head:
        """Create a branch without a known prefix. Two equal first requests at the same time get the same
        branch.
        """
        engine = self.engine
        branch = sha256(b"\0".join((engine.owner.encode(), name.encode(), mark))).hexdigest()[:32]
        session = Session(id=engine.new_id(), branch=branch, first=0, at=engine.clock())
        head = Head(
            owner=engine.owner, conversation=name, branch=branch, session=session.id, format=wire, model=model
        )
        at = await engine.known_time.not_before(engine.clock())
        return await engine.store.create(head, session, at=at)

    async def _fork(self, at: HistoryPlace, model: str) -> Head:
        """Create a branch that shares the messages of another one up to a point."""
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

    async def _summary_of_other_format(self, at: HistoryPlace, line: Line) -> Summary | None:
        """The summary from the branch of another format, limited to messages that this line has too."""
        store = self.engine.store
        head = await store.head(self.engine.owner, at.conversation, at.branch)
        latest = await store.latest(head, at.size) if head else None
        shown = latest.shown if latest else b""
        try:
            summaries = await run_text_work(len(shown), summaries_in, shown) if shown else ()
        except Damaged:
            return None  # the request has all messages: a summary of them can be made again
        if not summaries:
            return None
        last = await boundary(line.hashes, self._find_places, at.branch, summaries[-1].last)
        text = "\n\n".join(one.text for one in summaries)
        tokens = sum(one.tokens for one in summaries)
        # The messages have other numbers here. The request has all of them, so a model can read them again.
        read = -1 if summaries[-1].kind == "model" else 0
        return structs.replace(
            summaries[-1], id="", text=text, tokens=tokens, first=0, last=last, reserve=(),
            told=-1, model_read=read, carried="",
        )  # fmt: skip


def _part_ends(messages: Sequence[Message], hashes: Sequence[bytes], claims: bytes) -> list[int]:
    """Where the parts of a long history end that are stored before the rest of it. The last reply belongs to the rest, because triggers
    run from it on; the message that no other branch may hold belongs to the first part, so that nothing is stored if another
    branch holds it.
    """
    replies = (at for at in range(len(messages) - 1, -1, -1) if messages[at].role == "assistant")
    first = hashes.index(claims) if claims in hashes else 0
    ends, size = list[int](), 0
    for at, message in enumerate(messages[: next(replies, 0)], 1):
        size += message.characters
        if size >= PART_BYTES and at > first:
            ends.append(at)
            size = 0
    return ends


def limit_in(window: int, limit: Tokens | Share | None) -> int:
    """The part of a window that the setting `compaction.limit` allows, in tokens; 0 for all of it."""
    if limit is None:
        return 0
    return min(window, limit.tokens) if isinstance(limit, Tokens) else int(exact(limit.fraction) * window)


@lru_cache(maxsize=MODELS)
def _window(model: str, size: int | None, reported: int | None, url: str) -> int:
    return window_for(model, override=size, upstream_report=reported, url=url).tokens


@lru_cache(maxsize=MODELS)
def _budget(
    model: str,
    window: int | None,
    reported_window: int | None,
    url: str,
    held: int,
    max_output: int | None,
    limit: int,
    thinking_budget: int,
    *,
    is_output_stated: bool,
) -> Budget:
    settings = ConversationSettings(
        model=model,
        window=window,
        reported_window=reported_window,
        url=url,
        held=held,
        max_output=max_output,
        limit=limit,
        thinking_budget=thinking_budget,
    )
    return structs.replace(budget_for(settings), is_output_stated=is_output_stated)


def _said(message: Message) -> tuple[list[str], list[str]]:
    """What clients send back of a reply: its words and the names of its calls. Spaces and thinking may change."""
    return message.text.split(), [call.name for call in message.calls]


def _place_in_fork(at: HistoryPlace, head: Head) -> HistoryPlace:
    return HistoryPlace(at.hash, head.conversation, head.branch, at.size, head.next_seq)
