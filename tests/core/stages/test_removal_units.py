import pytest

from refold.core.stages.removal import turn_units, units
from refold.model.dialect import CHAT, RESPONSES
from tests.core.conversations import talk


@pytest.mark.parametrize(
    "script, dialect, expected",
    [
        ("", CHAT, []),
        ("u a u", CHAT, [1, 1, 1]),
        ("u a:x,y t:x t:y a u", CHAT, [1, 3, 1, 1]),
        ("t:x u a", CHAT, [1, 1, 1]),
        ("u a a u", CHAT, [1, 1, 1, 1]),
        ("u r c:x t:x a u", RESPONSES, [1, 3, 1, 1]),
        ("u c:x u t:x a u", RESPONSES, [1, 3, 1, 1]),
        ("u c:x u a u", RESPONSES, [1, 1, 1, 1, 1]),
    ],
)
def test_a_reply_and_its_results_are_one(script, dialect, expected):
    assert [len(unit) for unit in units(talk(script), dialect)] == expected


def test_turns_as_units():
    found = turn_units(talk("a u a:x t:x a u a"), CHAT)
    assert found == [range(1), range(1, 5), range(5, 7)]
