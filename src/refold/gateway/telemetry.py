"""The gateway's figures for others: `GET /metrics` for Prometheus; spans, events and metrics for OpenTelemetry.

`CountedStore` passes everything on to another store, and tells a listener of each call and each compaction once
that has stored it. `PrometheusMetrics` adds them up since the start of the process; the sums of the store, which
outlive it, are those of `refold.engine.effect`. A label has few values: names of models and upstreams beyond the
first fifty are counted as `other`.

For OpenTelemetry, by its conventions for generative AI: one span for each call to a model, those for summaries
included; one event for each compaction, in the span of the call that caused it, or in a span of its own. Without a
configured SDK every act here is one of OpenTelemetry's own no-ops. Labels and attributes hold names of models and
upstreams, numbers, and the id of the call (`x-refold-receipt`), and never content, owners or conversations.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Protocol, cast

from msgspec import Struct, structs

from refold.model.errors import MissingExtra
from refold.model.tokens import Usage
from refold.plugins.registry import active
from refold.ports.models import Ask, Upstream
from refold.ports.records import (
    Batch,
    Call,
    CallSum,
    CompactionState,
    CompactionSum,
    CountedOutcome,
    Head,
    StoredSummary,
    counted,
)
from refold.ports.store import Store
from refold.wire.reply import Reply

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider
    from prometheus_client.metrics_core import Metric
    from starlette.types import Scope

MOST_NAMES = 50
"""Values of the labels `model` and `upstream`, each: a client may send any text as the name of a model."""
OTHER = "other"
LONGEST_NAME = 100
ADDED_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Bounds of the histogram of the added time: a request on which nothing happens takes a millisecond or two."""


class EffectListener(Protocol):
    """Is told of what was stored, and must not fail or take long."""

    def add_call(self, call: Call) -> None: ...

    def add_compaction(self, added: CompactionSum) -> None: ...


class CountedStore:
    """A store that tells listeners of each call and compaction after it was stored."""

    def __init__(self, store: Store, listeners: Iterable[EffectListener]) -> None:
        self._store, self._listeners = store, tuple(listeners)

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def commit(self, seen: Head, batch: Batch) -> Head:
        undone = await self._store.compaction(seen.owner, batch.undoes) if batch.undoes else None
        head = await self._store.commit(seen, batch)
        for change in batch.changes:
            author = change.written.summary.author if change.written else ""
            self._tell_compaction(counted(change.compaction, author, "installed"))
        if undone is not None:
            written = await self._store.written(seen.owner, [undone.id])
            author = written[0].summary.author if written else ""
            self._tell_compaction(counted(undone, author, "undone"))
        self._tell_calls(batch.calls)
        return head

    async def reply(self, owner: str, which: str, holder: str, written: StoredSummary, *calls: Call) -> bool:
        is_first = await self._store.reply(owner, which, holder, written, *calls)
        self._tell_calls(calls)
        return is_first

    async def give_up(
        self, owner: str, which: str, holder: str, state: CompactionState, error: str = ""
    ) -> bool:
        is_held = await self._store.give_up(owner, which, holder, state, error)
        if is_held and state in ("failed", "superseded"):
            ended = await self._store.compaction(owner, which)
            if ended is not None:
                self._tell_compaction(counted(ended, "", cast("CountedOutcome", state)))
        return is_held

    def _tell_calls(self, calls: Iterable[Call]) -> None:
        for call in calls:
            for listener in self._listeners:
                listener.add_call(call)

    def _tell_compaction(self, added: CompactionSum | None) -> None:
        for listener in self._listeners if added is not None else ():
            listener.add_compaction(added)  # type: ignore[arg-type]


def counted_store(store: Store, *listeners: EffectListener) -> Store:
    return cast("Store", CountedStore(store, listeners)) if listeners else store


class Names:
    """The values of a label: the first `MOST_NAMES`, and `other` for all that come later."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def label(self, name: str) -> str:
        name = name[:LONGEST_NAME] or "unknown"
        if name not in self._known and len(self._known) >= MOST_NAMES:
            return OTHER
        self._known.add(name)
        return name


class PrometheusMetrics:
    """The calls and compactions of this process, added up, as metrics of `prometheus_client`."""

    def __init__(self) -> None:
        """
        Raises:
            MissingExtra: `prometheus_client` is not installed.
        """
        try:
            from prometheus_client import CollectorRegistry, Histogram
        except ImportError:
            raise MissingExtra("prometheus", "/metrics") from None
        self._models, self._upstreams = Names(), Names()
        self._calls: dict[tuple[str, ...], CallSum] = {}
        self._compactions: dict[tuple[str, ...], int] = {}
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._added = Histogram(
            "refold_added_seconds",
            "Time between a client's request and the first one to the upstream.",
            ["upstream"],
            buckets=ADDED_S,
            registry=self._registry,
        )

    def text(self) -> tuple[bytes, str]:
        """All metrics in the text format of Prometheus, and its content type."""
        from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

        return generate_latest(self._registry), CONTENT_TYPE_PLAIN_0_0_4

    def add_call(self, call: Call) -> None:
        model, upstream = self._models.label(call.model), self._upstreams.label(call.upstream)
        usage = "estimated" if call.is_estimated else "measured"
        key = call.kind, model, upstream, usage
        known = self._calls.get(key) or CallSum(kind=call.kind, model=model, upstream=upstream)
        self._calls[key] = known.plus(call)
        if call.added_ms is not None:
            self._added.labels(upstream).observe(call.added_ms / 1_000)

    def add_compaction(self, added: CompactionSum) -> None:
        key = added.kind, added.reason or "unknown", added.author or "none", added.outcome
        self._compactions[key] = self._compactions.get(key, 0) + added.count

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; the registry calls it."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        labels = ("kind", "model", "upstream", "usage")
        calls = CounterMetricFamily("refold_calls", "Calls to providers.", labels=labels)
        tokens = CounterMetricFamily(
            "refold_tokens", "Tokens of calls; reasoning is part of output.", labels=(*labels, "type")
        )
        dollars = CounterMetricFamily("refold_cost_dollars", "Dollars that calls cost.", labels=labels)
        recoveries = CounterMetricFamily(
            "refold_recoveries", "Requests that were refused, changed and sent again.", labels=labels
        )
        # No counters: they fall if a summary takes more room than what it stands for, or a cache is written anew.
        unsent = GaugeMetricFamily(
            "refold_unsent_tokens", "Tokens that calls did not send, since the start.", labels=labels
        )
        saved = GaugeMetricFamily(
            "refold_saved_dollars", "Dollars that calls saved, since the start.", labels=labels
        )
        for key, one in self._calls.items():
            calls.add_metric(key, one.calls)
            dollars.add_metric(key, one.dollars)
            recoveries.add_metric(key, one.recoveries)
            unsent.add_metric(key, one.unsent)
            saved.add_metric(key, one.saved)
            for name, count in structs.asdict(one.usage).items():
                if name != "last_prompt":
                    tokens.add_metric((*key, name), count)
        compactions = CounterMetricFamily(
            "refold_compactions", "Compactions.", labels=("kind", "reason", "author", "outcome")
        )
        for outcome, count in self._compactions.items():
            compactions.add_metric(outcome, count)
        plugins = CounterMetricFamily(
            "refold_plugin_calls", "Calls of plugins.", labels=("plugin", "point", "outcome")
        )
        for called, count in active().counts.items():
            plugins.add_metric(called, count)
        yield from (calls, tokens, dollars, recoveries, unsent, saved, compactions, plugins)

    def describe(self) -> list[Metric]:
        return []


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
