"""Compares the gateways of two checkouts: `python -m benchmarks.gateway --before CHECKOUT`.

Other work on the machine changes from second to second. So the two gateways take turns with a few requests each, and the
order changes from turn to turn. The ratio of a row is the median of the ratios of its turns.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from benchmarks.gateway import client_requests
from benchmarks.gateway.cases import AT_ONCE, COMPACTED, FULL, SMALL, TALKS, ask, report, whole
from benchmarks.gateway.load import Client, Took, crowd
from benchmarks.gateway.proxies import Proxy, alone

NOW, BEFORE = "refold", "before"
LONG_S = 60.0
"""No time limit of a chunk: its number of requests ends it."""


class Turns(NamedTuple):
    """How often the gateways take turns, and the requests of one turn."""

    small: int = 30
    each: int = 20
    streams: int = 8
    streams_each: int = 4
    crowds: int = 8
    crowd: int = 400
    large: int = 5
    large_each: int = 8


QUICK = Turns(small=6, streams=2, crowds=2, crowd=200, large=2, large_each=4)


class Chunk(NamedTuple):
    """The requests of one gateway in one turn: milliseconds of a request, and of processor time for it."""

    ms: float
    cpu_ms: float


Row = dict[str, list[Chunk]]
"""The chunks of each gateway, turn by turn."""


def compare(
    proxies: Sequence[Proxy], without_model: Sequence[Proxy], turns: Turns
) -> dict[str, dict[str, object]]:
    """Every row, by its name. Compactions are compared `without_model`: earlier versions did not ask one if a digest was there."""
    rows: dict[str, Row] = {}
    for case in SMALL:
        rows |= _small(case, proxies, turns)
    for key in ("growing", "many"):
        rows[f"{key}, {AT_ONCE} at once"] = _crowd(key, proxies, turns)
    rows |= _large("800 KB", FULL, proxies, turns)
    rows |= _large("800 KB compacted", COMPACTED, without_model, turns)
    return {name: _figures(row) for name, row in rows.items()}


def _in_turn(proxies: Sequence[Proxy], times: int, name: str) -> Iterator[Proxy]:
    for turn in range(times):
        for proxy in proxies if turn % 2 else proxies[::-1]:
            report(f"{name}: {proxy.name}, turn {turn + 1}")
            with alone(proxy, proxies):
                yield proxy


def _small(case, proxies: Sequence[Proxy], turns: Turns) -> dict[str, Row]:
    """One request after another. The rows of a stream are the time to its first byte and to its end."""
    feeds = {proxy.name: case.feed() for proxy in proxies}
    picks: dict[str, Callable[[Took], float]] = {case.key: whole}
    if case.is_stream:
        picks = {f"{case.key}, first byte": attrgetter("first"), f"{case.key}, end": whole}
    rows: dict[str, Row] = {name: {proxy.name: [] for proxy in proxies} for name in picks}
    for proxy in proxies:
        with alone(proxy, proxies), Client(proxy.port) as client:
            ask(client, feeds[proxy.name], case.warm, LONG_S)
    times, each = (turns.streams, turns.streams_each) if case.is_stream else (turns.small, turns.each)
    for proxy in _in_turn(proxies, times, case.key):
        with Client(proxy.port) as client:
            start = proxy.cpu_s()
            taken = ask(client, feeds[proxy.name], each, LONG_S)
            cpu_ms = (proxy.cpu_s() - start) * 1_000 / len(taken)
        for name, pick in picks.items():
            rows[name][proxy.name].append(Chunk(statistics.median(map(pick, taken)), cpu_ms))
    return rows


def _crowd(key: str, proxies: Sequence[Proxy], turns: Turns) -> Row:
    """Many requests at once: the time is that of the whole crowd, divided by its requests."""
    row: Row = {proxy.name: [] for proxy in proxies}
    feeds = {proxy.name: [_feed(key) for _ in range(AT_ONCE)] for proxy in proxies}
    for proxy in proxies:
        with alone(proxy, proxies):
            crowd(proxy.port, feeds[proxy.name], TALKS, LONG_S)
    for proxy in _in_turn(proxies, turns.crowds, f"{key}, {AT_ONCE} at once"):
        start, began = proxy.cpu_s(), time.perf_counter()
        rate = crowd(proxy.port, feeds[proxy.name], turns.crowd, LONG_S)
        answered = rate * (time.perf_counter() - began)
        row[proxy.name].append(Chunk(1_000 / rate, (proxy.cpu_s() - start) * 1_000 / answered))
    return row


def _feed(key: str) -> Iterator[bytes]:
    return client_requests.many(TALKS // AT_ONCE) if key == "many" else client_requests.growing()


def _large(name: str, window: int, proxies: Sequence[Proxy], turns: Turns) -> dict[str, Row]:
    """A conversation of 2,000 messages at first sight, and as it goes on."""
    source = client_requests.Large()
    first: Row = {proxy.name: [] for proxy in proxies}
    known: Row = {proxy.name: [] for proxy in proxies}
    for proxy in _in_turn(proxies, turns.large, name):
        talk = source.talk(window)
        with Client(proxy.port) as client:
            start = proxy.cpu_s()
            took = client.ask(talk.request())
            first[proxy.name].append(Chunk(took.whole, (proxy.cpu_s() - start) * 1_000))
            start = proxy.cpu_s()
            taken = ask(client, iter(talk.go_on, None), turns.large_each, LONG_S)
            cpu_ms = (proxy.cpu_s() - start) * 1_000 / len(taken)
            known[proxy.name].append(Chunk(statistics.median(map(whole, taken)), cpu_ms))
    return {f"{name}, first sight": first, f"{name}, known": known}


def _figures(row: Row) -> dict[str, object]:
    now, before = row[NOW], row[BEFORE]
    pairs = list(zip(now, before, strict=True))
    return {
        "turns": len(pairs),
        "ms": [statistics.median(one.ms for one in side) for side in (now, before)],
        "ratio": statistics.median(one.ms / other.ms for one, other in pairs),
        "cpu_ms": [statistics.median(one.cpu_ms for one in side) for side in (now, before)],
        "cpu_ratio": statistics.median(one.cpu_ms / other.cpu_ms for one, other in pairs),
    }


def table(results: dict) -> str:
    """The rows as text: median time and processor time of a request, now and before."""
    heads = ("now, ms", "before", "ratio", "CPU now", "before", "ratio")
    lines = [f"{'':<34}{''.join(f'{head:>9}' for head in heads)}{'turns':>7}"]
    for name, one in results["rows"].items():
        cells = [*one["ms"], one["ratio"], *one["cpu_ms"], one["cpu_ratio"]]
        lines.append(f"{name:<34}{''.join(f'{cell:>9.2f}' for cell in cells)}{one['turns']:>7}")
    before, after = results["load_before"][0], results["load_after"][0]
    memory = ", ".join(f"{name} {mb:.0f}" for name, mb in results["rss_mb"].items())
    idle = ", ".join(f"{name} {mb:.0f}" for name, mb in results["idle_mb"].items())
    return "\n".join(
        [
            *lines,
            f"memory, MB, at the beginning: {idle}; after all of this: {memory}; load {before:.1f} to {after:.1f}",
        ]
    )
