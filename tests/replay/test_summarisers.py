"""Replays in which a model writes the summaries, over HTTP, on our own recordings."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec import structs

from refold.model.errors import ConfigError, UpstreamError
from refold.model.tokens import Usage
from refold.replay.candidate import candidates
from refold.replay.facts import REFERENCE
from refold.replay.run import run
from refold.replay.summarisers import ReplaySummarisers, Stopwatch, choose, open_summarisers
from refold.replay.table import document, render, tabulate
from refold.testing import Received, Refuse, ScriptedUpstream, Slow, say
from refold.testing.script import Say
from tests.replay.recordings import recordings

pytestmark = pytest.mark.feature("N6")

TEXT = "## Goal\nThe importer is to be mended.\n## Progress\n### Done\nFiles were read and changed."
USAGE = Usage(input=10_000, output=500)
PRICE = (10_000 * 0.15 + 500 * 0.60) / 1e6
"""Of one call, by what gpt-4o-mini costs."""
REFUSAL = "I'm sorry, but I can't help with that."


def unwrapped(text: str) -> str:
    """A text whose sentences are not broken into lines."""
    return " ".join(text.split())


def by_length(received: Received) -> Say:
    """A summary for less than the call may cost at most: a token of this prompt is shorter than six bytes of the body."""
    return say(TEXT, usage=Usage(input=len(received.body) // 6, output=100))


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    return recordings(tmp_path_factory.mktemp("own"))


@pytest.fixture
def server():
    with ScriptedUpstream(otherwise=say(TEXT, usage=USAGE)) as served:
        yield served


def order(
    server: ScriptedUpstream, folder: Path, *more: str, model: str = "gpt-4o-mini", **settings
) -> ReplaySummarisers:
    chosen = (*map(choose, more), choose(f"{model}@{server.url}/v1"))
    return ReplaySummarisers(chosen, folder=folder, **settings)


@contextmanager
def replayed(own, asked: ReplaySummarisers, *, presets=("refold",), windows=(4_000,), jobs=1):
    with open_summarisers(asked, environ={}) as opened:
        makers = candidates(presets, opened)
        cells = run(own, makers, windows, clock=opened.clock, jobs=jobs, in_threads=True)
        yield tabulate(cells, REFERENCE, opened.spending, opened.stopped), cells


def timeless(table):
    return [structs.replace(row, latency_ms={}) for row in table.rows]


def test_every_call_is_on_the_bill(own, server, tmp_path):
    with replayed(own[:1], order(server, tmp_path)) as (table, cells):
        (row,), (spent,) = table.rows, table.summarisers

    calls, asked = len(server.requests), row.summaries.asked
    assert row.candidate == "refold + gpt-4o-mini"
    assert spent.calls == calls >= asked > 2  # a turn that is split is told apart
    assert spent.spent == pytest.approx(calls * PRICE)
    assert row.summaries.dollars == cells[0].scores[0].writing.dollars == pytest.approx(calls * PRICE)
    assert (row.summaries.input, row.summaries.output) == (calls * 10_000, calls * 500)
    assert (spent.priced_as, spent.written, spent.failed) == ("openai/gpt-4o-mini", asked, 0)


def test_recordings_that_begin_alike_each_have_the_cost_and_it_is_paid_once(own, server, tmp_path):
    with replayed(own, order(server, tmp_path)) as (table, _):
        (row,), (spent,) = table.rows, table.summarisers

    assert spent.found > 0
    assert spent.found + spent.written == row.summaries.asked
    assert spent.spent == pytest.approx(len(server.requests) * PRICE)
    assert row.summaries.dollars > spent.spent


def test_what_it_cost_is_part_of_the_dollars(own, server, tmp_path):
    with replayed(own[:1], order(server, tmp_path)) as (table, _):
        paid = table.rows[0]
    free = structs.replace(choose(f"gpt-4o-mini@{server.url}/v1"), prices=None, priced_as="")
    with replayed(own[:1], ReplaySummarisers((free,), folder=tmp_path)) as (table, _):
        unpriced, spent = table.rows[0], table.summarisers[0]

    for tariff, dollars in paid.dollars.items():
        assert dollars - unpriced.dollars[tariff] == pytest.approx(paid.summaries.dollars)
    assert unpriced.summaries.dollars is spent.spent is None
    assert "its price is not known, so what it cost is not in $" in unwrapped(render(table))


def test_a_second_run_measures_the_same_and_pays_nothing(own, server, tmp_path):
    with replayed(own[:1], order(server, tmp_path)) as (first, _):
        calls = len(server.requests)
    with replayed(own[:1], order(server, tmp_path)) as (second, _):
        (spent,) = second.summarisers

    assert len(server.requests) == calls
    assert timeless(first) == timeless(second)
    assert (spent.calls, spent.spent, spent.written) == (0, 0.0, 0)
    assert spent.found == second.rows[0].summaries.asked


def test_the_digest_beside_a_model_is_what_it_is_without_one(own, server, tmp_path):
    with replayed(own[:1], order(server, tmp_path, "digest")) as (table, _):
        beside, modelled = table.rows
    alone = tabulate(run(own[:1], candidates(("refold",)), (4_000,)), REFERENCE)

    assert timeless(alone) == [structs.replace(beside, latency_ms={})]
    assert beside.summaries is None
    assert modelled.fur_old < beside.fur_old  # it wrote two sentences
    assert document(alone)["summarisers"] == []
    assert "sum $" not in render(alone)


def test_presets_have_summaries_by_their_own_recipes(own, server, tmp_path):
    with replayed(own[:1], order(server, tmp_path), presets=("refold", "opal", "picoclaw")) as (table, _):
        rows = table.rows

    assert [row.candidate for row in rows] == [
        f"{name} + gpt-4o-mini" for name in ("refold", "opal", "picoclaw")
    ]
    assert all(row.valid == row.fits == 100 and row.summaries.asked for row in rows)


def test_it_stops_before_it_spends_too_much_and_goes_on_from_there(own, server, tmp_path):
    presets = ("refold", "opal")
    server.script(otherwise=by_length)
    with replayed(own, order(server, tmp_path / "whole"), presets=presets) as (whole, _):
        calls = len(server.requests)
    most = whole.summarisers[0].spent * 0.85
    server.requests.clear()

    with replayed(own, order(server, tmp_path / "parts", most=most), presets=presets) as (stopped, cells):
        (spent,) = stopped.summarisers
    assert 0 < spent.spent <= most
    assert "the limit of $" in stopped.stopped
    measured = [[score.recording for score in cell.scores] for cell in cells]
    assert measured[0] == measured[1]  # only what both have finished is compared
    assert 0 < len(measured[0]) < whole.rows[0].recordings
    assert f"stopped: {stopped.stopped}" in unwrapped(render(stopped))

    with replayed(own, order(server, tmp_path / "parts", most=10.0), presets=presets) as (finished, _):
        pass
    assert len(server.requests) == calls
    assert timeless(finished) == timeless(whole)


def test_without_a_cent_only_what_needs_none_is_measured(own, server, tmp_path):
    with replayed(own[:1], order(server, tmp_path, "digest", most=0.0)) as (table, _):
        digest, modelled = table.rows
    with replayed(own[:1], order(server, tmp_path, most=0.0)) as (nothing, _):
        pass

    assert not server.requests
    assert (digest.recordings, modelled.recordings, modelled.fur_old) == (1, 0, None)
    assert "window 4,000: 1 recording," in render(table)
    assert "no recording was finished" in render(nothing)


def test_where_the_model_fails_the_digest_serves_and_it_is_counted(own, server, tmp_path):
    good = [say(TEXT, usage=USAGE)] * 2
    server.script(*good, Refuse(400, "no"), otherwise=say(REFUSAL, usage=USAGE))
    with replayed(own[:1], order(server, tmp_path, "digest")) as (table, cells):
        digest, modelled = table.rows
        (spent,) = table.summarisers

    assert modelled.summaries.failed == spent.failed == modelled.summaries.asked - spent.written
    assert spent.written in (1, 2)
    assert spent.failures["the summariser answered 400, invalid_request_error"] == 1
    assert spent.failures["refusal"] == spent.failed - 1 > 0
    assert (
        spent.calls == 2 + 2 * spent.failures["refusal"]
    )  # each was asked once more; an error costs nothing
    assert modelled.summaries.dollars == pytest.approx(spent.calls * PRICE)
    assert modelled.valid == modelled.fits == 100
    assert modelled.fur_old > 0.8 * digest.fur_old
    reasons = [change.reason for score in cells[1].scores for one in score.sent for change in one.changes]
    assert any(reason.endswith("; by the model") for reason in reasons)
    assert any(reason.endswith("; the model failed, a digest serves") for reason in reasons)
    assert f"{spent.failed} failed (refusal {spent.failed - 1}, the summariser answered 400" in unwrapped(
        render(table)
    )


def test_several_at_once_find_the_same(own, server, tmp_path):
    presets, windows = ("refold",), (4_000,)
    with replayed(own, order(server, tmp_path / "a"), presets=presets, windows=windows) as (alone, _):
        calls = len(server.requests)
    with replayed(own, order(server, tmp_path / "b"), presets=presets, windows=windows, jobs=3) as (
        together,
        _,
    ):
        pass

    assert timeless(alone) == timeless(together)
    assert len(server.requests) == 2 * calls


def test_several_at_once_stop_together(own, server, tmp_path):
    server.script(otherwise=lambda received: Slow(by_length(received), before_s=0.01))
    with replayed(own, order(server, tmp_path, most=3 * PRICE), presets=("refold", "opal"), jobs=3) as (
        table,
        _,
    ):
        (spent,) = table.summarisers

    assert 0 < spent.spent <= 3 * PRICE
    assert table.stopped


@pytest.mark.parametrize("refusal, hint", [(401, "check the key"), (404, "the name of the model")])
def test_a_model_that_never_answers_is_a_mistake_and_not_a_measurement(own, server, tmp_path, refusal, hint):
    server.script(otherwise=Refuse(refusal))

    with (
        pytest.raises(UpstreamError, match="gpt-4o-mini cannot write summaries") as caught,
        replayed(own[:1], order(server, tmp_path)),
    ):
        pass

    assert hint in caught.value.hint
    assert len(server.requests) == 1


def test_tokens_are_counted_where_the_provider_does_not_say(own, server, tmp_path):
    server.script(otherwise=say(TEXT, usage=Usage()))
    with replayed(own[:1], order(server, tmp_path)) as (table, _):
        (spent,) = table.summarisers

    assert spent.is_estimated
    assert 1_000 < table.rows[0].summaries.input / spent.calls < 8_000
    assert spent.spent > 0
    assert "tokens are estimated" in unwrapped(render(table))


def test_a_limit_needs_a_price(server, tmp_path):
    with pytest.raises(ConfigError, match="is not known, so a spending limit cannot be applied"):
        order(server, tmp_path, model="nobody-knows-me", most=1.0)


def test_a_missing_key_is_told_before_anything_is_replayed(tmp_path):
    asked = ReplaySummarisers((choose("openai:gpt-4o-mini"),), folder=tmp_path)

    with pytest.raises(ConfigError, match="OPENAI_API_KEY holds no key"), open_summarisers(asked, environ={}):
        pass


def test_waiting_for_a_model_is_no_time_of_our_own():
    clock = Stopwatch()
    before = clock()
    clock.waited_s += 1_000

    assert clock() < before - 900


def test_a_small_model_that_is_not_there_is_told_with_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("REFOLD_LOCAL_MODEL", str(tmp_path / "missing.gguf"))
    asked = ReplaySummarisers((choose("local"),), folder=tmp_path)

    with pytest.raises(ConfigError) as caught, open_summarisers(asked):
        pass

    assert "install" in caught.value.hint
