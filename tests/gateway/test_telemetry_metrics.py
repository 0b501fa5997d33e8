"""`GET /metrics` in the text format of Prometheus, read by the parser of its own client, and by promtool where it is installed."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from refold.gateway.auth import mint
from refold.gateway.server import installed_metrics, metrics_server
from refold.gateway.telemetry import MOST_NAMES, OTHER, PrometheusMetrics
from refold.model.errors import MissingExtra
from refold.model.tokens import Usage
from refold.ports.records import Call
from refold.testing import ScriptedUpstream
from tests.gateway.conftest import served

CHAT = "/v1/chat/completions"
LONG = [
    {"role": ("user", "assistant")[at % 2], "content": f"Step {at}. " + "The ferry is late. " * 120}
    for at in range(19)
]


async def scrape(gate, key="") -> tuple[int, str, str]:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(f"{gate.url}/metrics") as answer,
    ):
        return answer.status, answer.headers["content-type"], await answer.text()


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Every sample by its name and the values of its labels."""
    return {
        (one.name, *(one.labels[name] for name in sorted(one.labels))): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


async def say(gate, messages, **headers) -> None:
    body = {"model": "gpt-4o", "messages": messages, "max_tokens": 50}
    status, _, answer = await gate.post(CHAT, json.dumps(body).encode(), **headers)
    assert status == 200, answer


@pytest.mark.feature("X15")
async def test_what_is_scraped_is_what_was_stored():
    async with (
        ScriptedUpstream(otherwise="Fine.", window=4_000) as upstream,
        served(upstream, metrics=PrometheusMetrics(), summariser_enabled=False) as gate,
    ):
        await say(gate, LONG[:1])
        await say(gate, LONG, x_refold_conversation="secret-name")
        status, kind, text = await scrape(gate)
        (days,) = await gate.store.call_days("local")
        compactions = await gate.store.compaction_days("local")

    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    found, key = samples(text), ("reply", "gpt-4o", "scripted", "measured")
    assert found["refold_calls_total", *key] == days.calls == 2
    assert (
        found["refold_tokens_total", "reply", "gpt-4o", "input", "scripted", "measured"] == days.usage.input
    )
    assert found["refold_cost_dollars_total", *key] == pytest.approx(days.dollars)
    assert found["refold_unsent_tokens", *key] == days.unsent > 0
    assert found["refold_saved_dollars", *key] == pytest.approx(days.saved)
    assert found["refold_recoveries_total", *key] == days.recoveries > 0
    assert found["refold_added_seconds_count", "scripted"] == 2
    assert found["refold_added_seconds_sum", "scripted"] == pytest.approx(days.added_ms / 1_000)
    assert {name: value for name, value in found.items() if name[0] == "refold_compactions_total"} == {
        ("refold_compactions_total", one.author or "none", one.kind, one.outcome, one.reason): one.count
        for one in compactions
    }
    assert compactions
    assert "secret-name" not in text
    assert "ferry" not in text
    assert "local" not in text


@pytest.mark.feature("X15")
async def test_where_keys_are_configured_an_admin_key_is_needed(upstream):
    async with served(upstream, metrics=PrometheusMetrics()) as gate:
        keys = {}
        for owner, admin in (("anna", False), ("operator", True)):
            keys[owner], kept = mint(owner, at=1.0, admin=admin)
            await gate.store.add_key(kept)
        seen = [(await scrape(gate, key))[0] for key in ("", keys["anna"], keys["operator"])]

    assert seen == [401, 403, 200]


@pytest.mark.feature("X15")
async def test_a_port_of_its_own_needs_no_key_and_serves_nothing_else(upstream):
    async with (
        served(upstream, metrics=PrometheusMetrics()) as gate,
        metrics_server(gate.gateway, "127.0.0.1", 0) as address,
        aiohttp.ClientSession() as session,
    ):
        await gate.store.add_key(mint("anna", at=1.0)[1])
        async with session.get(f"{address}/metrics") as answer:
            assert (answer.status, "refold_calls_total" in await answer.text()) == (200, True)
        async with session.get(f"{address}/refold/status") as answer:
            assert answer.status == 404


def test_a_port_for_the_metrics_needs_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert installed_metrics(None) is None
    with pytest.raises(MissingExtra, match="prometheus"):
        installed_metrics(9_464)


async def test_without_the_extra_the_page_says_what_to_install(upstream):
    async with served(upstream) as gate:
        status, _, text = await scrape(gate)

    assert status == 501
    assert "refold[prometheus]" in json.loads(text)["error"]["hint"]


def call(number: int, **more) -> Call:
    return Call(id=f"c{number}", branch="b", session="s", usage=Usage(input=1), **more)


def test_names_beyond_the_first_fifty_are_counted_as_other():
    metrics = PrometheusMetrics()
    for number in range(MOST_NAMES + 7):
        metrics.add_call(call(number, model=f"model-{number}"))
    metrics.add_call(call(0, model="model-0"))

    found = samples(metrics.text()[0].decode())
    calls = {name[2]: value for name, value in found.items() if name[0] == "refold_calls_total"}
    assert len(calls) == MOST_NAMES + 1
    assert (calls["model-0"], calls[OTHER]) == (2, 7)


def test_a_saving_may_fall_and_hostile_names_are_escaped():
    metrics = PrometheusMetrics()
    metrics.add_call(call(1, model='a"}\n# HELP x\\', unsent=100, saved=0.5))
    metrics.add_call(call(2, model='a"}\n# HELP x\\', unsent=-300, saved=-1.0, is_estimated=False))

    found = samples(metrics.text()[0].decode())
    assert found["refold_unsent_tokens", "reply", 'a"}\n# HELP x\\', "unknown", "measured"] == -200
    assert found["refold_saved_dollars", "reply", 'a"}\n# HELP x\\', "unknown", "measured"] == -0.5


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed here")
async def test_promtool_finds_no_fault_in_what_a_gateway_gives():
    async with (
        ScriptedUpstream(otherwise="Fine.", window=4_000) as upstream,
        served(upstream, metrics=PrometheusMetrics(), summariser_enabled=False) as gate,
    ):
        await say(gate, LONG)
        _, _, text = await scrape(gate)
    assert {"refold_calls_total", "refold_compactions_total", "refold_added_seconds_bucket"} <= {
        name for name, *_ in samples(text)
    }
    done = await asyncio.to_thread(
        subprocess.run,
        ["promtool", "check", "metrics"],
        input=text.encode(),
        capture_output=True,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
