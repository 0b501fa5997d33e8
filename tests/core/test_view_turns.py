import pytest

from refold.core.view import safe_boundary, turn_starts
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
        ("", ()),
        ("u a", (0,)),
        ("u a:x t:x a u a", (0, 4)),
        ("u a:x t:x a:y t:y a", (0,)),
        ("a a", ()),
        ("a u a u", (1, 3)),
    ],
)
def test_a_turn_starts_with_each_user_message(script, expected):
    assert turn_starts(talk(script)) == expected


def test_results_never_start_a_turn():
    assert turn_starts(talk("u a:x t:x u")) == (0, 3)
