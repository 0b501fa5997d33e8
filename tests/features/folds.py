"""Conversations that are folded, each with a summariser that takes a number of turns.

Used by the tests of when a summary is written, and of what is sent until then.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from random import Random

import refold
from refold.core.presets import PRESETS

ALL = tuple(PRESETS)
FOREVER = 10**9
WAITING = ("opal", "llms", "librechat")
WORDS = ("tide", "boat", "crew", "rope", "harbour", "wind", "chart", "lamp", "deck", "mast", "pier", "gull")


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


class LongWriter(Writer):
    """A summariser that fills all of the room that it gets, with lines of its source."""

    def __init__(self) -> None:
        super().__init__()
        self.count = len
        """Counts the tokens of a text."""
        self.sources: list[list[dict]] = []
        """The messages of every question."""

    async def __call__(self, messages, *, previous, max_tokens):
        self.asked += 1
        self.sources.append(messages)
        text = "## Progress\nThe assistant has read what follows."
        lines = [line for one in messages for line in str(one.get("content") or "").splitlines()]
        for line in (*lines, *previous.splitlines()):
            if line in text or line.startswith(("#", "[", "Task", "Question")):
                continue
            if self.count(longer := f"{text}\n- {line}") > max_tokens:
                break
            text = longer
        return text


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

    async def work(self, seed: int, *, windows: int = 3) -> None:
        """Work with tools until so many windows are full: results of all sizes, questions, notes of the client."""
        random, number, said, tokens = Random(seed), 0, 0, self.chat.state.frame.budget.window
        scale = random.choice((60, 200, 500, 1_200))

        def text(words: int) -> str:
            words = max(1, int(words))
            made = [f"{random.choice(WORDS)}{random.randrange(999)}" for _ in range(words)]
            return "\n".join(" ".join(made[at : at + 8]) for at in range(0, words, 8))

        async def add(*messages: dict) -> None:
            nonlocal said
            said += sum(len(str(one["content"])) // 4 for one in messages)
            await self.chat.add(*messages)
            if random.random() < 0.5:
                await self.chat.ready()

        while said < windows * tokens:
            if random.random() < 0.15:
                await add({"role": "system", "content": f"The branch is now {text(random.choice((8, 40)))}"})
            await add({"role": "user", "content": f"Go on: {text(random.choice((8, 8, 60, scale)))}"})
            for _ in range(random.choice((0, 1, 2, 5, 12))):
                number += 1
                self.sent.append(await self.chat.context())
                path = json.dumps({"path": f"part_{random.randrange(60)}.txt"})
                call = {
                    "id": f"c{number}",
                    "type": "function",
                    "function": {"name": "read", "arguments": path},
                }
                size = tokens * 0.1 if random.random() < 0.05 else scale * random.choice((0.1, 0.3, 1, 1, 3))
                spoken = text(8) if random.random() < 0.5 else None
                await add(
                    {"role": "assistant", "content": spoken, "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": f"c{number}", "content": text(size)},
                )
            self.sent.append(await self.chat.context())
            await add({"role": "assistant", "content": text(random.choice((8, 30, 120)))})
        await self.chat.ready()

    def folds(self) -> Counter[str]:
        """The authors of the compactions."""
        ends = [one for one in self.events if isinstance(one, refold.CompactionEnd)]
        return Counter(one.author for one in ends if one.outcome == "installed")

    def count(self, kind: type[refold.Event]) -> int:
        return sum(isinstance(one, kind) for one in self.events)
