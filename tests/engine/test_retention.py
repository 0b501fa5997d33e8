"""How long conversations are kept: for ever, or as long as somebody said."""

import logging

import pytest

from refold.engine.engine import Engine
from refold.engine.retention import DAY_S, PAUSE_S
from refold.model.errors import ConfigError, StoreError
from refold.stores.memory import MemoryStore


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000_000.0

    def __call__(self) -> float:
        return self.now


async def filled(store, clock, *names):
    engine = Engine(store, clock=clock)
    for name in names:
        await (await engine.conversation(name)).add("hello")


async def names(store):
    return {one.id for one in await store.conversations("local")}


@pytest.mark.feature("X2")
async def test_what_nothing_happened_in_for_long_is_deleted_when_an_engine_is_opened(caplog):
    store, clock = MemoryStore(), Clock()
    await filled(store, clock, "old", "older")
    clock.now += 20 * DAY_S
    await filled(store, clock, "new")
    clock.now += 20 * DAY_S
    await filled(store, clock, "today")
    with caplog.at_level(logging.INFO, "refold"):
        await Engine(store, clock=clock, keep_days=30, max_expired_share=0.5).sweep()
    assert await names(store) == {"new", "today"}
    assert "2 conversations were deleted: nothing happened in them for 30 days" in caplog.text


async def test_everything_is_kept_for_ever_where_nobody_says_for_how_long():
    store, clock = MemoryStore(), Clock()
    await filled(store, clock, "old")
    clock.now += 100_000 * DAY_S
    engine = Engine(store, clock=clock)
    await engine.sweep()
    await engine.conversation("new")
    assert await names(store) == {"old", "new"}


@pytest.mark.feature("X2")
async def test_it_is_looked_to_once_an_hour_while_an_engine_is_open():
    store, clock = MemoryStore(), Clock()
    engine = Engine(store, clock=clock, keep_days=1)
    await engine.sweep()
    clock.now -= 2 * DAY_S
    await filled(store, clock, "old")
    clock.now += 2 * DAY_S + PAUSE_S - 1
    await engine.conversation("first")
    assert await names(store) == {"old", "first"}
    clock.now += 1
    await engine.conversation("second")
    assert await names(store) == {"first", "second"}


@pytest.mark.feature("X2")
async def test_what_is_open_here_is_not_deleted_under_its_user_s_feet():
    store, clock = MemoryStore(), Clock()
    engine = Engine(store, clock=clock, keep_days=1)
    held, asked = await engine.conversation("held"), await engine.conversation("asked for")
    await held.add("hello")
    await asked.add("hello")
    await (await engine.conversation("let go")).add("hello")
    del asked
    clock.now += 1.5 * DAY_S
    again = await Engine(store, clock=clock, keep_days=1, max_expired_share=1).conversation("asked for")
    assert await names(store) == {"asked for"}, "what is opened is open"
    await again.add("I am back.")
    assert [one["content"] for one in (await again.context())["messages"]] == ["hello", "I am back."]
    with pytest.raises(StoreError, match="is gone"):
        await held.add("another program has deleted it")


async def test_an_engine_that_holds_a_conversation_keeps_it():
    store, clock = MemoryStore(), Clock()
    engine = Engine(store, clock=clock, keep_days=1)
    held = await engine.conversation("held")
    await held.add("hello")
    await filled(store, clock, "old")
    clock.now += 1.5 * DAY_S
    assert await engine.retain() == 1
    await held.add("still here")
    assert await names(store) == {"held"}


async def test_a_run_that_has_nothing_to_do_mostly_writes_nothing():
    store, clock, noted = MemoryStore(), Clock(), []

    async def swap(*row):
        noted.append(clock.now)
        return await MemoryStore.swap_learnt(store, *row)

    store.swap_learnt = swap
    await filled(store, clock, "chat")
    engine, began = Engine(store, clock=clock, keep_days=30), clock.now
    for _ in range(24):
        await engine.sweep()
        clock.now += PAUSE_S
    assert [at - began for at in noted] == [0, DAY_S / 4, DAY_S / 2, DAY_S * 3 / 4]


async def test_a_store_that_cannot_delete_does_not_keep_anybody_from_talking(caplog):
    store = MemoryStore()

    async def full(*_):
        raise StoreError("the disk is full")

    store.learnt = full
    engine = Engine(store, keep_days=1)
    await (await engine.conversation("chat")).add("hello")
    assert "the last use of the store could not be recorded: the disk is full" in caplog.text
    assert "old conversations could not be deleted: the disk is full" in caplog.text
    with pytest.raises(StoreError):
        await Engine(store, keep_days=1).sweep()


@pytest.mark.parametrize("days", [0, -1, float("inf"), float("nan")])
def test_a_time_that_cannot_be_is_refused(days):
    with pytest.raises(ConfigError) as caught:
        Engine(MemoryStore(), keep_days=days)
    assert caught.value.hint


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_that_cannot_be_is_refused(share):
    with pytest.raises(ConfigError) as caught:
        Engine(MemoryStore(), max_expired_share=share)
    assert caught.value.hint


@pytest.mark.parametrize("moment", [float("nan"), float("inf"), float("-inf")])
async def test_before_no_moment_nothing_is_deleted(moment):
    store = MemoryStore()
    await (await Engine(store).conversation("chat")).add("hello")
    with pytest.raises(ConfigError) as caught:
        await Engine(store).expire(moment)
    assert caught.value.hint
    assert await names(store) == {"chat"}


@pytest.mark.feature("X2")
@pytest.mark.parametrize("hours", [25, 47])
async def test_a_jump_of_the_clock_does_not_end_a_wait_of_the_program_that_runs(hours):
    store, clock, steady = MemoryStore(), Clock(), Clock()
    await filled(store, clock, *"abcdefghij")
    for _ in range(4):  # used in between, so that the clock is believed
        clock.now += 1.5 * DAY_S
        await Engine(store, clock=clock, keep_days=30).sweep()
    clock.now += 1.5 * DAY_S
    engine = Engine(store, clock=clock, keep_days=5)
    engine.steady = steady
    await engine.sweep()
    assert len(await names(store)) == 9
    clock.now += hours * PAUSE_S
    steady.now += 1
    await engine.sweep()
    assert len(await names(store)) == 9
    for _ in range(25):
        clock.now += PAUSE_S
        steady.now += PAUSE_S
        await engine.sweep()
    assert await names(store) == set()
