"""What a provider refuses, in its own words; and what those words mean to Refold."""

from __future__ import annotations

import anthropic
import openai
import pytest

from refold.core.overflow import classify
from refold.testing import ScriptedUpstream, say, sign, think
from refold.wire import decode_error
from tests.testing.exchanges import PROTOCOLS, ask, body_of, post

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
USER, SECOND = {"role": "user", "content": "hi"}, {"role": "user", "content": "and?"}
CALLS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "ok"}

TOLD = {"role": "system", "content": "be brief"}
SET = {"role": "system", "content": [], "output_config": {"effort": "low"}}
SAID = {"role": "assistant", "content": "I"}
USE = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "f", "input": {}}]}
USED = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "ok"}]}
TWICE = {"role": "user", "content": USED["content"] * 2}
UNSIGNED = {
    "role": "assistant",
    "content": [{"type": "thinking", "thinking": "x", "signature": ""}, *USE["content"]],
}
FORGED = {
    "role": "assistant",
    "content": [{"type": "thinking", "thinking": "x", "signature": "mine"}, *USE["content"]],
}

CALLED = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "ok"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": []}
SEALED = {**THOUGHT, "summary": [{"type": "summary_text", "text": "x"}], "encrypted_content": "mine"}

BROKEN = [
    ("chat", [USER, CALLS, SECOND], "did not have response messages: c1"),
    ("chat", [USER, RESULT], "must be a response to a preceeding message"),
    ("chat", [USER, CALLS, RESULT, RESULT], "must be a response to a preceeding message"),
    ("responses", [USER, CALLED], "No tool output found for function call c1."),
    ("responses", [USER, OUTPUT], "No tool call found for function call output with call_id c1."),
    ("responses", [USER, THOUGHT, SECOND], "without its required following item"),
    ("responses", [USER, SEALED, CALLED, OUTPUT], "encrypted content could not be verified"),
    ("anthropic", [USER, USE, SECOND], "without `tool_result` blocks immediately after: t1"),
    ("anthropic", [USER, USED], "unexpected `tool_use_id` found in `tool_result` blocks: t1"),
    ("anthropic", [USER, USE, TWICE], "each tool_use must have a single result"),
    ("anthropic", [USER, USE, USED, USE, USED], "`tool_use` ids must be unique"),
    ("anthropic", [USER, FORGED, USED], "Invalid `signature` in `thinking` block"),
    ("anthropic", [USER, {"role": "assistant", "content": "I"}], "must end with a user message"),
    ("anthropic", [{"role": "user", "content": []}], "must have non-empty content"),
    (
        "anthropic",
        [TOLD, USER],
        "messages.0: use the top-level 'system' parameter for the initial system prompt",
    ),
    ("anthropic", [USER, SAID, TOLD], "messages.2: role 'system' must follow a 'user' message"),
    (
        "anthropic",
        [USER, TOLD, USER],
        "messages.1: role 'system' must precede an 'assistant' message or end the array",
    ),
    (
        "anthropic",
        [USER, TOLD, TOLD],
        "messages.1: role 'system' must precede an 'assistant' message or end the array",
    ),
]
"""Histories that are to be repaired."""
INVALID = [
    ("anthropic", [USER, UNSIGNED, USED], "messages.1.content.0.thinking.signature: Field required"),
    ("anthropic", [{"role": "assistant", "content": "I"}, USER], 'first message must use the "user" role'),
    (
        "anthropic",
        [{"role": "user", "content": [{"type": "text", "text": " "}, {"type": "text", "text": "a"}]}],
        "text content",
    ),
    ("chat", [USER, {"role": "wizard", "content": "x"}], "messages[1].role: unknown role"),
    ("chat", [], "messages: holds no message"),
    (
        "chat",
        [{"role": "system", "content": "s"}, USER, {"role": "user", "content": ""}],
        "'messages[2]': the message says nothing",
    ),
]


def request_of(protocol, messages):
    key = "input" if protocol == "responses" else "messages"
    return {**body_of(protocol), key: messages}


async def send(server, protocol, messages, path=""):
    paths = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "anthropic": "/v1/messages"}
    return await post(server, path or paths[protocol], request_of(protocol, messages))


@pytest.fixture(scope="module")
def provider():
    with ScriptedUpstream(otherwise="ok", strict=True) as running:
        yield running


@pytest.mark.parametrize(("protocol", "messages", "words"), [*BROKEN, *INVALID])
async def test_what_is_not_a_conversation_is_refused_in_the_providers_words(
    provider, protocol, messages, words
):
    answered = await send(provider, protocol, messages)

    assert answered.status == 400
    assert words in decode_error(answered.content).message


@pytest.mark.parametrize(("protocol", "messages", "words"), BROKEN)
async def test_the_words_mean_that_the_history_wants_repair(provider, protocol, messages, words):
    answered = await send(provider, protocol, messages)

    assert classify(answered.status, answered.content).kind == "malformed_history"


@pytest.mark.parametrize(
    ("protocol", "messages"),
    [
        ("chat", [USER, CALLS, RESULT]),
        ("responses", [USER, CALLED, OUTPUT]),
        ("anthropic", [USER, USE, USED]),
        ("anthropic", [USER, TOLD, SAID, USER, TOLD]),
        ("anthropic", [USER, USE, USED, TOLD]),
        ("anthropic", [SET, USER, SET, TOLD, SAID, SET, USER, SET]),
    ],
)
async def test_whole_conversations_pass(provider, protocol, messages):
    assert (await send(provider, protocol, messages)).status == 200


async def test_counting_refuses_the_same(provider):
    answered = await send(provider, "anthropic", [USER, USE, SECOND], "/v1/messages/count_tokens")

    assert answered.status == 400


async def test_a_lenient_server_takes_anything_that_can_be_read():
    async with ScriptedUpstream(otherwise="ok", validates=False) as lenient:
        for protocol, messages, _ in BROKEN:
            assert (await send(lenient, protocol, messages)).status == 200


async def test_a_history_made_up_by_a_test_can_be_signed(provider):
    thought = {"type": "thinking", "thinking": "x", "signature": sign("x")}
    said = {"role": "assistant", "content": [thought, *USE["content"]]}

    assert (await send(provider, "anthropic", [USER, said, USED])).status == 200


async def test_thinking_can_be_bound_to_what_was_said_before_it():
    async with ScriptedUpstream(otherwise=say(think("x"), "Yes."), binds_thinking=True) as strict:
        first = await send(strict, "anthropic", [USER])
        said = {"role": "assistant", "content": first.json["content"]}
        same = await send(strict, "anthropic", [USER, said, SECOND])
        other = await send(strict, "anthropic", [SECOND, said, SECOND])
        without = {"role": "assistant", "content": first.json["content"][1:]}
        dropped = await send(strict, "anthropic", [SECOND, without, SECOND])

    assert (same.status, other.status, dropped.status) == (200, 400, 200)
    assert "Invalid `signature`" in decode_error(other.content).message


async def test_what_every_request_needs(provider):
    model = await post(provider, "/v1/chat/completions", {"messages": [USER]})
    most = await post(provider, "/v1/messages", {"model": "m", "messages": [USER]})
    version = await post(provider, "/v1/messages", body_of("anthropic"), {"x-api-key": "k"})
    unreadable = await post(provider, "/v1/chat/completions", b'{"model": ')
    told = [decode_error(answered.content).message for answered in (model, most, version, unreadable)]

    assert [answered.status for answered in (model, most, version, unreadable)] == [400] * 4
    assert told[:3] == [
        "you must provide a model parameter",
        "max_tokens: Field required",
        "anthropic-version: header is required",
    ]
    assert "truncated" in told[3]


async def test_too_many_bytes(provider):
    image = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "A" * (33 << 20)},
    }

    answered = await send(provider, "anthropic", [{"role": "user", "content": [image]}])

    assert (answered.status, answered.json["error"]["type"]) == (413, "request_too_large")


async def test_too_many_cache_breakpoints(provider):
    marked = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}

    answered = await send(provider, "anthropic", [{"role": "user", "content": [marked] * 5}])

    assert (
        "A maximum of 4 blocks with cache_control may be provided. Found 5."
        in decode_error(answered.content).message
    )


async def test_a_wrong_key_is_refused_by_each_protocol_in_its_own_way():
    async with ScriptedUpstream(otherwise="ok", key="right") as locked:
        statuses = [(await ask(locked, protocol)).status for protocol in PROTOCOLS]
        async with openai.AsyncOpenAI(base_url=f"{locked.url}/v1", api_key="right", max_retries=0) as gpt:
            reply = await gpt.responses.create(model="m", input="hi")
            assert [model.id async for model in gpt.models.list()] == ["scripted"]
        async with anthropic.AsyncAnthropic(base_url=locked.url, api_key="wrong", max_retries=0) as claude:
            with pytest.raises(anthropic.AuthenticationError, match="invalid x-api-key"):
                await claude.messages.create(model="m", max_tokens=5, messages=[USER])
            with pytest.raises(anthropic.AuthenticationError, match="invalid x-api-key"):
                await claude.models.list()

    assert statuses == [401, 401, 401]
    assert reply.output_text == "ok"


TURNS = [USER, CALLS, RESULT, SAID, SECOND]
IN_TURN = [
    ([USER], 200),
    ([TOLD, *TURNS], 200),
    ([USER, CALLS, RESULT], 200),
    ([USER, SECOND], 400),
    ([SAID, USER], 400),
    ([TOLD, SAID, USER], 400),
    ([USER, SAID, SAID, SECOND], 400),
]


@pytest.mark.parametrize(("messages", "status"), IN_TURN)
async def test_a_chat_template_may_want_the_two_sides_in_turn(provider, messages, status):
    async with ScriptedUpstream(otherwise="ok", alternates=True) as strict:
        answered = await send(strict, "chat", messages)

    assert answered.status == status
    if status == 400:
        assert "conversation roles must alternate user/assistant" in decode_error(answered.content).message
        assert classify(answered.status, answered.content).kind == "malformed_history"
        assert (await send(provider, "chat", messages)).status == 200  # as at OpenAI
