"""The table of a replay: one row for each candidate and window.

Every recording has the same weight: a row is the mean over recordings, not over calls, so that one very long
session does not dominate; money, calls and validity are totals. A recording with fewer than five demands is
left out of the mean of recall.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from textwrap import wrap
from typing import TypeAlias
from unicodedata import east_asian_width

import msgspec
from msgspec import Struct

from refold.model.tokens import Prices
from refold.replay.candidate import WHOLE_WINDOW, ReplayBudget, WritingCost
from refold.replay.cost import CallBill
from refold.replay.facts import CounterChoice
from refold.replay.score import Ratio, Score, sum_writing

MIN_DEMANDS = 5
FORMAT = 1
"""Incremented when a key of the document changes its meaning or is removed."""


class Cell(Struct, frozen=True):
    """The scores of one candidate in one window, recording by recording."""

    candidate: str
    window: int
    scores: tuple[Score, ...]


class ReplayRow(Struct, frozen=True):
    """The means of a cell. Shares are percentages; None if nothing could be measured."""

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
    lines_near: float | None
    lines_old: float | None
    phrases_near: float | None
    phrases_old: float | None
    made_up: float | None
    rules: float | None
    dollars: dict[str, float]
    cache_hit: dict[str, float | None]
    rewrites_per_100: float | None
    compactions: int
    latency_ms: dict[str, float | None]
    """To prepare a context (`p50`, `p95`), and to add a message (`add_p95`)."""
    demands: dict[str, int]
    """Literals that replies needed, by their age."""
    repeats: dict[str, int]
    """Lines and phrases that replies repeated, by their age."""
    problems: dict[str, int]
    summaries: WritingCost | None = None
    """The cost of summaries written by a model; its dollars are part of `dollars`."""


class Spending(Struct, frozen=True):
    """The calls of one summariser in this run. Summaries that an earlier run paid for come from the cache,
    and cost nothing.
    """

    summariser: str
    """The word from the command line."""
    model: str
    prices: Prices | None
    """Dollars per million tokens; None if they are not known."""
    priced_as: str
    """The entry of the catalogue with the prices."""
    calls: int = 0
    spent: float | None = 0.0
    written: int = 0
    found: int = 0
    """Summaries from the cache: paid for by an earlier run, or for a recording that begins alike."""
    failures: dict[str, int] = {}
    """The reasons for missing summaries, with their counts."""
    is_estimated: bool = False
    """True if tokens were counted here, because the provider did not report them."""

    @property
    def failed(self) -> int:
        return sum(self.failures.values())


class Table(Struct, frozen=True):
    counting: str
    """The counter of the tokens; a window of another counter is another window."""
    tariffs: tuple[str, ...]
    rows: tuple[ReplayRow, ...]
    format: int = FORMAT
    summarisers: tuple[Spending, ...] = ()
    stopped: str = ""
    """The reason if not all recordings are included."""
    output: int | None = 0
    """Tokens of every window that are kept free for the reply; None for the default of a conversation."""
    reserve: int | None = 0
    """Tokens that are never filled; None for each preset's own."""


def tabulate(
    cells: Iterable[Cell],
    counting: CounterChoice,
    summarisers: Sequence[Spending] = (),
    stopped: str = "",
    budget: ReplayBudget = WHOLE_WINDOW,
) -> Table:
    rows = tuple(summarise(cell) for cell in cells)
    tariffs = next((tuple(row.dollars) for row in rows if row.dollars), ())
    return Table(
        counting.name,
        tariffs,
        rows,
        summarisers=tuple(summarisers),
        stopped=stopped,
        output=budget.output,
        reserve=budget.reserve,
    )


def document(table: Table) -> dict[str, object]:
    """The table as plain values for JSON."""
    return msgspec.json.decode(msgspec.json.encode(table), type=dict[str, object])


def summarise(cell: Cell) -> ReplayRow:
    scores = cell.scores
    calls = sum(score.calls for score in scores)
    return ReplayRow(
        candidate=cell.candidate,
        window=cell.window,
        recordings=len(scores),
        calls=calls,
        valid=_percent(Ratio(sum(score.valid for score in scores), calls)),
        fits=_percent(Ratio(sum(score.fits for score in scores), calls)),
        fill=_mean(100 * score.fill / score.calls for score in scores if score.calls),
        fur=_recall(score.all for score in scores),
        fur_near=_recall(score.bands["near"] for score in scores),
        fur_mid=_recall(score.bands["mid"] for score in scores),
        fur_far=_recall(score.bands["far"] for score in scores),
        fur_old=_recall(score.old for score in scores),
        fur_old_second=_recall(score.old_second for score in scores),
        bound=_recall(score.bound for score in scores),
        with_recall=_with_recall(scores),
        lines_near=_recall(score.lines.near for score in scores),
        lines_old=_recall(score.lines.old for score in scores),
        phrases_near=_recall(score.phrases.near for score in scores),
        phrases_old=_recall(score.phrases.old for score in scores),
        made_up=_percent(sum((score.made_up for score in scores), start=Ratio())),
        rules=_mean(_percent(score.rules) for score in scores),
        dollars={name: bill.dollars for name, bill in _bills(scores).items()},
        cache_hit=_cache_hit(scores),
        rewrites_per_100=_percent(Ratio(sum(score.rewrites for score in scores), calls)),
        compactions=sum(score.compactions for score in scores),
        latency_ms=_latency(scores),
        demands={band: sum(score.bands[band].whole for score in scores) for band in ("near", "mid", "far")},
        repeats={
            "lines_near": sum(score.lines.near.whole for score in scores),
            "lines_old": sum(score.lines.old.whole for score in scores),
            "phrases_near": sum(score.phrases.near.whole for score in scores),
            "phrases_old": sum(score.phrases.old.whole for score in scores),
        },
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
    return {name: _percent(Ratio(bill.cached_tokens, bill.prompt_tokens)) for name, bill in bills}


def _bills(scores: Sequence[Score]) -> dict[str, CallBill]:
    names = scores[0].bills if scores else ()
    return {name: sum((score.bills[name] for score in scores), start=CallBill()) for name in names}


def _with_recall(scores: Sequence[Score]) -> float | None:
    able = [(score.all, score.recalled) for score in scores if score.recalled is not None]
    return _recall(Ratio(kept.part + recalled, kept.whole) for kept, recalled in able)


def _recall(shares: Iterable[Ratio]) -> float | None:
    return _mean(_percent(share) for share in shares if share.whole >= MIN_DEMANDS)


def _percent(share: Ratio) -> float | None:
    return 100 * share.part / share.whole if share.whole else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    return ordered[int(len(ordered) * share)] if ordered else None


# The table as plain text, for a screen of 80 columns: two tables for each window, and a legend

WIDTH = 80
_Column: TypeAlias = tuple[str, int, Callable[[ReplayRow], str]]


def percent(value: float | None) -> str:
    if value is None:
        return "-"
    if 99.95 <= value < 100:
        return "99.9"
    if 0 < value < 0.05:
        return "<0.1"
    return "100" if value == 100 else f"{value:.1f}"


def milliseconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _dollars(row: ReplayRow) -> str:
    return f"{next(iter(row.dollars.values())):,.2f}" if row.dollars else "-"


def _summary_dollars(row: ReplayRow) -> str:
    if row.summaries is None:
        return "-"
    if (paid := row.summaries.dollars) is None:
        return "?"
    return f"{paid:,.4f}" if paid < 10 else f"{paid:,.2f}"


_RECALL: tuple[_Column, ...] = (
    ("near", 5, lambda row: percent(row.fur_near)),
    ("mid", 5, lambda row: percent(row.fur_mid)),
    ("far", 5, lambda row: percent(row.fur_far)),
    ("old", 5, lambda row: percent(row.fur_old)),
    ("2nd", 5, lambda row: percent(row.fur_old_second)),
    ("bound", 6, lambda row: percent(row.bound)),
    ("+rec", 5, lambda row: percent(row.with_recall)),
)
_LINES: tuple[_Column, ...] = (
    ("near", 6, lambda row: percent(row.lines_near)),
    ("old", 5, lambda row: percent(row.lines_old)),
)
_PHRASES: tuple[_Column, ...] = (
    ("near", 6, lambda row: percent(row.phrases_near)),
    ("old", 5, lambda row: percent(row.phrases_old)),
)
_GROUPS = (("future-use recall, %", _RECALL), ("lines", _LINES), ("phrases", _PHRASES))
_HELD = (*_RECALL, *_LINES, *_PHRASES)
_COSTS: tuple[_Column, ...] = (
    ("valid", 6, lambda row: percent(row.valid)),
    ("fits", 5, lambda row: percent(row.fits)),
    ("made", 5, lambda row: percent(row.made_up)),
    ("rules", 6, lambda row: percent(row.rules)),
    ("rewr", 5, lambda row: percent(row.rewrites_per_100)),
    ("p50", 5, lambda row: milliseconds(row.latency_ms["p50"])),
    ("p95", 5, lambda row: milliseconds(row.latency_ms["p95"])),
    ("$", 7, _dollars),
)
_SUMMARIES: tuple[_Column, ...] = (
    ("sum $", 8, _summary_dollars),
    ("fail", 6, lambda row: f"{row.summaries.failed:,}" if row.summaries else "-"),
)


_LEGEND = """\
near, mid, far: of the literals (paths, ids, numbers, names) that a reply took
  from earlier messages, the share that its context held, by distance: below
  a quarter of the window, below a window, more; "demands" counts them
old: mid and far together, the headline; 2nd: old by another way to find
  literals; bound: held together with two of the words around it; +rec: held,
  or found by one search (recall)
lines, phrases: of the whole lines, and of the runs of five words, that a
  reply repeated, those that its context held, %
valid, fits: calls that keep the rules of the provider, and that fit into the
  window, %
made: literals in summaries that were in no message, %
rules: the user's rules held word for word, %
rewr: calls per 100 whose context does not extend the one before
p50, p95: milliseconds to prepare a context
-: not measured, or fewer than 5 cases in each recording"""
_SUMMARY_LEGEND = """\
sum $: what writing the summaries cost, part of $
fail: summaries that the model failed to write; a digest stands in
ms are without the time that a model takes: in a conversation its summary is
  asked for ahead"""


def render(table: Table) -> str:
    """The whole table, window by window."""
    lines: list[str] = []
    for window in dict.fromkeys(row.window for row in table.rows):
        rows = [row for row in table.rows if row.window == window]
        lines += [*_section(rows, table), ""]
    return "\n".join([*lines, *_notes(table)]) + "\n"


def _section(rows: list[ReplayRow], table: Table) -> Iterator[str]:
    first = max(rows, key=lambda row: row.recordings)
    demands = ", ".join(f"{count:,} {band}" for band, count in first.demands.items())
    recordings = f"{first.recordings:,} recording{'' if first.recordings == 1 else 's'}"
    yield f"window {first.window:,}: {recordings}, {first.calls:,} calls; demands: {demands}"
    lines, phrases = first.repeats["lines_old"], first.repeats["phrases_old"]
    yield (
        f"lines: {first.repeats['lines_near']:,} near, {lines:,} old; "
        f"phrases: {first.repeats['phrases_near']:,} near, {phrases:,} old"
    )
    if not first.recordings:
        yield "no recording was finished" if table.stopped else "no recording is longer than this window"
        return
    held, costs = _fitted(_HELD, rows), _fitted((*_COSTS, *(_SUMMARIES if table.summarisers else ())), rows)
    # The names have the same room in both tables.
    room = WIDTH - max(sum(width for _, width, _ in columns) for columns in (held, costs))
    yield _group(held, room)
    yield from _lines(rows, held, room)
    yield ""
    yield from _lines(rows, costs, room)


def _fitted(columns: tuple[_Column, ...], rows: Sequence[ReplayRow]) -> tuple[_Column, ...]:
    """Columns that are wide enough for their longest cell and a space."""
    return tuple(
        (head, max(width, *(len(show(row)) + 1 for row in rows)), show) for head, width, show in columns
    )


def _group(columns: tuple[_Column, ...], room: int) -> str:
    """The line above the column heads that names the groups of columns."""
    widths = iter([width for _, width, _ in columns])
    groups = [(title, sum(next(widths) for _ in own)) for title, own in _GROUPS]
    return " " * room + "".join(" " + f" {title} ".center(width - 1, "-") for title, width in groups)


def _lines(rows: Sequence[ReplayRow], columns: tuple[_Column, ...], room: int) -> Iterator[str]:
    """The heads and the rows. A name that is longer than its column has a line of its own: cut names may look alike."""
    yield f"{'candidate':<{room}}" + "".join(f"{head:>{width}}" for head, width, _ in columns)
    for row in rows:
        numbers = "".join(f"{show(row):>{width}}" for _, width, show in columns)
        name = row.candidate
        if (size := _screen_width(name)) > room:
            yield _cut(name)
            yield " " * room + numbers
        else:
            yield name + " " * (room - size) + numbers


def _screen_width(text: str) -> int:
    """Columns of the screen: a Chinese or Japanese character takes two."""
    return sum(1 + (east_asian_width(character) in "WF") for character in text)


def _cut(name: str) -> str:
    """A name of at most one line."""
    if _screen_width(name) <= WIDTH:
        return name
    while _screen_width(name) > WIDTH - 1:
        name = name[:-1]
    return f"{name}…"


def _notes(table: Table) -> Iterator[str]:
    yield _LEGEND
    if table.summarisers:
        yield _SUMMARY_LEGEND
    yield from _wrapped(f"tokens: {table.counting}")
    yield from _wrapped(f"kept free in every window: {kept_free(table)}")
    if table.tariffs:
        yield from _wrapped(
            f"$: by the tariff {table.tariffs[0]}, all calls together; one number alone says nothing: amnesia is cheap"
        )
    yield "means over recordings; valid, fits, made, $ and rewr over calls"
    for one in table.summarisers:
        yield from _wrapped(f"{one.model}: {spending(one)}")
    if table.stopped:
        yield from _wrapped(f"stopped: {table.stopped}")


def _wrapped(text: str) -> list[str]:
    return wrap(text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def kept_free(table: Table) -> str:
    """The part of every window that messages do not get."""
    output = "an eighth, at most 4,096, for the reply" if table.output is None else f"output {table.output:,}"
    reserve = "each preset's own reserve" if table.reserve is None else f"reserve {table.reserve:,}"
    return f"{output}, and {reserve}; tools take nothing of it"


def spending(one: Spending) -> str:
    """The calls and the cost of a summariser in this run."""
    spent = "" if one.spent is None else f", ${one.spent:,.4f} spent now"
    counts = (
        f"{one.calls:,} calls{spent}; {one.written:,} summaries written, {one.found:,} were paid for before"
    )
    why = ", ".join(f"{kind} {count:,}" for kind, count in one.failures.items())
    failed = f", {one.failed:,} failed ({why})" if one.failed else ""
    estimated = "; tokens are estimated, since the provider does not say" if one.is_estimated else ""
    return f"{counts}{failed}; {priced(one)}{estimated}"


def priced(one: Spending) -> str:
    if one.prices is None:
        return "its price is not known, so what it cost is not in $"
    if not (one.prices.input or one.prices.output):
        return "free"
    return (
        f"prices of {one.priced_as}: ${one.prices.input:g} in, ${one.prices.output:g} out per million tokens"
    )
