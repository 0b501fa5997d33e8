"""The metrics of effect, through the command line, the gateway and the library."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import aiohttp
import apsw
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from refold.cli.main import run
from refold.gateway.auth import mint
from refold.gateway.telemetry import PrometheusMetrics, Telemetry
from refold.stores.url import open_store
from refold.sync import Engine
from refold.testing import ScriptedUpstream
from tests.gateway.conftest import served

CHAT = "/v1/chat/completions"
PRICE = {"gpt-4o": (2.50, 1.25, 10.00), "gpt-4o-mini": (0.15, 0.075, 0.60)}
"""Dollars per million tokens of input, of input from the cache, and of output."""


def process(store, *args: str) -> tuple[int, str, str]:
    """The program as a process of its own."""
    command = [sys.executable, "-m", "refold", *args, "--store", str(store)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def refold(capsys, monkeypatch):
    """The program in this process, in a pipe of 80 columns without colour."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")

    def call(store, *args: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run([*args, "--store", str(store)])
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def stats(refold):
    """The document of `refold stats --json`."""

    def call(store, *args: str) -> dict:
        code, out, err = refold(store, "stats", "--json", *args)
        assert code == 0, err
        return json.loads(out)

    return call


def record(store, usages, *, model="gpt-4o", name="a", owner="local") -> None:
    """A conversation whose calls took these tokens: input, input from the cache, output."""
    with Engine(str(store), model=model, owner=owner) as engine:
        chat = engine.conversation(name)
        for prompt, cached, output in usages:
            chat.add("When does the ferry leave?")
            chat.context()
            details = {"cached_tokens": cached}
            chat.record(
                {
                    "prompt_tokens": prompt,
                    "completion_tokens": output,
                    "prompt_tokens_details": details,
                }
            )
            chat.add({"role": "assistant", "content": "At noon."})


def fold(store, *, owner="local") -> int:
    """Compact a long conversation by hand, undo it, and return the tokens before."""
    with Engine(str(store), model="gpt-4o", owner=owner) as engine:
        chat = engine.conversation("long")
        for number in range(12):
            chat.add(f"Question {number}: " + "lorem ipsum dolor " * 60)
            chat.add({"role": "assistant", "content": "Answer. " * 40})
        chat.compact(keep=200)
        return chat.undo() is not None


@pytest.mark.feature("X15")
def test_money_and_cache_hits_are_those_of_the_provider_s_reports(tmp_path, stats):
    store = tmp_path / "chats.db"
    usages = {"gpt-4o": [(1_000, 0, 100), (1_200, 1_024, 50)], "gpt-4o-mini": [(40_000, 8_000, 1_000)]}
    for model, calls in usages.items():
        record(store, calls, model=model, name=model)

    found = stats(store, "--by", "model")
    prices = {
        model: sum(
            ((prompt - cached) * PRICE[model][0] + cached * PRICE[model][1] + output * PRICE[model][2]) / 1e6
            for prompt, cached, output in calls
        )
        for model, calls in usages.items()
    }
    assert [one["name"] for one in found["groups"]] == sorted(prices, key=prices.get, reverse=True)
    for one in found["groups"]:
        assert one["dollars"] == pytest.approx(prices[one["name"]], abs=1e-12)
    assert found["total"]["dollars"] == pytest.approx(sum(prices.values()), abs=1e-12)
    assert found["sent"] == found["total"]["sent"] == 42_200
    assert found["total"]["cache_hit_rate"] == pytest.approx(9_024 / 42_200)
    assert found["total"]["added_ms"] is None


@pytest.mark.feature("X15")
def test_the_figures_are_grouped_by_day_and_conversation_and_outlive_the_conversation(
    tmp_path, refold, stats
):
    store = tmp_path / "chats.db"
    before = datetime.now(UTC).date().isoformat()
    record(store, [(1_000, 0, 10), (1_000, 0, 10)])
    record(store, [(300, 0, 10)], name="b")

    by_day, by_talk = stats(store, "--by", "day", "--days", "2"), stats(store, "--by", "conversation")
    assert {one["name"] for one in by_day["groups"]} <= {before, datetime.now(UTC).date().isoformat()}
    assert sum(one["sent"] for one in by_day["groups"]) == 2_300
    assert [(one["name"], one["sent"]) for one in by_talk["groups"]] == [("a", 2_000), ("b", 300)]

    assert refold(store, "delete", "a", "--yes")[0] == 0
    after = stats(store, "--by", "conversation")
    assert after["total"] == by_talk["total"]
    assert [one["name"] for one in after["groups"]] == ["b"]

    assert refold(store, "delete", "--all", "--yes")[0] == 0
    assert stats(store)["total"]["replies"]["calls"] == 0


@pytest.mark.feature("X15")
def test_compactions_are_counted_by_reason_author_and_outcome(tmp_path, refold, stats):
    store = tmp_path / "chats.db"
    assert fold(store)
    record(store, [(1_000, 0, 10)])

    found = stats(store)["compactions"]
    assert [(one["reason"], one["author"], one["outcome"], one["count"]) for one in found] == [
        ("manual", "digest", "installed", 1),
        ("manual", "digest", "undone", 1),
    ]
    assert found[0]["before"] > found[0]["after"] > 0
    code, out, _ = refold(store, "stats", "--by", "day")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "cache hits: 0.0 %   recoveries: 0   added per call: not measured" in out
    assert [word for word in out.splitlines()[-2].split() if not word[0].isdigit() or word == "1"] == [
        "1",
        "summarise",
        "installed",
        "digest",
        "manual",
    ]


@pytest.mark.feature("X15")
def test_one_owner_s_figures_are_not_another_s(tmp_path, refold, stats):
    store = tmp_path / "chats.db"
    record(store, [(1_000, 0, 10)], owner="anna")
    record(store, [(300, 0, 10)], owner="ben")

    assert stats(store, "--owner", "anna")["sent"] == 1_000
    everybody = stats(store, "--by", "owner")
    assert (everybody["owner"], everybody["sent"]) == (None, 1_300)
    assert [(one["name"], one["sent"]) for one in everybody["groups"]] == [("anna", 1_000), ("ben", 300)]
    assert stats(store, "--all")["sent"] == 1_300
    code, _, err = refold(store, "stats", "--by", "colour")
    assert (code, "day, model, upstream, conversation, owner" in err) == (2, True)


@pytest.mark.feature("X15")
def test_a_backfill_counts_what_an_earlier_version_has_stored_once(tmp_path, refold, stats):
    store = tmp_path / "chats.db"
    record(store, [(1_000, 0, 10)] * 3)
    fold(store)
    expected = stats(store, "--by", "day")
    with apsw.Connection(str(store)) as connection:  # as the migration finds them
        for table in ("call", "compaction"):
            connection.execute(f"DELETE FROM {table}_day")
            connection.execute(f"UPDATE {table} SET is_counted = 0")

    old = stats(store, "--by", "day")
    assert (old["total"], old["compactions"], old["uncounted"]) == (expected["total"], [], 1)
    assert "1 compaction of earlier versions not counted: run refold db backfill" in refold(store, "stats")[2]
    code, out, _ = refold(store, "db", "backfill", "--json")
    done = json.loads(out)
    assert (code, done["calls"], done["compactions"]) == (0, 3, 1)
    again = json.loads(refold(store, "db", "backfill", "--json")[1])
    assert again == {"calls": 0, "compactions": 0, "embedded": 0}
    assert stats(store, "--by", "day") == expected


@pytest.mark.feature("X15")
def test_the_library_gives_the_same_document(tmp_path, stats):
    store = tmp_path / "chats.db"
    record(store, [(1_000, 500, 10)])

    with Engine(str(store)) as engine:
        found = engine.stats(by="upstream", days=3).document()
    assert json.loads(json.dumps(found)) == {
        name: value
        for name, value in stats(store, "--by", "upstream", "--days", "3").items()
        if name not in ("owner", "days")
    }


@asynccontextmanager
async def gateway(store_url, **more):
    more = {"summariser_enabled": False, **more}
    async with ScriptedUpstream(otherwise="Fine.", window=more.get("window", 4_000)) as upstream:
        store = await open_store(store_url)
        try:
            async with served(upstream, store=store, **more) as gate:
                yield gate
        finally:
            await store.close()


async def say(gate, *texts, **headers):
    messages = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]
    body = {"model": "gpt-4o", "messages": messages, "max_tokens": 50}
    status, told, answer = await gate.post(CHAT, json.dumps(body).encode(), **headers)
    assert status == 200, answer
    return told


async def get(gate, path, key=""):
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(f"{gate.url}{path}") as answer,
    ):
        return answer.status, await answer.json()


@pytest.mark.feature("X15")
async def test_the_gateway_counts_upstreams_recoveries_and_the_time_it_takes(tmp_path):
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    history = [
        text for turn in range(9) for text in (f"Step {turn}. " + "The ferry is late. " * 120, "Fine.")
    ]
    async with gateway(url) as gate:
        await say(gate, "When?")
        told = await say(gate, *history, "And now?", x_refold_conversation="long")
        assert told["x-refold-action"] == "recovered"
        _, found = await get(gate, "/refold/stats?by=upstream&days=2")
        status, wrong = await get(gate, "/refold/stats?by=colour")

    assert (status, wrong["error"]["code"]) == (400, "config_error")
    (one,) = found["groups"]
    refused = len(gate.upstream.requests) - 2
    assert (one["name"], one["replies"]["calls"], one["recoveries"]) == ("scripted", 2, refused)
    assert refused > 0
    assert one["replies"]["timed"] == 2
    assert one["added_ms"] == one["replies"]["added_ms"] / 2 > 0
    assert found["unsent"] > 0
    assert {row["reason"] for row in found["compactions"]} == {"overflow"}
    code, out, _ = await asyncio.to_thread(
        process, tmp_path / "chats.db", "stats", "--json", "--by", "upstream", "--days", "2"
    )
    assert (code, json.loads(out)) == (0, found)


@pytest.mark.feature("X15")
async def test_a_summary_is_counted_at_the_upstream_that_wrote_it(tmp_path):
    history = [text for turn in range(9) for text in (f"Step {turn}. " + "The ferry is late. " * 60, "Fine.")]
    async with gateway(f"sqlite:///{tmp_path / 'chats.db'}", summariser_enabled=True, window=8_000) as gate:
        await say(gate, *history, "And now?", x_refold_conversation="long")
        status, _, told = await gate.post("/refold/conversations/long/compact", b"{}")
        _, found = await get(gate, "/refold/stats?by=upstream")
        wrong = [await get(gate, f"/refold/stats?{asked}") for asked in ("all=maybe", "owner=anna")]

    assert status == 200, told
    assert [(one["name"], one["summaries"]["calls"]) for one in found["groups"]] == [("scripted", 2)]
    assert [code for code, _ in wrong] == [400, 400]


@pytest.mark.feature("X15")
async def test_an_admin_key_sees_the_figures_of_all_owners_and_no_conversation(tmp_path):
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    async with gateway(url) as gate:
        keys = {}
        for owner, admin in (("anna", False), ("ben", False), ("operator", True)):
            keys[owner], kept = mint(owner, at=1.0, admin=admin)
            await gate.store.add_key(kept)
        for owner, count in (("anna", 2), ("ben", 1)):
            for number in range(count):
                await say(gate, f"Hello {number}", authorization=f"Bearer {keys[owner]}")
        seen = {owner: await get(gate, "/refold/stats?by=conversation", key) for owner, key in keys.items()}
        refused = [
            await get(gate, path, keys["anna"])
            for path in ("/refold/stats?by=owner", "/refold/stats?all=true")
        ]
        _, everybody = await get(gate, "/refold/stats?by=owner", keys["operator"])
        _, by_day = await get(gate, "/refold/stats?by=day&all=true", keys["operator"])
        closed, _ = await get(gate, "/refold/stats?by=conversation&all=true", keys["operator"])

    assert [len(found["groups"]) for _, found in seen.values()] == [2, 1, 0]
    assert [status for status, _ in refused] == [403, 403]
    assert [(one["name"], one["replies"]["calls"]) for one in everybody["groups"]] == [
        ("anna", 2),
        ("ben", 1),
    ]
    assert (by_day["owner"], by_day["total"]["replies"]["calls"]) == (None, 3)
    assert closed == 400


@pytest.mark.feature("X15")
async def test_the_price_of_summaries_counts_against_the_savings(tmp_path):
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    texts = [text for turn in range(3) for text in (f"Step {turn}. " + "The ferry is late. " * 120, "Fine.")]
    async with gateway(url, summariser_enabled=True, window=32_000) as gate:
        await say(gate, *texts, "And now?", x_refold_conversation="a")
        assert (await gate.post("/refold/conversations/a/compact", b"{}"))[0] == 200
        _, found = await get(gate, "/refold/stats?by=conversation")

    (one,) = found["groups"]
    usage, (dear, _, output) = one["summaries"]["usage"], PRICE["gpt-4o"]
    price = (usage["input"] * dear + usage["output"] * output) / 1e6
    assert one["summaries"]["dollars"] == pytest.approx(price, abs=1e-12)
    assert price > 0
    assert one["net_dollars"] == pytest.approx(one["replies"]["saved"] - price, abs=1e-12)
    assert one["net_dollars"] == found["net_dollars"] == found["total"]["net_dollars"] < 0
    assert one["net_tokens"] == one["unsent"] - usage["input"] - usage["output"]


@pytest.mark.feature("X15")
async def test_prometheus_and_opentelemetry_tell_the_same_figures(tmp_path):
    metrics, spans = PrometheusMetrics(), InMemorySpanExporter()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    async with gateway(url, metrics=metrics, telemetry=Telemetry(tracers)) as gate:
        await say(gate, "When?")
        await say(gate, "When?", "Fine.", "And then?")
        _, found = await get(gate, "/refold/stats")
        async with aiohttp.ClientSession() as session, session.get(f"{gate.url}/metrics") as answer:
            families = [*text_string_to_metric_families(await answer.text())]

    values = {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}
    sums = found["total"]["replies"]
    key = ("reply", "gpt-4o", "scripted", "measured")
    assert values["refold_calls_total", *key] == sums["calls"] == 2
    assert values["refold_cost_dollars_total", *key] == pytest.approx(sums["dollars"])
    told = [dict(one.attributes) for one in spans.get_finished_spans()]
    assert sum(one["gen_ai.usage.input_tokens"] for one in told) == found["sent"]
    assert sum(one["refold.cost"] for one in told) == pytest.approx(sums["dollars"])
