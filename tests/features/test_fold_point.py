"""When a summary is written, and what is sent until then: through the library, with every preset."""

import asyncio
from collections import Counter

import pytest

import refold
from refold.core.presets import PRESETS

ALL = tuple(PRESETS)
FOREVER = 10**9
WAITING = ("opal", "llms", "librechat")


class Writer:
    """A summariser that takes a number of turns. It quotes the first words of the user's messages."""

    def __init__(self, turns: int = 0, *, fails: bool = False) -> None:
        self.turns, self.fails = turns, fails
        self.asked, self.turn = 0, 0

    async def __call__(self, messages, *, previous, max_tokens):
        self.asked += 1
        ready = self.turn + self.turns
        while self.turn < ready:  # noqa: ASYNC110  # turns pass without an event
            await asyncio.sleep(0.001)
        if self.fails:
            raise TimeoutError
        said = [one["content"][:50] for one in messages if one["role"] == "user"]
        return "The user asks about crates.\n" + "\n".join(said[:10])


class Run:
    """One conversation of a preset with a summariser."""

    def __init__(self, preset: str, window: int, writer: Writer, **settings: object) -> None:
        self.events: list[refold.Event] = []
        self.writer, self.sent = writer, []
        self.chat = refold.Conversation(
            "gpt-4o", preset=preset, window=window, summariser=writer, on_event=self.events.append, **settings
        )

    async def play(self, folds: int, *, words: int, turns: int = 400) -> None:
        """Talk until the conversation was folded so many times."""
        for number in range(turns):
            self.writer.turn += 1
            await self.chat.add(f"Where is crate {number}? " + "It was blue and heavy. " * words)
            self.sent.append(await self.chat.context())
            await self.chat.add({"role": "assistant", "content": f"Crate {number} is in hall {number % 7}."})
            await asyncio.sleep(0.002)
            if sum(self.folds().values()) >= folds:
                break
        if self.writer.turns < FOREVER:
            self.writer.turn, self.writer.turns = 10**6, 0
            await self.chat.ready()

    def folds(self) -> Counter[str]:
        """The authors of the compactions."""
        ends = [one for one in self.events if isinstance(one, refold.CompactionEnd)]
        return Counter(one.author for one in ends if one.outcome == "installed")

    def count(self, kind: type[refold.Event]) -> int:
        return sum(isinstance(one, kind) for one in self.events)


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


@pytest.mark.feature("P5", "P7")
@pytest.mark.parametrize(("window", "words", "turns"), [(4_000, 66, 4), (8_000, 100, 5)])
async def test_a_summary_that_comes_after_a_compression_at_the_wall_is_used(window, words, turns):
    """It may cover more than the half of the turns that was dropped: then it waits for the next compression."""
    run = Run("picoclaw", window, Writer(turns))
    await run.play(6, words=words)
    assert run.folds()["mechanical"] >= 3
    assert run.count(refold.SummarySwitched) >= 1
    assert run.count(refold.SummaryDiscarded) == 0
    used = run.folds()["model"] + run.count(refold.SummarySwitched)
    assert run.count(refold.SummaryWritten) - used <= 2  # the last ones may stand by for the next compression
    await run.chat.close()


@pytest.mark.feature("X7", "C8", "O2")
@pytest.mark.parametrize("preset", WAITING)
async def test_a_preset_that_waits_sends_no_digest(preset):
    run = Run(preset, 8_000, Writer(0))
    await run.play(3, words=40)
    assert set(run.folds()) == {"model"}
    assert run.writer.asked == run.folds()["model"]  # only when it is needed
    await run.chat.close()


@pytest.mark.feature("X7")
async def test_llms_keeps_the_last_two_messages_with_a_model_too():
    run = Run("llms", 8_000, Writer(0))
    await run.play(1, words=40)
    assert len(run.sent[-1]["messages"]) <= 4  # the task's line, the summary, and two messages
    await run.chat.close()


@pytest.mark.feature("L1", "L17")
async def test_lis_goes_on_with_the_full_history_until_the_summary_is_there():
    run = Run("lis", 8_000, Writer(3))
    await run.play(1, words=10)
    assert set(run.folds()) == {"model"}
    asked_at = next(
        number
        for number, fields in enumerate(run.sent)
        if sum(len(str(one)) for one in fields["messages"]) > 0
    )
    assert asked_at == 0
    sizes = [len(fields["messages"]) for fields in run.sent]
    assert sizes[-2] > sizes[-1], "the switch came with the summary, and before it all was sent"
    await run.chat.close()


@pytest.mark.feature("X6")
@pytest.mark.parametrize("preset", ALL)
async def test_a_model_that_fails_leaves_the_conversation_going(preset):
    run = Run(preset, 8_000, Writer(fails=True))
    await run.play(4, words=40, turns=120)
    assert run.count(refold.SummaryFailed) >= 1
    assert "model" not in run.folds()
    assert all(fields["messages"][-1]["content"].startswith("Where is crate") for fields in run.sent)
    await run.chat.close()


@pytest.mark.feature("X6")
async def test_a_model_that_hangs_is_waited_for_no_longer_than_the_setting_says():
    run = Run("opal", 8_000, Writer(FOREVER), summariser_timeout_s=0.05)
    await run.play(1, words=40)
    assert run.folds() == {"mechanical": 1}
    await run.chat.close()


@pytest.mark.feature("L1")
async def test_the_limit_is_the_budget_of_the_input():
    """A limit of 12,000 folds above 9,600 in the preset lis, whatever the output of the model."""
    for model in ("gpt-4o", "claude-sonnet-4-5"):
        chat = refold.Conversation(model, preset="lis", limit=12_000)
        number, size = 0, 0
        while not chat.receipts:
            size = chat.measurement.content.tokens
            await chat.add(f"Where is crate {number}? " + "It was blue. " * 40)
            await chat.context()
            await chat.add({"role": "assistant", "content": "In the hall."})
            number += 1
        assert 9_300 < size <= 9_800
        await chat.close()


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
