from __future__ import annotations

import pytest

from refold.model.dialect import ANTHROPIC, CHAT, RESPONSES
from refold.model.message import ToolCall, assistant, system, tool, user
from refold.replay.facts import Context, FactBook, ReferenceCounter
from refold.replay.score import problems

HI, YES = user("hi"), assistant("yes")
ONE, TWO = assistant("", ToolCall("c1", "go")), assistant("", ToolCall("c2", "go"))
DONE, SECOND = tool("c1", "done"), tool("c2", "done")
BAD = assistant("", ToolCall("c1", "go", '{"a": '))


def found(*messages, dialect=CHAT):
    return problems(Context(FactBook(ReferenceCounter()).all_of(messages), None), dialect)


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ((system("be kind"), HI), set()),
        ((HI, ONE, DONE), set()),
        ((HI, YES, HI, ONE, DONE, TWO, SECOND), set()),
        ((), {"no_messages"}),
        ((system("be kind"),), {"no_messages"}),
        ((DONE, HI), {"starts_without_user", "orphan_result"}),
        ((HI, YES), {"ends_with_assistant"}),
        ((HI, system("be kind")), {"system_in_middle"}),
        ((HI, DONE), {"orphan_result"}),
        ((HI, ONE, DONE, DONE), {"orphan_result"}),
        ((HI, ONE, HI), {"unanswered_call"}),
        ((HI, ONE, HI, DONE), {"unanswered_call", "orphan_result"}),
        ((HI, ONE), {"unanswered_call", "ends_with_assistant"}),
        ((HI, ONE, DONE, ONE, DONE), {"duplicate_call_id"}),
        ((HI, BAD, DONE), {"bad_arguments"}),
        ((HI, assistant(" "), HI), {"empty_message"}),
        ((user(""),), {"empty_message"}),
    ],
)
def test_what_a_provider_would_refuse(messages, expected):
    assert found(*messages) == expected


@pytest.mark.parametrize("opening", [(YES, HI), (ONE, DONE)], ids=["a summary", "a call"])
def test_openai_takes_the_assistant_first_and_anthropic_does_not(opening):
    for dialect in (CHAT, RESPONSES):
        assert found(system("be kind"), *opening, dialect=dialect) == set()
    assert found(*opening, dialect=ANTHROPIC) == {"starts_without_user"}


def test_where_a_reply_is_spread_over_items_its_calls_wait_together():
    assert found(HI, ONE, TWO, DONE, SECOND, dialect=RESPONSES) == set()
    assert found(HI, ONE, TWO, DONE, SECOND, dialect=CHAT)


def test_where_results_belong_into_one_message_two_messages_are_wrong():
    both = assistant("", ToolCall("c1", "go"), ToolCall("c2", "go"))

    assert found(HI, both, DONE, SECOND, dialect=CHAT) == set()
    assert found(HI, both, DONE, SECOND, dialect=ANTHROPIC) == {"split_results"}
    joined = DONE.with_parts((*DONE.parts, *SECOND.parts))
    assert found(HI, both, joined, dialect=ANTHROPIC) == set()
