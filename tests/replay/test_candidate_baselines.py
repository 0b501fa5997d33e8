from __future__ import annotations

from itertools import pairwise

import pytest

from refold.model.message import Message, ToolCall, assistant, system, tool, user
from refold.replay.candidate import (
    BASELINES,
    DROPPED,
    DropOldest,
    DropToHalf,
    KeepLast,
    KeepLastWithStub,
    MaskOutput,
    NoLimit,
    shorten,
    units,
)
from refold.replay.facts import REFERENCE, ReferenceCounter, spoken_text
from refold.replay.recordings import read_recordings
from refold.replay.run import run
from refold.replay.table import tabulate
from tests.corpus import TRANSCRIPTS
from tests.replay.recordings import EXAMPLES

COUNTER = ReferenceCounter()
PROMPT = system("be kind")


def step(number: int, size: int = 400) -> list[Message]:
    """A call and its result, of some `size` characters."""
    call = assistant("", ToolCall(f"c{number}", "look", f'{{"at": {number}}}'))
    return [call, tool(f"c{number}", f"result {number} " + "x" * size)]


def context_of(make, messages, window):
    candidate = make()
    candidate.start((PROMPT,), (), window, COUNTER)
    for message in messages:
        candidate.add(message)
    return candidate.context()


def size(messages):
    return sum(map(COUNTER.message, messages))


LONG = [user("Find the leak."), *(message for number in range(30) for message in step(number))]


def test_a_reply_and_its_results_are_one_unit():
    assert [len(unit) for unit in units([user("hi"), *step(1), assistant("a"), assistant("b")])] == [
        1,
        2,
        1,
        1,
    ]


@pytest.mark.parametrize("make", BASELINES[1:], ids=lambda make: make.name)
def test_every_baseline_keeps_the_newest_and_fits(make):
    context = context_of(make, LONG, 1_000)

    assert size(context) <= 1_000
    assert context[0] == PROMPT
    assert context[1].role == "user"
    assert context[-1] == LONG[-1]


def test_no_limit_sends_everything():
    assert context_of(NoLimit, LONG, 1_000) == (PROMPT, *LONG)


def test_drop_oldest_keeps_all_that_fits():
    context = context_of(DropOldest, LONG, 1_000)

    assert context[1].text == DROPPED
    assert size(context) + size(step(1)) > 1_000


def test_drop_to_half_drops_deep_and_then_only_grows():
    candidate = DropToHalf()
    candidate.start((PROMPT,), (), 1_000, COUNTER)
    contexts = []
    for number in range(30):
        for message in step(number):
            candidate.add(message)
        contexts.append(candidate.context())
    rewritten = [old != new[: len(old)] for old, new in pairwise(contexts)]

    assert any(size(context) < 520 for context in contexts[8:])
    assert 0 < sum(rewritten) < 12


def test_keep_last_counts_units():
    assert len(context_of(KeepLast, LONG, 100_000)) == 2 + 2 * KeepLast.keep


def test_mask_cuts_old_output_and_leaves_the_newest():
    context = context_of(MaskOutput, [LONG[0], *step(1, 4_000), *step(2, 4_000), *step(3, 4_000)], 3_000)
    results = [spoken_text(message) for message in context if message.role == "tool"]

    assert [len(result) > 3_000 for result in results] == [False, True, True]
    assert results[0].startswith("result 1")


def test_the_stub_counts_what_it_replaces():
    context = context_of(KeepLastWithStub, LONG, 2_000)

    assert len(context) == 2 + 4
    assert "28 assistant messages, 28 tool messages, 1 user messages" in context[1].text
    assert "look x28" in context[1].text


def test_one_huge_message_is_cut_in_the_middle():
    huge = user("begin " + "x" * 50_000 + " end")

    context = context_of(DropOldest, [huge], 1_000)

    assert size(context) <= 1_000
    assert context[1].text.startswith("begin")
    assert context[1].text.endswith("end")


def test_what_the_model_said_is_never_cut():
    reply = assistant("x" * 5_000)

    assert shorten(reply, 100) is reply


def test_baselines_are_valid_in_every_format():
    cells = run(read_recordings(EXAMPLES), BASELINES, [400])

    for row in tabulate(cells, REFERENCE).rows:
        assert row.recordings == 3
        assert row.problems == {}


PUBLISHED = {
    "no limit": ((100, 86), (100, 83), (100, 82), (100, 79)),
    "drop oldest": ((67.4, 40), (63.1, 58), (80.7, 84), (86.4, 103)),
    "drop to 50 %": ((46.7, 26), (50.4, 28), (65.2, 33), (78.6, 40)),
    "keep last 10 units": ((57.8, 43), (46.7, 57), (32.8, 66), (20.3, 67)),
    "mask output at 80 %": ((66.0, 43), (69.4, 60), (80.5, 80), (86.8, 84)),
    "keep last 2 + stub": ((35.4, 27), (37.9, 26), (45.3, 27), (49.5, 30)),
}
"""FUR-old and dollars at 4k, 8k, 16k and 32k, as measured on the corpus by others for the same simple ideas."""


@pytest.mark.slow
@pytest.mark.skipif(not TRANSCRIPTS.exists(), reason="the corpus of transcripts is not on this machine")
@pytest.mark.parametrize("make", BASELINES, ids=lambda make: make.name)
def test_baselines_score_as_they_did_elsewhere(make):
    found = tabulate(run(read_recordings(TRANSCRIPTS), [make]), REFERENCE).rows

    for row, (fur_old, dollars) in zip(found, PUBLISHED[make.name], strict=True):
        assert row.fur_old == pytest.approx(fur_old, abs=0.15)
        assert row.dollars["anthropic"] == pytest.approx(dollars, abs=0.55)
