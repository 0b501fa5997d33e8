"""What a Responses stream may leave out."""

from __future__ import annotations

import json

import pytest

from refold.model.dialect import RESPONSES
from refold.model.errors import WireError
from refold.model.message import Text, ToolCall
from refold.model.tokens import Usage
from refold.wire.reply import Reply, StreamReader
from refold.wire.sse import CallDelta, Delta, ReasoningDelta, TextDelta

SAID = {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]}
CALL = {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "go"}
WHOLE = {"id": "r", "model": "m", "status": "completed", "usage": {"input_tokens": 9, "output_tokens": 3}}


def event(kind: str, **fields) -> bytes:
    return f"data: {json.dumps({'type': kind, **fields})}\n\n".encode()


def read(*events: bytes) -> tuple[list[Delta], Reply]:
    reader = StreamReader(RESPONSES)
    deltas = [delta for piece in events for delta in reader.feed(piece)]
    return deltas, reader.reply()


@pytest.mark.parametrize("output", [{"output": []}, {"output": None}, {}])
def test_items_that_the_last_event_leaves_out_are_those_that_were_done(output):
    done = [
        event("response.output_item.done", output_index=1, item=CALL),
        event("response.output_item.done", output_index=0, item=SAID),
    ]
    _, reply = read(*done, event("response.completed", response={**WHOLE, **output}))
    assert [message.bare().parts[0] for message in reply.messages] == [
        Text("Hi"),
        ToolCall("c", "f", "go", "custom"),
    ]
    assert (reply.usage, reply.finish) == (Usage(input=9, output=3), "completed")


def test_the_last_event_is_believed():
    done = event("response.output_item.done", output_index=0, item=CALL)
    _, reply = read(done, event("response.completed", response={**WHOLE, "output": [SAID]}))
    assert [message.text for message in reply.messages] == ["Hi"]


def test_a_reply_that_was_cut_says_why():
    cut = {
        **WHOLE,
        "status": "incomplete",
        "incomplete_details": {"reason": "max_output_tokens"},
        "output": [],
    }
    assert read(event("response.incomplete", response=cut))[1].finish == "max_output_tokens"


def test_pieces_of_every_kind():
    opened = {**CALL, "input": ""}
    deltas, _ = read(
        event("response.reasoning_summary_text.delta", delta="Hm"),
        event("response.reasoning_text.delta", delta="!"),
        event("response.output_item.added", output_index=1, item=SAID),
        event("response.output_text.delta", output_index=1, delta="Hi"),
        event("response.output_text.delta", output_index=1, delta=""),
        event("response.refusal.delta", output_index=1, delta="no"),
        event("response.output_item.added", output_index=2, item=opened),
        event("response.custom_tool_call_input.delta", output_index=2, delta="go"),
        event("response.function_call_arguments.delta", output_index=3, delta="{}"),
        event("response.audio.delta", delta={"x": 1}),
        event("response.completed", response={**WHOLE, "output": [SAID]}),
        b"data: [DONE]\n\n",
    )
    assert deltas == [
        ReasoningDelta("Hm"),
        ReasoningDelta("!"),
        TextDelta("Hi"),
        TextDelta("no"),
        CallDelta(0, "c", "f"),
        CallDelta(0, arguments="go"),
        CallDelta(1, arguments="{}"),
    ]


def test_a_last_response_with_an_error_is_no_reply():
    failed = {**WHOLE, "output": [SAID], "error": {"code": "server_error", "message": "it broke off"}}
    reader = StreamReader(RESPONSES)
    reader.feed(event("response.completed", response=failed))

    with pytest.raises(WireError, match="error"):
        reader.reply()
    assert reader.failure is not None
