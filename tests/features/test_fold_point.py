"""When a summary is written, and what is sent until then: through the library, with every preset."""

import asyncio

import pytest

import refold
from tests.features.folds import ALL, Run, Writer


@pytest.mark.feature("N4", "L17", "P5")
@pytest.mark.parametrize("window", [4_000, 16_000])
@pytest.mark.parametrize("preset", ALL)
async def test_a_configured_model_writes_the_summaries_whatever_the_window(preset, window):
    run = Run(preset, window, Writer())
    await run.play(3, words=window // 200)
    assert run.writer.asked >= 3
    assert run.folds().keys() <= {"model"} or run.count(refold.SummarySwitched) >= 1
    assert run.folds()["model"] + run.count(refold.SummarySwitched) >= 3
    assert run.count(refold.SummaryDiscarded) == 0
    await run.chat.close()


@pytest.mark.feature("N4")
@pytest.mark.parametrize("turns", [2, 8])
async def test_a_slow_model_is_bridged_by_a_digest_and_its_summary_is_used(turns):
    run = Run("refold", 8_000, Writer(turns))
    await run.play(4, words=60)
    used = run.folds()["model"] + run.count(refold.SummarySwitched)
    assert used >= run.writer.asked - 1  # the last one may still stand by for the next fold
    assert run.count(refold.SummaryDiscarded) == 0
    texts = [str(fields["messages"][0]["content"]) for fields in run.sent]
    assert any("The user asks about crates." in text for text in texts)
    await run.chat.close()


@pytest.mark.feature("N4")
@pytest.mark.parametrize("words", [30, 40, 60])
async def test_no_paid_summary_is_lost_in_a_window_that_fills_fast(words):
    """One may be written while the one before it replaces its digest, or just as a digest takes its place."""
    run = Run("refold", 4_000, Writer(3))
    await run.play(8, words=words)
    used = run.folds()["model"] + run.count(refold.SummarySwitched)
    assert run.count(refold.SummaryDiscarded) == 0
    assert run.count(refold.SummaryWritten) - used <= 1
    await run.chat.close()


@pytest.mark.feature("N10", "N4")
async def test_an_undo_opens_a_fold_that_a_model_s_summary_replaced_as_a_whole():
    run, is_switched = Run("refold", 8_000, Writer(8)), False
    for number in range(400):
        run.writer.turn += 1
        await run.chat.add(f"Where is crate {number}? " + "It was blue and heavy. " * 60)
        shown = len((await run.chat.context())["messages"])
        is_switched = bool(run.events) and isinstance(run.events[-1], refold.SummarySwitched)
        if is_switched:
            break
        await run.chat.add({"role": "assistant", "content": f"Crate {number} is in hall {number % 7}."})
        await asyncio.sleep(0.002)
    assert is_switched
    assert "The user asks about crates." in run.chat.state.folded.summaries[-1].text
    folds = (await run.chat.status()).compactions
    assert await run.chat.undo()
    assert (await run.chat.status()).compactions == folds - 1
    assert len(run.chat.state.folded.shown) > shown
    await run.chat.close()


@pytest.mark.feature("N4", "L2")
@pytest.mark.parametrize("preset", ["refold", "lis"])
@pytest.mark.parametrize("is_folded", [False, True])
@pytest.mark.parametrize("act", ["compact", "focus", "start_session", "close"])
async def test_a_question_in_progress_is_used_or_reported_as_discarded(preset, is_folded, act):
    """Every question that a model was asked ends with an event, and one that is paid for is waited for."""
    answers, events, asked = asyncio.Event(), list[object](), 0

    async def write(messages, previous=None, **_):
        nonlocal asked
        asked += 1
        await answers.wait()
        return "The crates are in the hall. The user looks for the blue one. Next: crate 40."

    chat = refold.Conversation(
        "gpt-4o",
        preset=preset,
        window=8_000,
        summariser=write,
        summariser_timeout_s=0.05,
        on_event=events.append,
    )
    number = 0
    while not (asked and (not is_folded or chat.receipts)):
        await chat.add(f"Where is crate {number}? " + "It was blue. " * 60)
        await chat.context()
        await chat.add({"role": "assistant", "content": "In the hall. " * 10})
        await asyncio.sleep(0.001)
        number += 1
    first = asked
    doing = {
        "compact": chat.compact,
        "focus": lambda: chat.compact(focus="the blue crate"),
        "start_session": chat.start_session,
        "close": chat.close,
    }[act]
    task = asyncio.create_task(doing())
    await asyncio.sleep(0.01)
    answers.set()
    await task
    await asyncio.sleep(0.05)  # a closed session is summarised in the background
    await chat.close()
    ended = [one for one in events if isinstance(one, (refold.SummaryWritten, refold.SummaryFailed))]
    lost = [one for one in events if isinstance(one, refold.SummaryDiscarded)]
    assert first == 1
    assert len(ended) + len(lost) >= asked
    if act == "compact":
        assert not lost
