import pytest

from refold.core.summary.chunks import chunks, units
from refold.core.summary.prompts import Passage, transcript
from tests.engine.talking import agent_turn


def told(turns: int, size: int = 200) -> list[Passage]:
    messages = [message for number in range(turns) for message in agent_turn(number, size=size)]
    return [Passage(number, message) for number, message in enumerate(messages)]


def test_a_call_and_its_result_are_read_together():
    roles = [[passage.message.role for passage in unit] for unit in units(told(2))]
    assert roles == [["user"], ["assistant", "tool"], ["assistant"]] * 2


@pytest.mark.parametrize("room", [400, 700, 2_000, 100_000])
def test_every_chunk_fits_and_nothing_is_left_out(room):
    passages = told(10)
    found = chunks(passages, room, len)
    assert all(len(transcript(chunk)) <= room + 2 * len(chunk) for chunk in found)
    assert [passage.number for chunk in found for passage in chunk] == list(range(40))
    assert all(chunk[0].message.role != "tool" for chunk in found)


def test_a_reply_that_is_too_large_alone_is_shortened_with_its_handle():
    found = chunks(told(1, size=20_000), 2_000, len)
    said = [transcript(chunk) for chunk in found]
    assert all(len(one) <= 2_600 for one in said)
    assert any("#m2]" in one for one in said)


def test_nothing_gives_no_chunks():
    assert chunks([], 100, len) == []
