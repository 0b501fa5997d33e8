from __future__ import annotations

import json

import pytest

from refold.model.dialect import ANTHROPIC, CHAT, RESPONSES, Dialect
from refold.model.errors import BodyTooLarge, WireError
from refold.model.message import Reasoning, Text, ToolCall, assistant
from refold.model.tokens import Usage
from refold.wire import ErrorBody, decode_error, decode_reply, encode_message

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
        (CHAT, b'{"choices":[{}]}', "choices[0].message"),
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


def test_the_limit_of_bytes_is_the_callers():
    with pytest.raises(BodyTooLarge):
        decode_reply(CHAT_REPLY, CHAT, max_body_bytes=9)


@pytest.mark.parametrize(
    "body, error",
    [
        (
            b'{"error":{"message":"too long","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}',
            ErrorBody("invalid_request_error", "context_length_exceeded", "too long"),
        ),
        (
            b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"},"request_id":"req_1"}',
            ErrorBody("overloaded_error", "", "Overloaded", "req_1"),
        ),
        (b'{"error":"plain"}', ErrorBody(message="plain")),
        (b'{"error":{"code":400,"message":"m","status":"INVALID"}}', ErrorBody("INVALID", "400", "m")),
        (b'[{"error":{"code":400,"message":"m"}}]', ErrorBody("", "400", "m")),
        (b'{"id":"1","choices":[],"error":{"message":"m"}}', ErrorBody(message="m")),
    ],
)
def test_errors_of_every_format_are_read(body: bytes, error: ErrorBody):
    assert decode_error(body) == error
    assert decode_error(body).is_error


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"null", b"[]", b"{}", b'{"error":null}', b'{"error":[]}', b'{"error":{"message":{}}}', b"\xff",
     b"[" * 100_000, CHAT_REPLY, ANTHROPIC_REPLY, RESPONSES_REPLY],
)  # fmt: skip
def test_a_body_without_an_error_gives_an_empty_one(body: bytes):
    assert decode_error(body) == ErrorBody()
    assert not decode_error(body).is_error
