from __future__ import annotations

import anthropic.types as claude
import pytest
from openai.types import CompletionUsage
from openai.types import responses as gpt
from openai.types.chat import ChatCompletion, ChatCompletionMessage

from refold import Conversation
from refold.model.dialect import ANTHROPIC, CHAT, DIALECTS, RESPONSES
from refold.model.errors import WireError
from refold.model.message import Text, ToolCall, assistant, system, user
from refold.model.tokens import Usage
from refold.model.window import FixedFields, Window
from refold.wire.sdk import plain_message, plain_prompt, prompt_messages, read_message, read_tools, read_usage
from tests.formats import CALLS, RESULTS, turn

every_dialect = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
CHAT_REPLY = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "gpt-4o",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "logprobs": None,
            "message": {
                "role": "assistant",
                "content": None,
                "refusal": None,
                "annotations": [],
                "tool_calls": [
                    {
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "look", "arguments": '{"at": null}'},
                    }
                ],
            },
        }
    ],
    "usage": {
        "prompt_tokens": 100,
        "completion_tokens": 20,
        "total_tokens": 120,
        "prompt_tokens_details": {"cached_tokens": 60, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 5},
    },
}
CLAUDE_REPLY = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-5",
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "content": [
        {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
        {"type": "text", "text": "Let me look.", "citations": None},
        {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": None}},
    ],
    "usage": {
        "input_tokens": 30,
        "cache_read_input_tokens": 60,
        "cache_creation_input_tokens": 10,
        "output_tokens": 20,
    },
}


@every_dialect
def test_dictionaries_go_in_and_the_same_come_out(dialect):
    for message in turn(3, dialect.name):
        assert plain_message(read_message(message, dialect), dialect) == message


async def test_a_subclass_of_str_is_added_as_its_text():
    class Answer(str):
        __slots__ = ()

    talk = Conversation("gpt-4o")
    await talk.add(Answer("yes, please"))
    assert (await talk.context())["messages"] == [{"role": "user", "content": "yes, please"}]


def test_a_string_is_what_the_user_says_and_a_message_is_a_message():
    said = assistant("Well.")

    assert read_message("Hello.", CHAT) == user("Hello.")
    assert read_message(said, CHAT) is said


class TestSdkObjects:
    def test_a_message_of_openai(self):
        reply = ChatCompletion.model_validate(CHAT_REPLY)

        message = read_message(reply.choices[0].message, CHAT)

        assert message.bare().parts == (ToolCall("call_1", "look", '{"at": null}'),)
        assert plain_message(message, CHAT) == {
            "role": "assistant",
            "annotations": [],
            "tool_calls": CHAT_REPLY["choices"][0]["message"]["tool_calls"],
        }

    def test_objects_inside_of_a_dictionary(self):
        reply = ChatCompletion.model_validate(CHAT_REPLY)
        calls = reply.choices[0].message.tool_calls

        message = read_message({"role": "assistant", "content": None, "tool_calls": calls}, CHAT)

        assert message.bare().calls == (ToolCall("call_1", "look", '{"at": null}'),)

    def test_the_items_of_a_response(self):
        items = [
            gpt.ResponseReasoningItem(id="rs_1", type="reasoning", summary=[], encrypted_content="eHg="),
            gpt.ResponseFunctionToolCall(
                type="function_call", call_id="call_1", name="look", arguments="{}", id="fc_1"
            ),
        ]

        reasoning, call = (read_message(item, RESPONSES) for item in items)

        assert call.calls == (ToolCall("call_1", "look", "{}"),)
        assert plain_message(reasoning, RESPONSES)["encrypted_content"] == "eHg="
        assert plain_message(call, RESPONSES)["id"] == "fc_1"

    def test_a_whole_reply_of_anthropic_is_its_message(self):
        reply = claude.Message.model_validate(CLAUDE_REPLY)

        message = read_message(reply, ANTHROPIC)

        assert plain_message(message, ANTHROPIC) == {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
                {"type": "text", "text": "Let me look."},
                {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": None}},
            ],
        }

    def test_the_blocks_of_a_reply_in_a_dictionary(self):
        reply = claude.Message.model_validate(CLAUDE_REPLY)

        message = read_message({"role": "assistant", "content": reply.content}, ANTHROPIC)

        assert plain_message(message, ANTHROPIC) == plain_message(read_message(reply, ANTHROPIC), ANTHROPIC)


@pytest.mark.parametrize(
    ("value", "dialect", "problem"),
    [
        (7, CHAT, "int is no message"),
        (None, CHAT, "NoneType is no message"),
        (["a"], CHAT, "list is no message"),
        ({"role": "user", "content": object()}, CHAT, "cannot be written as JSON"),
        ({"role": "user", "content": b"x"}, CHAT, "cannot be written as JSON"),
        ({"role": "user", "content": [{"type": "text", "text": b"x"}]}, CHAT, "cannot be written as JSON"),
        ({"role": "user", "content": "\ud800"}, CHAT, "cannot be written as JSON"),
        ({"content": "no role"}, CHAT, "role"),
        ({"role": "user"}, ANTHROPIC, "content"),
        ({"role": "tool", "content": "x"}, CHAT, "tool_call_id"),
        (ChatCompletion.model_validate(CHAT_REPLY), CHAT, "role"),
    ],
)
def test_what_is_no_message_is_an_error_without_its_content(value, dialect, problem):
    with pytest.raises(WireError, match=problem) as error:
        read_message(value, dialect)

    assert "chatcmpl" not in str(error.value)


def test_a_dictionary_that_holds_itself_is_an_error():
    message = {"role": "user", "content": []}
    message["content"].append(message)

    with pytest.raises(WireError, match="cannot be written as JSON"):
        read_message(message, CHAT)


def test_tools_as_an_sdk_takes_them():
    schema = {"type": "object", "properties": {"at": {"type": "string"}}}
    chat = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": schema}}
    anthropic = {"name": "look", "description": "Looks.", "input_schema": schema}
    block = claude.ToolParam(anthropic)

    names = [(tool.name, tool.description) for tool in read_tools([chat, anthropic, block])]

    assert names == [("look", "Looks.")] * 3
    assert read_tools([]) == ()


class TestUsage:
    EXPECTED = Usage(input=40, cache_read=60, output=20, reasoning=5)

    @pytest.mark.parametrize(
        "value",
        [
            ChatCompletion.model_validate(CHAT_REPLY),
            ChatCompletion.model_validate(CHAT_REPLY).usage,
            CHAT_REPLY,
            CHAT_REPLY["usage"],
            EXPECTED,
        ],
        ids=["reply", "object", "dictionary", "usage", "own"],
    )
    def test_chat(self, value):
        assert read_usage(value, CHAT) == self.EXPECTED

    def test_responses(self):
        usage = gpt.ResponseUsage.model_validate(
            {
                "input_tokens": 100,
                "input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 0},
                "output_tokens": 20,
                "output_tokens_details": {"reasoning_tokens": 5},
                "total_tokens": 120,
            }
        )

        assert read_usage(usage, RESPONSES) == self.EXPECTED

    def test_anthropic(self):
        reply = claude.Message.model_validate(CLAUDE_REPLY)

        assert read_usage(reply, ANTHROPIC) == Usage(input=30, cache_read=60, cache_write=10, output=20)
        assert read_usage(reply.usage, ANTHROPIC) == read_usage(reply, ANTHROPIC)

    def test_nothing_is_reported(self):
        silent = ChatCompletion.model_validate({**CHAT_REPLY, "usage": None})

        assert read_usage(None, CHAT) is None
        assert read_usage(silent, CHAT) is None
        assert read_usage({**CHAT_REPLY, "usage": None}, CHAT) is None

    def test_a_bare_report_of_two_numbers(self):
        usage = CompletionUsage(prompt_tokens=7, completion_tokens=3, total_tokens=10)

        assert read_usage(usage, CHAT) == Usage(input=7, output=3)

    def test_what_is_no_report(self):
        with pytest.raises(WireError, match="int is no usage report"):
            read_usage(7, CHAT)


def test_a_system_prompt_is_a_field_or_a_message():
    for dialect, field in ((ANTHROPIC, "system"), (RESPONSES, "instructions")):
        window = Window(FixedFields(dialect, (system("Be kind."),)), ())
        assert plain_prompt(window) == {field: "Be kind."}
        assert list(prompt_messages(window)) == []
    window = Window(FixedFields(CHAT, (system("Be kind."),)), ())
    assert plain_prompt(window) == {}
    assert list(prompt_messages(window)) == [system("Be kind.")]


def test_fields_nobody_knows_survive():
    message = {
        "role": "user",
        "content": [{"type": "text", "text": "Hi.", "x": 1}],
        "name": "Ada",
        "y": [None],
    }

    read = read_message(message, CHAT)

    assert read.parts[0].text == "Hi."
    assert plain_message(read, CHAT) == message
    changed = read.with_parts((Text("Ho.", raw=read.parts[0].raw),))
    assert plain_message(changed, CHAT) == {**message, "content": [{"type": "text", "text": "Ho.", "x": 1}]}


@every_dialect
def test_calls_and_results_are_read_alike(dialect):
    call = read_message(CALLS[dialect.name]("look", at=3), dialect)
    result = read_message(RESULTS[dialect.name]("look", "there"), dialect)

    assert [(made.id, made.name) for made in call.calls] == [("call_look", "look")]
    assert [(found.call_id, found.text) for found in result.results] == [("call_look", "there")]
    assert (call.role, result.role) == ("assistant", "tool")


def test_an_assistant_that_says_nothing_is_read():
    assert read_message(ChatCompletionMessage(role="assistant", content=None), CHAT).parts == ()
