"""What the page shows and acts on: the conversations and settings of one owner, and the place that they are served from.

The page calls the engine for everything that it shows. A `Workspace` adds what depends on the place: the settings that a
conversation is opened with, the summariser, and where changed settings are stored. The gateway has one of its own; `StoreWorkspace`
is for a store without a gateway. A `PageBackend` makes workspaces, and knows the keys and the state of operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct
from starlette.types import Receive, Scope, Send

from refold.config import Resolved
from refold.engine.conversation import Conversation
from refold.engine.engine import Engine
from refold.ports.models import Summariser
from refold.ports.records import ClientKey

DIGEST = "digest"
"""Stands for a summary that no model writes."""


class SummaryChoice(Struct, frozen=True):
    """The summariser for an act, and a note if no model can be asked."""

    summariser: Summariser | None = None
    note: str = ""


class OperationNote(Struct, frozen=True):
    """One line about the operation of the place: an upstream, the store, replies that wait to be stored."""

    name: str
    state: str
    is_wrong: bool = False


class Workspace(Protocol):
    """The conversations and settings of one owner."""

    @property
    def engine(self) -> Engine: ...

    @property
    def resolved(self) -> Resolved:
        """The settings in effect for this owner."""
        ...

    async def open(self, name: str, branch: str = "", *, preset: str = "") -> Conversation:
        """Open a conversation with the settings that its next call would have; with `preset`, by that policy.

        Raises:
            NotFound: the owner has no such conversation or branch.
            ConfigError: there is no such preset.
        """
        ...

    def writers(self) -> Sequence[str]:
        """The models that an act may name to write a summary, besides the configured one and none."""
        ...

    async def writer(self, talk: Conversation, model: str = "") -> SummaryChoice:
        """The summariser of an act: the configured one, or the named model of `writers`.

        Raises:
            ConfigError: the model is not among `writers`.
        """
        ...

    async def change_settings(self, changes: dict[str, object]) -> None:
        """Change settings with the checks of the settings tree, all or none, and store them.

        Raises:
            SettingError: a value cannot be used, or cannot be changed here.
        """
        ...

    async def switch(self, name: str, *, on: bool) -> None:
        """Switch the compaction of a conversation off, or on again."""
        ...


class PageBackend(Protocol):
    """The place that the page is served from."""

    @property
    def version(self) -> str: ...

    @property
    def events(self) -> Sequence[str]:
        """The names of the events of `stream`."""
        ...

    async def workspace(self, owner: str) -> Workspace: ...

    async def verify(self, key: str) -> ClientKey:
        """The stored key that a text belongs to.

        Raises:
            KeyRefused: the text is not a key, or the key was revoked.
        """
        ...

    async def operations(self) -> Sequence[OperationNote]:
        """The state of upstreams and store, without content."""
        ...

    async def stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The event stream of the owner in the scope, as an ASGI application."""
        ...
