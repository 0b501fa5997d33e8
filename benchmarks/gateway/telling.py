"""The table: beside each other, with what was promised."""

from collections.abc import Iterator, Mapping

Figures = Mapping[str, Mapping[str, float]]

GOALS = {
    "whole_p50_ms": 1.5,
    "per_s": 1_000.0,
    "known_p50_ms": 8.0,
    "first_sight_p50_ms": 60.0,
    "first_p50_ms": 2.0,
}
RSS_MB = 150.0
NAMES = {"direct": "direct", "refold": "Refold", "litellm": "LiteLLM", "headroom": "headroom"}
WIDTH = 46


def table(results: Mapping[str, object]) -> str:
    proxies: list[str] = results["proxies"]  # type: ignore[assignment]
    peers = [name for name in proxies if name not in ("direct", "refold")]
    lines = [_heading(peers)]
    for one in results["small"].values():  # type: ignore[attr-defined]
        lines += [one["name"], *_small(one["figures"], peers)]
    for one in results["large"].values():  # type: ignore[attr-defined]
        lines += [one["name"], *_large(one["figures"], peers)]
    lines += _memory(results["memory"])  # type: ignore[arg-type]
    lines += _places(results.get("places") or {})  # type: ignore[arg-type]
    return "\n".join(lines)


def _heading(peers: list[str]) -> str:
    columns = "".join(f"{NAMES[peer] + ' added':>22}" for peer in peers)
    return f"{'':<{WIDTH}}{'direct':>10}{'Refold':>10}{'added':>10}{'goal':>10}{columns}"


def _small(figures: Figures, peers: list[str]) -> Iterator[str]:
    if "first_p50_ms" in figures["refold"]:
        yield _added("  until the first piece, p50 ms", "first_p50_ms", figures, peers)
        yield _added("  until the end, p50 ms", "whole_p50_ms", figures, peers, goal=None)
    else:
        yield _added("  p50 ms", "whole_p50_ms", figures, peers)
        yield _added("  p99 ms", "whole_p99_ms", figures, peers, goal=None)
    yield _rate(figures, peers, has_goal="first_p50_ms" not in figures["refold"])


def _large(figures: Figures, peers: list[str]) -> Iterator[str]:
    known = [peer for peer in peers if peer in figures]
    yield _added("  first sight, p50 ms", "first_sight_p50_ms", figures, known)
    yield _added("  known, two messages more, p50 ms", "known_p50_ms", figures, known)
    yield _added("  the same, p99 ms", "known_p99_ms", figures, known, goal=None)


def _added(name: str, key: str, figures: Figures, peers: list[str], goal: float | None | str = "") -> str:
    direct, ours = figures["direct"][key], figures["refold"][key]
    wanted = GOALS.get(key) if goal == "" else None
    row = f"{name:<{WIDTH}}{direct:>10.2f}{ours:>10.2f}{ours - direct:>10.2f}"
    row += _goal(wanted, is_met=wanted is not None and ours - direct <= wanted)
    for peer in peers:
        added = figures[peer][key] - direct
        row += f"{added:>12,.1f} {_times(added / max(ours - direct, 0.001)):>9}"
    return row


def _rate(figures: Figures, peers: list[str], *, has_goal: bool) -> str:
    ours = figures["refold"]["per_s"]
    row = f"{'  per second, 32 at once':<{WIDTH}}{figures['direct']['per_s']:>10,.0f}{ours:>10,.0f}"
    row += f"{figures['refold']['cpu_ms']:>7.2f}cpu"
    row += _goal(GOALS["per_s"] if has_goal else None, is_met=ours >= GOALS["per_s"])
    for peer in peers:
        rate = figures[peer]["per_s"]
        row += f"{rate:>12,.0f} {_times(ours / rate):>9}"
    return row


def _goal(wanted: float | None, *, is_met: bool) -> str:
    return f"{'':>10}" if wanted is None else f"{f'{wanted:,.6g} ' + ('+' if is_met else '-'):>10}"


def _times(ratio: float) -> str:
    return f"({ratio:,.0f} ×)" if ratio >= 10 else f"({ratio:.1f} ×)"


def _memory(memory: Mapping[str, object]) -> Iterator[str]:
    samples: list[tuple[int, float]] = memory["samples"]  # type: ignore[assignment]
    told = ", ".join(f"{done:,}: {mb:.0f}" for done, mb in samples[:: len(samples) // 5])
    last, fresh = samples[-1][1], memory["fresh"]
    yield f"memory, MB after so many requests of 500 conversations: {told}"
    yield f"  at the end{'':<{WIDTH - 12}}{'':>10}{last:>10.0f}{'':>10}{_goal(RSS_MB, is_met=last <= RSS_MB)}"
    yield f"  growth over its second half{'':<{WIDTH - 29}}{'':>10}{last - samples[len(samples) // 2][1]:>10.0f}"
    yield f"  after {memory['requests']:,} conversations more of one request each{'':<4}{fresh:>10.0f}"


def _places(places: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Iterator[str]:
    for name, found in places.items():
        total = sum(found["areas"].values())
        yield f"where the time goes: {name}; {total:.2f} ms of processor time a request"
        for area, cost in found["areas"].items():
            yield f"  {area:<20}{cost:>10.3f} ms{cost / total:>8.0%}"
        yield "  " + "; ".join(f"{one} {cost:.3f}" for one, cost in list(found["functions"].items())[:8])
