"""Limits of the requests that are served at the same time: their bytes, of all clients and of each owner, and the
number and the rate of an owner's requests.

A request takes its place before its body is read, counts the bytes of the body as they come, and gives its place up
after the last byte of the answer. One that finds no room is refused with a status that clients retry, and with the
time after which to do so. Requests of at most `MAX_LOOP_BYTES` are never refused because of their bytes, so a client
with small requests goes on beside others with large ones; and a request that is alone is limited by its own size only.
"""

from __future__ import annotations

import asyncio
import ctypes
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from math import ceil
from typing import Self

from refold.config.tree import ServerSettings
from refold.model.errors import Busy, TooManyRequests
from refold.text_work import MAX_LOOP_BYTES, call_in_thread

MIB = 1024 * 1024
RETRY_S = 1
"""Time after which a client may try again: most large requests take about so long."""
LARGE_BYTES = 2 * MIB
"""Requests from this size on have free memory given back to the system when they have been read, and when they have been answered: a
millisecond or two each time. What other requests and the reading have left free is otherwise up to the size of the request."""
BLOCK_BYTES = MIB
"""Blocks of memory from this size on go back to the system when they are freed: texts that are put together and dropped again. The
system clears the memory of a new one, so smaller blocks stay: with a quarter of it, one more turn of a conversation of 800 KB took
half as long again."""
TRIM_DELAY_S = 0.5
"""By then the values of the request have been freed."""


class Place:
    """The place of one request; used as a context manager."""

    def __init__(self, admission: Admission, owner: str) -> None:
        self._admission, self._owner, self.size = admission, owner, 0

    def __enter__(self) -> Self:
        self._admission.requests[self._owner] += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._admission.leave(self._owner, self.size)

    def grow(self, size: int) -> None:
        """Count the bytes of the body so far.

        Raises:
            Busy: there is no room for them.
        """
        self._admission.count(self._owner, self.size, size)
        self.size = size


class Admission:
    """The requests that are being served."""

    def __init__(self, limits: ServerSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits, self._clock = limits, clock
        self.bytes = Counter[str]()
        """The bytes of the requests of each owner."""
        self._total = 0
        self.requests = Counter[str]()
        """The number of requests of each owner."""
        self._due: dict[str, float] = {}
        """For each owner with a limited rate, the time up to which its requests are paid for."""
        self._trim: asyncio.TimerHandle | None = None

    @property
    def total_bytes(self) -> int:
        """Bytes of all requests that are being served."""
        return self._total

    def enter(self, owner: str, stated: int = 0) -> Place:
        """Give a request a place; `stated` is the length that its client states, 0 if it states none.

        Raises:
            Busy: the requests of all clients together are too large.
            TooManyRequests: those of this owner are too large, too many or too frequent.
        """
        most = self._limits.max_requests_per_owner
        if most is not None and self.requests[owner] >= most:
            raise TooManyRequests(
                f"{most:,} requests of this owner are being served already",
                hint="send fewer at once, or raise server.max_requests_per_owner",
                retry_s=RETRY_S,
            )
        self._check_bytes(owner, 0, stated)
        self._check_rate(owner)
        return Place(self, owner)

    def count(self, owner: str, before: int, size: int) -> None:
        """Count the bytes of a request that has grown."""
        self._check_bytes(owner, before, size)
        self.bytes[owner] += size - before
        self._total += size - before

    def leave(self, owner: str, size: int) -> None:
        """Give up the place of a request."""
        self._total -= size
        for counted, amount in ((self.bytes, size), (self.requests, 1)):
            counted[owner] -= amount
            if not counted[owner]:
                del counted[owner]
        if size >= LARGE_BYTES and self._trim is None:
            self._trim = asyncio.get_running_loop().call_later(TRIM_DELAY_S, self._start_trim)

    def _check_bytes(self, owner: str, before: int, size: int) -> None:
        if size <= MAX_LOOP_BYTES:
            return
        others, own = self._total - before, self.bytes[owner] - before
        if own and own + size > self._limits.max_owner_in_flight_mb * MIB:
            raise TooManyRequests(
                "the requests of this owner that are being served are too large together",
                hint="send fewer at once, or raise server.max_owner_in_flight_mb",
                retry_s=RETRY_S,
            )
        if others and others + size > self._limits.max_in_flight_mb * MIB:
            raise Busy(
                "the requests that are being served are too large together",
                hint="send it again, or raise server.max_in_flight_mb",
                retry_s=RETRY_S,
            )

    def _check_rate(self, owner: str) -> None:
        """Take one request out of the owner's allowance: a minute's worth at once, which refills evenly."""
        most = self._limits.max_requests_per_minute
        if most is None:
            return
        now = self._clock()
        due = max(self._due.get(owner, 0.0), now) + 60 / most
        if due - now > 60 + 1e-6:
            raise TooManyRequests(
                f"this owner has sent more than {most:,} requests in a minute",
                hint="send them more slowly, or raise server.max_requests_per_minute",
                retry_s=max(1, ceil(due - now - 60 - 1e-6)),
            )
        self._due[owner] = due

    def _start_trim(self) -> None:
        self._trim = None
        return_free_memory()


def return_free_memory() -> None:
    """Give free memory back to the system, in a thread."""
    if _trim_function() is not None:
        task = asyncio.get_running_loop().create_task(call_in_thread(return_memory_now))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())


def return_memory_now() -> None:
    """Give free memory back to the system, in a thread of the caller's."""
    trim = _trim_function()
    if trim is not None:
        trim()


def return_large_blocks() -> None:
    """Have the C library give every block of `BLOCK_BYTES` back to the system when it is freed. By default it raises that bound
    with the first larger block, and each thread keeps its own: a request that passes through several threads takes more than twice
    as much memory then.
    """
    with suppress(AttributeError, OSError):
        if sys.platform.startswith("linux"):
            ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, BLOCK_BYTES)


_MMAP_THRESHOLD = -3
"""The parameter of `mallopt` in the GNU C library; others refuse it."""


@cache
def _trim_function() -> Callable[[], object] | None:
    """The function of the C library that gives free memory back to the system; None where it has none."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None
    return lambda: trim(0)
