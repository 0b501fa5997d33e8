import pytest

from refold.core.fold import FoldedBranch, is_broken, mend
from refold.core.verify import verify
from refold.core.view import View
from refold.model.dialect import ANTHROPIC, CHAT, DIALECTS
from refold.model.message import Message, ToolCall, assistant, tool, user
from tests.engine.conversations import COUNTER


def folded(*messages: Message, dialect=CHAT) -> FoldedBranch:
    return FoldedBranch.of(View(dialect, COUNTER)).extend(messages)


LOOK, SEE = ToolCall("a", "look", "{}"), ToolCall("b", "see", "{}")


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_a_result_without_a_call_is_taken_out_with_an_edit(dialect):
    found, edits = mend(
        folded(user("go"), tool("nobody", "x"), assistant("well"), user("on"), dialect=dialect)
    )
    assert [message.text for message in found.shown.messages()] == ["go", "well", "on"]
    assert [(edit.seq, edit.handle, edit.after) for edit in edits] == [(1, "#m1", 0)]
    assert [found.number(index) for index in range(3)] == [0, 2, 3]
    assert len(found.branch) == 4
    assert not is_broken(found)


def test_results_that_belong_into_one_message_are_joined_under_the_first():
    said = (user("go"), assistant("", LOOK, SEE), tool("a", "1"), tool("b", "2"))
    found, edits = mend(folded(*said, dialect=ANTHROPIC))
    assert [len(message.results) for message in found.shown.messages()] == [0, 0, 2]
    assert found.number(2) == 2
    assert [edit.seq for edit in edits] == [2, 3]
    assert verify(found.shown.messages(), ANTHROPIC, as_request=True) == ()


def test_a_call_that_waits_stays_unless_it_is_a_request():
    open_call = folded(user("go"), assistant("let me", LOOK, SEE), tool("a", "1"))
    assert mend(open_call)[0].shown.messages() == open_call.shown.messages()
    found, edits = mend(open_call, as_request=True)
    assert [call.id for call in found.shown.messages()[1].calls] == ["a"]
    assert [edit.seq for edit in edits] == [1]


def test_what_follows_a_repair_is_shown_under_its_own_number():
    found, _ = mend(folded(tool("nobody", "x"), user("go")))
    later = found.extend([assistant("well")])
    assert later.number(len(later.shown) - 1) == 2
