"""What is told of kept conversations: what counts, once it counts, with the name of the conversation."""

from __future__ import annotations

import asyncio

import pytest

from refold import sync
from refold.engine.events import NOTHING, CompactionEnd, Pruned, SummaryFailed, SummaryWritten, Undone
from refold.engine.sessions import NEW, RESUMED
from refold.model.errors import NotFound, StoreError, SummaryError
from refold.model.tokens import Usage
from refold.stores.memory import MemoryStore
from tests.engine.listener import Heard
from tests.engine.test_stored_conversation import answer, engine, long
from tests.engine.test_summary_jobs import Gate, Paid, filled, until_asked
from tests.policies import ARRIVING

TOO_LONG = {"error": {"code": "context_length_exceeded", "message": "too long"}}


@pytest.mark.feature("O3")
async def test_an_engine_tells_of_all_its_conversations_by_name():
    heard = Heard()
    keeper = engine(MemoryStore(), on_event=heard)
    one, two = await long(keeper, "one"), await long(keeper, "two")

    heard.check()
    told = {(end.conversation, end.branch) for end in heard.only(CompactionEnd)}
    assert told == {("one", one.branch), ("two", two.branch)}
    assert {end.outcome for end in heard.only(CompactionEnd)} == {"installed"}


@pytest.mark.feature("O3")
async def test_a_summary_written_ahead_is_told_then_and_used_later():
    heard, model = Heard(), Paid()
    talk = await engine(MemoryStore(), summariser=model, on_event=heard).conversation("chat")
    after = await until_asked(talk, model)
    model.may_answer.set()
    await talk.ready()
    assert heard.kinds == ["summary_written"]
    while not heard.only(CompactionEnd):
        await talk.add(*answer(after))
        await talk.context()
        after += 1

    (written, *_) = heard.only(SummaryWritten)
    end = heard.only(CompactionEnd)[0]
    assert (end.path, end.author) == ("ahead", "model")
    assert end.covered >= written.last  # a digest tells of messages that came while the model wrote
    assert written.usage == end.usage == Usage(input=1_000, output=100)
    heard.check()


@pytest.mark.feature("O3")
async def test_asked_for_with_a_focus():
    heard, model = Heard(), Paid()
    talk = await filled(MemoryStore(), summariser=model, on_event=heard)
    await talk.compact(focus="the second file")

    assert heard.kinds == ["compaction_start", "summary_written", "compaction_end"]
    assert (heard.end.path, heard.end.outcome, heard.end.author) == ("manual", "installed", "model")
    assert heard.only(SummaryWritten)[0].is_awaited


@pytest.mark.feature("O3")
async def test_a_model_that_is_down_is_told_and_a_digest_stands_in():
    heard, model = Heard(), Paid()
    model.is_down = True
    talk = await filled(MemoryStore(), summariser=model, on_event=heard)
    await talk.compact()

    assert heard.kinds == ["compaction_start", "summary_failed", "compaction_end"]
    assert heard.only(SummaryFailed)[0].is_awaited
    assert (heard.end.outcome, heard.end.author) == ("installed", "digest")


@pytest.mark.feature("O3")
async def test_a_refusal_as_too_long():
    heard = Heard()
    talk = await filled(MemoryStore(), on_event=heard)
    await talk.context()
    await talk.recover(TOO_LONG)
    assert (heard.end.path, heard.end.outcome) == ("overflow", "installed")
    await talk.add({"role": "assistant", "content": "at last"})

    assert heard.kinds == ["compaction_start", "compaction_end", "recovered"]


@pytest.mark.feature("O3")
async def test_what_is_taken_back():
    heard = Heard()
    talk = await filled(MemoryStore(), on_event=heard)
    await talk.compact()
    compacted = heard.end
    heard.clear()
    assert await talk.undo()
    assert not await talk.undo()

    (undone,) = heard
    assert isinstance(undone, Undone)
    assert (undone.decision, undone.reason, undone.conversation) == ("summarise", "asked for", "chat")
    assert (undone.before, undone.after) == (compacted.after, compacted.before)


@pytest.mark.feature("O3")
async def test_what_is_done_again():
    heard, model = Heard(), Paid()
    talk = await filled(MemoryStore(), summariser=model, on_event=heard)
    await talk.compact()
    before = heard.end.after
    heard.clear()
    assert await talk.rerun(summariser=Paid("OTHER"))

    assert heard.kinds == ["compaction_start", "summary_written", "compaction_end"]
    assert (heard.end.path, heard.end.outcome, heard.end.author) == ("rerun", "installed", "model")
    assert heard.end.before == before


@pytest.mark.feature("O3")
async def test_what_is_done_again_in_vain_is_as_it_was():
    heard, down = Heard(), Paid("DOWN")
    talk = await filled(MemoryStore(), summariser=Paid(), on_event=heard)
    assert not await talk.rerun()
    assert (heard.end.path, heard.end.outcome, heard.end.problem) == ("rerun", "skipped", NOTHING)
    await talk.compact()
    heard.clear()
    down.is_down = True
    with pytest.raises(SummaryError) as caught:
        await talk.rerun(summariser=down)

    assert heard.kinds == ["compaction_start", "summary_failed", "compaction_end"]
    assert (heard.end.outcome, heard.end.problem) == ("failed", caught.value.message)
    assert heard.end.after == heard.end.before


@pytest.mark.feature("O3")
async def test_a_session_that_begins_and_one_that_goes_on():
    heard = Heard()
    talk = await filled(MemoryStore(), on_event=heard)
    first = (await engine(talk._journal.store).sessions("chat"))[0]
    await talk.start_session()
    assert (heard.end.path, heard.end.reason, heard.end.outcome) == ("new", NEW, "installed")
    assert heard.end.after.tokens == heard.end.after.regions.system

    whole = heard.end.before.tokens
    heard.clear()
    await talk.resume(first)
    assert (heard.end.path, heard.end.reason, heard.end.author) == ("resume", RESUMED, "")
    assert heard.end.after.tokens == whole
    heard.clear()
    with pytest.raises(NotFound) as caught:
        await talk.resume(talk._journal.session)  # it is open
    assert (heard.end.path, heard.end.outcome, heard.end.problem) == (
        "resume",
        "failed",
        caught.value.message,
    )


async def test_a_session_that_is_too_long_goes_on_by_its_summary():
    heard, store = Heard(), MemoryStore()
    talk = await filled(store)
    await talk.start_session()
    small = await engine(store, on_event=heard).conversation("chat", window=4_000)
    first = min(await engine(store).sessions("chat"), key=lambda one: one.first)
    await small.resume(first)

    assert (heard.end.path, heard.end.author) == ("resume", "digest")
    assert heard.end.after.regions.summary > 0


@pytest.mark.feature("O3")
async def test_what_is_cut_as_it_arrives():
    heard = Heard()
    talk = await engine(MemoryStore(), on_event=heard, policy=ARRIVING).conversation("chat")
    await talk.add("very long " * 3_000)

    (pruned,) = heard
    assert isinstance(pruned, Pruned)
    assert (pruned.path, pruned.conversation) == ("arrival", "chat")


@pytest.mark.feature("O3")
async def test_what_does_not_fit_by_itself():
    heard = Heard()
    talk = await engine(MemoryStore(), on_event=heard).conversation("chat")
    await talk.add("very long " * 3_000)

    (pruned,) = heard
    assert isinstance(pruned, Pruned)
    assert (pruned.path, pruned.conversation) == ("automatic", "chat")
    assert "do not fit into" in pruned.reason
    (reduction,) = pruned.reductions
    assert (reduction.stage, reduction.messages) == ("fit", 1)


@pytest.mark.feature("O3")
async def test_what_another_process_was_first_at_is_told_once():
    heard, store = Heard(), Gate()
    talk = await filled(store, on_event=heard)
    other = await engine(store, window=100_000).conversation("chat")
    store.first["commit"] = lambda: other.add({"role": "assistant", "content": "I was first"})
    await talk.recover(TOO_LONG)

    assert heard.kinds == ["compaction_start", "compaction_end"]
    assert heard.end.outcome == "installed"
    assert (await talk.status()).messages == 122


@pytest.mark.feature("O3")
async def test_what_is_not_kept_was_not_done():
    heard, store = Heard(), Gate()
    talk = await filled(store, on_event=heard)

    async def fail():
        raise StoreError("the disk is full")

    store.first["commit"] = fail
    with pytest.raises(StoreError):
        await talk.recover(TOO_LONG)
    assert heard == []
    store.first["commit"] = fail
    with pytest.raises(StoreError):
        await talk.compact()
    assert (heard.end.outcome, heard.end.problem) == ("failed", "the disk is full")


async def test_without_await_it_is_told_too():
    heard = Heard()

    def play():
        with sync.Engine("memory:", window=4_000, on_event=heard) as keeper:
            talk = keeper.conversation("chat")
            for number in range(30):
                talk.add(*answer(number))
                talk.context()

    await asyncio.to_thread(play)
    heard.check()
    assert heard.only(CompactionEnd)[0].conversation == "chat"
