from __future__ import annotations

from itertools import accumulate, combinations_with_replacement, pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.model.errors import BodyTooLarge
from refold.wire.sse import EventSplitter, ServerSentEvent, SseParser

STREAM = (
    "\ufeff: a comment\r\n\r\nevent: ping\ndata: 1\n\nid: 7\nretry: 3\ndata:  two spaces\r\rdata: é€😀\r\n"
    "data\r\ndata:\r\ndata: x: y\r\n\r\nevent: nothing\n\ndata: [DONE]\n\ndata: half an ev"
).encode()
EVENTS = [
    ServerSentEvent(b"1", "ping"),
    ServerSentEvent(b" two spaces"),
    ServerSentEvent("é€😀\n\n\nx: y".encode()),
    ServerSentEvent(b"[DONE]"),
]


def parse(*chunks: bytes, **limits: int) -> list[ServerSentEvent]:
    parser = SseParser(**limits)
    return [event for chunk in chunks for event in parser.feed(chunk)]


def test_lines_end_in_three_ways_and_half_an_event_is_none():
    assert parse(STREAM) == EVENTS


def left(*chunks: bytes) -> ServerSentEvent | None:
    parser = SseParser()
    for chunk in chunks:
        parser.feed(chunk)
    return parser.end()


@pytest.mark.feature("O12")
@pytest.mark.parametrize(
    "stream, data",
    [
        (b"event: error\n", b""),
        (b"event: error\r\ndata: {", b"{"),
        (b"event: error\ndata: a\ndata: b", b"a\nb"),
        (b"event: error\ndata: a\n", b"a"),
        (b"event: error\ndata: a\nda", b"a"),
        (b"data: a\n\ndata: 1\nevent: error\n", b"1"),
    ],
)
def test_half_an_error_is_an_error_with_what_there_is_of_it(stream, data):
    for cut in range(len(stream)):
        assert left(stream[:cut], stream[cut:]) == ServerSentEvent(data, "error")


@pytest.mark.parametrize(
    "stream",
    [STREAM, b"", b"data: {", b"event: message\ndata: a\n", b"event: error\ndata: a\n\n", b"event: err"],
)
def test_whatever_else_is_cut_off_is_nothing(stream):
    assert left(stream) is None


def test_every_cut_into_two_and_every_byte_alone_give_the_same_events():
    assert parse(*(bytes([byte]) for byte in STREAM)) == EVENTS
    for cut in range(len(STREAM) + 1):
        assert parse(STREAM[:cut], b"", STREAM[cut:]) == EVENTS


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_any_cuts_give_the_same_events(cuts):
    places = [0, *sorted(cuts), len(STREAM)]
    assert parse(*(STREAM[a:b] for a, b in pairwise(places))) == EVENTS


@given(st.binary(max_size=200), st.integers(1, 9))
def test_whatever_comes_is_parsed_alike_in_pieces_and_at_once(data, size):
    assert parse(*(data[at : at + size] for at in range(0, len(data), size))) == parse(data)


@pytest.mark.parametrize("stream", [b"data: " + b"x" * 100, b"data: xxxxxxxx\n" * 12, b":" + b"x" * 100])
@pytest.mark.parametrize("size", [1, 7, 200])
def test_an_event_without_end_is_refused_however_it_is_cut(stream, size):
    chunks = [stream[at : at + size] for at in range(0, len(stream), size)]
    with pytest.raises(BodyTooLarge, match="64 bytes"):
        parse(*chunks, max_event_bytes=64)


def test_many_small_events_in_one_chunk_are_no_large_event():
    assert len(SseParser(max_event_bytes=16).feed(b"data: x\n\n" * 50)) == 50


def test_a_stream_without_end_is_refused():
    parser = SseParser(max_stream_bytes=100)
    parser.feed(b"data: x\n\n" * 11)
    with pytest.raises(BodyTooLarge, match="100 bytes"):
        parser.feed(b"data: x\n\n")


LINE_ENDS = (b"\n", b"\r\n", b"\r")
BLANK_LINES = [first + second for first, second in product(LINE_ENDS, LINE_ENDS) if first + second != b"\r\n"]
"""All that ends an event: CR and LF together are the end of one line, and no blank one."""


def split(*chunks: bytes) -> list[bytes]:
    splitter = EventSplitter()
    events = [event for chunk in chunks for event in splitter.feed(chunk)]
    return [*events, splitter.take_pending()]


@pytest.mark.parametrize("ends", [*product(BLANK_LINES, BLANK_LINES)], ids=str)
def test_an_event_ends_with_its_blank_line_whatever_the_lines_end_with(ends):
    events = [b"data: {}" + ends[0], b"event: a" + ends[1][:1] + b"data: b" + ends[1], b"data: c"]
    whole = b"".join(events)

    assert split(whole) == events
    assert parse(whole) == [ServerSentEvent(b"{}"), ServerSentEvent(b"b", "a")]
    for first, second in combinations_with_replacement(range(len(whole) + 1), 2):
        chunks = [whole[:first], whole[first:second], whole[second:]]
        pieces = split(*chunks)
        assert b"".join(pieces) == whole
        assert [piece.rstrip(b"\r\n") for piece in pieces if piece.strip(b"\r\n")] == [
            event.rstrip(b"\r\n") for event in events
        ]
        assert parse(*chunks) == [ServerSentEvent(b"{}"), ServerSentEvent(b"b", "a")]


@pytest.mark.parametrize("blank", BLANK_LINES, ids=str)
def test_an_event_is_given_with_the_first_byte_that_makes_its_blank_line(blank):
    event = b"data: {}" + blank
    needed = event[:-1] if blank.endswith(b"\r\n") else event
    splitter = EventSplitter()
    given = [splitter.feed(bytes([byte])) for byte in event]

    assert next(place for place, pieces in enumerate(given, 1) if pieces) == len(needed)
    assert b"".join(piece for pieces in given for piece in pieces) == event
    assert splitter.pending == 0


@pytest.mark.parametrize("end", LINE_ENDS, ids=str)
def test_no_line_end_alone_ends_an_event(end):
    assert split(b"data: a" + end + b"data: b" + end) == [b"data: a" + end + b"data: b" + end]


@given(st.lists(st.sampled_from([b"data: a", b"b", b"\r", b"\n", b"\r\n"]), max_size=12), st.integers(1, 4))
def test_the_open_event_can_be_taken_at_any_time_and_ends_where_it_would_have(parts, size):
    stream = b"".join(parts)
    splitter, taken = EventSplitter(), list[bytes]()
    ends = set[int]()
    for at in range(0, len(stream), size):
        for piece in splitter.feed(stream[at : at + size]):
            taken.append(piece)
            ends.add(sum(map(len, taken)))
        taken.append(splitter.take_pending())
        assert splitter.pending == 0

    whole = EventSplitter()
    pieces = [piece for at in range(0, len(stream), size) for piece in whole.feed(stream[at : at + size])]
    assert b"".join(taken) == stream
    assert ends == set(accumulate(map(len, pieces)))
