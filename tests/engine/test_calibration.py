"""Two programs that go on with one conversation by two models: each measures by its own, and neither disturbs the other."""

from collections import Counter

import pytest

from refold.engine.engine import Engine
from refold.stores.memory import MemoryStore
from tests.engine.test_stored_conversation import answer

LONG = "word " * 2_000


class Noting(MemoryStore):
    """A store that counts what it is asked to keep, and how many messages are read."""

    def __init__(self):
        super().__init__()
        self.asked = Counter()

    async def commit(self, seen, batch):
        self.asked["commit"] += 1
        return await super().commit(seen, batch)

    async def messages(self, head, first=0, last=None):
        found = await super().messages(head, first, last)
        self.asked["read"] += len(found)
        return found

    async def news(self, seen):
        found = await super().news(seen)
        self.asked["read"] += len(found.messages)
        return found


async def opened(store, *models):
    return [
        await Engine(store, window=100_000, max_output=200).conversation("chat", model=one) for one in models
    ]


async def called(talk, tokens):
    await talk.context()
    await talk.record({"prompt_tokens": tokens, "completion_tokens": 1})


@pytest.mark.feature("X12")
async def test_two_models_do_not_make_each_other_read_again():
    store = Noting()
    one, two = await opened(store, "gpt-4o", "gpt-4.1")
    await one.add(LONG)
    await called(one, 2_400)
    await two.status()
    store.asked.clear()
    for talk in (one, two) * 5:
        await talk.status()
        await talk.context()
        await talk.recall("#m0")
    assert store.asked == {}
    await one.add({"role": "assistant", "content": "ok"})
    await two.add("go on")
    await one.status()
    assert store.asked == {"commit": 2, "read": 2}, "each reads the message of the other"


@pytest.mark.feature("C3")
async def test_each_measures_by_its_own_model():
    store = MemoryStore()
    one, two = await opened(store, "gpt-4o", "gpt-4.1")
    await one.add(LONG)
    for number in range(4):
        await called(one, 4_000)
        await called(two, 2_400)
        await one.add(*answer(number)[:1])
    assert one.state.calibration.ratio > 1.5 > two.state.calibration.ratio
    assert (one.state.meter.anchor.prompt, two.state.meter.anchor.prompt) == (4_000, 2_400)
    calls = await store.calls("local", "chat")
    assert [call.model for call in calls] == ["gpt-4o", "gpt-4.1"] * 4
    assert one.state.meter.calls == 8, "what was billed is the conversation's"
    (third,) = await opened(store, "gpt-4o")
    assert third.state.calibration.ratio == pytest.approx(one.state.calibration.ratio, abs=0.02)


async def test_a_call_and_what_it_has_taught_are_one_commit():
    class WithoutLearn(Noting):
        async def learn(self, *_):
            raise AssertionError("a write of its own")

    store = WithoutLearn()
    (talk,) = await opened(store, "gpt-4o")
    await talk.add(LONG)
    store.asked.clear()
    await called(talk, 4_000)
    assert store.asked["commit"] == 1
    (other,) = await opened(store, "gpt-4o")
    assert other.state.calibration.ratio == talk.state.calibration.ratio > 1.5


async def test_a_model_is_noted_with_the_next_thing_that_is_kept_and_not_by_looking():
    store = Noting()
    (talk,) = await opened(store, "gpt-4o")
    await talk.add(LONG)
    store.asked.clear()
    (other,) = await opened(store, "gpt-4.1")
    await other.preview()
    assert store.asked["commit"] == 0
    assert (await store.head("local", "chat")).model == "gpt-4o"
    await other.add({"role": "assistant", "content": "ok"})
    assert (await store.head("local", "chat")).model == "gpt-4.1"
    assert store.asked["commit"] == 1
    (same,) = await opened(store, "")
    assert same._journal.model == "gpt-4.1"


async def test_attempts_at_recovery_are_bounded_though_another_model_writes_between():
    store = MemoryStore()
    one, two = await opened(store, "gpt-4o", "gpt-4.1")
    await one.add(LONG, {"role": "assistant", "content": "ok"})
    await one.add("and now?")
    await one.context()
    refusal = {"error": {"code": "context_length_exceeded", "message": "too long"}}
    await one.recover(refusal)
    await called(two, 2_400)
    await one.status()
    assert one.state.limits.attempts == 1
