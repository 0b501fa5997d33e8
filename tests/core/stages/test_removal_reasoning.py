import msgspec
import pytest

from refold.core.stages.removal import DropReasoning
from refold.core.verify import verify
from refold.model.dialect import ANTHROPIC, CHAT, RESPONSES
from refold.model.message import Message, Reasoning, Text, ToolCall, tool, user
from refold.wire.request import decode_messages
from tests.core.conversations import show, talk
from tests.core.stages.shown_messages import room_for, show_all

THOUGHT = Reasoning("hm", "signed")


def dropped(messages, *, protected=None, dialect=ANTHROPIC, pinned=()):
    shown = show_all(messages, protected=protected)
    return DropReasoning().apply(shown, room_for(100, dialect=dialect, pinned=pinned))


def thinking(*parts):
    return Message("assistant", (THOUGHT, *parts))


def test_thinking_of_earlier_turns_goes_whole():
    twice = Message("assistant", (THOUGHT, Text("one"), THOUGHT, ToolCall("x", "look")))
    messages = [user("a"), twice, tool("x", "seen"), user("b"), thinking(Text("two")), user("c")]
    result = dropped(messages, protected=5)
    assert result.shown.messages[1].parts == (Text("one"), ToolCall("x", "look"))
    assert [(edit.seq, edit.reason) for edit in result.edits] == [(1, "thinking of an earlier turn")]
    assert verify(result.shown.messages, ANTHROPIC) == ()


def test_the_latest_reply_keeps_its_thinking():
    """Acceptance case G76: also when a new question stands after it, and however it is spread over messages."""
    reply = [thinking(ToolCall("x", "look")), tool("x", "seen"), thinking(Text("two"))]
    for end in ([], [user("c")]):
        result = dropped([user("a"), *reply, *end])
        assert not result.edits
        assert result.reason == "no earlier turn holds thinking"


def test_the_active_turn_and_pins_keep_their_thinking():
    messages = [user("a"), thinking(Text("one")), user("b"), thinking(Text("two")), *talk("u a u a")]
    assert [edit.seq for edit in dropped(messages, protected=2).edits] == [1]
    assert [edit.seq for edit in dropped(messages, pinned=[1]).edits] == [3]


def test_an_item_that_is_only_thinking_goes_whole():
    result = dropped(talk("u r c:x t:x a u a"), dialect=RESPONSES)
    assert show(result.shown.messages) == "u c:x t:x a u a"
    assert [item.seq for item in result.removed] == [1]
    assert [(edit.seq, edit.after) for edit in result.edits] == [(1, 0)]


@pytest.mark.parametrize("call_id, kept", [('"id":"fc_1",', True), ('"id":null,', False), ("", False)])
def test_thinking_stays_where_the_provider_looks_its_reply_up(call_id, kept):
    call = f'{{"type":"function_call",{call_id}"call_id":"x","name":"look","arguments":"{{}}"}}'
    wire = [
        '{"role":"user","content":"go"}',
        '{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"abc"}',
        call,
        '{"type":"function_call_output","call_id":"x","output":"seen"}',
        '{"role":"user","content":"and?"}',
        '{"role":"assistant","content":"well"}',
    ]
    messages = decode_messages(msgspec.Raw(f"[{','.join(wire)}]".encode()), RESPONSES)
    assert (not dropped(messages, dialect=RESPONSES).edits) is kept


def test_unsigned_thinking_of_compatible_servers_goes_too():
    messages = [user("a"), Message("assistant", (Reasoning("hm"), Text("one"))), *talk("u a")]
    assert dropped(messages, dialect=CHAT).shown.messages[1].parts == (Text("one"),)
