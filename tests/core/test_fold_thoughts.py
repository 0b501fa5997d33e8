import pytest
from msgspec import structs

from refold.core.fold import (
    FoldedBranch,
    forget_thoughts,
    has_thoughts,
    is_signature_error,
    thought_edits,
    without_reasoning,
)
from refold.core.view import View
from refold.model.dialect import ANTHROPIC, CHAT
from refold.model.message import Message, Reasoning, Text, ToolCall, assistant, tool, user
from refold.tokens import FittedCounter

COUNTER = FittedCounter()


def thinking(text, *calls):
    return Message("assistant", (Reasoning("hm", "signed"), Text(text), *calls))


def folded(*messages, dialect=ANTHROPIC):
    return FoldedBranch.of(View.of(messages, dialect, COUNTER))


DONE = (user("one"), thinking("yes"), user("two"), thinking("also"))
AT_WORK = (*DONE, user("three"), thinking("reading", ToolCall("c1", "read")), tool("c1", "text"))


def thoughts(shown):
    return [item.seq for item in shown.items.items if has_thoughts(item.message)]


def test_a_change_takes_the_thoughts_of_every_turn_that_is_over():
    before = folded(*AT_WORK)
    after = before.show(before.items.items[1:])
    assert thoughts(before) == [1, 3, 5]
    assert thoughts(after) == [5]
    assert after.shown[0].message.text == "yes"
    assert after.shown.tokens.tokens < before.shown.tokens.tokens


def test_between_turns_all_of_them_go():
    before = folded(*DONE)
    assert thoughts(before.show(before.items.items)) == []


def test_where_thoughts_are_not_signed_they_stay():
    before = folded(*DONE, dialect=CHAT)
    assert thoughts(before.show(before.items.items)) == [1, 3]


def test_what_is_said_after_a_change_keeps_its_thoughts():
    before = folded(*DONE)
    after = before.show(before.items.items).extend([user("three"), thinking("new")])
    assert thoughts(after) == [5]


def test_every_lost_thought_is_told_once():
    before = folded(*DONE)
    after = before.show(before.items.items)
    edits = thought_edits(before.items.items, after.items.items, ())
    assert [(edit.seq, edit.handle) for edit in edits] == [(1, "#m1"), (3, "#m3")]
    assert all(edit.after < edit.before for edit in edits)
    assert [edit.seq for edit in thought_edits(before.items.items, after.items.items, edits[:1])] == [3]


def test_a_message_that_is_all_thought_stays():
    only = folded(user("one"), Message("assistant", (Reasoning("hm", "signed"),)), user("two"))
    assert without_reasoning(only.items.items, only.size, COUNTER) == only.items.items


def test_a_turn_at_work_with_thoughts_is_bound():
    assert folded(*AT_WORK).is_bound
    assert not folded(*DONE).is_bound
    assert not folded(
        *DONE, user("three"), assistant("", ToolCall("c1", "read")), tool("c1", "text")
    ).is_bound
    assert not folded(*AT_WORK, dialect=CHAT).is_bound


@pytest.mark.parametrize(
    "body, is_one",
    [
        (b'{"error":{"message":"messages.1.content.0: Invalid `signature` in `thinking` block"}}', True),
        (b'{"error":{"type":"prefix_binding_mismatch"}}', True),
        (b'{"error":{"message":"prompt is too long: 9 tokens > 5 maximum"}}', False),
        (b"thinking" + b" " * 5_000 + b"signature", False),
        ({"error": "signature of the thinking block"}, True),
    ],
)
def test_the_words_for_a_thought_that_no_longer_holds(body, is_one):
    assert is_signature_error(400, body) == is_one
    assert not is_signature_error(500, body)


def test_thoughts_that_no_longer_hold_are_forgotten_only_where_that_is_our_doing():
    before = folded(*AT_WORK)
    assert forget_thoughts(before) == (before, ())
    changed = before.show(before.items.items)
    after, edits = forget_thoughts(changed)
    assert thoughts(after) == []
    assert [edit.seq for edit in edits] == [5]
    assert forget_thoughts(after)[1] == ()
    assert structs.replace(after, shown=changed.shown).size == changed.size
