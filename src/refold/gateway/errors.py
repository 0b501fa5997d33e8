"""Maps Refold's errors to responses in the client's wire format.

A client knows only its provider's errors, so the gateway uses that provider's status codes, bodies and stream
events: the SDK then raises its usual exceptions. `/refold/*` has a shape of its own, with a separate hint.
Errors that the caller can fix are 4xx; a 5xx is never caused by the content of a request. Errors of a
provider are passed on unchanged and do not come through here.

An answer never contains the location of the store: the `location` of an error goes to the log only
(`log_store_failure`).
"""

from __future__ import annotations

import logging
import re

import msgspec
from msgspec import Struct

from refold.gateway.request import Shape
from refold.model import errors
from refold.model.message import replace_lone_surrogates

_log = logging.getLogger("refold.gateway")

STATUSES: dict[type[Exception], int] = {
    errors.ConfigError: 400,
    errors.MissingExtra: 501,
    errors.SettingFixed: 409,
    errors.SettingLocked: 403,
    errors.WireError: 400,
    errors.BodyTooLarge: 413,
    errors.BodyEncoded: 415,
    errors.BodyTooSlow: 408,
    errors.WebSocketRefused: 426,
    errors.AccessError: 403,
    errors.KeyRefused: 401,
    errors.Busy: 503,
    errors.TooManyRequests: 429,
    errors.WindowError: 400,
    errors.UpstreamError: 502,
    errors.ContextOverflow: 400,
    errors.OutputCapExceeded: 400,
    errors.RateLimited: 429,
    errors.MalformedHistory: 400,
    errors.RecoverySpent: 400,
    errors.PluginError: 503,
    errors.PluginRefused: 403,
    errors.SummaryError: 502,
    errors.Stopping: 503,
    errors.StoreError: 503,
    errors.Damaged: 500,
    errors.NotFound: 404,
    errors.Conflict: 409,
}
"""The status of an error class and of its subclasses without an entry of their own; all other exceptions are
a 500.
"""

_TOO_LONG = (errors.ContextOverflow, errors.DoesNotFit, errors.RecoverySpent)
"""Clients can recover from these by themselves, and recognise them by their provider's wording."""
_OPENAI_CODES: dict[type[Exception], str] = {
    errors.KeyRefused: "invalid_api_key",
    errors.RateLimited: "rate_limit_exceeded",
    errors.TooManyRequests: "rate_limit_exceeded",
} | dict.fromkeys(_TOO_LONG, "context_length_exceeded")
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
}
_ANTHROPIC_TOO_LONG = "prompt is too long: "
_REQUEST_ID: dict[Shape, str] = {"anthropic": "request-id"}
"""The header in which the SDK looks for the request id, if it is not `x-request-id`."""
_BUG = errors.RefoldError("Refold failed to answer this request", hint="the gateway's log says more")
_CAPITAL = re.compile("(?<!^)([A-Z])")


class ErrorResponse(Struct, frozen=True):
    """An error as an HTTP response."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...]


def status_of(error: Exception) -> int:
    return next((STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES), 500)


def log_store_failure(error: Exception) -> None:
    """Log the location of the store that failed (a file, or a database and its host), which the client does
    not get. A location never contains a password.
    """
    if isinstance(error, errors.StoreError) and status_of(error) >= 500:
        _log.error("the store failed: %s", error.located)


def answer(error: Exception, shape: Shape, *, request_id: str = "") -> ErrorResponse:
    """An error as the response to a request. Exceptions that are not Refold's become a general message,
    because their text may contain anything.
    """
    status, public = status_of(error), _public_error(error)
    headers = [("content-type", "application/json"), ("cache-control", "no-store")]
    if request_id:
        headers.append((_REQUEST_ID.get(shape, "x-request-id"), request_id))
    if isinstance(public, errors.Busy):
        headers.append(("retry-after", str(public.retry_s)))
    if status == 426:
        headers.append(("upgrade", "HTTP/1.1"))
    if isinstance(error, errors.Stopping):
        headers += [("retry-after", "1"), ("connection", "close")]
    if status == 401:
        headers.append(("www-authenticate", "Bearer"))
    body = msgspec.json.encode(_body(public, status, shape, request_id))
    return ErrorResponse(status, body, tuple(headers))


def event(error: Exception, shape: Shape, *, request_id: str = "", sequence: int = 0) -> bytes:
    """An error as the last event of a stream; `sequence` is its number among the events of a Responses stream."""
    body = _body(_public_error(error), status_of(error), shape, request_id)
    if shape == "responses":
        inner = body["error"]
        assert isinstance(inner, dict)
        # The documented fields, and the envelope that makes the SDK raise.
        own = {name: inner[name] for name in ("code", "message", "param")}
        body = {"type": "error", **own, "sequence_number": sequence, **body}
    name = b"" if shape == "chat" else b"event: error\n"
    return name + b"data: %s\n\n" % msgspec.json.encode(body)


def _public_error(error: Exception) -> errors.RefoldError:
    return error if isinstance(error, errors.RefoldError) else _BUG


def _body(error: errors.RefoldError, status: int, shape: Shape, request_id: str) -> dict[str, object]:
    message = replace_lone_surrogates(str(error))
    if shape == "refold":
        own = {
            "code": _code(error),
            "message": replace_lone_surrogates(error.message),
            "hint": replace_lone_surrogates(error.hint),
        }
        return {"error": own}
    if shape == "anthropic":
        opening = _ANTHROPIC_TOO_LONG if isinstance(error, _TOO_LONG) else ""
        kind = _ANTHROPIC_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
        inner = {"type": kind, "message": opening + message}
        return {"type": "error", "error": inner, "request_id": request_id or None}
    return {"error": _openai(error, status, message)}


def _openai(error: errors.RefoldError, status: int, message: str) -> dict[str, object]:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    codes = (_OPENAI_CODES[known] for known in type(error).__mro__ if known in _OPENAI_CODES)
    place = error.place if isinstance(error, errors.WireError) else ""
    return {
        "message": message,
        "type": "rate_limit_error" if status == 429 else kind,
        "param": replace_lone_surrogates(place) or None,
        "code": next(codes, _code(error)),
    }


def _code(error: errors.RefoldError) -> str:
    """The class name in the form of an error code: `not_found`."""
    return "internal_error" if error is _BUG else _CAPITAL.sub(r"_\1", type(error).__name__).lower()
