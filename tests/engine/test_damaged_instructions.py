"""A stored system prompt that was changed on disk is sent to no model, and is mended by a program that gives its own."""

from __future__ import annotations

import json

import pytest

import refold
from refold.model.errors import Damaged
from refold.stores.sqlite.store import SqliteStore
from tests.damage import BAD_PROMPTS, damage_prompt, stored_prompts

SETTINGS = {"model": "gpt-4o", "window": 12_000}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
OTHERS = [{"type": "function", "function": {"name": "fetch", "parameters": {"type": "object"}}}]
KIND = {"role": "system", "content": "Be kind."}
EVIL = BAD_PROMPTS["another prompt"]


async def make(path, **given):
    async with refold.Engine(path, **SETTINGS) as engine:
        talk = await engine.conversation("tides", **given)
        await talk.add("When is the water high?", {"role": "assistant", "content": "At noon."}, "And low?")
        sent = await talk.context()
        await talk.record({"prompt_tokens": 30, "completion_tokens": 2})
        return sent


@pytest.fixture
async def path(tmp_path):
    await make(tmp_path / "chats.db", system="Be kind.")
    return tmp_path / "chats.db"


async def context(path, **given):
    async with refold.Engine(path, **SETTINGS) as engine:
        return await (await engine.conversation("tides", **given)).context()


@pytest.mark.parametrize("value", BAD_PROMPTS.values(), ids=BAD_PROMPTS)
async def test_no_request_is_made_with_it_and_the_messages_are_there(path, caplog, value):
    damage_prompt(path, "tides", value)
    async with refold.Engine(path, **SETTINGS) as engine:
        talk = await engine.conversation("tides")
        assert caplog.text.count("the conversation 'tides' is damaged: ") == 1
        for act in (talk.context, talk.compact):
            with pytest.raises(Damaged) as told:
                await act()
            assert told.value.conversation == "tides"
            assert "system prompt" in str(told.value)
            assert "system=" in told.value.hint
            assert "refold export" in told.value.hint
        assert (await talk.recall("#m1"))["content"] == "At noon."
        assert "#m1" in await talk.search("noon")
        await talk.add("And then?")
        assert (await engine.recall("tides", "#m3"))["content"] == "And then?"
        assert "system prompt" in str([one.what for one in await engine.examine("tides")])
    assert caplog.text.count("the conversation 'tides' is damaged: ") == 2, "once for each time it was opened"


@pytest.mark.parametrize("value", BAD_PROMPTS.values(), ids=BAD_PROMPTS)
async def test_a_prompt_that_is_given_is_sent_and_mends_the_stored_one(path, value):
    before = stored_prompts(path)
    damage_prompt(path, "tides", value)
    sent = await context(path, system="Be kind.")

    assert sent["messages"][0] == KIND
    assert stored_prompts(path) == before
    assert await context(path) == sent
    async with refold.Engine(path, **SETTINGS) as engine:
        assert await engine.examine("tides") == []


async def test_another_prompt_replaces_it(path):
    damage_prompt(path, "tides", b"evil")
    sent = await context(path, system="Be brief.")

    assert sent["messages"][0]["content"] == "Be brief."
    assert await context(path) == sent


async def test_a_prompt_that_is_set_later_replaces_it(path):
    damage_prompt(path, "tides", EVIL)
    async with refold.Engine(path, **SETTINGS) as engine:
        talk = await engine.conversation("tides")
        with pytest.raises(Damaged):
            await talk.context()
        await talk.set_system("Be kind.")
        assert (await talk.context())["messages"][0] == KIND
    assert (await context(path))["messages"][0] == KIND


async def test_an_imported_prompt_is_replaced_by_the_one_that_is_given(tmp_path):
    path = tmp_path / "chats.db"
    async with refold.Engine(path, **SETTINGS) as engine:
        talk = await engine.conversation("tides")
        await talk.set_instructions(json.dumps({"messages": [KIND], "temperature": 0.5}).encode())
        await talk.add("When is the water high?")
    damage_prompt(path, "tides", b"evil")
    sent = await context(path, system="Be brief.")

    assert sent["messages"][0]["content"] == "Be brief."
    assert await context(path) == sent


async def test_tools_alone_do_not_stand_for_a_prompt_unless_nothing_else_was_stored(tmp_path):
    both, alone = tmp_path / "both.db", tmp_path / "alone.db"
    await make(both, system="Be kind.", tools=TOOLS)
    sent = await make(alone, tools=TOOLS)
    for path in (both, alone):
        damage_prompt(path, "tides", EVIL)
        with pytest.raises(Damaged):
            await context(path, tools=OTHERS)

    with pytest.raises(Damaged):
        await context(both, tools=TOOLS)
    assert await context(alone, tools=TOOLS) == sent
    assert await context(alone) == sent


async def test_a_fork_is_mended_with_its_base(path):
    async with refold.Engine(path, **SETTINGS) as engine:
        base = (await engine.conversation("tides")).branch
        branch = await engine.fork("tides", 1)
    damage_prompt(path, "tides", EVIL)
    async with refold.Engine(path, **SETTINGS) as engine:
        side = await engine.conversation("tides", branch=branch)
        with pytest.raises(Damaged):
            await side.context()
        side = await engine.conversation("tides", branch=branch, system="Be kind.")
        assert (await side.context())["messages"][0] == KIND
        talk = await engine.conversation("tides", branch=base)
        assert (await talk.context())["messages"][0] == KIND


async def test_the_window_of_a_call_is_not_shown_with_it(path):
    damage_prompt(path, "tides", EVIL)
    async with refold.Engine(path, **SETTINGS) as engine:
        talk = await engine.conversation("tides")
        (call,) = await talk.calls()
        with pytest.raises(Damaged, match="'tides' is damaged: the bytes of a system prompt have changed"):
            await talk.window_of(call)
        await talk.set_system("Be kind.")
        assert (await talk.window_of(call))["messages"][0] == KIND


async def test_a_program_that_has_the_prompt_in_memory_does_not_read_it_again(path, monkeypatch):
    read = list[bytes]()
    found = SqliteStore.blob

    async def counted(store, head, digest):
        read.append(digest)
        return await found(store, head, digest)

    monkeypatch.setattr(SqliteStore, "blob", counted)
    async with refold.Engine(path, **SETTINGS) as engine, refold.Engine(path, **SETTINGS) as other:
        talk = await engine.conversation("tides")
        assert len(read) == 1
        damage_prompt(path, "tides", EVIL)
        await (await other.conversation("tides")).add("And then?")
        read.clear()
        assert (await talk.context())["messages"][0] == KIND
        assert read == []
