"""What an Anthropic stream holds besides text."""

from __future__ import annotations

import json

from refold.model.dialect import ANTHROPIC
from refold.model.message import Opaque, Reasoning, Text, ToolCall
from refold.model.tokens import Usage
from refold.wire.reply import Reply, StreamReader
from refold.wire.sse import CallDelta, Delta, ReasoningDelta, TextDelta

USAGE = {"input_tokens": 9, "cache_read_input_tokens": 4, "output_tokens": 1}


def event(kind: str, **fields) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def block(index: int, opened: dict, *deltas: dict) -> list[bytes]:
    filled = [event("content_block_delta", index=index, delta=delta) for delta in deltas]
    start = event("content_block_start", index=index, content_block=opened)
    return [start, *filled, event("content_block_stop", index=index)]


def read(*events: bytes, stop: str = "end_turn", usage: dict | None = None) -> tuple[list[Delta], Reply]:
    reader = StreamReader(ANTHROPIC)
    stream = [
        event("message_start", message={"id": "msg", "model": "m", "content": [], "usage": USAGE}),
        event("ping"),
        *events,
        event("message_delta", delta={"stop_reason": stop}, usage=usage or {"output_tokens": 7}),
        event("message_stop"),
    ]
    deltas = [delta for piece in stream for delta in reader.feed(piece)]
    return deltas, reader.reply()


def parts(*events: bytes):
    return read(*events)[1].messages[0].bare().parts


def test_usage_is_what_was_said_last_of_each_number():
    assert read()[1].usage == Usage(input=9, cache_read=4, output=7)
    late = {"output_tokens": 7, "input_tokens": 20, "cache_read_input_tokens": None}
    assert read(usage=late)[1].usage == Usage(input=20, cache_read=4, output=7)
    assert (read(stop="max_tokens")[1].finish, read()[1].id, read()[1].model) == ("max_tokens", "msg", "m")


def test_thinking_keeps_its_signature():
    thought = block(
        0,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": "Hm"},
        {"type": "thinking_delta", "thinking": "!"},
        {"type": "signature_delta", "signature": "sig"},
    )
    sealed = block(1, {"type": "redacted_thinking", "data": "x"})
    assert parts(*thought, *sealed) == (Reasoning("Hm!", "sig"), Reasoning("", sealed="x"))
    assert read(*thought)[0] == [ReasoningDelta("Hm"), ReasoningDelta("!")]


def test_a_call_that_was_cut_off_keeps_what_was_written():
    opened = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    pieces = [{"type": "input_json_delta", "partial_json": text} for text in ("", '{"a":', " 1}")]
    assert parts(*block(0, opened, *pieces)) == (ToolCall("t", "f", '{"a": 1}'),)
    assert parts(*block(0, opened)) == (ToolCall("t", "f", "{}"),)
    (cut,) = parts(*block(0, opened, *pieces[:2]))
    assert json.loads(cut.arguments) == {"_malformed": '{"a":'}


def test_blocks_of_the_providers_own_pass_with_their_input():
    opened = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    events = block(0, opened, {"type": "input_json_delta", "partial_json": '{"query":"x"}'})
    deltas, reply = read(*events)
    (part,) = reply.messages[0].parts
    assert isinstance(part, Opaque)
    assert json.loads(bytes(part.raw or b""))["input"] == {"query": "x"}
    assert not [delta for delta in deltas if isinstance(delta, CallDelta)]


def test_citations_are_collected_and_compactions_grow():
    cited = block(
        0,
        {"type": "text", "text": "", "citations": None},
        {"type": "text_delta", "text": "So."},
        {"type": "citations_delta", "citation": {"type": "c", "n": 1}},
        {"type": "citations_delta", "citation": {"type": "c", "n": 2}},
    )
    compacted = block(
        1,
        {"type": "compaction", "content": None},
        {"type": "compaction_delta", "content": "al", "encrypted_content": None},
        {"type": "compaction_delta", "content": "l", "encrypted_content": "ErQC"},
    )
    raw = json.loads(bytes(read(*cited, *compacted)[1].messages[0].origin.raw))
    assert [citation["n"] for citation in raw["content"][0]["citations"]] == [1, 2]
    assert raw["content"][1] == {"type": "compaction", "content": "all", "encrypted_content": "ErQC"}


def test_a_server_may_open_a_block_with_its_text_or_not_at_all():
    whole = block(0, {"type": "text", "text": "Hi"})
    assert parts(*whole) == (Text("Hi"),)
    assert read(*whole)[0] == [TextDelta("Hi")]
    unopened = event("content_block_delta", index=0, delta={"type": "text_delta", "text": "Hi"})
    assert parts(unopened) == (Text("Hi"),)


def test_what_is_not_known_is_passed_over():
    odd = event("later", delta=[1], message=3, content_block="x")
    unknown = block(
        0,
        {"type": "text", "text": ""},
        {"type": "new_delta", "value": 1},
        {"type": "text_delta", "text": "a"},
    )
    assert parts(odd, *unknown) == (Text("a"),)
