"""What retention deletes on every store: never by a clock that jumped, and never much at once without a second run."""

from __future__ import annotations

import asyncio
import logging

import pytest

from refold.engine.engine import Engine
from refold.model.errors import ConfigError
from tests.contract.talks import begin

HOUR, DAY = 3_600.0, 86_400.0
START = 1_700_000_000.0


class Clock:
    def __init__(self, now: float = START) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def engine(store, clock, **settings):
    """One more start of a program: what it knows it reads from the store."""
    return Engine(store, clock=clock, **{"keep_days": 30, **settings})


async def filled(store, clock, *names):
    for name in names:
        await (await Engine(store, clock=clock).conversation(name)).add("hello")


async def begun(store, count, at, prefix=""):
    for number in range(count):
        await begin(store, f"{prefix}{number:04}", "local", at=at + number)


async def names(store):
    return {one.id for one in await store.conversations("local", limit=9_999)}


async def run_on(store, clock, hours, step=HOUR, **settings):
    """A gateway that is there for so long, and looks every hour."""
    served, passed = engine(store, clock, **settings), 0.0
    while passed < hours * HOUR:
        clock.now, passed = clock.now + step, passed + step
        await served.sweep()


FIVE = ("one", "two", "three", "four", "five")


@pytest.mark.feature("X2")
@pytest.mark.parametrize("ran_before", [False, True])
async def test_one_start_with_a_clock_that_is_40_days_ahead_deletes_nothing(store, caplog, ran_before):
    clock = Clock()
    await filled(store, clock, *FIVE)
    if ran_before:
        await engine(store, clock).sweep()
    clock.now += 40 * DAY
    ahead = engine(store, clock)
    await ahead.sweep()
    await (await ahead.conversation("said by that clock")).add("hello")
    for _ in range(5):
        await engine(store, clock).sweep()
    await run_on(store, clock, 12)
    clock.now -= 40 * DAY
    await run_on(store, clock, 48)

    assert await names(store) == {*FIVE, "said by that clock"}
    assert await engine(store, clock).held_back() is None, "the clock was set right"
    assert "not deleted yet: 5 of 5 conversations that are past 30 days" in caplog.text
    assert "the clock is 40.0 days ahead of the last use of the store" in caplog.text
    assert not [name for name in FIVE if name in caplog.text]


@pytest.mark.feature("X2")
async def test_after_a_pause_of_40_days_they_are_deleted_when_the_clock_has_run_on_for_a_day(store):
    clock = Clock()
    await filled(store, clock, *FIVE)
    await engine(store, clock).sweep()
    clock.now += 40 * DAY
    await engine(store, clock).sweep()
    waiting = await engine(store, clock).held_back()
    assert (waiting.conversations, waiting.reason, waiting.since) == (5, "clock", clock.now)
    await run_on(store, clock, 12)
    await run_on(store, clock, 11)
    assert await names(store) == {*FIVE}, "a restart does not begin the day anew, nor end it"
    await run_on(store, clock, 1)

    assert await names(store) == set()
    assert await engine(store, clock).held_back() is None


@pytest.mark.parametrize("jumps", [(40, 80), (40, 41), (40, 41, 42), (400, 41, 42, 43)])
async def test_a_clock_that_jumps_again_does_not_confirm_itself(store, jumps):
    clock = Clock()
    await filled(store, clock, *FIVE)
    await engine(store, clock).sweep()
    for days in jumps:
        clock.now = START + days * DAY
        ahead = engine(store, clock)
        await ahead.sweep()
        await (await ahead.conversation("said by that clock")).add("hello")

    assert {*FIVE} < await names(store)


async def test_a_store_that_is_opened_once_a_day_needs_some_days_to_believe_the_clock(store):
    clock = Clock()
    await filled(store, clock, *FIVE)
    clock.now += 40 * DAY
    for _ in range(4):
        await engine(store, clock).sweep()
        assert await names(store) == {*FIVE}
        clock.now += DAY
    await engine(store, clock).sweep()
    assert await names(store) == set()


async def test_two_machines_with_one_right_clock_delete_nothing_by_the_wrong_one(store):
    right, wrong = Clock(), Clock(START + 40 * DAY)
    await filled(store, right, *FIVE)
    machines = [engine(store, right), engine(store, wrong)]
    for _ in range(72):
        for machine in machines:
            await machine.sweep()
        right.now, wrong.now = right.now + HOUR, wrong.now + HOUR

    assert await names(store) == {*FIVE}


async def test_a_clock_that_was_set_back_deletes_nothing_and_is_no_jump_when_it_is_set_right(store):
    clock = Clock()
    await filled(store, clock, *FIVE)
    await engine(store, clock).sweep()
    await begun(store, 1, START - 31 * DAY, "old")
    clock.now = 0.0  # a machine without a battery
    early = engine(store, clock)
    await early.sweep()
    talk = await early.conversation("one")
    await talk.add("hello again")
    del talk
    clock.now = START + HOUR
    await engine(store, clock).sweep()

    assert await names(store) == {*FIVE}, "the old one is gone, and nothing that was used meanwhile"


@pytest.mark.feature("X2")
@pytest.mark.parametrize("ran_before", [False, True])
@pytest.mark.parametrize("behind", [1_000.0, START - 400 * DAY, START - 35 * DAY])
async def test_what_was_used_while_the_clock_was_behind_is_not_old_when_it_is_right(
    store, behind, ran_before
):
    clock = Clock(START - 29 * DAY)
    await filled(store, clock, "before")
    clock.now = START
    await filled(store, clock, *FIVE)
    if ran_before:
        await engine(store, clock).sweep()
    clock.now = behind
    slow = engine(store, clock)
    await slow.sweep()
    for name in ("begun", "before"):
        talk = await slow.conversation(name)
        await talk.add("hello")
        del talk
    clock.now = START + 2 * HOUR
    await run_on(store, clock, 29 * 24, step=DAY)
    assert await names(store) == {*FIVE, "begun", "before"}
    await run_on(store, clock, 3 * 24, step=DAY)
    assert await names(store) == set()


async def test_a_conversation_dated_by_a_clock_that_was_ahead_does_not_keep_the_others(store):
    clock = Clock(START + 4_000 * DAY)
    await filled(store, clock, "ahead")
    clock.now = START
    await filled(store, clock, *FIVE)
    await engine(store, clock).sweep()
    await (await engine(store, clock).conversation("one")).add("hello again")
    await run_on(store, clock, 33 * 24, step=DAY)

    assert await names(store) == {"ahead"}


@pytest.mark.parametrize("wrong", [float("inf"), float("-inf"), float("nan")])
async def test_a_clock_without_a_time_is_refused_and_leaves_nothing_behind(store, wrong):
    clock = Clock()
    await filled(store, clock, "today")
    await engine(store, clock).sweep()
    clock.now = wrong
    for act in (engine(store, clock).sweep(), engine(store, clock).conversation("new")):
        with pytest.raises(ConfigError, match="is not a moment"):
            await act
    clock.now = START + 2 * HOUR
    await engine(store, clock).sweep()
    assert await names(store) == {"today"}


async def test_a_row_that_an_infinite_clock_left_behind_is_written_anew(store):
    clock = Clock()
    await begun(store, 1, START - 31 * DAY, "old")
    await filled(store, clock, "today")
    await store.learn("local", "retention", "time", b'{"at":null,"looked_at":null,"held":null}', START)
    assert await engine(store, clock).retain() == 1
    assert await names(store) == {"today"}


@pytest.mark.feature("X2")
async def test_of_1000_conversations_with_300_old_ones_100_are_deleted_and_a_day_later_the_others(
    store, caplog
):
    clock = Clock()
    await begun(store, 300, START - 40 * DAY, "old")
    await begun(store, 700, START - 10 * DAY, "new")
    await filled(store, clock, "in use")
    await store.delete("local", "new0699")

    assert await engine(store, clock).retain() == 100
    assert {f"old{number:04}" for number in range(100, 300)} < await names(store), "the oldest go first"
    waiting = await engine(store, clock).held_back()
    assert (waiting.conversations, waiting.reason) == (200, "share")
    assert "not deleted yet: 200 of 900 conversations that are past 30 days" in caplog.text
    assert "one run deletes 10 % of all at most" in caplog.text

    for hours in (0, 1, 22):
        clock.now += hours * HOUR
        assert await engine(store, clock).retain() == 0, "neither a restart nor an hour is a day"
    clock.now += HOUR
    assert await engine(store, clock).retain() == 200
    assert len(await names(store)) == 700
    assert await engine(store, clock).held_back() is None


async def test_what_is_used_meanwhile_is_not_deleted_with_the_rest(store):
    clock = Clock()
    await begun(store, 30, START - 40 * DAY, "old")
    await filled(store, clock, "in use")
    assert await engine(store, clock).retain() == 3
    await filled(store, clock, "old0010")
    clock.now += DAY
    assert await engine(store, clock).retain() == 26
    assert await names(store) == {"in use", "old0010"}


async def test_what_comes_of_age_meanwhile_waits_in_its_turn(store):
    clock = Clock()
    await begun(store, 30, START - 40 * DAY, "old")
    await begun(store, 70, START - 29.5 * DAY, "next")
    await filled(store, clock, "in use")
    assert await engine(store, clock).retain() == 10
    clock.now += DAY
    assert await engine(store, clock).retain() == 20 + 9, "what has waited, and a tenth of 91"
    assert (await engine(store, clock).held_back()).conversations == 61
    clock.now += DAY
    assert await engine(store, clock).retain() == 61
    assert await names(store) == {"in use"}


async def test_what_is_to_be_kept_for_longer_by_now_is_kept(store):
    clock = Clock()
    await begun(store, 30, START - 40 * DAY, "old")
    await filled(store, clock, "in use")
    assert await engine(store, clock, keep_days=3).retain() == 3
    clock.now += DAY
    assert await engine(store, clock, keep_days=300).retain() == 0
    assert len(await names(store)) == 28


@pytest.mark.parametrize("share, gone", [(0.0, 0), (0.01, 1), (0.1, 3), (0.5, 15), (1.0, 30)])
async def test_the_share_can_be_set(store, share, gone):
    clock = Clock()
    await begun(store, 30, START - 40 * DAY, "old")
    await filled(store, clock, "in use")
    assert await engine(store, clock, max_expired_share=share).retain() == gone
    clock.now += DAY
    assert await engine(store, clock, max_expired_share=share).retain() == 30 - gone


async def test_of_programs_that_run_at_the_same_moment_one_deletes(store):
    clock = Clock()
    await begun(store, 90, START - 40 * DAY, "old")
    await begun(store, 10, START - 10 * DAY, "new")
    await filled(store, clock, "in use")
    gone = await asyncio.gather(*(engine(store, clock).retain() for _ in range(6)))

    assert sum(gone) == 10
    assert len(await names(store)) == 91


async def test_each_owner_is_counted_alone(store):
    clock = Clock()
    await begun(store, 20, START - 40 * DAY, "old")
    await filled(store, clock, "in use")
    for number in range(50):
        await begin(store, f"{number}", "anna", at=START)
    assert await engine(store, clock).retain() == 2
    assert await engine(store, clock, owner="anna").retain() == 0
    assert len(await store.conversations("anna")) == 50
    assert await engine(store, clock, owner="anna").held_back() is None


async def test_an_owner_without_conversations_leaves_no_trace(store):
    await engine(store, Clock()).sweep()
    assert await store.owners() == []


async def test_a_moment_that_a_program_gives_is_taken_at_its_word(store, caplog):
    clock = Clock()
    await begun(store, 20, START - 40 * DAY, "old")
    await filled(store, clock, "in use")
    with caplog.at_level(logging.WARNING, "refold"):
        assert await engine(store, clock).expire(clock.now - 30 * DAY) == 20
    assert await names(store) == {"in use"}
    assert not caplog.records


async def test_the_first_program_looks_before_it_writes(store):
    """What it writes is dated by its clock, and would count as use of the store."""
    clock = Clock()
    await filled(store, clock, *FIVE)
    clock.now += 40 * DAY
    await (await engine(store, clock).conversation("new")).add("hello")
    await engine(store, clock).sweep()

    assert await names(store) == {*FIVE, "new"}
