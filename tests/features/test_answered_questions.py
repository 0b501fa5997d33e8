"""A summary names a question as the user's open one (`Question #m2: …`) only as long as it is open."""

from __future__ import annotations

import asyncio

import pytest

from refold import Engine
from tests.formats import answer, question

SHEDS = "".join(f"Look at berth {number}, row {number * 7}, and at its sheds. " for number in range(190))
LONG = f"Which crates are still on the quay of Vik? {SHEDS}"
"""A question that is too long to stay in the window while it is answered."""
TEXT = "The harbour office wrote about the night boat, its berth and the crates on the quay. " * 6
SUMMARY = "## Goal\nThe ferries are planned.\n## Progress\nThe lists of the quay were read, and the berths were noted."
HOUR_S = 3_600.0


def look(number: int) -> tuple[dict[str, object], dict[str, object]]:
    """A call of a tool, and its result."""
    call = {
        "id": f"c{number}",
        "type": "function",
        "function": {"name": "read", "arguments": f'{{"list": {number}}}'},
    }
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    return said, {"role": "tool", "tool_call_id": f"c{number}", "content": f"list {number}: {TEXT * 5}"}


@pytest.mark.feature("X6")
async def test_a_question_that_was_answered_while_the_model_wrote_is_not_open_in_its_summary():
    """The model is asked in the middle of a turn, and writes until a digest covers the end of the turn."""
    asked, may_write, now = asyncio.Event(), asyncio.Event(), [1_000_000.0]

    async def write(messages, *, previous, max_tokens):
        asked.set()
        await may_write.wait()
        return SUMMARY

    settings = {"model": "gpt-4o", "window": 16_000, "max_output": 500, "summariser": write}
    async with Engine("memory:", clock=lambda: now[0], **settings) as engine:
        talk = await engine.conversation("ferries")
        await talk.add(question("Plan the ferries of the week."), answer("I will."), question(LONG))
        number = 0
        while not asked.is_set():
            await talk.context()
            await talk.add(*look(number))
            await asyncio.sleep(0)
            number += 1
        await talk.add(answer("Seven crates, all of them blue."))
        end = 2 * number + 4
        while not talk.receipts or talk.receipts[-1].summary.last <= end:
            await talk.add(question("And who pilots the next boat?"))
            await talk.context()
            await talk.add(answer(f"The next pilot does. {TEXT * 4}"))
        assert talk.receipts[-1].summary.kind == "extractive"
        may_write.set()
        await talk.ready()
        now[0] += HOUR_S  # the provider's cache is cold: the model's summary takes the place of the digest
        await talk.add(question("And the harbour master?"))
        lead = str((await talk.context())["messages"][0]["content"])

    assert talk.receipts[-1].summary.kind == "model"
    assert "Task #m0: Plan the ferries of the week." in lead
    assert SUMMARY in lead
    assert "Question #m2" not in lead
