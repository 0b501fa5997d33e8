"""Conversations that are folded, each with a summariser that takes a number of turns.

Used by the tests of when a summary is written, and of what is sent until then.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import refold
from refold.core.presets import PRESETS

ALL = tuple(PRESETS)
FOREVER = 10**9
WAITING = ("opal", "llms", "librechat")


class Writer:
    """A summariser that takes a number of turns. It quotes the first words of the user's messages."""

    def __init__(self, turns: int = 0, *, fails: bool = False) -> None:
        self.turns, self.fails = turns, fails
        self.asked, self.turn = 0, 0

    async def __call__(self, messages, *, previous, max_tokens):
        self.asked += 1
        ready = self.turn + self.turns
        while self.turn < ready:  # noqa: ASYNC110  # turns pass without an event
            await asyncio.sleep(0.001)
        if self.fails:
            raise TimeoutError
        said = [one["content"][:50] for one in messages if one["role"] == "user"]
        return "The user asks about crates.\n" + "\n".join(said[:10])


class Run:
    """One conversation of a preset with a summariser."""

    def __init__(self, preset: str, window: int, writer: Writer, **settings: object) -> None:
        self.events: list[refold.Event] = []
        self.writer, self.sent = writer, []
        self.chat = refold.Conversation(
            "gpt-4o", preset=preset, window=window, summariser=writer, on_event=self.events.append, **settings
        )

    async def play(self, folds: int, *, words: int, turns: int = 400) -> None:
        """Talk until the conversation was folded so many times."""
        for number in range(turns):
            self.writer.turn += 1
            await self.chat.add(f"Where is crate {number}? " + "It was blue and heavy. " * words)
            self.sent.append(await self.chat.context())
            await self.chat.add({"role": "assistant", "content": f"Crate {number} is in hall {number % 7}."})
            await asyncio.sleep(0.002)
            if sum(self.folds().values()) >= folds:
                break
        if self.writer.turns < FOREVER:
            self.writer.turn, self.writer.turns = 10**6, 0
            await self.chat.ready()

    def folds(self) -> Counter[str]:
        """The authors of the compactions."""
        ends = [one for one in self.events if isinstance(one, refold.CompactionEnd)]
        return Counter(one.author for one in ends if one.outcome == "installed")

    def count(self, kind: type[refold.Event]) -> int:
        return sum(isinstance(one, kind) for one in self.events)
