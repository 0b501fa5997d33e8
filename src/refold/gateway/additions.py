"""What is added to a request because the operator wants it: usage in streams, and how much a model thinks.

One idea: whatever the client says itself stays. An addition is a field that was not there, it is told in a header, and what comes
of it and the client did not ask for does not reach the client.
"""

from __future__ import annotations

import re

import msgspec
from msgspec import Raw

from refold.config import Settings
from refold.config.tree import EFFORTS
from refold.gateway.incoming import Incoming
from refold.model.errors import WireError
from refold.wire.patch import write
from refold.wire.reading import FIELDS, NULL, is_null, is_object, read

USAGE, THINKING = "stream_options", "thinking"
_THINKS = ("thinking", "reasoning", "reasoning_effort")
"""How clients say it themselves, in any of the formats."""
_BLANK = re.compile(rb"\n\n|\r\n\r\n|\r\r")
_LONGEST_BLANK = 3
"""Bytes of a blank line that may have come without its last one."""
MAX_USAGE_BYTES = 64 * 1024
"""Of the event that tells the usage: a hundred times a real one."""


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


class WithoutUsage:
    """A Chat stream without the chunk that only tells the usage: whoever did not ask for it may stumble over it."""

    def __init__(self) -> None:
        self._held = b""
        self._is_passing = False
        """Is an event on its way that is too long to tell nothing but the usage?"""

    def feed(self, chunk: bytes) -> bytes:
        """What can be handed on: whole events, or as much as came of a very long one."""
        seen, out, start = self._held + chunk, list[bytes](), 0
        for blank in _BLANK.finditer(seen):
            event, start = seen[start : blank.end()], blank.end()
            out += [event] if self._is_passing or not _is_usage(event) else []
            self._is_passing = False
        self._held = seen[start:]
        if self._is_passing or len(self._held) > MAX_USAGE_BYTES:
            # Of its last bytes some may be the beginning of a blank line.
            out.append(self._held[:-_LONGEST_BLANK])
            self._held, self._is_passing = self._held[-_LONGEST_BLANK:], True
        return b"".join(out)

    def rest(self) -> bytes:
        """What was left when the stream ended."""
        rest, self._held = self._held, b""
        return rest


def _is_usage(event: bytes) -> bool:
    data = event.strip().removeprefix(b"data:").strip()
    if not data.startswith(b"{") or b'"usage"' not in data:
        return False
    try:
        fields = read(FIELDS, data)
    except WireError:
        return False
    is_empty = bytes(fields.get("choices", NULL)).replace(b" ", b"") == b"[]"
    return is_empty and not is_null(fields.get("usage", NULL))
