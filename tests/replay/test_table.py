from __future__ import annotations

import json
from itertools import count

import pytest
from msgspec import structs

from refold.replay.candidate import BASELINES
from refold.replay.facts import REFERENCE, CounterChoice
from refold.replay.run import run
from refold.replay.score import Ratio
from refold.replay.table import Cell, document, summarise, tabulate
from tests.replay.recordings import recordings


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    ticks = count()
    own = recordings(tmp_path_factory.mktemp("own"))
    return run(own, BASELINES[:2], [1_500, 50_000], clock=lambda: next(ticks) / 1e3)


def with_bands(score, **bands):
    return structs.replace(score, bands=dict.fromkeys(("near", "mid", "far"), Ratio()) | bands)


def test_every_recording_weighs_the_same(cells):
    score = cells[0].scores[0]
    long, short = with_bands(score, mid=Ratio(900, 1_000)), with_bands(score, mid=Ratio(1, 10))

    row = summarise(Cell("x", 1_000, (long, short)))

    assert row.fur_mid == pytest.approx((90 + 10) / 2)
    assert row.demands == {"near": 0, "mid": 1_010, "far": 0}


def test_a_handful_of_demands_says_nothing(cells):
    few = with_bands(cells[0].scores[0], near=Ratio(0, 4), far=Ratio(4, 5))

    row = summarise(Cell("x", 1_000, (few,)))

    assert (row.fur_near, row.fur_far, row.fur_mid) == (None, 80, None)


def test_money_and_calls_are_totals(cells):
    row = summarise(cells[0])

    assert row.calls == sum(score.calls for score in cells[0].scores)
    assert row.dollars["anthropic"] == pytest.approx(
        sum(score.bills["anthropic"].dollars for score in cells[0].scores)
    )
    assert row.with_recall is None


def test_a_window_that_nothing_overflows_has_an_empty_row(cells):
    row = summarise(cells[-1])

    assert (row.recordings, row.calls, row.fur_old, row.valid, row.latency_ms["p95"]) == (
        0,
        0,
        None,
        None,
        None,
    )


def test_quantiles_are_of_all_calls(cells):
    slow = structs.replace(cells[0].scores[0], prepare_ms=tuple(map(float, range(100))))

    row = summarise(Cell("x", 1_000, (slow,)))

    assert (row.latency_ms["p50"], row.latency_ms["p95"]) == (50.0, 95.0)


def test_the_document_has_stable_keys(cells):
    plain = document(tabulate(cells, REFERENCE))

    assert json.loads(json.dumps(plain)) == plain
    assert list(plain) == [
        "counting",
        "tariffs",
        "rows",
        "format",
        "summarisers",
        "stopped",
        "output",
        "reserve",
    ]
    assert plain["tariffs"] == ["anthropic", "openai"]
    assert set(plain["rows"][0]) == {
        "candidate", "window", "recordings", "calls", "valid", "fits", "fill", "fur", "fur_near", "fur_mid",
        "fur_far", "fur_old", "fur_old_second", "bound", "with_recall", "lines_near", "lines_old", "phrases_near", "phrases_old", "made_up", "rules", "dollars", "cache_hit",
        "rewrites_per_100", "compactions", "latency_ms", "demands", "repeats", "problems", "summaries",
    }  # fmt: skip


def test_the_table_names_its_way_of_counting(cells):
    assert tabulate(cells, CounterChoice("gpt-4o")).counting.startswith("gpt-4o: ")
    assert tabulate(cells, REFERENCE).counting.startswith("reference: ")
