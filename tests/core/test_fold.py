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


@pytest.mark.parametrize("is_edited", [False, True])
def test_many_messages_at_once_are_taken_as_one_by_one(folded, is_edited):
    start = folded.show([Item(user("short"), 0, 1), *folded.items.items[5:]]) if is_edited else folded
    new = [user("/compact"), assistant("all of it, in short"), *agent_turn(2), *agent_turn(3), user("and?")]
    one_by_one = start
    for message in new:
        one_by_one = one_by_one.take(message, later=True).display(message)
    at_once = start.take_earlier(new)
    assert list(at_once.branch) == list(one_by_one.branch)
    assert list(at_once.shown) == list(one_by_one.shown)
    numbers = [[each.number(at) for at in range(len(each.shown))] for each in (at_once, one_by_one)]
    assert numbers[0] == numbers[1]
    assert (at_once.task, at_once.replies) == (one_by_one.task, one_by_one.replies)
    assert at_once.facts.pieces(0, 99) == one_by_one.facts.pieces(0, 99)
    assert at_once.ledger == one_by_one.ledger
