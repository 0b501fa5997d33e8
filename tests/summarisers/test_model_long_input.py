from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec import structs

from refold.core.digest.ledger import Ledger
from refold.core.prompts import Passage, Recipe
from refold.model.errors import ContextOverflow, Overflow, UpstreamUnavailable
from refold.model.message import Message
from refold.model.window import Tool
from refold.ports.models import Ask, SummaryTask
from refold.summarisers import MemoryCache, ModelSummariser
from tests.engine.conversations import agent_turn
from tests.summarisers.scripted_upstream import GOOD, Scripted, task, writer


@pytest.mark.feature("X10")
async def test_a_source_larger_than_the_summariser_s_window_is_read_in_parts_and_merged():
    def answer(ask):
        return (
            "Read and merged all of it."
            if "consecutive parts" in ask.messages[0].text
            else "Read a part of it."
        )

    upstream = Scripted(answer)
    summary = await ModelSummariser([writer(upstream, window=1_600)]).write(task(turns=20))
    assert summary.text == "Read and merged all of it."
    assert len(upstream.asked) > 3
    assert all(len(question) // 4 < 1_600 for question in upstream.questions)
    numbers = {
        number for question in upstream.questions for number in range(20) if f"question {number} " in question
    }
    assert numbers == set(range(20))


@pytest.mark.feature("X14")
async def test_parts_that_were_paid_for_are_not_paid_for_again():
    cache, calls = MemoryCache(), []

    def answer(ask):
        calls.append(ask)
        return UpstreamUnavailable() if len(calls) == 3 else "Read a part of it."

    summariser = ModelSummariser([writer(Scripted(answer), window=1_600)], cache=cache)
    assert await summariser.write(task(turns=20)) is None
    first = [ask.messages[0].text for ask in calls]
    calls.clear()
    calls.extend([None, None, None])
    assert await summariser.write(task(turns=20)) is not None
    again = [ask.messages[0].text for ask in calls[3:]]
    assert not set(first[:2]) & set(again)


@pytest.mark.feature("X10")
async def test_a_selective_summary_reads_what_people_said_and_what_failed():
    failed = Message("tool", (structs.replace(agent_turn(0)[2].results[0], is_error=True),))
    passages = (*task(2).passages, Passage(8, failed))
    upstream = Scripted("Answered question 0.")
    await ModelSummariser([writer(upstream)], Recipe(strategy="selective")).write(
        SummaryTask(passages, 0, 9, 600)
    )
    question = upstream.questions[0]
    assert "answer 1" in question
    assert "[Failed result #m8]" in question
    assert "[Result #m2]" not in question


async def test_when_the_summariser_itself_overflows_it_gets_less_at_a_time():
    def answer(ask):
        if len(ask.messages[0].text) > 5_000:
            return ContextOverflow(overflow=Overflow("input_too_long", limit=1_200))
        return "Read a part of it."

    upstream = Scripted(answer)
    summary = await ModelSummariser([writer(upstream)]).write(task(turns=20))
    assert summary.text == "Read a part of it."
    assert sum(len(question) > 5_000 for question in upstream.questions) <= 3


def refusing(limit: int, overflow: Callable[[int], Overflow], refused: list[str]) -> Callable[[Ask], object]:
    """A model that reads `limit` of our tokens, and says so in some way of its own."""

    def answer(ask):
        text = ask.messages[0].text
        size = (len(text) + len(ask.system)) // 4
        if size + ask.max_output <= limit:
            return "Read a part of it."
        refused.append(text)
        return ContextOverflow(overflow=overflow(size))

    return answer


TELLING = {
    "the limit": lambda size: Overflow("input_too_long", limit=1_500),
    "the limit, and counts twice as many": lambda size: Overflow("input_too_long", 3_000, prompt=2 * size),
    "the limit, and counts the answer": lambda size: Overflow("input_plus_output", 3_000, requested=2 * size + 700),
    "nothing": lambda size: Overflow("input_too_long"),
    "nothing at all": lambda size: None,
    "a limit that was not reached": lambda size: Overflow("input_too_long", limit=90_000),
    "a limit of bytes": lambda size: Overflow("bytes_too_large", limit=700),
    "a window that no model has": lambda size: Overflow("input_too_long", limit=12),
    "a larger window than any": lambda size: Overflow("input_too_long", 10**12, prompt=10**12),
    "a limit of a minute": lambda size: Overflow("input_too_long", limit=300, limit_of="minute"),
}  # fmt: skip


@pytest.mark.feature("O12")
@pytest.mark.parametrize("told", TELLING.values(), ids=TELLING)
async def test_every_question_after_one_that_was_too_long_is_smaller(told):
    """The window that is believed in is far larger than all that there is to read."""
    refused, recipe = [], Recipe(max_tokens=200)
    upstream = Scripted(refusing(1_500, told, refused))
    summary = await ModelSummariser([writer(upstream)], recipe).write(task(turns=20))
    assert summary.text == "Read a part of it."
    sizes = [len(text) for text in refused]
    assert sizes == sorted(set(sizes), reverse=True)
    assert 1 <= len(refused) <= 3
    after = upstream.questions[upstream.questions.index(refused[-1]) + 1 :]
    assert max(map(len, after)) < sizes[-1]


@pytest.mark.feature("C10")
async def test_messages_that_do_not_fit_with_their_tools_are_told_as_a_transcript():
    upstream, tools = Scripted(GOOD), (Tool("look", "looks around " * 2_000),)
    sent = tuple(one.message for one in task().passages)
    summariser = ModelSummariser([writer(upstream, window=8_000)], Recipe(reading="raw"))
    assert (await summariser.write(task(sent=sent, tools=tools))).text == GOOD
    (ask,) = upstream.asked
    assert (ask.tools, len(ask.messages)) == ((), 1)


@pytest.mark.feature("X10")
async def test_parts_that_do_not_fit_together_are_merged_in_groups():
    def answer(ask):
        return (
            "Merged some. " * 8 if "consecutive parts" in ask.messages[0].text else "Read a part of it. " * 10
        )

    upstream = Scripted(answer)
    summary = await ModelSummariser([writer(upstream, window=1_500)]).write(task(turns=60, max_tokens=300))
    assert summary.text.startswith("Merged some.")
    assert len(upstream.asked) < 60
    assert all(len(question) // 4 < 1_500 for question in upstream.questions)
    assert summary.usage.input == 100 * len(upstream.asked)


async def test_a_window_that_is_too_small_is_not_asked_at_all():
    upstream = Scripted(GOOD)
    summariser = ModelSummariser([writer(upstream, window=500)])
    assert await summariser.write(task(turns=20)) is None
    assert upstream.asked == []
    assert summariser.problems == ["small: its window is too small to read the transcript"]


@pytest.mark.feature("X10")
async def test_a_previous_summary_that_is_too_long_is_merged_like_the_oldest_part():
    previous = "\n".join(f"Story {number} was told at length and with care." for number in range(400))

    def answer(ask):
        return "Merged all of it." if "consecutive parts" in ask.messages[0].text else "Read a part of it."

    upstream = Scripted(answer)
    summary = await ModelSummariser([writer(upstream, window=3_000)]).write(task(previous=previous))
    assert summary.text == "Merged all of it."
    assert all(len(question) // 4 < 3_000 for question in upstream.questions)
    asked = "".join(upstream.questions)
    assert all(f"Story {number} was" in asked for number in range(400))


@pytest.mark.feature("X14")
async def test_parts_are_not_read_again_when_the_conversation_has_gone_on():
    calls = []

    def answer(ask):
        calls.append(ask.messages[0].text)
        return UpstreamUnavailable() if len(calls) == 3 else "Read a part of it."

    summariser = ModelSummariser([writer(Scripted(answer), window=1_600)])
    assert await summariser.write(task(turns=20)) is None
    ruled = task(turns=21, ledger=Ledger(rules=("Never x y z.",)), max_tokens=500)
    assert await summariser.write(ruled) is not None
    assert not set(calls[:2]) & set(calls[3:])


@pytest.mark.feature("O5", "X14")
async def test_the_half_that_was_written_is_kept_when_the_other_fails():
    answers = iter((UpstreamUnavailable(), "## This Turn So Far\nAsked question 5."))
    upstream = Scripted(lambda ask: next(answers) if "still going on" in ask.messages[0].text else GOOD)
    summariser = ModelSummariser([writer(upstream)])
    assert await summariser.write(task(turn_from=20)) is None
    summary = await summariser.write(task(turn_from=20))
    assert summary.text == f"{GOOD}\n\n## This Turn So Far\nAsked question 5."
    assert sum("still going on" not in question for question in upstream.questions) == 1


@pytest.mark.feature("X10", "X14")
async def test_a_part_that_turns_out_too_large_is_parted_and_the_others_stay():
    """The model counts more than we do; what it has read before it says so is not read again."""
    refused = []

    def answer(ask):
        text = ask.messages[0].text
        if "question 12 " in text and len(text) > 3_000:
            refused.append(text)
            return ContextOverflow(overflow=Overflow("input_too_long"))
        return "Read a part of it."

    upstream = Scripted(answer)
    summary = await ModelSummariser([writer(upstream, window=2_000)]).write(task(turns=20))
    assert summary.text == "Read a part of it."
    told = [question for question in upstream.questions if question not in refused]
    for number in range(20):
        assert sum(f"question {number} " in question for question in told) == 1
    assert 0 < len(refused) <= 2


@pytest.mark.feature("X10")
async def test_hierarchical_reads_in_parts_what_would_fit_at_once():
    upstream = Scripted(
        lambda ask: "Merged all of it." if "consecutive" in ask.messages[0].text else "Read a part of it."
    )
    recipe = Recipe(strategy="hierarchical", max_tokens=200)
    summary = await ModelSummariser([writer(upstream, window=3_000)], recipe).write(task(turns=25))
    assert summary.text == "Merged all of it."
    assert len(upstream.asked) == 3


@pytest.mark.feature("O5")
async def test_a_split_turn_gets_two_summaries():
    upstream = Scripted(GOOD, "## This Turn So Far\nAsked question 5.")
    summary = await ModelSummariser([writer(upstream)]).write(task(turn_from=20))
    assert summary.text == f"{GOOD}\n\n## This Turn So Far\nAsked question 5."
    history, turn = upstream.questions
    assert "question 4" in history
    assert "question 5" not in history
    assert "question 5" in turn
    assert "still going on" in turn


@pytest.mark.feature("N3")
async def test_the_facts_of_a_split_turn_are_added_once():
    upstream = Scripted(GOOD, "## This Turn So Far\nAsked question 5.")
    ledger = Ledger(rules=("Never touch main.py.",))
    summary = await ModelSummariser([writer(upstream)]).write(task(turn_from=20, ledger=ledger))
    assert summary.text.count("Never touch main.py.") == summary.text.count("## Rules the user gave") == 1


@pytest.mark.feature("N3")
async def test_a_turn_that_is_split_again_keeps_the_history_s_summary_unasked():
    upstream = Scripted("## This Turn So Far\nAsked question 0.")
    summary = await ModelSummariser([writer(upstream)]).write(
        task(turn_from=0, previous="## Goal\nThe old story.")
    )
    assert summary.text == "## Goal\nThe old story.\n\n## This Turn So Far\nAsked question 0."
    assert len(upstream.asked) == 1


def filling(ask):
    """As long an answer as was asked for."""
    is_turn = "still going on" in ask.messages[0].text
    start, line = (
        ("## This Turn So Far", "Some files were changed so far. ")
        if is_turn
        else ("## Goal", "Change the files as asked. ")
    )
    return f"{start}\n{line * (ask.max_output * 4 // len(line) - 1)}"


@pytest.mark.feature("O5", "C16")
@pytest.mark.parametrize("strategy", ["abstractive", "hierarchical"])
async def test_a_turn_that_is_split_again_and_again_makes_the_summary_no_longer(strategy):
    upstream, previous, sizes = Scripted(filling), "", []
    summariser = ModelSummariser([writer(upstream, window=20_000)], Recipe(strategy=strategy))
    for start in (20, 0, 0, 0):
        summary = await summariser.write(task(turns=60, turn_from=start, previous=previous))
        previous = summary.text
        sizes.append(summary.tokens)
    assert max(sizes) <= 600
    assert previous.count("## This Turn So Far") == 1
    assert "## Goal" in previous


@pytest.mark.feature("O5")
async def test_what_was_told_of_a_turn_goes_into_the_next_question_about_it():
    upstream = Scripted("## This Turn So Far\nAsked question 0, and a second time.")
    before = "## Goal\nThe old story.\n\n## This Turn So Far\nAsked once.\n### Files\nNone was changed."
    summary = await ModelSummariser([writer(upstream)]).write(task(turn_from=0, previous=before))
    assert summary.text == (
        "## Goal\nThe old story.\n\n## This Turn So Far\nAsked question 0, and a second time."
    )
    (question,) = upstream.questions
    assert "Asked once.\n### Files\nNone was changed.\n</previous-summary-" in question
    assert "The old story." not in question


@pytest.mark.feature("O5", "C16")
async def test_a_summary_that_leaves_a_turn_no_room_is_shortened():
    previous = "## Goal\n" + "\n".join(f"Story {number} was told at length." for number in range(60))

    def answer(ask):
        is_turn = "still going on" in ask.messages[0].text
        return "## This Turn So Far\nAsked question 0." if is_turn else "## Goal\nSixty stories."

    upstream = Scripted(answer)
    summary = await ModelSummariser([writer(upstream)]).write(task(turn_from=0, previous=previous))
    assert summary.text == "## Goal\nSixty stories.\n\n## This Turn So Far\nAsked question 0."
    short, _ = upstream.questions
    assert "Story 0 was" in short
    assert "Story 59 was" in short


@pytest.mark.feature("X10", "N3")
@pytest.mark.parametrize("previous", ["", "## Goal\nChange all the files."])
async def test_where_nobody_said_a_word_a_selective_summary_reads_what_was_done(previous):
    passages = tuple(one for one in task(20).passages if one.message.calls or one.message.results)
    upstream = Scripted("## This Turn So Far\nRead src/f0.py and the others.")
    told = SummaryTask(passages, 1, 80, 600, turn_from=0, previous=previous)
    summary = await ModelSummariser([writer(upstream)], Recipe(strategy="selective")).write(told)
    assert summary.text.endswith("## This Turn So Far\nRead src/f0.py and the others.")
    assert "src/f3.py" in upstream.questions[0]


@pytest.mark.feature("N3")
async def test_nothing_is_no_summary():
    upstream = Scripted(GOOD)
    summariser = ModelSummariser([writer(upstream)])
    assert await summariser.write(SummaryTask((), 0, 0, 600, turn_from=0)) is None
    assert summariser.problems == ["small: there is nothing to summarise"]


@pytest.mark.feature("O5", "X10")
@pytest.mark.parametrize(
    ("strategy", "window", "turns"), [("hierarchical", 100_000, 6), ("abstractive", 2_600, 60)]
)
async def test_a_turn_that_is_read_in_parts_is_still_told_as_a_turn(strategy, window, turns):
    def answer(ask):
        is_turn = "still going on" in ask.messages[0].text
        return "## This Turn So Far\nAsked question 5." if is_turn else GOOD

    upstream = Scripted(answer)
    summariser = ModelSummariser([writer(upstream, window)], Recipe(strategy=strategy))
    summary = await summariser.write(task(turns=turns, turn_from=20))
    assert summary.text == f"{GOOD}\n\n## This Turn So Far\nAsked question 5."


@pytest.mark.feature("X10")
async def test_what_one_part_holds_is_asked_for_once():
    upstream = Scripted(GOOD)
    recipe, old = Recipe(strategy="hierarchical"), "## Goal\nThe old story."
    await ModelSummariser([writer(upstream)], recipe).write(task(previous=old))
    (question,) = upstream.questions
    assert "replaces the previous one" in question
