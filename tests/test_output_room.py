"""The library where instructions and output leave messages little room: the output to ask for is told, and everything fits."""

from __future__ import annotations

import asyncio
import logging

import pytest
from msgspec import structs

import refold
from refold.core.presets import PRESETS
from refold.model.errors import BudgetError, ContextOverflow, DoesNotFit, Overflow
from refold.model.message import assistant
from refold.model.tokens import Usage
from refold.wire.reply import Reply

WINDOW = 8_000
RULES = "Answer in one line, and never touch the public interface. " * 200
"""Some 2,200 tokens."""
QUESTION = "What is in the next row of the timetable? " * 20


def talk(output: int | None = 5_500, system: str = RULES, **settings) -> refold.sync.Conversation:
    return refold.sync.Conversation("gpt-4o", system=system, window=WINDOW, max_output=output, **settings)


def test_the_output_to_ask_for_is_told_with_the_context():
    one = talk()
    one.add(QUESTION)
    assert len(one.context()["messages"]) == 2
    assert one.max_output == WINDOW - one.state.frame.cost.total.tokens - WINDOW // 4
    (edit,) = one.state.window_edits
    assert (edit.stage, edit.before, edit.after) == ("output", 5_500, one.max_output)


def test_what_fits_keeps_its_output():
    one = talk(4_500)
    one.add("Hello?")
    one.context()
    assert one.max_output == 4_500
    assert not one.state.window_edits


def test_a_conversation_is_folded_only_when_it_does_not_fit_with_less_output():
    one, sizes = talk(), []
    for number in range(30):
        one.add(f"{number}: {QUESTION}")
        one.context()
        sizes.append((one.measurement.content.tokens, one.max_output))
        one.add({"role": "assistant", "content": "A boat."})
    assert {output for _, output in sizes} == {one.max_output}
    assert all(size + output <= WINDOW for size, output in sizes)
    assert max(size for size, _ in sizes) > WINDOW - one.max_output - 700  # the room is used
    assert any(receipt.summary for receipt in one.receipts)
    assert f"with the output lowered to {one.max_output:,}" in " ".join(r.reason for r in one.receipts)


def test_instructions_without_room_are_an_error_that_shows_the_sum():
    with pytest.raises(BudgetError) as caught:
        talk(system=RULES * 4)
    assert "window 8,000 − instructions " in caught.value.hint
    assert "− output 1,000 (lowered from 5,500) = " in caught.value.hint


def test_messages_without_room_are_an_error_that_shows_the_sum():
    one = talk(system=RULES * 2 + "never " * 2_180)
    one.add("What is in the next row? " * 20)
    with pytest.raises(DoesNotFit) as caught:
        one.context()
    assert "left for messages" in caught.value.hint


def test_a_thinking_budget_keeps_its_room():
    one = talk(thinking_budget=4_000)
    one.add(QUESTION)
    one.context()
    assert one.max_output == 5_024


def test_the_first_request_is_warned_of(caplog):
    one = talk(4_500)
    with caplog.at_level(logging.WARNING, "refold"):
        for word in ("Hello?", "And then?"):
            one.add(word)
            one.context()
            one.add({"role": "assistant", "content": "Yes."})
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "less than a quarter of the window: window 8,000 − instructions " in warning


def test_a_policy_that_changes_nothing_lowers_nothing():
    policy = structs.replace(PRESETS["refold"], enabled=False)
    one = talk(policy=policy, system="Be brief.", output=7_000)
    one.add(QUESTION * 10)
    one.context()
    assert one.max_output == 7_000


def refused(found: Overflow) -> ContextOverflow:
    return ContextOverflow("too long", overflow=found)


class Provider:
    """Answers what it is asked, and refuses the first requests that it is told to."""

    def __init__(self, *refusals: Overflow) -> None:
        self.refusals, self.asked = [*refusals], []

    async def ask(self, ask):
        self.asked.append(ask)
        if self.refusals:
            raise refused(self.refusals.pop(0))
        return Reply((assistant("A boat."),), Usage(input=100, output=5))


def test_ask_asks_for_the_lowered_output():
    async def act() -> tuple[int, int]:
        one, provider = (
            refold.Conversation("gpt-4o", system=RULES, window=WINDOW, max_output=5_500),
            Provider(),
        )
        await one.add(QUESTION)
        await one.ask(provider)
        return provider.asked[0].max_output, one.max_output

    asked, told = asyncio.run(act())
    assert asked == told < 5_500


def test_ask_lowers_the_output_before_it_folds():
    refusal = Overflow("input_plus_output", limit=6_000, prompt=2_900, output=4_000)

    async def act() -> list:
        one = refold.Conversation("gpt-4o", system="Be brief.", window=WINDOW, max_output=4_000)
        await one.add(QUESTION * 12)
        provider = Provider(refusal)
        await one.ask(provider)
        return provider.asked

    first, second = asyncio.run(act())
    assert second.messages == first.messages
    assert (first.max_output, second.max_output) == (4_000, 6_000 - 2_900 - 80)


def test_what_was_lowered_after_a_refusal_is_for_that_call_only():
    one = talk(4_000, system="Be brief.")
    one.add(QUESTION)
    one.context()
    one.recover(refused(Overflow("input_plus_output")))
    assert one.max_output == 1_000
    one.add({"role": "assistant", "content": "A boat."}, "And now?")
    one.context()
    assert one.max_output == 4_000


def test_a_second_refusal_folds():
    refusal = Overflow("input_plus_output", limit=6_000, prompt=2_900, output=4_000)
    one = talk(4_000, system="Be brief.")
    for _ in range(6):
        one.add(QUESTION * 2)
        one.add({"role": "assistant", "content": "A boat."})
    one.add("And now?")
    before = one.context()
    same = one.recover(refused(refusal))
    assert same["messages"] == before["messages"]
    smaller = one.recover(refused(refusal))
    assert len(smaller["messages"]) < len(before["messages"])
    assert 750 <= one.max_output < 4_000
