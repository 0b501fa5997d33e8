"""Summaries behind the gateway: written ahead, by the conversation's own model with the client's own key, and used later."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from refold.engine.summary_jobs import SummaryJobs
from refold.testing import Received, Refuse, ScriptedUpstream
from tests.dashboard.visitor import Visitor
from tests.e2e.test_gateway_sdks import prose
from tests.gateway.conftest import served

ONLY = "The books were squared away gladly."
SUMMARY = f"## Goal\nTell the story of the ships.\n## Progress\n### Done\n{ONLY}"
WINDOW = 6_000


def is_question(received: Received) -> bool:
    """Is it a summary that is asked for?"""
    return b"checkpoint" in received.body.lower() or b"summar" in received.body[-4_000:].lower()


def either(received: Received) -> str:
    return SUMMARY if is_question(received) else "Fine."


def told(count: int) -> list[dict[str, str]]:
    return [
        {"role": ("user", "assistant")[n % 2], "content": f"Chapter {n}: {prose(n, 60)}"}
        for n in range(count)
    ]


async def play(gate, turns, **headers):
    """A conversation that grows turn by turn; what was answered about each."""
    found = []
    for turn in range(1, turns, 2):
        body = msgspec.json.encode({"model": "gpt-5", "messages": told(turn), "max_tokens": 100})
        status, said, _ = await gate.post(
            "/v1/chat/completions", body, x_refold_conversation="ships", **headers
        )
        assert status == 200
        found.append(said["x-refold-action"])
        for live in (await gate.gateway.host("local")).table:
            await live.conversation.ready()
    return found


@pytest.mark.feature("N4", "L10")
async def test_a_summary_is_there_when_it_is_needed_and_nobody_waited_for_it():
    async with (
        ScriptedUpstream(window=WINDOW, otherwise=either) as upstream,
        served(upstream, window=WINDOW) as gate,
    ):
        actions = await play(gate, 101, authorization="Bearer client-own")

        questions = [one for one in upstream.requests if is_question(one)]
        assert "folded" in actions
        assert questions
        assert {one.headers["authorization"] for one in questions} == {"Bearer client-own"}
        after = upstream.requests[-1]
        assert ONLY in after.body.decode()
        spent = [call for call in await gate.store.calls("local", "ships") if call.kind == "summary"]
        assert {call.model for call in spent} == {"gpt-5"}
        assert 0 < len(spent) <= len(questions)  # a summary may take two questions, and is one call


async def test_a_model_that_cannot_write_costs_no_call_its_answer():
    def fails(received):
        return Refuse(500) if is_question(received) else "Fine."

    async with (
        ScriptedUpstream(window=WINDOW, otherwise=fails) as upstream,
        served(upstream, window=WINDOW) as gate,
    ):
        actions = await play(gate, 101)

        assert "folded" in actions
        assert len(upstream.requests[-1].messages) < 60


async def test_whoever_asks_last_pays_for_what_is_written_after():
    async with (
        ScriptedUpstream(window=WINDOW, otherwise=either) as upstream,
        served(upstream, window=WINDOW) as gate,
    ):
        await play(gate, 101, authorization="Bearer anna")
        before = len(upstream.requests)
        await play(gate, 201, authorization="Bearer ben")

        keys = [one.headers["authorization"] for one in upstream.requests if is_question(one)]
        assert set(keys) == {"Bearer anna", "Bearer ben"}
        assert "Bearer anna" not in {one.headers["authorization"] for one in upstream.requests[before:]}


@pytest.mark.parametrize("needs_key", [True, False])
async def test_an_act_of_the_page_asks_a_local_server_only_if_it_works_without_the_clients_key(needs_key):
    def compact(port: int) -> tuple[dict, list]:
        visitor = Visitor(port)
        visitor.get("/conversations/ships/compact")
        assert visitor.act("/conversations/ships/compact", keep="200").status == 303
        return visitor.get("/conversations/ships.json").json(), visitor.get("/index.json").json()["attention"]

    async with (
        ScriptedUpstream(otherwise=either, key="own" if needs_key else "") as upstream,
        served(upstream, window=WINDOW) as gate,
    ):
        body = msgspec.json.encode({"model": "gpt-5", "messages": told(21), "max_tokens": 100})
        await gate.post(
            "/v1/chat/completions", body, x_refold_conversation="ships", authorization="Bearer own"
        )
        page, attention = await asyncio.to_thread(compact, int(gate.url.rpartition(":")[2]))
        keyless = [one for one in upstream.requests if "authorization" not in one.headers]

    author = next(one["author"] for one in page["changes"] if one["kind"] == "summarise")
    assert ("digest" in author, attention) == (needs_key, [])
    assert any(map(is_question, keyless)) != needs_key
    assert len(keyless[0].body) < 10


async def test_a_request_that_waits_in_line_waits_for_its_own_summary_only_as_long_as_is_left(monkeypatch):
    """A request waits for a model, and another of the same conversation behind it; then that one needs a summary as well."""
    waits, asked, write_within = list[float](), asyncio.Event(), SummaryJobs.write_within

    async def noted(jobs, request, seconds, *waited_s):
        waits.append(sum(waited_s))
        await write_within(jobs, request, seconds, *waited_s)

    async def answer(received):
        if is_question(received):
            asked.set()
            await asyncio.Event().wait()
        return "Fine."

    async def ask(gate, count):
        body = msgspec.json.encode({"model": "gpt-5", "messages": told(count), "max_tokens": 100})
        status, said, _ = await gate.post("/v1/chat/completions", body, x_refold_conversation="ships")
        assert status == 200
        return said["x-refold-action"]

    monkeypatch.setattr(SummaryJobs, "write_within", noted)
    settings = {"window": WINDOW, "compaction_preset": "opal", "summariser_timeout_s": 1.0}
    async with (
        ScriptedUpstream(window=WINDOW, otherwise=answer) as upstream,
        served(upstream, **settings) as gate,
    ):
        turn = 1
        while not asked.is_set():
            first = asyncio.create_task(ask(gate, turn))
            await asyncio.wait({first, asyncio.ensure_future(asked.wait())}, return_when="FIRST_COMPLETED")
            turn += 2
        second = await ask(gate, turn + 40)

        assert (await first, second) == ("folded", "folded")
        assert waits[0] < waits[1]  # the time in line counts
