"""Spans, events and metrics of the gateway for OpenTelemetry, by its conventions for generative AI.

One span for each call to a model, those for summaries included; one event for each compaction, in the span of the call that
caused it, or in a span of its own. Without a configured SDK every act here is one of OpenTelemetry's own no-ops. Attributes hold names
of models and upstreams, numbers, and the id of the call (`x-refold-receipt`), and never content, owners or conversations.
"""

from __future__ import annotations

import time
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING

from msgspec import Struct

from refold.gateway.metrics import Names
from refold.model.errors import MissingExtra
from refold.model.tokens import Usage
from refold.ports.models import Ask, Upstream
from refold.ports.records import Call, CompactionSum
from refold.wire.reply import Reply

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider
    from starlette.types import Scope

OPERATION = "chat"
COMPACTION = "refold.compaction"
DURATION_S = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
TOKENS = (
    1,
    4,
    16,
    64,
    256,
    1024,
    4096,
    16_384,
    65_536,
    262_144,
    1_048_576,
    4_194_304,
    16_777_216,
    67_108_864,
)
"""The buckets that the conventions name."""


class CallSpan(Struct, frozen=True):
    """The span of a call in progress."""

    call_id: str
    span: Span
    began: float
    previous: Token[Context]
    outer: Token[CallSpan | None]


_CURRENT: ContextVar[CallSpan | None] = ContextVar("refold_call_span", default=None)


def is_recorded() -> bool:
    """True if an SDK takes spans or metrics; otherwise both providers are OpenTelemetry's own stand-ins.

    Raises:
        MissingExtra: `opentelemetry-api` is not installed.
    """
    try:
        from opentelemetry import metrics, trace
    except ImportError:
        raise MissingExtra("otel", "tracing") from None
    providers = (trace.get_tracer_provider(), metrics.get_meter_provider())
    own = ("opentelemetry.trace", "opentelemetry.metrics")
    return not all(type(one).__module__.startswith(own) for one in providers)


class Telemetry:
    """Writes spans, events and metrics to the providers of OpenTelemetry: the global ones, unless others are given."""

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        *,
        version: str = "",
    ) -> None:
        """
        Raises:
            MissingExtra: `opentelemetry-api` is not installed.
        """
        try:
            from opentelemetry import metrics, trace
        except ImportError:
            raise MissingExtra("otel", "tracing") from None
        self._tracer = trace.get_tracer("refold", version, tracer_provider)
        meter = metrics.get_meter("refold", version, meter_provider)
        self._models, self._upstreams = Names(), Names()
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage",
            "{token}",
            "Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=TOKENS,
        )
        self._duration = meter.create_histogram(
            "gen_ai.client.operation.duration",
            "s",
            "Time of a call, with retries.",
            explicit_bucket_boundaries_advisory=DURATION_S,
        )
        self._added = meter.create_histogram(
            "refold.added_duration",
            "s",
            "Time between a client's request and the first one to the upstream.",
            explicit_bucket_boundaries_advisory=DURATION_S,
        )
        self._cost = meter.create_counter("refold.cost", "USD", "Dollars that calls cost.")
        # No counters: they fall if a summary takes more room than what it stands for, or a cache is written anew.
        self._unsent = meter.create_up_down_counter(
            "refold.unsent_tokens", "{token}", "Tokens that were not sent."
        )
        self._saved = meter.create_up_down_counter("refold.saved", "USD", "Dollars that calls saved.")
        self._recoveries = meter.create_counter(
            "refold.recoveries", "{request}", "Requests that were refused, changed and sent again."
        )
        self._compactions = meter.create_counter("refold.compactions", "{compaction}", "Compactions.")

    def begin(self, scope: Scope, call_id: str) -> CallSpan | None:
        """Begin the span of a client's call, within the client's trace if it names one; None if nobody records it."""
        from opentelemetry import context, propagate, trace

        parent = None
        if any(name == b"traceparent" for name, _ in scope["headers"]):
            sent = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            parent = propagate.extract(sent)
        span = self._tracer.start_span(OPERATION, parent, trace.SpanKind.CLIENT)
        if not span.is_recording():
            return None
        span.set_attributes({"gen_ai.operation.name": OPERATION, "refold.receipt": call_id})
        previous = context.attach(trace.set_span_in_context(span))
        # The token is part of the value, so the variable is set twice.
        begun = CallSpan(call_id, span, time.perf_counter(), previous, _CURRENT.set(None))
        _CURRENT.set(begun)
        return begun

    def end(self, begun: CallSpan, *, model: str, upstream: str, action: str, status: int) -> None:
        """End the span of a call. `status` is that of the answer; 0 if the client has none."""
        from opentelemetry import context

        _CURRENT.reset(begun.outer)
        context.detach(begun.previous)
        span, problem = begun.span, _problem(status)
        span.update_name(f"{OPERATION} {model}" if model else OPERATION)
        span.set_attributes(
            {"gen_ai.request.model": model, "gen_ai.provider.name": upstream, "refold.action": action}
        )
        _finish(span, problem)
        took_s = time.perf_counter() - begun.began
        self._duration.record(took_s, self._labels(model, upstream, problem))

    def traced(self, upstream: Upstream, name: str) -> Upstream:
        """The same connection to a model, with a span for each question; `name` is that of the upstream."""
        return _TracedUpstream(self, upstream, name)

    async def ask(self, upstream: Upstream, name: str, ask: Ask) -> Reply:
        from opentelemetry import trace

        began, problem, model = time.perf_counter(), "cancelled", upstream.model
        span = self._tracer.start_span(f"{OPERATION} {model}", kind=trace.SpanKind.CLIENT)
        span.set_attributes(
            {
                "gen_ai.operation.name": OPERATION,
                "gen_ai.request.model": model,
                "gen_ai.provider.name": name,
                "refold.kind": "summary",
            }
        )
        try:
            reply = await upstream.ask(ask)
        except Exception as error:
            problem = type(error).__name__
            raise
        else:
            problem, usage = "", reply.usage or Usage()
            span.set_attribute("gen_ai.usage.input_tokens", usage.prompt)
            span.set_attribute("gen_ai.usage.output_tokens", usage.output)
            return reply
        finally:
            _finish(span, problem)
            self._duration.record(time.perf_counter() - began, self._labels(model, name, problem))

    def add_call(self, call: Call) -> None:
        """Take the figures of a stored call into its span, and into the metrics."""
        begun = _CURRENT.get()
        if begun is not None and begun.call_id == call.id and begun.span.is_recording():
            begun.span.set_attributes(_attributes(call))
        labels = self._labels(call.model, call.upstream)
        for kind, tokens in (("input", call.usage.prompt), ("output", call.usage.output)):
            self._tokens.record(tokens, {**labels, "gen_ai.token.type": kind})
        labels["refold.kind"] = call.kind
        self._cost.add(call.dollars, labels)
        self._unsent.add(call.unsent, labels)
        self._saved.add(call.saved, labels)
        self._recoveries.add(call.recoveries, labels)
        if call.added_ms is not None:
            self._added.record(call.added_ms / 1_000, labels)

    def add_compaction(self, added: CompactionSum) -> None:
        """Write an event for a compaction, into the span in progress or into one of its own."""
        from opentelemetry import trace

        labels = {
            "refold.kind": added.kind,
            "refold.reason": added.reason or "unknown",
            "refold.author": added.author or "none",
            "refold.outcome": added.outcome,
        }
        self._compactions.add(added.count, labels)
        span = trace.get_current_span()
        own = None if span.is_recording() else self._tracer.start_span(COMPACTION)
        sizes = {"refold.tokens_before": added.before, "refold.tokens_after": added.after}
        (own or span).add_event(COMPACTION, {**labels, **sizes})
        if own is not None:
            own.end()

    def _labels(self, model: str, upstream: str, problem: str = "") -> dict[str, str]:
        labels = {
            "gen_ai.operation.name": OPERATION,
            "gen_ai.request.model": self._models.label(model),
            "gen_ai.provider.name": self._upstreams.label(upstream),
        }
        return {**labels, "error.type": problem} if problem else labels


class _TracedUpstream:
    def __init__(self, telemetry: Telemetry, upstream: Upstream, name: str) -> None:
        self._telemetry, self._upstream, self._name = telemetry, upstream, name

    def __getattr__(self, name: str) -> object:
        return getattr(self._upstream, name)

    @property
    def model(self) -> str:
        return self._upstream.model

    async def ask(self, ask: Ask) -> Reply:
        return await self._telemetry.ask(self._upstream, self._name, ask)


def _attributes(call: Call) -> dict[str, str | int | float | bool]:
    usage = call.usage
    found: dict[str, str | int | float | bool] = {
        "gen_ai.usage.input_tokens": usage.prompt,
        "gen_ai.usage.output_tokens": usage.output,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write,
        "refold.kind": call.kind,
        "refold.estimated": call.is_estimated,
        "refold.cost": call.dollars,
        "refold.saved": call.saved,
        "refold.unsent_tokens": call.unsent,
        "refold.recoveries": call.recoveries,
    }
    return found if call.added_ms is None else {**found, "refold.added_ms": call.added_ms}


def _problem(status: int) -> str:
    if not status:
        return "disconnected"
    return str(status) if status >= 400 else ""


def _finish(span: Span, problem: str) -> None:
    from opentelemetry.trace import StatusCode

    if problem:
        span.set_attribute("error.type", problem)
        span.set_status(StatusCode.ERROR)
    span.end()
