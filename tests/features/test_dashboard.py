"""The dashboard, over HTTP as a browser uses it: watch and control, and money to the cent."""

from __future__ import annotations

import re

import pytest

from refold.engine.engine import Engine
from refold.stores.memory import MemoryStore
from tests.dashboard.conftest import serve
from tests.dashboard.visitor import Visitor

pytestmark = pytest.mark.feature("X13")

PRICES = {"gpt-4o": (2.50, 1.25, 10.00), "gpt-4o-mini": (0.15, 0.075, 0.60)}
"""Dollars per million tokens of input, of input from the cache, and of output."""
RECORDED = {
    "support": ("gpt-4o", [(40_000, 0, 900), (41_500, 39_000, 1_200), (43_100, 41_000, 700)]),
    "agent": ("gpt-4o", [(90_000, 10_000, 4_000), (96_000, 88_000, 2_500)]),
    "batch": ("gpt-4o-mini", [(110_000, 0, 3_000), (115_000, 64_000, 3_100), (119_000, 100_000, 90)]),
}


async def record(store: MemoryStore) -> None:
    for name, (model, calls) in RECORDED.items():
        engine = Engine(store, model=model, window=128_000, embedder=None)
        chat = await engine.conversation(name, title=f"About {name}")
        for prompt, cached, output in calls:
            await chat.add({"role": "user", "content": f"What about {name}?"})
            await chat.context()
            details = {"cached_tokens": cached}
            await chat.record(
                {"prompt_tokens": prompt, "completion_tokens": output, "prompt_tokens_details": details}
            )
            await chat.add({"role": "assistant", "content": "It is done."})
        await engine.rest()


def by_hand(name: str) -> float:
    """What the calls of a conversation cost, from the provider's price list."""
    model, calls = RECORDED[name]
    fresh, cached, written = PRICES[model]
    return (
        sum((prompt - hit) * fresh + hit * cached + output * written for prompt, hit, output in calls) / 1e6
    )


def test_the_money_on_the_page_is_that_of_a_hand_calculation_to_the_cent():
    store = MemoryStore()
    with serve(store) as page:
        page.run(lambda: record(store))
        html = Visitor(page.port).get("/effect?by=conversation&days=1").text

    rows = {
        found[1]: found[2]
        for found in re.finditer(r"<bdi>(\w+)</bdi></a></th>.*?(\$[0-9.]+)</td><td", html, re.DOTALL)
    }
    assert rows == {name: f"${by_hand(name):.2f}" for name in RECORDED}
    total = sum(map(by_hand, RECORDED))
    assert f"<dt>Money spent</dt><dd>${total:.2f}</dd>" in html


def test_a_conversation_is_watched_and_controlled():
    """What a person sees changes with what is done: compact, undo, settings, delete; and nothing acts without a token."""
    store = MemoryStore()
    with serve(store) as page:

        async def grow() -> None:
            chat = await (await page.gateway.host("local")).engine.conversation(
                "talk", model="gpt-4o", title="A long talk", window=12_000
            )
            for turn in range(20):
                await chat.add(
                    {"role": "user", "content": f"Question {turn}: " + "where is the ferry? " * 40}
                )
                await chat.add({"role": "assistant", "content": f"Answer {turn}: " + "it is at sea. " * 60})

        page.run(grow)
        visitor = Visitor(page.port)
        home = visitor.get("/")
        assert "A long talk" in home.text
        assert "% of " in home.text
        before = visitor.get("/conversations/talk/compact.json").json()["status"]["tokens"]

        assert visitor.act("/conversations/talk/compact", token="", keep="1000").status == 403
        assert visitor.get("/conversations/talk/compact.json").json()["status"]["tokens"] == before

        visitor.get("/conversations/talk/compact")
        assert visitor.act("/conversations/talk/compact", keep="1000").status == 303
        after = visitor.get("/conversations/talk/compact.json").json()
        assert after["status"]["tokens"] < before / 2
        assert after["last"]["reason"] == "asked for"

        assert visitor.act("/conversations/talk/undo").status == 303
        assert visitor.get("/conversations/talk/compact.json").json()["status"]["tokens"] == before

        assert visitor.act("/settings", name="compaction.preset", value="lis").status == 303
        assert visitor.get("/refold/status").json()["preset"] == "lis"

        assert visitor.act("/conversations/talk/delete", confirm="talk").location == "/?done=deleted"
        assert visitor.get("/index.json").json()["conversations"] == []
