"""The conversations of one owner as they are opened outside of a call: by the administration API and by the page.

A conversation is opened with the settings that its next request would have, at the upstream that would get it. `GatewayBackend` is the
place that the page is served from.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from refold.config import ResolvedSettings, update
from refold.dashboard.workspace import NO_MODEL, OperationNote, SummaryChoice
from refold.engine.conversation import Conversation
from refold.engine.engine import Engine
from refold.engine.events import Event
from refold.engine.journal import read_fill_level
from refold.engine.settings import NATIVE, ConversationSettings
from refold.gateway.app import Gateway
from refold.gateway.auth import KeyRing
from refold.gateway.conversations import OwnerConversations
from refold.gateway.events import CHANGED, LOST
from refold.gateway.request import Wishes
from refold.gateway.upstreams import Credentials, Target
from refold.model.dialect import DIALECTS
from refold.model.errors import ConfigError, NotFound, RefoldError
from refold.ports.records import ClientKey, Head

CLIENTS_KEY = (
    "no model was asked: the conversation's own model writes its summaries with the client's key; send that key with "
    "this request, or set summariser.models"
)
"""Why a manual compaction of a conversation has a digest."""


class GatewayWorkspace:
    """The conversations and settings of one owner behind a gateway."""

    def __init__(self, gateway: Gateway, host: OwnerConversations) -> None:
        self._gateway, self.host = gateway, host

    @property
    def engine(self) -> Engine:
        return self.host.engine

    @property
    def resolved(self) -> ResolvedSettings:
        return self.host.resolved

    async def open(self, name: str, branch: str = "", *, preset: str = "") -> Conversation:
        head = await self.head(name, branch)
        target, terms = self.terms(head, preset=preset)
        return await self.host.open_branch(head, terms, target.name, finds_twins=True)

    async def head(self, name: str, branch: str = "") -> Head:
        """
        Raises:
            NotFound: the owner has no conversation with this name.
        """
        head = await self.engine.store.head(self.engine.owner, name, branch)
        if head is None:
            raise NotFound("there is no such conversation", hint="see /refold/conversations")
        return head

    def terms(self, head: Head, *, preset: str = "") -> tuple[Target, ConversationSettings]:
        """The upstream of a conversation, and the settings that its next request would have. A window that was given for the
        last request, and the room for a reply that it asked for, are taken to hold for the next one: a client that
        sends them with one request sends them with all.
        """
        target = self._gateway.targets.choose(head.model, DIALECTS[head.format].name)[0]  # type: ignore[index]
        noted = read_fill_level(head.notes)
        reported = self._gateway.window_reports.known(target, head.model)
        if reported is None and noted.window_source == "upstream":
            reported = noted.window
        terms = self.host.terms(
            head.model,
            head.format,
            window=target.window,
            reported=reported,
            url=target.url,
            wishes=Wishes(preset=preset, window=noted.window if noted.window_source == "override" else None),
            max_output=noted.output or None,
        )
        return target, terms

    async def author(
        self, target: Target, terms: ConversationSettings, headers: Sequence[tuple[str, str]] = ()
    ) -> SummaryChoice:
        """The summariser for these settings. A provider key in the headers is the client's own, as in a call."""
        credentials, authors = Credentials(headers, "", target), self._gateway.authors
        wire = DIALECTS[terms.format].name  # type: ignore[index]
        if await authors.needs_client_key(self.host, target, credentials, wire):
            return SummaryChoice(None, CLIENTS_KEY)
        return SummaryChoice(authors.author(self.host, terms, target, credentials))

    def writers(self) -> Sequence[str]:
        return self.resolved.settings.summariser.models

    async def writer(self, talk: Conversation, model: str = "") -> SummaryChoice:
        if model == NO_MODEL:
            return SummaryChoice()
        target, terms = self.terms(await self.head(talk.id, talk.branch))
        if model in ("", NATIVE):  # native comes first in the settings
            return await self.author(target, terms)
        if model not in self.writers():
            raise ConfigError(
                "this model is not one of those that may write summaries here",
                hint="the operator names them in summariser.models",
            )
        return SummaryChoice(self._gateway.authors.named(self.host, terms, self.writers().index(model)))

    async def change_settings(self, changes: dict[str, object]) -> None:
        await self._gateway.change(self.host, update(self.resolved, changes))

    async def switch(self, name: str, *, on: bool) -> None:
        await self.engine.switch(name, on=on)
        self.host.off = await self.engine.switched_off()
        self.note_change(name)

    def note_change(self, name: str) -> None:
        self._gateway.events.note_change(self.engine.owner, name)


class GatewayBackend:
    """The page of a gateway."""

    events = (*(str(one.__struct_config__.tag) for one in Event.__subclasses__()), CHANGED, LOST)

    def __init__(self, gateway: Gateway, ring: KeyRing, stream: ASGIApp, version: str) -> None:
        self._gateway, self._ring, self._stream, self.version = gateway, ring, stream, version

    async def workspace(self, owner: str) -> GatewayWorkspace:
        return GatewayWorkspace(self._gateway, await self._gateway.host(owner))

    async def verify(self, key: str) -> ClientKey:
        return await self._ring.verify(key)

    async def operations(self) -> Sequence[OperationNote]:
        gateway, backlog = self._gateway, self._gateway.backlog
        try:
            await gateway.store.owners()
            notes = [OperationNote("store", "reachable")]
        except RefoldError:
            notes = [OperationNote("store", "cannot be reached", is_wrong=True)]
        if backlog.dropped or len(backlog):
            waiting = f"{len(backlog):,} waiting to be stored, {backlog.dropped:,} dropped"
            notes.append(OperationNote("replies not kept", waiting, is_wrong=True))
        else:
            notes.append(OperationNote("replies not kept", "none"))
        for one in gateway.targets:
            notes.append(OperationNote(f"upstream {one.name}", ", ".join(one.formats)))
        return notes

    async def stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._stream(scope, receive, send)
