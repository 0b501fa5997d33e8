"""The type of a plugin, and the protocols of the functions in it.

A plugin is one frozen value. Its members are the points at which Refold calls it; all are optional. `api` is the version of this module that
it was written for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

from msgspec import Struct

from refold.core.plugin_points import StageFunction, TriggerFunction
from refold.core.policy import Moment, Policy
from refold.model.message import DialectName
from refold.model.tokens import TokenCounter, Usage
from refold.ports.models import SummaryFunction
from refold.ports.store import Store

API = 1
"""The version of these protocols. A plugin for another version is not loaded."""
GROUP = "refold.plugins"
"""The group of the entry points of installed packages."""
Failing: TypeAlias = Literal["open", "closed"]
TIMEOUT_S = 2.0
"""Longer than code without a network takes, and short for a person who waits for a reply."""


class FilterRequest(Struct, frozen=True):
    """A request as it would be sent, after compaction. The values are copies: changes to them have no effect."""

    format: DialectName
    model: str
    messages: list[dict[str, Any]]
    """The list of messages (the items of `input`, in the format `responses`), as JSON."""
    fields: dict[str, Any]
    """The other fields of the request: the system prompt of the format `anthropic`, tools, limits."""
    conversation: str = ""
    """Empty for a request for a summary, and if the request is sent without a conversation, because Refold is switched off for it."""
    owner: str = ""
    """Empty for a request for a summary that the library makes."""
    is_summary: bool = False
    """True for a request for a summary. Its texts are shown in the format `chat`, each message with all of them: also arguments and
    results of tools. Only texts can be changed."""


class RequestChange(Struct, frozen=True):
    """What a request filter wants."""

    messages: Mapping[int, Mapping[str, Any]] = {}
    """Messages to send instead of others, by their index."""
    fields: Mapping[str, Any] = {}
    """Fields to set; None removes one."""
    refusal: str = ""
    """Ends the request: the client gets an error with this text."""
    reason: str = ""
    """Why, for the record of the call."""


class FilterResponse(Struct, frozen=True):
    """An answer that has arrived. The values are copies."""

    format: DialectName
    model: str
    messages: list[dict[str, Any]]
    """The messages of the reply, as JSON; none if it could not be read."""
    usage: Usage | None = None
    is_whole: bool = True
    """False for a reply that broke off."""
    conversation: str = ""
    owner: str = ""


class RequestFilter(Protocol):
    """Reads a request before it is sent to a provider, and may change or refuse it."""

    def __call__(
        self, request: FilterRequest, /
    ) -> RequestChange | Awaitable[RequestChange | None] | None: ...


class ResponseFilter(Protocol):
    """Reads an answer. It cannot change it, but may refuse it: with a text, the client gets an error instead of the
    answer, or instead of the end of a stream.
    """

    def __call__(self, response: FilterResponse, /) -> str | Awaitable[str | None] | None: ...


class ChatCommand(Protocol):
    """A command of a chat: a `refold.Command`."""

    @property
    def name(self) -> str: ...

    @property
    def summary(self) -> str: ...

    @property
    def aliases(self) -> Sequence[str]: ...


StoreOpener: TypeAlias = Callable[[str], Awaitable[Store]]
"""Opens the store that a URL names."""


class Plugin(Struct, frozen=True, kw_only=True):
    """A plugin. An entry point of the group `refold.plugins` names one, or the variable `plugin` of a file."""

    name: str
    api: int
    """`refold.plugins.API` of the version that it was written for: a number, not the constant."""
    version: str = ""
    fails: Failing = "open"
    """If a filter, a stage or a trigger raises, takes too long or returns something that cannot be used: `open`
    goes on without it, `closed` ends the request."""
    timeout_s: float = TIMEOUT_S
    """Seconds for one call of a filter, a stage or a trigger."""
    on_request: RequestFilter | None = None
    on_response: ResponseFilter | None = None
    stages: Sequence[StageFunction] = ()
    """Run after the stages of every policy."""
    triggers: Mapping[Moment, TriggerFunction] = {}
    """Beside the triggers of every policy, by moment."""
    summarisers: Mapping[str, SummaryFunction] = {}
    """By name. `plugin:NAME` among `summariser.models` chooses one, and `summariser="plugin:NAME"` in the library."""
    counters: Mapping[str, TokenCounter] = {}
    """By a pattern of model names, such as `acme-*`."""
    stores: Mapping[str, StoreOpener] = {}
    """By the scheme of the URL."""
    commands: Sequence[ChatCommand] = ()
    """Commands of the chat, such as `/tides`."""
    presets: Mapping[str, Policy] = {}
    """Policies by name."""

    @property
    def points(self) -> tuple[str, ...]:
        """The members that it has."""
        found = {
            "request filter": self.on_request,
            "response filter": self.on_response,
            "stages": self.stages,
            "triggers": self.triggers,
            "summarisers": self.summarisers,
            "counters": self.counters,
            "stores": self.stores,
            "commands": self.commands,
            "presets": self.presets,
        }
        return tuple(name for name, member in found.items() if member)


_TEXT_KEYS = frozenset(("content", "text", "output"))
"""The fields of messages and blocks that hold texts, in the three formats. Reasoning is in others."""


def replace_texts(message: Mapping[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """A message as JSON, in any of the three formats, with each of its texts passed through a function: for request filters. Equal
    to the message if nothing changes.
    """
    return {key: _replaced(value, change) if key in _TEXT_KEYS else value for key, value in message.items()}


def _replaced(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_replaced(one, change) for one in value]
    return replace_texts(value, change) if isinstance(value, dict) else value
