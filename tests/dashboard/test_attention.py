"""What needs attention, on the first page of a gateway with a store in a file and a scripted provider."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager

import msgspec
import pytest

from refold.dashboard.text import dollars
from refold.engine.engine import Engine
from refold.stores.url import open_store
from refold.testing import ScriptedUpstream
from tests.dashboard.visitor import Visitor
from tests.gateway.conftest import ServedModel, served
from tests.gateway.test_summarisers import WINDOW, either, play, told

pytestmark = pytest.mark.feature("X13")
DAY_S = 86_400


@asynccontextmanager
async def gateway(upstream: ScriptedUpstream, folder, **flags):
    store = await open_store(f"sqlite:///{folder}/chats.db")
    try:
        async with served(upstream, store=store, **flags) as gate:
            yield gate
    finally:
        await store.close()


def visitor_of(gate: ServedModel) -> Visitor:
    return Visitor(int(gate.url.rpartition(":")[2]))


async def look(gate: ServedModel) -> tuple[list[dict], str]:
    """What needs attention by the twin of the first page, and the page itself."""
    visitor = visitor_of(gate)
    data, page = await asyncio.to_thread(lambda: (visitor.get("/index.json"), visitor.get("/")))
    return data.json()["attention"], page.text


async def test_summaries_that_have_cost_most_of_what_they_may_are_named(tmp_path):
    async with ScriptedUpstream(window=WINDOW, otherwise=either) as upstream:
        async with gateway(upstream, tmp_path, window=WINDOW) as gate:
            await play(gate, 101, authorization="Bearer client-own")
            spent = sum(
                one.dollars for one in await gate.store.calls("local", "ships") if one.kind == "summary"
            )
            assert spent > 0
            assert (await look(gate))[0] == [], "there is no limit"

        for limit, urgency, hint in (
            (spent / 0.79, "", ""),
            (spent / 0.81, "warm", "summariser.max_spend"),
            (spent / 1.01, "bad", "no model is asked any more"),
        ):
            async with gateway(upstream, tmp_path, window=WINDOW, summariser_max_spend=limit) as gate:
                found, page = await look(gate)
            assert [(one["kind"], one["urgency"], one["conversation"]) for one in found] == (
                [("spending", urgency, "ships")] if urgency else []
            )
            if urgency:
                (one,) = found
                assert hint in one["hint"]
                assert (
                    one["text"]
                    == f"summaries have cost {dollars(spent)} of the {dollars(limit)} that they may"
                )
                assert one["text"] in page
                assert f'href="{one["url"]}"' in page


async def test_a_window_that_was_learnt_from_a_refusal_is_named_until_it_is_forgotten(tmp_path):
    async with (
        ScriptedUpstream(window=3_000, otherwise="Fine.") as upstream,
        gateway(upstream, tmp_path, summariser_enabled=False) as gate,
    ):
        assert (await look(gate))[0] == []
        body = msgspec.json.encode({"model": "unknown-x", "messages": told(61), "max_tokens": 100})
        status, headers, _ = await gate.post("/v1/chat/completions", body, x_refold_conversation="ships")
        assert (status, headers["x-refold-action"]) == (200, "recovered")

        found, page = await look(gate)
        (one,) = [one for one in found if one["kind"] == "limit"]
        assert (one["urgency"], one["url"]) == ("info", "/settings#limits")
        assert one["text"].endswith("a window of 3,000 tokens was learnt from a refusal")
        assert one["text"] in page

        def forget() -> int:
            visitor = visitor_of(gate)
            (limit,) = visitor.get("/settings.json").json()["limits"]
            visitor.get("/settings")
            return visitor.act("/settings/forget", model=limit["model"]).status

        assert await asyncio.to_thread(forget) == 303
        assert (await look(gate))[0] == []


async def test_conversations_whose_deletion_is_held_back_are_counted_until_somebody_deletes_them(tmp_path):
    now = time.time()
    async with Engine(f"sqlite:///{tmp_path}/chats.db", clock=lambda: now - 40 * DAY_S) as engine:
        for name in ("one", "two", "three"):
            await (await engine.conversation(name)).add("Where is the ferry?")

    async with ScriptedUpstream() as upstream:
        async with gateway(upstream, tmp_path) as gate:
            await gate.gateway.sweep()
            assert (await look(gate))[0] == [], "nothing is deleted where nobody says when"

        async with gateway(upstream, tmp_path, store_keep_days=30) as gate:
            await gate.gateway.sweep()  # as the program does when it starts
            found, page = await look(gate)
            (one,) = found
            assert (one["kind"], one["urgency"]) == ("held_back", "warm")
            assert one["text"] == "past their time and not deleted yet: 3 conversations"
            assert one["text"] in page

            assert await (await gate.gateway.host("local")).engine.expire(now - 30 * DAY_S) == 3
            assert (await look(gate))[0] == []
