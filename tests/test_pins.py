"""Pins: a message that a person holds in the window."""

import pytest

import refold
from refold.model.errors import NotFound

RULE = "The ferry leaves at six, whatever the board says."


def turns(first: int, last: int):
    for number in range(first, last):
        yield f"question {number} about order {7_000 + number}, " + "please look " * 20
        yield {"role": "assistant", "content": f"answer {number}, " + "it was found " * 20}


def texts(context) -> list[str]:
    return [message["content"] for message in context["messages"]]


async def filled(chat, first: int, last: int) -> None:
    for message in turns(first, last):
        await chat.add(message)
        if isinstance(message, str):
            await chat.context()


@pytest.mark.parametrize("preset", ["refold", "lis", "opal", "llms"])
async def test_a_pinned_message_stays_word_for_word_until_it_is_unpinned(tmp_path, preset):
    url = f"sqlite:///{tmp_path}/chats.db"
    settings = {"window": 3_000, "max_output": 200, "preset": preset}
    async with refold.Engine(url, **settings) as engine:
        chat = await engine.conversation("ferry")
        await chat.add("hello", {"role": "assistant", "content": "hello"})
        await chat.add(RULE, {"role": "assistant", "content": "noted"})
        await chat.pin("#m2")
        await filled(chat, 0, 40)
        await chat.add("and now?")
        assert RULE in texts(await chat.context())
        assert chat.receipts
    async with refold.Engine(url, **settings) as engine:
        chat = await engine.conversation("ferry")
        assert await chat.pins() == ["#m2"]
        assert RULE in texts(await chat.context())
        await chat.unpin("m2")
        assert await chat.pins() == []
        await chat.add({"role": "assistant", "content": "well"})
        await filled(chat, 40, 90)
        await chat.add("and now?")
        assert RULE not in texts(await chat.context())
        assert (await chat.recall("#m2"))["content"] == RULE
    async with refold.Engine(url, **settings) as engine:
        assert await (await engine.conversation("ferry")).pins() == []


async def test_a_pin_holds_where_no_content_is_stored(tmp_path):
    settings = {"window": 3_000, "max_output": 200, "keeps_content": False}
    async with refold.Engine(f"sqlite:///{tmp_path}/chats.db", **settings) as engine:
        chat = await engine.conversation("ferry")
        await chat.add(RULE, {"role": "assistant", "content": "noted"})
        await chat.pin("#m0")
        assert await chat.pins() == ["#m0"]
        await filled(chat, 0, 40)
        await chat.add("and now?")
        assert RULE in texts(await chat.context())
        await chat.unpin("#m0")
        assert await chat.pins() == []


async def test_another_program_sees_a_pin_with_its_next_act(tmp_path):
    url = f"sqlite:///{tmp_path}/chats.db"
    async with refold.Engine(url) as one, refold.Engine(url) as other:
        chat, again = await one.conversation("ferry"), await other.conversation("ferry")
        await chat.add(RULE)
        assert await again.pins() == []
        await chat.pin("#m0")
        assert await again.pins() == ["#m0"]


@pytest.mark.parametrize("handle", ["#m7", "#s0", "#m0.1", "nonsense"])
async def test_what_is_no_message_cannot_be_pinned(handle):
    chat = refold.Conversation()
    await chat.add(RULE)
    with pytest.raises(NotFound) as error:
        await chat.pin(handle)
    assert error.value.hint
    assert await chat.pins() == []


def test_a_script_pins_too():
    chat = refold.sync.Conversation()
    chat.add(RULE)
    chat.pin("#m0")
    assert chat.pins() == ["#m0"]
    chat.unpin("#m0")
    assert chat.pins() == []


@pytest.mark.parametrize("wire", ["chat", "anthropic"])
async def test_a_pinned_result_keeps_its_call(wire):
    """A provider refuses a result whose call is not there."""
    chat = refold.Conversation(window=3_000, max_output=200, format=wire)
    await chat.add("What does the board say?", *looked(wire, "c1", RULE))
    await chat.pin("#m2")
    await filled(chat, 0, 40)
    await chat.add("and now?")
    sent = await chat.context()
    assert chat.receipts
    assert RULE in str(sent)
    assert str(sent).count("c1") == 2


def looked(wire: str, call: str, result: str) -> list[dict]:
    if wire == "chat":
        function = {"name": "look", "arguments": "{}"}
        return [
            {"role": "assistant", "tool_calls": [{"id": call, "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": call, "content": result},
        ]
    used = {"type": "tool_use", "id": call, "name": "look", "input": {}}
    return [
        {"role": "assistant", "content": [used]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": result}]},
    ]


async def test_a_pin_survives_a_resume_by_summary(tmp_path):
    """A pinned result of a tool keeps its call, so that the request stays valid."""
    settings = {"model": "gpt-4o", "window": 6_000, "max_output": 500}
    board = "The board says: " + "seven, eight, nine, " * 30
    call = {"id": "a", "type": "function", "function": {"name": "board", "arguments": "{}"}}
    async with refold.Engine(tmp_path / "chats.db", **settings) as engine:
        chat = await engine.conversation("ferry")
        await chat.add(RULE, {"role": "assistant", "content": None, "tool_calls": [call]})
        await chat.add({"role": "tool", "tool_call_id": "a", "content": board})
        await chat.add({"role": "assistant", "content": "noted"})
        await chat.pin("#m0")
        await chat.pin("#m2")
        await chat.add(*turns(0, 40))
        await chat.start_session()
    settings["window"] = 2_000  # the session does not fit as a whole
    async with refold.Engine(tmp_path / "chats.db", **settings) as engine:
        chat = await engine.conversation("ferry")
        await chat.add("Something else.", {"role": "assistant", "content": "Yes?"})
        opened = await chat.resume((await engine.sessions("ferry"))[0])
        assert opened.carries == "summary"
    async with refold.Engine(tmp_path / "chats.db", **settings) as engine:
        chat = await engine.conversation("ferry")
        await chat.add("and now?")
        sent = (await chat.context())["messages"]
        assert await chat.pins() == ["#m0", "#m2"]
        assert [one["content"] for one in sent if one["role"] == "tool"] == [board]
        assert RULE in [one["content"] for one in sent]
        assert await engine.examine("ferry") == []
