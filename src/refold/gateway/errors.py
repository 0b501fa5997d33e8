"""The gateway's own errors, as the client's wire format spells them.

One idea: a client knows the errors of its provider and no others, so ours come in that provider's words: the status that its SDK
turns into an exception, the body that it reads, and inside of a stream the event that ends it. `/refold/*` has a shape of its own,
with the hint apart. Whatever the caller can mend is a 4xx; a 5xx is never about what was sent.

What a provider itself answered is not spelt here: it reaches the client as it came.

No answer says where the store is: `location` of an error stays out of it and goes into the log (`log_store_failure`).
"""

from __future__ import annotations

import logging
import re
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from refold.model import errors

_log = logging.getLogger("refold.gateway")

Shape: TypeAlias = Literal["chat", "responses", "anthropic", "refold"]

STATUSES: dict[type[Exception], int] = {
    errors.ConfigError: 400,
    errors.MissingExtra: 501,
    errors.SettingFixed: 409,
    errors.SettingLocked: 403,
    errors.WireError: 400,
    errors.BodyTooLarge: 413,
    errors.BodyEncoded: 415,
    errors.BodyTooSlow: 408,
    errors.AccessError: 403,
    errors.KeyRefused: 401,
    errors.WindowError: 400,
    errors.UpstreamError: 502,
    errors.ContextOverflow: 400,
    errors.OutputCapExceeded: 400,
    errors.RateLimited: 429,
    errors.MalformedHistory: 400,
    errors.RecoverySpent: 400,
    errors.SummaryError: 502,
    errors.StoreError: 503,
    errors.Damaged: 500,
    errors.NotFound: 404,
    errors.Conflict: 409,
}
"""The status of a class of errors and of all below it that have none of their own; whatever else is raised is a 500."""

_TOO_LONG = (errors.ContextOverflow, errors.DoesNotFit, errors.RecoverySpent)
"""Clients mend this themselves where they can, and look for their provider's words to know it."""
_OPENAI_CODES: dict[type[Exception], str] = {
    errors.KeyRefused: "invalid_api_key",
    errors.RateLimited: "rate_limit_exceeded",
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
"""The header in which the SDK looks for the id of a request, where it is not `x-request-id`."""
_BUG = errors.RefoldError("Refold failed to answer this request.", hint="the gateway's log says more")
_CAPITAL = re.compile("(?<!^)([A-Z])")


class ErrorResponse(Struct, frozen=True):
    """What is sent instead of a reply."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...]


def shape_of(path: str, *, speaks_anthropic: bool = False) -> Shape:
    """In which shape a path answers. `/v1/models` is both providers': a client that sends `anthropic-version` is Anthropic's."""
    if not path.startswith("/v1/"):
        return "refold"
    if path.startswith("/v1/messages") or speaks_anthropic:
        return "anthropic"
    return "responses" if path.startswith("/v1/responses") else "chat"


def status_of(error: Exception) -> int:
    return next((STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES), 500)


def log_store_failure(error: Exception) -> None:
    """Log for the operator what a 503 does not tell the client: which file, or which database on which host. No location holds a
    password.
    """
    if isinstance(error, errors.StoreError) and status_of(error) >= 500:
        _log.error("the store failed: %s", error.located)


def answer(error: Exception, shape: Shape, *, request_id: str = "") -> ErrorResponse:
    """An error as the answer to a request. Of what is no error of Refold's nothing is told: its words may hold anything."""
    status, told = status_of(error), _told(error)
    headers = [("content-type", "application/json"), ("cache-control", "no-store")]
    if request_id:
        headers.append((_REQUEST_ID.get(shape, "x-request-id"), request_id))
    if status == 401:
        headers.append(("www-authenticate", "Bearer"))
    body = msgspec.json.encode(_body(told, status, shape, request_id))
    return ErrorResponse(status, body, tuple(headers))


def event(error: Exception, shape: Shape, *, request_id: str = "", sequence: int = 0) -> bytes:
    """An error as the event that ends a stream; `sequence` is its number among the events of a Responses stream."""
    body = _body(_told(error), status_of(error), shape, request_id)
    if shape == "responses":
        inner = body["error"]
        assert isinstance(inner, dict)
        # The documented fields, and the envelope that makes the SDK raise.
        own = {name: inner[name] for name in ("code", "message", "param")}
        body = {"type": "error", **own, "sequence_number": sequence, **body}
    name = b"" if shape == "chat" else b"event: error\n"
    return name + b"data: %s\n\n" % msgspec.json.encode(body)


def _told(error: Exception) -> errors.RefoldError:
    return error if isinstance(error, errors.RefoldError) else _BUG


def _body(error: errors.RefoldError, status: int, shape: Shape, request_id: str) -> dict[str, object]:
    message = _text(str(error))
    if shape == "refold":
        own = {"code": _code(error), "message": _text(error.message), "hint": _text(error.hint)}
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
        "param": _text(place) or None,
        "code": next(codes, _code(error)),
    }


def _code(error: errors.RefoldError) -> str:
    """The name of an error's class, as codes are written: `not_found`."""
    return "internal_error" if error is _BUG else _CAPITAL.sub(r"_\1", type(error).__name__).lower()


def _text(words: str) -> str:
    """What a name from a request may break: half a character is no JSON."""
    return words.encode("utf-8", "replace").decode()
