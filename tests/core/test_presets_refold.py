"""The default preset: what it does, in which order, and when."""

from __future__ import annotations

import json

import pytest

from refold.core.extractive_summary import summarise
from refold.core.presets import PRESETS
from refold.model.message import Image, Message, Reasoning, Text, ToolCall, assistant, tool, user
from tests.engine.conversations import agent_turn, memory, size_of


def talk(window=12_000):
    return memory("refold", window=window, summarise=summarise)


def read(number: int, path: str, lines: int = 60) -> list[Message]:
    call = ToolCall(f"c{number}", "read_file", json.dumps({"path": path}))
    return [assistant("", call), tool(f"c{number}", f"version {number} of it, line of code\n" * lines)]


def shown(window) -> str:
    return "\n".join(result.text for message in window.messages for result in message.results)


@pytest.mark.feature("N12")
def test_what_something_later_made_stale_is_the_first_to_go():
    conversation = talk()
    conversation.add(user("Fix the login."))
    number = 0
    while not any(receipt.reason != "larger than its share" for receipt in conversation.receipts):
        conversation.add(*read(number, "src/login.py", lines=25))
        number += 1
    receipt = conversation.receipts[-1]
    assert (receipt.decision, receipt.summary) == ("reduce", None)
    assert {edit.stage for edit in receipt.edits} == {"supersede"}
    said = shown(conversation.context())
    assert "[outdated, the file was read again in #m4; this was #m2]" in said
    assert f"version {number - 1} of it" in said
    assert "version 0 of it" not in said
    assert "version 0 of it" in conversation.recall("#m2").results[0].text


@pytest.mark.feature("N12")
def test_where_nothing_is_stale_it_folds():
    conversation = talk()
    conversation.add(user("Read them all."))
    for number in range(12):
        conversation.add(*read(number, f"src/file_{number}.py", lines=40))
    assert any(receipt.summary for receipt in conversation.receipts)


@pytest.mark.feature("P10")
def test_media_of_earlier_turns_become_a_line_with_their_handle_when_it_folds():
    conversation = talk(window=4_000)
    picture = Message(
        "user", (Text("What is this?"), Image(media_type="image/png", url="https://x.example/a.png"))
    )
    conversation.add(picture, assistant("A cat."), user("And now?"))
    assert conversation.context().messages[0] is picture
    for number in range(16):
        conversation.add(*agent_turn(number))
    conversation.add(user("And now?"))
    window = conversation.context()
    assert not any(isinstance(part, Image) for message in window.messages for part in message.parts)
    assert conversation.recall("#m0") is picture


def test_thinking_of_earlier_turns_goes_whole():
    conversation = talk(window=4_000)
    for number in range(14):
        question, *rest, answer = agent_turn(number)
        thought = Message("assistant", (Reasoning("hm " * 20), *answer.parts))
        conversation.add(question, *rest, thought)
    conversation.add(user("And now?"))
    window = conversation.context()
    kept = [
        message for message in window.messages if any(isinstance(part, Reasoning) for part in message.parts)
    ]
    assert len(kept) < 6
    assert conversation.receipts
    assert size_of(window) <= 4_000


@pytest.mark.feature("N5", "N1")
def test_between_two_folds_nothing_but_the_end_changes():
    conversation, before, folds = talk(), (), 0
    for number in range(80):
        question, call, result, answer = agent_turn(number)
        conversation.add(question, call, result)
        window = conversation.context()
        sent = (*window.summaries, *window.messages)
        if len(conversation.receipts) == folds:
            assert sent[: len(before)] == before
        before, folds = sent, len(conversation.receipts)
        conversation.add(answer)
    assert 0 < folds < 12


def test_it_folds_deep():
    conversation = talk()
    for number in range(80):
        conversation.add(*agent_turn(number))
    folds = [receipt for receipt in conversation.receipts if receipt.summary]
    assert folds
    assert all(receipt.after < 0.75 * receipt.before for receipt in folds)


def test_the_window_is_not_left_empty_after_a_huge_result_was_cut():
    conversation, before = talk(window=8_000), ()
    huge = "".join(f"{number}: the log of the ferry has one more entry\n" for number in range(150))
    conversation.add(user("Read the log."), assistant("", ToolCall("c", "bash", "{}")), tool("c", huge))
    for number in range(40):
        conversation.add(*read(number, f"src/file_{number}.py", lines=3))
        window = conversation.context()
        if conversation.receipts:
            break
        assert window.messages[: len(before)] == before
        before = window.messages
    assert conversation.receipts[-1].summary is None
    assert 2 * 300 < len(window.messages[2].results[0].text) < len(huge)
    assert conversation.recall("#m2").results[0].text == huge


def test_it_is_the_default():
    assert next(iter(PRESETS)) == "refold"
