"""Chooses the model that writes the summaries of a conversation behind the gateway.

Unless the operator names models, a conversation is summarised by its own model, at the same upstream and with
the same key as the call itself, so that its content reaches no further party. The client's key is held in
memory while its conversation is in use, and goes to no other host.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Mapping

import aiohttp
from msgspec import structs

from refold.engine.settings import (
    NATIVE,
    ConversationSettings,
    is_native,
    plugin_summariser,
    writer_for,
    writes_with_model,
)
from refold.engine.summary_jobs import FunctionSummariser
from refold.gateway.conversations import OwnerConversations
from refold.gateway.request import DIALECT_OF
from refold.gateway.telemetry import Telemetry
from refold.gateway.upstreams import KEYS, Credentials, Forwarder, Target
from refold.model.dialect import DIALECTS, Dialect
from refold.model.message import DialectName
from refold.ports.models import Summariser, Upstream
from refold.ports.records import SessionOrder, SummaryOrder
from refold.ports.store import SummaryQueue
from refold.summarisers import ModelSummariser, SummaryWriter
from refold.tokens.counters import counter_for
from refold.upstreams.http import Connection, HttpUpstream
from refold.upstreams.provider import REAL_PACE, Provider, ProviderKey, complete

MOST = 512
"""Size of the cache of summarisers: one for each model and key in recent use."""
ASK_S = 5.0
"""Seconds for an upstream to say whether it wants a key."""


class UpstreamQueue:
    """The queue for the summaries of conversations with one upstream: a worker asks the same."""

    def __init__(self, queue: SummaryQueue, upstream: str) -> None:
        self._queue, self._upstream = queue, upstream
        self.is_queued, self.watch = queue.is_queued, queue.watch

    async def order_summary(self, order: SummaryOrder) -> None:
        await self._queue.order_summary(structs.replace(order, upstream=self._upstream))

    async def order_session(self, order: SessionOrder) -> None:
        await self._queue.order_session(structs.replace(order, upstream=self._upstream))


class Authors:
    """Makes summarisers, and caches those used last."""

    def __init__(
        self,
        forwarder: Forwarder,
        environ: Mapping[str, str] = os.environ,
        *,
        telemetry: Telemetry | None = None,
        queue: SummaryQueue | None = None,
    ) -> None:
        self._forwarder, self._environ, self._telemetry = forwarder, environ, telemetry
        self._queue = queue
        self._made: OrderedDict[tuple[object, ...], ModelSummariser] = OrderedDict()
        """By what they are made of, the client's key among it: a hash of it would take longer than all the rest here."""
        self._without: OrderedDict[tuple[str, ...], list[str]] = OrderedDict()
        """Why a model of an upstream is not asked for compactions again."""

    def author(
        self, host: OwnerConversations, terms: ConversationSettings, target: Target, credentials: Credentials
    ) -> Summariser | None:
        """The summariser of a conversation; None if no model should write summaries."""
        wished, owner, named = host.resolved.settings.summariser, host.engine.owner, _models_of(host)
        if not (wished.enabled and writes_with_model(terms)):
            return None
        if (plugin := self._plugin(host, terms)) is not None:
            return plugin
        is_own = not any(one.name for one in named)
        if target.is_small and is_own:
            return None
        compacts = is_native(host.summarisers)
        keys = _keys(credentials) if credentials.go_to(target) and (is_own or compacts) else None
        sent = None if keys is None else tuple(sorted(keys.items()))
        place = (owner, target.name, terms.model, terms.format, terms.window, sent, wished.models)
        if (made := self._made.get(place)) is None:
            chain = self._chain(named, terms, target, keys, owner)
            own = self._chain((), terms, target, keys, owner)[0] if compacts else None
            without = self._without_compactions(target, terms)
            made = ModelSummariser(chain, cache=host.engine.cache, native=own, without=without)
            self._made[place] = made
            if len(self._made) > MOST:
                self._made.popitem(last=False)
        self._made.move_to_end(place)
        return made

    def _without_compactions(self, target: Target, terms: ConversationSettings) -> list[str]:
        """What is known about compactions by a model of an upstream, for all owners."""
        place = (target.name, terms.model, terms.format)
        found = self._without.setdefault(place, [])
        self._without.move_to_end(place)
        if len(self._without) > MOST:
            self._without.popitem(last=False)
        return found

    def _plugin(self, host: OwnerConversations, terms: ConversationSettings) -> Summariser | None:
        """The summariser of a plugin, if the settings name one."""
        function = plugin_summariser(host.summarisers)
        dialect = DIALECTS[terms.format]  # type: ignore[index]
        return FunctionSummariser(function, dialect, counter_for(terms.model).text) if function else None

    def queue(
        self, host: OwnerConversations, target: Target, credentials: Credentials
    ) -> SummaryQueue | None:
        """The queue that takes the summaries of a conversation to a worker; None if they are written in this process. That is
        so without workers, and if the conversation's own model is asked with the client's own key, which no other process gets.
        """
        is_own = is_native(host.summarisers) or not any(one.name for one in host.summarisers)
        needs_client = credentials.go_to(target) and is_own
        return None if self._queue is None or needs_client else UpstreamQueue(self._queue, target.name)

    def named(self, host: OwnerConversations, terms: ConversationSettings, at: int) -> Summariser:
        """A summariser that asks one of the named models alone: the one at this place of `summariser.models`."""
        wished = host.resolved.settings.summariser
        plugin = self._plugin(host, terms) if wished.enabled and writes_with_model(terms) else None
        if plugin is not None:
            return plugin
        one = host.summarisers[at]
        writer = writer_for(self._open(one, None, None), terms, url=one.base_url, owner=host.engine.owner)
        return ModelSummariser([writer], cache=host.engine.cache)

    async def needs_client_key(
        self, host: OwnerConversations, target: Target, credentials: Credentials, wire: DialectName
    ) -> bool:
        """True if the conversation's own model would have to be asked with a key that only the client has. A server in a
        private network may work without one, and is asked.
        """
        has_own_key = target.key is not None or KEYS.intersection(target.headers)
        is_own = host.resolved.settings.summariser.enabled and not any(one.name for one in _models_of(host))
        if not is_own or has_own_key or credentials.go_to(target):
            return False
        return not target.is_private or await self._asks_for_key(target, wire)

    async def _asks_for_key(self, target: Target, wire: DialectName) -> bool:
        """True if an upstream refuses an empty request, which holds nothing of the conversation, for want of a key. Lists of
        models are no test: some servers give them to everybody.
        """
        address = target.address(next(path for path, name in DIALECT_OF.items() if name == wire))
        headers = {**target.headers, "content-type": "application/json"}
        try:
            async with asyncio.timeout(ASK_S):
                response = await self._forwarder.send(target, "POST", address, headers, b"{}")
                response.close()
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False  # it does not answer: the summariser says so
        return response.status in (401, 403)

    def _chain(
        self,
        named: tuple[Provider, ...],
        terms: ConversationSettings,
        target: Target,
        keys: dict[str, str] | None,
        owner: str,
    ) -> list[SummaryWriter]:
        elsewhere = [one for one in named if one.name]
        if elsewhere:
            return [
                writer_for(self._open(one, None, None), terms, url=one.base_url, owner=owner)
                for one in elsewhere
            ]
        dialect = DIALECTS[terms.format]  # type: ignore[index]
        own = Provider(
            target.name,
            named[0].model if named and named[0].model else terms.model,
            format=dialect.name,
            base_url=target.address("/v1"),
            headers={**target.headers, **(keys or {})},
            parameters=named[0].parameters if named else {},
        )
        key = target.key if keys is None else None
        opened = self._open(own, dialect, target, key)
        return [writer_for(opened, terms, url=target.url, owner=owner, upstream_name=target.name)]

    def _open(
        self,
        provider: Provider,
        dialect: Dialect | None,
        target: Target | None,
        key: ProviderKey | None = None,
    ) -> Upstream:
        whole = complete(structs.replace(provider, key_env="") if target else provider)
        key = key or ProviderKey(whole, self._environ)
        session: aiohttp.ClientSession = self._forwarder.session(
            is_private=target is None or target.is_private
        )
        spoken = dialect or DIALECTS[whole.format or "chat"]
        made = HttpUpstream(whole, spoken, Connection(whole, spoken, session, key, REAL_PACE), REAL_PACE)
        return self._telemetry.traced(made, provider.name) if self._telemetry else made


def _models_of(host: OwnerConversations) -> tuple[Provider, ...]:
    """The models that write summaries by name, without the word for compactions by the provider."""
    return tuple(one for one in host.summarisers if one.name != NATIVE)


def _keys(credentials: Credentials) -> dict[str, str]:
    """The client's key, and the Anthropic headers that some kinds of keys need."""
    sent = credentials.headers
    return {name: value for name, value in sent if name in KEYS or name.startswith("anthropic-")}
