"""The reference scorer, if it is here: an independent program that measures the same things.

`engine` dresses one of our candidates as an engine of that program, so that both score exactly the same contexts.
"""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from types import ModuleType

from msgspec import Raw

from refold.model.dialect import CHAT
from refold.model.message import Message
from refold.replay.candidate import CallsModels, CandidateMaker, HasHandles, Recalls
from refold.replay.facts import ReferenceCounter
from refold.replay.table import ReplayRow
from refold.wire import decode_message, decode_tools, encode_message
from tests.corpus import DATA

SCORER = DATA.parent / "eval" / "ctxeval.py"
SAME = {
    "n": "recordings",
    "calls": "calls",
    "valid": "valid",
    "fit": "fits",
    "fill": "fill",
    "FUR": "fur",
    "near": "fur_near",
    "mid": "fur_mid",
    "far": "fur_far",
    "old": "fur_old",
    "bound": "bound",
    "fab": "made_up",
    "rewrites": "rewrites_per_100",
}
"""Its names for what we call so."""
TARIFFS = {"anthropic-sonnet": "anthropic", "openai-gpt5": "openai"}


@cache
def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference_scorer", SCORER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Engine:
    """One of our candidates, as the reference scorer wants to see it."""

    def __init__(self, make: CandidateMaker) -> None:
        self.candidate = make()
        self.name = self.candidate.name
        self.spelled: dict[int, tuple[Message, dict]] = {}
        self.calls: list[tuple[int, int]] = []
        if isinstance(self.candidate, HasHandles):
            self.handle = self.candidate.handle
        if isinstance(self.candidate, Recalls):
            self.recall = self.candidate.recall

    def start(self, system, tools, window):
        self.spelled.clear()
        fixed = tuple(map(self._read, system))
        self.candidate.start(fixed, decode_tools(_raw(tools)), window, ReferenceCounter())

    def add(self, message):
        self.candidate.add(self._read(message))

    def context(self):
        context = [self._spell(message) for message in self.candidate.context()]
        self.calls = list(self.candidate.model_calls()) if isinstance(self.candidate, CallsModels) else []
        return context

    def aux(self):
        """Each of its providers asks, and each is told."""
        return self.calls

    def _read(self, message: dict) -> Message:
        return decode_message(_raw(message), CHAT)

    def _spell(self, message: Message) -> dict:
        known = self.spelled.get(id(message))
        if known is None:
            spelled = json.loads(bytes(encode_message(message, CHAT)))
            known = self.spelled[id(message)] = message, spelled
        return known[1]


def _raw(value: object) -> Raw:
    return Raw(json.dumps(value, ensure_ascii=False).encode())


def reference_row(conversations: list[dict], make: CandidateMaker, window: int) -> dict:
    """What the reference scorer finds, under our names."""
    scorer = load()
    longer = [one for one in conversations if scorer.ctx_tokens(one["messages"]) > window]
    found = scorer.summarise([scorer.replay(one, Engine(make), window) for one in longer])
    row = {ours: found[theirs] for theirs, ours in SAME.items()}
    if hasattr(make(), "recall"):
        row["with_recall"] = found["+recall"]
    for theirs, ours in TARIFFS.items():
        row[f"dollars {ours}"], row[f"cache_hit {ours}"] = found[f"$ {theirs}"], found[f"hit {theirs}"]
    return {key: None if value != value else value for key, value in row.items()}  # noqa: PLR0124


def our_row(row: ReplayRow) -> dict:
    ours = {name: getattr(row, name) for name in SAME.values()}
    if row.with_recall is not None:
        ours["with_recall"] = row.with_recall
    for name in TARIFFS.values():
        ours[f"dollars {name}"], ours[f"cache_hit {name}"] = row.dollars[name], row.cache_hit[name]
    return ours
