"""The measurements. Every figure is the median of rounds in which the proxies take turns, so that other load
on the machine affects all of them.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from benchmarks.gateway import client_requests
from benchmarks.gateway.load import Client, Took, crowd
from benchmarks.gateway.proxies import Proxy, alone

AT_ONCE = 32
TALKS = 500
"""Conversations that take turns."""
REQUESTS = 10_000
FULL, COMPACTED = 1_000_000, 100_000
"""Windows that hold 800 KB, and that do not."""


class Effort(NamedTuple):
    """The amount of work of a run."""

    rounds: int = 5
    small: int = 200
    streams: int = 30
    large: int = 8
    seconds: float = 6.0
    """Time of one proxy in one round: some proxies need a second for a large request."""
    crowd: int = 4_000
    requests: int = REQUESTS


QUICK = Effort(rounds=2, small=60, streams=10, large=4, seconds=3.0, crowd=1_000, requests=2_000)


class Small(NamedTuple):
    key: str
    name: str
    feed: Callable[[], Iterator[bytes]]
    warm: int = 20
    is_stream: bool = False


SMALL = (
    Small("same", "1 KB, the same again and again", client_requests.same),
    Small("growing", "1 KB, a conversation that goes on", client_requests.growing),
    Small("many", f"1 KB, {TALKS} conversations in turn", lambda: client_requests.many(TALKS), TALKS),
    Small("fresh", "1 KB, always another conversation", client_requests.fresh),
    Small(
        "stream",
        "1 KB, streamed in 40 pieces",
        lambda: client_requests.growing(is_stream=True),
        3,
        is_stream=True,
    ),
)


whole = attrgetter("whole")


def report(text: str) -> None:
    print(f"\r{text:<78}", end="", file=sys.stderr, flush=True)


def p99(times: Sequence[float]) -> float:
    return sorted(times)[int(0.99 * (len(times) - 1))]


class Taken:
    """The times of one proxy in one case, round by round."""

    def __init__(self) -> None:
        self.rounds: list[list[Took]] = []
        self.cpu_ms: list[float] = []

    def add(self, times: list[Took], cpu_s: float) -> None:
        self.rounds.append(times)
        self.cpu_ms.append(cpu_s * 1_000 / len(times))

    def figures(self, name: str, pick: Callable[[Took], float]) -> dict[str, float]:
        rounds = [[pick(took) for took in one] for one in self.rounds]
        each = [time for one in rounds for time in one]
        return {
            f"{name}_p50_ms": statistics.median(map(statistics.median, rounds)),
            f"{name}_p99_ms": p99(each),
            f"{name}_cpu_ms": statistics.median(self.cpu_ms),
            f"{name}_n": len(each),
        }


def ask(client: Client, feed: Iterator[bytes], most: int, seconds: float) -> list[Took]:
    until, times = time.monotonic() + seconds, []
    for request in feed:
        times.append(client.ask(request))
        if len(times) >= most or time.monotonic() > until:
            break
    return times


def small(case: Small, proxies: Sequence[Proxy], effort: Effort) -> dict[str, dict[str, float]]:
    """The time of one request after another, and the number of requests per second."""
    feeds = {proxy: case.feed() for proxy in proxies}
    taken = {proxy: Taken() for proxy in proxies}
    most = effort.streams if case.is_stream else effort.small
    for turn in range(-1, effort.rounds):
        for proxy in proxies:
            report(f"{case.name}: {proxy.name}, round {turn + 1}")
            with alone(proxy, proxies), Client(proxy.port) as client:
                if turn < 0:
                    ask(client, feeds[proxy], case.warm, effort.seconds * 2)
                    continue
                start = proxy.cpu_s()
                times = ask(client, feeds[proxy], most, effort.seconds)
                taken[proxy].add(times, proxy.cpu_s() - start)
    rates = throughput(case, proxies, effort)
    out = {}
    for proxy in proxies:
        figures = taken[proxy].figures("whole", whole)
        if case.is_stream:
            figures |= taken[proxy].figures("first", attrgetter("first"))
            figures |= taken[proxy].figures("word", attrgetter("word"))
        out[proxy.name] = {**figures, **rates[proxy]}
    return out


def throughput(case: Small, proxies: Sequence[Proxy], effort: Effort) -> dict[Proxy, dict[str, float]]:
    found: dict[Proxy, list[tuple[float, float]]] = {proxy: [] for proxy in proxies}
    for turn in range(max(2, effort.rounds // 2)):
        for proxy in proxies:
            report(f"{case.name}: {proxy.name}, {AT_ONCE} at once, round {turn + 1}")
            feeds = _feeds(case)
            with alone(proxy, proxies):
                crowd(proxy.port, feeds, max(case.warm, effort.crowd // 10), effort.seconds * 2)
                before, start = proxy.cpu_s(), time.perf_counter()
                rate = crowd(proxy.port, feeds, effort.crowd, effort.seconds)
                answered = rate * (time.perf_counter() - start)
                found[proxy].append((rate, (proxy.cpu_s() - before) * 1_000 / max(1.0, answered)))
    return {
        proxy: {
            "per_s": statistics.median(rate for rate, _ in runs),
            "cpu_ms": statistics.median(cpu for _, cpu in runs),
        }
        for proxy, runs in found.items()
    }


def _feeds(case: Small) -> list[Iterator[bytes]]:
    if case.key == "many":
        return [client_requests.many(TALKS // AT_ONCE) for _ in range(AT_ONCE)]
    return [case.feed() for _ in range(AT_ONCE)]


def large(
    window: int, proxies: Sequence[Proxy], source: client_requests.Large, effort: Effort
) -> dict[str, dict[str, float]]:
    """A new request of 2,000 messages, and the same conversation when it continues."""
    first = {proxy: Taken() for proxy in proxies}
    known = {proxy: Taken() for proxy in proxies}
    for turn in range(effort.rounds):
        for proxy in proxies:
            report(f"800 KB in a window of {window:,}: {proxy.name}, round {turn + 1}")
            talk = source.talk(window)
            request = talk.request()
            with alone(proxy, proxies), Client(proxy.port) as client:
                start = proxy.cpu_s()
                first[proxy].add([client.ask(request)], proxy.cpu_s() - start)
                feed, start = iter(talk.go_on, None), proxy.cpu_s()
                times = ask(client, feed, effort.large, effort.seconds)
                known[proxy].add(times, proxy.cpu_s() - start)
    return {
        proxy.name: {
            **first[proxy].figures("first_sight", whole),
            **known[proxy].figures("known", whole),
            "kilobytes": len(request) / 1_000,
            "rss_mb": proxy.rss_mb(),
        }
        for proxy in proxies
    }


def memory(proxy: Proxy, effort: Effort) -> dict[str, object]:
    """Memory while 500 conversations continue, then while each request starts a new one."""
    samples = [(0, proxy.rss_mb())]
    feeds = [client_requests.many(TALKS // AT_ONCE + 1) for _ in range(AT_ONCE)]
    step = effort.requests // 10
    for done in range(step, effort.requests + 1, step):
        report(f"memory: {done:,} requests")
        crowd(proxy.port, feeds, step, 300.0)
        samples.append((done, proxy.rss_mb()))
    crowd(proxy.port, [client_requests.fresh() for _ in range(AT_ONCE)], effort.requests, 600.0)
    return {"samples": samples, "fresh": proxy.rss_mb(), "requests": effort.requests, "talks": TALKS}
