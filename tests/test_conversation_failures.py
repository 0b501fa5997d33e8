"""What a conversation does when a model is asked for its summaries: nothing is paid twice, and a failure is the policy's."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs

from refold import Conversation
from refold.core.presets import PRESETS
from refold.core.prompts import Recipe
from refold.engine.summary_jobs import MAX_FAILURES
from refold.model.summary import Summary
from tests.formats import answer, question, turn
from tests.test_conversation import EARLY, TOO_LONG, fill, open_talk


class Model:
    """A summariser that can be down, and slow."""

    def __init__(self) -> None:
        self.is_down, self.tasks, self.go_on = False, [], asyncio.Event()
        self.go_on.set()

    async def write(self, task):
        self.tasks.append(task)
        await self.go_on.wait()
        if self.is_down:
            raise ConnectionError("the secret word xylophone")
        said = f"THE SUMMARY of {len(self.tasks)}"
        return Summary(said, task.first, task.last, 9, "model", task.scope)


def ahead(preset: str, **changes: object) -> dict[str, object]:
    return {"policy": structs.replace(PRESETS[preset], soft=0.5, **changes)}


def told(fields: dict) -> str:
    return "\n".join(str(message.get("content")) for message in fields["messages"])


async def up_to(talk: Conversation, share: float, first: int = 0) -> int:
    """Turns as a program has them: every reply answers a context."""
    while talk.measurement.content.tokens < share * talk.measurement.window:
        asked, *rest, reply = turn(first)
        await talk.add(asked, *rest)
        await talk.context()
        await talk.add(reply)
        await talk.ready()
        first += 1
    return first


@pytest.mark.feature("X14")
class TestPaidOnce:
    async def test_who_asks_for_a_compaction_waits_for_what_is_being_written(self):
        model = Model()
        model.go_on.clear()
        async with open_talk(model, policy=structs.replace(EARLY, manual=None)) as talk:
            await fill(talk, 0.55)
            assert len(model.tasks) == 1
            compacting = asyncio.create_task(talk.compact())
            await asyncio.sleep(0)
            model.go_on.set()
            assert "THE SUMMARY of 1" in told(await compacting)
        assert len(model.tasks) == 1

    async def test_what_is_there_already_is_not_asked_for_again(self):
        model = Model()
        async with open_talk(model, policy=structs.replace(EARLY, manual=None)) as talk:
            await fill(talk, 0.55)
            await talk.ready()
            assert "THE SUMMARY of 1" in told(await talk.compact())
        assert len(model.tasks) == 1

    async def test_one_that_covers_little_of_what_would_leave_is_not_enough(self):
        model = Model()
        policy = structs.replace(EARLY, manual=None, soft=0.3, triggers={})
        async with open_talk(model, policy=policy) as talk:
            await fill(talk, 0.9)
            await talk.ready()
            assert "THE SUMMARY of 2" in told(await talk.compact())
            covered = [task.last for task in model.tasks]
        assert covered[0] < covered[1] / 2

    async def test_another_focus_is_another_summary(self):
        model = Model()
        model.go_on.clear()
        async with open_talk(model, policy=structs.replace(EARLY, manual=None)) as talk:
            await fill(talk, 0.55)
            model.go_on.set()
            assert "THE SUMMARY of 2" in told(await talk.compact(focus="the login"))
        assert [task.focus for task in model.tasks] == ["", "the login"]

    async def test_what_was_stopped_is_asked_for_again(self):
        model = Model()
        model.go_on.clear()
        talk = open_talk(model, policy=structs.replace(EARLY, manual=None))
        await fill(talk, 0.55)
        await talk.close()
        model.go_on.set()
        assert "THE SUMMARY of 2" in told(await talk.compact())


@pytest.mark.feature("X6")
async def test_a_model_that_fails_again_and_again_rests_also_where_nothing_is_stored():
    model = Model()
    model.is_down = True
    async with open_talk(model, **ahead("llms")) as talk:
        await up_to(talk, 0.82)
        for _ in range(5):
            await talk.add(question("And now?"))
            await talk.context()
            await talk.add(answer("Well."))
            await talk.ready()
        status = await talk.status()
    assert len(model.tasks) == status.failures == MAX_FAILURES
    assert status.is_stopped


@pytest.mark.feature("X6")
async def test_where_the_policy_says_so_a_failure_skips_the_compaction_and_the_flag_stays(
    caplog, monkeypatch
):
    monkeypatch.setattr("refold.engine.summary_jobs.MAX_FAILURES", 100)  # it is asked again each time
    model = Model()
    model.is_down = True
    async with open_talk(model, **ahead("llms")) as talk:
        number = await up_to(talk, 0.82)
        for _ in range(5):
            await talk.add(question("And now?"))
            sent = (await talk.context())["messages"]
            assert sent[0] == question("What is in file 0?")
            assert len(sent) == len(talk._state.folded.branch)
            await talk.add(answer("Well."))
            await talk.ready()
        assert talk.receipts == ()
        assert number > 0
        assert set(caplog.messages) == {"a summary could not be written: ConnectionError"}
        asked = len(model.tasks)
        assert 5 <= asked <= 7

        model.is_down = False
        await talk.add(question("And now?"))
        await talk.ready()
        await talk.context()
        await talk.add(answer("Well."))
        await talk.ready()
        await talk.add(question("And then?"))
        assert f"THE SUMMARY of {len(model.tasks)}" in told(await talk.context())
        assert len(model.tasks) == asked + 1
        assert talk.receipts[-1].decision == "summarise"


@pytest.mark.feature("C11")
async def test_where_all_fail_a_stub_keeps_the_previous_summary():
    model = Model()
    async with open_talk(model, **ahead("librechat")) as talk:
        number = await up_to(talk, 0.6)
        while not talk.receipts or talk.receipts[-1].decision != "summarise":
            number = await up_to(talk, 0.0, number) + 1
            asked, *rest, reply = turn(number)
            await talk.add(asked, *rest)
            await talk.context()
            await talk.add(reply)
        assert talk.receipts[-1].summary.kind == "model"
        model.is_down, known = True, len(talk.receipts)
        while not any(one.summary for one in talk.receipts[known:]):
            number += 1
            asked, *rest, reply = turn(number)
            await talk.add(asked, *rest)
            await talk.ready()
            fields = await talk.context()
            await talk.add(reply)
            await talk.ready()
    stub = talk.receipts[-1].summary
    assert stub.kind == "mechanical"
    assert "[Compacted messages: " in stub.text
    assert "THE SUMMARY of 1" in stub.text
    assert "THE SUMMARY of 1" in told(fields)


@pytest.mark.feature("C11", "O12")
async def test_a_stub_is_never_what_an_overflow_leaves():
    model = Model()
    model.is_down = True
    async with open_talk(model, window=8_000, **ahead("librechat")) as talk:
        await up_to(talk, 0.6)
        await talk.add(question("And now?"))
        await talk.context()
        asked = len(model.tasks)
        await talk.recover(TOO_LONG)
        assert len(model.tasks) == asked
        summaries = [one.summary for one in talk.receipts if one.summary]
    assert asked == 1
    assert [one.kind for one in summaries] == ["extractive"]


async def test_our_own_policy_goes_on_with_a_digest():
    model = Model()
    model.is_down = True
    async with open_talk(model, **ahead("refold", prepares=False)) as talk:
        await fill(talk, 0.9)
        await talk.ready()
        await talk.add(question("And now?"))
        await talk.compact()
    assert talk.receipts[-1].summary.kind == "extractive"
    assert model.tasks


@pytest.mark.feature("X10")
async def test_a_policy_of_quotations_asks_no_model():
    model = Model()
    async with open_talk(
        model, **ahead("opal", recipe=Recipe(strategy="extractive"), fallback="digest")
    ) as talk:
        await fill(talk, 0.82)
        await talk.add(question("And now?"))
        await talk.context()
        await talk.compact()
    assert model.tasks == []
    assert talk.receipts[-1].summary.kind == "extractive"


@pytest.mark.feature("X10", "C12")
@pytest.mark.parametrize("preset", PRESETS)
async def test_every_preset_says_how_its_summaries_are_made_and_has_them_made(preset):
    model = Model()
    async with open_talk(model, window=1_300, preset=preset, policy=None) as talk:
        number = 0
        while not model.tasks and number < 60:
            asked, *rest, reply = turn(number)
            await talk.add(asked, *rest)
            await talk.context()
            await talk.add(reply)
            await talk.ready()
            number += 1
    assert {task.recipe for task in model.tasks[:1]} == {PRESETS[preset].recipe}
