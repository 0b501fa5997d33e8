"""How full a kept conversation is, and whether it has to be compacted: for every preset, and after every restart."""

import pytest
from msgspec import structs

from refold.core.presets import PRESETS
from refold.engine.journal import read_notes
from refold.engine.settings import ConversationSettings, state_for
from refold.stores.memory import MemoryStore
from tests.engine.test_stored_conversation import answer, engine, stated


async def report(talk) -> None:
    """What a provider says that counts a little more than we do."""
    await talk.record({"prompt_tokens": talk.measurement.content.tokens * 21 // 20, "completion_tokens": 20})


async def said(talk, number) -> None:
    """A turn with two calls, as a program makes them."""
    question, call, result, last = answer(number)
    await talk.add(question)
    await talk.context()
    await report(talk)
    await talk.add(call)
    await talk.add(result)
    await talk.context()
    await report(talk)
    await talk.add(last)


@pytest.mark.feature("X2")
@pytest.mark.parametrize("preset", PRESETS)
async def test_what_is_told_after_a_restart_is_what_was_told_before(preset):
    store = MemoryStore()
    talk = await engine(store, preset=preset).conversation("chat")
    for number in range(30):
        await said(talk, number)
        status = await talk.status()
        again = await engine(store, preset=preset).conversation("chat")
        assert await again.status() == status
        (listed,) = await engine(store).conversations()
        assert (listed.tokens, listed.limit, listed.reason) == (status.tokens, status.limit, status.flag)
        assert (listed.messages, listed.ratio) == (status.messages, status.ratio)
        assert status.tokens == pytest.approx(talk.measurement.content.tokens, rel=0.1)
    assert status.messages == 120
    assert status.compactions > 0


@pytest.mark.feature("X2")
@pytest.mark.parametrize("preset", PRESETS)
async def test_whoever_has_to_compact_says_so_first_and_not_afterwards(preset):
    store = MemoryStore()
    roomy = await engine(store, window=100_000).conversation("chat")
    for number in range(3):
        await roomy.add(*answer(number))
    assert not (await (await engine(store, preset=preset).conversation("chat")).status()).needs_compaction
    for number in range(3, 30):
        await roomy.add(*answer(number))
    await roomy.add("and now?")
    small = await engine(store, preset=preset).conversation("chat")
    status = await small.status()
    assert status.needs_compaction
    assert status.ratio > 1
    assert "tokens" in status.flag or "messages" in status.flag
    await small.context()
    assert small.receipts
    await small.add({"role": "assistant", "content": "done"})
    assert not (await small.status()).needs_compaction


@pytest.mark.feature("X2")
@pytest.mark.parametrize("preset", ["lis", "llms", "opal"])
async def test_a_threshold_that_is_passed_counts_though_the_window_is_not_full(preset):
    talk = await engine(MemoryStore(), preset=preset).conversation("chat")
    for number in range(9):
        await talk.add(*answer(number))
    await talk.add("and now?")
    await talk.context()
    before = await talk.status()
    await talk.record({"prompt_tokens": 3_400, "completion_tokens": 9})
    status = await talk.status()
    assert (before.needs_compaction, status.needs_compaction) == (False, True)
    assert before.ratio < 0.8
    assert status.tokens == 3_400
    assert "3,4" in status.flag
    assert "80 %" in status.flag


async def test_what_was_taken_back_says_that_it_has_to_be_done():
    store = MemoryStore()
    talk = await engine(store, window=100_000).conversation("chat")
    for number in range(30):
        await talk.add(*answer(number))
    await talk.add("and now?")
    small = await engine(store).conversation("chat")
    await small.context()
    assert not (await small.status()).needs_compaction
    while await small.undo():
        pass
    status = await small.status()
    assert status.needs_compaction
    noted = read_notes((await store.head("local", "chat")).notes).standing
    assert (noted.tokens, noted.reason) == (status.tokens, status.flag)


@pytest.mark.feature("X2")
async def test_a_session_that_begins_anew_is_listed_as_empty_as_it_is():
    store = MemoryStore()
    talk = await engine(store).conversation("chat")
    for number in range(15):
        await said(talk, number)
    (full,) = await engine(store).conversations()
    await talk.start_session()
    (anew,) = await engine(store).conversations()
    first = (await engine(store).sessions("chat"))[0]
    await talk.resume(first)
    (again,) = await engine(store).conversations()
    assert full.ratio > 0.5
    assert (anew.tokens, anew.reason) == (0, "")
    assert again.tokens == pytest.approx(full.tokens, rel=0.05)


async def test_asking_how_full_it_is_writes_nothing_and_makes_nobody_read_again():
    store = MemoryStore()
    talk, other = [await engine(store, window=window).conversation("chat") for window in (4_000, 9_000)]
    await talk.add("hello")
    await other.context()
    before = await store.head("local", "chat")
    for each in (talk, other, talk, other):
        await each.status()
        await each.context()
    assert await store.head("local", "chat") == before


async def test_a_limit_of_the_user_s_or_one_that_a_provider_stated_is_what_there_is():
    talk = await engine(MemoryStore(), window=100_000, limit=50_000).conversation("chat")
    await talk.add("hello")
    assert (await talk.status()).limit == 50_000
    await talk.apply(stated(5_000))
    assert (await talk.status()).limit == 5_000


async def test_a_policy_that_is_switched_off_has_nothing_to_do():
    policy = structs.replace(PRESETS["opal"], enabled=False)
    talk = await engine(MemoryStore(), policy=policy).conversation("chat")
    for number in range(40):
        await talk.add(*answer(number))
    assert (await talk.status()).ratio > 1
    assert not (await talk.status()).needs_compaction


def test_a_flag_is_for_the_next_call_alone():
    state, _ = state_for(ConversationSettings(model="gpt-4o"))
    state = structs.replace(state, flag="it was asked for")
    flags = {moment: state.now(moment).flag for moment in ("turn_start", "before_call", "after_call")}
    assert flags == {"turn_start": "", "before_call": "it was asked for", "after_call": ""}
