"""The regions of a window, and what is known of its size: through the library, with a counter that makes a token of a character."""

from __future__ import annotations

import pytest

from refold.sync import Conversation
from tests.core.conversations import TextCounter

WINDOW = 10_000


def conversation(**settings: object) -> Conversation:
    given = {"window": WINDOW, "max_output": 1_000, "counter": TextCounter(), **settings}
    return Conversation("gpt-4o", **given)


def question(tokens: int) -> dict[str, object]:
    return {"role": "user", "content": "q" * tokens}


def answer(tokens: int) -> dict[str, object]:
    return {"role": "assistant", "content": "a" * tokens}


def result_of_a_call(tokens: int, name: str = "call_1") -> list[dict[str, object]]:
    call = {"id": name, "type": "function", "function": {"name": "look", "arguments": "{}"}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": name, "content": "r" * tokens},
        answer(10),
    ]


@pytest.mark.feature("O1")
@pytest.mark.parametrize(
    "is_reported, last, is_due", [(True, 399, False), (True, 400, True), (False, 400, False)]
)
def test_the_size_is_the_last_report_and_a_count_of_what_came_since(is_reported, last, is_due):
    """We count 2,000 for the first call and the provider 3,200, so it counts 8,000 when we count 5,000."""
    reasons = list[str]()
    talk = conversation(preset="opal", on_event=lambda event: reasons.append(event.reason))
    talk.add(question(2_000))
    talk.context()
    talk.add(answer(100))
    if is_reported:
        talk.record({"prompt_tokens": 3_200, "completion_tokens": 100})
    for _ in range(5):
        talk.add(question(400), answer(100))
    talk.add(question(last))
    talk.context()

    assert set(reasons) == ({"8,000 tokens >= 80 % of 10,000"} if is_due else set())


@pytest.mark.feature("O16")
def test_the_size_and_what_was_billed_are_kept_apart():
    talk = conversation()
    spent = []
    for _ in range(3):
        talk.add(question(1_000))
        talk.context()
        talk.record({"prompt_tokens": 1_000 * (len(spent) + 1), "completion_tokens": 0})
        spent.append(talk.bill.spent)

    assert talk.measurement.content.tokens == 3_000
    assert spent[2] == pytest.approx(6 * spent[0])
