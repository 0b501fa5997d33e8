"""A program that talks until it is killed: `python -m tests.durability.worker URL LOG LEDGER RUN SEED ACTS AT`.

Three conversations go on at once. What is about to be said is noted in the log before it is added, and acknowledged there, down
to the disk, when `add` has returned. Whoever writes summaries notes in the ledger that they were asked, before they answer: so
what was lost and what was paid for twice is measured outside of the program that is killed.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from contextlib import suppress
from pathlib import Path

from msgspec import json

from refold.core.presets import PRESETS
from refold.engine.conversation import Conversation
from refold.engine.engine import Engine
from refold.model.errors import DoesNotFit, InvalidWindow, NotFound, RefoldError, SummaryError
from refold.model.summary import Summary
from refold.ports.models import SummaryTask
from refold.stores.sqlite import writer
from tests.durability.notes import CONVERSATIONS, SETTINGS, Noted, clock_of, name_of

WORDS = ("alpha", "beta", "gamma", "delta", "epsilon")
ACTS = (
    *("say",) * 8,
    *("ask",) * 3,
    *("context",) * 4,
    *("record",) * 2,
    *("compact",) * 4,
    *("rerun",) * 2,
    "undo",
    "new",
    "resume",
    "recall",
)


class Notebook:
    """A file that lines are added to, one write each."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY)

    def note(self, line: object, *, on_disk: bool = False) -> None:
        os.write(self._file, json.encode(line) + b"\n")
        if on_disk:
            os.fsync(self._file)


class Author:
    """Writes a summary after a while, and says beforehand that it was asked for one, and for which."""

    def __init__(self, engine: Engine, ledger: Notebook, run: int, chance: random.Random) -> None:
        self._engine, self._ledger, self._run, self._chance = engine, ledger, run, chance
        self.talk: Conversation | None = None

    async def write(self, task: SummaryTask) -> Summary:
        which = await self._asked_for(task)
        self._ledger.note({"id": which, "run": self._run}, on_disk=True)
        try:
            await asyncio.sleep(self._chance.random() * 0.03)
        except asyncio.CancelledError:
            self._ledger.note({"id": which, "run": self._run, "is_stopped": True})
            raise
        text = f"Summary {which} of messages {task.first} to {task.last}."
        return Summary(text, task.first, task.last, 0, "model", task.scope)

    async def _asked_for(self, task: SummaryTask) -> str:
        """The compaction that this program is at work on, for the open session or for one that was closed."""
        assert self.talk
        branch = self.talk._journal.head.branch
        found = await self._engine.store.unfinished(self._engine.owner, branch)
        running = (one for one in found if one.state == "running" and one.holder == self._engine._holder)
        (mine,) = (one for one in running if one.cut == task.last)
        return mine.id


class Talker:
    """One conversation."""

    def __init__(self, talk: Conversation, engine: Engine, log: Notebook, run: int, seed: int) -> None:
        self._talk, self._engine, self._log, self._run = talk, engine, log, run
        self._chance, self._said, self._acts = random.Random(seed), 0, 0

    async def go_on(self, acts: int) -> None:
        for _ in range(acts):
            act = self._chance.choice(ACTS)
            with suppress(DoesNotFit, InvalidWindow):  # nothing said yet, or more than the small window takes
                await getattr(self, act)()
            self._acts += 1
            self._log.note({"kind": "done", "conversation": self._talk.id, "act": act})

    async def say(self) -> None:
        """A whole turn at once."""
        number = self._next()
        call = {"id": f"call{number}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        await self._add(
            {"role": "user", "content": self._words("question")},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"call{number}", "content": self._words("found") * 3},
            {"role": "assistant", "content": self._words("answer")},
        )

    async def ask(self) -> None:
        """A turn message by message, so that it can be cut off in flight."""
        number = self._next()
        call = {"id": f"call{number}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        await self._add({"role": "user", "content": self._words("question")})
        await self._add({"role": "assistant", "content": self._words("I look"), "tool_calls": [call]})
        await self._add({"role": "tool", "tool_call_id": f"call{number}", "content": self._words("found")})
        await self._add({"role": "assistant", "content": self._words("answer")})

    async def context(self) -> None:
        await self._talk.context()

    async def record(self) -> None:
        await self._talk.record({"prompt_tokens": 400, "completion_tokens": 20, "total_tokens": 420})

    async def compact(self) -> None:
        await self._talk.compact()

    async def rerun(self) -> None:
        """The last compaction again; by another policy another summary is paid for."""
        with suppress(SummaryError):  # another program has compacted since, or nothing is gained
            await self._talk.rerun(policy=self._chance.choice((None, PRESETS["opal"])))

    async def undo(self) -> None:
        await self._talk.undo()

    async def new(self) -> None:
        await self._talk.start_session()

    async def resume(self) -> None:
        sessions = [one for one in await self._engine.sessions(self._talk.id) if one.state == "live"]
        earlier = [one for one in sessions if one.last is not None]
        if earlier:
            with suppress(NotFound, SummaryError):  # another program has undone it, or compacted, since
                await self._talk.resume(self._chance.choice(earlier))

    async def recall(self) -> None:
        size = (await self._talk.status()).messages
        if size:
            await self._talk.recall(f"#m{self._chance.randrange(size)}")

    def _next(self) -> int:
        self._said += 1
        return self._run * 1_000_000 + self._said

    def _words(self, what: str) -> str:
        return f"{what} " + " ".join(self._chance.choices(WORDS, k=12))

    async def _add(self, *messages: dict) -> None:
        noted = [Noted(self._talk.id, f"<{self._next()}>") for _ in messages]
        for message, one in zip(messages, noted, strict=True):
            message["content"] = f"{one.id} {message['content'] or ''}"
        self._log.note({"kind": "intent", "conversation": self._talk.id, "ids": [one.id for one in noted]})
        await self._talk.add(*messages)
        line = {"kind": "said", "conversation": self._talk.id, "ids": [one.id for one in noted]}
        self._log.note(line, on_disk=True)


async def main(url: str, log: Path, ledger: Path, run: int, seed: int, acts: int, at: int) -> None:
    notebook, paid, chance = Notebook(log), Notebook(ledger), random.Random(seed)
    if os.environ.get("REFOLD_FAILPOINT", "").startswith("here."):  # on the spot, whatever disk this is
        writer.QUICK_S, writer.ALONE_S = 60.0, 0.0
    async with Engine(url, clock=clock_of(at), **SETTINGS) as engine:
        talkers = []
        for place in range(CONVERSATIONS):
            author = Author(engine, paid, run, chance)
            author.talk = await engine.conversation(name_of(run, place), summariser=author)
            talkers.append(Talker(author.talk, engine, notebook, run * CONVERSATIONS + place, seed + place))
        notebook.note({"kind": "ready", "conversation": ""})
        await asyncio.gather(*(talker.go_on(acts) for talker in talkers))
        await asyncio.gather(*(talker._talk.ready() for talker in talkers))


if __name__ == "__main__":
    _, url, log, ledger, *numbers = sys.argv
    try:
        asyncio.run(main(url, Path(log), Path(ledger), *map(int, numbers)))
    except RefoldError as error:
        sys.exit(f"{type(error).__name__}: {error}")
