"""Calls the code of a plugin: with a deadline, counted, and never in the event loop.

Each call runs in a daemon thread of its own; a coroutine gets an event loop there. After the deadline the caller goes on, and the
plugin is not called again until the thread has ended. So a plugin that hangs costs one deadline for each call
that was in progress, and as many threads. A call whose caller is cancelled keeps its deadline. Python cannot stop a thread: code that holds the interpreter lock (a regular
expression without end) or takes all memory stops the process, whatever is done here.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from inspect import isawaitable
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from refold.core.plugin_points import PluginPoint, UnusableAnswer
from refold.model.errors import PluginError, error_location
from refold.plugins.plugin import Plugin

T = TypeVar("T")
PluginOutcome: TypeAlias = Literal["ok", "raised", "late", "unusable", "off", "refused"]
"""How a call ended: `late` passed its deadline, `off` was not made because an earlier one has not ended, `unusable`
returned something that is not used, `refused` ended the request by the plugin's own wish."""

_log = logging.getLogger("refold")


class _Call:
    """One call in a thread."""

    def __init__(self, function: Callable[[], object], done: Callable[[], None]) -> None:
        self.answer: object = None
        self.error: BaseException | None = None
        self._function, self._done = function, done

    def run(self) -> None:
        try:
            answer = self._function()
            self.answer = asyncio.run(_awaited(answer)) if isawaitable(answer) else answer
        except BaseException as error:  # noqa: BLE001  # code of others: also SystemExit
            self.error = error
        finally:
            self._done()


async def _awaited(answer: Any) -> object:
    return await answer


class _LeftCall(NamedTuple):
    """A call whose caller was cancelled before the deadline."""

    point: PluginPoint
    thread: threading.Thread
    ends: float
    """The deadline, by the monotonic clock."""


class PluginGuard:
    """Calls one plugin, and counts the outcomes by point."""

    def __init__(self, plugin: Plugin) -> None:
        self.plugin = plugin
        self.counts: Counter[tuple[PluginPoint, PluginOutcome]] = Counter()
        self._late: list[threading.Thread] = []
        self._left: list[_LeftCall] = []
        self._lock = threading.Lock()

    def __call__(self, point: PluginPoint, call: Callable[[], object], check: Callable[[Any], T]) -> T | None:
        """Call it, and wait. See `refold.core.plugin_points.Guard`."""
        if self.is_stuck:
            self.fault(point, "off", "an earlier call has not ended")
            return None
        done = threading.Event()
        made = _Call(call, done.set)
        thread = self._start(made, point)
        if not done.wait(self.plugin.timeout_s):
            self._give_up(point, thread)
            return None
        return self._read(point, made, check)

    async def call(
        self,
        point: PluginPoint,
        call: Callable[[], object],
        check: Callable[[Any], T],
        *,
        timeout_s: float | None = None,
    ) -> T | None:
        """The same without blocking the event loop; `timeout_s` replaces the plugin's own."""
        if self.is_stuck:
            self.fault(point, "off", "an earlier call has not ended")
            return None
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            with suppress(RuntimeError):  # the event loop was closed: nobody waits
                loop.call_soon_threadsafe(done.set)

        made = _Call(call, tell)
        limit_s = timeout_s or self.plugin.timeout_s
        ends = time.monotonic() + limit_s
        thread = self._start(made, point)
        try:
            async with asyncio.timeout(limit_s):
                await done.wait()
        except asyncio.CancelledError:  # the client has gone, and the thread may hang
            with self._lock:
                self._left.append(_LeftCall(point, thread, ends))
            loop.call_later(max(0.0, ends - time.monotonic()), self._note_left)
            raise
        except TimeoutError:
            self._give_up(point, thread, timeout_s)
            return None
        return self._read(point, made, check)

    @property
    def is_stuck(self) -> bool:
        """Whether a call that passed its deadline is still running."""
        self._note_left()
        with self._lock:
            self._late = [thread for thread in self._late if thread.is_alive()]
            return bool(self._late)

    def fault(self, point: PluginPoint, outcome: PluginOutcome, why: str) -> None:
        """Count and log a call that failed.

        Raises:
            PluginError: the plugin fails closed.
        """
        with self._lock:
            self.counts[point, outcome] += 1
        is_closed = self.plugin.fails == "closed" and point in ("request", "response", "stage", "trigger")
        follows = "the request ends" if is_closed else "it is skipped"
        _log.warning("plugin %s, %s: %s; %s", self.plugin.name, point, why, follows)
        if is_closed:
            raise PluginError(f"the plugin {self.plugin.name} failed, and no request is sent without it")

    def note(self, point: PluginPoint, outcome: PluginOutcome = "ok") -> None:
        """Count a call that was made elsewhere."""
        with self._lock:
            self.counts[point, outcome] += 1

    def take_back(self, point: PluginPoint) -> None:
        """Count a call no longer as `ok`: its answer refuses, or a later check has found it unusable."""
        with self._lock:
            self.counts[point, "ok"] -= 1
            if not self.counts[point, "ok"]:
                del self.counts[point, "ok"]

    def _start(self, made: _Call, point: PluginPoint) -> threading.Thread:
        thread = threading.Thread(
            target=made.run, name=f"refold-plugin-{self.plugin.name}-{point}", daemon=True
        )
        thread.start()
        return thread

    def _give_up(self, point: PluginPoint, thread: threading.Thread, timeout_s: float | None = None) -> None:
        with self._lock:
            self._late.append(thread)
        self.fault(point, "late", f"no answer within {timeout_s or self.plugin.timeout_s:g} s")

    def _note_left(self) -> None:
        """Count the calls that were left by their callers and have passed their deadlines as late. No request ends: none waits."""
        now = time.monotonic()
        with self._lock:
            running = [one for one in self._left if one.thread.is_alive()]
            self._left = [one for one in running if one.ends > now]
            late = [one for one in running if one.ends <= now]
            self._late += [one.thread for one in late]
            for one in late:
                self.counts[one.point, "late"] += 1
        for one in late:
            _log.warning(
                "plugin %s, %s: no answer in time, and its caller has gone", self.plugin.name, one.point
            )

    def _read(self, point: PluginPoint, made: _Call, check: Callable[[Any], T]) -> T | None:
        if made.error is not None:
            self.fault(point, "raised", error_location(made.error))
            return None
        try:
            found = check(made.answer)
        except UnusableAnswer as error:
            self.fault(point, "unusable", str(error))
            return None
        except Exception as error:  # noqa: BLE001  # an answer of others may break any reading of it
            self.fault(point, "unusable", f"its answer cannot be read ({type(error).__name__})")
            return None
        self.note(point)
        return found
