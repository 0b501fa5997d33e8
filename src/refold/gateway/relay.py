"""One call from beginning to end: sent, made smaller where the provider refuses it, handed on as it comes, and kept.

One idea: until the first word has reached the client, anything can be asked for again; from then on bytes only pass by. So an
answer is held for as long as it says nothing, and what it says then is never changed. One that breaks off is kept as what it is,
and the client is told so: by its format's own error where that can be said, and by a connection that ends without an end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial

import aiohttp
from msgspec import Struct, field
from starlette.types import Send

from refold.gateway import errors
from refold.gateway.additions import is_only_usage
from refold.gateway.forwarding import Forwarder, request_headers, response_headers
from refold.gateway.state_ids import Source, ids_in_answer, ids_in_events
from refold.gateway.targets import Target
from refold.gateway.ticket import Ticket
from refold.gateway.watching import EVENTS, Watcher, WholeEvents
from refold.model.errors import ConfigError, RecoverySpent, UpstreamUnavailable
from refold.text_work import run_text_act, run_text_work

MAX_HELD_BYTES = 1024 * 1024
"""Of an answer that is read before the client gets any of it: an error, or a reply that is not streamed. Larger ones are handed on
as they come."""
MAX_NOTED_BYTES = 64 * 1024 * 1024
"""Likewise of one in which ids are to be noted before they leave: a reply may hold pictures."""
MAX_EVENT_BYTES = 8 * 1024 * 1024
"""Likewise of one event of a stream: the first repeats the instructions and the tools of the request."""
HOLD_S = 1.0
"""How long an answer that has begun and says nothing is held: errors come at once, and clients wait for a sign of life."""
BUSY = frozenset((429, 500, 502, 503, 504, 529))
"""Statuses after which another upstream is asked, where one is named."""
_log = logging.getLogger("refold.gateway")
_BROKEN = (aiohttp.ClientError, OSError)
"""What reading from an upstream raises; a TimeoutError is an OSError."""


class Coming(Struct):
    """An answer whose headers are there, and what of its body was read already."""

    target: Target
    response: aiohttp.ClientResponse
    watcher: Watcher
    held: list[bytes] = []
    is_ended: bool = False
    events: WholeEvents = field(default_factory=WholeEvents)
    source: Source | None = None
    """How its ids are found, where they are noted before the client gets them."""
    is_stream: bool = False

    async def read(self) -> int:
        """Read what is there, and say how much it was."""
        chunk = await self.response.content.readany()
        self.is_ended = not chunk
        if chunk:
            self.held.append(chunk)  # first: whoever is stopped while it is read has it all the same
            size = self.watcher.pending + len(chunk) if self.watcher.is_stream else 0
            await run_text_act(size, self.watcher.feed, chunk)
        return len(chunk)

    def let_through(self, chunk: bytes) -> bytes:
        """What the client may have of it by now: of a stream that is read, whole events that it asked for."""
        if not (self.watcher.is_stream or (self.source and self.is_stream)):
            return chunk
        return self.events.let_through(chunk)

    def rest(self) -> bytes:
        """What is left when nothing more comes."""
        return self.events.rest()

    def close(self) -> None:
        """Where nobody listens any more, the provider should stop."""
        if not self.is_ended:
            self.response.close()


class Relay:
    """Sends calls on and their answers back."""

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder
        self._refused = set[str]()
        """Fallbacks that were said to have no key."""

    async def serve(self, ticket: Ticket, send: Send) -> None:
        """Answer a call. Whoever stops waiting for it has it stopped at the provider, too.

        Raises:
            UpstreamUnavailable: no upstream answered; nothing was sent to the client yet.
        """
        try:
            coming = await self._answer(ticket)
        except asyncio.CancelledError:
            await ticket.keep(Watcher(ticket.dialect))  # it may be on the bill all the same
            raise
        try:
            await self._hand_on(ticket, coming, send)
        finally:
            coming.close()

    async def _answer(self, ticket: Ticket) -> Coming:
        """The answer that the client will get: the first one that is not a refusal as too long."""
        while True:
            coming = await self._first(ticket)
            try:
                refusal = await self._refusal(ticket, coming)
                if refusal is None:
                    await self._note_whole(ticket, coming)
                    return coming
                await ticket.shrink(coming.response.status, refusal)
            except RecoverySpent:
                return coming
            except BaseException as error:
                await self._lost(ticket, coming)
                if isinstance(error, _BROKEN):
                    raise _unavailable(coming.target, error) from None
                raise
            coming.close()

    async def _lost(self, ticket: Ticket, coming: Coming) -> None:
        """An answer that had begun will not reach the client."""
        coming.close()
        await ticket.keep(coming.watcher, coming.response.status)

    async def _first(self, ticket: Ticket) -> Coming:
        """The first upstream that answers, of those that may be asked."""
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

    async def _ask(self, ticket: Ticket, target: Target) -> Coming:
        try:
            headers = await request_headers(target, ticket.credentials)
        except ConfigError:  # the operator's to mend, not the client's
            raise UpstreamUnavailable(
                f"the key of {target.name} is not to be had", hint="its key command fails on the gateway"
            ) from None
        address = target.address(ticket.path, ticket.credentials.query_for(target))
        try:
            body = await ticket.body_for(target)
            response = await self._forwarder.send(target, ticket.method, address, headers, body)
        except _BROKEN as error:
            raise _unavailable(target, error) from None
        if not 200 <= response.status < 600:  # nothing that could be handed on
            response.close()
            raise UpstreamUnavailable(
                f"{target.name} answered with a status that is none", hint="check its url"
            )
        if response.status in (401, 403):
            self._warn_without_key(ticket, target)
        is_read = response.status < 400 and "content-encoding" not in response.headers
        watcher = Watcher(ticket.dialect if is_read else None, response.content_type)
        source = ticket.handout.source_at(target) if is_read else None
        is_hidden = is_only_usage if ticket.strips_usage else None
        events = WholeEvents(MAX_EVENT_BYTES, is_hidden) if source else WholeEvents(is_hidden=is_hidden)
        is_stream = response.content_type.startswith(EVENTS)
        return Coming(
            target,
            response,
            watcher,
            events=events,
            source=source,
            is_stream=is_stream,
        )

    def _warn_without_key(self, ticket: Ticket, target: Target) -> None:
        """Say once of a fallback that it was asked without any key, although the client had sent one, and refuses that."""
        sent = ticket.credentials
        is_without = target is not ticket.targets[0] and target.key is None
        if is_without and sent.is_sent and not sent.go_to(target) and target.name not in self._refused:
            self._refused.add(target.name)
            _log.warning(
                "the fallback %s wants a key: name one in its settings, or say pass_key = true to send the client's",
                target.name,
            )

    async def _refusal(self, ticket: Ticket, coming: Coming) -> bytes | None:
        """What an upstream says against the call, where something can still be done about it."""
        if not ticket.can_shrink:
            return None
        if coming.response.status >= 400:
            await self._hold(coming, lambda: False, None)
            return b"".join(coming.held)
        if not coming.watcher.is_stream:
            if not ticket.is_stream:  # else it comes in some way that is not ours, and somebody waits for it
                await self._hold(coming, lambda: False, None)
            return None
        await self._hold(coming, lambda: coming.watcher.has_begun or coming.watcher.is_over, HOLD_S)
        return coming.watcher.failure if not coming.watcher.has_begun else None

    async def _note_whole(self, ticket: Ticket, coming: Coming) -> None:
        """Note the ids in an answer that is not streamed, before any of it leaves."""
        if coming.source is None or coming.is_stream:
            return
        await self._hold(coming, lambda: False, None, MAX_NOTED_BYTES)
        if coming.is_ended:
            body = b"".join(coming.held)
            read = partial(ids_in_answer, coming.source, body, is_stored=ticket.handout.is_stored)
            found = await run_text_work(len(body), lambda: [*read()])
            await ticket.handout.note(found, coming.target)

    async def _hold(
        self,
        coming: Coming,
        is_enough: Callable[[], bool],
        wait_s: float | None,
        most: int = MAX_HELD_BYTES,
    ) -> None:
        """Read on until there is enough, the answer ends, or it takes too long or too much."""
        size = 0
        try:
            async with asyncio.timeout(wait_s):
                while not (coming.is_ended or is_enough()) and size <= most:
                    size += await coming.read()
        except TimeoutError as error:
            if isinstance(error, aiohttp.ServerTimeoutError):
                raise

    async def _hand_on(self, ticket: Ticket, coming: Coming, send: Send) -> None:
        response, watcher = coming.response, coming.watcher
        if coming.is_ended:
            await ticket.keep(watcher, response.status)  # what a client gets is kept
        came = response_headers(response.raw_headers, has_length=not watcher.is_stream)
        headers = [*came, *ticket.told(coming.target.name)]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        problem: UpstreamUnavailable | None = None
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
                    await _pass_on(send, chunk)
        except _BROKEN as error:
            problem = _unavailable(coming.target, error)
        finally:
            await ticket.keep(watcher, response.status)
        if watcher.is_open:
            await self._say_broken(ticket, coming, problem or _too_short(coming.target), send)
        elif problem is None:
            await send({"type": "http.response.body", "body": coming.rest()})

    async def _chunks(self, coming: Coming, *, holds_last: bool) -> AsyncGenerator[bytes, None]:
        """What the client gets, as it comes. Where nothing in an answer tells its end, as in one that is not a stream of events,
        `holds_last` keeps back the last piece until the next one or the end is there: it must not leave before the reply is
        stored.
        """
        holds_last = holds_last and not coming.watcher.is_stream
        while coming.held or not coming.is_ended:
            if not coming.is_ended and len(coming.held) <= holds_last:
                await coming.read()
            held = coming.held.pop() if holds_last and coming.held and not coming.is_ended else b""
            for chunk in coming.held:
                if allowed := coming.let_through(chunk):
                    yield allowed
            coming.held[:] = [held] if held else []

    async def _say_broken(
        self, ticket: Ticket, coming: Coming, problem: UpstreamUnavailable, send: Send
    ) -> None:
        """The format's own error, unless half an event is out already; there is no end after it, so nobody thinks it whole."""
        if coming.events.is_between:
            await _pass_on(send, errors.event(problem, ticket.shape, request_id=ticket.call_id))


async def _pass_on(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


def _too_short(target: Target) -> UpstreamUnavailable:
    return UpstreamUnavailable(
        f"{target.name} ended the stream before the reply was complete", hint="ask again"
    )


def _unavailable(target: Target, error: Exception) -> UpstreamUnavailable:
    if isinstance(error, TimeoutError):
        return UpstreamUnavailable(f"{target.name} did not answer in time", hint="ask again, or ask for less")
    if isinstance(error, aiohttp.ClientConnectorError):
        return UpstreamUnavailable(f"{target.name} cannot be reached", hint="check its url, and the network")
    return UpstreamUnavailable(
        f"{target.name} broke the connection", hint="it may have billed it all the same"
    )
