from __future__ import annotations

import json

import pytest

from refold.model.dialect import CHAT
from refold.model.errors import WireError
from refold.model.message import Message, Reasoning, Text
from refold.wire import decode_message, encode_message
from tests.wire.samples import CHAT_MESSAGES

TEXT = {"type": "reasoning.text", "text": "think", "signature": "sig"}
SUMMARY = {"type": "reasoning.summary", "summary": "in short"}
SEALED = {"type": "reasoning.encrypted", "data": "gAAA"}
THINKING = {"type": "thinking", "thinking": "think", "signature": "sig"}
REDACTED = {"type": "redacted_thinking", "data": "gBBB"}
BARE = {"role": "assistant", "content": "a"}


def read(**fields: object) -> Message:
    return decode_message(json.dumps({**BARE, **fields}).encode(), CHAT)


def encoded(message: Message) -> dict[str, object]:
    return json.loads(bytes(encode_message(message, CHAT)))


@pytest.mark.parametrize(
    "fields, thought",
    [
        ({"reasoning_content": "think"}, Reasoning("think")),
        ({"reasoning": "think"}, Reasoning("think")),
        ({"reasoning": "think", "reasoning_details": [TEXT]}, Reasoning("think", "sig")),
        ({"reasoning_details": [TEXT, SUMMARY]}, Reasoning("think\nin short", "sig")),
        ({"reasoning_details": [SEALED]}, Reasoning("", sealed="gAAA")),
        ({"thinking_blocks": [THINKING, REDACTED]}, Reasoning("think", "sig", "gBBB")),
        ({"reasoning_details": [TEXT], "thinking_blocks": [THINKING]}, Reasoning("think", "sig")),
        ({"reasoning_details": [{"type": "reasoning.new", "text": 3}]}, Reasoning("")),
    ],
)
def test_all_that_a_server_says_about_a_thought_is_one_part_that_stays_or_goes(
    fields: dict[str, object], thought: Reasoning
):
    message = read(**fields)
    assert message.bare().parts == (thought, Text("a"))
    assert encoded(message.with_parts((message.parts[0], Text("b")))) == {**BARE, **fields, "content": "b"}
    assert encoded(message.with_parts((Text("a"),))) == BARE


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning": None},
        {"reasoning_details": []},
        {"thinking_blocks": None},
        {"reasoning": {"effort": "low"}},
    ],
)
def test_fields_that_say_nothing_are_no_thought(fields: dict[str, object]):
    message = read(**fields)
    assert message.bare().parts == (Text("a"),)
    assert encoded(message.with_parts((Text("b"),))) == {**BARE, **fields, "content": "b"}


def test_reasoning_keeps_the_name_it_came_with():
    for name, other in (("reasoning", "reasoning_content"), ("reasoning_content", "reasoning")):
        edited = encoded(read(**{name: "short"}).with_parts((Reasoning("long"), Text("a"))))
        assert edited[name] == "long"
        assert other not in edited
    assert encoded(read().with_parts((Reasoning("r"), Text("a"))))["reasoning_content"] == "r"


def test_a_text_under_both_names_is_changed_under_both():
    edited = read(reasoning="r", reasoning_content="r").with_parts((Reasoning("s"), Text("a")))
    assert encoded(edited) == {**BARE, "reasoning": "s", "reasoning_content": "s"}


def test_another_thought_under_the_other_name_is_not_overwritten():
    message = read(reasoning_content="A", reasoning="B")
    assert message.parts[0] == Reasoning("A")
    edited = message.with_parts((Reasoning("C"), Text("a")))
    assert encoded(edited) == {**BARE, "reasoning_content": "C", "reasoning": "B"}
    assert encoded(message.with_parts((Text("a"),))) == BARE


def test_what_is_signed_leaves_as_it_came_or_not_at_all():
    message = decode_message(CHAT_MESSAGES[13], CHAT)
    for thought in (Reasoning("other"), Reasoning("other", "c2ln")):
        with pytest.raises(WireError):
            encode_message(message.with_parts((thought, Text("a"))), CHAT)


def test_numbers_no_machine_can_hold_are_not_read():
    raw = b'{"role":"assistant","content":"a","reasoning":' + b"9" * 5000 + b"}"
    assert decode_message(raw, CHAT).bare().parts == (Text("a"),)
