import pytest

from refold.core.stages.removal import Select
from refold.core.verify import verify
from refold.model.dialect import ANTHROPIC, CHAT, RESPONSES
from refold.model.message import Message, Text, ToolCall, ToolResult, assistant, tool, user
from tests.core.conversations import FlatCounter, show, talk
from tests.core.stages.shown_messages import room_for, show_all


def chosen(script, tokens, *, protected=None, pinned=(), dialect=CHAT, **settings):
    counter = FlatCounter(10)
    shown = show_all(talk(script), protected=protected, counter=counter)
    return Select(**settings).apply(shown, room_for(tokens, pinned=pinned, dialect=dialect, counter=counter))


@pytest.mark.parametrize("tokens, kept", [(83, 8), (82, 7), (43, 4), (42, 3), (13, 1), (12, 0), (-1, 0)])
def test_the_newest_that_fit_stay_and_three_tokens_are_counted_first(tokens, kept):
    result = chosen("u a u a u a u a", tokens)
    assert len(result.shown.items) == kept
    assert [item.seq for item in result.removed] == list(range(8 - kept))


def test_selection_stops_at_the_first_that_does_not_fit():
    messages = [user("a"), user("b" * 50), user("c"), user("d")]
    result = Select().apply(show_all(messages), room_for(20))
    assert [message.text for message in result.shown.messages] == ["c", "d"]
    assert [item.seq for item in result.removed] == [0, 1]


def test_a_reply_stays_with_its_results_or_goes_with_them():
    result = chosen("u a:x,y t:x t:y a u", 53)
    assert show(result.shown.messages) == "a:x,y t:x t:y a u"
    result = chosen("u a:x,y t:x t:y a u", 43)
    assert show(result.shown.messages) == "a u"
    assert [item.seq for item in result.removed] == [0, 1, 2, 3]
    assert [(edit.seq, edit.before, edit.after) for edit in result.edits] == [(n, 10, 0) for n in range(4)]


def test_whole_turns():
    result = chosen("u a:x t:x a u a", 43, by="turn")
    assert show(result.shown.messages) == "u a"


def test_a_reply_spread_over_items_is_one():
    result = chosen("u r c:x t:x a u", 43, dialect=RESPONSES)
    assert show(result.shown.messages) == "a u"


def test_what_fits_stays_as_it_is():
    result = chosen("u a u", 33)
    assert result.reason == "everything fits"
    assert not result.removed


def test_the_active_turn_and_pins_stay_and_are_counted_first():
    result = chosen("u a u a u a", 43, protected=4, pinned=[0])
    assert [item.seq for item in result.shown.items] == [0, 3, 4, 5]
    assert result.shown.protected == 2


def test_what_must_stay_is_too_much():
    result = chosen("u a u a", 13, protected=2)
    assert show(result.shown.messages) == "u a"
    assert result.reason == "what must stay takes more than there is room for"
    assert chosen("u a", 13, protected=0).reason == result.reason


def test_an_orphan_in_the_input_goes_to_the_summary_as_well():
    messages = [user("one"), assistant("two"), tool("lost", "found it"), user("three"), assistant("four")]
    shown = show_all(messages)
    result = Select().apply(shown, room_for(shown.tokens))
    assert [item.seq for item in result.removed] == [0, 2]
    assert [item.seq for item in result.shown.items] == [1, 3, 4]
    assert not verify(result.shown.messages, CHAT)
    assert {edit.seq for edit in result.edits} == {0, 2}


def test_only_the_orphan_of_a_message_goes():
    call, answer = ToolCall("x", "look"), ToolResult("x", (Text("seen"),))
    messages = [
        user("one"),
        Message("assistant", (Text("looking"), call, ToolCall("y", "lost"))),
        Message("tool", (answer,)),
        user("two"),
    ]
    shown = show_all(messages)
    result = Select().apply(shown, room_for(shown.tokens))
    assert [item.seq for item in result.removed] == [0, 1]
    assert result.removed[1].message.calls == (ToolCall("y", "lost"),)
    assert result.shown.messages[0].calls == (call,)
    assert [(edit.seq, edit.reason) for edit in result.edits] == [
        (0, "older than what fits"),
        (1, "without its call or result"),
    ]


def test_text_beside_an_orphan_becomes_the_user_s():
    mixed = Message("tool", (ToolResult("lost", (Text("seen"),)), Text("by the way")))
    shown = show_all([user("one"), assistant("two"), mixed, assistant("three")])
    result = Select().apply(shown, room_for(shown.tokens, dialect=ANTHROPIC))
    assert [message.role for message in result.shown.messages] == ["assistant", "user", "assistant"]
    assert result.removed[-1].message.results[0].text == "seen"
