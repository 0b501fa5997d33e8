from __future__ import annotations

import json

import pytest

from refold.model.dialect import ANTHROPIC, CHAT, RESPONSES, Dialect
from refold.model.errors import WireError
from refold.wire import detect_dialect
from tests.wire.samples import BODIES

HI = {"role": "user", "content": "hi"}


@pytest.mark.parametrize("dialect", [CHAT, RESPONSES, ANTHROPIC])
def test_the_samples_are_told_apart(dialect: Dialect):
    assert detect_dialect(BODIES[dialect.name]) is dialect


@pytest.mark.parametrize(
    "fields, dialect",
    [
        ({"messages": [HI]}, CHAT),
        (
            {"messages": [HI], "max_tokens": 5, "tools": [{"type": "function", "function": {"name": "f"}}]},
            CHAT,
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}, CHAT),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, CHAT),
        ({"input": "hi"}, RESPONSES),
        ({"messages": [{"type": "message", "role": "user", "content": "a"}]}, RESPONSES),
        ({"messages": [HI], "system": "s"}, ANTHROPIC),
        ({"messages": [HI], "tools": [{"name": "f", "input_schema": {}}]}, ANTHROPIC),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]}]},
            ANTHROPIC,
        ),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, ANTHROPIC),
        ({"messages": [{"role": "assistant", "content": [{"type": "thinking"}]}]}, ANTHROPIC),
        ({"messages": [HI, {"role": "tool", "tool_call_id": "c", "content": "x"}]}, CHAT),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "c"}]}]}, CHAT),
        ({"messages": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}]}, RESPONSES),
        ({"messages": [{"role": "assistant", "content": [{"type": "output_text", "text": "a"}]}]}, RESPONSES),
        ({"messages": [{"role": "user", "content": [{"type": "input_image"}]}]}, RESPONSES),
        ({"messages": [{"type": "compaction", "encrypted_content": "x"}, HI]}, RESPONSES),
        ({"messages": [HI, {"type": "web_search_call", "id": "x"}]}, RESPONSES),
        ({"messages": [{"role": "assistant", "content": [{"type": "web_search_tool_result"}]}]}, ANTHROPIC),
        ({"messages": [{"role": "assistant", "content": [{"type": "mcp_tool_result"}]}]}, ANTHROPIC),
        ({"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking"}]}]}, ANTHROPIC),
        ({"messages": [{"role": "user", "content": [{"type": "search_result"}]}]}, ANTHROPIC),
        ({"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]}, ANTHROPIC),
        ({"messages": [3, {"type": []}, {"content": [{"type": {}}]}], "tools": 4}, CHAT),
        ({}, CHAT),
    ],
)
def test_the_format_is_told_by_what_only_it_has(fields: dict[str, object], dialect: Dialect):
    assert detect_dialect(json.dumps(fields).encode()) is dialect


def test_what_is_no_object_has_no_format():
    with pytest.raises(WireError):
        detect_dialect(b"[1]")
