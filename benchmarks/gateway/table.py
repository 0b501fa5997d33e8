"""The result table: all proxies side by side, with the goals. A plus after a goal means that it was met, a
minus that it was not.
"""

from collections.abc import Iterator

GOALS = {
    "whole_p50_ms": 1.2,
    "per_s": 1_000.0,
    "known_p50_ms": 6.0,
    "first_sight_p50_ms": 60.0,
    "first_p50_ms": 1.5,
}
"""Limits for the time added to a direct connection, and minimum requests per second."""
RSS_MB = 150.0
NAMES = {
    "direct": "direct",
    "refold": "Refold",
    "litellm": "LiteLLM",
    "headroom": "headroom",
}
WIDTH = 42
TOLD = 8
"""Functions that are named below each profile."""


def table(results: dict) -> str:
    peers = [name for name in results["proxies"] if name not in ("direct", "refold")]
    lines = [*_about(results), _heading(peers)]
    for one in results["small"].values():
        lines += [one["name"], *_small(one["figures"], peers)]
    for one in results["large"].values():
        lines += [one["name"], *_large(one["figures"], [peer for peer in peers if peer in one["figures"]])]
    lines += _beside(results.get("beside", {}))
    lines += _memory(results)
    lines += _places(results.get("places", {}))
    return "\n".join(lines)


def _about(results: dict) -> Iterator[str]:
    before, after = results["load_before"][0], results["load_after"][0]
    own, rest = results["cores"]
    cores = "all on any core" if own is None else f"proxy on core {own}, stub and client on core {rest}"
    yield f"store {results['store']}, a page to its disk {results['disk_ms']:.2f} ms; {cores}; load {before:.1f} to {after:.1f}"


def _heading(peers: list[str]) -> str:
    columns = "".join(f"{NAMES[peer] + ' added':>20}" for peer in peers)
    return f"{'':<{WIDTH}}{'direct':>9}{'Refold':>9}{'added':>9}{'goal':>9}{columns}"


def _small(figures: dict, peers: list[str]) -> Iterator[str]:
    is_stream = "first_p50_ms" in figures["refold"]
    if is_stream:
        yield _added("  until the first byte, p50 ms", "first_p50_ms", figures, peers)
        yield _added("  until the first word, p50 ms", "word_p50_ms", figures, peers)
        yield _added("  until the end, p50 ms", "whole_p50_ms", figures, peers, has_goal=False)
    else:
        yield _added("  p50 ms", "whole_p50_ms", figures, peers)
        yield _added("  p99 ms", "whole_p99_ms", figures, peers)
    yield _rate(figures, peers, has_goal=not is_stream)
    yield _processor("  processor time, ms, 32 at once", "cpu_ms", figures, peers)


def _large(figures: dict, peers: list[str]) -> Iterator[str]:
    yield _added("  first sight, p50 ms", "first_sight_p50_ms", figures, peers)
    yield _processor("  its processor time, ms", "first_sight_cpu_ms", figures, peers)
    yield _added("  known, two messages more, p50 ms", "known_p50_ms", figures, peers)
    yield _added("  the same, p99 ms", "known_p99_ms", figures, peers)
    yield _processor("  its processor time, ms", "known_cpu_ms", figures, peers)


def _added(name: str, key: str, figures: dict, peers: list[str], *, has_goal: bool = True) -> str:
    direct, ours = figures["direct"][key], figures["refold"][key]
    wanted = GOALS.get(key) if has_goal else None
    row = f"{name:<{WIDTH}}{direct:>9.2f}{ours:>9.2f}{ours - direct:>9.2f}"
    row += _goal(wanted, is_met=wanted is not None and ours - direct <= wanted)
    others = (figures[peer][key] - direct for peer in peers)
    return row + "".join(_other(f"{added:,.1f}", added / max(ours - direct, 0.001)) for added in others)


def _rate(figures: dict, peers: list[str], *, has_goal: bool) -> str:
    direct, ours = figures["direct"]["per_s"], figures["refold"]["per_s"]
    row = f"{'  per second, 32 at once':<{WIDTH}}{direct:>9,.0f}{ours:>9,.0f}{'':>9}"
    row += _goal(GOALS["per_s"] if has_goal else None, is_met=ours >= GOALS["per_s"])
    rates = (figures[peer]["per_s"] for peer in peers)
    return row + "".join(_other(f"{rate:,.0f}", ours / rate) for rate in rates)


def _processor(name: str, key: str, figures: dict, peers: list[str]) -> str:
    ours = figures["refold"][key]
    row = f"{name:<{WIDTH}}{'':>9}{ours:>9.2f}{'':>18}"
    return row + "".join(_other(f"{figures[peer][key]:,.1f}", figures[peer][key] / ours) for peer in peers)


def _other(figure: str, ratio: float) -> str:
    times = f"({ratio:,.0f} ×)" if ratio >= 10 else f"({ratio:.1f} ×)"
    return f"{figure:>11} {times:>8}"


def _goal(wanted: float | None, *, is_met: bool) -> str:
    return f"{'':>9}" if wanted is None else f"{f'{wanted:,.6g} ' + ('+' if is_met else '-'):>9}"


def _beside(loads: dict) -> Iterator[str]:
    if not loads:
        return
    columns = "".join(
        f"{name:>9}" for name in ("MB", "took s", "p50 ms", "p99 ms", "max ms", "memory", "after")
    )
    yield f"{'1 KB, always another conversation, beside':<{WIDTH}}{columns}"
    for one in loads.values():
        size, took = one.get("mb"), one.get("took_s")
        cells = [f"{size:>9.2f}" if size else f"{'':>9}", f"{took:>9.1f}" if took else f"{'':>9}"]
        cells += [f"{one[key]:>9,.0f}" for key in ("p50_ms", "p99_ms", "max_ms")]
        if size and size >= 1:  # how many times the bytes of the load, at the most and after it
            cells += [f"{f'{one[key] / size:.1f} ×':>9}" for key in ("peak_mb", "after_mb")]
        yield f"{'  ' + one['name']:<{WIDTH}}{''.join(cells)}"


def _memory(results: dict) -> Iterator[str]:
    told = ", ".join(f"{NAMES[name]} {mb:.0f}" for name, mb in results["rss_mb"].items())
    yield f"memory, MB after all of this: {told}"
    if "memory" not in results:
        return
    samples, requests = results["memory"]["samples"], results["memory"]["requests"]
    told = ", ".join(f"{done:,}: {mb:.0f}" for done, mb in samples[:: len(samples) // 5])
    last, middle = samples[-1][1], samples[len(samples) // 2][1]
    yield f"memory of a new one, MB after so many requests of {results['memory']['talks']} conversations: {told}"
    yield f"{'  at the end':<{WIDTH}}{'':>9}{last:>9.0f}{'':>9}{_goal(RSS_MB, is_met=last <= RSS_MB)}"
    yield f"{'  more than at half of it':<{WIDTH}}{'':>9}{last - middle:>9.0f}"
    fresh = f"  after {requests:,} more, each another talk"
    yield f"{fresh:<{WIDTH}}{'':>9}{results['memory']['fresh']:>9.0f}"


def _places(places: dict) -> Iterator[str]:
    for name, found in places.items():
        total = sum(found["areas"].values())
        yield f"processor time of one request, {name}: {total:.2f} ms"
        for area, cost in found["areas"].items():
            yield f"  {area:<24}{cost:>10.3f} ms{cost / total:>7.0%}"
        yield "  most of it: " + "; ".join(
            f"{one} {cost:.3f}" for one, cost in list(found["functions"].items())[:TOLD]
        )
