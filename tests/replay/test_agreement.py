"""Our numbers are those of an independent scorer, for the same contexts."""

from __future__ import annotations

import json

import pytest

from refold.replay.candidate import BASELINES, KeepLastWithStub, MaskOutput
from refold.replay.facts import REFERENCE, literals
from refold.replay.recordings import read_recordings
from refold.replay.run import run
from refold.replay.table import tabulate
from tests.corpus import TRANSCRIPTS, transcripts
from tests.replay.candidates import Diary
from tests.replay.recordings import conversations, recordings
from tests.replay.reference import SCORER, load, our_row, reference_row

needs_scorer = pytest.mark.skipif(not SCORER.exists(), reason="the reference scorer is not on this machine")
needs_corpus = pytest.mark.skipif(
    not SCORER.exists() or not TRANSCRIPTS.exists(), reason="the corpus of transcripts is not on this machine"
)
CANDIDATES = (*BASELINES, Diary)

FOUND = {
    "drop to 50 %": {
        "fur": 83.508403,
        "fur_old": 44.798535,
        "rewrites_per_100": 10.344828,
        "anthropic": 0.558144,
    },
    "diary": {"fur": 83.508403, "with_recall": 88.760504, "made_up": 100.0, "anthropic": 0.617281},
}
"""What the reference scorer found for our own data in a window of 6,000, for where it is absent."""


def rows(own_recordings, candidates, windows):
    return tabulate(run(own_recordings, candidates, windows), REFERENCE).rows


@needs_scorer
@pytest.mark.feature("N6")
@pytest.mark.parametrize("window", [1_500, 6_000])
@pytest.mark.parametrize("make", CANDIDATES, ids=lambda make: make.name)
def test_every_number_agrees_on_our_own_data(tmp_path, make, window):
    (row,) = rows(recordings(tmp_path), [make], [window])

    assert our_row(row) == pytest.approx(reference_row(conversations(), make, window))


def test_numbers_are_those_that_were_found_once(tmp_path):
    found = rows(recordings(tmp_path), CANDIDATES, [6_000])

    for row in found:
        expected = FOUND.get(row.candidate, {})
        values = {key: row.dollars.get(key, getattr(row, key, None)) for key in expected}
        assert values == pytest.approx(expected, abs=1e-6)
    assert set(FOUND) <= {row.candidate for row in found}


@needs_corpus
def test_numbers_agree_on_some_of_the_corpus(tmp_path):
    sample = [line for number, line in enumerate(transcripts()) if number % 9 == 0]
    path = tmp_path / "sample.jsonl"
    path.write_bytes(b"".join(sample))

    (row,) = rows(read_recordings(path), [Diary], [8_000])

    assert row.recordings > 3
    assert our_row(row) == pytest.approx(reference_row([json.loads(line) for line in sample], Diary, 8_000))


@needs_corpus
@pytest.mark.slow
@pytest.mark.parametrize("window", [4_000, 8_000, 16_000, 32_000])
@pytest.mark.parametrize("make", [MaskOutput, KeepLastWithStub, Diary], ids=lambda make: make.name)
def test_every_number_agrees_on_the_corpus(make, window):
    (row,) = rows(read_recordings(TRANSCRIPTS), [make], [window])

    reference = reference_row([json.loads(line) for line in transcripts()], make, window)

    assert our_row(row) == pytest.approx(reference)


@needs_corpus
@pytest.mark.parametrize(
    "step", [10, pytest.param(1, marks=pytest.mark.slow)], ids=["a tenth", "the whole corpus"]
)
def test_the_same_literals_are_found(step):
    scorer = load()
    for line in list(transcripts())[::step]:
        for message in json.loads(line)["messages"]:
            text = scorer.msg_text(message)
            assert set(literals(text)) == set(scorer.lits(text))
