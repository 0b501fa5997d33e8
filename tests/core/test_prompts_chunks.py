import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.core.prompts import Passage, chunks, split_text, transcript, units
from refold.model.message import Message, Text, ToolCall, ToolResult, assistant
from tests.engine.conversations import agent_turn


def told(turns: int, size: int = 200) -> list[Passage]:
    messages = [message for number in range(turns) for message in agent_turn(number, size=size)]
    return [Passage(number, message) for number, message in enumerate(messages)]


def test_a_call_and_its_result_are_read_together():
    roles = [[passage.message.role for passage in unit] for unit in units(told(2))]
    assert roles == [["user"], ["assistant", "tool"], ["assistant"]] * 2


@pytest.mark.parametrize("room", [400, 700, 2_000, 100_000])
def test_every_chunk_fits_and_nothing_is_left_out(room):
    passages = told(10)
    found = [*chunks(passages, room, len)]
    assert all(len(transcript(chunk)) <= room for chunk in found)
    assert [passage.number for chunk in found for passage in chunk] == list(range(40))
    assert all(chunk[0].message.role != "tool" for chunk in found)


def test_a_reply_that_is_too_large_alone_is_shortened_with_its_handle():
    found = [*chunks(told(1, size=20_000), 2_000, len)]
    said = [transcript(chunk) for chunk in found]
    assert all(len(one) <= 2_600 for one in said)
    assert any("#m2]" in one for one in said)


def test_nothing_gives_no_chunks():
    assert [*chunks([], 100, len)] == []


def results(count: int, *, in_one: bool) -> list[Passage]:
    """A reply with many calls, and their results, each in a message or all in one."""
    calls = assistant("", *(ToolCall(f"c{number}", "grep", '{"q": "x"}') for number in range(count)))
    found = [ToolResult(f"c{number}", (Text("a line of output " * 40),)) for number in range(count)]
    messages = [Message("tool", tuple(found))] if in_one else [Message("tool", (one,)) for one in found]
    return [Passage(number, message) for number, message in enumerate((calls, *messages))]


@pytest.mark.parametrize("in_one", [False, True])
def test_a_reply_with_a_hundred_and_fifty_results_fits_too(in_one):
    def count(text: str) -> int:
        return -(-len(text) // 4)

    passages = results(150, in_one=in_one)
    found = [*chunks(passages, 4_000, count)]
    assert all(count(transcript(chunk)) <= 4_000 for chunk in found)
    assert [passage.number for chunk in found for passage in chunk] == list(range(len(passages)))
    told = "".join(transcript(chunk) for chunk in found)
    assert all(f"#m1.{number}]" in told if in_one else f"#m{number}]" in told for number in range(1, 151))


@given(st.text(max_size=400), st.integers(1, 60))
def test_a_text_is_parted_without_loss(text, room):
    pieces = split_text(text, room, len)
    assert "".join("".join(pieces).split()) == "".join(text.split())
    assert all(len(piece) <= room for piece in pieces)
