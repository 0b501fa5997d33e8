"""The numbers behind the pictures, packed into the page.

One idea: a page that holds every call of every recording under every candidate must be small enough to be sent by mail.
Columns of small whole numbers shrink to a fraction when they are compressed, and every browser can undo that by itself.
Names of recordings and the reasons of a candidate are all the text there is.
"""

from __future__ import annotations

import base64
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from refold.replay.report.series import Kinds, frame_tokens, series
from refold.replay.score import Score, Share
from refold.replay.table import MIN_DEMANDS, Cell

MAX_CALLS = 90_000
"""Calls that are drawn over time, those of the longest recordings first: at two bytes each the page stays below 300 KB."""


def packed(cells: Sequence[Cell], tariff: str) -> str:
    """Everything that the script of the page draws, as text."""
    plain = msgspec.json.encode(columns(cells, tariff))
    return base64.b64encode(zlib.compress(plain, 9)).decode()


def columns(cells: Sequence[Cell], tariff: str) -> dict[str, object]:
    rows = [(cell, score) for cell in cells for score in cell.scores]
    scores = [score for _, score in rows]
    names = [name for cell in cells for name in _names(cell.scores)]
    recordings = dict(zip(names, scores, strict=True))
    windows = list(dict.fromkeys(cell.window for cell in cells))
    candidates = list(dict.fromkeys(cell.candidate for cell in cells))
    shown, kinds = _longest(scores), Kinds()
    places = {name: at for at, name in enumerate(recordings)}
    return {
        "tariff": tariff,
        "windows": windows,
        "candidates": candidates,
        "recordings": list(recordings),
        "added": [[one.added for one in score.sent] for score in recordings.values()],
        "frame": [frame_tokens(score.sent) for score in recordings.values()],
        "recording": [places[name] for name in names],
        "window": [windows.index(cell.window) for cell, _ in rows],
        "candidate": [candidates.index(cell.candidate) for cell, _ in rows],
        **_numbers(scores, tariff),
        "series": [series(score.sent, kinds) if at in shown else None for at, score in enumerate(scores)],
        "kinds": list(kinds),
    }


def _names(scores: Sequence[Score]) -> Iterator[tuple[str, str]]:
    """A name for each recording, and where it comes from; of two with one name the second is numbered."""
    seen: Counter[tuple[str, str]] = Counter()
    for score in scores:
        name = score.recording, score.source
        seen[name] += 1
        yield (f"{score.recording} ({seen[name]})", score.source) if seen[name] > 1 else name


def _numbers(scores: Sequence[Score], tariff: str) -> dict[str, object]:
    """One column for each thing that is known of a recording under a candidate."""
    bills = [score.bills.get(tariff) for score in scores]
    caches = [Share(bill.cached_tokens, bill.prompt_tokens) if bill else Share() for bill in bills]
    return {
        "calls": [score.calls for score in scores],
        "demands": [score.old.whole for score in scores],
        "old": [_percent(score.old) for score in scores],
        "bound": [_percent(score.bound) for score in scores],
        "dollars": [round(bill.dollars, 4) if bill else None for bill in bills],
        "cache": [_percent(cache, 1) for cache in caches],
        "rewrites": [score.rewrites for score in scores],
        "compactions": [score.compactions for score in scores],
        "unsound": [score.calls - min(score.valid, score.fits) for score in scores],
        **_written(scores),
    }


def _written(scores: Sequence[Score]) -> dict[str, object]:
    """What a model's summaries cost, and how many it failed at; nothing where no model wrote any."""
    found = [score.writing for score in scores]
    if not any(found):
        return {}
    paid = [one.dollars if one else None for one in found]
    return {
        "paid": [None if dollars is None else round(dollars, 6) for dollars in paid],
        "failed": [one.failed if one else None for one in found],
    }


def _percent(share: Share, least: int = MIN_DEMANDS) -> float | None:
    """A share of next to nothing says nothing."""
    return round(100 * share.part / share.whole, 1) if share.whole >= least else None


def _longest(scores: Sequence[Score]) -> frozenset[int]:
    """The places of the scores that are drawn over time."""
    left, shown = MAX_CALLS, []
    for at in sorted(range(len(scores)), key=lambda at: -scores[at].calls):
        if scores[at].calls <= left:
            left -= scores[at].calls
            shown.append(at)
    return frozenset(shown)
