"""Conversations that go on in another format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec import Raw

from refold.core.pairs import repair
from refold.core.verify import verify
from refold.model.dialect import ANTHROPIC, CHAT, DIALECTS, RESPONSES, Dialect
from refold.model.message import (
    File,
    Image,
    Message,
    Opaque,
    Origin,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    assistant,
    user,
)
from refold.model.window import Tool
from refold.wire import decode_request, decode_tools, decode_transcript, encode_message
from refold.wire.translate import translate_messages, translate_tools
from tests.wire.samples import BODIES

ROOT = Path(__file__).parents[2]
ALL = [pytest.param(dialect, id=name) for name, dialect in DIALECTS.items()]


def _examples() -> dict[str, tuple[Message, ...]]:
    files = sorted([*(ROOT / "examples").glob("*.json"), *(ROOT / "examples").glob("*.jsonl")])
    found = {path.name: decode_transcript(path.read_bytes()).messages for path in files}
    bodies = {name: decode_request(body, DIALECTS[name]).messages for name, body in BODIES.items()}
    return {**found, **{f"sample {name}": messages for name, messages in bodies.items()}}


CONVERSATIONS = _examples()


def foreign(message: Message, dialect: Dialect) -> Message:
    """The message as one that came in another format."""
    other = next(name for name in DIALECTS if name != dialect.name)
    return Message(message.role, message.parts, Origin(other, Raw(b"{}")))


def said(messages) -> list[str]:
    return [text for message in messages for text in message.text.split("\n") if text.strip()]


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.parametrize("messages", CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_a_conversation_of_any_format_is_valid_in_any_other(messages, dialect):
    whole = (*messages, user("Sum up."))
    sound = repair(translate_messages(whole, dialect), dialect, as_request=True).messages
    broken = [
        found for found in verify(sound, dialect, as_request=True) if found.rule != "starts_without_user"
    ]
    assert not broken
    for message in sound:
        json.loads(bytes(encode_message(message, dialect)))


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.parametrize("messages", CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_nothing_that_was_said_is_lost(messages, dialect):
    translated = translate_messages(messages, dialect)
    now = iter(said(translated))
    assert all(text in now for text in said(messages)), "each after the one before"
    before = [call.id for message in messages for call in message.calls]
    assert [call.id for message in translated for call in message.calls] == before
    results = [result.call_id for message in messages for result in message.results]
    assert [result.call_id for message in translated for result in message.results] == results


@pytest.mark.parametrize("dialect", ALL)
def test_messages_at_home_stay_the_very_values_they_were(dialect):
    messages = decode_request(BODIES[dialect.name], dialect).messages
    kept = translate_messages(messages, dialect)
    assert all(a is b for a, b in zip(kept, messages, strict=True))
    mixed = translate_messages((*messages, foreign(user("x"), dialect)), dialect)
    assert all(a is b for a, b in zip(mixed, messages, strict=False))


@pytest.mark.parametrize("dialect", ALL)
def test_what_only_its_provider_understands_stays_behind(dialect):
    parts = (Reasoning("Hm", "sig"), Opaque("search", raw=Raw(b'{"type":"search"}')), Text("So."))
    (kept,) = translate_messages([foreign(Message("assistant", parts), dialect)], dialect)
    assert kept == assistant("So.")
    assert translate_messages([foreign(Message("assistant", parts[:2]), dialect)], dialect) == ()


def test_a_reply_that_was_spread_over_items_becomes_one_message():
    items = [
        assistant("Look."),
        Message("assistant", (ToolCall("a", "f"),)),
        Message("assistant", (ToolCall("b", "f"),)),
    ]
    for dialect in (CHAT, ANTHROPIC):
        spread = [Message(item.role, item.parts, Origin("responses", Raw(b"{}"))) for item in items]
        (joined,) = translate_messages(spread, dialect)
        assert joined == assistant("Look.", ToolCall("a", "f"), ToolCall("b", "f"))


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.parametrize(
    "written, arguments", [('{"a":1}', '{"a":1}'), ("ls -l", '{"input":"ls -l"}'), ("[1]", '{"input":"[1]"}')]
)
def test_calls_of_special_tools_become_calls_of_functions(dialect, written, arguments):
    call = Message("assistant", (ToolCall("a", "shell", written, "shell"),))
    result = Message("tool", (ToolResult("a", (Text("ok"),), kind="shell"),))
    sent = translate_messages([foreign(call, dialect), foreign(result, dialect)], dialect)
    assert sent[0].calls == (ToolCall("a", "shell", arguments),)
    assert sent[1].results == (ToolResult("a", (Text("ok"),)),)


@pytest.mark.parametrize(
    "part, dialect, becomes",
    [
        (Image(media_type="image/png", data="AA"), ANTHROPIC, None),
        (Image(url="https://example.com/x.png"), CHAT, None),
        (Image(file_id="file-1"), ANTHROPIC, Text("[image]")),
        (File(text="all of it", name="a.txt"), CHAT, Text("all of it")),
        (File(media_type="application/pdf", data="AA", name="a.pdf"), ANTHROPIC, None),
        (File(media_type="audio/wav", data="AA"), ANTHROPIC, Text("[file]")),
        (File(url="https://example.com/a.pdf", name="a.pdf"), CHAT, Text("[file a.pdf]")),
        (File(url="https://example.com/a.pdf"), RESPONSES, None),
    ],
)
def test_media_are_kept_where_there_is_a_place_for_them(part, dialect, becomes):
    (sent,) = translate_messages([foreign(Message("user", (part,)), dialect)], dialect)
    assert sent.parts == (becomes or part,)
    encode_message(sent, dialect)


def test_media_in_results_are_named_where_they_have_no_place():
    picture = ToolResult("a", (Text("see"), Image(media_type="image/png", data="AA")))
    (sent,) = translate_messages([foreign(Message("tool", (picture,)), CHAT)], CHAT)
    assert sent.results[0].parts == (Text("see"), Text("[image]"))
    (kept,) = translate_messages([foreign(Message("tool", (picture,)), ANTHROPIC)], ANTHROPIC)
    assert kept.results == (picture,)


def test_a_developers_message_is_the_systems_where_nobody_knows_developers():
    (sent,) = translate_messages([foreign(Message("developer", (Text("Hush."),)), ANTHROPIC)], ANTHROPIC)
    assert sent == Message("system", (Text("Hush."),))


CHAT_TOOL = (
    b'{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"},"x":1}}'
)
RESPONSES_TOOL = b'{"type":"function","name":"f","description":"d","parameters":{"type":"object"},"x":1}'
ANTHROPIC_TOOL = b'{"name":"f","description":"d","input_schema":{"type":"object"},"x":1}'
OWN = {
    "responses": b'{"type":"web_search"}',
    "anthropic": b'{"type":"web_search_20250305","name":"web_search"}',
    "chat": b'{"type":"custom","custom":{"name":"c"}}',
}


@pytest.mark.parametrize(
    "dialect, own", [(CHAT, CHAT_TOOL), (RESPONSES, RESPONSES_TOOL), (ANTHROPIC, ANTHROPIC_TOOL)]
)
def test_tools_leave_as_they_came_or_are_written_anew(dialect, own):
    for raw in (CHAT_TOOL, RESPONSES_TOOL, ANTHROPIC_TOOL):
        (tool,) = decode_tools(Raw(b"[" + raw + b"]"))
        (written,) = translate_tools((tool,), dialect)
        (again,) = decode_tools(Raw(b"[" + bytes(written) + b"]"))
        assert (again.name, again.description, again.schema) == ("f", "d", '{"type":"object"}')
        assert (bytes(written) == own) == (raw == own)


@pytest.mark.parametrize("dialect", ALL)
def test_a_tool_that_only_its_provider_runs_goes_nowhere_else(dialect):
    for home, raw in OWN.items():
        tools = decode_tools(Raw(b"[" + raw + b"]"))
        assert [bytes(tool) for tool in translate_tools(tools, dialect)] == (
            [raw] if home == dialect.name else []
        )


@pytest.mark.parametrize("dialect", ALL)
def test_a_tool_without_parameters_has_an_empty_schema_elsewhere(dialect):
    bare = decode_tools(Raw(b'[{"type":"function","function":{"name":"f"}}]'))
    for tools in (bare, (Tool("f"),)):
        (written,) = translate_tools(tools, dialect)
        assert json.loads(bytes(written))
        assert decode_tools(Raw(b"[" + bytes(written) + b"]"))[0].name == "f"
