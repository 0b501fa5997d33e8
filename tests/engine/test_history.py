"""What was shown at an earlier time, told from the store alone."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest

from refold.model.errors import InvalidWindow, NotFound
from refold.stores.memory import MemoryStore
from tests.engine.test_stored_conversation import answer, engine, long
from tests.policies import ARRIVING

USAGE = {"prompt_tokens": 900, "completion_tokens": 50, "total_tokens": 950}
FIELDS = {"messages": [{"role": "system", "content": "You fix bugs."}], "tools": []}


@pytest.fixture
def store():
    return MemoryStore()


async def test_every_call_of_a_long_conversation_can_be_put_together_again(store):
    talk, sent = await engine(store).conversation("chat"), []
    for number in range(45):
        await talk.add(*answer(number)[:3])
        sent.append(await talk.context())
        await talk.record(USAGE)
        await talk.add(answer(number)[3])
    again = await engine(store).conversation("chat")

    calls = await store.calls("local", "chat")
    assert [await again.window_of(call) for call in calls] == sent
    assert len({call.session for call in calls}) > 1


async def test_a_call_tells_what_left_also_where_something_was_left_out_for_it_only(store):
    talk = await engine(store).conversation("chat")
    await talk.add(*answer(0), *answer(1)[:2])  # the call of the second answer waits for its result
    await talk.add("never mind, what is the time?")
    sent = await talk.context()
    await talk.record(USAGE)
    await talk.add({"role": "assistant", "content": "noon"})

    (call,) = await store.calls("local", "chat")
    assert await (await engine(store).conversation("chat")).window_of(call) == sent


async def test_a_call_is_of_its_own_time_though_the_reply_was_added_first(store):
    talk = await engine(store).conversation("chat")
    await talk.add("hello")
    sent = await talk.context()
    await talk.add({"role": "assistant", "content": "hi"})
    await talk.record(USAGE)

    (call,) = await store.calls("local", "chat")
    assert call.size == 1
    assert await talk.window_of(call) == sent


async def test_a_summary_s_own_call_has_no_window(store):
    async def write(messages, *, previous, max_tokens):
        return "Questions were asked about files, and answered. " * 5

    talk = await engine(store, summariser=write).conversation("chat")
    for number in range(30):
        await talk.add(*answer(number))
        await talk.ready()
    (call, *_) = [call for call in await store.calls("local", "chat") if call.kind == "summary"]

    with pytest.raises(NotFound, match="no window is stored"):
        await talk.window_of(call)


async def test_before_and_after_of_every_change_meet(store):
    talk = await long(engine(store), turns=60)
    changes = [
        one for one in await store.compactions("local", talk._journal.head.branch) if one.kind != "arrival"
    ]
    assert len(changes) > 2

    for one in changes:
        found = await talk.diff(one)
        assert (found.before.tokens, found.after.tokens) == (one.before, one.after)


async def test_a_call_tells_what_left_also_when_its_compaction_was_done_again_since(store):
    talk = await long(engine(store), turns=20)
    await talk.add("and now?")
    await talk.compact()
    sent = await talk.context()
    await talk.record(USAGE)
    (call,) = await store.calls("local", "chat")
    await talk.add({"role": "assistant", "content": "this"}, "and then?")
    other = await engine(store, window=2_000, max_output=100).conversation("chat")

    assert await other.rerun()
    assert await talk.undo()
    await talk.compact()
    assert await talk.window_of(call) == sent
    assert await engine(store).examine("chat") == []


async def test_a_call_tells_what_left_also_when_a_shortening_was_taken_back_since(store):
    talk = await engine(store, policy=ARRIVING).conversation("chat")
    await talk.add(*answer(0), *answer(1, size=9_000)[:3])
    sent = [await talk.context()]
    await talk.record(USAGE)
    assert await talk.undo()
    sent.append(await talk.context())
    await talk.record(USAGE)
    assert len(json.dumps(sent[1])) > len(json.dumps(sent[0]))

    calls = await store.calls("local", "chat")
    assert [await talk.window_of(call) for call in calls] == sent
    fresh = await engine(store).conversation("chat")
    assert [await fresh.window_of(call) for call in calls] == sent


async def test_before_a_change_what_was_shortened_was_short_though_that_was_taken_back_since(store):
    talk = await engine(store, window=8_000, policy=ARRIVING).conversation("chat")
    await talk.add(*answer(0), *answer(1, size=20_000), *answer(2))
    with suppress(InvalidWindow):
        await talk.compact()
    branch = talk.branch
    assert [one.kind for one in await store.compactions("local", branch)] == ["arrival", "summarise"]
    assert await talk.undo()
    assert await talk.undo()

    (_, change) = await store.compactions("local", branch)
    found = await talk.diff(change)
    assert (found.before.tokens, found.after.tokens) == (change.before, change.after)


async def test_what_a_fork_begins_with_was_done_on_its_base(store):
    talk = await long(engine(store), turns=60)
    branch = await engine(store).fork("chat", talk.state.folded.size)
    await engine(store).fork("chat", talk.state.folded.size, branch=branch)
    fork = await engine(store).conversation("chat")

    (change,) = await store.compactions("local", fork.branch)
    found = await fork.diff(change)
    assert (found.before.tokens, found.after.tokens) == (change.before, change.after)
    assert found.before.summaries


async def test_the_request_that_a_conversation_came_in_with_serves_until_another_is_given(store):
    talk = await engine(store).conversation("chat")
    await talk.set_instructions(json.dumps(FIELDS).encode())
    await talk.add("hello", {"role": "assistant", "content": "hi"}, "and now?")

    first = (await (await engine(store).conversation("chat")).context())["messages"][0]
    assert first == FIELDS["messages"][0]
    other = await engine(store, system="You write poems.").conversation("chat")
    assert (await other.context())["messages"][0]["content"] == "You write poems."
    branch = await engine(store).fork("chat", 1)
    fork = await engine(store).conversation("chat", branch=branch)
    assert (await fork.context())["messages"][0] == FIELDS["messages"][0]


async def test_a_fork_keeps_to_itself_what_its_base_did(store):
    talk = await engine(store).conversation("chat")
    await talk.add("hello", {"role": "assistant", "content": "hi"})
    await talk.add("the password is hunter2 by the way", sensitive=True)
    await talk.add({"role": "assistant", "content": "noted"})
    branch = await engine(store).fork("chat", 4)
    fork = await engine(store).conversation("chat", branch=branch)
    for number in range(30):
        await fork.add(*answer(number))
        await fork.context()

    assert (await fork.status()).compactions
    assert "hunter2" not in json.dumps((await fork.compact())["messages"])
    assert "hunter2" in json.dumps(await fork.recall("#m2"))


async def test_where_no_content_is_kept_a_call_tells_none_either(store):
    talk = await engine(store, keeps_content=False).conversation("chat")
    await talk.set_instructions(json.dumps(FIELDS).encode())
    await talk.add(*answer(0), *answer(1)[:2])
    await talk.add("never mind xylophone")
    await talk.context()
    await talk.record(USAGE)

    (call,) = await store.calls("local", "chat")
    assert call.receipt == b""
    head = await store.head("local", "chat")
    assert b"You fix bugs" not in head.notes
