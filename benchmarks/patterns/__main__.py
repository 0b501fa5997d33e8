"""The growth of the time of every pattern and every text scanner with the text, from 1 to 200 KB.

    python -m benchmarks.patterns            everything, some minutes
    python -m benchmarks.patterns --few      the texts and scanners that froze a gateway before

Prints the worst exponent over all worst cases of each: 1 is linear, 2 is quadratic. Above `MOST` the command
fails.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from math import log
from time import perf_counter

from benchmarks.patterns.pump import FEW, ON_THE_WAY, tried
from benchmarks.patterns.pumps import pumped
from benchmarks.patterns.scanners import SCANNERS
from benchmarks.patterns.sources import patterns
from benchmarks.patterns.texts import TEXTS
from refold.core.regex_safety import Automaton

SIZES = (1_000, 12_500, 25_000, 50_000, 100_000, 200_000)
MOST = 1.2
LEAST_S = 0.002
"""Times below this are mostly overhead of the clock and the interpreter."""
TIMES = 3
"""Runs, of which the fastest counts: other load on the machine only adds time."""
Act = Callable[[int], object]


def growth(act: Act) -> tuple[float, float]:
    """The exponent of the growth over the larger sizes, and the time of the largest in seconds."""
    points = [(size, min(_took(act, size) for _ in range(TIMES))) for size in SIZES]
    told = [(log(size), log(took)) for size, took in points if took >= LEAST_S]
    slopes = [(told[-1][1] - at[1]) / (told[-1][0] - at[0]) for at in told[:-1]]
    return min(slopes, default=0.0), points[-1][1]


def _took(act: Act, size: int) -> float:
    begun = perf_counter()
    act(size)
    return perf_counter() - begun


def cases(*, is_few: bool) -> Iterator[tuple[str, str, Act]]:
    """The measurements: a name, the worst case, and the work on a text of some size."""
    for found in patterns():
        for use in found.uses:
            shapes = [
                [*islice(pumped(Automaton(found.pattern, use), size), FEW if is_few else None)]
                for size in SIZES
            ]
            for number in range(min(map(len, shapes))):
                texts = {size: shapes[at][number] for at, size in enumerate(SIZES)}
                yield (
                    f"{found.place} ({use})",
                    f"case {number}",
                    partial(_try, found.pattern, use, texts),
                )
    for name, scanner in SCANNERS.items():
        for kind, text in TEXTS.items() if not is_few or name in ON_THE_WAY else ():
            yield name, kind, partial(_scan, scanner, text)


def _try(pattern, use: str, texts: dict[int, str], size: int) -> object:
    return tried(pattern, use, texts[size])


def _scan(scanner: Callable[[str], object], text: Callable[[int], str], size: int) -> object:
    return scanner(text(size))


def main() -> None:
    reading = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    reading.add_argument("--few", action="store_true", help="only the worst")
    is_few, worst = reading.parse_args().few, dict[str, tuple[float, str, float]]()
    for number, (name, kind, act) in enumerate(cases(is_few=is_few), 1):
        exponent, took = growth(act)
        worst[name] = max(worst.get(name, (0.0, "", 0.0)), (exponent, kind, took))
        if number % 200 == 0:
            print(f"{number} cases", file=sys.stderr)
    rows = sorted(worst.items(), key=lambda row: -row[1][0])
    print(f"{len(rows)} patterns and scanners; the ten that grow fastest, 1 to 200 KB:")
    for name, (exponent, kind, took) in rows[:10]:
        print(f"{exponent:5.2f}  {1_000 * took:8.1f} ms at 200 KB  {name}: {kind}")
    above = [name for name, (exponent, *_) in rows if exponent > MOST]
    print(f"above {MOST}: {len(above)}")
    sys.exit(bool(above))


if __name__ == "__main__":
    main()
