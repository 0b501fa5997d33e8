"""Why to act: the same reasons for whoever acts and for whoever only tells."""

import pytest
from msgspec import structs

from refold.core.budget import Now, size_of
from refold.core.fold import FoldedBranch
from refold.core.presets import PRESETS
from refold.core.triggers import MAX_IN_VAIN, pressure, reason_to_act
from refold.engine.state import frame_for
from refold.model.dialect import CHAT
from refold.model.tokens import Budget
from refold.model.window import FixedFields
from tests.core.conversations import FlatCounter, view_of


def framed(preset="opal", window=200):
    return frame_for(FixedFields(CHAT), Budget(window=window), PRESETS[preset], FlatCounter(), None)


def folded(messages):
    return FoldedBranch.of(view_of("u a " * (messages // 2) + "u" * (messages % 2)))


@pytest.mark.parametrize("messages", [14, 15, 16, 17])
def test_below_its_threshold_nothing_presses_and_from_there_on_it_does(messages):
    state, now = folded(messages), Now("turn_start")
    is_due = messages >= 16
    assert bool(pressure(state, framed(), now)) == bool(reason_to_act(state, framed(), now)) == is_due
    assert pressure(state, framed(), now) == reason_to_act(state, framed(), now)


def test_a_window_that_is_too_full_presses_before_a_call_whatever_the_policy():
    state = folded(31)
    for preset in PRESETS:
        told = pressure(state, framed(preset), Now("before_call"))
        assert told.startswith(f"{size_of(state, framed(preset))} tokens do not fit into ")


@pytest.mark.parametrize(
    ("changes", "moment"),
    [
        ({"in_vain": MAX_IN_VAIN}, {}),
        ({}, {"settled": 18}),
        ({}, {"declined": 18}),
    ],
)
def test_what_was_tried_in_vain_or_taken_back_presses_and_is_not_tried(changes, moment):
    state = structs.replace(folded(18), **moment)
    now = structs.replace(Now("turn_start"), **changes)
    assert reason_to_act(state, framed(), now) == ""
    assert pressure(state, framed(), now) == "180 tokens >= 80 % of 200"


def test_a_flag_of_an_earlier_moment_presses():
    assert (
        pressure(folded(2), framed("llms"), Now("before_call", flag="80 % was passed")) == "80 % was passed"
    )


def test_what_is_switched_off_does_not_press():
    frame = framed()
    off = structs.replace(frame, policy=structs.replace(frame.policy, enabled=False))
    assert pressure(folded(31), off, Now("before_call")) == ""
