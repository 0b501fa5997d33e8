"""`GET /refold/events`: what happens to the caller's conversations, as it happens.

One idea: a stream is only a place in the owner's ring of events that moves on. It sends what is new, a comment now and then so that
nobody in between takes it for dead, and it ends with its listener, with the gateway, or with the key that it was opened by.

    id: 5f0c…-12
    event: compaction_end
    data: {"event": "compaction_end", "conversation": "support-42", "before": {"tokens": 9000, ...}, ...}
"""

from __future__ import annotations

from contextlib import suppress

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from refold.gateway.app import leaving
from refold.gateway.events import Channel, Events
from refold.model.errors import StoreError
from refold.ports.store import Store

PATH = "/refold/events"
HEARTBEAT_S = 15.0
"""Proxies and firewalls cut what says nothing for 30 to 60 seconds."""
BEAT = b":\n\n"
HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # some proxies hold streams back otherwise
    (b"x-content-type-options", b"nosniff"),
)


class EventStream:
    """The page, as a plain ASGI application. A client that comes back says `Last-Event-ID`."""

    def __init__(self, events: Events, store: Store, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._events, self._store, self._heartbeat_s = events, store, heartbeat_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        owner, key_id = scope["state"]["owner"], scope["state"]["key_id"]
        channel = self._events.channel(owner)
        last = next((value for name, value in scope["headers"] if name == b"last-event-id"), b"")
        place = channel.place(last.decode("latin-1"))  # before anything is waited for
        await send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})
        if scope["method"] == "GET":
            with suppress(ClientDisconnect):
                async with leaving(receive):
                    await self._follow(channel, place, key_id, send)
        await send({"type": "http.response.body", "body": b""})

    async def _follow(self, channel: Channel, place: int, key_id: str, send: Send) -> None:
        await _write(send, BEAT)  # a client knows now that it is heard
        while await self._may_hear(key_id):
            news = channel.since(place)
            place = news.place
            for line in news.lines:
                await _write(send, line)
            if channel.is_closed:
                return
            if not await channel.wait(place, self._heartbeat_s):
                await _write(send, BEAT)

    async def _may_hear(self, key_id: str) -> bool:
        """Would the listener still be let in? A stream outlives the moment at which that was asked."""
        try:
            if not key_id:
                return not await self._store.has_keys()
            kept = await self._store.find_key_owner(key_id)
        except StoreError:
            return False  # who comes back is told what is wrong
        return kept is not None and kept.revoked_at is None


async def _write(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})
