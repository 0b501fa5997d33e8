"""The gateway asks an upstream for the window that it runs a model with."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest

import refold
from refold.engine.conversation import warn_once
from refold.gateway import upstreams
from refold.stores.url import open_store
from refold.testing import ScriptedUpstream
from tests.gateway.conftest import served, target_for

CARD = {"object": "model", "created": 1, "owned_by": "them"}
REPORTS = {
    "vLLM": ({"/v1/models": {"data": [{"id": "box-1", "max_model_len": 6_000, **CARD}]}}, 6_000),
    "another list": ({"/v1/models": {"data": [{"id": "box-1", "context_length": 7_000, **CARD}]}}, 7_000),
    "llama.cpp": (
        {
            "/v1/models": {"data": [{"id": "some.gguf", "meta": {"n_ctx_train": 131_072}, **CARD}]},
            "/props": {"default_generation_settings": {"n_ctx": 5_000}, "total_slots": 1},
        },
        5_000,
    ),
    "LM Studio": (
        {
            "/v1/models": {"data": [{"id": "box-1", **CARD}]},
            "/api/v0/models": {
                "data": [
                    {"id": "other", "state": "not-loaded", "max_context_length": 32_768},
                    {"id": "box-1", "max_context_length": 131_072, "loaded_context_length": 4_500},
                ]
            },
        },
        4_500,
    ),
    "Ollama, loaded": (
        {"/api/ps": {"models": [{"name": "box-1:latest", "context_length": 9_000}]}},
        9_000,
    ),
    "Ollama, with num_ctx": (
        {
            "/api/ps": {"models": []},
            "/api/show": {
                "parameters": 'stop    "<|end|>"\nnum_ctx                        10240\n',
                "model_info": {"llama.context_length": 131_072},
            },
        },
        10_240,
    ),
    "Ollama, without": (
        {"/api/ps": {"models": []}, "/api/show": {"model_info": {"llama.context_length": 131_072}}},
        4_096,
    ),
    "a maximum only": ({"/api/v0/models": {"data": [{"id": "box-1", "max_context_length": 32_768}]}}, 8_192),
    "no report": ({}, 8_192),
    "another model's": ({"/v1/models": {"data": [{"id": "box-2", "max_model_len": 6_000, **CARD}]}}, 8_192),
    "nonsense": (
        {
            "/v1/models": {"data": [7, {"id": 3}, {"id": "box-1", "max_model_len": "much"}]},
            "/props": [1],
            "/api/ps": {"models": "none"},
        },
        8_192,
    ),
}


def request(*texts, model="box-1", **more):
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]
    return json.dumps({"model": model, "messages": messages, **more}).encode()


async def until_known(gate, upstream, window):
    """Wait until the gateway has heard this window for the model."""
    async with asyncio.timeout(60):
        while gate.gateway.window_reports.known(target_for(upstream), "box-1") != window:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def ask(gate, name, *texts, **headers):
    body = request(*(texts or ("Hello.",)))
    return await gate.post("/v1/chat/completions", body, x_refold_conversation=name, **headers)


async def limit_of(gate, name):
    async with aiohttp.ClientSession() as session:
        url = f"{gate.url}/refold/conversations/{name}"
        return (await (await session.get(url)).json())["limit"]


def wall(window):
    """What the preset `refold` lets in: an eighth is kept for the reply, and a hundredth in reserve."""
    return window - min(window // 8, 4_096) - window // 100


@pytest.mark.feature("O15")
@pytest.mark.parametrize("server", REPORTS)
async def test_the_window_is_the_one_that_the_server_reports(upstream, server):
    upstream.reports, window = REPORTS[server]
    async with served(upstream, summariser_enabled=False) as gate:
        assert (await ask(gate, "one"))[0] == 200
        assert await limit_of(gate, "one") == wall(window)


ABSURD = [0, -5, 1, 255, 100_000_001, 2**63, 2**64, 10**30, "8192", "lots", 8_192.0, 8_192.7, True, [1], {}]


@pytest.mark.feature("O15")
@pytest.mark.parametrize("absurd", ABSURD, ids=str)
async def test_a_report_that_can_be_no_window_is_ignored_with_a_warning(upstream, caplog, absurd):
    warn_once.cache_clear()
    upstream.reports = {"/v1/models": {"data": [{"id": "box-1", "max_model_len": absurd, **CARD}]}}
    async with served(upstream, summariser_enabled=False) as gate:
        assert (await ask(gate, "one"))[0] == 200
        assert await limit_of(gate, "one") == wall(8_192)
    assert caplog.text.count("reports a window that is none: it is ignored") == 1
    assert "windows have 256 to 100,000,000 tokens" in caplog.text


@pytest.mark.feature("O15")
@pytest.mark.parametrize(
    "reports",
    [
        {"/props": {"default_generation_settings": {"n_ctx": -1}}},
        {"/api/v0/models": {"data": [{"id": "box-1", "loaded_context_length": 10**30}]}},
        {"/api/ps": {"models": [{"name": "box-1:latest", "context_length": 0}]}},
        {"/api/ps": {"models": []}, "/api/show": {"parameters": "num_ctx " + "9" * 5_000}},
    ],
    ids=["llama.cpp", "LM Studio", "Ollama, loaded", "Ollama, with num_ctx"],
)
async def test_no_kind_of_server_can_report_an_absurd_window(upstream, caplog, reports):
    warn_once.cache_clear()
    upstream.reports = reports
    async with served(upstream, summariser_enabled=False) as gate:
        assert (await ask(gate, "one"))[0] == 200
        assert await limit_of(gate, "one") == wall(8_192)
    assert "it is ignored" in caplog.text


@pytest.mark.feature("O15")
async def test_the_first_request_already_fits_into_the_reported_window(upstream):
    upstream.reports = REPORTS["vLLM"][0]
    async with served(upstream, summariser_enabled=False) as gate:
        long = "The tide came in over the long grey sand. " * 700
        status, told, _ = await ask(gate, "one", long, "Yes.", "And now?")
        assert (status, told["x-refold-action"]) == (200, "folded")
        assert len(upstream.requests) == 1  # no refusal was needed


@pytest.mark.feature("O15")
async def test_an_override_comes_before_the_report(upstream):
    upstream.reports = REPORTS["vLLM"][0]
    async with served(upstream, window=50_000, summariser_enabled=False) as gate:
        await ask(gate, "one")
        assert await limit_of(gate, "one") == wall(50_000)


@pytest.mark.feature("O15")
async def test_the_server_is_asked_with_the_key_of_the_request():
    async with (
        ScriptedUpstream(otherwise="Fine.", key="the-key") as upstream,
        served(upstream, summariser_enabled=False) as gate,
    ):
        upstream.reports = REPORTS["vLLM"][0]
        await ask(gate, "one", authorization="Bearer the-key")
        assert {one.headers["authorization"] for one in upstream.report_requests} == {"Bearer the-key"}
        assert await limit_of(gate, "one") == wall(6_000)


@pytest.mark.feature("O15")
async def test_the_server_is_asked_once_for_ten_minutes(upstream):
    upstream.reports = REPORTS["vLLM"][0]
    async with served(upstream, summariser_enabled=False) as gate:
        now = [0.0]
        gate.gateway.window_reports._clock = lambda: now[0]
        await ask(gate, "one")
        asked = len(upstream.report_requests)
        now[0] = 599.0
        await ask(gate, "two")
        assert len(upstream.report_requests) == asked
        upstream.reports = {"/v1/models": {"data": [{"id": "box-1", "max_model_len": 5_500}]}}
        now[0] = 601.0
        await ask(gate, "three")  # asks again, and does not wait for it
        await until_known(gate, upstream, 5_500)
        await ask(gate, "four")
        assert await limit_of(gate, "four") == wall(5_500)


@pytest.mark.feature("O15")
async def test_a_model_that_ollama_has_loaded_meanwhile_is_asked_about_again(upstream):
    upstream.reports = REPORTS["Ollama, without"][0]
    async with served(upstream, summariser_enabled=False) as gate:
        await ask(gate, "one")
        upstream.reports = REPORTS["Ollama, loaded"][0]
        await ask(gate, "two")
        await until_known(gate, upstream, 9_000)
        await ask(gate, "three")
        assert await limit_of(gate, "three") == wall(9_000)


@pytest.mark.feature("O15")
async def test_the_first_request_waits_half_a_second_at_most(upstream):
    assert upstreams.WAIT_S == 0.5
    upstream.reports, upstream.report_delay_s = REPORTS["vLLM"][0], 2.0
    async with served(upstream, summariser_enabled=False) as gate:
        assert (await ask(gate, "one"))[0] == 200
        assert gate.gateway.window_reports.known(target_for(upstream), "box-1") is None  # not waited for
        await until_known(gate, upstream, 6_000)
        await ask(gate, "two")
        assert await limit_of(gate, "two") == wall(6_000)


async def test_a_server_that_breaks_off_is_no_reason_to_fail(upstream, monkeypatch):
    monkeypatch.setattr(upstreams, "PATIENCE_S", 0.1)
    upstream.report_delay_s = 30.0
    async with served(upstream, summariser_enabled=False) as gate:
        assert (await ask(gate, "one"))[0] == 200


async def test_a_well_known_provider_is_not_asked(upstream, monkeypatch):
    assert upstreams.is_hosted("https://api.openai.com/v1")
    monkeypatch.setattr(upstreams, "is_hosted", lambda _: True)
    async with served(upstream, summariser_enabled=False) as gate:
        await ask(gate, "one")
        assert upstream.report_requests == []


@pytest.mark.feature("O15")
async def test_the_upstreams_are_asked_when_the_gateway_starts(upstream):
    upstream.reports = REPORTS["vLLM"][0]
    async with served(upstream, summariser_enabled=False) as gate:
        target = target_for(upstream)
        gate.gateway.window_reports.begin([target])
        await until_known(gate, upstream, 6_000)
        asked = len(upstream.report_requests)
        await ask(gate, "one")
        assert len(upstream.report_requests) == asked


@pytest.mark.feature("P2")
async def test_picoclaw_takes_the_window_from_the_output_that_the_operator_set(upstream):
    settings = {
        "compaction_preset": "picoclaw",
        "compaction_allow_system_summary": True,
        "compaction_max_output": 2_000,
        "summariser_enabled": False,
    }
    async with served(upstream, **settings) as gate:
        body = request("Hello.", max_tokens=500)
        assert (await gate.post("/v1/chat/completions", body, x_refold_conversation="one"))[0] == 200
        assert await limit_of(gate, "one") == 4 * 2_000 - 500  # the window is not four times the client's 500


@pytest.mark.feature("O15")
async def test_a_reported_window_is_known_to_programs_that_open_the_conversation_later(upstream, tmp_path):
    upstream.reports, window = REPORTS["vLLM"]
    url = f"sqlite:///{tmp_path}/chats.db"
    async with served(upstream, store=await open_store(url), summariser_enabled=False) as gate:
        assert (await ask(gate, "one"))[0] == 200
    async with refold.Engine(url) as engine:
        chat = await engine.conversation("one")
        assert (chat.window.tokens, chat.window.source) == (window, "upstream")
        other = await engine.conversation("one", model="gpt-4o")
        assert other.window.source == "catalogue"
