"""The table of a replay: one row for each candidate and window.

One idea: every recording weighs the same. A row is the mean over recordings, not over calls, so one endless session does
not speak for all; money, calls and validity are totals. A recording with fewer than five demands says nothing about recall
and does not enter that mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from refold.core.cost import Prices
from refold.replay.billing import Bill
from refold.replay.candidate import Writing
from refold.replay.counting import Counting
from refold.replay.score import Score, Share, sum_writing

MIN_DEMANDS = 5
FORMAT = 1
"""Raised when a key of the document changes its meaning or goes."""


class Cell(Struct, frozen=True):
    """What one candidate did in one window, recording by recording."""

    candidate: str
    window: int
    scores: tuple[Score, ...]


class Row(Struct, frozen=True):
    """The means of a cell. Shares are percentages; None where nothing could be measured."""

    candidate: str
    window: int
    recordings: int
    calls: int
    valid: float | None
    fits: float | None
    fill: float | None
    fur: float | None
    fur_near: float | None
    fur_mid: float | None
    fur_far: float | None
    fur_old: float | None
    fur_old_second: float | None
    bound: float | None
    with_recall: float | None
    made_up: float | None
    rules: float | None
    dollars: dict[str, float]
    cache_hit: dict[str, float | None]
    rewrites_per_100: float | None
    compactions: int
    latency_ms: dict[str, float | None]
    """To prepare a context (`p50`, `p95`), and to take in a message (`add_p95`)."""
    demands: dict[str, int]
    problems: dict[str, int]
    summaries: Writing | None = None
    """What having summaries written by a model took; its dollars are part of `dollars`."""


class Spending(Struct, frozen=True):
    """What one summariser did in this run. What an earlier run has paid for is found again, and costs nothing."""

    summariser: str
    """As it was asked for."""
    model: str
    prices: Prices | None
    """Dollars per million tokens; None where they are not known."""
    priced_as: str
    """The entry of the catalogue that the prices are from."""
    calls: int = 0
    spent: float | None = 0.0
    written: int = 0
    found: int = 0
    """Summaries that were paid for before: by an earlier run, or for a recording that begins alike."""
    failures: dict[str, int] = {}
    """Why summaries could not be had, and how often."""
    is_estimated: bool = False
    """Were tokens counted here, since the provider did not say?"""

    @property
    def failed(self) -> int:
        return sum(self.failures.values())


class Table(Struct, frozen=True):
    counting: str
    """How tokens were counted; a window of another counting is another window."""
    tariffs: tuple[str, ...]
    rows: tuple[Row, ...]
    format: int = FORMAT
    summarisers: tuple[Spending, ...] = ()
    stopped: str = ""
    """Why not all recordings are in it, where it is so."""


def tabulate(
    cells: Iterable[Cell], counting: Counting, summarisers: Sequence[Spending] = (), stopped: str = ""
) -> Table:
    rows = tuple(summarise(cell) for cell in cells)
    tariffs = next((tuple(row.dollars) for row in rows if row.dollars), ())
    return Table(counting.name, tariffs, rows, summarisers=tuple(summarisers), stopped=stopped)


def document(table: Table) -> dict[str, object]:
    """The table as plain values for JSON."""
    return msgspec.json.decode(msgspec.json.encode(table), type=dict[str, object])


def summarise(cell: Cell) -> Row:
    scores = cell.scores
    calls = sum(score.calls for score in scores)
    return Row(
        candidate=cell.candidate,
        window=cell.window,
        recordings=len(scores),
        calls=calls,
        valid=_percent(Share(sum(score.valid for score in scores), calls)),
        fits=_percent(Share(sum(score.fits for score in scores), calls)),
        fill=_mean(100 * score.fill / score.calls for score in scores if score.calls),
        fur=_recall(score.all for score in scores),
        fur_near=_recall(score.bands["near"] for score in scores),
        fur_mid=_recall(score.bands["mid"] for score in scores),
        fur_far=_recall(score.bands["far"] for score in scores),
        fur_old=_recall(score.old for score in scores),
        fur_old_second=_recall(score.old_second for score in scores),
        bound=_recall(score.bound for score in scores),
        with_recall=_with_recall(scores),
        made_up=_percent(sum((score.made_up for score in scores), start=Share())),
        rules=_mean(_percent(score.rules) for score in scores),
        dollars={name: bill.dollars for name, bill in _bills(scores).items()},
        cache_hit=_cache_hit(scores),
        rewrites_per_100=_percent(Share(sum(score.rewrites for score in scores), calls)),
        compactions=sum(score.compactions for score in scores),
        latency_ms=_latency(scores),
        demands={band: sum(score.bands[band].whole for score in scores) for band in ("near", "mid", "far")},
        problems=_problems(scores),
        summaries=sum_writing(score.writing for score in scores),
    )


def _problems(scores: Sequence[Score]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for score in scores:
        found.update(score.problems)
    return dict(sorted(found.items()))


def _latency(scores: Sequence[Score]) -> dict[str, float | None]:
    prepare = sorted(ms for score in scores for ms in score.prepare_ms)
    add = sorted(ms for score in scores for ms in score.add_ms)
    return {"p50": _quantile(prepare, 0.50), "p95": _quantile(prepare, 0.95), "add_p95": _quantile(add, 0.95)}


def _cache_hit(scores: Sequence[Score]) -> dict[str, float | None]:
    bills = _bills(scores).items()
    return {name: _percent(Share(bill.cached_tokens, bill.prompt_tokens)) for name, bill in bills}


def _bills(scores: Sequence[Score]) -> dict[str, Bill]:
    names = scores[0].bills if scores else ()
    return {name: sum((score.bills[name] for score in scores), start=Bill()) for name in names}


def _with_recall(scores: Sequence[Score]) -> float | None:
    able = [(score.all, score.recalled) for score in scores if score.recalled is not None]
    return _recall(Share(kept.part + recalled, kept.whole) for kept, recalled in able)


def _recall(shares: Iterable[Share]) -> float | None:
    return _mean(_percent(share) for share in shares if share.whole >= MIN_DEMANDS)


def _percent(share: Share) -> float | None:
    return 100 * share.part / share.whole if share.whole else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    return ordered[int(len(ordered) * share)] if ordered else None
