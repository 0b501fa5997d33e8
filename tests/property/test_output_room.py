"""Whatever the window, the instructions, the output, the thinking budget and the history are: what is sent fits, with an output that
is lowered only where it must be, and never below its floor.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from refold.model.errors import BudgetError, DoesNotFit
from refold.sync import Conversation

MODELS = ("gpt-4o", "claude-sonnet-4-5", "")
PRESETS = ("refold", "lis", "opal", "llms", "librechat")


def floor_of(window: int, asked: int, thinking: int) -> int:
    least = min(4_096, window // 8)
    return min(asked, max(least, thinking + 1_024) if thinking else least)


@given(
    window=st.sampled_from((1_000, 4_000, 8_000, 16_000, 64_000)),
    instructions=st.floats(0, 1.1),
    output=st.floats(0.01, 1.6),
    thinking=st.one_of(st.just(0.0), st.floats(0.01, 0.9)),
    history=st.lists(st.floats(0.001, 0.5), min_size=1, max_size=8),
    model=st.sampled_from(MODELS),
    preset=st.sampled_from(PRESETS),
)
def test_what_is_sent_fits_with_an_output_within_its_bounds(
    window, instructions, output, thinking, history, model, preset
):
    asked = max(1, int(output * window))
    budget = int(thinking * asked)
    try:
        talk = Conversation(
            model,
            system="rule " * int(instructions * window) or None,
            window=window,
            max_output=asked,
            thinking_budget=budget,
            preset=preset,
        )
    except BudgetError:
        return
    least, fixed = floor_of(window, asked, budget), talk.state.frame.cost.total.tokens
    reserve = talk.state.room.reserve
    for share in history:
        talk.add("word " * max(1, int(share * window)))
        try:
            talk.context()
        except DoesNotFit:
            pass
        else:
            size, told = talk.measurement.content.tokens, talk.max_output
            assert size + told + reserve <= window
            assert least <= told <= asked
            if size + asked + reserve <= window:
                assert told == asked
            if told < asked:
                assert 4 * (window - fixed - asked) < window
                assert told in (least, window - fixed + (-window // 4))
        talk.add({"role": "assistant", "content": "Noted."})
