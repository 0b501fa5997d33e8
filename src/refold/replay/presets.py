"""Presets as candidates: the engine itself, asked for a context before every recorded reply."""

from __future__ import annotations

from functools import partial

from refold.core.cost import Prices
from refold.core.presets import PRESETS
from refold.core.stages.shown import HANDLE_PATTERN
from refold.engine.memory import Memory
from refold.model.budget import Budget
from refold.model.dialect import CHAT
from refold.model.errors import ConfigError
from refold.model.message import Message
from refold.model.tokens import TokenCounter
from refold.model.window import Fixed, Tool
from refold.replay.billing import ANTHROPIC
from refold.replay.candidate import Change, Maker

_PRICES = Prices(ANTHROPIC.input, ANTHROPIC.output, ANTHROPIC.cache_read, ANTHROPIC.cache_write)
"""What the replay bills by."""


class PresetCandidate:
    """A conversation in memory under one preset, with the extractive summariser. The window bounds the messages alone."""

    handle = HANDLE_PATTERN

    def __init__(self, preset: str) -> None:
        self.name = preset

    def start(
        self,
        system: tuple[Message, ...],
        tools: tuple[Tool, ...],  # noqa: ARG002  # they cost nothing in a replay
        window: int,
        counter: TokenCounter,
    ) -> None:
        fixed, policy = Fixed(CHAT, system), PRESETS[self.name]
        self._memory = Memory(fixed, Budget(window=window), policy, counter, prices=_PRICES)
        self._told = 0

    def add(self, message: Message) -> None:
        self._memory.add(message)

    def context(self) -> tuple[Message, ...]:
        window = self._memory.context()
        return (*window.system, *window.summaries, *window.messages)

    def recall(self, query: str, max_tokens: int) -> str:
        return self._memory.search(query, max_tokens=max_tokens)

    def changes(self) -> list[Change]:
        new = self._memory.receipts[self._told :]
        self._told += len(new)
        return [Change(made.decision, made.reason, made.before, made.after) for made in new]


def candidates(presets: tuple[str, ...]) -> list[Maker]:
    """Makers for presets by name.

    Raises:
        ConfigError: there is no preset of a name.
    """
    for name in presets:
        if name not in PRESETS:
            raise ConfigError(f"there is no preset {name!r}", hint=f"choose from: {', '.join(PRESETS)}")
    return [partial(PresetCandidate, name) for name in presets]
