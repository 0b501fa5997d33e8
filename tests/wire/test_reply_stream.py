"""Streams of the three formats: whatever the cuts, the reply is the one that comes without a stream."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from refold.model.dialect import ANTHROPIC, CHAT, DIALECTS, RESPONSES, Dialect
from refold.model.errors import BodyTooLarge, WireError
from refold.model.message import Reasoning, Text, ToolCall
from refold.model.tokens import Usage
from refold.testing.replies import PROTOCOLS
from refold.testing.script import NumberedReply, sign
from refold.wire import Reply, decode_error, decode_reply
from refold.wire.reply import StreamReader
from refold.wire.sse import CallDelta, Delta, ReasoningDelta, TextDelta

ALL = [pytest.param(dialect, id=name) for name, dialect in DIALECTS.items()]
SPOKEN = NumberedReply(
    number=1,
    model="m-1",
    parts=(
        Reasoning("Let me see…", sign("Let me see…")),
        Text("Grüße, 世界 😀! This is more than twenty-four characters."),
        ToolCall("call_a", "look", '{"path":"/tmp/ä","n":1}'),
        ToolCall("call_b", "look", "{}"),
    ),
    finish="calls",
    usage=Usage(input=10, cache_read=5, output=40, reasoning=0),
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


def stream_of(spoken: NumberedReply, dialect: Dialect) -> bytes:
    return b"".join(event.encode() for event in PROTOCOLS[dialect.name].events(spoken))


def read(chunks: Iterable[bytes], dialect: Dialect) -> tuple[list[Delta], Reply]:
    reader = StreamReader(dialect)
    deltas = [delta for chunk in chunks for delta in reader.feed(chunk)]
    return deltas, reader.reply()


def bare(reply: Reply) -> Reply:
    """A reply as a value: what it says, and not the bytes that said it."""
    return structs.replace(reply, messages=tuple(message.bare() for message in reply.messages))


def at_once(spoken: NumberedReply, dialect: Dialect) -> Reply:
    return bare(decode_reply(msgspec.json.encode(PROTOCOLS[dialect.name].body(spoken)), dialect))


@pytest.mark.parametrize("dialect", ALL)
def test_a_streamed_reply_is_the_reply_at_once(dialect):
    deltas, reply = read([stream_of(SPOKEN, dialect)], dialect)
    assert bare(reply) == at_once(SPOKEN, dialect)
    assert reply.usage is not None
    assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == SPOKEN.text
    assert "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta)) == "Let me see…"


@pytest.mark.feature("N3")
@pytest.mark.parametrize("dialect", ALL)
def test_a_model_that_declines_ends_with_a_refusal(dialect):
    spoken = structs.replace(SPOKEN, parts=(Text("That is not for me."),), finish="refusal")
    deltas, reply = read([stream_of(spoken, dialect)], dialect)
    assert "".join(delta.text for delta in deltas) == reply.messages[-1].text == "That is not for me."
    assert reply.finish == "refusal"


@pytest.mark.parametrize("dialect", ALL)
def test_calls_are_told_from_one_another_while_they_are_written(dialect):
    deltas, _ = read([stream_of(SPOKEN, dialect)], dialect)
    calls = [delta for delta in deltas if isinstance(delta, CallDelta)]
    for index, call in enumerate(SPOKEN.calls):
        mine = [delta for delta in calls if delta.index == index]
        assert (mine[0].id, mine[0].name) == (call.id, call.name)
        assert "".join(delta.arguments for delta in mine) == call.arguments


@pytest.mark.parametrize("dialect", ALL)
def test_every_cut_into_two_gives_the_same_reply(dialect):
    stream = stream_of(SPOKEN, dialect)
    whole = read([stream], dialect)
    assert read((bytes([byte]) for byte in stream), dialect) == whole
    for cut in range(0, len(stream), 7):
        assert read((stream[:cut], stream[cut:]), dialect) == whole


@given(
    st.lists(
        st.one_of(
            st.builds(Text, TEXT),
            st.builds(ToolCall, st.sampled_from("ab"), st.just("f"), st.sampled_from(["{}", '{"a":"é"}'])),
        ),
        max_size=4,
    ),
    st.sampled_from(["stop", "length", "calls", "refusal", "filter", "window"]),
    st.sampled_from([*DIALECTS.values()]),
    st.integers(1, 40),
)
def test_any_reply_in_any_pieces(parts, finish, dialect, size):
    numbered = [
        structs.replace(part, id=f"{part.id}{n}") if isinstance(part, ToolCall) else part
        for n, part in enumerate(parts)
    ]
    spoken = structs.replace(SPOKEN, parts=tuple(numbered), finish=finish)
    stream = stream_of(spoken, dialect)
    chunks = (stream[at : at + size] for at in range(0, len(stream), size))
    assert bare(read(chunks, dialect)[1]) == at_once(spoken, dialect)


@pytest.mark.parametrize("dialect, last", [(CHAT, 2), (RESPONSES, 1), (ANTHROPIC, 1)])
def test_a_stream_that_is_cut_anywhere_is_no_reply(dialect, last):
    """Chat says why it stopped before it reports usage and is done: the reply is whole from there on."""
    events = [event.encode() for event in PROTOCOLS[dialect.name].events(SPOKEN)]
    needed = len(b"".join(events[: len(events) - last])) + (2 if dialect is not CHAT else 0)
    stream = b"".join(events)
    for cut in range(0, needed - 1, 5):
        with pytest.raises(WireError, match="before the reply did"):
            read([stream[:cut]], dialect)


@pytest.mark.parametrize(
    "dialect, event, message",
    [
        (CHAT, b'data: {"error":{"message":"m","code":502}}', "m"),
        (CHAT, b'data: {"object":"error","message":"m","type":"BadRequestError","code":400}', "m"),
        (
            CHAT,
            b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"error","error":{"message":"m"}}]}',
            "m",
        ),
        (CHAT, b'event: error\ndata: {"message":"m"}', "m"),
        (ANTHROPIC, b'data: {"type":"error","error":{"type":"overloaded_error","message":"m"}}', "m"),
        (ANTHROPIC, b'data: {"error":"m"}', "m"),
        (RESPONSES, b'data: {"type":"error","code":"server_error","message":"m"}', "m"),
        (RESPONSES, b'data: {"error":{"message":"m"}}', "m"),
        (RESPONSES, b"event: error\ndata: down", ""),
    ],
)
def test_an_error_in_a_stream_is_the_answer(dialect, event, message):
    reader = StreamReader(dialect)
    stream = stream_of(SPOKEN, dialect)
    begun = stream[: stream.index(b"\n\n") + 2]
    assert reader.feed(begun + event + b"\n\n" + stream) == []
    assert reader.failure is not None
    assert decode_error(reader.failure).message == message
    with pytest.raises(WireError) as caught:
        reader.reply()
    assert caught.value.place == "error"


@pytest.mark.feature("O12")
@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.parametrize("half", [b"event: error\ndata: prompt is too lo", b"event: error\n"])
def test_an_error_that_is_cut_off_is_the_answer_once_the_stream_has_ended(dialect, half):
    reader, stream = StreamReader(dialect), stream_of(SPOKEN, dialect)
    said = reader.feed(stream[: stream.index(b"\n\n") + 2] + half)
    assert (said, reader.is_over) == ([], False)
    reader.end()
    assert reader.failure == half.removeprefix(b"event: error\n").removeprefix(b"data: ")
    with pytest.raises(WireError, match="ended with an error"):
        reader.reply()


@pytest.mark.parametrize("dialect", ALL)
def test_what_is_cut_off_after_the_last_word_changes_nothing(dialect):
    reader, stream = StreamReader(dialect), stream_of(SPOKEN, dialect)
    reader.feed(stream + b"event: error\ndata: too late")
    reader.end()
    assert bare(reader.reply()) == at_once(SPOKEN, dialect)


def test_a_failed_response_is_an_error():
    reader = StreamReader(RESPONSES)
    reader.feed(
        b'data: {"type":"response.failed","response":{"status":"failed","error":{"code":"c","message":"m"}}}\n\n'
    )
    assert reader.failure is not None


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.parametrize("data", [b"{", b"3", b'"x"', b"[" * 5000, b'{"type":3,"choices":4}', b"\xff"])
def test_what_is_no_event_of_the_format_is_named_by_its_number(dialect, data):
    stream = stream_of(SPOKEN, dialect)
    reader = StreamReader(dialect)
    events = PROTOCOLS[dialect.name].events(SPOKEN)
    reader.feed(events[0].encode() + b"data: " + data + b"\n\n" + stream)
    assert reader.is_over
    with pytest.raises(WireError) as caught:
        reader.reply()
    assert caught.value.place.startswith("event[1]")


@pytest.mark.parametrize("dialect", ALL)
def test_what_came_before_a_fault_is_given_in_whatever_pieces_it_came(dialect):
    stream = stream_of(SPOKEN, dialect)
    cut = stream.index("Grüße".encode())
    begun = stream[: stream.index(b"\n\n", cut) + 2] + b"data: {\n\n" + stream
    at_once, by_byte = StreamReader(dialect), StreamReader(dialect)
    deltas = at_once.feed(begun)
    assert any(isinstance(delta, TextDelta) for delta in deltas)
    assert [delta for byte in begun for delta in by_byte.feed(bytes([byte]))] == deltas


@pytest.mark.parametrize("dialect", ALL)
def test_a_stream_without_end_is_no_reply(dialect):
    reader = StreamReader(dialect, max_stream_bytes=100)
    reader.feed(stream_of(SPOKEN, dialect))
    with pytest.raises(BodyTooLarge):
        reader.reply()


@pytest.mark.parametrize("dialect", ALL)
@given(data=st.binary(max_size=80) | TEXT.map(str.encode))
def test_no_bytes_bring_anything_but_an_error_of_the_wire(dialect, data):
    reader = StreamReader(dialect)
    try:
        reader.feed(b"data: " + data + b"\n\n" + stream_of(SPOKEN, dialect))
        reader.reply()
    except WireError:
        pass
