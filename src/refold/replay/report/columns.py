"""The columns of the page's own table: a head, what it means, and what a row says there.

One idea: whoever reads a number can read what it means, by pointing at the head or below the table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from refold.replay.candidate import Writing
from refold.replay.render import milliseconds, percent
from refold.replay.table import Row

Column: TypeAlias = tuple[str, str, Callable[[Row], str]]

_RECALL: tuple[Column, ...] = (
    (
        "recall",
        "the share of old facts, names and numbers that a reply needed and its context held, %",
        lambda row: percent(row.fur_old),
    ),
    (
        "bound",
        "the share of them held with at least two of the words around them, %",
        lambda row: percent(row.bound),
    ),
    (
        "+ search",
        "the share of all facts, old and new, held or found by one search, %",
        lambda row: percent(row.with_recall),
    ),
    ("rules", "rules of the user, kept letter for letter, %", lambda row: percent(row.rules)),
    ("made up", "literals that nobody ever said, %", lambda row: percent(row.made_up)),
)
_BY_MODEL: tuple[Column, ...] = (
    (
        "summaries $",
        "part of $: what a model was paid for writing summaries; ? where its price is not known",
        lambda row: _paid(row.summaries),
    ),
    (
        "failed",
        "summaries that the model could not write well enough, of those asked for; a digest served instead",
        lambda row: f"{row.summaries.failed:,} of {row.summaries.asked:,}" if row.summaries else "–",
    ),
)
_CHANGES: tuple[Column, ...] = (
    (
        "rewrites",
        "calls per 100 that do not extend the one before",
        lambda row: percent(row.rewrites_per_100),
    ),
    ("compactions", "rewrites that made the context smaller", lambda row: f"{row.compactions:,}"),
    (
        "p95 ms",
        "milliseconds to prepare a context, of 95 in 100 at most; without the wait for a model",
        lambda row: milliseconds(row.latency_ms["p95"]),
    ),
    ("valid", "contexts that a provider would take, %", lambda row: percent(row.valid)),
    ("fits", "contexts within the window, %", lambda row: percent(row.fits)),
)


def columns(tariff: str, *, by_model: bool) -> tuple[Column, ...]:
    """All of them, with those about a model's summaries where one wrote any."""
    money: Column = (
        "$",
        "what all calls together would have cost",
        lambda row: _money(row.dollars.get(tariff)),
    )
    cache: Column = (
        "cache hits",
        "tokens read from the prompt cache, %",
        lambda row: percent(row.cache_hit.get(tariff)),
    )
    return (*_RECALL, money, *(_BY_MODEL if by_model else ()), cache, *_CHANGES)


def _money(dollars: float | None) -> str:
    return "-" if dollars is None else f"{dollars:,.2f}"


def _paid(writing: Writing | None) -> str:
    if writing is None:
        return "–"
    return "?" if writing.dollars is None else f"{writing.dollars:,.4f}"
