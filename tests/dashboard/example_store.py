"""A store with conversations as people have them, for tests and pictures of the page."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from refold.engine.engine import Engine
from refold.ports.store import Store

WORDS = [
    "parser",
    "token",
    "cache",
    "window",
    "order",
    "ferry",
    "invoice",
    "deploy",
    "release",
    "test",
    "fixture",
    "index",
    "query",
    "schema",
    "branch",
    "merge",
    "latency",
    "retry",
    "budget",
    "header",
    "payload",
    "session",
    "summary",
    "digest",
    "ledger",
    "customer",
    "refund",
    "shipment",
    "Rotterdam",
    "warehouse",
    "Tuesday",
]
TALKS: Sequence[tuple[str, str, str, int, float]] = (
    ("release-notes", "Write the release notes for version 4.2", "claude-sonnet-4-5", 9, 6.2),
    ("onboarding", "Explain the deploy process to a new colleague", "gpt-4o-mini", 5, 3.4),
    ("invoice-bot", "Match these invoices with the shipments", "gpt-4o", 60, 2.1),
    ("ferry-times", "When does the last ferry to Texel leave?", "gpt-4o-mini", 3, 0.9),
    ("support-1042", "Where is my order from last Tuesday?", "gpt-4o-mini", 18, 0.2),
    ("agents/parser", "Why does the parser fail on nested quotes?", "gpt-4o", 46, 0.01),
)
"""Name, title, model, turns, and the days since it was used."""
DAY_S = 86_400


class Clock:
    """A clock that is set by hand."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def sentence(random: Random, count: int) -> str:
    return " ".join(random.choice(WORDS) for _ in range(count)).capitalize() + "."


async def write_summary(messages: Sequence[object], *, previous: str, max_tokens: int) -> str:
    del previous, max_tokens
    done = f"{len(messages)} messages were read, and the fixture was found in tests/quotes.py."
    return f"## Goal\nFix the parser.\n\n## Done\n{done}"


async def fail_to_summarise(messages: Sequence[object], *, previous: str, max_tokens: int) -> str:
    del messages, previous, max_tokens
    raise RuntimeError("no model answers")


async def fill(store: Store, now: float, *, owner: str = "local", share: float = 1.0) -> None:
    """Write the conversations of one owner; `share` of their turns."""
    random, clock = Random(7), Clock(now)
    for at, (name, title, model, count, days) in enumerate(TALKS):
        engine = Engine(
            store,
            owner=owner,
            model=model,
            window=12_000,
            clock=clock,
            embedder=None,
            summariser=fail_to_summarise if name == "invoice-bot" else write_summary,
        )
        turns = max(1, round(count * share))
        clock.now = now - (days + 0.02 * turns) * DAY_S
        chat = await engine.conversation(name, title=title, system="You are a careful assistant. Be brief.")
        for turn in range(turns):
            clock.now = now - (days + 0.02 * (turns - turn)) * DAY_S
            await chat.add({"role": "user", "content": title if not turn else sentence(random, 50 + 9 * at)})
            if at % 2:
                call = {
                    "id": f"c{turn}",
                    "type": "function",
                    "function": {"name": "read_file", "arguments": f'{{"path": "src/quotes_{turn}.py"}}'},
                }
                await chat.add({"role": "assistant", "content": None, "tool_calls": [call]})
                await chat.add({"role": "tool", "tool_call_id": f"c{turn}", "content": sentence(random, 160)})
            await chat.context()
            tokens = (await chat.status()).tokens
            cached = {"cached_tokens": int(tokens * 0.6)}
            await chat.record(
                {"prompt_tokens": tokens, "completion_tokens": 180, "prompt_tokens_details": cached}
            )
            # A reply names facts of earlier turns, so that a replay has something to look for.
            old = f" See TICKET-{4_000 + turn - 9} and src/quotes_{turn - 9}.py." if turn >= 9 else ""
            ticket = f" I opened TICKET-{4_000 + turn}."
            await chat.add({"role": "assistant", "content": sentence(random, 120) + ticket + old})
            await chat.ready()
        await engine.rest()
