"""Several answers joined into one reply: whole, streamed in any pieces, and as messages, with the same result."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.core.identity import identity
from refold.gateway.recall_rounds import JoinedStream, add_usage, join_bodies, shown_parts
from refold.gateway.response_tap import WholeEvents
from refold.model.dialect import DIALECTS
from refold.model.message import Message
from refold.model.tokens import Usage
from refold.testing.replies import PROTOCOLS
from refold.testing.script import NumberedReply, Say, call, say, think
from refold.wire.reply import StreamReader, decode_reply

WIRES = ["chat", "responses", "anthropic"]
LOOKS = call("recall", {"what": "the night boat – é"}, id="r1")
OWN = call("look", {"path": "a/b"}, id="o1")
REPLIES: dict[str, list[Say]] = {
    "text, recall, text": [say("Let me see.", LOOKS), say("It is 02:30.")],
    "recall first": [say(LOOKS), say("It is 02:30, and – é – no later.")],
    "three rounds": [say("One.", LOOKS), say(LOOKS), say("Two.", LOOKS), say("Three.")],
    "two at once": [say("One.", LOOKS, call("recall", {"what": "#m1"}, id="r2")), say("Two.")],
    "beside the client's": [say("One.", LOOKS), say("Two.", LOOKS, OWN, call("look", "{}", id="o2"))],
    "between the client's": [say(OWN, LOOKS, call("look", "{}", id="o2"))],
    "thinking": [say(think("Hm."), "One.", LOOKS), say(think("Ah."), "Two.")],
    "left over": [say("One.", LOOKS), say("Two.", LOOKS)],
    "none": [say("One.", OWN)],
}


def spoken(replies: list[Say]) -> list[NumberedReply]:
    usages = [Usage(input=100 + at, cache_read=10, output=7) for at in range(len(replies))]
    return [
        NumberedReply(at + 1, "m", one.parts, one.finish, usage, include_usage=True)
        for at, (one, usage) in enumerate(zip(replies, usages, strict=True))
    ]


def streams(wire: str, replies: list[Say]) -> list[bytes]:
    protocol = PROTOCOLS[wire]
    return [b"".join(event.encode() for event in protocol.events(one)) for one in spoken(replies)]


def bodies(wire: str, replies: list[Say]) -> list[bytes]:
    return [msgspec.json.encode(PROTOCOLS[wire].body(one)) for one in spoken(replies)]


def joined(wire: str, rounds: list[list[bytes]]) -> bytes:
    """The client's stream, from the chunks of every round."""
    stream, passed = JoinedStream(DIALECTS[wire], "recall"), b""
    for at, chunks in enumerate(rounds):
        if at:
            stream.next_round()
        events = WholeEvents()
        passed += b"".join(stream.feed(events.let_through(chunk)) for chunk in chunks)
        assert stream.is_readable
    return passed + stream.end()


def reply_of(wire: str, stream: bytes):
    reader = StreamReader(DIALECTS[wire])
    reader.feed(stream)
    return reader.reply()


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("name", REPLIES)
def test_a_stream_a_body_and_the_messages_agree(wire, name):
    replies, dialect = REPLIES[name], DIALECTS[wire]
    streamed = reply_of(wire, joined(wire, [[one] for one in streams(wire, replies)]))
    whole = decode_reply(join_bodies(bodies(wire, replies), "recall", dialect), dialect)
    rounds = [decode_reply(one, dialect).messages for one in bodies(wire, replies)]
    shown = Message("assistant", shown_parts(rounds, "recall", dialect))

    def said(messages):
        return identity(Message("assistant", tuple(part for one in messages for part in one.parts)))

    assert said(streamed.messages) == said(whole.messages) == identity(shown)
    assert streamed.usage == whole.usage
    assert streamed.usage.output == 7 * len(replies)
    assert streamed.finish == whole.finish
    has_own = any(part is OWN for part in replies[-1].parts)
    ends = {"chat": "tool_calls", "anthropic": "tool_use", "responses": "completed"}
    assert (streamed.finish == ends[wire]) == (has_own or wire == "responses")
    assert not any(one.name == "recall" for message in streamed.messages for one in message.calls)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("name", REPLIES)
def test_numbers_and_ids_are_those_of_one_answer(wire, name):
    events = [
        msgspec.json.decode(line[6:])
        for line in joined(wire, [[one] for one in streams(wire, REPLIES[name])]).split(b"\n")
        if line.startswith(b"data: ") and b"[DONE]" not in line
    ]
    if wire == "chat":
        assert len({one["id"] for one in events}) == 1
        calls = [call for one in events for c in one["choices"] for call in c["delta"].get("tool_calls", ())]
        starts = [one["index"] for one in calls if one.get("id")]
        assert starts == [*range(len(starts))]
        assert sum(bool(c["finish_reason"]) for one in events for c in one["choices"]) == 1
    elif wire == "anthropic":
        starts = [one["index"] for one in events if one["type"] == "content_block_start"]
        assert starts == [*range(len(starts))]
        assert [one["type"] for one in events].count("message_start") == 1
        assert events[-1]["type"] == "message_stop"
    else:
        assert [one["sequence_number"] for one in events] == [*range(len(events))]
        starts = [one["output_index"] for one in events if one["type"] == "response.output_item.added"]
        assert starts == [*range(len(starts))]
        assert len({one["response"]["id"] for one in events if "response" in one}) == 1
        last = events[-1]["response"]
        assert [one["id"] for one in last["output"]] == [
            one["item"]["id"] for one in events if one["type"] == "response.output_item.done"
        ]


def check_splits(wire: str, name: str, *, near_line_ends: bool) -> None:
    rounds = streams(wire, REPLIES[name])
    whole = joined(wire, [[one] for one in rounds])
    for at, one in enumerate(rounds):
        for cut in range(1, len(one)):
            if near_line_ends and b"\n" not in one[cut - 1 : cut + 2]:
                continue
            chunks = [[other] for other in rounds]
            chunks[at] = [one[:cut], one[cut:]]
            assert joined(wire, chunks) == whole


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("name", ["text, recall, text", "beside the client's"])
def test_a_split_at_a_line_end_gives_the_same_stream(wire, name):
    check_splits(wire, name, near_line_ends=True)


@pytest.mark.slow
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("name", REPLIES)
def test_every_split_in_two_gives_the_same_stream(wire, name):
    check_splits(wire, name, near_line_ends=False)


@pytest.mark.parametrize("wire", WIRES)
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_way_of_cutting_gives_the_same_stream(wire, data):
    rounds = streams(wire, REPLIES[data.draw(st.sampled_from([*REPLIES]))])
    end = data.draw(st.sampled_from([b"\n", b"\r\n"]))
    rounds = [one.replace(b"\n", end) for one in rounds]
    chunks = []
    for one in rounds:
        cuts = sorted(data.draw(st.sets(st.integers(0, len(one)), max_size=40)))
        chunks.append([one[a:b] for a, b in zip([0, *cuts], [*cuts, len(one)], strict=True)])
    cut, whole = joined(wire, chunks), joined(wire, [[one] for one in rounds])
    assert reply_of(wire, cut) == reply_of(wire, whole)
    assert cut.replace(b"\r\n", b"\n").strip() == whole.replace(b"\r\n", b"\n").strip()


@pytest.mark.parametrize("wire", WIRES)
def test_a_stream_without_a_recall_is_not_changed(wire):
    (stream,) = streams(wire, REPLIES["none"])
    assert joined(wire, [[stream]]) == stream


def test_an_event_that_cannot_be_read_is_passed_on():
    stream = JoinedStream(DIALECTS["anthropic"], "recall")
    odd = b'data: {"type": "content_block_start"}\n\ndata: {"type": 3\n\n'
    assert stream.feed(odd) == odd
    assert not stream.is_readable


def test_usage_is_added_field_by_field():
    one = {"input_tokens": 3, "details": {"cached": 1}, "tier": "a", "steps": [1]}
    other = {"input_tokens": 4, "details": {"cached": 2, "more": 5}, "tier": None, "steps": [2]}
    assert add_usage(one, other) == {
        "input_tokens": 7,
        "details": {"cached": 3, "more": 5},
        "tier": "a",
        "steps": [1, 2],
    }


def test_calls_without_a_number_or_an_id_are_told_apart_by_their_names():
    """Some servers of open models send whole calls one after the other, and no numbers."""

    def chunk(delta, finish=None):
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return b"data: %s\n\n" % msgspec.json.encode({"id": "c", "choices": [choice]})

    def one(name, arguments):
        return {"tool_calls": [{"type": "function", "function": {"name": name, "arguments": arguments}}]}

    stream = JoinedStream(DIALECTS["chat"], "recall")
    passed = stream.feed(
        chunk(one("look", "{}"))
        + chunk(one("recall", '{"what": "a"}'))
        + chunk({"tool_calls": [{"function": {"arguments": " "}}]})
        + chunk(one("look", '{"path": "b"}'))
        + chunk({}, "tool_calls")
    )
    assert stream.has_recalls
    passed += stream.end()
    assert passed.count(b'"name":"look"') == 2
    assert b"recall" not in passed
    assert b'"finish_reason":"tool_calls"' in passed


def test_a_chunk_with_several_choices_is_passed_on():
    choices = [{"index": at, "delta": {"content": "x"}, "finish_reason": None} for at in range(2)]
    chunk = b"data: %s\n\n" % msgspec.json.encode({"id": "c", "choices": choices})
    stream = JoinedStream(DIALECTS["chat"], "recall")
    assert stream.feed(chunk) == chunk


def test_items_that_come_only_with_the_whole_reply_are_joined():
    replies = [
        one.replace(b"output_item.done", b"output_item.other")
        for one in streams("responses", REPLIES["three rounds"])
    ]
    events = joined("responses", [[one] for one in replies]).split(b"\n")
    last = msgspec.json.decode(next(line for line in reversed(events) if line.startswith(b"data: "))[6:])
    said = [item["content"][0]["text"] for item in last["response"]["output"]]
    assert said == ["One.", "Two.", "Three."]
