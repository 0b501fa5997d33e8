"""What the face promises about settings, stores and cancelled calls."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import refold
from refold.stores.memory import MemoryStore
from refold.testing import ScriptedUpstream


async def test_a_summariser_that_cannot_work_begins_no_conversation(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    async with refold.Engine("memory:") as engine:
        for name in ("openai:gpt-4o-mini", "nope", "nope:model"):
            with pytest.raises(refold.ConfigError):
                await engine.conversation("chat", summariser=name)
        assert await engine.conversations() == []
    with pytest.raises(refold.ConfigError):
        refold.Engine("memory:", summariser="openai:gpt-4o-mini")
    with pytest.raises(refold.ConfigError):
        refold.Conversation(summariser="openai:gpt-4o-mini")


async def compacted(**settings):
    """A conversation in memory that was compacted on request."""
    chat = refold.Conversation(window=3_000, max_output=200, **settings)
    for number in range(30):
        await chat.add(f"question {number} " + "of some length " * 10)
        await chat.add({"role": "assistant", "content": f"answer {number} " + "of some length " * 10})
    await chat.add("and now?")
    await chat.compact()
    return chat


async def test_a_rerun_takes_a_summariser_by_its_name():
    chat = await compacted()
    assert "PAID" not in str(await chat.context())
    async with ScriptedUpstream(
        otherwise="PAID summary: the user asks thirty questions of some length."
    ) as server:
        assert await chat.rerun(summariser=f"some-model@{server.url}/v1")
        assert server.requests
    assert "PAID" in str(await chat.context())


async def test_a_name_without_a_provider_is_refused_before_a_rerun_changes_anything(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    chat = await compacted()
    sent = await chat.context()
    for name in ("openai:gpt-4o", "nope"):
        with pytest.raises(refold.ConfigError):
            await chat.rerun(summariser=name)
    assert await chat.context() == sent


async def test_a_conversation_in_memory_lists_its_compactions_and_calls():
    chat = await compacted()
    sent = await chat.context()
    await chat.record({"prompt_tokens": 500, "completion_tokens": 4})

    (call,) = await chat.calls()
    *_, change = await chat.compactions()

    assert await chat.window_of(call) == sent
    found = await chat.diff(change)
    assert found.before.tokens > found.after.tokens
    assert await chat.undo()
    assert [one.state for one in await chat.compactions() if one.id == change.id] == ["undone"]
    assert await chat.compactions(limit=0) == await chat.calls(limit=0) == []


@pytest.mark.parametrize("verb", ["diff", "window_of"])
async def test_the_hint_names_a_method_that_a_conversation_has(verb):
    chat = refold.Conversation()
    with pytest.raises(refold.ConfigError) as refused:
        await getattr(chat, verb)("x")
    assert hasattr(chat, refused.value.hint.removeprefix("`").partition("(")[0])


@pytest.mark.parametrize("name", ["memory:", "sqlite:", "a:b.db", "a=b.db"])
async def test_a_path_is_a_path_whatever_it_is_called(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    async with refold.Engine(Path(name)) as engine:
        await (await engine.conversation("chat")).add("hello")
    assert (tmp_path / name).exists()


async def test_an_engine_that_was_closed_can_be_opened_again(tmp_path):
    engine = refold.Engine(f"sqlite:///{tmp_path}/chats.db")
    for size in (1, 2):
        async with engine:
            chat = await engine.conversation("chat")
            await chat.add("hello")
            assert (await chat.status()).messages == size
    with pytest.raises(refold.ConfigError, match="the engine is not open"):
        await engine.conversations()


@pytest.mark.parametrize("preset", ["refold", "lis", "opal", "llms"])
async def test_a_compaction_that_is_to_keep_everything_takes_nothing_out(preset):
    chat = refold.Conversation(window=20_000, max_output=500, preset=preset)
    for number in range(20):
        await chat.add(f"question {number} " + "of some length " * 10)
        await chat.add({"role": "assistant", "content": f"answer {number} " + "of some length " * 10})
    await chat.add("and now?")
    sizes = []
    for keep in (500, 2_000, 8_000):
        await chat.compact(keep=keep)
        sizes.append(len((await chat.context())["messages"]))
        await chat.undo()
    assert sizes == sorted(sizes)
    assert sizes[-1] == 41


class Slow(MemoryStore):
    """A store that stores when it is told to, whoever stopped waiting meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked, self.may_go = asyncio.Event(), asyncio.Event()
        self.may_go.set()

    async def commit(self, seen, batch):
        self.is_asked.set()
        await asyncio.shield(asyncio.ensure_future(self.may_go.wait()))
        return await super().commit(seen, batch)


async def test_without_content_a_session_that_was_begun_though_nobody_waited_is_the_open_one():
    store = Slow()
    engine = refold.Engine(store, keeps_content=False)
    chat = await engine.conversation("chat")
    await chat.add("the old session", {"role": "assistant", "content": "yes"})
    store.is_asked.clear()
    store.may_go.clear()
    begun = asyncio.create_task(chat.start_session())
    await store.is_asked.wait()
    begun.cancel()
    await asyncio.sleep(0)
    store.may_go.set()
    with pytest.raises(asyncio.CancelledError):
        await begun
    await chat.add("the new session")
    sessions = await engine.sessions("chat")
    sent = [message["content"] for message in (await chat.context())["messages"]]
    assert len(sessions) == 2
    assert sent == ["the new session"]


async def test_what_is_not_shown_any_more_cannot_be_pinned():
    chat = refold.Conversation()
    await chat.add("first", {"role": "assistant", "content": "said"})
    await chat.start_session()
    with pytest.raises(refold.ConfigError, match="is not shown any more") as error:
        await chat.pin("#m0")
    assert error.value.hint
