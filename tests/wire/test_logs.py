"""Logs as every command sees them: recognised by their shape, written as the request they became."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.model.dialect import CHAT, RESPONSES
from refold.model.errors import WireError
from refold.model.message import user
from refold.model.window import Window
from refold.wire import decode_transcript, encode_request, encode_transcript
from refold.wire.transcript import holds_conversation

pytestmark = pytest.mark.feature("N6")

ITEM = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi."}]}
CODEX = [
    {"timestamp": "2026-04-02T08:00:00Z", "type": "session_meta", "payload": {"id": "s"}},
    {"timestamp": "2026-04-02T08:00:01Z", "type": "response_item", "payload": ITEM},
]
SILENT = [
    [{"type": "summary", "summary": "A title.", "leafUuid": "x"}],
    [CODEX[0]],
    [{"type": "session", "version": 3, "id": "p", "cwd": "/w"}],
    [{"info": {"id": "ses_1"}, "messages": []}],
    [{"version": 1, "entries": [{"sessionId": "s"}]}],
]


def lines(records: list[dict]) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def test_a_log_is_a_request_from_then_on():
    request = decode_transcript(lines(CODEX))
    again = decode_transcript(encode_request(request))

    assert [message.bare() for message in again.messages] == [user("Hi.")]
    assert again.fields.keys() == request.fields.keys()


def test_other_messages_take_nothing_along_that_was_recorded_for_the_old_ones():
    request = decode_transcript(lines(CODEX))
    window = Window(request.fixed, (user("Good morning."),))

    written = json.loads(encode_transcript(request, window))

    assert set(written) == {"id", "source", "input"}
    assert json.loads(encode_transcript(request, Window(request.fixed, request.messages)))["times"]


def test_a_format_that_contradicts_the_log_is_refused():
    assert decode_transcript(lines(CODEX), RESPONSES).messages
    with pytest.raises(WireError, match="holds messages of the responses format"):
        decode_transcript(lines(CODEX), CHAT)


@pytest.mark.parametrize("records", SILENT)
def test_what_holds_no_conversation_is_known_without_reading_on(records: list[dict]):
    assert not holds_conversation(lines(records))
    with pytest.raises(WireError):
        decode_transcript(lines(records))


@pytest.mark.parametrize("data", [lines(CODEX), lines([ITEM, ITEM]), b'{"messages": []}', b"{", b"[]"])
def test_what_is_meant_to_be_a_conversation_is_read_and_may_fail(data: bytes):
    assert holds_conversation(data)


def test_a_log_may_begin_with_lines_of_no_known_kind():
    assert decode_transcript(lines([{"type": "mode", "n": 1}, *CODEX])).dialect is RESPONSES


KEYS = [
    "type",
    "payload",
    "message",
    "content",
    "role",
    "uuid",
    "parentUuid",
    "logicalParentUuid",
    "sessionId",
    "agentId",
    "isSidechain",
    "isMeta",
    "model",
    "id",
    "usage",
    "attachment",
    "prompt",
    "info",
    "parts",
    "state",
    "status",
    "input",
    "output",
    "time",
    "tokens",
    "cache",
    "metadata",
    "revert",
    "messageID",
    "callID",
    "text",
    "timestamp",
    "summary",
    "stopReason",
    "toolCallId",
    "arguments",
    "name",
    "parentId",
    "last_token_usage",
    "num_turns",
    "item",
    "call_id",
    "base_instructions",
]
WORDS = [
    "user",
    "assistant",
    "tool_result",
    "tool_use",
    "text",
    "thinking",
    "queued_command",
    "response_item",
    "event_msg",
    "token_count",
    "thread_rolled_back",
    "user_message",
    "message",
    "toolResult",
    "toolCall",
    "bashExecution",
    "branch_summary",
    "custom_message",
    "tool",
    "step-start",
    "compaction",
    "completed",
    "function_call",
    "function_call_output",
    "session_meta",
    "a",
    "b",
]
LEAVES = st.none() | st.booleans() | st.integers(-2, 9) | st.floats(0, 1) | st.sampled_from(WORDS)
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=12,
)
RECORD = st.dictionaries(st.sampled_from(KEYS), ANYTHING, max_size=8)
FIRST = [{"type": "mode", "sessionId": "s"}, CODEX[0], SILENT[2][0]]


@given(st.sampled_from(FIRST), st.lists(RECORD, max_size=4))
def test_a_log_of_anything_is_a_conversation_or_a_clear_error(first: dict, records: list[dict]):
    with suppress(WireError):
        assert decode_transcript(lines([first, *records])).messages


@given(RECORD, st.lists(RECORD, max_size=4))
def test_an_export_of_anything_is_a_conversation_or_a_clear_error(info: dict, messages: list[dict]):
    known = [{"info": {"id": "m", "role": "assistant"}, "parts": [message]} for message in messages]
    with suppress(WireError):
        assert decode_transcript(json.dumps({"info": info, "messages": known}).encode()).messages
