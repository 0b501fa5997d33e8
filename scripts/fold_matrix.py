"""Counts who writes the summaries: every preset, window, model and growth, with a summariser of a given speed.

.venv/bin/python scripts/fold_matrix.py                          all presets, windows of 4k to 128k, 0 to 20 turns
.venv/bin/python scripts/fold_matrix.py --turns 2 --windows 8000 one speed, one window
.venv/bin/python scripts/fold_matrix.py --door gateway           through the gateway, before a scripted provider
.venv/bin/python scripts/fold_matrix.py --windows 128000 --pause 0.5

A turn is a question and its answer. The summariser answers after so many turns, or soon if a call waits for it. Reading 128k tokens
for a summary takes Refold longer than a turn without a model: `--pause` gives each turn some time, as a model would, so that
only the summariser is late.
For each preset and speed it prints the summaries that were written, and the folds by their author: a model, a digest, or a
text without a model (`mech.`: in picoclaw, a compression at the wall). `switched` are the digests and mechanical texts that
the model's summary replaced later, and `model %` is the share of folds with a model's text in the end. `dropped` are
reductions without a summary, `discarded` the paid summaries that an event reported as unused, `silent` those that were
neither used nor reported, and `waits` the folds that a call waited for.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import product
from typing import Any, Protocol

import msgspec

import refold
from refold.config import flag_layer, resolve
from refold.core.presets import PRESETS
from refold.gateway.admin import Admin
from refold.gateway.app import Gateway
from refold.gateway.auth import Rules
from refold.gateway.server import build
from refold.gateway.upstreams import Target, Targets
from refold.stores.memory import MemoryStore
from refold.testing import LateSummaries, Received, ScriptedUpstream

Plain = dict[str, Any]

MODELS = ("gpt-4o", "claude-sonnet-4-5", "an-unknown-model")
WINDOWS = (4_000, 8_000, 16_000, 32_000, 128_000)
GROWTHS = {"slow": 40, "fast": 8}
"""Turns that fill the window once."""
COLUMNS = ("written", "folds", "model", "digest", "mechanical", "switched", "dropped", "discarded", "silent", "waits")  # fmt: skip
QUESTION = re.compile(r"Where is crate \d+\?")


class Talk(Protocol):
    """A conversation behind one of the doors."""

    events: list[Plain]

    async def ask(self, question: str) -> None:
        """Add a question, and make the request that would be sent."""

    async def answer(self, text: str) -> None: ...

    async def settle(self) -> None:
        """Wait until no summary is being written."""


class TurnWriter:
    """A summariser that answers after a number of turns, or at once if the conversation stands still."""

    def __init__(self, turns: int, pause_s: float) -> None:
        self.turns, self.turn = turns, 0
        self.patience = 50 + int(pause_s / 0.002)

    async def __call__(self, messages: Sequence[Plain], *, previous: str, max_tokens: int) -> str:
        del previous, max_tokens
        ready, still = self.turn + self.turns, 0
        while self.turn < ready and still < self.patience:  # turns pass without an event
            before = self.turn
            await asyncio.sleep(0.002)
            still = still + 1 if self.turn == before else 0
        return summary_of("\n".join(str(one["content"])[:60] for one in messages))


def summary_of(text: str) -> str:
    return "The user asks about crates.\n" + "\n".join(QUESTION.findall(text)[:10])


class LibraryTalk:
    def __init__(
        self, chat: refold.Conversation, writer: TurnWriter, events: list[Plain], pause_s: float
    ) -> None:
        self.chat, self.writer, self.events, self.pause_s = chat, writer, events, pause_s

    async def ask(self, question: str) -> None:
        self.writer.turn += 1
        await self.chat.add(question)
        await self.chat.context()

    async def answer(self, text: str) -> None:
        await self.chat.add({"role": "assistant", "content": text})
        await asyncio.sleep(self.pause_s)

    async def settle(self) -> None:
        self.writer.turn += 1_000
        await self.chat.ready()


@asynccontextmanager
async def library(preset: str, model: str, window: int, turns: int, pause_s: float) -> AsyncIterator[Talk]:
    events: list[Plain] = []
    writer = TurnWriter(turns, pause_s)
    settings: Plain = {"preset": preset, "window": window, "summariser": writer}

    def note(event: refold.Event) -> None:
        events.append(msgspec.to_builtins(event))

    async with refold.Conversation(model, on_event=note, **settings) as chat:
        yield LibraryTalk(chat, writer, events, pause_s)


class GatewayTalk:
    """A client that sends its whole history with every request."""

    def __init__(self, gateway: Gateway, model: str, pause_s: float) -> None:
        self.gateway, self.model, self.pause_s = gateway, model, pause_s
        self.app = build(gateway, Admin(gateway, "matrix"), Rules())
        self.history: list[Plain] = []
        self.events: list[Plain] = []
        self._place = 0

    async def ask(self, question: str) -> None:
        self.history.append({"role": "user", "content": question})
        body = json.dumps({"model": self.model, "messages": self.history}).encode()
        parts, told = asyncio.Queue[Any](), []
        parts.put_nowait({"type": "http.request", "body": body, "more_body": False})

        async def note(message: Any) -> None:
            told.append(message)

        await self.app(_SCOPE, parts.get, note)
        if told[0]["status"] != 200:
            raise RuntimeError(f"status {told[0]['status']}: {told[1]['body'][:300]}")
        self._read_events()

    async def answer(self, text: str) -> None:
        self.history.append({"role": "assistant", "content": text})
        await asyncio.sleep(self.pause_s)

    async def settle(self) -> None:
        for live in (await self.gateway.host("local")).table:
            await live.conversation.ready()

    def _read_events(self) -> None:
        news = self.gateway.events.channel("local").since(self._place)
        self._place = news.place
        lines = (line for one in news.lines for line in one.splitlines())
        self.events += [json.loads(line[6:]) for line in lines if line.startswith(b"data: ")]


_SCOPE = {
    "type": "http", "method": "POST", "path": "/v1/chat/completions", "raw_path": b"/v1/chat/completions",
    "query_string": b"", "headers": [(b"host", b"localhost"), (b"x-refold-conversation", b"crates")],
    "client": ("127.0.0.1", 50_000), "server": ("127.0.0.1", 7336), "scheme": "http", "root_path": "", "state": {},
}  # fmt: skip


@asynccontextmanager
async def gateway(preset: str, model: str, window: int, turns: int, pause_s: float) -> AsyncIterator[Talk]:
    def write(received: Received) -> str:
        return summary_of(json.dumps(received.json))

    script = LateSummaries(
        turns, writer="small", summary=write, otherwise="It is there.", patience_s=0.1 + pause_s
    )
    async with (
        ScriptedUpstream(otherwise=script, window=None) as writer,
        ScriptedUpstream(otherwise=script, window=None) as provider,
    ):
        flags = {
            "compaction.preset": preset,
            "compaction.allow_system_summary": True,
            "summariser.models": [f"small@{writer.url}/v1"],
        }
        target = Target("scripted", provider.url, ("chat",), is_private=True, window=window)
        app = Gateway(MemoryStore(), resolve([flag_layer(flags)]), Targets([target]))
        try:
            yield GatewayTalk(app, model, pause_s)
        finally:
            await app.close()


DOORS = {"library": library, "gateway": gateway}


async def play(
    door: str, preset: str, model: str, window: int, growth: int, turns: int, folds: int, pause_s: float
) -> Counter[str]:
    """Talk until the conversation was folded so many times and once more, and count the former: the next fold uses
    every summary that is ready.
    """
    words = max(4, window // growth // 12)
    async with DOORS[door](preset, model, window, turns, pause_s) as talk:
        for number in range(growth * (folds + 1) * 3):
            await talk.ask(f"Where is crate {number}? " + "It was blue. " * words)
            await talk.answer(f"Crate {number}: hall {number % 7}. " + "It is big. " * words)
            ends = [at for at, one in enumerate(talk.events) if one["event"] == "compaction_end"]
            if len(ends) > folds:
                break
        last = [at for at, one in enumerate(talk.events) if one["event"] == "compaction_start"][-1:]
        found = counted(talk.events[: last[0] if last else None])
        await talk.settle()
        return found


def counted(events: Sequence[Plain]) -> Counter[str]:
    kinds = Counter(one["event"] for one in events)
    ends = [one for one in events if one["event"] == "compaction_end" and one["outcome"] == "installed"]
    counts = Counter(one["author"] for one in ends)
    counts["folds"], counts["dropped"] = len(ends), kinds["pruned"]
    counts["written"], counts["discarded"] = kinds["summary_written"], kinds["summary_discarded"]
    counts["switched"] = kinds["summary_switched"]
    # The last one is for the fold that is not counted.
    unused = counts["written"] - counts["model"] - counts["switched"] - counts["discarded"]
    counts["silent"] = max(0, unused - 1)
    upto = max((at for at, one in enumerate(events) if one["event"] == "compaction_end"), default=0)
    counts["waits"] = sum(bool(one.get("is_awaited")) for one in events[:upto])
    return counts


async def main(chosen: argparse.Namespace) -> None:
    heads = " ".join(f"{name.replace('mechanical', 'mech.'):>9}" for name in COLUMNS)
    print(f"{'door':8} {'preset':10} {'turns':>5} {heads} {'model %':>8}")
    for door, preset, turns in product(chosen.door, chosen.presets, chosen.turns):
        total = Counter[str]()
        growths = [GROWTHS[name] for name in chosen.growths]
        for model, window, growth in product(chosen.models, chosen.windows, growths):
            played = await play(door, preset, model, window, growth, turns, chosen.folds, chosen.pause)
            total.update(played)
        cells = " ".join(f"{total[name]:9}" for name in COLUMNS)
        share = (total["model"] + total["switched"]) / max(1, total["folds"])
        print(f"{door:8} {preset:10} {turns:5} {cells} {share:8.1%}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--door", nargs="+", default=["library"], choices=list(DOORS))
    parser.add_argument("--presets", nargs="+", default=list(PRESETS), choices=list(PRESETS))
    parser.add_argument("--windows", nargs="+", type=int, default=list(WINDOWS))
    parser.add_argument("--turns", nargs="+", type=int, default=[0, 2, 5, 20])
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--growths", nargs="+", default=list(GROWTHS), choices=list(GROWTHS))
    parser.add_argument("--folds", type=int, default=4, help="compactions of each conversation")
    parser.add_argument(
        "--pause", type=float, default=0.001, help="seconds between an answer and the next question"
    )
    logging.getLogger("refold").setLevel(logging.ERROR)
    asyncio.run(main(parser.parse_args()))
