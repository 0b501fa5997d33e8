"""Run a replay: every recording under every candidate in every window.

One idea: a recording under a candidate is one piece of work that needs nothing from any other, so the pieces can go to
several processes and come back in any order; the table is put together in the order in which they were asked for. Only the
measured times differ from run to run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from time import perf_counter
from typing import TypeAlias

from msgspec import Struct

from refold.model.errors import ConfigError
from refold.replay.billing import REFERENCE_TARIFFS, Tariff
from refold.replay.candidate import Maker
from refold.replay.counting import REFERENCE, Counting
from refold.replay.score import Clock, Score, score
from refold.replay.script import Script
from refold.replay.table import Cell
from refold.replay.transcripts import Progress, Recording

WINDOWS = (4_000, 8_000, 16_000, 32_000)
"""From where every session overflows to where only long ones do; they scale up with the recordings."""


class _Work(Struct, frozen=True):
    """One recording under some candidates, in all windows that it overflows."""

    recording: Recording
    makers: tuple[Maker, ...]
    windows: tuple[int, ...]
    counting: Counting
    tariffs: tuple[Tariff, ...]
    clock: Clock


_Found: TypeAlias = dict[tuple[str, int], Score]
"""Scores by candidate and window."""


def run(
    recordings: Sequence[Recording],
    candidates: Sequence[Maker],
    windows: Sequence[int] = WINDOWS,
    counting: Counting = REFERENCE,
    on_progress: Progress | None = None,
    *,
    tariffs: Sequence[Tariff] = REFERENCE_TARIFFS,
    clock: Clock = perf_counter,
    jobs: int = 1,
) -> tuple[Cell, ...]:
    """A cell for each window and candidate, in this order. A recording that fits into a window says nothing about it.

    With several jobs the candidates' makers must be importable, and measured times share the machine.
    """
    names = _names(candidates)
    if min(windows, default=1) < 1:
        raise ConfigError("a window has at least one token", hint="give windows in tokens, such as 8000")
    works = [
        _Work(recording, makers, tuple(windows), counting, tuple(tariffs), clock)
        for recording in recordings
        for makers in _portions(candidates, len(recordings), jobs)
    ]
    report = on_progress or (lambda _done, _total: None)
    found: list[_Found] = [{} for _ in works]
    for done, (at, scores) in enumerate(_all(works, jobs), 1):
        found[at] = scores
        report(done, len(works))
    return tuple(
        Cell(name, window, tuple(scores[name, window] for scores in found if (name, window) in scores))
        for window in windows
        for name in names
    )


def _portions(candidates: Sequence[Maker], recordings: int, jobs: int) -> list[tuple[Maker, ...]]:
    """How many candidates go with one recording: all to a process that has to read it anew, if there are enough."""
    if jobs > 1 and recordings >= _ENOUGH * jobs:
        return [tuple(candidates)]
    return [(make,) for make in candidates]


_ENOUGH = 4
"""Pieces of work for each process, so that none waits long for the last one."""


def _names(candidates: Sequence[Maker]) -> list[str]:
    names = [make().name for make in candidates]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"two candidates are called {twice!r}", hint="give each a name of its own")
    return names


def _all(works: Sequence[_Work], jobs: int) -> Iterator[tuple[int, _Found]]:
    """The scores of every piece of work with its place among them, as they come in."""
    if jobs <= 1:
        yield from enumerate(map(_perform, works))
        return
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    largest_first = sorted(range(len(works)), key=lambda at: -len(works[at].recording.messages))
    with ProcessPoolExecutor(min(jobs, len(works) or 1), get_context("spawn")) as pool:
        places = {pool.submit(_perform, works[at]): at for at in largest_first}
        try:
            for future in as_completed(places):
                yield places[future], future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _perform(work: _Work) -> _Found:
    script = _script(work.recording, work.counting)
    windows = [window for window in work.windows if script.tokens > window]
    found: _Found = {}
    for candidate, window in ((make(), window) for make in work.makers for window in windows):
        try:
            scored = score(script, candidate, window, clock=work.clock, tariffs=work.tariffs)
        except Exception as error:
            place = f"{work.recording.id!r} in a window of {window:,}"
            error.add_note(f"while replaying {place} under {candidate.name!r}")
            raise
        found[candidate.name, window] = scored
    return found


@lru_cache(maxsize=1)
def _script(recording: Recording, counting: Counting) -> Script:
    """Kept for the next candidate, which meets the same recording."""
    return Script(recording, counting.counter())
