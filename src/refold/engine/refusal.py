"""What a provider refused, read from whatever an SDK raises.

One idea: every SDK's error carries the status and the body of the answer under one of a few names. Nothing of an SDK is
imported to find them.
"""

from __future__ import annotations

from collections.abc import Mapping

_BODIES = ("body", "response_body", "details")


def read_refusal(error: object) -> tuple[int | None, object]:
    """The status, where there is one, and the body: an SDK's error, an answer, a dictionary, or bare words."""
    if isinstance(error, str | bytes | Mapping):
        return None, error
    response = getattr(error, "response", None)
    status = _number(error, "status_code", "status", "http_status", "code") or _number(
        response, "status_code"
    )
    body = next((found for name in _BODIES if (found := getattr(error, name, None))), None)
    if body is None and response is not None:
        body = getattr(response, "text", None) or getattr(response, "content", None)
    return status, body if body is not None else str(error)


def _number(value: object, *names: str) -> int | None:
    found = (getattr(value, name, None) for name in names)
    return next(
        (number for number in found if isinstance(number, int) and not isinstance(number, bool)), None
    )
