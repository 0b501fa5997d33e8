"""Runs a replay: every recording under every candidate in every window.

A recording under a candidate is an independent piece of work, so that the pieces can run in several processes
and finish in any order; the result has the order of the request. Only the measured times differ between runs.
Candidates that wait for a model share one spending limit, so their pieces run in threads; when the limit is
reached, the finished pieces are the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from time import perf_counter
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from refold.model.errors import ConfigError
from refold.replay.candidate import WHOLE_WINDOW, CandidateMaker, ReplayBudget, Stopped
from refold.replay.cost import REFERENCE_TARIFFS, Tariff
from refold.replay.facts import REFERENCE, CounterChoice
from refold.replay.recordings import CountedRecording, ProgressFunction, Recording
from refold.replay.score import MonotonicClock, Score, score
from refold.replay.table import Cell

if TYPE_CHECKING:
    from concurrent.futures import Executor

WINDOWS = (4_000, 8_000, 16_000, 32_000)
"""From a window that every session overflows to one that only long ones do."""


class _Work(Struct, frozen=True):
    """One recording under some candidates, in all windows that it overflows."""

    recording: Recording
    makers: tuple[CandidateMaker, ...]
    windows: tuple[int, ...]
    counting: CounterChoice
    tariffs: tuple[Tariff, ...]
    clock: MonotonicClock
    budget: ReplayBudget


_Found: TypeAlias = dict[tuple[str, int], Score]
"""Scores by candidate and window."""


def run(
    recordings: Sequence[Recording],
    candidates: Sequence[CandidateMaker],
    windows: Sequence[int] = WINDOWS,
    counting: CounterChoice = REFERENCE,
    on_progress: ProgressFunction | None = None,
    *,
    tariffs: Sequence[Tariff] = REFERENCE_TARIFFS,
    clock: MonotonicClock = perf_counter,
    jobs: int = 1,
    in_threads: bool = False,
    budget: ReplayBudget = WHOLE_WINDOW,
) -> tuple[Cell, ...]:
    """A cell for each window and candidate, in this order. A recording that fits into a window is left out
    there.

    With several jobs the candidates' makers must be importable, unless the jobs are threads, and measured
    times are less exact. If a candidate stops (`Stopped`), the cells hold the recordings finished before.

    Raises:
        ConfigError: two candidates have one name, or the budget leaves no room in a window.
    """
    names = _names(candidates)
    if min(windows, default=1) < 1:
        raise ConfigError(
            "a window must have at least one token", hint="give windows in tokens, such as 8000"
        )
    for window in windows:
        budget.room_in(window)
    portions = _portions(candidates, len(recordings), jobs)
    works = [
        _Work(recording, makers, tuple(windows), counting, tuple(tariffs), clock, budget)
        for recording in recordings
        for makers in portions
    ]
    report = on_progress or (lambda _done, _total: None)
    found: list[_Found] = [{} for _ in works]
    for done, (at, scores) in enumerate(_run_all(works, jobs, in_threads=in_threads), 1):
        found[at] = scores
        report(done, len(works))
    whole = _join_portions(found, len(portions))
    return tuple(cell for window in windows for cell in _cells(whole, names, window))


def _join_portions(found: Sequence[_Found], portions: int) -> list[_Found]:
    """The scores of each recording, whose candidates may have been several pieces of work."""
    starts = range(0, len(found), max(1, portions))
    return [
        {key: score for part in found[at : at + portions] for key, score in part.items()} for at in starts
    ]


def _cells(recordings: Sequence[_Found], names: Sequence[str], window: int) -> Iterator[Cell]:
    """The cells of a window. Candidates with any finished recording are compared by the recordings that all
    of them finished.
    """
    able = [name for name in names if any((name, window) in scores for scores in recordings)]
    whole = [scores for scores in recordings if all((name, window) in scores for name in able)]
    for name in names:
        yield Cell(name, window, tuple(scores[name, window] for scores in whole) if name in able else ())


def _portions(
    candidates: Sequence[CandidateMaker], recordings: int, jobs: int
) -> list[tuple[CandidateMaker, ...]]:
    """The candidates per piece of work: all of them if there are enough recordings, because each process must
    read a recording anew.
    """
    if jobs > 1 and recordings >= _ENOUGH * jobs:
        return [tuple(candidates)]
    return [(make,) for make in candidates]


_ENOUGH = 4
"""Pieces of work per process, so that no process waits long for the last one."""


def _names(candidates: Sequence[CandidateMaker]) -> list[str]:
    names = [make().name for make in candidates]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"two candidates have the name {twice!r}", hint="give each a name of its own")
    return names


def _run_all(works: Sequence[_Work], jobs: int, *, in_threads: bool) -> Iterator[tuple[int, _Found]]:
    """The scores of every piece of work with its index, as they finish; fewer if a candidate stops."""
    if jobs > 1:
        yield from _in_parallel(works, jobs, in_threads=in_threads)
        return
    for at, work in enumerate(works):
        scores, is_stopped = _perform(work)
        yield at, scores
        if is_stopped:
            return


def _in_parallel(works: Sequence[_Work], jobs: int, *, in_threads: bool) -> Iterator[tuple[int, _Found]]:
    from concurrent.futures import FIRST_COMPLETED, wait

    # Largest first, so that none is left for the end. In threads the work may stop early: then in order, so
    # that the first recordings are finished.
    order = sorted(range(len(works)), key=lambda at: 0 if in_threads else -len(works[at].recording.messages))
    with _pool(min(jobs, len(works) or 1), in_threads=in_threads) as pool:
        places = {pool.submit(_perform, works[at]): at for at in order}
        try:
            left = set(places)
            while left:
                done, left = wait(left, return_when=FIRST_COMPLETED)
                for future in done:
                    scores, is_stopped = future.result()
                    yield places[future], scores
                    if is_stopped:  # running pieces finish by themselves
                        left = {other for other in left if not other.cancel()}
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _pool(size: int, *, in_threads: bool) -> Executor:
    from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
    from multiprocessing import get_context

    return ThreadPoolExecutor(size) if in_threads else ProcessPoolExecutor(size, get_context("spawn"))


def _perform(work: _Work) -> tuple[_Found, bool]:
    """The scores of a piece of work, and whether a candidate stopped before its end."""
    script = _script(work.recording, work.counting)
    windows = [window for window in work.windows if script.tokens > window]
    found: _Found = {}
    for candidate, window in ((make(), window) for make in work.makers for window in windows):
        try:
            scored = score(
                script, candidate, window, clock=work.clock, tariffs=work.tariffs, budget=work.budget
            )
        except Stopped:
            return found, True
        except Exception as error:
            place = f"{work.recording.id!r} in a window of {window:,}"
            error.add_note(f"while replaying {place} under {candidate.name!r}")
            raise
        found[candidate.name, window] = scored
    return found, False


@lru_cache(maxsize=1)
def _script(recording: Recording, counting: CounterChoice) -> CountedRecording:
    """Cached for the next candidate, which uses the same recording."""
    return CountedRecording(recording, counting.counter())
