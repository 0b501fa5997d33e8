from __future__ import annotations

import json
from pathlib import Path

import pytest

from refold.model.dialect import ANTHROPIC, CHAT, DIALECTS, RESPONSES
from refold.model.message import Message, Text, assistant, system, user
from refold.ports.models import Ask
from refold.upstreams.http import request_body
from refold.upstreams.provider import Provider, complete
from refold.wire import decode_transcript

EXAMPLES = Path(__file__).parents[2] / "examples"


def written(ask: Ask, dialect, *, stream: bool = False, **settings) -> dict:
    settings = {"name": "openai", "model": "m", "format": dialect.name, **settings}
    return json.loads(request_body(ask, complete(Provider(**settings)), dialect, stream=stream))


@pytest.mark.parametrize(
    "name", ["coding-agent.json", "research.responses.jsonl", "support-chat.anthropic.json"]
)
def test_a_conversation_at_home_leaves_byte_for_byte(name):
    """So that what the provider has cached of it is of use."""
    spoken = decode_transcript((EXAMPLES / name).read_bytes())
    ask = Ask((*spoken.messages, user("Sum up.")), spoken.system, spoken.tools)
    provider = complete(Provider("local", "m", spoken.dialect.name))
    body = request_body(ask, provider, spoken.dialect, stream=False)
    for message in (*spoken.messages, *spoken.system):
        assert bytes(message.origin.raw) in body
    for tool in spoken.tools:
        assert bytes(tool.raw) in body


def test_the_system_prompt_has_its_place():
    ask = Ask((user("Why?"),), "Be brief.")
    assert written(ask, CHAT)["messages"][0] == {"role": "system", "content": "Be brief."}
    assert written(ask, RESPONSES)["instructions"] == "Be brief."
    assert written(ask, ANTHROPIC)["system"] == "Be brief."
    for dialect in DIALECTS.values():
        fields = written(Ask((user("Why?"),)), dialect)
        assert not {"system", "instructions", "tools"} & set(fields)
        assert len(fields[dialect.messages_key]) == 1


def test_several_system_messages_are_one_where_there_is_one_place():
    prompts = (system("One."), Message("developer", (Text("Two."),)))
    fields = written(Ask((user("Why?"),), prompts), ANTHROPIC)
    assert [block["text"] for block in fields["system"]] == ["One.", "Two."]
    assert len(written(Ask((user("Why?"),), prompts), CHAT)["messages"]) == 3


def test_the_limit_of_the_reply_has_a_name_in_each_format():
    ask = Ask((user("Why?"),), max_output=7)
    assert written(ask, CHAT)["max_completion_tokens"] == 7
    assert written(ask, CHAT, name="groq")["max_tokens"] == 7
    assert written(ask, RESPONSES)["max_output_tokens"] == 7
    assert written(ask, ANTHROPIC)["max_tokens"] == 7


def test_only_chat_has_to_be_asked_for_the_usage_of_a_stream():
    ask = Ask((user("Why?"),))
    assert written(ask, CHAT, stream=True)["stream_options"] == {"include_usage": True}
    for dialect in (RESPONSES, ANTHROPIC):
        fields = written(ask, dialect, stream=True)
        assert fields["stream"] is True
        assert "stream_options" not in fields
    assert "stream" not in written(ask, CHAT)


def test_parameters_of_the_settings_win_and_null_leaves_one_out():
    settings = {"parameters": {"temperature": 1, "max_completion_tokens": None, "thinking": {"type": "x"}}}
    fields = written(Ask((user("Why?"),)), CHAT, **settings)
    assert (fields["temperature"], fields["thinking"]) == (1, {"type": "x"})
    assert "max_completion_tokens" not in fields
    assert "temperature" not in written(Ask((user("Why?"),), temperature=None), CHAT)


def test_where_the_user_speaks_first_a_bridge_stands_before_the_assistant():
    ask = Ask((assistant("Hello."), user("Why?")))
    assert [item["role"] for item in written(ask, ANTHROPIC)["messages"]] == ["user", "assistant", "user"]
    assert [item["role"] for item in written(ask, CHAT)["messages"]] == ["assistant", "user"]
