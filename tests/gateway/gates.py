"""A gate, and what gets through it."""

from __future__ import annotations

from starlette.responses import PlainTextResponse

from refold.gateway.auth import Access, Rules, mint
from refold.stores.memory import MemoryStore

NAMED = Rules(names=("Gateway.lan", "203.0.113.9"))
HOME = ("host", "localhost:7336")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class DecodedLine:
    """An application that is behind the gate, and remembers what reached it."""

    def __init__(self) -> None:
        self.scopes: list[dict] = []

    async def __call__(self, scope, receive, send) -> None:
        self.scopes.append(scope)
        await PlainTextResponse("inside")(scope, receive, send)


class CounterChoice(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    async def find_key_owner(self, which):
        self.asked.append(which)
        return await super().find_key_owner(which)


async def make_key(store, owner="anna", at=1.0, *, admin=False) -> str:
    text, kept = mint(owner, at=at, admin=admin)
    await store.add_key(kept)
    return text


def gate(store=None, rules=NAMED, clock=None) -> tuple[Access, DecodedLine]:
    inside = DecodedLine()
    return Access(inside, store or MemoryStore(), rules, clock or Clock()), inside
