"""A client that keeps its history, as all do: it asks, and where no whole answer comes it asks the same again.

What it was about to say and what was answered is noted, so that the store can be compared with it afterwards.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import aiohttp
import msgspec

from refold.engine.engine import Engine
from refold.testing import Received, Say, say
from tests.durability.checks import Line, Log, faults_of

WORDS = ("alpha", "beta", "gamma", "delta", "src/main.py", "4711")
FAILED = (aiohttp.ClientError, ConnectionError, TimeoutError)


def named(received: Received) -> Say:
    """The provider: every reply has a name of its own, and a summary is what a summary is."""
    if is_summary(received):
        return say("## Goal\nGo on counting.\n## Progress\n### Done\nMany words were said.")
    return say(f"<a{received.number}> " + "so be it " * 30)


def is_summary(received: Received) -> bool:
    return "You write checkpoints" in received.system


class Talker:
    """One conversation of one client."""

    def __init__(self, name: str, seed: int = 1, *, is_named: bool = True) -> None:
        self.name, self.is_named, self.lines = name, is_named, list[Line]()
        self._headers = {"x-refold-conversation": name} if is_named else {}
        self._chance, self._count = random.Random(seed), 0
        self.said: list[dict] = []
        self.told: dict[str, str] = {}
        self.receipts: list[str] = []
        """The calls that were answered to the end, and of which the gateway did not say that they are not kept."""
        self.not_kept = 0
        self._noted = self._acknowledged = 0
        self.answered, self.is_hearing = 0, asyncio.Event()
        """Of the request that is being answered, was a word heard?"""

    @property
    def log(self) -> Log:
        return Log(self.lines)

    async def turn(self, session: aiohttp.ClientSession, url: str) -> bool:
        """Ask what is to be asked; was it answered to the end?"""
        if not self.said or self.said[-1]["role"] == "assistant":
            self.ask()
        self._note("intent", self._noted)
        self._noted = len(self.said)
        reply = await self._reply(session, url)
        if reply is None:
            return False
        self._note("said", self._acknowledged)
        self._acknowledged = len(self.said)
        self.said.append({"role": "assistant", "content": reply})
        self.answered += 1
        if self.told.get("x-refold-action") == "not-kept" or "x-refold-not-kept" in self.told:
            self.not_kept += 1
        else:
            self.receipts.append(self.told["x-refold-receipt"])
        return True

    def ask(self) -> None:
        """Have something to say."""
        self._count += 1
        words = " ".join(self._chance.choices(WORDS, k=80))
        self.said.append({"role": "user", "content": f"<q-{self.name}-{self._count}> {words}"})

    def _note(self, kind: str, first: int) -> None:
        """By the names that messages begin with."""
        names = tuple(one["content"].partition(" ")[0] for one in self.said[first:])
        if names:
            self.lines.append(Line(kind, self.name, names))

    async def _reply(self, session: aiohttp.ClientSession, url: str) -> str | None:
        body = {"model": "gpt-5", "max_tokens": 100, "messages": self.said, "stream": True}
        address, data = f"{url}/v1/chat/completions", msgspec.json.encode(body)
        self.is_hearing.clear()
        try:
            async with session.post(address, data=data, headers=self._headers) as response:
                self.told = {name.lower(): value for name, value in response.headers.items()}
                got = await self._read(response)
        except FAILED:
            return None
        if response.status != 200 or not got.endswith(b"data: [DONE]\n\n"):
            return None
        return _text(got)

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        got = b""
        async for piece in response.content.iter_any():
            got += piece
            if b'"content":"<a' in got:
                self.is_hearing.set()
        return got


async def faults_after(engine: Engine, talkers: Sequence[Talker]) -> list[str]:
    """What is wrong with the conversations of some talkers, of which the first may have no name: messages and replies that were
    acknowledged and are not there, and branches that nobody asked for.
    """
    implicit = [one.id for one in await engine.conversations() if one.id.startswith("chat-")]
    unnamed = [one for one in talkers if not one.is_named]
    found = [] if len(implicit) == len(unnamed) else [f"one conversation became {len(implicit)}"]
    for talker in talkers:
        name = talker.name if talker.is_named else implicit[0]
        talker.lines = [type(line)(line.kind, name, line.ids) for line in talker.lines]
        found += await faults_of(engine, [talker.log], [name], recalled=None)
        for receipt in talker.receipts:
            if not await engine.store.reply_to(engine.owner, receipt):
                found.append(f"lost: the reply {receipt}")
    return found


def _text(stream: bytes) -> str:
    events = [
        event.removeprefix(b"data: ") for event in stream.split(b"\n\n") if event.startswith(b"data: {")
    ]
    choices = [choice for event in events for choice in msgspec.json.decode(event)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)
