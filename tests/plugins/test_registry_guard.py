"""Calls of plugins whose callers go away."""

from __future__ import annotations

import asyncio
import threading
from contextlib import nullcontext, suppress

import pytest

from refold.model.errors import PluginError
from refold.plugins.registry import PluginGuard
from tests.plugins.plugin_setup import plugin


async def left(guard: PluginGuard, function) -> None:
    """Begin a call, and cancel it when its function runs."""
    entered, loop = asyncio.Event(), asyncio.get_running_loop()

    def call():
        loop.call_soon_threadsafe(entered.set)
        return function()

    task = asyncio.create_task(guard.call("request", call, lambda answer: answer))
    await entered.wait()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def until(holds) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110  # a thread of a plugin tells nobody
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("fails", ["open", "closed"])
async def test_a_call_that_hangs_is_late_although_its_caller_has_gone(fails, caplog):
    hang = threading.Event()
    guard = PluginGuard(plugin(timeout_s=0.2, fails=fails))
    try:
        await left(guard, hang.wait)
        await until(lambda: guard.counts["request", "late"])
        assert guard.is_stuck
        assert "plugin test, request: no answer in time" in caplog.text
        with pytest.raises(PluginError) if fails == "closed" else nullcontext():
            assert await guard.call("request", lambda: "again", str) is None
        assert guard.counts == {("request", "late"): 1, ("request", "off"): 1}
    finally:
        hang.set()
    await until(lambda: not guard.is_stuck)
    assert await guard.call("request", lambda: "again", str) == "again"


async def test_a_call_that_ends_in_time_is_not_late_if_its_caller_has_gone():
    go_on = threading.Event()
    guard = PluginGuard(plugin(timeout_s=1))
    await left(guard, go_on.wait)
    go_on.set()
    await asyncio.sleep(1.1)
    assert not guard.is_stuck
    assert not guard.counts


def test_a_call_that_hangs_is_late_after_its_event_loop_has_ended():
    hang = threading.Event()
    guard = PluginGuard(plugin(timeout_s=0.2))
    try:
        asyncio.run(left(guard, hang.wait))
        asyncio.run(until(lambda: guard.is_stuck))
        assert guard.counts == {("request", "late"): 1}
    finally:
        hang.set()
