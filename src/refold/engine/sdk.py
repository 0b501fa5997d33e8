"""Plain values for SDKs: the fields of a request, and the refusals that SDKs raise.

Between two calls most messages stay the same. Each message is encoded once, and its dictionary is reused in
later requests, so a call costs as much as its new messages.
"""

from __future__ import annotations

from collections.abc import Mapping

from refold.model.errors import UpstreamError
from refold.model.message import Message
from refold.model.window import Window
from refold.wire.cache_breakpoints import write_breakpoints
from refold.wire.sdk import plain_message, plain_prompt, prompt_messages


class RequestFields:
    """Encodes windows as the fields of requests. Caches the dictionaries of the last window's messages."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Message, dict[str, object]]] = {}

    def fields(self, window: Window) -> dict[str, object]:
        """Return the fields of a request: messages, and the system prompt if it has a field of its own."""
        window, dialect = write_breakpoints(window), window.fixed.dialect
        sent = (*prompt_messages(window), *window.sent)
        known = {id(message): self._spelled(message, window) for message in sent}
        self._known = known
        messages = [known[id(message)][1] for message in sent]
        return {**plain_prompt(window), dialect.messages_key: messages}

    def _spelled(self, message: Message, window: Window) -> tuple[Message, dict[str, object]]:
        found = self._known.get(id(message))
        return found or (message, plain_message(message, window.fixed.dialect))


# Refusals of providers, as SDKs raise them

_BODIES = ("body", "response_body", "details")
_STATUSES = ("status_code", "status", "http_status", "code")


def read_refusal(error: object) -> tuple[int | None, object]:
    """Return the status, if there is one, and the body of a refusal: from an SDK's exception, a response, a
    dictionary, or a string.
    """
    if isinstance(error, str | bytes | Mapping):
        return None, error
    if isinstance(error, UpstreamError) and error.overflow is not None:
        return None, error.overflow
    response = _field(error, "response")
    status = _number(error) or _number(response)
    bodies = [_field(error, name) for name in _BODIES]
    body = next((found for found in bodies if _is_body(found)), None)
    if body is None:
        bodies = [_field(response, "text"), _field(response, "content")]
        body = next((found for found in bodies if _is_body(found)), None)
    return status, body if body is not None else str(error)


def _field(value: object, name: str) -> object:
    """Return an attribute, or None if it raises: a response whose body was not read yet may raise anything."""
    try:
        return getattr(value, name, None)
    except Exception:  # noqa: BLE001  # a property of an SDK
        return None


def _is_body(value: object) -> bool:
    """Whether a value can be a body: some clients have a method of this name, or a list of details."""
    return isinstance(value, str | bytes | Mapping) and bool(value)


def _number(value: object) -> int | None:
    found = (_field(value, name) for name in _STATUSES)
    return next(
        (number for number in found if isinstance(number, int) and not isinstance(number, bool)), None
    )
