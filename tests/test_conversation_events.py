"""What is told of conversations that have summaries written for them, in the background or while somebody waits."""

from __future__ import annotations

import asyncio
import threading

import pytest
from msgspec import structs

from refold import Conversation, sync
from refold.core.presets import PRESETS
from refold.engine.events import (
    NO_SUMMARY,
    OVERTAKEN,
    UNFIT,
    CompactionEnd,
    CompactionStart,
    SummaryFailed,
    SummaryWritten,
)
from refold.model.summary import Summary
from refold.model.tokens import Usage
from tests.engine.listener import Heard
from tests.engine.test_summary_jobs import Paid
from tests.formats import question, turn, violations
from tests.test_conversation import Writer, fill, open_talk


@pytest.mark.feature("O3")
async def test_a_summary_that_was_written_ahead_is_told_when_it_is_written_and_when_it_is_used():
    writer, heard = Writer(), Heard()
    writer.go_on.set()
    async with open_talk(writer, on_event=heard) as talk:
        after = await fill(talk, 0.6)
        await talk.ready()
        assert heard.kinds == ["summary_written"]
        await fill(talk, 0.82, after)
        await talk.add(question("And now?"))
        await talk.context()

    written, start, end = heard
    assert isinstance(written, SummaryWritten)
    assert isinstance(start, CompactionStart)
    assert (written.first, written.is_awaited) == (0, False)
    assert heard.end is end
    assert (end.path, end.moment, end.author, end.covered) == ("ahead", "turn_start", "model", written.last)


@pytest.mark.feature("O3")
async def test_a_compaction_with_a_focus_has_begun_before_the_model_is_asked():
    model, heard = Paid(), Heard()
    model.stop()
    async with open_talk(model, policy=PRESETS["opal"], on_event=heard) as talk:
        await fill(talk, 0.4)
        await talk.add(question("And now?"))
        compacting = asyncio.create_task(talk.compact(focus="what is in file 1"))
        await model.is_asked.wait()
        assert heard.kinds == ["compaction_start"]
        model.may_answer.set()
        await compacting

    assert heard.kinds == ["compaction_start", "summary_written", "compaction_end"]
    assert (heard.end.path, heard.end.reason, heard.end.author) == ("manual", "asked for", "model")
    assert heard.only(SummaryWritten)[0].is_awaited


@pytest.mark.feature("O3")
async def test_who_asks_at_the_same_time_is_told_that_it_is_done():
    writer, heard = Writer(), Heard()
    writer.go_on.set()
    async with open_talk(writer, policy=PRESETS["opal"], on_event=heard) as talk:
        await fill(talk, 0.4)
        await talk.add(question("And now?"))
        await asyncio.gather(talk.compact(), talk.compact())

    heard.check()
    first, second = heard.only(CompactionEnd)
    assert (first.outcome, second.outcome, second.problem) == ("installed", "superseded", OVERTAKEN)


@pytest.mark.feature("O3")
@pytest.mark.parametrize(("text", "problem"), [("", UNFIT), (None, "the summariser returned None, not text")])
async def test_a_summariser_that_fails_is_told_and_the_compaction_is_skipped(text, problem):
    writer, heard = Writer(text), Heard()
    writer.go_on.set()
    policy = structs.replace(PRESETS["opal"], on_failure="history")
    async with open_talk(writer, policy=policy, on_event=heard) as talk:
        await fill(talk, 0.4)
        await talk.add(question("And now?"))
        await talk.compact()

    assert heard.kinds == ["compaction_start", "summary_failed", "compaction_end"]
    assert (heard.only(SummaryFailed)[0].problem, heard.end.outcome) == (problem, "skipped")
    assert heard.end.problem == NO_SUMMARY


async def test_who_stops_a_compaction_has_its_end_told():
    model, heard = Paid(), Heard()
    model.stop()
    async with open_talk(model, policy=PRESETS["opal"], on_event=heard) as talk:
        await fill(talk, 0.4)
        await talk.add(question("And now?"))
        compacting = asyncio.create_task(talk.compact())
        await model.is_asked.wait()
        compacting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await compacting

    assert (heard.end.outcome, heard.end.problem) == ("failed", "it was stopped")


async def test_what_a_request_lacks_is_no_fault_of_the_compaction():
    heard = Heard()
    async with Conversation("claude-sonnet-4-5", format="anthropic", window=4_000, on_event=heard) as talk:
        for _ in range(6):
            await talk.add(question("q " * 200), {"role": "assistant", "content": "w " * 100})
        fields = await talk.compact()
        assert (fields["messages"][0]["role"], fields["messages"][-1]["role"]) == ("user", "assistant")
        assert len(fields["messages"]) < 12
        await talk.add(question("And now?"))
        assert not violations(await talk.context(), "anthropic")

    assert heard.end.outcome == "installed"


async def test_what_a_summary_cost_is_told_in_dollars():
    class Priced:
        async def write(self, task):
            usage = Usage(input=1_000_000)
            return Summary(
                "All of it.", task.first, task.last, 9, "model", task.scope, usage=usage, model="gpt-4o"
            )

    heard = Heard()
    async with open_talk(Priced(), policy=PRESETS["opal"], on_event=heard) as talk:
        await fill(talk, 0.4)
        await talk.add(question("And now?"))
        await talk.compact()

    (written,), end = heard.only(SummaryWritten), heard.end
    assert written.dollars == end.dollars > 0
    assert (written.usage, written.model) == (end.usage, end.model) == (Usage(input=1_000_000), "gpt-4o")


def test_without_await_it_is_the_same():
    heard = Heard()
    talk = sync.Conversation("gpt-4o", window=4_000, on_event=heard)
    for number in range(20):
        talk.add(*turn(number))
    talk.add("And now?")
    talk.context()

    heard.check()
    assert heard.only(CompactionEnd)
    assert heard[-1].conversation == ""


async def test_events_are_read_from_a_stream_until_the_conversation_is_closed():
    heard = Heard()
    async with Conversation("gpt-4o", window=2_000, max_output=100, on_event=heard) as talk:
        await talk.add(*turn(0), *turn(1), *turn(2))
        stream, unread = talk.events(), talk.events()
        reader = asyncio.create_task(_kinds(stream))
        await talk.compact(keep=0)
        await talk.undo()
    assert await reader == heard.kinds == ["compaction_start", "compaction_end", "undone"]
    assert (
        await _kinds(unread) == heard.kinds
    )  # what came before the conversation was closed can be read after it
    assert await _kinds(talk.events()) == []


async def _kinds(stream) -> list[str]:
    return [event.kind async for event in stream]


async def test_a_slow_reader_loses_the_oldest_events_and_a_dropped_stream_costs_nothing(monkeypatch):
    monkeypatch.setattr("refold.engine.events.MAX_UNREAD", 3)
    async with Conversation("gpt-4o", window=2_000, max_output=100) as talk:
        await talk.add(*turn(0), *turn(1), *turn(2))
        slow = talk.events()
        talk.events()  # dropped at once
        for _ in range(3):
            await talk.compact(keep=0)
            await talk.undo()
    assert await _kinds(slow) == ["compaction_start", "compaction_end", "undone"]


def test_a_thread_reads_events_without_await():
    kinds = []
    with sync.Conversation("gpt-4o", window=2_000, max_output=100) as talk:
        talk.add(*turn(0), *turn(1), *turn(2))
        stream = talk.events()
        reader = threading.Thread(target=lambda: kinds.extend(event.kind for event in stream))
        reader.start()
        talk.compact(keep=0)
    reader.join(timeout=30)
    assert kinds == ["compaction_start", "compaction_end"]
    assert "for event in chat.events()" in sync.Conversation.events.__doc__
    assert "async" not in sync.Conversation.events.__doc__
