from __future__ import annotations

import json

import pytest

from refold.model.dialect import ANTHROPIC, CHAT, RESPONSES, Dialect
from refold.model.errors import BodyTooLarge, WireError
from refold.model.message import Opaque, Reasoning, Text, ToolCall, assistant
from refold.model.tokens import Usage
from refold.wire import decode_error, decode_reply, encode_message

CHAT_REPLY = (
    b'{"id":"chatcmpl-1","object":"chat.completion","model":"gpt-x","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"Hi","refusal":null,"annotations":[]},"finish_reason":"stop","logprobs":null}],'
    b'"usage":{"prompt_tokens":9,"completion_tokens":3}}'
)
ANTHROPIC_REPLY = (
    b'{"id":"msg_1","type":"message","role":"assistant","model":"claude-x","content":[{"type":"thinking",'
    b'"thinking":"Hm","signature":"s"},{"type":"text","text":"Hi"},{"type":"tool_use","id":"t","name":"f","input":{}}],'
    b'"stop_reason":"tool_use","stop_sequence":null,"usage":{"input_tokens":9,"output_tokens":3}}'
)
RESPONSES_REPLY = (
    b'{"id":"resp_1","object":"response","status":"completed","error":null,"incomplete_details":null,"model":"gpt-x",'
    b'"output":[{"type":"reasoning","id":"rs","summary":[],"encrypted_content":"e"},{"type":"message","id":"m",'
    b'"role":"assistant","content":[{"type":"output_text","text":"Hi","annotations":[]}]}],'
    b'"usage":{"input_tokens":9,"output_tokens":3}}'
)


def test_a_chat_reply():
    reply = decode_reply(CHAT_REPLY, CHAT)
    assert [message.bare() for message in reply.messages] == [assistant("Hi")]
    assert (reply.finish, reply.model, reply.id) == ("stop", "gpt-x", "chatcmpl-1")
    assert reply.usage == Usage(input=9, output=3)


def test_an_anthropic_reply_is_a_message_that_can_be_sent_back():
    reply = decode_reply(ANTHROPIC_REPLY, ANTHROPIC)
    (message,) = reply.messages
    assert message.bare().parts == (Reasoning("Hm", "s"), Text("Hi"), ToolCall("t", "f", "{}"))
    assert [*json.loads(bytes(encode_message(message, ANTHROPIC)))] == ["role", "content"]
    assert (reply.finish, reply.model, reply.id) == ("tool_use", "claude-x", "msg_1")


def test_a_responses_reply_is_its_items():
    reply = decode_reply(RESPONSES_REPLY, RESPONSES)
    assert [message.bare().parts[0] for message in reply.messages] == [Reasoning("", sealed="e"), Text("Hi")]
    assert (reply.finish, reply.model, reply.id) == ("completed", "gpt-x", "resp_1")
    cut = RESPONSES_REPLY.replace(
        b'"incomplete_details":null', b'"incomplete_details":{"reason":"max_output_tokens"}'
    )
    assert decode_reply(cut, RESPONSES).finish == "max_output_tokens"


def test_a_reply_without_usage_reports_none():
    body = CHAT_REPLY.replace(b',"usage":{"prompt_tokens":9,"completion_tokens":3}', b"")
    assert decode_reply(body, CHAT).usage is None
    assert decode_reply(CHAT_REPLY.replace(b"9", b"0").replace(b":3", b":0"), CHAT).usage is None


@pytest.mark.parametrize(
    "dialect, body, place",
    [
        (CHAT, b"", ""),
        (CHAT, b"{}", "choices"),
        (CHAT, b'{"choices":[]}', "choices"),
        (CHAT, b'{"choices":[3]}', "choices[0]"),
        (CHAT, b'{"choices":[{"message":3}]}', "choices[0].message"),
        (CHAT, b'{"choices":[{"message":{"role":"assistant","content":4}}]}', "choices[0].message.content"),
        (CHAT, b'{"choices":null,"error":{"message":"m"}}', "error"),
        (ANTHROPIC, b"{}", "content"),
        (ANTHROPIC, b'{"content":[{"type":"text"}]}', "content[0].text"),
        (ANTHROPIC, b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}', "error"),
        (RESPONSES, b'{"output":[{"type":"function_call"}]}', "output[0].call_id"),
        (RESPONSES, b'{"output":[],"error":{"code":"server_error","message":"m"}}', "error"),
    ],
)
def test_what_is_no_reply_is_named_by_its_place(dialect: Dialect, body: bytes, place: str):
    with pytest.raises(WireError) as caught:
        decode_reply(body, dialect)
    assert caught.value.place == place


def test_a_message_without_a_role_is_the_assistants():
    reply = decode_reply(b'{"choices":[{"message":{"content":"x","y":1}}]}', CHAT)
    assert [message.bare() for message in reply.messages] == [assistant("x")]
    assert bytes(encode_message(reply.messages[0], CHAT)) == b'{"role":"assistant","content":"x","y":1}'
    anthropic = decode_reply(b'{"role":"system","content":[]}', ANTHROPIC)
    assert [message.role for message in anthropic.messages] == ["assistant"]


REFUSALS = {
    "chat": (CHAT, CHAT_REPLY.replace(b'"content":"Hi","refusal":null', b'"content":null,"refusal":"No."')),
    "chat block": (CHAT, CHAT_REPLY.replace(b'"Hi"', b'[{"type":"refusal","refusal":"No."}]')),
    "chat cut off": (
        CHAT,
        CHAT_REPLY.replace(b'"Hi","refusal":null', b'"","refusal":"No."').replace(b'"stop"', b'"length"'),
    ),
    "responses": (
        RESPONSES,
        RESPONSES_REPLY.replace(
            b'{"type":"output_text","text":"Hi","annotations":[]}', b'{"type":"refusal","refusal":"No."}'
        ),
    ),
    "anthropic": (
        ANTHROPIC,
        ANTHROPIC_REPLY.replace(b'"Hi"', b'"No."').replace(b'"tool_use",', b'"refusal",'),
    ),
}


@pytest.mark.feature("N3")
@pytest.mark.parametrize(("dialect", "body"), REFUSALS.values(), ids=REFUSALS)
def test_a_model_that_declines_ends_with_a_refusal_in_every_format(dialect: Dialect, body: bytes):
    reply = decode_reply(body, dialect)
    assert reply.finish == "refusal"
    assert reply.messages[-1].text == "No."


def test_the_word_refusal_alone_is_none():
    body = CHAT_REPLY.replace(b'"Hi"', b'[{"type":"text","text":"refusal","refusal":null}]')
    assert decode_reply(body, CHAT).finish == "stop"
    assert decode_reply(CHAT_REPLY.replace(b'"refusal":null', b'"refusal":""'), CHAT).finish == "stop"


def test_what_broke_off_is_broken_though_it_began_to_decline():
    body = b'{"choices":[{"error":{"code":502,"message":"upstream"},"message":{"refusal":"I ca"}}]}'
    assert decode_reply(body, CHAT).finish == "error"


@pytest.mark.parametrize("message", [b"", b',"message":null'])
def test_a_choice_without_a_message_says_nothing(message: bytes):
    reply = decode_reply(b'{"choices":[{"finish_reason":"content_filter"' + message + b"}]}", CHAT)
    assert (reply.messages, reply.finish) == ((), "content_filter")


def test_ids_may_be_numbers():
    reply = decode_reply(
        b'{"id":5,"model":7,"choices":[{"message":{"content":"x"},"finish_reason":0}]}', CHAT
    )
    assert (reply.id, reply.model, reply.finish) == ("5", "7", "0")
    assert decode_reply(b'{"id":[],"output":[],"status":{}}', RESPONSES).id == ""


def test_a_reply_that_broke_off_keeps_what_was_said_and_its_error_can_be_read():
    body = (
        b'{"id":"g","choices":[{"error":{"code":502,"message":"upstream"},"message":{"content":"so f"}}],'
        b'"usage":{"prompt_tokens":9,"completion_tokens":3}}'
    )
    reply = decode_reply(body, CHAT)
    assert (reply.messages[0].text, reply.finish, reply.usage) == ("so f", "error", Usage(input=9, output=3))
    assert decode_error(body).message == "upstream"


def test_a_call_of_the_old_kind_is_passed_on():
    body = b'{"choices":[{"message":{"role":"assistant","content":null,"function_call":{"name":"a","arguments":"{}"}}}]}'
    (part,) = decode_reply(body, CHAT).messages[0].parts
    assert isinstance(part, Opaque)


def test_the_limit_of_bytes_is_the_callers():
    with pytest.raises(BodyTooLarge):
        decode_reply(CHAT_REPLY, CHAT, max_body_bytes=9)
