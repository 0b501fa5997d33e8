import pytest

from refold.core.fold import FoldedBranch
from refold.core.stage import Item
from refold.core.view import View
from refold.model.dialect import CHAT
from refold.model.message import assistant, user
from tests.engine.conversations import COUNTER, agent_turn


@pytest.fixture
def folded() -> FoldedBranch:
    return FoldedBranch.of(View(CHAT, COUNTER)).extend([*agent_turn(0), *agent_turn(1)])


def test_what_nobody_changed_is_shown_from_the_branch_itself(folded):
    assert folded.shown.log is folded.branch.log
    assert folded.shown.messages() == folded.branch.messages()


def test_a_message_may_be_shown_otherwise_than_it_came(folded):
    long = assistant("a long answer " * 50)
    taken = folded.take(long)
    assert len(taken.shown) == len(taken.branch) - 1
    short = taken.display(assistant("an answer"))
    assert short.shown[-1].message.text == "an answer"
    assert short.branch[-1].message is long
    assert short.number(len(short.shown) - 1) == 8
    after = short.extend([user("and now?")])
    assert after.number(9) == 9
    assert after.branch[8].message is long


def test_showing_some_of_it_keeps_the_numbers(folded):
    items = folded.items.items
    shown = folded.show([Item(user("short"), 0, 1), *items[5:]])
    assert [shown.number(index) for index in range(len(shown.shown))] == [0, 5, 6, 7]
    assert [shown.extend([user("next")]).number(index) for index in range(5)] == [0, 5, 6, 7, 8]
