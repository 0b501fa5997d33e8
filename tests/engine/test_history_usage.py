import pytest

from refold.engine.history import message_tokens, session_usage
from refold.model.tokens import Usage
from refold.ports.records import Call, StoredMessage


def call(number, size, usage, session="s", kind="reply"):
    return Call(id=str(number), branch="b", session=session, usage=usage, size=size, kind=kind)


def stored(*tokens, roles="uauua"):
    names = {"u": "user", "a": "assistant"}
    return [
        StoredMessage(seq=n, role=names[role], format="chat", body=b"{}", tokens=count)
        for n, (count, role) in enumerate(zip(tokens, roles, strict=False))
    ]


@pytest.mark.feature("L6")
def test_replies_are_reported_and_what_came_between_two_calls_is_derived():
    calls = [call(1, 1, Usage(input=100, output=20)), call(2, 4, Usage(input=30, cache_read=120, output=7))]
    found = message_tokens(calls, stored(10, 5, 30, 60, 9))
    assert [(one.tokens, one.source) for one in found] == [
        (10, "counted"),
        (20, "reported"),
        (10, "derived"),
        (20, "derived"),
        (7, "reported"),
    ]


def test_nothing_is_derived_over_a_switch_or_from_a_window_that_got_smaller():
    switched = [call(1, 1, Usage(input=100, output=20)), call(2, 3, Usage(input=300, output=7), session="t")]
    folded = [call(1, 1, Usage(input=100, output=20)), call(2, 3, Usage(input=50, output=7))]
    for calls in (switched, folded):
        assert message_tokens(calls, stored(10, 5, 30, 9))[2].source == "counted"


@pytest.mark.feature("L6")
def test_a_session_has_the_sum_of_its_calls_summaries_included():
    calls = [
        call(1, 1, Usage(input=100, output=20)),
        call(2, 1, Usage(input=50, output=9), kind="summary"),
        call(3, 3, Usage(input=7, output=1), session="t"),
    ]
    assert session_usage(calls) == {"s": Usage(input=150, output=29), "t": Usage(input=7, output=1)}


def test_what_was_said_while_a_reply_was_on_its_way_is_not_taken_for_it():
    calls = [call(1, 1, Usage(input=100, output=77)), call(2, 4, Usage(input=200, output=7))]
    found = message_tokens(calls, stored(10, 5, 30, 60, 9, roles="uuaua"))
    assert [(one.tokens, one.source) for one in found] == [
        (10, "counted"),
        (5, "counted"),
        (30, "counted"),
        (60, "counted"),
        (7, "reported"),
    ]
