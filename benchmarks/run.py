"""Measure Refold: `make bench`. Prints a table, and with --json one document.

Every figure is a median over repeated runs in this process (import and start-up times: new processes).
Compare the ratios: absolute times differ between machines.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from benchmarks import compaction
from benchmarks.conversation import Writer, body, turn
from benchmarks.peers import peers

SIZES = (100, 1_000, 10_000)


def timed(run: Callable[[], object], repeat: int) -> float:
    """Median milliseconds."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        run()
        times.append((time.perf_counter() - start) * 1_000)
    return statistics.median(times)


def from_scratch() -> dict[str, float]:
    """A request of 2,000 messages, seen for the first time: its tokenizer is warm, its counts are not cached."""
    from refold.model.dialect import CHAT
    from refold.tokens import counter_for
    from refold.wire import decode_request

    data = body(2_000)
    request = decode_request(data, CHAT)
    view = _look(request, counter_for("gpt-4o"))
    warm_text = timed(lambda: _look(decode_request(data, CHAT), _uncached()), 9)
    return {
        "messages": len(request.messages) + len(request.system),
        "kilobytes": len(data) / 1_000,
        "tokens": view.tokens.tokens,
        "decode_ms": timed(lambda: decode_request(data, CHAT), 21),
        "all_ms": warm_text,
        "all_counts_known_ms": timed(lambda: _look(decode_request(data, CHAT), counter_for("gpt-4o")), 9),
        "recount_ms": timed(lambda: _recount(request), 5),
    }


def _uncached():
    from refold.tokens.counters import ExactCounter

    return ExactCounter("o200k_base")


def _recount(request) -> int:
    counter = _uncached()
    return sum(map(counter.message, request.messages))


def _look(request, counter):
    """All decisions before a request leaves: size, triggers, validity."""
    from refold.core.measure import count_fixed, measure
    from refold.core.policy import AnyOf, MessageCount, TokenRatio
    from refold.core.triggers import TriggerFacts, due
    from refold.core.view import View
    from refold.model.tokens import Budget

    view = View.of(request.messages, request.dialect, counter)
    _decide(
        view,
        count_fixed(request.fixed, counter),
        Budget(window=1_000_000, max_output=4_096),
        measure,
        due,
        TriggerFacts,
        {"before_call": AnyOf((TokenRatio(0.8), MessageCount(10**6)))},
    )
    return view


def _decide(view, cost, budget, measure, due, facts, rules):
    sizes = measure(view, cost, budget)
    found = facts(tokens=sizes.content.tokens, limit=budget.window, messages=len(view))
    return due(rules, "before_call", found), view.violations(as_request=True)


def append_one_turn() -> dict[int, float]:
    """One more turn: decode eight messages, append them, decide."""
    from refold.core.measure import count_fixed, measure
    from refold.core.policy import TokenRatio
    from refold.core.triggers import TriggerFacts, due
    from refold.core.view import View
    from refold.model.dialect import CHAT
    from refold.model.tokens import Budget
    from refold.wire import decode_message, decode_request

    writer, out = Writer(99), {}
    for size in SIZES:
        request = decode_request(body(size), CHAT)
        counter = _uncached()
        view = View.of(request.messages, CHAT, counter)
        cost = count_fixed(request.fixed, counter)
        new = [
            [json.dumps(message).encode() for message in turn(writer, size + number)] for number in range(50)
        ]
        times = []
        for raws in new:
            start = time.perf_counter()
            view = view.extend(decode_message(raw, CHAT) for raw in raws)
            _decide(
                view, cost, Budget(window=10**8), measure, due, TriggerFacts, {"before_call": TokenRatio(0.8)}
            )
            times.append((time.perf_counter() - start) * 1_000)
        out[size] = statistics.median(times)
    return out


def start_up(repeat: int = 15) -> dict[str, float]:
    def process(*arguments: str) -> float:
        return timed(
            lambda: subprocess.run([sys.executable, *arguments], check=True, capture_output=True), repeat
        )

    bare = process("-c", "pass")
    return {
        "python_ms": bare,
        "import_refold_ms": process("-c", "import refold") - bare,
        "import_core_ms": process("-c", "import refold.core.view, refold.wire, refold.tokens") - bare,
        "help_ms": process("-m", "refold", "--help"),
    }


def report(figures: dict) -> str:
    scratch, appended, start = figures["from_scratch"], figures["append_one_turn"], figures["start_up"]
    smallest, largest = min(appended), max(appended)
    lines = [
        f"{scratch['messages']:,} messages, {scratch['kilobytes']:,.0f} KB, {scratch['tokens']:,} tokens, gpt-4o, exact counts",
        f"  decode                                      {scratch['decode_ms']:8.1f} ms",
        f"  decode + measure + triggers + verify        {scratch['all_ms']:8.1f} ms   (goal: 60)",
        f"  the same, every text counted before         {scratch['all_counts_known_ms']:8.1f} ms",
        "one turn of 8 messages more",
        *(
            f"  after {size:>6,} messages                       {took:8.3f} ms   (goal: 1)"
            for size, took in appended.items()
        ),
        f"  {f'{largest:,} messages / {smallest:,} messages':<44}{appended[largest] / appended[smallest]:8.2f} ×    (1: the time does not grow)",
        f"  counting all 2,000 again, as peers do       {scratch['recount_ms'] / appended[1_000]:8.0f} ×    one turn here",
        "start-up",
        f"  import refold, over bare Python             {start['import_refold_ms']:8.1f} ms   (goal: 60)",
        f"  import core, wire and tokens as well        {start['import_core_ms']:8.1f} ms",
        f"  refold --help                               {start['help_ms']:8.1f} ms   (goal: 350)",
    ]
    if figures["peers"]:
        lines.append("peers, one turn more after 2,000 messages, in this run")
        ours = appended[1_000]
        lines += [
            f"  {name:<42}  {took:8.2f} ms   {took / ours:,.0f} × ours"
            for name, took in figures["peers"].items()
        ]
    lines.append(compaction.report(figures["compaction"]))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    figures = {
        "from_scratch": from_scratch(),
        "append_one_turn": append_one_turn(),
        "start_up": start_up(),
        "peers": peers(timed),
        "compaction": compaction.measure(),
    }
    print(json.dumps(figures, indent=2) if options.json else report(figures))


if __name__ == "__main__":
    main()
