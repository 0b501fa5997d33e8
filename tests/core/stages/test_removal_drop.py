import pytest

from refold.core.stages.removal import DropHalf
from tests.core.conversations import FlatCounter, show, talk
from tests.core.stages.shown_messages import room_for, show_all


def halved(script, tokens, *, protected=None, pinned=()):
    counter = FlatCounter(10)
    shown = show_all(talk(script), protected=protected, counter=counter)
    return DropHalf().apply(shown, room_for(tokens, pinned=pinned, counter=counter))


@pytest.mark.parametrize(
    "script, left",
    [
        ("u a u a u a u a", "u a u a"),
        ("u a u a u a", "u a u a"),
        ("u a:x t:x a u a", "u a"),
        ("u a u", "u"),
        ("u a:x t:x a:y t:y a", "u"),
        ("a a u a", "u a"),
        ("a a a a", "a a"),
        ("a:x t:x a:y t:y", "a:y t:y"),
    ],
)
def test_the_oldest_half_of_the_turns_goes(script, left):
    count = len(script.split())
    result = halved(script, 10 * count - 1)
    assert show(result.shown.messages) == left
    assert [item.seq for item in result.removed] == [edit.seq for edit in result.edits]
    assert {edit.reason for edit in result.edits} == {"in the older half"}
    assert len(result.removed) + len(result.shown.items) == count


@pytest.mark.parametrize("script", ["", "u", "u a"])
def test_two_messages_are_left_alone(script):
    assert halved(script, -1).reason == "there is no older half to drop"


def test_halving_goes_on_until_the_rest_fits():
    result = halved("u a " * 8, 45)
    assert show(result.shown.messages) == "u a u a"
    assert result.reason == ""


def test_what_fits_stays():
    assert halved("u a u a", 40).reason == "everything fits"


def test_the_active_turn_is_protected():
    result = halved("u a u a:x t:x a:y t:y", 20, protected=2)
    assert show(result.shown.messages) == "u a:x t:x a:y t:y"
    assert result.reason == "what must stay takes more than there is room for"
    assert not halved("u a:x t:x a:y t:y", 20, protected=0).edits


def test_a_running_turn_keeps_its_question_and_its_last_exchange():
    result = halved("u a:x t:x a:y t:y a:z t:z", 20, protected=5)
    assert show(result.shown.messages) == "u a:z t:z"


def test_pins_stay():
    result = halved("u a u a u a u a", 75, pinned=[1])
    assert [item.seq for item in result.shown.items] == [1, 4, 5, 6, 7]
