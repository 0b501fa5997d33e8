"""What is said while a summary is written comes after the cut, in its order, in every preset and store."""

from __future__ import annotations

import asyncio
import random
from functools import partial

import pytest

from refold.core.presets import PRESETS
from refold.stores.memory import MemoryStore
from tests.durability.conversations import Author, compacted, engine, live_sessions, names, turn
from tests.durability.notes import OWNER

SEEDS = 6
WAITS = (0, 1, 2, 5, 40)
"""How often others go first: mostly they hardly do, and now and then they get a lot done."""


async def kept_names(store, name: str = "talk") -> list[str]:
    head = await store.head(OWNER, name)
    return [
        one.body.decode().partition('"content":"')[2].partition(" ")[0] for one in await store.messages(head)
    ]


@pytest.mark.feature("L17")
async def test_messages_that_arrive_meanwhile_come_after_the_cut(store):
    author = Author(waits=True)
    talk = await engine(store, window=100_000, summariser=author).conversation("talk")
    for number in range(10):
        await talk.add(*turn(number))
    compacting = asyncio.create_task(compacted(talk))
    await author.is_asked.wait()
    other = await engine(store, window=100_000).conversation("talk")
    for number in range(10, 14):
        await (talk if number % 2 else other).add(*turn(number))
    author.may_answer.set()
    await compacting

    assert await kept_names(store) == [name for number in range(14) for name in names(turn(number))]
    head = await store.head(OWNER, "talk")
    before, after = await live_sessions(store, head)
    assert before.last == after.first <= 40
    assert after.last is None
    await talk.add({"role": "user", "content": "<end> and now?"})
    shown = names((await talk.context())["messages"])
    assert shown[-17:] == [*(name for number in range(10, 14) for name in names(turn(number))), "<end>"]
    assert await engine(store).examine("talk") == []


@pytest.mark.parametrize("preset", PRESETS)
async def test_nothing_is_lost_whatever_goes_on_at_the_same_time(preset):
    """Adding, reading, compacting and undoing overlap at every step of the store, in two programs."""
    for seed in range(SEEDS):
        store, chance = _Slow(seed), random.Random(seed)
        talks = [
            await engine(store, summariser=Author(), preset=preset).conversation("talk") for _ in range(2)
        ]
        for number in range(16):
            talk, messages = talks[chance.random() < 0.3], turn(number)
            also = [
                (0.5, talk.status),
                (0.5, chance.choice(talks).status),
                (0.4, partial(compacted, chance.choice(talks))),
            ]
            acts = [act for share, act in (*also, (0.15, talk.undo)) if chance.random() < share]
            chance.shuffle(acts)
            await asyncio.gather(talk.add(*messages), *(act() for act in acts))
        await asyncio.gather(*(talk.ready() for talk in talks))
        said = [name for number in range(16) for name in names(turn(number))]
        assert await kept_names(store) == said
        assert await engine(store).examine("talk") == []
        fresh = await engine(store, preset=preset).conversation("talk")
        for seq, name in enumerate(said):
            assert (await fresh.recall(f"#m{seq}"))["content"].startswith(name)


async def test_a_turn_in_flight_across_the_switch_stays_whole(store):
    """One program waits for a tool while another compacts."""
    one = await engine(store, window=100_000).conversation("talk")
    for number in range(10):
        await one.add(*turn(number))
    question, looks, result, answer = turn(10)
    await one.add(question, looks)
    other = await engine(store, window=100_000).conversation("talk")
    await compacted(other)
    await one.add(result)
    shown = (await one.context())["messages"]
    await one.add(answer)

    assert len(await live_sessions(store, await store.head(OWNER, "talk"))) == 2
    assert names(shown)[-3:] == names([question, looks, result])
    calls = {call["id"] for message in shown for call in message.get("tool_calls") or ()}
    assert calls == {message["tool_call_id"] for message in shown if message["role"] == "tool"}
    assert await engine(store).examine("talk") == []


async def test_an_act_that_is_cut_off_leaves_the_state_where_the_store_is(store, monkeypatch):
    """Cancelled between two steps, an undo is done or not done, and what comes next knows which."""
    talk = await engine(store, window=100_000).conversation("talk")
    for number in range(10):
        await talk.add(*turn(number))
    await compacted(talk)
    load, cut_off = talk._load, [1]

    async def loaded() -> None:
        if cut_off:
            cut_off.pop()
            raise asyncio.CancelledError
        await load()

    monkeypatch.setattr(talk, "_load", loaded)
    with pytest.raises(asyncio.CancelledError):
        await talk.undo()
    await talk.add({"role": "user", "content": "<end> and now?"})
    shown = (await talk.context())["messages"]

    assert names(shown) == [*(name for number in range(10) for name in names(turn(number))), "<end>"]
    await talk.add({"role": "assistant", "content": "<last> well"})
    await compacted(talk)
    assert await engine(store).examine("talk") == []


async def test_what_was_undone_is_done_again_without_being_paid_for_again(store):
    author = Author()
    talk = await engine(store, window=100_000, summariser=author).conversation("talk")
    for number in range(10):
        await talk.add(*turn(number))
    await compacted(talk)
    await talk.undo()
    await compacted(talk)

    assert author.asked == 1
    sessions = await store.sessions(OWNER, "talk")
    assert [(one.kind, one.state) for one in sessions] == [
        ("root", "live"),
        ("compaction", "undone"),
        ("compaction", "live"),
    ]
    (written,) = await store.written(OWNER, [sessions[0].summary])
    assert written.summary.kind == "model"
    assert written.summary.text.startswith("Task #m0: <q0> question")
    assert written.summary.own_text.startswith("What was said from")
    assert await engine(store).examine("talk") == []


async def test_two_who_begin_a_conversation_at_once_begin_the_same(store):
    one, two = await asyncio.gather(engine(store).conversation("talk"), engine(store).conversation("talk"))
    await one.add({"role": "user", "content": "<one> hello"})
    await two.add({"role": "assistant", "content": "<two> hello"})

    assert await kept_names(store) == ["<one>", "<two>"]
    assert len(await store.sessions(OWNER, "talk")) == 1


async def test_what_comes_twice_at_the_same_time_with_one_key_is_kept_once(store):
    one, two = [await engine(store).conversation("talk") for _ in range(2)]
    message = {"role": "user", "content": "<one> hello"}
    await asyncio.gather(*(talk.add(message, key="same") for talk in (one, two, one, two)))

    assert await kept_names(store) == ["<one>"]


class _Slow(MemoryStore):
    """A store that lets others go first at every call, as a database does, for as long as chance will have it."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._chance = random.Random(seed)

    def __getattribute__(self, name: str):
        found = super().__getattribute__(name)
        if name.startswith("_") or not asyncio.iscoroutinefunction(found):
            return found

        async def slowly(*args, **kwargs):
            for _ in range(self._chance.choice(WAITS)):
                await asyncio.sleep(0)
            try:
                return await found(*args, **kwargs)
            finally:
                for _ in range(self._chance.choice(WAITS)):
                    await asyncio.sleep(0)

        return slowly
