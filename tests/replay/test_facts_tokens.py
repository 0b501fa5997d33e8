from __future__ import annotations

import pickle

from refold.model.message import Reasoning, Text, ToolCall, assistant, tool, user
from refold.replay.facts import REFERENCE, CounterChoice, ReferenceCounter
from refold.tokens import counter_for


def test_the_reference_counter_rounds_every_text_up():
    counter = ReferenceCounter()

    assert [counter.text(text) for text in ("", "a", "abcd", "abcde")] == [0, 1, 1, 2]
    assert counter.message(user("hello")) == 4 + 2
    assert counter.message(tool("c1", "four")) == 4 + 1
    assert counter.message(assistant("", ToolCall("c1", "read", '{"a": 1}'))) == 4 + 8 + 1 + 2


def test_thinking_costs_nothing_in_the_reference_and_something_for_a_model():
    silent = assistant("yes")
    thinking = silent.with_parts((Reasoning("let me think about it"), Text("yes")))

    assert ReferenceCounter().message(thinking) == ReferenceCounter().message(silent)
    assert counter_for("gpt-4o").message(thinking) > counter_for("gpt-4o").message(silent)


def test_a_way_of_counting_says_what_it_is_and_travels():
    assert REFERENCE.name.startswith("reference: (characters + 3) // 4")
    assert "claude-sonnet-4-5" in CounterChoice("claude-sonnet-4-5").name
    assert "estimated" in CounterChoice("claude-sonnet-4-5").name
    again = pickle.loads(pickle.dumps(CounterChoice("gpt-4o")))
    assert again.counter().text("hello world") == counter_for("gpt-4o").text("hello world")
