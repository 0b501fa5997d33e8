"""Counts who writes the summaries: every preset, window, model and growth, with a summariser of a given speed.

.venv/bin/python scripts/fold_matrix.py                          all presets, windows of 4k to 128k, 0 to 20 turns
.venv/bin/python scripts/fold_matrix.py --turns 2 --windows 8000 one speed, one window

A turn is a question and its answer. The summariser answers after so many turns, or at once if a call waits for it.
For each preset and speed it prints the compactions by their author, the digests that a model's summary replaced
or that the next compaction built upon, and the paid summaries that were discarded.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import Any

import refold
from refold.core.presets import PRESETS

MODELS = ("gpt-4o", "claude-sonnet-4-5", "an-unknown-model")
WINDOWS = (4_000, 8_000, 16_000, 32_000, 128_000)
GROWTHS = {"slow": 40, "fast": 8}
"""Turns that fill the window once."""
FOLDS = 4


class TurnWriter:
    """A summariser that answers after a number of turns, or at once if the conversation stands still."""

    def __init__(self, turns: int) -> None:
        self.turns, self.turn, self.asked = turns, 0, 0

    async def __call__(self, messages: Sequence[dict[str, Any]], *, previous: str, max_tokens: int) -> str:
        del previous, max_tokens
        self.asked += 1
        ready, still = self.turn + self.turns, 0
        while self.turn < ready and still < 50:  # turns pass without an event
            before = self.turn
            await asyncio.sleep(0.002)
            still = still + 1 if self.turn == before else 0
        said = [str(one["content"])[:60] for one in messages if one["role"] == "user"]
        return "The user asks about crates.\n" + "\n".join(said[:10])


async def play(preset: str, model: str, window: int, growth: int, turns: int) -> Counter[str]:
    """Talk until the conversation was folded `FOLDS` times, and count."""
    events: list[refold.Event] = []
    writer = TurnWriter(turns)
    settings: dict[str, Any] = {"preset": preset, "window": window, "summariser": writer}
    words = max(4, window // growth // 12)
    async with refold.Conversation(model, on_event=events.append, **settings) as chat:
        for number in range(growth * FOLDS * 3):
            writer.turn += 1
            await chat.add(f"Where is crate {number}? " + "It was blue. " * words)
            await chat.context()
            await chat.add(
                {
                    "role": "assistant",
                    "content": f"Crate {number}: hall {number % 7}. " + "It is big. " * words,
                }
            )
            await asyncio.sleep(0.001)
            if sum(isinstance(one, refold.CompactionEnd) for one in events) >= FOLDS:
                break
        writer.turn += 1_000
        await chat.ready()
        await chat.add("And now?")
        await chat.context()
    ends = [one for one in events if isinstance(one, refold.CompactionEnd) and one.outcome == "installed"]
    counts = Counter(one.author for one in ends)
    counts["switched"] = sum(isinstance(one, refold.SummarySwitched) for one in events)
    counts["discarded"] = sum(isinstance(one, refold.SummaryDiscarded) for one in events)
    counts["asked"], counts["folds"] = writer.asked, len(ends)
    return counts


async def main(presets: Sequence[str], windows: Sequence[int], speeds: Sequence[int]) -> None:
    logging.getLogger("refold").setLevel(logging.ERROR)
    print(
        f"{'preset':10} {'turns':>5} {'asked':>6} {'folds':>6} {'model':>6} {'digest':>7} {'mech.':>6} {'switched':>9} {'discarded':>10}"
    )
    for preset, turns in product(presets, speeds):
        total = Counter[str]()
        for model, window, growth in product(MODELS, windows, GROWTHS.values()):
            total += await play(preset, model, window, growth, turns)
        cells = [
            total[name]
            for name in ("asked", "folds", "model", "digest", "mechanical", "switched", "discarded")
        ]
        print("{:10} {:5} {:6} {:6} {:6} {:7} {:6} {:9} {:10}".format(preset, turns, *cells), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--presets", nargs="+", default=list(PRESETS), choices=list(PRESETS))
    parser.add_argument("--windows", nargs="+", type=int, default=list(WINDOWS))
    parser.add_argument("--turns", nargs="+", type=int, default=[0, 2, 5, 20])
    chosen = parser.parse_args()
    asyncio.run(main(chosen.presets, chosen.windows, chosen.turns))
