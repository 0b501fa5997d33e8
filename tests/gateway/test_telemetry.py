"""Spans, events and metrics by the conventions for generative AI, with the real SDK and its exporters in memory."""

from __future__ import annotations

import json

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from refold.gateway.server import installed_telemetry
from refold.gateway.telemetry import Telemetry
from refold.testing import Refuse, ScriptedUpstream
from tests.gateway.conftest import served

CHAT = "/v1/chat/completions"
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
LONG = [
    {"role": ("user", "assistant")[at % 2], "content": f"Step {at}. " + "The ferry is late. " * 120}
    for at in range(19)
]


class Recorded:
    """A `Telemetry` over the real SDK, and what it has exported."""

    def __init__(self) -> None:
        self._spans, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        tracers, meters = TracerProvider(), MeterProvider([self._reader])
        tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self.telemetry = Telemetry(tracers, meters, version="test")

    def spans(self):
        return self._spans.get_finished_spans()

    def points(self) -> dict[str, list]:
        found = self._reader.get_metrics_data()
        metrics = [
            one for part in found.resource_metrics for scope in part.scope_metrics for one in scope.metrics
        ]
        return {one.name: list(one.data.data_points) for one in metrics}

    def text(self) -> str:
        return "".join(one.to_json() for one in self.spans()) + str(self.points())


async def say(gate, messages, **headers) -> tuple[int, dict[str, str]]:
    body = {"model": "gpt-4o", "messages": messages, "max_tokens": 50}
    status, told, _ = await gate.post(CHAT, json.dumps(body).encode(), **headers)
    return status, told


@pytest.mark.feature("X15")
async def test_a_call_is_a_span_with_its_usage_in_the_client_s_trace():
    recorded = Recorded()
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        served(upstream, telemetry=recorded.telemetry, window=8_000, summariser_enabled=False) as gate,
    ):
        _, told = await say(gate, LONG[:1], traceparent=f"00-{TRACE}-{PARENT}-01")
        (call,) = await gate.store.calls("local", told["x-refold-conversation"])

    (span,) = recorded.spans()
    assert (span.name, span.kind, span.status.status_code) == (
        "chat gpt-4o",
        SpanKind.CLIENT,
        StatusCode.UNSET,
    )
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, PARENT)
    assert dict(span.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "gpt-4o",
        "gen_ai.provider.name": "scripted",
        "gen_ai.usage.input_tokens": call.usage.prompt,
        "gen_ai.usage.output_tokens": call.usage.output,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.usage.cache_creation.input_tokens": 0,
        "refold.action": "passed",
        "refold.receipt": told["x-refold-receipt"],
        "refold.kind": "reply",
        "refold.estimated": False,
        "refold.cost": call.dollars,
        "refold.saved": 0.0,
        "refold.unsent_tokens": 0,
        "refold.recoveries": 0,
        "refold.added_ms": call.added_ms,
    }
    points = recorded.points()
    tokens = {one.attributes["gen_ai.token.type"]: one.sum for one in points["gen_ai.client.token.usage"]}
    assert tokens == {"input": call.usage.prompt, "output": call.usage.output}
    (duration,) = points["gen_ai.client.operation.duration"]
    assert (duration.count, duration.attributes["gen_ai.provider.name"]) == (1, "scripted")


@pytest.mark.feature("X15")
async def test_a_compaction_is_an_event_of_the_call_that_caused_it_and_no_content_is_told():
    recorded = Recorded()
    async with (
        ScriptedUpstream(otherwise="Fine.", window=4_000) as upstream,
        served(upstream, telemetry=recorded.telemetry, summariser_enabled=False) as gate,
    ):
        await say(gate, LONG, x_refold_conversation="secret-name")
        compactions = await gate.store.compaction_days("local")
        (day,) = await gate.store.call_days("local")
        head = await gate.store.head("local", "secret-name")
        assert (await gate.post("/refold/conversations/secret-name/undo", b""))[0] == 200
        assert head

    call, undo = recorded.spans()
    assert [one.name for one in call.events] == ["refold.compaction"] * len(compactions)
    (event, made) = call.events[0], compactions[0]
    assert dict(event.attributes) == {
        "refold.kind": made.kind,
        "refold.reason": "overflow",
        "refold.author": made.author,
        "refold.outcome": "installed",
        "refold.tokens_before": made.before,
        "refold.tokens_after": made.after,
    }
    assert call.attributes["refold.recoveries"] == day.recoveries > 0
    assert (undo.name, undo.events[0].attributes["refold.outcome"]) == ("refold.compaction", "undone")
    points = recorded.points()
    assert [one.value for one in points["refold.unsent_tokens"]] == [day.unsent]
    assert {one.attributes["refold.outcome"]: one.value for one in points["refold.compactions"]} == {
        "installed": 1,
        "undone": 1,
    }
    for secret in ("ferry", "secret-name", "Fine."):
        assert secret not in recorded.text()


async def test_a_question_for_a_summary_is_a_span_of_its_own():
    recorded = Recorded()
    async with (
        ScriptedUpstream(
            otherwise="## Goal\nThe ferry is late, and the user asks about every step."
        ) as upstream,
        served(upstream, telemetry=recorded.telemetry, window=8_000) as gate,
    ):
        await say(gate, LONG[:9], x_refold_conversation="a")
        assert (await gate.post("/refold/conversations/a/compact", b"{}"))[0] == 200
        asked = len([one for one in upstream.requests if one.messages])  # an empty one asks for no reply

    spans = [one for one in recorded.spans() if one.name == "chat gpt-4o"]
    summaries = [one for one in spans if one.attributes["refold.kind"] == "summary"]
    assert len(spans) == asked
    assert summaries
    assert all(one.attributes["gen_ai.usage.input_tokens"] > 0 for one in summaries)
    assert all(one.attributes["gen_ai.provider.name"] == "scripted" for one in summaries)


async def test_a_refused_call_is_an_error_with_its_status():
    recorded = Recorded()
    async with (
        ScriptedUpstream(Refuse(400, "no such model")) as upstream,
        served(upstream, telemetry=recorded.telemetry) as gate,
    ):
        status, _ = await say(gate, LONG[:1])

    (span,) = recorded.spans()
    assert (status, span.status.status_code, span.attributes["error.type"]) == (400, StatusCode.ERROR, "400")
    assert "gen_ai.usage.input_tokens" not in span.attributes
    (duration,) = recorded.points()["gen_ai.client.operation.duration"]
    assert duration.attributes["error.type"] == "400"


async def test_without_a_configured_sdk_nothing_is_recorded_and_the_call_works(upstream):
    telemetry = Telemetry()
    async with served(upstream, telemetry=telemetry) as gate:
        assert telemetry.begin({"headers": []}, "call") is None
        status, _ = await say(gate, LONG[:1])

    assert status == 200


def test_a_gateway_writes_no_spans_unless_an_sdk_is_configured(monkeypatch):
    assert installed_telemetry() is None

    monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", TracerProvider)
    assert isinstance(installed_telemetry(), Telemetry)


def test_metrics_alone_are_enough_for_telemetry(monkeypatch):
    monkeypatch.setattr("opentelemetry.metrics.get_meter_provider", MeterProvider)

    assert isinstance(installed_telemetry(), Telemetry)
