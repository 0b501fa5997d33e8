from __future__ import annotations

import asyncio
import logging

import pytest
from msgspec import structs

from refold import Conversation
from refold.core.presets import PRESETS
from refold.model.dialect import DIALECTS
from tests.formats import KEYS, answer, question, turn, violations

EARLY = structs.replace(PRESETS["opal"], soft=0.625, on_switch="bridge", fallback="digest")
"""Asks at half of the window: the fold point is at 80 % of it."""
"""Asks for a summary when half of the window is full, and switches at 80 %."""
TOO_LONG = {"error": {"code": "context_length_exceeded", "message": "too long"}}
every_format = pytest.mark.parametrize("name", DIALECTS)


class Writer:
    """A summariser that answers when it is told to."""

    def __init__(self, text: str = "THE SUMMARY: much was asked.") -> None:
        self.text = text
        self.asked: list[dict[str, object]] = []
        self.go_on = asyncio.Event()
        self.was_cancelled = False

    async def __call__(self, messages, *, previous, max_tokens):
        self.asked.append({"messages": messages, "previous": previous, "max_tokens": max_tokens})
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        return self.text


async def fill(talk: Conversation, share: float, first: int = 0) -> int:
    """Add turns until so much of the window is full; gives the number of the next turn."""
    window = talk.measurement.window
    while talk.measurement.content.tokens < share * window:
        await talk.add(*turn(first))
        await asyncio.sleep(0)
        first += 1
    return first


def open_talk(writer: object, **settings: object) -> Conversation:
    return Conversation(
        "gpt-4o", summariser=writer, **{"policy": EARLY, "window": 4_000, "max_output": 0, **settings}
    )


@pytest.mark.feature("N4")
class TestAhead:
    async def test_below_the_soft_threshold_nobody_is_asked(self):
        writer = Writer()
        async with open_talk(writer) as talk:
            await fill(talk, 0.4)
            assert writer.asked == []

    async def test_at_the_soft_threshold_it_is_asked_once_and_nobody_waits(self):
        writer = Writer()
        async with open_talk(writer) as talk:
            after = await fill(talk, 0.5)
            await fill(talk, 0.7, after)

            assert len(writer.asked) == 1
            asked = writer.asked[0]
            assert asked["messages"][0] == question("What is in file 0?")
            assert asked["previous"] == ""
            assert 0 < asked["max_tokens"] < 4_000
            await talk.add(question("And now?"))
            sent = (await talk.context())["messages"]
            assert sent[0] == question("What is in file 0?")
            assert talk.receipts == ()

    async def test_when_it_is_full_the_switch_takes_the_one_that_is_there(self):
        writer = Writer()
        async with open_talk(writer) as talk:
            after = await fill(talk, 0.6)
            writer.go_on.set()
            await talk.ready()
            assert talk.receipts == ()
            await fill(talk, 0.82, after)
            await talk.add(question("And now?"))
            fields = await talk.context()

        assert violations(fields) == ()
        assert "THE SUMMARY: much was asked." in str(fields["messages"][0])
        (receipt,) = talk.receipts
        assert (receipt.decision, receipt.summary.kind) == ("summarise", "model")
        assert receipt.after < receipt.before

    async def test_messages_that_came_meanwhile_stay(self):
        writer = Writer()
        async with open_talk(writer) as talk:
            after = await fill(talk, 0.6)
            writer.go_on.set()
            await talk.ready()
            await fill(talk, 0.82, after)
            await talk.add(question("And now?"))
            sent = (await talk.context())["messages"]

        covered = len(writer.asked[0]["messages"])
        said = [message for number in range(40) for message in turn(number)]
        assert sent[1:-1] == said[covered : covered + len(sent) - 2]
        assert sent[-1] == question("And now?")

    async def test_where_none_is_there_in_time_a_digest_takes_its_place(self):
        writer = Writer()
        async with open_talk(writer) as talk:
            await fill(talk, 0.82)
            await talk.add(question("And now?"))
            fields = await talk.context()
            assert talk.receipts[-1].summary.kind == "extractive"
            assert talk.measurement.content.tokens < 3_000

            writer.go_on.set()
            await talk.ready()
            again = await talk.context()

        assert "THE SUMMARY" not in str(fields)
        assert "THE SUMMARY" in str(again)
        assert talk.receipts[-1].reason == "the model's summary replaces the digest"

    async def test_one_that_comes_late_is_what_the_next_one_builds_on(self):
        writer = Writer()
        async with open_talk(writer) as talk:
            after = await fill(talk, 0.82)
            await talk.add(question("And now?"))
            await talk.context()
            writer.go_on.set()
            await talk.ready()
            writer.go_on.clear()
            await talk.add(answer("Well."))
            await fill(talk, 0.9, after)
            await talk.add(question("And then?"))
            fields = await talk.context()

        digest, switched, digest_after = (receipt.summary for receipt in talk.receipts)
        assert switched.kind == "model"
        assert switched.last == digest.last < digest_after.last
        assert "THE SUMMARY" in str(fields)

    async def test_the_next_one_is_given_the_one_before(self):
        writer = Writer()
        writer.go_on.set()
        async with open_talk(writer) as talk:
            after = await fill(talk, 0.6)
            await talk.ready()
            after = await fill(talk, 0.82, after)
            await talk.add(question("And now?"))
            await talk.context()
            await talk.add(answer("Well."))
            await fill(talk, 0.6, after)
            await talk.ready()

        assert len(writer.asked) == 2
        previous = writer.asked[1]["previous"]
        assert previous.startswith("Task #m0: What is in file 0?\nTHE SUMMARY: much was asked.")
        first = len(writer.asked[0]["messages"])
        assert writer.asked[1]["messages"][0] == turn(first // 4)[first % 4]

    @every_format
    async def test_the_originals_are_told_in_the_words_of_the_format(self, name):
        writer = Writer()
        async with open_talk(writer, format=name) as talk:
            while not writer.asked:
                number = len(talk._state.folded.branch) // 4
                await talk.add(*turn(number, name))
                await asyncio.sleep(0)

        assert writer.asked[0]["messages"][:4] == turn(0, name)


class TestFailure:
    async def test_only_its_kind_is_logged_and_the_conversation_goes_on(self, caplog):
        async def fail(messages, *, previous, max_tokens):
            raise ValueError("the secret word xylophone")

        async with open_talk(fail) as talk:
            with caplog.at_level(logging.WARNING, "refold"):
                await fill(talk, 0.82)
                await talk.ready()
            await talk.add(question("And now?"))
            fields = await talk.context()

        assert set(caplog.messages) == {
            "a summary could not be written: ValueError",
            "a compaction was made without the summariser: the model failed",
        }
        assert violations(fields) == ()
        assert talk.receipts[-1].summary.kind == EARLY.on_failure

    @pytest.mark.parametrize("text", ["", "  \n", None])
    async def test_one_that_says_nothing_is_not_asked_with_every_message(self, text):
        writer = Writer(text)
        writer.go_on.set()
        async with open_talk(writer) as talk:
            after = await fill(talk, 0.75)
            await talk.ready()
            assert len(writer.asked) == 1

            await fill(talk, 0.82, after)
            await talk.add(question("And now?"))
            await talk.context()
            await talk.add(answer("Well."))
            await fill(talk, 0.6, after + 5)
            await talk.ready()
            assert len(writer.asked) == 2

    async def test_an_undo_makes_what_is_being_written_worthless(self):
        writer = Writer()
        async with open_talk(writer) as talk:
            number = await fill(talk, 0.6)
            while not talk.receipts:
                await talk.add(*turn(number), question("And now?"))
                await talk.context()
                await talk.add(answer("Well."))
                number += 1
            assert await talk.undo()
            before = talk.measurement
            writer.go_on.set()
            await talk.ready()
            assert talk.measurement == before


class TestAskedFor:
    async def test_a_compaction_that_is_asked_for_waits_for_the_summary(self):
        writer = Writer()
        writer.go_on.set()
        async with open_talk(writer) as talk:
            await fill(talk, 0.3)
            await talk.add(question("And now?"))
            said = str(await talk.compact())
            assert "THE SUMMARY" in said
            assert len(writer.asked) == 1
            assert await talk.undo()
            assert "THE SUMMARY" not in str(await talk.context())

    async def test_a_focus_reaches_whoever_writes(self):
        tasks = []

        class Reader:
            async def write(self, task):
                tasks.append(task)

        async with open_talk(Reader()) as talk:
            await fill(talk, 0.3)
            await talk.add(question("And now?"))
            await talk.compact(focus="the login, password: hunter2hunter2")
        assert tasks[0].focus == "the login, password: [secret]"
        assert tasks[0].passages
        assert talk.receipts[-1].summary.kind == EARLY.on_failure


class TestClose:
    async def test_it_stops_what_goes_on(self):
        writer = Writer()
        talk = open_talk(writer)
        await fill(talk, 0.6)
        assert writer.asked

        await talk.close()

        assert writer.was_cancelled
        await talk.add(question("And now?"))
        assert violations(await talk.context()) == ()
        await talk.close()

    async def test_leaving_the_block_closes(self):
        writer = Writer()
        async with open_talk(writer) as talk:
            await fill(talk, 0.6)

        assert writer.was_cancelled

    async def test_without_a_summariser_there_is_nothing_to_stop(self):
        async with Conversation("gpt-4o") as talk:
            await talk.ready()


class TestFace:
    @every_format
    async def test_it_says_what_the_face_without_await_says(self, name):
        from refold.sync import Conversation as Sync

        settings = {"format": name, "window": 4_000, "system": "Be kind."}
        async with Conversation("gpt-4o", **settings) as talk:
            plain = Sync("gpt-4o", **settings)
            for number in range(30):
                await talk.add(*turn(number, name))
                plain.add(*turn(number, name))
            await talk.add("And now?")
            plain.add("And now?")

            assert await talk.context() == plain.context()
            assert talk.receipts == plain.receipts
            assert talk.measurement == plain.measurement
            usage = {
                "prompt_tokens": 3_000,
                "completion_tokens": 10,
                "input_tokens": 3_000,
                "output_tokens": 10,
            }
            await talk.record(usage)
            plain.record(usage)
            assert talk.bill == plain.bill
            assert talk.bill.spent > 0
            assert await talk.recall("#m2") == plain.recall("#m2") == turn(0, name)[2]
            assert await talk.recall("value_3") == plain.recall("value_3")
            assert await talk.recover(TOO_LONG) == plain.recover(TOO_LONG)
            assert await talk.undo() == plain.undo()
            assert await talk.compact() == plain.compact()

    async def test_several_conversations_do_not_disturb_each_other(self):
        async def one(number: int) -> list[dict[str, object]]:
            async with Conversation("gpt-4o", window=4_000) as talk:
                for at in range(20):
                    await talk.add(*turn(1_000 * number + at))
                    await asyncio.sleep(0)
                await talk.add("And now?")
                return (await talk.context())[KEYS["chat"]]

        first, second = await asyncio.gather(one(1), one(2))

        assert "file 1000?" in str(first)
        assert "file 2000?" not in str(first)
        assert "file 2000?" in str(second)
