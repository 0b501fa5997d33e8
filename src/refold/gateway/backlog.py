"""The backlog: exchanges that could not be stored when they happened.

The gateway serves requests even if its store is locked, full or unreachable. Such exchanges wait in memory
and are stored in their order as soon as the store accepts them: first the new messages, then the reply.
Storing is idempotent, because messages are found by their hashes and replies by the id of their call.

Waiting exchanges are lost if the process is killed, so the gateway reports them in `/readyz`, in
`/refold/status` and in the next response of the same conversation.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Collection, Coroutine
from contextlib import suppress
from typing import Any

from msgspec import Struct, structs

from refold.engine.settings import ConversationSettings
from refold.engine.state import Sent
from refold.gateway.conversations import OwnerConversations
from refold.gateway.provider_state import StateHandout, StateId, StateRow
from refold.gateway.request import Incoming
from refold.gateway.response_tap import CallResult
from refold.model.errors import Damaged, NotFound, RefoldError, StoreError

MAX_BYTES = 64 * 1024 * 1024
"""Memory for waiting requests and replies: the size of the largest request. Above it the oldest are dropped,
and counted.
"""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 5.0
"""Pauses between attempts: each is twice as long as the previous one."""
CLOSING_S = 2.0
"""Time that a stopping gateway spends on storing the backlog."""

_log = logging.getLogger("refold.gateway")


class Exchange(Struct, frozen=True):
    """A request and its reply, if there is one, with all that is needed to store them."""

    host: OwnerConversations
    incoming: Incoming
    terms: ConversationSettings
    upstream: str
    """The upstream that was asked last."""
    call_id: str
    handout: StateHandout
    """The ids that the answer handed out."""
    outcome: CallResult | None = None
    mark: bytes = b""
    """The hash of the whole history: a later request of the conversation contains it."""
    is_after_gap: bool = False
    """True if the request continues a history that only the provider has. It is then sent unchanged, and
    starts a branch once it is answered.
    """

    @property
    def size(self) -> int:
        return len(self.incoming.body) + (len(self.outcome.reply) if self.outcome else 0)

    async def store(self) -> None:
        """
        Raises:
            StoreError: the exchange, or part of it, could not be stored.
        """
        hosted = await self.host.take(self.incoming, self.terms, None, self.upstream, is_answered=True)
        if not hosted.is_stored:
            raise StoreError("the store does not accept the exchange yet")
        if self.outcome is None:
            return
        live, size = hosted.live, hosted.made.sent.size
        # The client's own request was sent in full, and not the window that was made just now.
        made = structs.replace(hosted.made, note=Sent(size))
        root, held = self.incoming.root, self.incoming.held
        if root and not held and self.outcome.usage:
            held = max(0, self.outcome.usage.context - live.count_sent(made))
        await live.answered(made, self.outcome, self.call_id, held=held)
        await self.host.note_compactions(live, made, self.outcome, self.upstream)
        await self.handout.answered_late(
            StateRow(
                "", live.conversation.id, live.conversation.branch, self.call_id, size, root=root, held=held
            )
        )


class Backlog:
    """The exchanges of a gateway that wait to be stored, oldest first."""

    def __init__(self) -> None:
        self._storing: set[asyncio.Task[None]] = set()
        self._waiting: deque[Exchange] = deque()
        self._bytes, self.given_up = 0, 0
        self._marks: Counter[bytes] = Counter()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    async def within(self, storing: Coroutine[Any, Any, None], limit_s: float) -> None:
        """Wait for `storing`, for `limit_s` at most. The task finishes even if the waiting caller is
        cancelled.
        """
        task = asyncio.create_task(storing)
        self._storing.add(task)
        task.add_done_callback(self._storing.discard)
        await asyncio.wait({task}, timeout=limit_s)

    def add(self, exchange: Exchange) -> None:
        """Queue an exchange and start the worker."""
        self._waiting.append(exchange)
        self._bytes += exchange.size
        self._marks[exchange.mark] += 1
        while self._bytes > MAX_BYTES and len(self._waiting) > 1:
            self._give_up("there is no more room in memory for it")
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())

    def waiting_for(self, hashes: Collection[bytes]) -> int:
        """The number of waiting exchanges whose history is a prefix of this one."""
        return sum(self._marks[one] for one in hashes) if self._waiting else 0

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
        if self._waiting:
            _log.error(
                "%d exchanges were not stored and are lost: the store did not accept them", len(self._waiting)
            )

    async def _work(self) -> None:
        pause_s = FIRST_PAUSE_S
        while self._waiting:
            exchange = self._waiting[0]
            try:
                await exchange.store()
            except (NotFound, Damaged) as error:
                self._give_up(type(error).__name__, exchange)
            except StoreError:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            except RefoldError as error:
                self._give_up(type(error).__name__, exchange)
            else:
                pause_s = FIRST_PAUSE_S
                self._remove(exchange)

    def _give_up(self, why: str, exchange: Exchange | None = None) -> None:
        self._remove(exchange or self._waiting[0])
        self.given_up += 1
        _log.error("an exchange is lost and will not be stored: %s", why)

    def _remove(self, exchange: Exchange) -> None:
        """Remove the oldest exchange, unless it was dropped meanwhile."""
        if self._waiting and self._waiting[0] is exchange:
            self._waiting.popleft()
            self._bytes -= exchange.size
            self._marks[exchange.mark] -= 1
            self._marks += Counter()  # removes entries that are zero
