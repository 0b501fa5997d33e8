"""The table as plain text, a hundred columns wide, and somewhat more with a model's summaries.

One idea: it can be read in any terminal, pasted into any report and compared line by line. Numbers are never rounded up to a
gate: what is not quite 100 reads 99.9, and what is not quite nothing reads <0.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from refold.replay.table import Row, Spending, Table

WIDTH = 100
_Column: TypeAlias = tuple[str, int, Callable[[Row], str]]


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


def _dollars(row: Row) -> str:
    return f"{next(iter(row.dollars.values())):,.2f}" if row.dollars else "-"


def _summary_dollars(row: Row) -> str:
    if row.summaries is None:
        return "-"
    return "?" if row.summaries.dollars is None else f"{row.summaries.dollars:,.4f}"


_BEFORE: tuple[_Column, ...] = (
    ("valid", 6, lambda row: percent(row.valid)),
    ("fits", 5, lambda row: percent(row.fits)),
)
_RECALL: tuple[_Column, ...] = (
    ("near", 5, lambda row: percent(row.fur_near)),
    ("mid", 5, lambda row: percent(row.fur_mid)),
    ("far", 5, lambda row: percent(row.fur_far)),
    ("old", 5, lambda row: percent(row.fur_old)),
    ("2nd", 5, lambda row: percent(row.fur_old_second)),
    ("bound", 6, lambda row: percent(row.bound)),
    ("+rec", 5, lambda row: percent(row.with_recall)),
)
_AFTER: tuple[_Column, ...] = (
    ("made", 5, lambda row: percent(row.made_up)),
    ("rules", 6, lambda row: percent(row.rules)),
    ("$", 7, _dollars),
    ("rewr", 5, lambda row: percent(row.rewrites_per_100)),
    ("p50", 5, lambda row: milliseconds(row.latency_ms["p50"])),
    ("p95", 5, lambda row: milliseconds(row.latency_ms["p95"])),
)
_COLUMNS = (*_BEFORE, *_RECALL, *_AFTER)
_NAME_WIDTH = WIDTH - sum(width for _, width, _ in _COLUMNS)
_SUMMARIES: tuple[_Column, ...] = (
    ("sum $", 9, _summary_dollars),
    ("fail", 6, lambda row: f"{row.summaries.failed:,}" if row.summaries else "-"),
)
_MOST_NAME = 40
"""A preset's name and a model's."""


_LEGEND = """\
near, mid, far: FUR, the share of the literals a reply needed that its context held, by their age
old: FUR-old = mid + far, the headline; 2nd: FUR-old (2nd), another extractor; bound: with its words
+rec: all demands after one recall; made: literals that never existed; rules: kept letter for letter
rewr: calls per 100 whose context does not extend the one before; p50, p95: ms to prepare a context"""
_SUMMARY_LEGEND = """\
sum $: what writing the summaries cost, part of $; fail: summaries that a digest had to serve for
ms are without the time that a model takes: in a conversation its summary is asked for ahead"""


def render(table: Table) -> str:
    """The whole table, window by window."""
    lines: list[str] = []
    for window in dict.fromkeys(row.window for row in table.rows):
        rows = [row for row in table.rows if row.window == window]
        lines += [*_section(rows, table), ""]
    return "\n".join([*lines, *_notes(table)]) + "\n"


def _section(rows: list[Row], table: Table) -> Iterator[str]:
    first = max(rows, key=lambda row: row.recordings)
    demands = ", ".join(f"{count:,} {band}" for band, count in first.demands.items())
    yield f"window {first.window:,}: {first.recordings:,} recordings, {first.calls:,} calls; demands: {demands}"
    if not first.recordings:
        yield "no recording was finished" if table.stopped else "no recording is longer than this window"
        return
    columns = (*_COLUMNS, *(_SUMMARIES if table.summarisers else ()))
    longest = max(len(row.candidate) for row in table.rows) + 1
    wide = max(_NAME_WIDTH, min(longest, _MOST_NAME)) if table.summarisers else _NAME_WIDTH
    yield _group(wide)
    yield f"{'candidate':<{wide}}" + "".join(f"{head:>{width}}" for head, width, _ in columns)
    for row in rows:
        yield _name(row, wide) + "".join(f"{show(row):>{width}}" for _, width, show in columns)


def _group(wide: int) -> str:
    """The line above the heads: which of them are future-use recall."""
    before = wide + sum(width for _, width, _ in _BEFORE)
    width = sum(width for _, width, _ in _RECALL)
    return " " * (before + 1) + " future-use recall, % ".center(width - 1, "-")


def _name(row: Row, wide: int) -> str:
    name = row.candidate if len(row.candidate) < wide else f"{row.candidate[: wide - 2].rstrip()}…"
    return f"{name:<{wide}}"


def _notes(table: Table) -> Iterator[str]:
    yield _LEGEND
    if table.summarisers:
        yield _SUMMARY_LEGEND
    yield f"tokens: {table.counting}"
    if table.tariffs:
        yield f"$: by the tariff {table.tariffs[0]}, all calls together; one number alone says nothing: amnesia is cheap"
    yield "means over recordings; valid, fits, made, $ and rewr over calls"
    yield from (f"{one.model}: {spending(one)}" for one in table.summarisers)
    if table.stopped:
        yield f"stopped: {table.stopped}"


def spending(one: Spending) -> str:
    """What a summariser has done in this run, and for how much."""
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
