"""The ASGI application of the gateway: dispatches the requests below `/v1/`.

Three calls carry a conversation and go through the engine; all others are passed on unchanged, so that a
client changes nothing but its base URL. Plain ASGI: there is no framework layer between the socket and the
relay.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec
from msgspec import Struct, structs
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from refold.config import ResolvedSettings, resolve, runtime_layer
from refold.config.layers import RUNTIME
from refold.engine.engine import Engine
from refold.engine.events import Event
from refold.gateway import errors, previous_response, upstreams
from refold.gateway.admission import LARGE_BYTES, Admission, return_memory_now
from refold.gateway.auth import send_answer
from refold.gateway.conversations import OwnerConversations
from refold.gateway.events import Events
from refold.gateway.exchange import Backlog, Exchange, Relay, Ticket
from refold.gateway.log import facts
from refold.gateway.marker import SIGN, without_markers
from refold.gateway.previous_response import previous_in
from refold.gateway.provider_state import (
    ProviderState,
    StateHandout,
    StateId,
    StateRequest,
    StateRow,
    read_call,
)
from refold.gateway.recall_rounds import RecallRounds
from refold.gateway.recognition import DecodedLine, find_earlier, known_bytes
from refold.gateway.request import (
    DIALECT_OF,
    IncomingRequest,
    Shape,
    Wishes,
    check_http,
    check_json,
    check_new,
    check_path,
    content_length,
    ignored_wishes,
    read_body,
    read_incoming,
    shape_of,
    wishes_of,
)
from refold.gateway.request_edits import additions_of, check_fits, read_by_additions, thinking_budget
from refold.gateway.summarisers import Authors
from refold.gateway.telemetry import PrometheusMetrics, Telemetry, counted_store
from refold.gateway.upstreams import Credentials, Forwarder, Target, Targets, WindowReports
from refold.model.dialect import DIALECTS
from refold.model.errors import (
    ConfigError,
    DoesNotFit,
    PluginError,
    RefoldError,
    Stopping,
    StoreError,
    WireError,
    error_location,
)
from refold.ports.models import Embedder
from refold.ports.store import Notifies, Store
from refold.text_work import run_text_work
from refold.wire.json_codec import FIELDS, NULL, read, word

if TYPE_CHECKING:
    from refold.stores.postgres.job_queue import JobQueue

_log = logging.getLogger("refold.gateway")
MIB = 1024 * 1024


_BEFORE_JSON = b" \t\r\n\xef\xbb\xbf"
"""Bytes before a JSON text that some parsers skip: white space, and a byte order mark."""
LOOK_S, TOLD_LOOK_S, MAX_LOOK_S = 0.5, 5.0, 0.5
"""Seconds after which the changes of an owner are read again, the same where the store tells of them, and the most seconds that
a request waits for that."""


class StoredChanges(Struct, frozen=True):
    """An owner's changes to the settings as the store had them, and when they were read."""

    saved: bytes | None
    read_at: float


class Gateway:
    """Serves requests that were admitted by `refold.gateway.auth`."""

    def __init__(
        self,
        store: Store,
        resolved: ResolvedSettings,
        targets: Targets,
        *,
        clock: Callable[[], float] = time.time,
        new_id: Callable[[], str] = lambda: uuid4().hex,
        embedder: Embedder | None = None,
        metrics: PrometheusMetrics | None = None,
        telemetry: Telemetry | None = None,
        jobs: JobQueue | None = None,
    ) -> None:
        self.jobs = jobs
        """The queue of the cluster's jobs; None if this process does all its work itself."""
        self._is_told = False
        """Whether the store tells this process of changed settings."""
        self._embedder, self.metrics, self._telemetry = embedder, metrics, telemetry
        store = counted_store(store, *[one for one in (metrics, telemetry) if one is not None])
        self.store, self.resolved, self.targets = store, resolved, targets
        self.now, self._new_id = clock, new_id
        self._forwarder, self._hosts = Forwarder(), dict[str, OwnerConversations]()
        self.events = Events(clock, new_id()[:8])
        self._state = ProviderState(store, clock)
        self.backlog = Backlog()
        self.admission = Admission(resolved.settings.server)
        self._changes: dict[str, StoredChanges] = {}
        self._relay, self.authors = (
            Relay(self._forwarder),
            Authors(self._forwarder, telemetry=telemetry, queue=jobs),
        )
        self.window_reports = WindowReports(self._forwarder)

    async def host(self, owner: str) -> OwnerConversations:
        """The owner's conversations, with the gateway's settings and the owner's changes to them."""
        if owner not in self._hosts:
            kept, saved = self.resolved.settings.store, await self.store.setting(owner, RUNTIME)
            engine = Engine(
                self.store,
                owner=owner,
                keeps_content=kept.content,
                keep_days=kept.keep_days,
                max_expired_share=kept.max_expired_share,
                embedder=self._embedder,
                clock=self.now,
                new_id=self._new_id,
                on_event=lambda event: self._on_event(owner, event),
            )
            made = OwnerConversations(engine, self._with_stored_changes(saved))
            made.off = await engine.switched_off()
            self._hosts.setdefault(owner, made)
            self._changes.setdefault(owner, StoredChanges(saved, time.monotonic()))
        await self._look_for_changes(owner)
        return self._hosts[owner]

    async def change(self, host: OwnerConversations, changed: ResolvedSettings) -> None:
        """Store an owner's changes to the settings, and use them from now on."""
        owner, saved = host.engine.owner, msgspec.json.encode(changed.runtime)
        await self.store.put_setting(owner, RUNTIME, saved, self.now())
        self._changes[owner] = StoredChanges(saved, time.monotonic())
        host.use(changed)

    async def _look_for_changes(self, owner: str) -> None:
        """Read the owner's changes again if that was not done for a while: another gateway on the same store
        may have changed them.
        """
        known, now = self._changes[owner], time.monotonic()
        if now - known.read_at < (TOLD_LOOK_S if self._is_told else LOOK_S):
            return
        self._changes[owner] = StoredChanges(known.saved, now)  # requests at the same time do not look too
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(MAX_LOOK_S):
                saved = await self.store.setting(owner, RUNTIME)
                self._hosts[owner].off = await self._hosts[owner].engine.switched_off()
            if saved != known.saved and self._changes[owner].saved == known.saved:
                self._changes[owner] = StoredChanges(saved, now)
                self._hosts[owner].use(self._with_stored_changes(saved))

    async def follow(self, store: Notifies) -> None:
        """Take over changes that other processes make, as the store tells of them."""
        async for notice in store.notices():
            self._is_told = True
            if notice.kind == "compaction" and self.jobs is not None:
                self.jobs.tell(notice.id)
            elif notice.kind == "setting":
                await self._take_change(notice.owner)
            elif notice.kind == "again":  # some may have been missed
                if self.jobs is not None:
                    self.jobs.tell()
                for owner in list(self._changes):
                    await self._take_change(owner)

    async def _take_change(self, owner: str) -> None:
        if owner in self._changes:
            self._changes[owner] = StoredChanges(self._changes[owner].saved, float("-inf"))
            await self._look_for_changes(owner)

    def _on_event(self, owner: str, event: Event) -> None:
        self.events.tell(owner, event, self._hosts[owner].resolved.settings.notify)

    def _with_stored_changes(self, saved: bytes | None) -> ResolvedSettings:
        if not saved:
            return self.resolved
        try:
            return resolve([*self.resolved.layers, runtime_layer(msgspec.json.decode(saved))])
        except (RefoldError, msgspec.DecodeError):
            _log.warning("stored changes of the settings are no longer valid, and are ignored")
            return self.resolved

    async def sweep(self) -> None:
        """Delete expired content and finish compactions of crashed processes, for every owner in the store."""
        for owner in await self.store.owners():
            await (await self.host(owner)).engine.sweep()
            await self._state.forget_oldest(owner)

    async def close(self) -> None:
        """Store what waits, and stop the summaries in progress: another process can take them at once."""
        await self.window_reports.close()
        await self.backlog.close()
        try:
            await asyncio.gather(*(host.engine.rest() for host in self._hosts.values()))
        finally:
            # After the summaries: a connection that is closed under one would count as a failure of the model.
            await self._forwarder.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request below `/v1/`. An error before an upstream has answered is sent in the client's
        format.
        """
        shape = shape_of(scope["path"], speaks_anthropic=b"anthropic-version" in dict(scope["headers"]))
        call_id, began, status = self._new_id(), time.perf_counter(), 0
        tickets: list[Ticket] = []
        is_traced = self._telemetry and scope["method"] == "POST" and scope["path"] in DIALECT_OF
        span = self._telemetry.begin(scope, call_id) if self._telemetry and is_traced else None

        def send_and_keep_status(message: Message) -> Awaitable[None]:
            nonlocal status
            status = message.get("status", status)
            return send(message)

        try:
            check_path(scope["path"])
            check_http(scope["headers"])
            await self._serve(scope, receive, send_and_keep_status, shape, call_id, tickets)
        except ClientDisconnect:
            pass
        except asyncio.CancelledError:  # the gateway is being stopped: see `RequestsInProgress`
            if not status:
                await send_answer(send_and_keep_status, errors.answer(Stopping(), shape, request_id=call_id))
        except Exception as error:  # noqa: BLE001  # every failure is sent in the client's own format
            if not isinstance(error, RefoldError):
                _log.error("a request failed: %s", error_location(error))
            errors.log_store_failure(error)
            if not status:
                await send_answer(send_and_keep_status, errors.answer(error, shape, request_id=call_id))
        finally:
            if self._telemetry and span:
                model, upstream, action = tickets[-1].route if tickets else ("", "", "failed")
                self._telemetry.end(span, model=model, upstream=upstream, action=action, status=status)
        if not _log.isEnabledFor(logging.INFO):
            return
        took_ms = round(1_000 * (time.perf_counter() - began), 1)
        done = [fact for ticket in tickets for fact in ticket.facts().items()]
        line = facts(status=status, ms=took_ms, **dict(done), receipt=call_id)
        _log.info("%s %s", scope["method"], scope["path"], extra=line)

    async def _serve(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        shape: Shape,
        call_id: str,
        tickets: list[Ticket],
    ) -> None:
        """Answer a request. Its ticket is added to `tickets`, for the log, as soon as there is one."""
        limits = self.resolved.settings.server
        owner = (scope.get("state") or {}).get("owner", "")
        with self.admission.enter(owner, content_length(scope["headers"])) as place:
            body = await read_body(scope, receive, max_bytes=limits.max_body_mb * MIB, count=place.grow)
            path = scope["path"]
            if path == upstreams.PATH and scope["method"] == "GET" and len(self.targets) > 1:
                await self._list_models(scope, send, is_anthropic=shape == "anthropic")
                return
            began = time.perf_counter()
            ticket = await self._ticket(scope, body, path, shape, call_id)
            ticket.added_s = time.perf_counter() - began
            tickets.append(ticket)
            async with cancel_on_disconnect(receive):
                await self._relay.serve(ticket, send)

    async def _list_models(self, scope: Scope, send: Send, *, is_anthropic: bool) -> None:
        wanted = "anthropic" if is_anthropic else "chat"
        asked = [one for one in self.targets if wanted in one.formats]
        credentials = Credentials(
            header_texts(scope), "", self.targets.home_of_keys(asked or [*self.targets])
        )
        body = await upstreams.list_models(self._forwarder, asked, credentials, is_anthropic=is_anthropic)
        await send_answer(send, errors.ErrorResponse(200, body, (("content-type", "application/json"),)))

    async def _ticket(self, scope: Scope, body: bytes, path: str, shape: Shape, call_id: str) -> Ticket:
        """The prepared call: the body to send and the upstreams to try."""
        headers, state = header_texts(scope), scope.get("state") or {}
        if path in DIALECT_OF and await run_text_work(len(body), body.__contains__, SIGN):
            key = DIALECTS[DIALECT_OF[path]].messages_key
            body = await run_text_work(len(body), without_markers, body, key)
        owner = state.get("owner", "")
        incoming, seen, wishes, model = None, None, Wishes(), ""
        if path in DIALECT_OF and scope["method"] == "POST":
            named_headers = dict(headers)
            incoming, seen = await self._read(path, named_headers, body, owner)
            wishes = incoming.wishes if incoming is not None else wishes_of(named_headers)
        if incoming is not None:
            model = incoming.model
        wanted = DIALECT_OF.get(path) or ("anthropic" if shape == "anthropic" else None)
        asked = StateRequest(
            owner,
            has_key=bool(state.get("key_id")),
            method=scope["method"],
            path=scope.get("raw_path", path.encode()).decode("latin-1").partition("?")[0],
            body=body,
            content_types=tuple(value for name, value in headers if name == "content-type"),
        )
        call = read_call(asked.method, asked.path)
        named = call.opens if call else None
        if named is None and incoming and incoming.continues:
            named = previous_in(incoming)
        made_at = await self._made_at(owner, named) if named and not wishes.upstream else ""
        if not model:
            must_read = not wishes.upstream and not made_at and self.targets.are_told_apart(wanted)
            is_json = path in DIALECT_OF and scope["method"] == "POST"
            read_model = partial(_model, is_json=is_json, must_read=must_read)
            model = await run_text_work(len(body), read_model, body)
        home, targets = self.targets.choose_for_state(model, wanted, wishes.upstream, made_at)
        credentials = Credentials(headers, scope["query_string"].decode("latin-1"), home)
        ticket = Ticket(
            call_id=call_id,
            method=asked.method,
            path=asked.path,
            credentials=credentials,
            handout=StateHandout(
                self._state, asked, call, credentials, incoming.fields if incoming else None
            ),
            body=body,
            model=model,
            targets=await self._state.admit(asked, targets, credentials),
            shape=shape,
            backlog=self.backlog,
            owner=owner,
        )
        if incoming is not None:
            ticket.name_fault = incoming.name_fault
            ticket.ignored = ignored_wishes(name for name, _ in headers)
            await self._take(ticket, incoming, seen, owner)
        elif path in DIALECT_OF:
            ticket.action = "unparsed"
        return ticket

    async def _made_at(self, owner: str, which: StateId) -> str:
        """The upstream that made the object that a call names; empty if unknown."""
        try:
            kept = await self._state.find(owner, which) if len(self.targets) > 1 else None
        except StoreError:
            return ""  # `admit` refuses the call if the owner matters
        return kept.upstream if kept else ""

    async def _read(
        self, path: str, headers: dict[str, str], body: bytes, owner: str
    ) -> tuple[IncomingRequest | None, DecodedLine | None]:
        """Read a call that carries a conversation, within the limits, and its messages. Each is None if it
        cannot be read.
        """
        server, host = self.resolved.settings.server, self._hosts.get(owner)
        limits = {"max_bytes": server.max_body_mb * MIB, "max_depth": server.max_depth}

        def check_and_read() -> tuple[IncomingRequest | None, DecodedLine | None]:
            try:
                incoming = read_incoming(path, headers, body)
            except WireError:
                check_json(body, **limits)
                return None, None
            name, array = incoming.line_name, incoming.array or b""
            lines = host.table.lines(name, array, incoming.dialect) if host else ()
            earlier = find_earlier(lines, name, array)
            known = known_bytes(earlier, array) if earlier else 0
            check_new(body, incoming.fields, incoming.dialect.messages_key, known, **limits)
            if host is None or not array or incoming.continues or incoming.wishes.is_off:
                return incoming, None
            seen = None
            with suppress(WireError):  # raised again when the request is taken in
                seen = host.read(incoming, array, earlier)
            if len(body) >= LARGE_BYTES:
                return_memory_now()
            return incoming, seen

        return await run_text_work(len(body), check_and_read)

    async def _take(
        self, ticket: Ticket, incoming: IncomingRequest, seen: DecodedLine | None, owner: str
    ) -> None:
        """Add a request to its conversation; if that fails the request is sent on unchanged."""
        if incoming.array is None or incoming.wishes.is_off:
            ticket.action = "off" if incoming.wishes.is_off else "passed"
            return
        try:
            await self._host(ticket, incoming, seen, await self.host(owner))
        except WireError:
            ticket.action, ticket.exchange = "unparsed", None
        except StoreError as error:
            _log.warning("a request could not be stored: %s", error.located)
            ticket.action, ticket.handout.answers = "not-kept", StateRow(call=ticket.call_id)
        except (ConfigError, DoesNotFit, PluginError):
            raise  # a wish that cannot be met, a request that cannot be made smaller, or a plugin that ends it
        except Exception as error:  # noqa: BLE001  # an internal failure must not stop a request that the provider would accept
            _log.error(
                "a request could not be processed, and is sent on unchanged: %s", error_location(error)
            )
            ticket.action, ticket.exchange = "failed", None

    async def _host(
        self, ticket: Ticket, incoming: IncomingRequest, seen: DecodedLine | None, host: OwnerConversations
    ) -> None:
        settings = host.resolved.settings
        if not settings.compaction.enabled:
            ticket.action = "off"
            return
        is_gap, is_continued = False, incoming.continues
        if incoming.continues:
            known = await previous_response.whole(host.engine, self._state, self.backlog, incoming)
            if is_gap := known is None:
                # Part of the history did not pass through here: only the provider can continue it.
                known = await previous_response.after_gap(self._state, host.engine.owner, incoming)
            if known is None:
                return
            incoming, seen = known, None
        if await host.is_off(incoming):
            ticket.action = "off"
            return
        # Without content in the store there is nothing to bring back.
        if settings.compaction.recall_tool and settings.store.content and not is_gap:
            offer = await host.hidden.offer(incoming, seen, host.read, is_continued=is_continued)
            if offer is not None:
                incoming, seen, ticket.edits = offer.incoming, offer.seen, offer.edits
                ticket.rounds = RecallRounds(offer, host.hidden, partial(self._next_round, host))
        await self._take_in(ticket, incoming, seen, host, is_gap=is_gap)

    async def _next_round(
        self, host: OwnerConversations, ticket: Ticket, incoming: IncomingRequest, target: Target
    ) -> Ticket:
        """The follow-up of a call after a recall that the gateway ran: one more request of the same conversation."""
        began, others = time.perf_counter(), [one for one in ticket.targets if one is not target]
        further = Ticket(
            call_id=self._new_id(),
            method=ticket.method,
            path=ticket.path,
            credentials=ticket.credentials,
            handout=ticket.handout.another(),
            body=incoming.body,
            model=ticket.model,
            targets=[target, *others],
            shape=ticket.shape,
            backlog=self.backlog,
            owner=ticket.owner,
        )
        further.rounds, further.edits = ticket.rounds, ticket.edits
        further.name_fault, further.ignored = ticket.name_fault, ticket.ignored
        further.summary_wait = ticket.summary_wait  # it is one request to the client
        await self._take_in(further, incoming, None, host)
        further.added_s = time.perf_counter() - began
        return further

    async def _take_in(
        self,
        ticket: Ticket,
        incoming: IncomingRequest,
        seen: DecodedLine | None,
        host: OwnerConversations,
        *,
        is_gap: bool = False,
    ) -> None:
        """Add a request to its branch, and give the ticket the window to send."""
        target, settings = ticket.targets[0], host.resolved.settings
        added = await run_text_work(read_by_additions(incoming, settings), additions_of, incoming, settings)
        override = incoming.wishes.window or host.resolved.settings.compaction.window or target.window
        reported = None
        if override is None:  # an override comes first, so the upstream need not be asked
            reported = await self.window_reports.window(target, incoming.model, ticket.credentials)
        terms = host.terms(
            incoming.model,
            incoming.dialect.name,
            window=target.window,
            reported=reported,
            url=target.url,
            alternates=target.alternates,
            wishes=incoming.wishes,
            max_output=incoming.max_output,
            thinking_budget=thinking_budget({**incoming.fields, **added.fields}),
            held=incoming.held,
        )
        author = self.authors.author(host, terms, target, ticket.credentials)
        queue = self.authors.queue(host, target, ticket.credentials) if author else None
        ticket.exchange = Exchange(host, incoming, terms, target.name, ticket.call_id, ticket.handout)
        if is_gap:
            ticket.exchange = structs.replace(ticket.exchange, is_after_gap=True)
            ticket.handout.answers = StateRow(call=ticket.call_id)
            return
        hosted = await host.take(
            incoming, terms, author, target.name, seen, queue=queue, wait=ticket.summary_wait
        )
        check_fits(hosted)
        await ticket.host(incoming, hosted, added)


class cancel_on_disconnect:  # noqa: N801  # reads as a verb: `async with cancel_on_disconnect(receive)`
    """Cancel the body of the `async with` block if the client disconnects: the provider would bill an unread
    reply.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._left = False

    async def __aenter__(self) -> None:
        self._task = asyncio.current_task()
        self._watch = asyncio.create_task(self._wait())

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._left = True
        if self._task is not None:
            self._task.cancel()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self._watch.cancel()
        del self._watch  # its exception refers to this object: a cycle would wait for the garbage collector
        if self._left and kind is asyncio.CancelledError:
            raise ClientDisconnect
        return False


def header_texts(scope: Scope) -> list[tuple[str, str]]:
    try:
        return [(name.decode("latin-1"), value.decode()) for name, value in scope["headers"]]
    except UnicodeDecodeError:
        return [(name.decode("latin-1"), _text(value)) for name, value in scope["headers"]]


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _model(body: bytes, *, is_json: bool, must_read: bool) -> str:
    """The model that a request names; empty if it names none. `is_json` says that the call takes nothing but
    a JSON object; a body of others is one if it begins like one.

    Raises:
        WireError: the body is not valid JSON, and its model has to be known (`must_read`): it may be meant for
            one upstream only, and another must not see it.
    """
    if not is_json and not body.lstrip(_BEFORE_JSON).startswith(b"{"):
        return ""
    try:
        return word(read(FIELDS, body).get("model", NULL))
    except WireError as error:
        if not must_read:
            return ""
        raise WireError(
            f"the body is not valid JSON: {error.message}",
            hint="it was sent to no upstream, because its model cannot be read: send it whole, or name one with X-Refold-Upstream",
        ) from None
