"""The gateway's figures for Prometheus: `GET /metrics`, and the store that counts for it.

`CountedStore` passes everything on to another store, and tells a listener of each call and each compaction once that has stored
it. `PrometheusMetrics` adds them up since the start of the process; the sums of the store, which outlive it, are those of
`refold.engine.effect`. A label has few values: names of models and upstreams beyond the first fifty are counted as `other`, and no
label names an owner or a conversation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol, cast

from msgspec import structs

from refold.model.errors import MissingExtra
from refold.plugins.registry import active
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

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

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
