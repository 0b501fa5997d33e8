"""The regions of a window, and what is known of its size: through the library, with a counter that makes a token of a character."""

from __future__ import annotations

import pytest

from refold.model.message import Message
from refold.sync import Conversation
from tests.core.conversations import TextCounter

LOOK = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {}}}
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


@pytest.mark.feature("P1")
def test_history_gets_what_the_other_regions_leave():
    talk = conversation(system="s" * 300, tools=[LOOK], preset="librechat")
    talk.add(question(100), *result_of_a_call(40), question(50))
    sizes = talk.measurement

    assert (sizes.system.tokens, sizes.tool_results.tokens, sizes.input.tokens) == (300, 40, 50)
    assert sizes.tools.tokens > len("look" + "Looks.")
    taken = sizes.system.tokens + sizes.tools.tokens + sizes.summary.tokens + sizes.reserve
    assert sizes.free == WINDOW - taken - sizes.messages.tokens


@pytest.mark.feature("P1")
@pytest.mark.parametrize("preset", ["refold", "picoclaw", "librechat", "lis", "opal", "llms"])
def test_a_window_that_is_filled_exactly_is_sent_as_it_is(preset):
    def filled(more: int) -> Conversation:
        talk = conversation(preset=preset, system="s" * 300)
        talk.add(question(talk.measurement.free + more))
        return talk

    exactly, over = filled(0), filled(1)

    assert exactly.measurement.free == 0
    assert len(exactly.context()["messages"][-1]["content"]) == WINDOW - 300 - exactly.measurement.reserve
    assert (exactly.receipts, exactly.max_output) == ((), 1_000)
    over.context()
    assert over.receipts or over.max_output < 1_000


@pytest.mark.feature("P2")
def test_window_and_output_are_separate():
    small, large = conversation(max_output=1_000), conversation(max_output=4_000)

    assert (small.max_output, large.max_output) == (1_000, 4_000)
    assert small.measurement.window == large.measurement.window == WINDOW
    assert small.measurement.free - large.measurement.free == 3_000


@pytest.mark.feature("C2")
@pytest.mark.parametrize("window, reserve", [(10_000, 500), (20_000, 1_000), (50_000, 2_500)])
def test_a_twentieth_of_the_window_is_reserved(window, reserve):
    sizes = conversation(window=window, preset="librechat").measurement

    assert sizes.reserve == 1_000 + reserve
    assert sizes.free == window - 1_000 - reserve


class QuarterCounter(TextCounter):
    """Four characters to a token, as the stage that masks results takes them."""

    def text(self, text: str) -> int:
        return len(text) // 4

    def message(self, message: Message) -> int:
        return super().message(message) // 4


@pytest.mark.feature("C2")
@pytest.mark.parametrize("instructions, is_masked", [(1_799, False), (1_800, True)])
def test_pressure_counts_the_instructions_too(instructions, is_masked):
    """Answered results are masked from 80 % of 8,500 tokens on, which is 6,800; the messages have 5,000 in both cases."""
    talk = conversation(system="s" * 4 * instructions, preset="librechat", counter=QuarterCounter())
    talk.add(question(4 * 1_090))
    for number in range(3):
        talk.add(*result_of_a_call(4 * 1_300, f"call_{number}"))
    talk.add(question(4 * 4))

    assert (talk.measurement.system.tokens, talk.measurement.messages.tokens) == (instructions, 5_000)
    assert (len(talk.context()["messages"][3]["content"]) < 4 * 1_300) is is_masked
