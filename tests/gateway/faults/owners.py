"""Three owners at one gateway who say the same, call things the same, and change their minds; and whose words are never mixed.

Everything that an owner says or is told carries the owner's mark. The provider knows whose request it is by the key that comes
with it, and looks for the marks of others in it; the client looks for them in every answer and on every page.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable

import aiohttp
import msgspec

from refold.testing import Received, Say, call, say
from tests.gateway.faults.clients import is_summary
from tests.gateway.gates import make_key

OWNERS = ("anna", "ben", "carl")
OPENINGS = ("hi", "continue", "Fix the bug in main.py.", "What is new?")
NAMES = ("work", "main", "support-42")
WINDOW = 3_000
LATEST = 3
"""Conversations of an owner that go on at a time: so they grow beyond the window."""
_MARKS = re.compile(rb"<<(\w+)>>")


def mark(owner: str) -> str:
    return f"<<{owner}>>"


def foreign(owner: str, seen: bytes) -> set[str]:
    """The other owners whose marks are in something."""
    return {found.decode() for found in _MARKS.findall(seen)} - {owner}


class Provider:
    """Answers with the mark of whoever asks, and notes whose words came with whose key."""

    def __init__(self) -> None:
        self.mixed: list[str] = []
        self.asked: Counter[str] = Counter()

    def __call__(self, received: Received) -> Say:
        owner = received.key.removeprefix("sk-")
        others = foreign(owner, received.body + repr(sorted(received.headers.items())).encode())
        self.mixed += [f"{other}'s words were sent with {owner}'s key" for other in others]
        self.asked[f"{owner} {'summary' if is_summary(received) else 'reply'}"] += 1
        if is_summary(received):
            return say(
                f"## Goal\nHelp {mark(owner)} with the bug.\n## Progress\n### Done\nThe file was read."
            )
        words = f"{mark(owner)} answers number {received.number}. " + "And so on. " * (received.number % 9)
        return say(words, call("look", {"of": owner})) if received.number % 5 == 0 else say(words)


class Owner:
    """One owner and what they remember of their conversations."""

    def __init__(self, name: str, key: str, url: str, session: aiohttp.ClientSession, seed: int) -> None:
        self.name, self._key, self.url, self._session = name, key, url, session
        self.chance, self.talks = random.Random(seed), list[tuple[str, list[dict]]]()
        self.mixed: list[str] = []
        self.known: set[str] = set()
        """The names that the gateway gave to conversations which have none of the client's."""
        self.acts: Counter[str] = Counter()
        self.heard = bytearray()

    async def act(self, others: Callable[[], list[Owner]]) -> None:
        """One act by chance."""
        choices = [self._go_on] * 15 + [self._begin, self._edit, self._cut_off, self._look, self._compact]
        chosen = self.chance.choice(choices) if self.talks else self._begin
        if self.chance.random() < 0.08:
            await self._pry(others())
            return
        await chosen()
        self.acts[chosen.__name__] += 1

    async def _begin(self) -> None:
        """As anybody might: the first words are the same for all, and so are the names."""
        name = self.chance.choice(["", "", *NAMES])
        self.talks.append((name, [{"role": "user", "content": self.chance.choice(OPENINGS)}]))
        await self._send(*self.talks[-1])

    async def _go_on(self) -> None:
        await self._send(*self.chance.choice(self.talks[-LATEST:]))

    async def _edit(self) -> None:
        """Say something else earlier on, and go on from there."""
        name, said = self.chance.choice(self.talks)
        at = self.chance.randrange(0, len(said), 2)
        changed = [*said[:at], {"role": "user", "content": self._words()}]
        self.talks.append((name, changed))
        await self._send(name, changed)

    async def _cut_off(self) -> None:
        """Leave out the oldest messages, as clients do that make room themselves."""
        name, said = self.chance.choice(self.talks)
        kept = said[2 * (len(said) // 4) :] or said
        self.talks.append((name, [*kept]))
        await self._send(name, self.talks[-1][1])

    async def _send(self, name: str, said: list[dict]) -> None:
        if said[-1]["role"] == "assistant":
            said.append({"role": "user", "content": self._words()})
        body = {"model": "gpt-5", "max_tokens": 100, "messages": said, "stream": self.chance.random() < 0.3}
        told, answer = await self._ask(
            "/v1/chat/completions", body, {"x-refold-conversation": name} if name else {}
        )
        if not name and "x-refold-conversation" in told:
            self.known.add(told["x-refold-conversation"])
        text = (
            answer.decode()
            if body["stream"]
            else msgspec.json.decode(answer)["choices"][0]["message"]["content"]
        )
        said.append({"role": "assistant", "content": text[:400]})

    async def _look(self) -> None:
        pages = ("status", "conversations", "config")
        await self._ask(f"/refold/{self.chance.choice(pages)}")
        if self.known:
            name = self.chance.choice(sorted(self.known))
            part = self.chance.choice(["", "/sessions", "/receipts", "/compactions"])
            await self._ask(f"/refold/conversations/{name}{part}")

    async def _compact(self) -> None:
        if self.known:
            name = self.chance.choice(sorted(self.known))
            await self._ask(f"/refold/conversations/{name}/{self.chance.choice(['compact', 'undo'])}", {})

    async def _pry(self, others: list[Owner]) -> None:
        """Ask for what is another's, by its very name."""
        self.acts["_pry"] += 1
        names = sorted(set().union(*(other.known for other in others)) - self.known)
        for name in names[:3]:
            for part in ("", "/sessions", "/receipts", "/compactions"):
                status, _, answer = await self._raw("GET", f"/refold/conversations/{name}{part}")
                if status != 404:
                    self.mixed.append(f"{self.name} was told {status} of another's conversation")
                self._check(answer)
            status, _, _ = await self._raw("POST", f"/refold/conversations/{name}/compact", {})
            self.mixed += [] if status == 404 else [f"{self.name} compacted another's conversation"]

    async def listen(self) -> None:
        """Hear what happens to one's conversations, for as long as it is told."""
        headers = {"x-refold-key": self._key}
        async with self._session.get(f"{self.url}/refold/events", headers=headers) as response:
            async for piece in response.content.iter_any():
                self.heard += piece

    def overheard(self, others: list[Owner]) -> list[str]:
        """What was told to this owner and is about another's conversations."""
        names = set().union(*(other.known for other in others)) - self.known - {*NAMES}
        about = [name for name in names if name.encode() in self.heard]
        return [f"{self.name} heard of {name}" for name in about] + [
            f"{self.name} heard {other}'s words" for other in foreign(self.name, bytes(self.heard))
        ]

    async def _ask(
        self, path: str, body: dict | None = None, headers: dict[str, str] | None = None
    ) -> tuple[dict[str, str], bytes]:
        status, told, answer = await self._raw("GET" if body is None else "POST", path, body, headers)
        if status != 200:
            self.mixed.append(
                f"{self.name}: {path.rpartition('/')[2]} was answered with {status}: {answer[:120]!r}"
            )
        self._check(answer + repr(told).encode())
        return told, answer

    async def _raw(self, method, path, body=None, headers=None) -> tuple[int, dict[str, str], bytes]:
        sent = {"x-refold-key": self._key, "authorization": f"Bearer sk-{self.name}", **(headers or {})}
        data = None if body is None else msgspec.json.encode(body)
        async with self._session.request(method, self.url + path, data=data, headers=sent) as response:
            return response.status, {**response.headers}, await response.read()

    def _check(self, seen: bytes) -> None:
        self.mixed += [f"{self.name} was shown {other}'s words" for other in foreign(self.name, seen)]

    def _words(self) -> str:
        return f"{mark(self.name)} says: " + " ".join(
            self.chance.choices(("red", "blue", "7", "src/a.py"), k=150)
        )


async def owners_of(store, url: str, session: aiohttp.ClientSession, seed: int) -> list[Owner]:
    keys = [await make_key(store, owner) for owner in OWNERS]
    return [
        Owner(name, key, url, session, seed + at)
        for at, (name, key) in enumerate(zip(OWNERS, keys, strict=True))
    ]
