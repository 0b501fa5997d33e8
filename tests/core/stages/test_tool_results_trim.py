import pytest

from refold.core.stages.parts import Mark
from refold.core.stages.tool_results import Trim
from tests.core.conversations import talk
from tests.core.stages.shown_messages import lines, results_of, room_for, show_all, work

ROOM = room_for(1_000_000)
SEED = Trim(
    mark=Mark("\n\n… [soft-trimmed: {length} chars → {kept} chars, middle removed] …\n\n", whole_words=False)
)
BIG = "a" * 30_000 + "b" * 30_000
CLEARED = "[Old tool result content cleared]"


def turns(count):
    return [message for number in range(count) for message in work(f"{BIG}{number}")]


@pytest.mark.feature("C14")
def test_old_results_are_trimmed_and_older_ones_cleared():
    """Ten turns of four messages: the last three replies stay, from age 0.3 on results are trimmed, from 0.5 on cleared."""
    texts = results_of(SEED.apply(show_all(turns(10)), ROOM).shown)
    trimmed = "\n\n… [soft-trimmed: 60001 chars → 3000 chars, middle removed] …\n\n"
    assert texts[:5] == [f"{CLEARED} look #m{4 * number + 2}" for number in range(5)]
    assert texts[5:7] == ["a" * 1_500 + trimmed + "b" * 1_499 + number for number in "56"]
    assert texts[7:] == [f"{BIG}{number}" for number in "789"]


@pytest.mark.feature("C14")
@pytest.mark.parametrize("keep, untouched", [(0, 0), (1, 1), (5, 5), (20, 10)])
def test_the_last_replies_are_protected(keep, untouched):
    stage = Trim(keep_last_assistants=keep, soft_trim_ratio=0)
    texts = results_of(stage.apply(show_all(turns(10)), ROOM).shown)
    assert [text.startswith(BIG) for text in texts] == [False] * (10 - untouched) + [True] * untouched


@pytest.mark.feature("C14")
def test_a_reply_is_one_with_all_its_tool_rounds():
    messages = [*work(BIG, BIG), *talk("u a u a"), *work(BIG, BIG, BIG)]
    texts = results_of(Trim().apply(show_all(messages), ROOM).shown)
    assert texts == [f"{CLEARED} look #m2", f"{CLEARED} look #m4", BIG, BIG, BIG]


@pytest.mark.feature("C14")
def test_what_comes_before_the_first_user_message_is_protected():
    messages = [*work(BIG)[1:], *talk("u a u a u a u a u a")]
    assert Trim().apply(show_all(messages), ROOM).reason == "no tool result is both old and large"


@pytest.mark.feature("C14")
@pytest.mark.parametrize("length, cleared", [(49_999, False), (50_000, True)])
def test_small_results_stay(length, cleared):
    messages = [*work("x" * length), *talk("u a u a u a u a")]
    assert (results_of(Trim().apply(show_all(messages), ROOM).shown) == [f"{CLEARED} look #m2"]) is cleared


def test_clearing_can_be_switched_off():
    messages = [*work(BIG), *talk("u a u a u a u a")]
    (text,) = results_of(Trim(hard_clear=False).apply(show_all(messages), ROOM).shown)
    assert len(text) < 3_100


def test_own_cuts_fall_at_line_ends_and_are_named():
    messages = [*work(lines(2_000)), *talk("u a u a u a u a")]
    stage = Trim(hard_clear=False)
    (text,) = results_of(stage.apply(show_all(messages), ROOM).shown)
    assert set(text.splitlines()) <= {*lines(2_000).splitlines(), "[… the rest is in #m2]"}


def test_the_active_turn_and_pins_stay():
    shown = show_all(turns(10), protected=5)
    assert [edit.seq for edit in SEED.apply(shown, ROOM).edits] == [2]
    assert not SEED.apply(shown, room_for(1, pinned=[2])).edits
