"""A program that chats until it is killed: `python -m tests.durability.chat_worker URL PROVIDER LOG LEDGER RUN SEED`.

What is typed is noted in the log, down to the disk, when `put` has returned: from then on it must not be lost. The tool `fire` notes in
the ledger that it ran, before it returns: so what was run twice is seen outside of the program that is killed.
"""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

import refold
from refold.chat.chat import Chat
from refold.engine.conversation import Conversation
from refold.engine.engine import Engine
from refold.upstreams import Provider
from tests.durability.worker import Notebook

LEASE_S = 0.6
COMMANDS = ("/compact", "/new", "/status", "/prune", "/resume", "/abort", "/undo")


def open_chat(talk: Conversation, provider: str, ledger: Notebook, chance: random.Random) -> Chat:
    @refold.tool
    async def fire(number: str) -> str:
        """Must not run twice."""
        await asyncio.sleep(chance.random() * 0.02)
        ledger.note(["fire", number])
        await asyncio.sleep(chance.random() * 0.02)
        return f"fired {number}"

    @refold.tool(idempotent=True)
    async def look(number: str) -> str:
        """May run again."""
        await asyncio.sleep(chance.random() * 0.02)
        return f"seen {number} " + "over the sea " * 40

    upstream = Provider("scripted", "m-1", "chat", f"{provider}/v1")
    return Chat(talk, upstream, tools=[fire, look], lease_s=LEASE_S)


def engine_for(url: str) -> Engine:
    return Engine(url, model="m-1", window=6_000, max_output=300)


async def main(url: str, provider: str, log: Path, ledger: Path, run: int, seed: int) -> None:
    chance, notes = random.Random(seed), Notebook(log)
    async with engine_for(url) as engine:
        talk = await engine.conversation("talk")
        async with open_chat(talk, provider, Notebook(ledger), chance) as chat:
            for number in range(1_000_000):
                if chance.random() < 0.2:
                    await chat.put(chance.choice(COMMANDS))
                else:
                    text = f"{'fire' if chance.random() < 0.5 else 'tell'} <{run}.{number}>"
                    await chat.put(text)
                    notes.note(text, on_disk=True)
                while chat.waiting > 4:  # noqa: ASYNC110  # nobody tells a person when the queue is shorter
                    await asyncio.sleep(0.01)
                await asyncio.sleep(chance.random() * 0.05)


if __name__ == "__main__":
    url, provider, log, ledger, run, seed = sys.argv[1:]
    asyncio.run(main(url, provider, Path(log), Path(ledger), int(run), int(seed)))
