"""Asking again: a busy or unreachable provider is given a few more tries.

One idea: a try is a stream of items, and may be repeated only while it has given none. Whoever has read a word of a reply
would read it twice otherwise, and pay for it twice.

Waits grow exponentially and are drawn at random from zero up (full jitter), so that many clients do not come back at once.
A provider that says how long to wait is believed; where that is longer than the question may take, nobody waits at all.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

from msgspec import Struct

from refold.upstreams.provider import Provider, Retries
from refold.upstreams.refusal import Setback

T = TypeVar("T")
log = logging.getLogger("refold.upstreams")


class Pace(Struct, frozen=True):
    """Time and chance, which tests replace."""

    clock: Callable[[], float]
    """Seconds that never go back."""
    wall: Callable[[], float]
    """Seconds since 1970."""
    sleep: Callable[[float], Awaitable[None]]
    draw: Callable[[], float]
    """A number from 0 to 1."""


async def repeat(
    attempt: Callable[[], AsyncGenerator[T, None]], provider: Provider, pace: Pace, until: float
) -> AsyncGenerator[T, None]:
    """The items of the first try that works.

    Raises:
        UpstreamError: none did, or the one that failed had begun to give items.
    """
    tried = 0
    while True:
        tried, given = tried + 1, False
        try:
            async with aclosing(attempt()) as items:
                async for item in items:
                    given = True
                    yield item
        except Setback as setback:
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


def _wait(setback: Setback, tried: int, retries: Retries, pace: Pace) -> float | None:
    """Seconds until the next try; None where there is none."""
    if not setback.again or tried >= retries.tries or (setback.wait_s or 0) > retries.longest_asked_s:
        return None
    own = pace.draw() * min(retries.longest_s, retries.base_s * 2.0 ** (tried - 1))
    return max(own, setback.wait_s or 0)
