"""The features of the preset `librechat`, through the doors that users have."""

from __future__ import annotations

import pytest

from refold.sync import Conversation, Engine
from refold.tokens import counter_for
from tests.formats import answer, question

WINDOW, OUTPUT, OVERHEAD = 10_000, 1_000, 3_004


def text(words, number):
    return " ".join(f"The {number + at} grey gulls flew out to sea." for at in range(words // 8))


def talk_on(talk, turns, first=0):
    """The sizes of the calls, output included, of a provider that counts the short instructions as very long ones."""
    counter, sizes = counter_for("gpt-4o"), []
    for number in range(first, first + turns):
        talk.add(question(text(250, number)))
        sent = [one for one in talk.context()["messages"] if one["role"] != "system"]
        prompt = sum(counter.text(str(one["content"])) for one in sent) + OVERHEAD
        sizes.append(prompt + OUTPUT)
        talk.record({"prompt_tokens": prompt, "completion_tokens": 10})
        talk.add(answer(text(100, 7_000 + number)))
    return sizes


@pytest.mark.feature("C3")
def test_no_call_is_larger_than_the_window_once_the_instructions_are_known():
    talk = Conversation("gpt-4o", preset="librechat", system="x " * 500, window=WINDOW, max_output=OUTPUT)
    sizes = talk_on(talk, 60)
    assert max(sizes) <= WINDOW
    assert max(sizes) > WINDOW * 0.75  # and not because little is sent
    assert talk.state.frame.instructions == pytest.approx(OVERHEAD, rel=0.15)
    assert any(one.decision == "summarise" for one in talk.receipts)


@pytest.mark.feature("C3")
def test_the_size_of_the_instructions_is_known_after_a_restart(tmp_path):
    settings = {
        "model": "gpt-4o",
        "preset": "librechat",
        "system": "x " * 500,
        "window": WINDOW,
        "max_output": OUTPUT,
    }
    with Engine(f"sqlite:///{tmp_path}/a.db", **settings) as engine:
        talk_on(engine.conversation("one"), 12)
    with Engine(f"sqlite:///{tmp_path}/a.db", **settings) as engine:
        talk = engine.conversation("one")
        assert max(talk_on(talk, 20, first=100)) <= WINDOW
        other = engine.conversation("two", system="Be brief.")
        other.add(question("Hello."))
        other.context()
        assert other.state.frame.instructions < 20  # other instructions: nothing is known about them
