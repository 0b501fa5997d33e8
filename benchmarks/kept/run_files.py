"""The two files of a run: `contexts.npz` and `results_*.npz`. A run is a folder with them.

contexts.npz     tokens, offsets  the token ids of all segments, one after the other, and where each begins
                 header           the ids of the beginning of a reply, which follow every context
                 meta             JSON: the points, each with its reply and its contexts as segment numbers
results_*.npz    lp, rank         for every token of a reply its log-probability and its rank (0: the likeliest)
                 index            JSON: the point, the context and the number of tokens, in the same order

A context is named `ENGINE@WINDOW`, or `full`, or `lower`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
CONTEXTS, RESULTS = "contexts.npz", "results_*.npz"


class RenderedPoint(NamedTuple):
    """A point whose contexts are lists of segment numbers."""

    id: str
    recording: str
    source: str
    stratum: str
    target: list[int]
    """The first tokens of the recorded reply."""
    ctx: dict[str, list[int]]
    sizes: dict[str, int]
    """Window tokens of each context."""


class Contexts(NamedTuple):
    points: list[RenderedPoint]
    segments: list[Ids]
    header: Ids

    def ids(self, point: RenderedPoint, context: str) -> Ids:
        return np.concatenate([*(self.segments[at] for at in point.ctx[context]), self.header])

    def length(self, point: RenderedPoint, context: str) -> int:
        """Tokens that the model reads for a context and the reply after it."""
        return sum(len(self.segments[at]) for at in point.ctx[context]) + len(self.header) + len(point.target)


class Scored(NamedTuple):
    """What the model found for one reply after one context."""

    lp: npt.NDArray[np.float32]
    rank: npt.NDArray[np.uint8]


Results = dict[tuple[str, str], Scored]
"""By point and context."""


def write_contexts(folder: Path, contexts: Contexts) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    sizes = [len(segment) for segment in contexts.segments]
    np.savez_compressed(
        folder / CONTEXTS,
        tokens=np.concatenate(contexts.segments) if contexts.segments else np.zeros(0, np.int32),
        offsets=np.cumsum([0, *sizes]).astype(np.int64),
        header=contexts.header,
        meta=_as_bytes([point._asdict() for point in contexts.points]),
    )
    return folder / CONTEXTS


def read_contexts(folder: Path) -> Contexts:
    with np.load(folder / CONTEXTS) as file:
        tokens, offsets, header = file["tokens"], file["offsets"], file["header"]
        meta = json.loads(file["meta"].tobytes())
    points = [RenderedPoint(**point) for point in meta]
    return Contexts(points, np.split(tokens, offsets[1:-1]), header)


def point_ids(file: Path) -> list[str]:
    """The points of a contexts.npz, in their order."""
    with np.load(file) as found:
        return [point["id"] for point in json.loads(found["meta"].tobytes())]


def write_results(file: Path, results: Mapping[tuple[str, str], Scored]) -> None:
    index = [{"id": point, "ctx": name, "n": len(found.lp)} for (point, name), found in results.items()]
    unfinished = file.with_suffix(".tmp.npz")
    np.savez_compressed(
        unfinished,
        lp=np.concatenate([found.lp for found in results.values()]),
        rank=np.concatenate([found.rank for found in results.values()]),
        index=_as_bytes(index),
    )
    unfinished.replace(file)


def read_results(folders: Iterable[Path]) -> Results:
    found: Results = {}
    for folder in folders:
        for path in sorted(folder.glob(RESULTS)):
            with np.load(path) as file:
                lp, rank, index = file["lp"], file["rank"], json.loads(file["index"].tobytes())
            start = 0
            for entry in index:
                end = start + entry["n"]
                found[entry["id"], entry["ctx"]] = Scored(lp[start:end], rank[start:end])
                start = end
    return found


def next_results(folder: Path) -> Path:
    """A name that no finished results have."""
    return folder / f"results_{len(list(folder.glob(RESULTS))):03d}.npz"


def _as_bytes(value: Any) -> npt.NDArray[np.uint8]:
    return np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)
