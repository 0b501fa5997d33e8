"""Scores a run with a model: in batches, block by block, so that a run that is cut short keeps what it has."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from benchmarks.kept.run_files import Contexts, Ids, RenderedPoint, Results, Scored, write_results

LONGEST = 32_700
"""Longer sequences are left out: the model reads 32,768 tokens."""
BATCH_TOKENS, BATCH_ROWS = 65_536, 64
BLOCK = 16
"""Points after which the results are written."""
CHECKED = 24
"""Sequences that are scored alone as well as in batches, before a run."""


class Model(Protocol):
    def score(self, sequences: Sequence[tuple[Ids, Ids]]) -> list[Scored]: ...


class Item(NamedTuple):
    length: int
    point: RenderedPoint
    context: str


class BatchCheck(NamedTuple):
    """The same sequences alone and in batches: padding must not be seen."""

    sequences: int
    worst: float
    """The largest difference of a token, in nats."""
    alone: float
    batched: float
    """The sums of all."""


def items(contexts: Contexts, points: Sequence[RenderedPoint], done: Results) -> Iterator[Item]:
    """What is left to score; of equal contexts of a point only the first."""
    for point in points:
        seen: set[tuple[int, ...]] = set()
        for name, segments in point.ctx.items():
            length = contexts.length(point, name)
            if length > LONGEST or tuple(segments) in seen:
                continue
            seen.add(tuple(segments))
            if (point.id, name) not in done:
                yield Item(length, point, name)


def batches(left: Sequence[Item], tokens: int = BATCH_TOKENS, rows: int = BATCH_ROWS) -> Iterator[list[Item]]:
    """Longest first, so that sequences of like lengths are padded together."""
    ordered = sorted(left, key=lambda item: -item.length)
    while ordered:
        size = max(1, min(rows, tokens // ordered[0].length))
        yield ordered[:size]
        ordered = ordered[size:]


def score_items(
    model: Model, contexts: Contexts, left: Sequence[Item], tokens: int = BATCH_TOKENS
) -> Results:
    found: Results = {}
    for batch in batches(left, tokens):
        pairs = [
            (contexts.ids(item.point, item.context), np.array(item.point.target, np.int32)) for item in batch
        ]
        scored = model.score(pairs)
        found.update({(item.point.id, item.context): of for item, of in zip(batch, scored, strict=True)})
    return found


def check_batches(model: Model, contexts: Contexts, longest: int = 12_000) -> BatchCheck | None:
    first = [item for item in items(contexts, contexts.points[:6], {}) if item.length < longest][:CHECKED]
    if not first:
        return None
    alone: Results = {}
    for item in first:
        alone |= score_items(model, contexts, [item])
    batched = score_items(model, contexts, first)
    return BatchCheck(
        len(first),
        max(float(np.abs(batched[key].lp - of.lp).max()) for key, of in alone.items()),
        sum(float(of.lp.sum()) for of in alone.values()),
        sum(float(of.lp.sum()) for of in batched.values()),
    )


def score_run(
    model: Model,
    contexts: Contexts,
    out: Path,
    done: Results,
    *,
    seconds: float,
    tokens: int = BATCH_TOKENS,
    say: Callable[[str], None] = print,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Write the results of what is not done yet; false if the time was up before the end."""
    began, read, found = clock(), 0, Results()
    for start in range(0, len(contexts.points), BLOCK):
        block = contexts.points[start : start + BLOCK]
        left = list(items(contexts, block, done))
        if left and clock() - began > seconds:
            say(f"time is up before point {start}: run the same command again, with these results in the run")
            return False
        found |= score_items(model, contexts, left, tokens)
        read += sum(item.length for item in left)
        copied = _equal(block, {**done, **found})
        found |= copied
        if left or copied:
            write_results(out, found)
        if left:
            took = clock() - began
            say(
                f"{start + len(block)} of {len(contexts.points)} points, {read / 1e6:.2f} M tokens, {took:.0f} s, "
                f"{took / read * 1e6:.1f} µs a token"
            )
    return True


def _equal(points: Sequence[RenderedPoint], known: Results) -> Results:
    """The results of contexts that equal a scored one of their point."""
    found: Results = {}
    for point in points:
        of_segments = {
            tuple(segments): known[point.id, name]
            for name, segments in point.ctx.items()
            if (point.id, name) in known
        }
        for name, segments in point.ctx.items():
            if (point.id, name) not in known and tuple(segments) in of_segments:
                found[point.id, name] = of_segments[tuple(segments)]
    return found
