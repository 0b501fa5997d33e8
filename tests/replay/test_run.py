from __future__ import annotations

import time

import pytest
from msgspec import structs

from refold.model.errors import ConfigError
from refold.replay.candidate import DropOldest, DropToHalf, Stopped
from refold.replay.cost import tariff_for
from refold.replay.facts import CounterChoice
from refold.replay.run import run
from tests.replay.candidates import Breaks, Diary
from tests.replay.recordings import recordings


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    return recordings(tmp_path_factory.mktemp("own"))


def timeless(cells):
    return [
        (
            cell.candidate,
            cell.window,
            [structs.replace(score, prepare_ms=(), add_ms=()) for score in cell.scores],
        )
        for cell in cells
    ]


@pytest.mark.feature("X17", "N6")
def test_policies_are_compared_on_the_same_recordings(own):
    cells = run(own, [DropOldest, DropToHalf], [400, 6_000])

    assert [(cell.window, cell.candidate, len(cell.scores)) for cell in cells] == [
        (400, "drop oldest", 3),
        (400, "drop to 50 %", 3),
        (6_000, "drop oldest", 2),
        (6_000, "drop to 50 %", 2),
    ]
    oldest, half = cells[2:]
    assert [score.recording for score in oldest.scores] == ["session", "mixed"]
    assert sum(score.old.part for score in oldest.scores) > sum(score.old.part for score in half.scores)
    assert sum(score.rewrites for score in oldest.scores) > sum(score.rewrites for score in half.scores)


def test_several_processes_find_the_same(own):
    alone, together = (run(own, [DropOldest, Diary], [6_000], jobs=jobs) for jobs in (1, 2))

    assert timeless(alone) == timeless(together)


class Stops(DropToHalf):
    """Stops in any conversation that is longer than the shorter session."""

    name = "stops"

    def add(self, message):
        self.heard = getattr(self, "heard", 0) + 1
        if self.heard > 150:
            raise Stopped
        super().add(message)


@pytest.mark.parametrize("jobs", [1, 2])
def test_where_one_stops_all_are_compared_by_what_all_have_finished(own, jobs):
    session, _, mixed = own
    assert len(session.messages) < 150 < len(mixed.messages)

    cells = run([session, mixed, session], [DropOldest, Stops], [6_000], jobs=jobs, in_threads=True)

    oldest, stops = ([score.recording for score in cell.scores] for cell in cells)
    assert oldest == stops
    assert set(stops) == {"session"}
    assert len(stops) == 1 or jobs == 2  # what was under way is finished


def test_who_has_finished_nothing_does_not_hide_the_others(own):
    cells = run(own[2:], [DropOldest, Stops], [6_000])

    assert [[score.recording for score in cell.scores] for cell in cells] == [["mixed"], []]


def test_progress_counts_the_pieces_of_work(own):
    seen = []

    run(own, [DropOldest, DropToHalf], [6_000], on_progress=lambda done, total: seen.append((done, total)))

    assert seen == [(done, 6) for done in range(1, 7)]


def test_another_counter_means_another_window(own):
    reference, exact = (
        run(own, [DropOldest], [6_000], counting)[0].scores
        for counting in (CounterChoice(), CounterChoice("gpt-4o"))
    )

    assert [score.calls for score in reference] == [score.calls for score in exact]
    assert reference != exact
    assert all(score.fits == score.calls for score in exact)


def test_prices_of_a_model_are_used(own):
    (cell,) = run(own, [DropOldest], [6_000], tariffs=[tariff_for("gpt-4o")], clock=time.perf_counter)

    assert [list(score.bills) for score in cell.scores] == [["openai/gpt-4o"]] * 2


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_candidate_that_breaks_is_named_with_its_recording(own, jobs):
    with pytest.raises(ZeroDivisionError) as caught:
        run(own[:1], [Breaks], [6_000], jobs=jobs)

    assert caught.value.__notes__ == ["while replaying 'session' in a window of 6,000 under 'breaks'"]


def test_a_window_of_nothing_is_refused(own):
    with pytest.raises(ConfigError, match="at least one token"):
        run(own, [DropOldest], [6_000, 0])


def test_two_candidates_of_one_name_cannot_be_told_apart(own):
    with pytest.raises(ConfigError, match="two candidates have the name 'drop oldest'"):
        run(own, [DropOldest, DropOldest], [6_000])
