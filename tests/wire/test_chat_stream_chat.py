"""What servers of the Chat format do differently in their streams."""

from __future__ import annotations

import json

import pytest

from refold.model.dialect import CHAT
from refold.model.errors import WireError
from refold.model.message import Opaque, Reasoning, Text, ToolCall
from refold.model.tokens import Usage
from refold.wire.chat import MAX_ELEMENTS
from refold.wire.reply import Reply, StreamReader
from refold.wire.sse import CallDelta, Delta, ReasoningDelta, TextDelta


def chunk(delta: dict | None = None, *, finish: str | None = None, index: int | None = 0, **head) -> bytes:
    choices = [] if delta is None else [{"index": index, "delta": delta, "finish_reason": finish}]
    return b"data: " + json.dumps({"id": "c1", "model": "m", "choices": choices, **head}).encode() + b"\n\n"


END = chunk({}, finish="stop")


def read(*chunks: bytes) -> tuple[list[Delta], Reply]:
    reader = StreamReader(CHAT)
    deltas = [delta for piece in chunks for delta in reader.feed(piece)]
    return deltas, reader.reply()


def parts(*chunks: bytes):
    (message,) = read(*chunks)[1].messages
    return message.bare().parts


def call(**fields) -> dict:
    return {"tool_calls": [fields]}


def test_the_first_choice_counts():
    assert parts(chunk({"content": "a"}), chunk({"content": "b"}, index=1), END) == (Text("a"),)
    assert parts(chunk({"content": "a"}, index=None), END) == (Text("a"),)


def test_done_ends_a_stream_that_gives_no_reason():
    deltas, reply = read(chunk({"content": "a"}), b"data: [DONE]\n\n")
    assert (deltas, reply.finish) == ([TextDelta("a")], "")


def test_usage_comes_with_the_last_chunk_or_with_every_one():
    report = {"prompt_tokens": 9, "completion_tokens": 3}
    assert read(END, chunk(usage=report))[1].usage == Usage(input=9, output=3)
    early = {"prompt_tokens": 9, "completion_tokens": 1}
    assert read(chunk({"content": "a"}, usage=early), chunk({}, finish="stop", usage=report))[
        1
    ].usage == Usage(input=9, output=3)
    assert read(END)[1].usage is None


@pytest.mark.parametrize(
    "pieces",
    [
        # OpenAI: the first piece has id and name.
        [
            call(index=0, id="a", type="function", function={"name": "f", "arguments": ""}),
            call(index=0, function={"arguments": '{"x"'}),
            call(index=0, function={"arguments": ":1}"}),
            call(index=1, id="b", type="function", function={"name": "g", "arguments": "{}"}),
        ],
        # Every piece repeats id and name.
        [
            call(index=0, id="a", type="function", function={"name": "f", "arguments": '{"x"'}),
            call(index=0, id="a", type="function", function={"name": "f", "arguments": ":1}"}),
            call(index=1, id="b", type="function", function={"name": "g", "arguments": "{}"}),
        ],
        # All calls have the same number.
        [
            call(index=0, id="a", type="function", function={"name": "f", "arguments": '{"x":1}'}),
            call(index=0, id="b", type="function", function={"name": "g", "arguments": "{}"}),
        ],
        # No call has a number.
        [
            call(id="a", type="function", function={"name": "f", "arguments": '{"x"'}),
            call(function={"arguments": ":1}"}),
            call(id="b", type="function", function={"name": "g", "arguments": "{}"}),
        ],
        # The arguments are an object.
        [
            call(index=0, id="a", function={"name": "f", "arguments": {"x": 1}}),
            call(index=1, id="b", function={"name": "g", "arguments": "{}"}),
        ],
    ],
)
def test_calls_are_put_together_however_a_server_numbers_them(pieces):
    chunks = [chunk(piece) for piece in pieces]
    assert parts(*chunks, END) == (ToolCall("a", "f", '{"x":1}'), ToolCall("b", "g", "{}"))
    deltas = [delta for delta in read(*chunks, END)[0] if isinstance(delta, CallDelta)]
    written = ["".join(delta.arguments for delta in deltas if delta.index == index) for index in (0, 1)]
    assert written == ['{"x":1}', "{}"]


def test_custom_calls_and_calls_of_the_old_kind():
    custom = call(index=0, id="a", type="custom", custom={"name": "f", "input": "so"})
    more = call(index=0, custom={"input": " on"})
    assert parts(chunk(custom), chunk(more), END) == (ToolCall("a", "f", "so on", "custom"),)
    old = [
        chunk({"function_call": {"name": "f", "arguments": "{"}}),
        chunk({"function_call": {"arguments": "}"}}),
    ]
    (part,) = parts(*old, END)
    assert isinstance(part, Opaque)
    assert b'{"name":"f","arguments":"{}"}' in bytes(part.raw or b"")


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_under_either_name(name):
    deltas, reply = read(chunk({name: "Hm"}), chunk({name: "!", "content": "A"}), END)
    assert deltas == [ReasoningDelta("Hm"), ReasoningDelta("!"), TextDelta("A")]
    assert reply.messages[0].bare().parts == (Reasoning("Hm!"), Text("A"))


def test_one_thought_under_two_names_is_told_once():
    deltas, _ = read(chunk({"reasoning": "Hm", "reasoning_content": "Hm"}), END)
    assert deltas == [ReasoningDelta("Hm")]


def test_signed_thoughts_keep_their_pieces_apart():
    def detail(**fields) -> bytes:
        return chunk({"reasoning_details": [fields]})

    stream = [
        detail(type="reasoning.text", index=0, text="Let "),
        detail(type="reasoning.text", index=0, text="me"),
        detail(type="reasoning.text", index=0, signature="s"),
        detail(type="reasoning.encrypted", index=0, data="e"),
    ]
    deltas, reply = read(*stream, END)
    assert "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta)) == "Let me"
    assert reply.messages[0].bare().parts == (Reasoning("Let me", "s", "e"),)
    raw = json.loads(bytes(reply.messages[0].origin.raw))
    assert [piece["type"] for piece in raw["reasoning_details"]] == ["reasoning.text", "reasoning.encrypted"]


def test_a_signature_closes_a_thought_without_a_number():
    blocks = [("A", None), ("b", None), ("", "s1"), ("C", None), ("", "s2")]
    stream = [
        chunk({"thinking_blocks": [{"type": "thinking", "thinking": text, "signature": signature}]})
        for text, signature in blocks
    ]
    raw = json.loads(bytes(read(*stream, END)[1].messages[0].origin.raw))
    assert [(block["thinking"], block["signature"]) for block in raw["thinking_blocks"]] == [
        ("Ab", "s1"),
        ("C", "s2"),
    ]


def test_a_refusal_is_said():
    deltas, reply = read(chunk({"refusal": "I "}), chunk({"refusal": "won't"}), END)
    assert deltas == [TextDelta("I "), TextDelta("won't")]
    assert (reply.messages[0].text, reply.finish) == ("I won't", "refusal")


def test_a_refusal_in_blocks_is_one_too():
    deltas, reply = read(chunk({"content": [{"type": "refusal", "refusal": "I won't"}]}), END)
    assert deltas == [TextDelta("I won't")]
    assert (reply.messages[0].text, reply.finish) == ("I won't", "refusal")


def test_content_in_blocks_counts_as_its_text():
    blocks = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert parts(chunk({"content": blocks}), chunk({"content": "c"}), END) == (Text("abc"),)


def test_fields_of_one_server_only_come_along():
    stream = [
        chunk({"content": "a", "annotations": [{"type": "x", "url": "1"}]}),
        chunk({"annotations": [{"type": "x", "url": "2"}], "audio": {"id": "i", "data": "AA"}}),
        chunk({"audio": {"data": "BB"}, "extra": 1}),
    ]
    raw = json.loads(bytes(read(*stream, END)[1].messages[0].origin.raw))
    assert [note["url"] for note in raw["annotations"]] == ["1", "2"]
    assert (raw["audio"], raw["extra"]) == ({"id": "i", "data": "AABB"}, 1)


def test_no_reply_has_calls_without_end():
    many = [
        chunk(call(index=number, id=str(number), function={"name": "f"}))
        for number in range(MAX_ELEMENTS + 1)
    ]
    assert len(parts(*many[:-1], END)) == MAX_ELEMENTS
    with pytest.raises(WireError, match="more than 512"):
        read(*many, END)
