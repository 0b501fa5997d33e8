"""A damaged message in a real file is named, and ends nothing else: not a search, not another conversation."""

from __future__ import annotations

import pytest

import refold
from refold.engine.damage import placeholder_text
from refold.model.errors import Damaged, NotFound, StoreError
from tests.damage import BAD_BODIES, damage

SETTINGS = {"model": "gpt-4o", "window": 12_000}


@pytest.fixture
async def path(tmp_path):
    """A file with two conversations that say hello, the first of which is damaged."""
    made = tmp_path / "chats.db"
    async with refold.Engine(made, **SETTINGS) as engine:
        for name in ("bad", "good"):
            talk = await engine.conversation(name)
            await talk.add(f"hello from {name}")
            await talk.add({"role": "assistant", "content": "noted"})
        assert len(await engine.search("hello")) == 2, "the index has taken them up"
    return made


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES)
async def test_a_search_over_everything_says_which_message_is_damaged_and_finds_the_others(path, body):
    damage(path, "bad", 0, body)
    async with refold.Engine(path, **SETTINGS) as engine:
        found = {one.conversation: one for one in await engine.search("hello")}

    assert "hello from good" in found["good"].text
    assert not found["good"].damage
    assert (found["bad"].text, found["bad"].handle, found["bad"].damage) == (
        "",
        "#m0",
        "message 0 cannot be read",
    )


async def test_a_message_that_was_damaged_before_it_was_indexed_is_found_by_the_words_that_are_left(tmp_path):
    path = tmp_path / "chats.db"
    async with refold.Engine(path, **SETTINGS) as engine:
        talk = await engine.conversation("bad")
        await talk.add("the night boat leaves at two", {"role": "assistant", "content": "noted"})
    damage(path, "bad", 0, b'{"role": "user", "content": "the night boat lea')
    async with refold.Engine(path, **SETTINGS) as engine:
        (found,) = await engine.search("night boat")
        assert (found.handle, found.text, found.damage) == ("#m0", "", "message 0 cannot be read")
        assert await engine.search("two") == []


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES)
async def test_the_conversation_itself_opens_and_the_message_says_what_is_damaged_and_what_helps(path, body):
    damage(path, "bad", 0, body)
    async with refold.Engine(path, **SETTINGS) as engine:
        opened = await engine.conversation("bad")
        assert (await opened.context())["messages"][0] == {"role": "user", "content": placeholder_text(0)}
        with pytest.raises(Damaged) as told:
            await opened.recall("#m0")

        assert (told.value.conversation, told.value.seq) == ("bad", 0)
        assert "'bad'" in str(told.value)
        assert "message 0" in str(told.value)
        assert "refold doctor" in told.value.hint
        talk = await engine.conversation("good")
        await talk.add("still here")
        assert "message 0 cannot be read" in [one.what for one in await engine.examine("bad")]


async def test_a_message_whose_bytes_were_changed_is_not_taken_for_the_stored_one(path):
    damage(path, "bad", 0, b'{"role":"user","content":"hello from evil"}')
    what = "message 0 has changed since it was stored"
    async with refold.Engine(path, **SETTINGS) as engine:
        found = {one.conversation: one for one in await engine.search("hello")}
        assert (found["bad"].text, found["bad"].damage) == ("", what)
        assert found["good"].text
        with pytest.raises(Damaged, match=what):
            await engine.recall("bad", "#m0")
        opened = await engine.conversation("bad")
        with pytest.raises(Damaged, match=what):
            await opened.recall("#m0")
        assert "evil" not in str(await opened.context())
        assert await engine.recall("bad", "#m1") == {"role": "assistant", "content": "noted"}


@pytest.mark.feature("N2")
@pytest.mark.parametrize("body", [*BAD_BODIES.values(), b""], ids=[*BAD_BODIES, "nothing"])
async def test_a_message_beside_a_damaged_one_is_recalled(path, body):
    damage(path, "bad", 0, body)
    async with refold.Engine(path, **SETTINGS) as engine:
        assert await engine.recall("bad", "#m1") == {"role": "assistant", "content": "noted"}
        assert "#m1" in await engine.recall("bad", "noted")
        with pytest.raises(Damaged, match="message 0"):
            await engine.recall("bad", "#m0")
        with pytest.raises(NotFound, match="there is no message 2: the last is #m1"):
            await engine.recall("bad", "#m2")
        with pytest.raises(NotFound, match="there is no conversation 'none'"):
            await engine.recall("none", "#m0")
        with pytest.raises(NotFound, match="the conversation 'bad' has no branch 'none'"):
            await engine.recall("bad", "#m0", branch="none")


async def test_an_open_conversation_goes_on_over_what_was_damaged_elsewhere(path):
    async with refold.Engine(path, **SETTINGS) as engine:
        talk = await engine.conversation("good")
        async with refold.Engine(path, **SETTINGS) as other:
            await (await other.conversation("good")).add("written elsewhere", "and damaged there")
        damage(path, "good", 3)
        assert (await talk.recall("#m2"))["content"] == "written elsewhere"
        assert (await talk.recall("#m0"))["content"] == "hello from good"
        assert "#m2" in await talk.search("elsewhere")
        with pytest.raises(Damaged, match="message 3 cannot be read"):
            await talk.recall("#m3")
        await talk.add("it goes on")
        said = [one["content"] for one in (await talk.context())["messages"]]
        assert said[2:] == ["written elsewhere", placeholder_text(3), "it goes on"]


async def test_an_open_conversation_goes_on_with_a_message_that_was_damaged_since(path):
    async with refold.Engine(path, **SETTINGS) as engine:
        talk = await engine.conversation("good")
        async with refold.Engine(path, **SETTINGS) as other:
            await (await other.conversation("good")).add("written elsewhere")
        damage(path, "good", 1)
        await talk.add("it holds what it has read")
        said = [one["content"] for one in (await talk.context())["messages"]]
        assert said[-2:] == ["written elsewhere", "it holds what it has read"]
        assert await engine.examine("good"), "the doctor reads all of it"


async def test_an_emptied_message_is_damaged_and_not_one_without_content(path):
    damage(path, "bad", 0, b"")
    async with refold.Engine(path, **SETTINGS) as engine:
        opened = await engine.conversation("bad")
        with pytest.raises(Damaged, match="message 0 has lost its content") as told:
            await opened.recall("#m0")
        assert told.value.seq == 0
        assert "message 0 has lost its content" in [one.what for one in await engine.examine("bad")]


async def test_a_message_that_was_stored_without_content_is_not_damaged(tmp_path):
    async with refold.Engine(tmp_path / "chats.db", keeps_content=False, **SETTINGS) as engine:
        await (await engine.conversation("private")).add("hello")
        assert await engine.examine("private") == []
    async with refold.Engine(tmp_path / "chats.db", **SETTINGS) as engine:
        with pytest.raises(StoreError, match="the content of this conversation is not stored"):
            await engine.conversation("private")


@pytest.mark.parametrize(
    ("role", "what"),
    [
        ("assistant", "message 0 is stored with another role than its own"),
        ("usr", "message 0 is stored with another role than its own"),
    ],
)
async def test_the_role_that_is_stored_beside_a_message_is_examined(path, role, what):
    damage(path, "bad", 0, role, column="role")
    async with refold.Engine(path, **SETTINGS) as engine:
        assert [(one.rule, one.what) for one in await engine.examine("bad")] == [("I-10", what)]
        assert await engine.examine("good") == []


async def test_the_role_of_a_message_without_content_is_examined(tmp_path):
    async with refold.Engine(tmp_path / "chats.db", keeps_content=False, **SETTINGS) as engine:
        await (await engine.conversation("private")).add("hello")
    damage(tmp_path / "chats.db", "private", 0, "usr", column="role")
    async with refold.Engine(tmp_path / "chats.db", **SETTINGS) as engine:
        found = [one.what for one in await engine.examine("private")]
        assert found == ["message 0 is stored with a role that is not known"]


def test_without_await_it_is_the_same(path_made):
    damage(path_made, "bad", 0)
    with refold.sync.Engine(path_made, **SETTINGS) as engine:
        assert [one.damage for one in engine.search("hello") if one.damage] == ["message 0 cannot be read"]
        assert engine.conversation("bad").context()["messages"][0]["content"] == placeholder_text(0)
        with pytest.raises(Damaged):
            engine.recall("bad", "#m0")
        assert engine.recall("good", "#m0") == {"role": "user", "content": "hello from good"}


@pytest.fixture
def path_made(tmp_path):
    made = tmp_path / "sync.db"
    with refold.sync.Engine(made, **SETTINGS) as engine:
        for name in ("bad", "good"):
            engine.conversation(name).add(f"hello from {name}")
        assert len(engine.search("hello")) == 2, "the index has taken them up"
    return made


async def test_a_damaged_message_behind_a_summary_is_told_by_search_and_recall_alone(tmp_path):
    made = tmp_path / "long.db"
    settings = {**SETTINGS, "window": 2_000}
    async with refold.Engine(made, **settings) as engine:
        talk = await engine.conversation("long")
        await talk.add("Our lighthouse keeper is called Ottoline.")
        for number in range(30):
            await talk.add({"role": "assistant", "content": f"Lighthouse note {number}: " + "fog " * 60})
            await talk.add(f"And then, lighthouse {number}?")
            await talk.context()
        assert talk.state.folded.summaries
        assert "Ottoline" in await talk.search("Ottoline"), "the index has taken it up"
    damage(made, "long", 0)
    async with refold.Engine(made, **settings) as engine:
        talk = await engine.conversation("long")
        told = await talk.search("Ottoline")

        assert "#m0 [damaged: cannot be read]" in told
        with pytest.raises(Damaged, match="message 0 cannot be read"):
            await talk.recall("#m0")
        assert "#m2" in await talk.search("lighthouse 0")
        await talk.add("the conversation goes on")
        assert await talk.context()


@pytest.mark.feature("N10")
async def test_an_undo_shows_a_placeholder_for_a_damaged_message_and_a_rerun_keeps_the_summary_of_it(
    tmp_path,
):
    made = tmp_path / "long.db"
    settings = {**SETTINGS, "window": 2_000}
    async with refold.Engine(made, **settings) as engine:
        talk = await engine.conversation("long")
        number = 0
        while not talk.state.folded.summaries:
            await talk.add(f"And then, lighthouse {number}?")
            await talk.add({"role": "assistant", "content": f"Note {number}: " + "fog " * 60})
            number += 1
        await talk.add("And now?")
        shown = await talk.context()
    damage(made, "long", 1)
    async with refold.Engine(made, **settings) as engine:
        talk = await engine.conversation("long")
        with pytest.raises(Damaged, match="message 1 cannot be read"):
            await talk.rerun()
        assert await talk.context() == shown
        summary = await talk.recall("#s0")
        assert await talk.undo()
        shown_now = [one.message.text for one in talk.state.folded.shown]
        assert shown_now[:3] == ["And then, lighthouse 0?", placeholder_text(1), "And then, lighthouse 1?"]
    async with refold.Engine(made, **settings) as engine:
        talk = await engine.conversation("long")
        assert (await talk.status()).damaged == (1,)
        stored = await engine.summaries([one.id for one in await talk.compactions()])
        assert summary in [one.summary.text for one in stored], "what the summary says of it is not lost"
        await talk.add("the conversation goes on")


async def test_a_message_that_was_damaged_before_the_index_took_it_up_is_named_too(tmp_path):
    made = tmp_path / "new.db"
    async with refold.Engine(made, **SETTINGS) as engine:
        for name in ("bad", "good"):
            await (await engine.conversation(name)).add(f"hello from {name}")
    damage(made, "bad", 0)
    async with refold.Engine(made, **SETTINGS) as engine:
        found = {one.conversation: one.damage for one in await engine.search("hello")}
    assert found == {"bad": "message 0 cannot be read", "good": ""}
