"""The arithmetic of kept %, over one run or several of the same points.

The interval of a row is a bootstrap over recordings, not replies: replies of one conversation resemble each
other. All rows share the same resamples, so that the difference against another engine is paired; it is
narrower than the two intervals suggest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.kept.run_files import read_contexts, read_results

FULL, LOWER = "full", "lower"
RESAMPLES, SEED = 2_000, 7
MUCH = 20.0
"""Nats that a reply loses if something that it depends on is gone."""

Floats = npt.NDArray[np.float64]


class Measured(NamedTuple):
    """A point with what the model found: the log-likelihood of its reply after each context, and their sizes."""

    id: str
    recording: str
    stratum: str
    ll: dict[str, float]
    sizes: dict[str, int]


class Interval(NamedTuple):
    """A value, and the range that holds 95 % of its resamples."""

    value: float
    low: float
    high: float


class Row(NamedTuple):
    engine: str
    window: int
    """0 for the bounds, which have none."""
    replies: int
    window_tokens: float
    lost: float
    """Nats of a reply, in the mean, below those after the whole history."""
    median_lost: float
    much_lost: float
    """The share of replies, in %, that lose more than `MUCH`."""
    kept: Interval
    recordings_alike: float
    """Kept % if every recording weighs the same."""
    against: Interval | None = None
    """The difference to the reference engine, in points of kept %."""


class Part(NamedTuple):
    """The rows of one stratum in one window."""

    stratum: str
    window: int
    replies: int
    recordings: int
    reference: str
    rows: list[Row]


def read_runs(folders: Sequence[Path]) -> list[Measured]:
    """The points of all runs together. Where two runs have a context of the same name, the later one counts.

    Raises:
        ValueError: the runs have different replies under one name.
    """
    points: dict[str, Measured] = {}
    targets: dict[str, list[int]] = {}
    for folder in folders:
        results = read_results([folder])
        for point in read_contexts(folder).points:
            if targets.setdefault(point.id, point.target) != point.target:
                raise ValueError(f"{folder} has another reply {point.id}: the runs have different points")
            known = points.setdefault(point.id, Measured(point.id, point.recording, point.stratum, {}, {}))
            for name, size in point.sizes.items():
                known.sizes[name] = size
                known.ll.pop(name, None)
                found = results.get((point.id, name))
                if found is not None:
                    known.ll[name] = float(found.lp.sum(dtype=np.float64))
    return list(points.values())


def tabulate(points: Iterable[Measured], against: str = "refold", resamples: int = RESAMPLES) -> list[Part]:
    """A part for each stratum and window, largest window first; in it the best engine first."""
    bounded = [point for point in points if FULL in point.ll and LOWER in point.ll]
    strata = list(dict.fromkeys(point.stratum for point in bounded))
    windows = sorted({window_of(name) for point in bounded for name in point.ll} - {0}, reverse=True)
    parts = [
        _part([point for point in bounded if point.stratum == stratum], stratum, window, against, resamples)
        for stratum in strata
        for window in windows
    ]
    return [part for part in parts if part.rows]


def window_of(context: str) -> int:
    return int(context.rpartition("@")[2]) if "@" in context else 0


def _part(points: list[Measured], stratum: str, window: int, against: str, resamples: int) -> Part:
    names = sorted({name for point in points for name in point.ll if window_of(name) == window})
    group = Group(points, resamples)
    reference = f"{against}@{window}"
    rows = [group.row(name, reference if reference in names and name != reference else "") for name in names]
    rows.sort(key=lambda row: -row.kept.value)
    bounds = [group.row(name, "") for name in (FULL, LOWER)] if rows else []
    shown = against if reference in names else ""
    return Part(stratum, window, len(points), len(group.recordings), shown, bounds + rows)


class Group:
    """Points that are summed together, and their resamples."""

    def __init__(self, points: Sequence[Measured], resamples: int) -> None:
        self.points = points
        self.recordings = sorted({point.recording for point in points})
        self._of = np.array([self.recordings.index(point.recording) for point in points])
        count = len(self.recordings)
        source = np.random.default_rng(SEED)
        self._weights = source.multinomial(count, np.full(count, 1 / count), size=resamples).astype(float)
        """How often each recording is drawn in each resample."""

    def row(self, name: str, reference: str) -> Row:
        scored = self._ll(name)
        has = ~np.isnan(scored)
        lost = (self._ll(FULL) - scored)[has]
        gains, worths = self._sums(name, has)
        some = worths > 0
        sizes = [point.sizes[name] for point, is_scored in zip(self.points, has, strict=True) if is_scored]
        return Row(
            engine=name.rpartition("@")[0] or name,
            window=window_of(name),
            replies=int(has.sum()),
            window_tokens=float(np.mean(sizes)),
            lost=float(lost.mean()),
            median_lost=float(np.median(lost)),
            much_lost=100 * float((lost > MUCH).mean()),
            kept=_interval(
                _share(gains.sum(), worths.sum()), _share(self._weights @ gains, self._weights @ worths)
            ),
            recordings_alike=float(np.mean(_share(gains[some], worths[some]))) if some.any() else np.nan,
            against=self._difference(name, reference) if reference else None,
        )

    def _difference(self, name: str, reference: str) -> Interval:
        """Over the replies that both have."""
        both = ~np.isnan(self._ll(name)) & ~np.isnan(self._ll(reference))
        (gains, worths), (others, _) = self._sums(name, both), self._sums(reference, both)
        more = gains - others
        return _interval(
            _share(more.sum(), worths.sum()), _share(self._weights @ more, self._weights @ worths)
        )

    def _ll(self, name: str) -> Floats:
        return np.array([point.ll.get(name, np.nan) for point in self.points])

    def _sums(self, name: str, chosen: npt.NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """For each recording: nats above the lower bound, of this context and of the whole history."""
        lower = self._ll(LOWER)
        return self._by_recording(self._ll(name) - lower, chosen), self._by_recording(
            self._ll(FULL) - lower, chosen
        )

    def _by_recording(self, values: Floats, chosen: npt.NDArray[np.bool_]) -> Floats:
        return np.bincount(self._of[chosen], values[chosen], minlength=len(self.recordings))


def _share(part: Floats | float, whole: Floats | float) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return 100 * np.asarray(part) / np.asarray(whole)


def _interval(value: Floats, resampled: Floats) -> Interval:
    low, high = np.nanpercentile(resampled, [2.5, 97.5])
    return Interval(float(value), float(low), float(high))


def render(parts: Iterable[Part]) -> str:
    """Tables in Markdown."""
    return "\n\n".join(_rendered(part) for part in parts)


def _rendered(part: Part) -> str:
    names = [
        "context",
        "replies",
        "window tokens",
        "lost/reply",
        "median lost",
        f"> {MUCH:.0f} lost, %",
        "kept % [95 %]",
    ]
    names += [f"against {part.reference} [95 %]"] if part.reference else []
    names.append("recordings alike")
    lines = [
        f"Window {part.window:,}, {part.stratum}: {part.replies} replies of {part.recordings} recordings",
        "",
        _line(names),
        _line(["---"] * len(names)),
    ]
    lines += [_line(_cells(row, has_reference=bool(part.reference))) for row in part.rows]
    return "\n".join(lines)


def _cells(row: Row, *, has_reference: bool) -> list[str]:
    cells = [
        row.engine,
        str(row.replies),
        f"{row.window_tokens:.0f}",
        f"{row.lost:.1f}",
        f"{row.median_lost:.1f}",
        f"{row.much_lost:.0f}",
        f"{row.kept.value:.1f} [{row.kept.low:.1f}, {row.kept.high:.1f}]"
        if row.window
        else f"{row.kept.value:.0f}",
    ]
    if has_reference:
        of = row.against
        cells.append(f"{of.value:+.1f} [{of.low:+.1f}, {of.high:+.1f}]" if of else "")
    return [*cells, f"{row.recordings_alike:.1f}" if row.window else ""]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
