"""Fields that the operator's settings add to a request: usage in streams, and how much a model thinks.

A field that the client sends itself is never changed. Every addition is named in a header of the answer, and an event that was
streamed only because of it does not reach the client.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw

from refold.config import Settings
from refold.config.tree import EFFORTS
from refold.gateway.incoming import Incoming
from refold.model.errors import WireError
from refold.wire.json_codec import FIELDS, NULL, is_null, is_object, read, write
from refold.wire.sse import parse_event

USAGE, THINKING = "stream_options", "thinking"
_THINKS = ("thinking", "reasoning", "reasoning_effort")
"""How clients say it themselves, in any of the formats."""


def additions_of(incoming: Incoming, settings: Settings) -> dict[str, Raw]:
    """The fields to add to a request, by their names."""
    wanted, found = settings.compaction, dict[str, Raw]()
    if wanted.include_usage and incoming.is_stream and incoming.dialect.name == "chat":
        found |= _with_usage(incoming)
    says = any(not is_null(incoming.fields.get(name, NULL)) for name in _THINKS)
    if wanted.thinking is not None and not says:
        found |= _thinking(incoming, wanted.thinking)
    return found


def _with_usage(incoming: Incoming) -> dict[str, Raw]:
    raw = incoming.fields.get(USAGE, NULL)
    options = read(FIELDS, raw) if is_object(raw) else {}
    if "include_usage" in options or not (is_null(raw) or is_object(raw)):
        return {}
    return {USAGE: write({**options, "include_usage": True})}


def _thinking(incoming: Incoming, tokens: int) -> dict[str, Raw]:
    """Where a format has words instead of numbers, the nearest one."""
    if incoming.dialect.name == "anthropic":
        room = incoming.max_output or 0
        if tokens >= room:
            return {}  # the reply would have no room, and the provider refuses it
        return {THINKING: write({"type": "enabled", "budget_tokens": tokens})}
    effort = min(EFFORTS, key=lambda name: abs(EFFORTS[name] - tokens))
    if incoming.dialect.name == "responses":
        return {"reasoning": write({"effort": effort})}
    return {"reasoning_effort": write(effort)}


def with_fields(body: bytes, added: dict[str, Raw]) -> bytes:
    """A body with more fields."""
    return msgspec.json.encode({**FIELDS.decode(body), **added}) if added else body


def is_only_usage(event: bytes) -> bool:
    """Does the event of a Chat stream tell the usage and nothing else? A client that did not ask for one may fail on it."""
    if b'"usage"' not in event:
        return False
    told = parse_event(event)
    if told is None:
        return False
    try:
        fields = read(FIELDS, told.data)
    except WireError:
        return False
    is_empty = bytes(fields.get("choices", NULL)).replace(b" ", b"") == b"[]"
    return is_empty and not is_null(fields.get("usage", NULL))
