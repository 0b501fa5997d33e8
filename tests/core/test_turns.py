import pytest

from refold.core.turns import Turn, is_safe_boundary, safe_boundary, turn_starts, turns
from tests.core.conversations import talk


@pytest.mark.feature("P4")
@pytest.mark.parametrize(
    "script, target, expected",
    [
        ("", 3, 0),
        ("u a u a", 2, 2),
        ("u a u a u", 3, 2),
        ("u a u a", 0, 0),
        ("u a u a", -1, 0),
        ("u a u a", 4, 4),
        ("u a u a", 9, 4),
        ("u a a:x t:x a u a", 3, 5),
        ("u a u a:x t:x a u", 4, 2),
        ("a a a u a", 1, 3),
        ("u a:x t:x a", 2, 0),
        ("u a:x t:x a:y t:y a u a", 3, 6),
        ("a a a", 1, 1),
    ],
)
def test_safe_boundary_golden_table(script, target, expected):
    messages = talk(script)
    assert safe_boundary(turn_starts(messages), len(messages), target) == expected


@pytest.mark.feature("P4")
@pytest.mark.parametrize(
    "script, expected",
    [
        ("", []),
        ("u a", [(0, 2)]),
        ("u a:x t:x a u a", [(0, 4), (4, 6)]),
        ("u a:x t:x a:y t:y a", [(0, 6)]),
        ("a a", []),
        ("a u a u", [(1, 3), (3, 4)]),
    ],
)
def test_turns(script, expected):
    messages = talk(script)
    assert turns(turn_starts(messages), len(messages)) == tuple(Turn(*pair) for pair in expected)


@pytest.mark.feature("P4")
@pytest.mark.parametrize(
    "index, safe", [(-3, True), (0, True), (1, False), (2, True), (3, False), (4, True), (99, True)]
)
def test_a_boundary_is_safe_at_the_ends_and_before_a_user_message(index, safe):
    starts = turn_starts(talk("u a u a"))
    assert is_safe_boundary(starts, 4, index) is safe


def test_results_never_start_a_turn():
    assert turn_starts(talk("u a:x t:x u")) == (0, 3)
