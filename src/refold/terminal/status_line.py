"""The line at the bottom of the terminal chat: model, context, cost, cache, compactions and queue."""

from __future__ import annotations

from msgspec import Struct

from refold.engine.events import short

BAR = 10
"""Cells of the context's bar."""
GAP = "  "


class ChatFigures(Struct, frozen=True):
    """What the line shows."""

    model: str = ""
    tokens: int = 0
    limit: int = 0
    dollars: float | None = None
    """None if the prices of the model are not known."""
    cache_percent: int = 0
    compactions: int = 0
    queued: int = 0
    activity: str = ""
    """What the person waits for."""


def status_line(figures: ChatFigures, width: int, *, has_blocks: bool = True) -> str:
    """Return the line in so many columns. On a narrow screen the cache is left out first, then the compactions, the
    cost, the bar and the name of the model.
    """
    full, free = ("█", "░") if has_blocks else ("#", ".")
    share = min(1.0, figures.tokens / figures.limit) if figures.limit else 0.0
    cells = round(share * BAR)
    percent = 100 * figures.tokens // max(1, figures.limit)
    parts = {
        "model": figures.model[:40],
        "bar": f"{full * cells}{free * (BAR - cells)}",
        "context": f"{short(figures.tokens)}/{short(figures.limit)} {percent}%",
        "cost": "" if figures.dollars is None else f"${figures.dollars:.4f}",
        "cache": f"cache {figures.cache_percent}%",
        "compactions": f"compactions {figures.compactions}",
        "queue": f"queued {figures.queued}" if figures.queued else "",
        "work": f"{figures.activity}…" if figures.activity else "",
    }
    for left_out in ("cache", "compactions", "cost", "bar", "model"):
        line = GAP.join(filter(None, parts.values()))
        if len(line) <= width:
            return line
        parts[left_out] = ""
    return GAP.join(filter(None, parts.values()))[:width]
