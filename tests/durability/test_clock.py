"""Clocks are wrong: order comes from numbers, and a lease saves money and nothing else."""

from __future__ import annotations

import asyncio
import random

import pytest

from refold.engine.summary_jobs import LEASE_S
from tests.durability.checks import Line, Log, faults_of
from tests.durability.conversations import Author, compacted, engine, live_sessions, names, summarised, turn

HOUR, YEAR = 3_600.0, 365 * 86_400.0
JUMPS = {"an hour back": -HOUR, "an hour on": HOUR, "ten years back": -10 * YEAR}


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("jump", JUMPS.values(), ids=JUMPS)
async def test_what_a_dead_program_had_in_hand_is_free_after_a_lease(store, jump):
    clock, dead, author = Clock(), Author(waits=True), Author()
    talk = await engine(store, clock=clock, summariser=dead, window=100_000).conversation("talk")
    for number in range(10):
        await talk.add(*turn(number))
    late = asyncio.create_task(compacted(talk))
    await dead.is_asked.wait()
    clock.now += jump + LEASE_S + 1

    second = engine(store, clock=clock, summariser=author, window=100_000)
    await second.sweep()
    await compacted(await second.conversation("talk"))
    assert author.asked == 1
    assert await second.examine("talk") == []

    dead.may_answer.set()
    await late
    assert len(await live_sessions(store, await store.head(second.owner, "talk"))) == 2
    assert await second.examine("talk") == []


async def test_a_live_program_keeps_what_it_has_in_hand(store):
    clock, slow, author = Clock(), Author(waits=True), Author()
    talk = await engine(store, clock=clock, summariser=slow, window=100_000).conversation("talk")
    for number in range(10):
        await talk.add(*turn(number))
    writing = asyncio.create_task(compacted(talk))
    await slow.is_asked.wait()
    clock.now += LEASE_S / 2

    second = engine(store, clock=clock, summariser=author, window=100_000)
    await second.sweep()
    other = await second.conversation("talk")
    assert await summarised(other, author) is None
    assert author.asked == 0
    slow.may_answer.set()
    await writing


@pytest.mark.parametrize("is_frozen", [True, False], ids=["frozen", "jumping"])
async def test_whatever_the_clock_says_nothing_is_lost_and_nothing_forks(store, is_frozen):
    chance, clock, lines = random.Random(7), Clock(), list[Line]()
    talks = [
        await engine(store, clock=clock, summariser=Author(), window=1_600).conversation("talk")
        for _ in range(2)
    ]
    for number in range(40):
        clock.now += 0.0 if is_frozen else chance.choice([*JUMPS.values(), 10 * YEAR, 1.0])
        talk, messages = chance.choice(talks), turn(number, 100)
        lines.append(Line("intent", "talk", tuple(names(messages))))
        await talk.add(*messages)
        lines.append(Line("said", "talk", tuple(names(messages))))
        if chance.random() < 0.3:
            await compacted(talk)
        if chance.random() < 0.1:
            await talk.undo()
    await asyncio.gather(*(talk.ready() for talk in talks))

    assert len(await live_sessions(store, await store.head("local", "talk"))) > 3
    watcher = engine(store, clock=clock, window=1_600)
    await watcher.sweep()
    assert await faults_of(watcher, [Log(lines)], ["talk"], recalled=None) == []
