import pytest
from msgspec import structs

from refold.model.dialect import ANTHROPIC, CHAT, DIALECTS, RESPONSES
from refold.model.message import assistant, system, user
from refold.model.window import Breakpoint, FixedFields, Window
from refold.wire.sdk import RequestFields

RULES = system("Be kind.")


def window(dialect, *messages, **fields):
    return Window(FixedFields(dialect, (RULES,)), messages, **fields)


def test_the_system_prompt_stands_where_the_format_has_it():
    said = user("Hello.")
    assert RequestFields().fields(window(CHAT, said)) == {
        "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello."}]
    }
    assert RequestFields().fields(window(ANTHROPIC, said)) == {
        "system": "Be kind.",
        "messages": [{"role": "user", "content": "Hello."}],
    }
    assert RequestFields().fields(window(RESPONSES, said)) == {
        "instructions": "Be kind.",
        "input": [{"type": "message", "role": "user", "content": "Hello."}],
    }


def test_without_a_system_prompt_there_is_no_such_field():
    for name, dialect in DIALECTS.items():
        fields = RequestFields().fields(Window(FixedFields(dialect), (user("Hello."),)))
        assert list(fields) == [dialect.messages_key], name


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_summaries_stand_before_the_messages_and_a_block_after_the_system_prompt(dialect):
    fields = RequestFields().fields(
        window(dialect, user("And now?"), summaries=(user("Before that: much."),), block="A digest.")
    )

    texts = [message["content"] for message in fields[dialect.messages_key]]
    assert texts[-2:] == ["Before that: much.", "And now?"]
    assert "Be kind." in str(fields)
    assert "A digest." in str(fields)


def test_a_message_is_spelled_once_and_given_out_again():
    spelling, first, second = RequestFields(), user("Hello."), assistant("Good day.")

    before = spelling.fields(window(CHAT, first))["messages"]
    after = spelling.fields(window(CHAT, first, second))["messages"]

    assert after[1] is before[1]
    assert len(after) == 3


def test_what_is_no_longer_sent_is_forgotten():
    spelling, old, new = RequestFields(), user("Hello."), user("And now?")
    spelling.fields(window(CHAT, old))
    spelling.fields(window(CHAT, new))

    assert [message for message, _ in spelling._known.values()] == [RULES, new]


@pytest.mark.feature("L9")
def test_cache_breakpoints_are_written_and_leave_no_trace():
    spelling, said = RequestFields(), user("Hello.")
    plain = window(ANTHROPIC, said)
    marked = structs.replace(plain, breakpoints=(Breakpoint(0, 0, "5m", "the growing tail"),))

    mark = {"cache_control": {"type": "ephemeral"}}
    assert spelling.fields(marked)["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "Hello.", **mark}]}
    ]
    assert spelling.fields(plain)["messages"] == [{"role": "user", "content": "Hello."}]
