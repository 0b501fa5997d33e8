"""Summaries that the engine writes itself, through a conversation under the default preset."""

import re

import pytest

from refold.core.extractive import summarise
from refold.core.presets import PRESETS
from refold.core.stages.shown import HANDLE_PATTERN
from refold.engine.memory import Memory
from refold.model.budget import Budget
from refold.model.dialect import CHAT
from refold.model.message import Message, ToolCall, assistant, system, tool, user
from refold.model.window import Fixed
from refold.replay import ReferenceCounter
from tests.engine.talking import agent_turn

TASK = "Port the billing service to PostgreSQL. Never touch the public API of billing/api.py."


def conversation(window=3_000, turns=0) -> Memory:
    def fulfil(request, folded):
        return summarise(request, folded, talk.frame)

    fixed, policy = Fixed(CHAT, (system("You are careful."),)), PRESETS["refold"]
    talk = Memory(fixed, Budget(window=window), policy, ReferenceCounter(), fulfil)
    talk.add(user(TASK), assistant("I will start with the schema."))
    for number in range(turns):
        talk.add(*agent_turn(number, size=900))
    talk.add(user("What is left to do?"))
    return talk


def sent_text(talk: Memory) -> str:
    window = talk.context()
    return "\n".join(message.text for message in (*window.summaries, *window.messages))


def test_the_task_and_the_rules_survive_word_for_word():
    talk = conversation(turns=40)
    assert len(talk.receipts) > 2
    text = sent_text(talk)
    assert TASK in text
    assert text.count("Never touch the public API of billing/api.py.") == 1


def test_what_a_summary_says_was_said():
    talk = conversation(turns=30)
    said = "\n".join(
        " ".join(
            (
                message.text,
                *(call.name + call.arguments for call in message.calls),
                *(r.text for r in message.results),
            )
        )
        for message in talk.folded.branch.messages()
    )
    (summary,) = talk.context().summaries
    words = re.sub(HANDLE_PATTERN, " ", summary.text.removeprefix(talk.frame.policy.texts.opening))
    made_up = [word for word in re.findall(r"[A-Za-z_]*\d[\w./]*", words) if word not in said]
    assert made_up == []


def test_a_fact_that_was_used_is_still_known_long_after_it_left():
    talk = conversation(turns=3)
    call = ToolCall("id-1", "deploy", '{"ticket": "OPS-48213"}')
    talk.add(Message("assistant", (call,)), tool("id-1", "deployed as release-7f3a9c"))
    talk.add(assistant("OPS-48213 went out as release-7f3a9c."))
    for number in range(10, 30):
        talk.add(*agent_turn(number, size=900))
    talk.add(user("Which release was it?"))
    text = sent_text(talk)
    assert "OPS-48213" in text
    assert "release-7f3a9c" in text


def test_fifty_compactions_stay_bounded_and_keep_the_rules_and_repeat_no_heading():
    talk = conversation()
    number = 0
    while len(talk.receipts) < 50:
        talk.add(*agent_turn(number, size=900))
        number += 1
    talk.add(user("And now?"))
    text = sent_text(talk)
    assert TASK in text
    assert text.count("[Earlier messages, shortened") == 1
    assert text.count("Task #m0") == 1
    assert len(talk.context().summaries) == 1
    assert {f"src/f{index}.py" for index in range(number)} == {
        *talk.folded.ledger.read,
        *talk.folded.ledger.modified,
    }


def test_every_handle_in_a_window_opens_an_original():
    talk = conversation(turns=30)
    handles = set(re.findall(HANDLE_PATTERN, sent_text(talk)))
    assert handles
    assert all(talk.recall(handle) is not None for handle in handles)


@pytest.mark.parametrize(
    "query, found", [("which release went out", "release-7f3a9c"), ("deploy ticket", "OPS-48213")]
)
def test_search_finds_what_left_the_window(query, found):
    talk = conversation(turns=1)
    call = ToolCall("id-1", "deploy", '{"ticket": "OPS-48213"}')
    talk.add(Message("assistant", (call,)), tool("id-1", "went out as release-7f3a9c"), assistant("Done."))
    for number in range(10, 40):
        talk.add(*agent_turn(number, size=900))
    hit = talk.search(query, max_tokens=200)
    assert found in hit
    assert ReferenceCounter().text(hit) <= 200
    assert re.search(HANDLE_PATTERN, hit)


def test_search_for_nothing_finds_nothing():
    assert conversation(turns=2).search("zzz qqq", max_tokens=500) == ""
    assert conversation(turns=2).search("code", max_tokens=0) == ""
