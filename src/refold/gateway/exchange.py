"""One call from request to answer: send, retry with a smaller window if the provider refuses, pass on, store.

A call can be repeated until the first content has reached the client; after that, bytes are only passed on.
An answer is therefore held back while it has no content yet, and its content is never changed. An answer that
breaks off is stored as far as it came, and the client learns of it: by an error event of its format where
that is possible, and by a connection that closes without a final event.

The gateway serves requests even if its store is locked, full or unreachable. Such exchanges wait in memory (the
backlog) and are stored in their order as soon as the store accepts them: first the new messages, then the reply.
Storing is idempotent, because messages are found by their hashes and replies by the id of their call. Waiting
exchanges are lost if the process is killed, so the gateway reports them in `/readyz`, in `/refold/status` and in
the next response of the same conversation.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Sequence
from contextlib import aclosing, suppress
from copy import copy
from functools import partial
from typing import Any, Literal, TypeAlias
from urllib.parse import quote

import aiohttp
from msgspec import DecodeError, Raw, Struct, field, structs
from msgspec.json import Decoder, encode
from msgspec.json import decode as read_json
from starlette.types import Send

from refold.core.budget import OutputRoom
from refold.core.fold import FoldedBranch
from refold.core.stage import Edit
from refold.engine.actions import NATIVE_REFUSED
from refold.engine.conversation import warn_once
from refold.engine.settings import ConversationSettings
from refold.engine.state import SentWindow
from refold.gateway import errors
from refold.gateway.conversations import OwnerConversations, PreparedWindow, SummaryWait, TakenRequest
from refold.gateway.marker import MarkedStream, is_structured, mark_reply, marker_text
from refold.gateway.provider_state import (
    StateHandout,
    StateId,
    StateRow,
    StateSource,
    ids_in_answer,
    ids_in_events,
)
from refold.gateway.recall_rounds import JoinedStream, RecallRounds, join_bodies
from refold.gateway.request import DIALECT_OF, IncomingRequest, Shape
from refold.gateway.request_edits import (
    USAGE,
    Additions,
    body_of,
    cut_unread,
    is_only_usage,
    lowered_fields,
    output_header,
    room_header,
    room_to_warn_of,
    with_fields,
    without_thoughts,
)
from refold.gateway.response_tap import EVENTS, CallResult, Watcher, WholeEvents, with_recalled
from refold.gateway.upstreams import Credentials, Forwarder, Target, request_headers, response_headers
from refold.model.dialect import DIALECTS, Dialect
from refold.model.errors import (
    ConfigError,
    Damaged,
    NotFound,
    PluginError,
    RecoverySpent,
    RefoldError,
    Stopping,
    StoreError,
    UpstreamUnavailable,
)
from refold.plugins.filters import (
    FilteredRequest,
    filter_request,
    filter_response,
)
from refold.plugins.plugin import FilterResponse
from refold.plugins.registry import active
from refold.ports.records import Delivery
from refold.text_work import is_long, run_text_act, run_text_work
from refold.upstreams.provider import server_of
from refold.wire.json_codec import FIELDS, ITEMS
from refold.wire.request import beta_for, with_beta

# The call in progress

Action: TypeAlias = Literal[
    "passed", "folded", "reduced", "recovered", "off", "unparsed", "not-kept", "failed"
]
"""The value of the header `x-refold-action`: what was sent, compared with what came. The messages as they came, a
summary in place of older messages, shortened messages, a smaller request after a refusal, or, without any change
by Refold: switched off, not readable, not stored yet, an internal failure."""

_INTEGER = Decoder(int)
_PLAIN = " !#$&'()*+,-./:;<=>?@[]^_`{|}~"
"""Characters that a header value may hold unescaped, besides letters and digits; all others are
percent-encoded.
"""
_IS_PLAIN = re.compile(f"[0-9A-Za-z{re.escape(_PLAIN)}]*").fullmatch

_CHANGES = ("summarise", "undo", "reduce")
"""The values of the header `x-refold-changed`, the most important first."""
MAX_LOGGED = 80
"""Characters of a model's name in the log: a client may send any text as its name."""
KEEP_S = 2.0
"""Time that the last chunk of an answer waits until the reply is stored; after it the chunk is sent and the
reply stored later.
"""

COUNTED_AT = {"/v1/messages": "/count_tokens", "/v1/responses": "/input_tokens"}
"""Calls whose tokens a provider counts, and the path below them that does so."""
COUNTED = (
    *("model", "messages", "system", "tools", "tool_choice", "thinking", "mcp_servers"),
    *("input", "instructions", "reasoning", "text", "previous_response_id", "parallel_tool_calls"),
)
"""Fields of a request that are counted."""
COUNT_S, MAX_COUNT_BYTES = 5.0, 64 * 1024
"""Seconds that a request waits for the count, and the size of the answer."""

_log = logging.getLogger("refold.gateway")


class Ticket:
    def __init__(
        self,
        *,
        call_id: str,
        method: str,
        path: str,
        credentials: Credentials,
        handout: StateHandout,
        body: bytes,
        model: str,
        targets: Sequence[Target],
        shape: Shape,
        backlog: Backlog,
        owner: str = "",
    ) -> None:
        self.call_id, self.method, self.path, self.model = call_id, method, path, model
        self.credentials, self.body, self.targets = credentials, body, targets
        self.handout = handout
        self.shape, self.owner = shape, owner
        name = DIALECT_OF.get(path)
        self.dialect: Dialect | None = DIALECTS[name] if name else None
        """The format of the answer, if a model gives it."""
        self.plugins = active()
        self._filtered: tuple[bytes, FilteredRequest] | None = None
        """The last body that passed the filters of plugins, before and after."""
        self._is_answer_filtered = False
        self.action: Action = "passed"
        self.incoming: IncomingRequest | None = None
        self.hosted: TakenRequest | None = None
        self.made: PreparedWindow | None = None
        self._beta = ""
        self._sent_elsewhere: FoldedBranch | None = None
        """What was shown to an upstream that got text in place of compactions, if the last one did."""
        self.is_kept = False
        self.exchange: Exchange | None = None
        """The exchange to store; None if the call carries no conversation."""
        self._backlog = backlog
        self._upstream = targets[0].name if targets else ""
        """The upstream that was asked last."""
        self.added_s = 0.0
        """Time since the client's request was read, without the time that the upstream took."""
        self._recoveries = 0
        self.name_fault = ""
        """Why the client's name of the conversation was replaced."""
        self.ignored = ""
        """The client's headers that are unknown here."""
        self._added: dict[str, Raw] = {}
        self._without_thinking = ""
        """Why the thinking that the client or the settings ask for is off."""
        self._thinking_off: dict[str, Raw] = {}
        self._lowered: dict[str, Raw] = {}
        self._room: OutputRoom | None = None
        """Room left for messages, if the client is warned that it is small."""
        self.rounds: RecallRounds | None = None
        """Runs the calls of the recall tool; None if the gateway does not offer it."""
        self.edits: tuple[Edit, ...] = ()
        """Changes to the request that were made before its window, stored with the call."""
        self.recalled: tuple[Raw, ...] = ()
        """Results of recalls that are stored with the reply."""
        self.summary_wait = SummaryWait()
        """How long the client's request has waited for summaries."""

    @property
    def is_stream(self) -> bool:
        """True if the client asked for a streamed answer."""
        return self.incoming is not None and self.incoming.is_stream

    @property
    def can_shrink(self) -> bool:
        return self.hosted is not None

    @property
    def strips_usage(self) -> bool:
        """True if the gateway asked for a usage report that the client did not ask for."""
        return USAGE in self._added

    async def host(self, incoming: IncomingRequest, hosted: TakenRequest, added: Additions) -> None:
        """Send the window instead of the original body, with the operator's additions."""
        self.incoming, self.hosted, self._added = incoming, hosted, added.fields
        self._without_thinking = added.without_thinking
        self._room = room_to_warn_of(hosted)
        if hosted.is_first:
            warn_once(hosted.live.conversation.window.warning)
        await self._use_window(hosted.made)

    async def _use_window(self, made: PreparedWindow) -> None:
        incoming, hosted, added = self.incoming, self.hosted, self._added
        assert incoming is not None
        assert hosted is not None
        if self.edits:
            made = structs.replace(
                made, note=structs.replace(made.note, marks=(*made.note.marks, *self.edits))
            )
        self.made, self._lowered = made, lowered_fields(incoming, made)
        self._beta = _beta_of(made)
        self._thinking_off = without_thoughts(incoming, made)
        talk, changed = hosted.live.conversation, {**added, **self._lowered, **self._thinking_off}
        self.handout.answers = StateRow(
            "",
            talk.id,
            talk.branch,
            self.call_id,
            made.sent.size,
            root=incoming.root,
            held=incoming.held,
        )

        def write() -> bytes:
            return with_fields(body_of(incoming, hosted, made), changed)

        is_copy = made.is_as_sent and not changed
        size = 0 if is_copy else len(incoming.body) + len(hosted.line.history.array)
        self.body = await run_text_work(size, write)
        if any(receipt.decision == "summarise" for receipt in made.receipts):
            hosted.live.has_news = True
        self.action = "passed" if made.is_plain else "folded" if made.sent.summaries else "reduced"
        if hosted.is_stored:
            self._backlog.note_stored(hosted.line.hashes)
        else:
            self.action = "not-kept"

    @property
    def is_worth_counting(self) -> bool:
        """True if the provider should count this request before it is sent, and can."""
        if (
            self.hosted is None
            or self.made is None
            or self.made.window is None
            or self.hosted.live.is_earlier
        ):
            return False
        return self.path in COUNTED_AT and self.hosted.live.conversation.state.is_worth_counting

    async def take_count(self, tokens: int) -> None:
        """Make the request smaller if it does not fit by the provider's count."""
        assert self.hosted is not None
        assert self.made is not None
        made = await self.hosted.live.take_count(self.made, tokens, self.summary_wait)
        if made is not self.made:
            await self._use_window(made)

    async def filtered(self, body: bytes) -> bytes:
        """The body after the filters of plugins. They see every call to a model, also those that pass unchanged.

        Raises:
            PluginError: a filter ends the request.
        """
        dialect = self.dialect
        if dialect is None or self.method != "POST" or not self.plugins.has_request_filters:
            return body
        if self._filtered is None or self._filtered[0] is not body:
            talk = self.hosted.live.conversation if self.hosted else None
            done = await filter_request(
                self.plugins,
                body,
                dialect,
                model=self.model,
                conversation=talk.id if talk else "",
                owner=self.owner,
                max_output=talk.state.most_output if talk and self.made and self.made.window else None,
            )
            self._filtered = body, done
            if self.made is not None and talk is not None and done.body is not body:
                edits = done.edits(_numbers(self.made, body, dialect), talk.state.counter.message)
                note = structs.replace(self.made.note, marks=(*self.made.note.marks, *edits))
                self.made = structs.replace(self.made, note=note)
        return self._filtered[1].body

    @property
    def filters_answer(self) -> bool:
        """True if a plugin reads the answer."""
        return self.dialect is not None and self.plugins.has_response_filters

    async def filter_answer(self, watcher: Watcher, status: int) -> None:
        """Show an answer that has arrived to the filters of plugins, once.

        Raises:
            PluginError: a filter refuses it.
        """
        dialect = self.dialect
        if dialect is None or not self.filters_answer or self._is_answer_filtered or status >= 400:
            return
        self._is_answer_filtered = True
        result = await run_text_work(watcher.size, watcher.outcome)
        reply = read_json(result.reply) if result.reply else {}
        response = FilterResponse(
            dialect.name,
            self.model,
            reply.get("messages") or [],
            result.usage,
            result.is_whole,
            self.hosted.live.conversation.id if self.hosted else "",
            self.owner,
        )
        await filter_response(self.plugins, response)

    async def body_for(self, target: Target) -> bytes:
        """The body for an upstream. A fallback gets plain text in place of compactions that it did not make."""
        return await self.filtered(await self._body_for(target))

    def headers_with_beta(self, headers: dict[str, str]) -> dict[str, str]:
        """The headers of a request, with the beta feature that a compaction in its body needs."""
        return with_beta(headers, self._beta) if self._beta else headers

    async def _body_for(self, target: Target) -> bytes:
        self._upstream, self._beta, self._sent_elsewhere = target.name, _beta_of(self.made), None
        if target is self.targets[0] or self.hosted is None or self.made is None or self.incoming is None:
            return self.body
        try:
            return await self._in_words(self.incoming, self.hosted, self.made, target)
        except Exception as error:  # noqa: BLE001  # no failure here may stop the call: the upstream may accept the body
            _log.warning(
                "compactions could not be rewritten as text for another upstream: %s", type(error).__name__
            )
            return self.body

    async def _in_words(
        self, incoming: IncomingRequest, hosted: TakenRequest, made: PreparedWindow, target: Target
    ) -> bytes:
        twins = await hosted.host.twins(hosted.live, hosted.compactions, target.name)
        is_in_turn = target.alternates == self.targets[0].alternates or not made.sent.lead.messages
        is_alike = not twins and not made.sent.made and is_in_turn
        if is_alike and not any(one.native for one in made.sent.summaries):
            return self.body

        def write() -> tuple[bytes, PreparedWindow]:
            rewritten = hosted.live.in_words(
                made, twins, target.name, server=server_of(target.url), alternates=target.alternates
            )
            return with_fields(
                body_of(incoming, hosted, rewritten), {**self._added, **self._thinking_off}
            ), rewritten

        body, rewritten = await run_text_work(len(incoming.body) + len(hosted.line.history.array), write)
        self.made, self._sent_elsewhere = structs.replace(made, note=rewritten.note), rewritten.sent
        self._beta = _beta_of(rewritten)
        self.action = "reduced" if self.action == "passed" else self.action
        return body

    async def shrink(self, status: int, refusal: bytes) -> None:
        """Make the body smaller after a provider's refusal.

        Raises:
            RecoverySpent: the refusal was not for length, or nothing smaller can be sent.
        """
        incoming = self.incoming
        if self.hosted is None or incoming is None or self.hosted.live.is_earlier:
            raise RecoverySpent
        held, began = incoming.held if incoming.held or not incoming.root else None, time.perf_counter()
        try:
            made = await self.hosted.live.shrink(status if status >= 400 else None, refusal, held=held)
            await self._use_window(made)
        except (RecoverySpent, PluginError):
            raise
        except Exception as error:  # noqa: BLE001  # on any failure the client gets the provider's own refusal
            _log.warning("a call could not be made smaller: %s", type(error).__name__)
            raise RecoverySpent from None
        # Text in place of a compaction that the provider does not take back is no smaller request.
        if self._recoveries or not any(receipt.reason == NATIVE_REFUSED for receipt in made.receipts):
            self.action = "recovered"
        self._recoveries += 1
        self.added_s += time.perf_counter() - began

    async def keep(self, watcher: Watcher, status: int = 200) -> None:
        """Store the result of the call, once, even if the client disconnects meanwhile. The client waits for
        it for `KEEP_S` at most; if storing fails, the exchange goes to the backlog and the client has its
        answer all the same.
        """
        if self.is_kept or self.exchange is None:
            return
        self.is_kept = True
        if status < 400:
            await self._backlog.within(self._keep(self.exchange, watcher), KEEP_S)
        elif (self.hosted is None or not self.hosted.is_stored) and not self.exchange.is_after_gap:
            await self._store_later(self.exchange)

    async def _keep(self, exchange: Exchange, watcher: Watcher) -> None:
        outcome = await run_text_work(watcher.size, watcher.outcome)
        outcome = with_recalled(outcome, self.recalled)
        delivery = Delivery(self._upstream, self._recoveries, round(1_000 * self.added_s, 3))
        answered = structs.replace(exchange, outcome=outcome, upstream=self._upstream, delivery=delivery)
        is_hosted = self.hosted is not None and self.hosted.is_stored
        if not is_hosted and not exchange.is_after_gap:
            await self._store_later(answered)
            return
        try:
            if self.hosted is None or self.made is None:
                self._backlog.note_stored(await answered.store())
                return
            live, held = self.hosted.live, exchange.incoming.held
            await live.answered(self.made, outcome, self.call_id, held=held, delivery=delivery)
            await exchange.host.note_compactions(live, self.made, outcome, self._upstream)
        except NotFound:
            self._forget_deleted(exchange)
        except StoreError as error:
            _log.warning("a reply is stored later: %s", error.located)
            await self._store_later(answered)
        except Exception as error:  # noqa: BLE001  # no failure here may stop the client's answer
            _log.warning("a reply could not be stored: %s", type(error).__name__)

    def _forget_deleted(self, exchange: Exchange) -> None:
        """Drop the reply of a conversation that was deleted while it was answered: nobody can ask for it any more."""
        _log.info("%s", DELETED)
        if self.hosted is not None:
            exchange.host.table.drop(self.hosted.live)

    async def _store_later(self, exchange: Exchange) -> None:
        mark = (
            self.hosted.line.hashes[-1:]
            if self.hosted
            else await exchange.host.history_hash(exchange.incoming)
        )
        self._backlog.add(structs.replace(exchange, mark=b"".join(mark)))

    @property
    def marker(self) -> str:
        """The line to add to the reply, which tells of a compaction; empty for none."""
        hosted, made, incoming = self.hosted, self.made, self.incoming
        if hosted is None or made is None or incoming is None or not hosted.live.has_news:
            return ""
        if not hosted.host.resolved.settings.notify.marker or is_structured(incoming.fields):
            return ""
        if incoming.asks_compaction:  # its answer is a compaction, and no text for people
            return ""
        return marker_text(made.sent.tokens, made.sent.whole)

    def has_marked(self) -> None:
        """Note that the reply tells of the compaction."""
        if self.hosted is not None:
            self.hosted.live.has_news = False

    @property
    def route(self) -> tuple[str, str, Action]:
        """The model, the upstream that was asked last, and what was done to the request."""
        return self.model[:MAX_LOGGED], self._upstream, self.action

    def facts(self) -> dict[str, object]:
        """The facts of this call for the log: names and numbers, and no content."""
        found: dict[str, object] = {"action": self.action}
        if self.hosted is not None and self.made is not None:
            found["conversation"] = self.hosted.live.conversation.id
            found["tokens"] = f"{self.made.sent.whole}->{self.made.sent.tokens}"
        if self.rounds is not None and self.rounds.calls:
            found["recalls"] = self.rounds.calls
        return {**found, "model": self.model[:MAX_LOGGED] or "-", "upstream": self._upstream or "-"}

    def refold_headers(self, upstream: str) -> list[tuple[bytes, bytes]]:
        """The `x-refold-*` response headers."""
        headers = {
            "x-refold-action": self.action,
            "x-refold-receipt": self.call_id,
            "x-refold-upstream": upstream,
            **({"x-refold-name": f"replaced; {self.name_fault}"} if self.name_fault else {}),
            **({"x-refold-ignored": self.ignored} if self.ignored else {}),
        }
        if self.hosted is not None and self.made is not None:
            headers |= self._window_headers(self.hosted, self.made)
        if self.incoming is not None and self.made is not None and self._lowered:
            headers["x-refold-output"] = output_header(self.incoming, self.made)
        if self.hosted is not None and self.hosted.is_first:
            budget = self.hosted.live.conversation.state.frame.budget
            headers["x-refold-window"] = f"{budget.window} ({budget.source})"
        if self._room is not None:
            headers["x-refold-room"] = room_header(self._room)
        if self._filtered is not None and (notes := self._filtered[1].notes):
            headers["x-refold-plugins"] = "; ".join(notes)
        if added := [*self._added, *(["tools"] if self.rounds and self.hosted else [])]:
            headers["x-refold-added"] = ", ".join(added)
        problem = "the tool loop in progress has lost its thoughts" if self._thinking_off else ""
        if problem := problem or self._without_thinking:
            headers["x-refold-thinking"] = f"off; {problem}"
        return [(name.encode(), _header(value)) for name, value in headers.items()]

    def _window_headers(self, hosted: TakenRequest, made: PreparedWindow) -> dict[str, str]:
        talk = hosted.live.conversation
        headers = {"x-refold-conversation": talk.id, "x-refold-branch": talk.branch}
        if done := {receipt.decision for receipt in made.receipts if not receipt.is_for_call}:
            headers["x-refold-changed"] = next(one for one in _CHANGES if one in done)
        if cut := cut_unread(made):
            headers["x-refold-cut"] = cut
        is_sent = made.window is not None  # or nothing smaller can be made: the client's own messages leave
        if is_sent and (summary := talk.author_of(self._sent_elsewhere or made.sent).text):
            headers["x-refold-summary"] = summary
        headers["x-refold-tokens"] = f"{made.sent.whole}->{made.sent.tokens if is_sent else made.sent.whole}"
        if count := self._backlog.not_kept(hosted.line.hashes):
            headers["x-refold-not-kept"] = str(count)
        return headers


def _numbers(made: PreparedWindow, body: bytes, dialect: Dialect) -> dict[int, int]:
    """The numbers of messages in the branch, by their index in the list of a body."""
    if made.window is None:
        return {}
    window, items = made.window, FIELDS.decode(body).get(dialect.messages_key)
    is_list = items is not None and bytes(items).lstrip()[:1] == b"["
    first = len(ITEMS.decode(items)) - len(window.sent) if items is not None and is_list else 0
    places = range(min(len(window.messages), len(made.sent.shown)))
    return {first + window.place(at): made.sent.number(at) for at in places}


def _header(value: str) -> bytes:
    return (value if _IS_PLAIN(value) else quote(value, safe=_PLAIN)).encode()


MAX_ERROR_BYTES = 64 * 1024
"""Size of an error in the body of a successful answer."""
MAX_HELD_BYTES = 1024 * 1024
"""Limit for an answer that is read before the client gets any of it: an error, or a reply that is not
streamed. Larger answers are passed on as they arrive.
"""
MAX_NOTED_BYTES = 64 * 1024 * 1024
"""The same limit for an answer with ids that need rows before they leave: a reply may contain pictures."""
MAX_EVENT_BYTES = 8 * 1024 * 1024
"""The same limit for one event of a stream: the first event repeats the instructions and tools of the request."""
HOLD_S = 1.0
"""Time that a stream without content is held back: errors come at once, and clients wait for a sign of life."""
BUSY = frozenset((429, 500, 502, 503, 504, 529))
"""Statuses after which the next upstream is asked, if there is one."""
_BROKEN = (aiohttp.ClientError, OSError)
"""Exceptions of reading from an upstream; a TimeoutError is an OSError."""


def _beta_of(made: PreparedWindow | None) -> str:
    """The beta feature that a window with a compaction of ours needs; empty for none."""
    window = made.window if made else None
    return beta_for(window.summaries, window.fixed.dialect) if window else ""


class UpstreamAnswer(Struct):
    """An answer with its headers, and the part of its body that was read already."""

    target: Target
    response: aiohttp.ClientResponse
    watcher: Watcher
    held: list[bytes] = []
    is_ended: bool = False
    events: WholeEvents = field(default_factory=WholeEvents)
    source: StateSource | None = None
    """The kind of answer in which ids are searched before the client gets them; None for no search."""
    is_stream: bool = False
    is_rewritten: bool = False
    """True if the body has another length than the upstream stated."""
    marks: MarkedStream | None = None
    """Writes the marker into the stream."""

    async def read(self) -> int:
        """Read the next chunk and return its size."""
        try:
            chunk = await self.response.content.readany()
        except _BROKEN as error:
            # aiohttp keeps the error: with its traceback, it would hold this request until a garbage collection.
            error.__traceback__ = error.__cause__ = error.__context__ = None
            raise copy(error) from None
        self.is_ended = not chunk
        if chunk:
            self.held.append(chunk)  # before the await: a cancelled caller still has the chunk
            size = self.watcher.pending + len(chunk) if self.watcher.is_stream else 0
            if is_long(size):
                await run_text_act(size, self.watcher.feed, chunk)
            else:
                self.watcher.feed(chunk)
        return len(chunk)

    def let_through(self, chunk: bytes) -> bytes:
        """The bytes that the client may have now: of a stream that is read, complete events that it asked for."""
        if not (self.watcher.is_stream or (self.source and self.is_stream)):
            return chunk
        passed = self.events.let_through(chunk)
        return self.marks.feed(passed) if self.marks else passed

    def rest(self) -> bytes:
        """The remaining bytes, after the answer has ended."""
        rest = self.events.rest()
        return self.marks.feed(rest) + self.marks.rest() if self.marks else rest

    def close(self) -> None:
        """Close the connection if the answer has not ended, so that the provider stops."""
        if not self.is_ended:
            self.response.close()


class CurrentRound(Struct):
    """The newest call of a reply, and its answer."""

    ticket: Ticket
    coming: UpstreamAnswer
    joined: JoinedStream | None = None
    """The stream that the client gets instead of those of the rounds, from its beginning to its end."""
    marks: MarkedStream | None = None
    """Writes the marker into the joined stream."""


class Relay:
    """Sends calls to upstreams and passes their answers back."""

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder
        self._refused = set[str]()
        """Fallbacks for which a missing key was logged already."""
        self._uncounted = set[str]()
        """Upstreams that count no tokens."""

    async def serve(self, ticket: Ticket, send: Send) -> None:
        """Answer a call. If the client disconnects, the call is cancelled at the provider too.

        Raises:
            UpstreamUnavailable: no upstream answered; nothing was sent to the client yet.
        """
        try:
            if ticket.is_worth_counting:
                began = time.perf_counter()
                await self._count_first(ticket)
                ticket.added_s += time.perf_counter() - began
            coming = await self._answer(ticket)
        except asyncio.CancelledError:
            await ticket.keep(Watcher(ticket.dialect))  # the provider may bill the call all the same
            raise
        now = CurrentRound(ticket, coming)
        try:
            if ticket.rounds is not None and ticket.hosted is not None:
                await self._pass_rounds_on(now, ticket.rounds, send)
            else:
                await self._pass_answer_on(ticket, coming, send)
        except asyncio.CancelledError:  # the gateway is being stopped, or nobody is there to read the event
            if now.joined is not None:
                if now.coming.watcher.is_open or now.joined.has_recalls:
                    await self._send_joined_error(now, now.joined, Stopping(), send)
            elif now.coming.watcher.is_open:
                await self._send_error_event(now.ticket, now.coming, Stopping(), send)
            raise
        finally:  # the provider bills a reply that a plugin refuses or that nobody waits for
            now.coming.close()
            await now.ticket.keep(now.coming.watcher, now.coming.response.status)

    async def _pass_rounds_on(self, now: CurrentRound, rounds: RecallRounds, send: Send) -> None:
        """Answer a call whose reply may call the recall tool: the answers to all of its calls are one for the
        client.
        """
        if _is_readable(now.coming) and now.coming.watcher.is_stream:
            await self._pass_streams_on(now, rounds, send)
            return
        bodies = list[bytes]()
        while _is_readable(now.coming) and not now.coming.watcher.is_stream:
            try:
                await self._hold(now.coming, lambda: False, None, MAX_NOTED_BYTES)
            except _BROKEN as error:
                raise _unavailable(now.coming.target, error) from None
            if not now.coming.is_ended:
                break  # too long to be read
            bodies.append(b"".join(now.coming.held))
            outcome = await run_text_work(now.coming.watcher.size, now.coming.watcher.outcome)
            if not outcome.is_whole or not await self._next_round(now, rounds, outcome):
                break
        coming = now.coming
        if rounds.calls and bodies and coming.is_ended and coming.response.status < 300:
            coming.held = [join_bodies(bodies, rounds.name, rounds.dialect)]
            coming.is_rewritten = True
        await self._pass_answer_on(now.ticket, coming, send)

    async def _next_round(self, now: CurrentRound, rounds: RecallRounds, outcome: CallResult) -> bool:
        """Go on with the next call of a reply and its answer; False if the reply ends here."""
        ticket, coming, status = now.ticket, now.coming, now.coming.response.status
        await ticket.filter_answer(coming.watcher, status)
        further = await rounds.follow_up(
            ticket, outcome.reply, coming.target, lambda: ticket.keep(coming.watcher, status)
        )
        if further is None:
            return False
        coming.close()
        try:
            now.coming = await self._answer(further)
        except asyncio.CancelledError:
            await further.keep(Watcher(further.dialect))  # the provider may bill the call all the same
            raise
        now.ticket = further
        return True

    async def _pass_streams_on(self, now: CurrentRound, rounds: RecallRounds, send: Send) -> None:
        """Pass the streams of all rounds on as one. The client gets its text at once; calls of the recall tool and
        the end of a stream with such a call are held back.
        """
        ticket, coming = now.ticket, now.coming
        joined = JoinedStream(rounds.dialect, rounds.name)
        text = ticket.marker
        marks = now.marks = MarkedStream(rounds.dialect, text) if text else None
        headers = [
            *response_headers(coming.response.raw_headers, has_length=False),
            *ticket.refold_headers(coming.target.name),
        ]
        await send({"type": "http.response.start", "status": coming.response.status, "headers": headers})
        now.joined = joined

        async def pass_on(passed: bytes) -> None:
            passed = marks.feed(passed) if marks else passed
            if passed:
                await _send_chunk(send, passed)

        problem = await self._pass_all_rounds_on(now, rounds, joined, pass_on)
        if problem is not None:
            now.joined = None
            await self._send_joined_error(now, joined, problem, send)
            if isinstance(problem, PluginError):  # the stream itself did not break off
                await send({"type": "http.response.body", "body": b""})
            return
        await pass_on(joined.end())
        now.joined = None
        if marks is not None:
            await _send_chunk(send, marks.rest())
            if marks.is_written:
                now.ticket.has_marked()
        await send({"type": "http.response.body", "body": b""})

    async def _pass_all_rounds_on(
        self,
        now: CurrentRound,
        rounds: RecallRounds,
        joined: JoinedStream,
        pass_on: Callable[[bytes], Coroutine[Any, Any, None]],
    ) -> RefoldError | None:
        """Pass one stream after the other on. Returns the reason if the last one is not complete."""
        try:
            while await self._pass_round_on(now, rounds, joined, pass_on):
                joined.next_round()
                if not now.coming.watcher.is_stream:
                    return _unusable(now.coming.target, now.coming.response.status)
        except _BROKEN as error:
            return _unavailable(now.coming.target, error)
        except RefoldError as error:
            return error
        finally:
            await now.ticket.keep(now.coming.watcher, now.coming.response.status)
        return _too_short(now.coming.target) if now.coming.watcher.is_open else None

    async def _pass_round_on(
        self,
        now: CurrentRound,
        rounds: RecallRounds,
        joined: JoinedStream,
        pass_on: Callable[[bytes], Coroutine[Any, Any, None]],
    ) -> bool:
        """Pass the stream of one round on, up to its end, and ask the next one if the model has called the tool. False
        if the reply ends here.
        """
        ticket, coming = now.ticket, now.coming
        await self._pass_stream_on(ticket, rounds, coming, joined, pass_on)
        if not (joined.has_recalls and joined.is_readable) or coming.watcher.is_open:
            return False
        outcome = await run_text_work(coming.watcher.size, coming.watcher.outcome)
        return outcome.is_whole and await self._next_round(now, rounds, outcome)

    async def _pass_stream_on(
        self,
        ticket: Ticket,
        rounds: RecallRounds,
        coming: UpstreamAnswer,
        joined: JoinedStream,
        pass_on: Callable[[bytes], Coroutine[Any, Any, None]],
    ) -> None:
        """Pass the stream of one round on. A round without recalls is the last one: it is stored before its last byte
        leaves.
        """
        watcher = coming.watcher
        async with aclosing(self._chunks(coming, holds_last=False)) as chunks:
            async for chunk in chunks:
                if coming.source and coming.is_stream:
                    found = ids_in_events(coming.source, chunk, is_stored=ticket.handout.is_stored)
                    await ticket.handout.note(found, coming.target)
                passed = joined.feed(chunk)
                if (watcher.is_over or coming.is_ended) and not joined.has_recalls:
                    await self._end_rounds(ticket, rounds, coming)
                await pass_on(passed)
                if watcher.is_over and joined.has_recalls:
                    return
        if not joined.has_recalls:
            await self._end_rounds(ticket, rounds, coming)
        if not watcher.is_open:  # an error event follows otherwise, and part of an event would spoil it
            await pass_on(joined.feed(coming.rest()) + joined.rest())

    async def _end_rounds(self, ticket: Ticket, rounds: RecallRounds, coming: UpstreamAnswer) -> None:
        """Store the last reply of the rounds, and where its hidden messages are; once."""
        if ticket.is_kept:
            return
        await ticket.keep(coming.watcher, coming.response.status)
        await ticket.filter_answer(coming.watcher, coming.response.status)
        outcome = await run_text_work(coming.watcher.size, coming.watcher.outcome)
        if outcome.is_whole:
            await rounds.follow_up(ticket, outcome.reply, coming.target)

    async def _count_first(self, ticket: Ticket) -> None:
        """Let the provider count a very large request, and make it smaller if it does not fit. If the count
        fails, the request is sent as it is.
        """
        target = ticket.targets[0]
        if target.name in self._uncounted:
            return
        whole = await ticket.filtered(ticket.body)
        body = await run_text_work(len(whole), _counted_fields, whole)
        address = target.address(
            f"{ticket.path}{COUNTED_AT[ticket.path]}", ticket.credentials.query_for(target)
        )
        try:
            async with asyncio.timeout(COUNT_S):
                headers = await request_headers(target, ticket.credentials)
                headers = ticket.headers_with_beta(headers)
                response = await self._forwarder.send(target, "POST", address, headers, body)
                async with response:
                    if response.status in (404, 405, 501):
                        self._uncounted.add(target.name)
                    found = await response.content.read(MAX_COUNT_BYTES) if response.status == 200 else b"{}"
            tokens = FIELDS.decode(found).get("input_tokens")
            if tokens is not None:
                await ticket.take_count(_INTEGER.decode(tokens))
        except PluginError:
            raise
        except Exception as error:  # noqa: BLE001  # a count is a help: its failure must not stop the call
            _log.warning("a request could not be counted: %s", type(error).__name__)

    async def _answer(self, ticket: Ticket) -> UpstreamAnswer:
        """The answer for the client: the first one that is not a refusal for length."""
        while True:
            coming = await self._ask_in_turn(ticket)
            try:
                refusal = await self._refusal(ticket, coming)
                if refusal is None:
                    await self._note_whole(ticket, coming)
                    return coming
                await ticket.shrink(coming.response.status, refusal)
            except RecoverySpent:
                return coming
            except BaseException as error:
                await self._abandon(ticket, coming)
                if isinstance(error, _BROKEN):
                    raise _unavailable(coming.target, error) from None
                raise
            coming.close()

    async def _abandon(self, ticket: Ticket, coming: UpstreamAnswer) -> None:
        """Close and store an answer that had begun and will not reach the client."""
        coming.close()
        await ticket.keep(coming.watcher, coming.response.status)

    async def _ask_in_turn(self, ticket: Ticket) -> UpstreamAnswer:
        """The answer of the first upstream that is not busy or unavailable."""
        *others, last = ticket.targets
        for target in others:
            try:
                coming = await self._ask(ticket, target)
            except UpstreamUnavailable:
                continue
            if coming.response.status not in BUSY:
                return coming
            coming.close()
        return await self._ask(ticket, last)

    async def _ask(self, ticket: Ticket, target: Target) -> UpstreamAnswer:
        try:
            headers = await request_headers(target, ticket.credentials)
        except ConfigError:  # the operator must fix it, not the client
            raise UpstreamUnavailable(
                f"the key of {target.name} cannot be obtained", hint="its key command fails on the gateway"
            ) from None
        address = target.address(ticket.path, ticket.credentials.query_for(target))
        try:
            body = await ticket.body_for(target)
            headers = ticket.headers_with_beta(headers)
            response = await self._forwarder.send(target, ticket.method, address, headers, body)
        except _BROKEN as error:
            raise _unavailable(target, error) from None
        if not 200 <= response.status < 600:  # not a status that can be passed on
            response.close()
            raise UpstreamUnavailable(f"{target.name} answered with an invalid status", hint="check its url")
        if response.status in (401, 403):
            self._warn_without_key(ticket, target)
        is_read = response.status < 400 and "content-encoding" not in response.headers
        watcher = Watcher(ticket.dialect if is_read else None, response.content_type)
        source = ticket.handout.source_at(target) if is_read else None
        is_hidden = is_only_usage if ticket.strips_usage else None
        events = WholeEvents(MAX_EVENT_BYTES, is_hidden) if source else WholeEvents(is_hidden=is_hidden)
        is_stream = response.content_type.startswith(EVENTS)
        return UpstreamAnswer(
            target,
            response,
            watcher,
            events=events,
            source=source,
            is_stream=is_stream,
        )

    def _warn_without_key(self, ticket: Ticket, target: Target) -> None:
        """Log once that a fallback was asked without a key, although the client had sent one, and refused the
        call.
        """
        sent = ticket.credentials
        is_without = target is not ticket.targets[0] and target.key is None
        if is_without and sent.is_sent and not sent.go_to(target) and target.name not in self._refused:
            self._refused.add(target.name)
            _log.warning(
                "the fallback %s needs a key: name one in its settings, or set pass_key = true to send the client's",
                target.name,
            )

    async def _refusal(self, ticket: Ticket, coming: UpstreamAnswer) -> bytes | None:
        """The body of a refusal to which the gateway can still react; None if there is none."""
        if not ticket.can_shrink:
            return None
        if coming.response.status >= 400:
            await self._hold(coming, lambda: False, None)
            return b"".join(coming.held)
        if not coming.watcher.is_stream:
            if not ticket.is_stream:  # otherwise the client waits for a stream in an unknown format
                await self._hold(coming, lambda: False, None)
                body = b"".join(coming.held) if coming.is_ended else b""
                return body if _is_error(body) else None
            return None
        await self._hold(coming, lambda: coming.watcher.has_begun or coming.watcher.is_over, HOLD_S)
        return coming.watcher.failure if not coming.watcher.has_begun else None

    async def _note_whole(self, ticket: Ticket, coming: UpstreamAnswer) -> None:
        """Store rows for the ids in an answer that is not streamed, before any of it leaves. It is also held for
        plugins that read it.
        """
        if coming.is_stream or (coming.source is None and not ticket.filters_answer):
            return
        await self._hold(coming, lambda: False, None, MAX_NOTED_BYTES)
        if coming.is_ended and coming.source is not None:
            body = b"".join(coming.held)
            read = partial(ids_in_answer, coming.source, body, is_stored=ticket.handout.is_stored)
            found = await run_text_work(len(body), lambda: [*read()])
            await ticket.handout.note(found, coming.target)

    async def _hold(
        self,
        coming: UpstreamAnswer,
        is_enough: Callable[[], bool],
        wait_s: float | None,
        most: int = MAX_HELD_BYTES,
    ) -> None:
        """Read until `is_enough`, the end of the answer, the time limit or the size limit."""

        async def read() -> None:
            size = 0
            while not (coming.is_ended or is_enough()) and size <= most:
                size += await coming.read()

        if wait_s is None:
            await read()
            return
        try:
            async with asyncio.timeout(wait_s):
                await read()
        except TimeoutError as error:
            if isinstance(error, aiohttp.ServerTimeoutError):
                raise

    async def _pass_answer_on(self, ticket: Ticket, coming: UpstreamAnswer, send: Send) -> None:
        response, watcher = coming.response, coming.watcher
        if coming.is_ended:
            await ticket.keep(watcher, response.status)  # store before the client has the answer
            await ticket.filter_answer(watcher, response.status)
        self._mark(ticket, coming)
        has_length = not (watcher.is_stream or coming.is_rewritten)
        upstream_headers = response_headers(response.raw_headers, has_length=has_length)
        headers = [*upstream_headers, *ticket.refold_headers(coming.target.name)]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        problem: RefoldError | None = None
        try:
            exchange = ticket.exchange
            holds_last = exchange is not None and not exchange.incoming.is_stream
            async with aclosing(self._chunks(coming, holds_last=holds_last)) as chunks:
                async for chunk in chunks:
                    if coming.source and coming.is_stream:
                        is_stored = ticket.handout.is_stored
                        found = ids_in_events(coming.source, chunk, is_stored=is_stored)
                        await ticket.handout.note(found, coming.target)
                    if watcher.is_over or coming.is_ended:
                        await ticket.keep(watcher, response.status)
                        await ticket.filter_answer(watcher, response.status)
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except _BROKEN as error:
            problem = _unavailable(coming.target, error)
        except PluginError as error:
            problem = error
        finally:
            await ticket.keep(watcher, response.status)
            if coming.marks is not None and coming.marks.is_written:
                ticket.has_marked()
        await self._end(ticket, coming, problem, send)

    async def _end(
        self, ticket: Ticket, coming: UpstreamAnswer, problem: RefoldError | None, send: Send
    ) -> None:
        if isinstance(problem, PluginError):
            await self._send_error_event(ticket, coming, problem, send)
            await send({"type": "http.response.body", "body": b""})
        elif coming.watcher.is_open:
            await self._send_error_event(ticket, coming, problem or _too_short(coming.target), send)
        elif problem is None:
            await send({"type": "http.response.body", "body": coming.rest()})

    def _mark(self, ticket: Ticket, coming: UpstreamAnswer) -> None:
        """Add the marker to a reply that is here already, or let it be written into a stream."""
        dialect, text = ticket.dialect, ticket.marker
        if dialect is None or not text or not _is_readable(coming):
            return
        if coming.watcher.is_stream:
            coming.marks = MarkedStream(dialect, text)
        elif coming.is_ended:
            body = b"".join(coming.held)
            marked = mark_reply(body, dialect, text)
            if marked is not body:
                coming.held, coming.is_rewritten = [marked], True
                ticket.has_marked()

    async def _chunks(self, coming: UpstreamAnswer, *, holds_last: bool) -> AsyncGenerator[bytes, None]:
        """The chunks for the client, as they arrive. With `holds_last`, an answer that is not an event stream
        keeps back its last chunk until the next one or the end arrives: its end cannot be recognised
        otherwise, and it must not leave before the reply is stored.
        """
        holds_last = holds_last and not coming.watcher.is_stream
        while coming.held or not coming.is_ended:
            if not coming.is_ended and len(coming.held) <= holds_last:
                await coming.read()
            held = coming.held.pop() if holds_last and coming.held and not coming.is_ended else b""
            # Events that were read together leave together: the watcher has seen them all, so it may be at the end already.
            is_joint = coming.watcher.is_stream and len(coming.held) > 1
            ready = [b"".join(coming.held)] if is_joint else coming.held
            for chunk in ready:
                if allowed := coming.let_through(chunk):
                    yield allowed
            coming.held[:] = [held] if held else []

    async def _send_error_event(
        self, ticket: Ticket, coming: UpstreamAnswer, problem: RefoldError, send: Send
    ) -> None:
        """Send an error event of the client's format, unless part of an event is out. No final event follows,
        so that the client sees that the reply is incomplete.
        """
        if coming.events.is_between:
            held = coming.marks.rest() if coming.marks else b""
            await _send_chunk(send, held + errors.event(problem, ticket.shape, request_id=ticket.call_id))

    async def _send_joined_error(
        self, now: CurrentRound, joined: JoinedStream, problem: RefoldError, send: Send
    ) -> None:
        """Send an error event into a joined stream, which consists of whole events."""
        held, number = now.marks.rest() if now.marks else b"", joined.next_number
        event = errors.event(problem, now.ticket.shape, request_id=now.ticket.call_id, sequence=number)
        await _send_chunk(send, held + event)


def _is_readable(coming: UpstreamAnswer) -> bool:
    """Whether an answer is one of a model, and not compressed."""
    return coming.response.status < 300 and "content-encoding" not in coming.response.headers


def _counted_fields(body: bytes) -> bytes:
    return encode({name: value for name, value in FIELDS.decode(body).items() if name in COUNTED})


async def _send_chunk(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


def _too_short(target: Target) -> UpstreamUnavailable:
    return UpstreamUnavailable(
        f"{target.name} ended the stream before the reply was complete", hint="ask again"
    )


def _is_error(body: bytes) -> bool:
    """Whether the body of a successful answer is an error and no reply: some servers send one with a status of 200."""
    if len(body) > MAX_ERROR_BYTES or b'"error"' not in body:
        return False
    try:
        fields = FIELDS.decode(body)
    except DecodeError:
        return False
    replies = (bytes(fields.get(name, b"null")) for name in ("choices", "content", "output"))
    return bytes(fields.get("error", b"null")) != b"null" and all(one in (b"null", b"[]") for one in replies)


def _unusable(target: Target, status: int) -> UpstreamUnavailable:
    return UpstreamUnavailable(
        f"{target.name} answered the call after a recall with status {status}", hint="ask again"
    )


def _unavailable(target: Target, error: Exception) -> UpstreamUnavailable:
    if isinstance(error, TimeoutError):
        return UpstreamUnavailable(f"{target.name} did not answer in time", hint="ask again, or ask for less")
    if isinstance(error, aiohttp.ClientConnectorError):
        return UpstreamUnavailable(f"{target.name} cannot be reached", hint="check its url, and the network")
    return UpstreamUnavailable(
        f"{target.name} broke the connection", hint="it may have billed it all the same"
    )


# The backlog: exchanges that could not be stored when they happened

MAX_WAITING_BYTES = 64 * 1024 * 1024
"""Memory for waiting requests and replies: the size of the largest request. Above it the oldest are dropped,
and counted.
"""
DELETED = "a reply is not stored: its conversation was deleted meanwhile"
MAX_DROPPED = 100_000
"""Dropped exchanges that are remembered by a hash. Beyond it they are counted no more."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 5.0
"""Pauses between attempts: each is twice as long as the previous one."""
CLOSING_S = 2.0
"""Time that a stopping gateway spends on storing the backlog."""


class Exchange(Struct, frozen=True):
    """A request and its reply, if there is one, with all that is needed to store them."""

    host: OwnerConversations
    incoming: IncomingRequest
    terms: ConversationSettings
    upstream: str
    """The upstream that was asked last."""
    call_id: str
    handout: StateHandout
    """The ids that the answer handed out."""
    outcome: CallResult | None = None
    delivery: Delivery = Delivery()
    mark: bytes = b""
    """The hash of the whole history: a later request of the conversation contains it."""
    is_after_gap: bool = False
    """True if the request continues a history that only the provider has. It is then sent unchanged, and
    starts a branch once it is answered.
    """

    @property
    def size(self) -> int:
        return len(self.incoming.body) + (len(self.outcome.reply) if self.outcome else 0)

    async def store(self) -> tuple[bytes, ...]:
        """Store the exchange and return the hashes of its history.

        Raises:
            StoreError: the exchange, or part of it, could not be stored.
        """
        hosted = await self.host.take(self.incoming, self.terms, None, self.upstream, is_answered=True)
        if not hosted.is_stored:
            raise StoreError("the store does not accept the exchange yet")
        if self.outcome is None:
            return hosted.line.hashes
        live, size = hosted.live, hosted.made.sent.size
        # The client's own request was sent in full, and not the window that was made just now.
        made = structs.replace(hosted.made, note=SentWindow(size))
        root, held = self.incoming.root, self.incoming.held
        if root and not held and self.outcome.usage:
            held = max(0, self.outcome.usage.context - live.count_sent(made))
        await live.answered(made, self.outcome, self.call_id, held=held, delivery=self.delivery)
        await self.host.note_compactions(live, made, self.outcome, self.upstream)
        await self.handout.answered_late(
            StateRow(
                "", live.conversation.id, live.conversation.branch, self.call_id, size, root=root, held=held
            )
        )
        return hosted.line.hashes


class Backlog:
    """The exchanges of a gateway that wait to be stored, oldest first."""

    def __init__(self) -> None:
        self._storing: set[asyncio.Task[None]] = set()
        self._waiting: deque[Exchange] = deque()
        self._bytes = 0
        self._marks: Counter[bytes] = Counter()
        self._dropped: Counter[bytes] = Counter()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def dropped(self) -> int:
        """The number of exchanges that were dropped and that no client has sent again since."""
        return self._dropped.total()

    async def within(self, storing: Coroutine[Any, Any, None], limit_s: float) -> None:
        """Wait for `storing`, for `limit_s` at most. The task finishes even if the waiting caller is
        cancelled.
        """
        task = asyncio.create_task(storing)
        self._storing.add(task)
        task.add_done_callback(self._storing.discard)
        await asyncio.sleep(
            0
        )  # a fast disk is done in one step of the task; waiting for it takes longer than that
        if not task.done():
            await asyncio.wait({task}, timeout=limit_s)

    def add(self, exchange: Exchange) -> None:
        """Queue an exchange and start the worker."""
        self._waiting.append(exchange)
        self._bytes += exchange.size
        self._marks[exchange.mark] += 1
        while self._bytes > MAX_WAITING_BYTES and len(self._waiting) > 1:
            self._give_up("there is no more room in memory for it")
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())

    def not_kept(self, hashes: Collection[bytes]) -> int:
        """The number of waiting and dropped exchanges whose history is a prefix of this one."""
        if not self._waiting and not self._dropped:
            return 0
        return sum(self._marks[one] + self._dropped[one] for one in hashes)

    def note_stored(self, hashes: Sequence[bytes]) -> None:
        """Forget the dropped exchanges that a stored history holds, each with a message after it: its reply."""
        if self._dropped:
            for one in hashes[:-1]:
                self._dropped.pop(one, None)

    def exchange_with(self, owner: str, response: StateId) -> Exchange | None:
        """The waiting exchange whose answer handed out this id to the owner."""
        for one in reversed(self._waiting):
            if one.host.engine.owner == owner and one.handout.has_noted(response):
                return one
        return None

    async def drained(self) -> None:
        """Wait until nothing is being stored and nothing waits."""
        while tasks := {*self._storing, *({self._task} if self._task and not self._task.done() else ())}:
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """Try to store the rest, and log the number of exchanges that are lost."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.drained(), CLOSING_S)
        if self._task is not None:
            self._task.cancel()
        if count := len(self._waiting) + self.dropped:
            _log.error("%d exchanges were not stored and are lost: the store did not accept them", count)

    async def _work(self) -> None:
        pause_s = FIRST_PAUSE_S
        while self._waiting:
            exchange = self._waiting[0]
            try:
                hashes = await exchange.store()
            except NotFound:
                _log.info("%s", DELETED)
                self._remove(exchange)
            except Damaged as error:
                self._give_up(type(error).__name__, exchange)
            except StoreError:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            except RefoldError as error:
                self._give_up(type(error).__name__, exchange)
            else:
                pause_s = FIRST_PAUSE_S
                if not self._remove(exchange):
                    self._dropped -= Counter((exchange.mark,))  # it was dropped while it was stored
                self.note_stored(hashes)

    def _give_up(self, why: str, exchange: Exchange | None = None) -> None:
        exchange = exchange or self._waiting[0]
        if self._remove(exchange) and self.dropped < MAX_DROPPED:
            self._dropped[exchange.mark] += 1
        _log.error("an exchange was dropped, and is stored only if its client sends it again: %s", why)

    def _remove(self, exchange: Exchange) -> bool:
        """Remove the oldest exchange; False if it was dropped meanwhile."""
        if not self._waiting or self._waiting[0] is not exchange:
            return False
        self._waiting.popleft()
        self._bytes -= exchange.size
        self._marks -= Counter((exchange.mark,))  # removes entries that are zero
        return True
