"""The engine: which conversation a name and a branch mean, what a search finds, what closing and sweeping leave behind."""

from __future__ import annotations

import asyncio
import re

import pytest
from msgspec import structs

from refold.engine.engine import Engine
from refold.engine.summary_jobs import LEASE_S
from refold.model.errors import ConfigError, Conflict, NotFound, RefoldError
from refold.model.summary import Summary
from refold.ports.records import Batch, Compaction
from refold.stores.memory import MemoryStore
from refold.stores.url import open_store
from tests.engine.test_stored_conversation import answer, engine, long


def reply(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


async def test_a_branch_that_is_not_there_is_said_to_be_so_and_nothing_is_written():
    store = MemoryStore()
    made = engine(store)
    await (await made.conversation("chat")).add("hello")
    with pytest.raises(NotFound) as caught:
        await made.conversation("chat", branch="typo")
    assert "typo" in str(caught.value)
    assert caught.value.hint
    with pytest.raises(NotFound):
        await made.conversation("another", branch="typo")
    assert [one.id for one in await made.conversations()] == ["chat"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"preset": "nope"},
        {"window": -5},
        {"window": 1_000, "max_output": 10**9, "thinking_budget": 10**9},
        {"window": 1_000, "system": "rule " * 4_000},
        {"format": "klingon"},
        {"system": 5},
        {"sensitive": ["("]},
    ],
    ids=lambda wrong: str(wrong)[:70],
)
async def test_of_a_conversation_whose_settings_cannot_work_nothing_is_kept(wrong):
    made = Engine(MemoryStore())
    with pytest.raises(RefoldError):
        await made.conversation("chat", **wrong)
    assert await made.conversations() == []
    talk = await made.conversation("chat", title="It works")
    await talk.add("hello")
    assert [one.title for one in await made.conversations()] == ["It works"]


async def test_a_conversation_stays_in_the_format_that_it_was_begun_in():
    store = MemoryStore()
    await (await Engine(store).conversation("chat")).add("hello")
    with pytest.raises(ConfigError, match="chat") as caught:
        await Engine(store).conversation("chat", format="anthropic")
    assert caught.value.hint
    for settings in ({}, {"format": "chat"}):
        talk = await Engine(store, format="anthropic").conversation("chat", **settings)
        assert (await talk.context())["messages"] == [{"role": "user", "content": "hello"}]
    other = await Engine(store, format="anthropic").conversation("other")
    assert other._journal.head.format == "anthropic"


async def test_two_who_begin_a_conversation_at_once_begin_the_same_one():
    store, create = MemoryStore(), MemoryStore.create

    async def second(*args, **settings):
        store.create = lambda *args, **settings: create(store, *args, **settings)
        await (await Engine(store).conversation("chat")).add("I was first.")
        return await store.create(*args, **settings)

    store.create = second
    talk = await Engine(store).conversation("chat")
    await talk.add("And I second.")
    assert [one["content"] for one in (await talk.context())["messages"]] == ["I was first.", "And I second."]


async def test_the_engine_s_model_serves_where_no_other_is_known():
    store = MemoryStore()
    made = Engine(store, model="gpt-4o-mini")
    await made.conversation("plain")
    await made.conversation("other", model="gpt-4o")
    assert [(await store.head("local", name)).model for name in ("plain", "other")] == [
        "gpt-4o-mini",
        "gpt-4o",
    ]

    again = Engine(store, model="gpt-5")
    opened = [await again.conversation(name) for name in ("plain", "other")]
    assert [one._journal.head.model for one in opened] == ["gpt-4o-mini", "gpt-4o"]


async def test_two_processes_that_note_what_they_were_charged_both_count(tmp_path):
    usage = {"prompt_tokens": 4_000, "completion_tokens": 10}
    store = await open_store(f"sqlite:///{tmp_path / 'chats.db'}")
    one = await Engine(store).conversation("chat", model="gpt-4o-mini")
    await one.add("word " * 2_000)
    two = await Engine(store).conversation("chat")
    for talk in (one, two):
        await talk.context()
    for talk in (one, two):
        await talk.record(usage)

    reopened = await Engine(store).conversation("chat")
    charged = sum(call.dollars for call in await store.calls("local", "chat"))
    assert charged > 0
    assert reopened.bill.spent == pytest.approx(charged)
    await store.close()


async def test_an_open_conversation_that_is_deleted_and_begun_anew_shows_nothing_of_the_old_one():
    store = MemoryStore()
    made = engine(store)
    old = await made.conversation("chat")
    await old.add("what was deleted")
    await made.delete("chat")
    new = await made.conversation("chat")
    await new.add("what is new")
    with pytest.raises((NotFound, Conflict)):
        await store.commit(old._journal.head, Batch(at=1.0, notes=b"old"))
    for act in (old.context, old.status, old.undo, lambda: old.add("who am I?")):
        with pytest.raises(NotFound, match="deleted and begun anew") as caught:
            await act()
        assert caught.value.hint
    assert [len(await store.messages(await store.head("local", "chat")))] == [1]
    assert [one["content"] for one in (await new.context())["messages"]] == ["what is new"]


async def test_a_fork_shows_the_same_when_its_base_is_undone():
    store = MemoryStore()
    made = engine(store)
    talk = await long(made, turns=60)
    branch = await made.fork("chat", talk._journal.head.next_seq)
    fork = await made.conversation("chat", branch=branch)
    await fork.add("and here?")
    before = await fork.context()
    assert fork.state.folded.summaries
    while await talk.undo():
        pass

    again = await made.conversation("chat", branch=branch)
    assert await again.context() == before
    assert await made.examine("chat") == []
    assert not await again.undo(), "what the base did is not the fork's to take back"


async def test_summaries_are_found_by_their_handles_in_a_fork():
    store = MemoryStore()
    made = engine(store)
    talk = await long(made, turns=60)
    count = talk.state.folded.numbered + len(talk.state.folded.past)
    assert count > 2
    branch = await made.fork("chat", talk._journal.head.next_seq)
    fork = await made.conversation("chat", branch=branch)

    handles = [f"#s{number}" for number in range(count)]
    assert [await fork.recall(one) for one in handles] == [await talk.recall(one) for one in handles]
    with pytest.raises(NotFound) as caught:
        await fork.recall(f"#s{count}")
    assert caught.value.hint


async def test_the_summary_that_a_resumed_session_shows_is_found_by_its_handle():
    store = MemoryStore()
    talk = await long(engine(store), turns=60)
    closed = [one for one in await engine(store).sessions("chat") if one.kind == "compaction" and one.last]
    await talk.start_session()
    await talk.add("hi", reply("hello"))
    small = await engine(store, window=1_500).conversation("chat")
    assert (await small.resume(closed[-1])).carries == "summary"

    (shown,) = small.state.folded.summaries
    assert await small.recall(f"#s{shown.number}") == shown.text
    for number in range(60, 90):
        await small.add(*answer(number))
    again = await engine(store, window=1_500).conversation("chat")
    assert shown.number not in {one.number for one in again.state.folded.summaries}
    assert await again.recall(f"#s{shown.number}") == shown.text
    assert await engine(store).examine("chat") == []


@pytest.mark.feature("L16")
async def test_a_session_without_messages_is_not_found_by_words_of_the_next():
    made = engine(MemoryStore())
    talk = await made.conversation("chat")
    await talk.start_session()
    await talk.add("apples are red", reply("yes"))
    assert [(one.first, one.last, one.kind) for _, one in await made.find_sessions("apples")] == [
        (0, None, "new")
    ]


class CounterChoice:
    """A store that counts how often it is asked."""

    def __init__(self, store):
        self._store, self.asked = store, 0

    def __getattr__(self, name):
        self.asked += 1
        return getattr(self._store, name)


async def test_to_find_a_session_takes_as_long_among_many_conversations_as_among_few():
    asked = []
    for count in (3, 60):
        store = CounterChoice(MemoryStore())
        made = engine(store)
        for number in range(count):
            await (await made.conversation(f"talk {number}")).add("hello there")
        target = (await made.sessions("talk 1"))[0]
        store.asked = 0
        assert await made.find_sessions(target.id[:8]) == [("talk 1", target)]
        assert await made.find_sessions("zebras") == []
        asked.append(store.asked)
    assert asked[0] == asked[1]


async def test_sessions_are_found_by_words_however_many_there_are():
    made = engine(MemoryStore())
    talk = await made.conversation("chat")
    await talk.add("the zebras", reply("yes"))
    first = talk._journal.session
    await talk.start_session()
    store = made.store
    for number in range(1_010):
        head = await store.head("local", "chat")
        opened = structs.replace(talk._journal.session, id=f"s{number}", first=head.next_seq)
        await store.commit(head, Batch(at=1.0, opens=opened))
    assert [one.id for _, one in await made.find_sessions("zebras")] == [first.id]


async def test_plans_that_stopped_work_left_are_swept():
    now = [1_000.0]
    store = MemoryStore()
    made = engine(store, clock=lambda: now[0])
    talk = await made.conversation("chat")
    head = talk._journal.head
    for number in range(20):
        plan = Compaction(
            id=f"p{number}", branch=head.branch, kind="summarise", base=head.session, cut=1, at=now[0]
        )
        await store.plan("local", plan)
    assert await made.sweep() == 0, "whoever planned it may be about to begin"
    now[0] += LEASE_S + 1
    assert await made.sweep() == 20
    assert await store.unfinished("local") == []


class Waiting:
    """A summariser that waits for somebody to open the gate."""

    def __init__(self):
        self.begun, self.gate = asyncio.Event(), asyncio.Event()

    async def write(self, task):
        self.begun.set()
        await self.gate.wait()
        return Summary("written", task.first, task.last, 0, "model", task.scope)


async def test_closing_an_engine_stops_what_its_conversations_do_while_it_can_be_written_down(tmp_path):
    url, waiting = f"sqlite:///{tmp_path / 'chats.db'}", Waiting()
    made = engine(await open_store(url), summariser=waiting)
    talk = await made.conversation("chat")
    for number in range(40):
        await talk.add(*answer(number))
        await asyncio.sleep(0)
        if waiting.begun.is_set():
            break
    await asyncio.wait_for(waiting.begun.wait(), 10)
    await made.close()

    store = await open_store(url)
    assert {one.holder for one in await store.unfinished("local")} <= {""}, "nobody has to wait for a lease"
    await store.close()


async def test_a_name_that_cannot_be_one_is_refused():
    with pytest.raises(ConfigError):
        await engine(MemoryStore()).conversation("")


async def test_a_found_message_is_told_with_its_handle():
    made = engine(MemoryStore())
    await (await made.conversation("chat")).add("where the zebras live", reply("in the savanna"))
    (found,) = await made.search("zebras")
    assert (found.conversation, found.handle) == ("chat", "#m0")
    assert re.search("zebras", found.text)


@pytest.mark.parametrize("name", ["", " ", "\t", "   "])
async def test_a_conversation_has_a_name_that_can_be_seen(name):
    with pytest.raises(ConfigError, match="name for a conversation") as refused:
        await Engine(MemoryStore()).conversation(name)

    assert "not only spaces" in refused.value.hint
