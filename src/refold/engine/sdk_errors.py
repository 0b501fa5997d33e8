"""What a provider refused, read from whatever an SDK raises.

One idea: every SDK's error carries the status and the body of the answer under one of a few names. Nothing of an SDK is
imported to find them. Our own errors carry what was found in the answer, and never its words: that is taken in place of it.
"""

from __future__ import annotations

from collections.abc import Mapping

from refold.model.errors import UpstreamError

_BODIES = ("body", "response_body", "details")
_STATUSES = ("status_code", "status", "http_status", "code")


def read_refusal(error: object) -> tuple[int | None, object]:
    """The status, where there is one, and the body: an SDK's error, an answer, a dictionary, or bare words."""
    if isinstance(error, str | bytes | Mapping):
        return None, error
    if isinstance(error, UpstreamError) and error.overflow is not None:
        return None, error.overflow
    response = _field(error, "response")
    status = _number(error) or _number(response)
    told = [_field(error, name) for name in _BODIES]
    body = next((found for found in told if _is_body(found)), None)
    if body is None:
        told = [_field(response, "text"), _field(response, "content")]
        body = next((found for found in told if _is_body(found)), None)
    return status, body if body is not None else str(error)


def _field(value: object, name: str) -> object:
    """An attribute, where it can be had: that of an answer whose body was not read yet may raise anything."""
    try:
        return getattr(value, name, None)
    except Exception:  # noqa: BLE001  # somebody else's property
        return None


def _is_body(value: object) -> bool:
    """Some clients have a method of this name, or a list of details."""
    return isinstance(value, str | bytes | Mapping) and bool(value)


def _number(value: object) -> int | None:
    found = (_field(value, name) for name in _STATUSES)
    return next(
        (number for number in found if isinstance(number, int) and not isinstance(number, bool)), None
    )
