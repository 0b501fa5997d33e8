"""Classifies a provider's error responses as typed errors, and retries calls that may succeed later.

`core.overflow` classifies the provider's text; this module turns the result into an error that is safe to
show. The provider's own text is left out, because it may quote the conversation or the key; its error code is
kept if it is a known one.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import TypeVar

from msgspec import Struct

from refold.core.overflow import classify
from refold.model.errors import (
    BodyTooLarge,
    ContextOverflow,
    MalformedHistory,
    OutputCapExceeded,
    Overflow,
    OverflowKind,
    RateLimited,
    UpstreamError,
    UpstreamUnavailable,
    WireError,
)
from refold.ports.models import Ask
from refold.upstreams.provider import Provider, Retries
from refold.wire.error import ErrorBody, decode_error

MAX_ERROR_BYTES = 256 * 1024
"""Size of an error's body: far more than a provider sends, unless it echoes the request."""

_KINDS: dict[OverflowKind, tuple[type[UpstreamError], str]] = {
    "input_too_long": (ContextOverflow, "says that the input is too long"),
    "input_plus_output": (ContextOverflow, "says that input and output together are too long"),
    "bytes_too_large": (ContextOverflow, "says that the request has too many bytes"),
    "output_cap": (OutputCapExceeded, "cannot write that many output tokens"),
    "rate_limit": (RateLimited, "asks to slow down"),
    "malformed_history": (MalformedHistory, "refuses the order or the pairing of the messages"),
}
_HINTS = {
    401: "check the key: the variable named by key_env, or what key_command prints",
    403: "check what the key may do",
    404: "check base_url and the name of the model",
}
_FINAL = (501, 505)
_PASSING = frozenset(
    {"api_error", "server_error", "internal_server_error", "internal_error", "overloaded_error", "timeout_error",
     "service_unavailable", "upstream_error", "unavailable"}
)  # fmt: skip
"""Types and codes with which an error inside a 200 says that the server itself is in trouble."""
_CODES = _PASSING | {
    "authentication_error", "billing_error", "context_length_exceeded", "insufficient_quota", "invalid_api_key",
    "invalid_encrypted_content", "invalid_request_error", "invalid_value", "missing_required_parameter",
    "model_not_found", "not_found_error", "permission_error", "rate_limit_error", "rate_limit_exceeded",
    "request_too_large", "unknown_parameter", "unsupported_parameter", "unsupported_value",
}  # fmt: skip
"""The codes that are shown. A fixed list, because a server may put anything there."""


class FailedAttempt(Exception):
    """One failed attempt: its error, whether a retry may help, and the wait that the provider asks for.

    `is_mended` means that the next attempt differs from this one: it starts at once and is not counted.
    """

    def __init__(self, error: UpstreamError, *, again: bool = False, wait_s: float | None = None) -> None:
        super().__init__(error.message)
        self.error, self.again, self.wait_s = error, again, wait_s
        self.is_mended = False


class ErrorReply(Struct, frozen=True):
    """A response without a reply. Status 200 stands for an error found inside an answer."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = {}


def error_of_response(provider: Provider, answer: ErrorReply, ask: Ask, now: float) -> FailedAttempt:
    """The failure that an error response stands for."""
    status, error_body = answer.status, decode_error(answer.body)
    stated = None if status == 200 else status
    verdict = classify(stated, answer.body, estimated=ask.estimated, budget=ask.budget)
    passing = verdict.kind == "rate_limit" or (verdict.kind == "other" and _is_passing(status, error_body))
    again = passing and answer.headers.get("x-should-retry") != "false"
    wait_s = asked_wait(answer.headers, now)
    return FailedAttempt(_error(provider, status, error_body, verdict), again=again, wait_s=wait_s)


def unreadable_reply(provider: Provider, error: WireError) -> FailedAttempt:
    """The failure for a response that is neither a reply nor an error."""
    reason = "answered with neither a reply nor an error"
    message = f"{provider.name} ({provider.model}) {reason}: {error.message}"
    reason = "answered with too many bytes" if isinstance(error, BodyTooLarge) else reason
    hint = "check base_url and format: is this the provider's own API?"
    return FailedAttempt(UpstreamError(message, reason=reason, hint=hint))


def broken_reply(provider: Provider, error: WireError) -> FailedAttempt:
    """The failure for a stream that began as a reply, and ended or became unreadable before the end of it."""
    reason = "broke off its reply"
    message = f"{provider.name} ({provider.model}) {reason}: {error.message}"
    hint = "ask again, or ask it to go on; if it happens often, look for a time limit of the server or of a proxy"
    return FailedAttempt(UpstreamError(message, reason=reason, hint=hint))


def _is_passing(status: int, error_body: ErrorBody) -> bool:
    if status == 200:
        stated = int(error_body.code) if error_body.code.isdecimal() and len(error_body.code) == 3 else 0
        return stated >= 500 or error_body.type in _PASSING or error_body.code in _PASSING
    return status == 408 or (status >= 500 and status not in _FINAL)


def _error(provider: Provider, status: int, error_body: ErrorBody, verdict: Overflow) -> UpstreamError:
    kind, words = _KINDS.get(verdict.kind, (UpstreamError, "did not give a reply"))
    if verdict.kind == "other" and _is_passing(status, error_body):
        kind, words = UpstreamUnavailable, "has a temporary failure"
    code = next((code for code in (error_body.code, error_body.type) if code in _CODES), "")
    where = "an error inside of its answer" if status == 200 else f"status {status}"
    what = f", {code}" if code else ""
    message = f"{provider.name} ({provider.model}) {words}: {where}{what}"
    reason = f"answered {'with an error' if status == 200 else status}{what}"
    return kind(message, overflow=verdict, reason=reason, hint=_HINTS.get(status, ""))


def asked_wait(headers: Mapping[str, str], now: float) -> float | None:
    """The seconds that the provider asks to wait; `now` is used if the response has no date."""
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    asked = headers.get("retry-after", "")
    seconds = _number(asked)
    if seconds is not None or not asked:
        return seconds
    until, its_now = _time(asked), _time(headers.get("date", ""))
    return None if until is None else max(0.0, until - (now if its_now is None else its_now))


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if isfinite(number) and number >= 0 else None


def _time(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None


# Retries

T = TypeVar("T")
log = logging.getLogger("refold.upstreams")


class Pace(Struct, frozen=True):
    """The clocks, the sleep and the randomness of retries; tests replace them."""

    clock: Callable[[], float]
    """A monotonic clock, in seconds."""
    wall: Callable[[], float]
    """Seconds since 1970."""
    sleep: Callable[[float], Awaitable[None]]
    draw: Callable[[], float]
    """A random number from 0 to 1."""


async def with_retries(
    attempt: Callable[[], AsyncGenerator[T, None]], provider: Provider, pace: Pace, until: float
) -> AsyncGenerator[T, None]:
    """The items of the first attempt that succeeds.

    Raises:
        UpstreamError: no attempt succeeded, or a failed one had already yielded items.
    """
    tried = 0
    while True:
        tried, given = tried + 1, False
        try:
            async with aclosing(attempt()) as items:
                async for item in items:
                    given = True
                    yield item
        except FailedAttempt as setback:
            if setback.is_mended:
                tried -= 1
                continue
            wait_s = None if given else _wait(setback, tried, provider.retries, pace)
            if wait_s is None or pace.clock() + wait_s >= until:
                raise setback.error from None
            log.info("%s; try %d failed, the next in %.1f s", setback.error.message, tried, wait_s)
        else:
            return
        await pace.sleep(wait_s)


def _wait(setback: FailedAttempt, tried: int, retries: Retries, pace: Pace) -> float | None:
    """Seconds until the next attempt; None if there is none."""
    if not setback.again or tried >= retries.tries or (setback.wait_s or 0) > retries.longest_asked_s:
        return None
    own = pace.draw() * min(retries.longest_s, retries.base_s * 2.0 ** (tried - 1))
    return max(own, setback.wait_s or 0)
