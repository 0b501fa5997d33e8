"""Measures how the time of every pattern and every text scanner grows with the text, from 1 to 200 KB.

    python -m benchmarks.patterns            every worst case of each pattern, every text for each scanner
    python -m benchmarks.patterns --few      two cases of each pattern, the texts that froze a gateway for each scanner

It prints the worst exponent of each scanner and of the ten worst patterns: 1 is linear, 2 is quadratic. The command
fails above `GOAL`. It ends within `FEW_S` or `ALL_S` seconds, and fails if that was too little for every case.
"""

import argparse
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from math import inf, log
from time import monotonic, process_time
from typing import NamedTuple

from benchmarks.patterns.hang_guard import FEW, FROZE, SHAPES, tried
from benchmarks.patterns.scanners import SCANNERS
from benchmarks.patterns.sources import patterns
from benchmarks.patterns.texts import TEXTS
from benchmarks.patterns.worst_cases import pumped
from refold.core.regex_safety import Automaton

SIZES = (1_000, 12_500, 25_000, 50_000, 100_000, 200_000)
GOAL = 1.2
FEW_S = 300.0
"""The limit of a short run: about 1,400 cases, which take about 80 seconds of processor time."""
ALL_S = 3_600.0
"""The limit of the whole run: about 11,500 cases."""
CASE_S = 5.0
"""Once a case has taken this long, no larger text is tried; the smaller ones give its exponent."""
HANG_S = 30.0
"""A case that takes this long is stopped, and its exponent counts as infinite."""
LEAST_S = 0.002
"""Times below this are mostly the clock's and the interpreter's own."""
TIMES = 5
"""A case above the goal is measured this often and the smallest exponent counts: other programs only add time."""
WORST = 10
Act = Callable[[int], object]
Clock = Callable[[], float]


class Case(NamedTuple):
    """One worst case of a pattern or a scanner, as the work on a text of some size."""

    name: str
    kind: str
    act: Act
    is_scanner: bool = False


class Growth(NamedTuple):
    """The exponent over the larger sizes, and the time in seconds that the largest of them took."""

    exponent: float
    took: float = 0.0
    size: int = 0
    kind: str = ""


class Hang(BaseException):
    """A case was stopped. No handler of what is measured takes it for an error of its own."""


def cases(*, is_few: bool) -> Iterator[Case]:
    """All that is measured."""
    for found in patterns():
        for use in found.uses:
            shapes = [
                [*islice(pumped(Automaton(found.pattern, use), size), FEW if is_few else None)]
                for size in SIZES
            ]
            for number in range(min(map(len, shapes))):
                texts = {size: shapes[at][number] for at, size in enumerate(SIZES)}
                act = partial(_try, found.pattern, use, texts)
                yield Case(f"{found.place} ({use})", f"case {number}", act)
    for name, scanner in SCANNERS.items():
        kinds = FROZE[:1] if name in SHAPES else FROZE
        for kind in kinds if is_few else TEXTS:
            yield Case(name, kind, partial(_scan, scanner, TEXTS[kind]), is_scanner=True)


def _try(pattern, use: str, texts: dict[int, str], size: int) -> object:
    return tried(pattern, use, texts[size])


def _scan(scanner: Callable[[str], object], text: Callable[[int], str], size: int) -> object:
    return scanner(text(size))


def growth(act: Act, clock: Clock = process_time) -> Growth:
    """How the time of some work grows. It is the processor's time, since others may be busy on the machine."""
    found = _growth(_points(act, clock))
    for _ in range(TIMES - 1):
        if found.exponent <= GOAL:
            break
        found = min(found, _growth(_points(act, clock)))
    return found


def _points(act: Act, clock: Clock) -> list[tuple[int, float]]:
    points: list[tuple[int, float]] = []
    for size in SIZES:
        begun = clock()
        act(size)
        points.append((size, clock() - begun))
        if sum(took for _, took in points) > CASE_S:
            break
    return points


def _growth(points: list[tuple[int, float]]) -> Growth:
    *before, (size, took) = points
    told = [point for point in before if point[1] >= LEAST_S] or before[-1:]
    if took < LEAST_S or not told:
        return Growth(0.0, took, size)
    slopes = [log(took / max(less, LEAST_S)) / log(size / smaller) for smaller, less in told]
    return Growth(min(slopes), took, size)


def measured(case: Case) -> Growth:
    """The growth of one case, or a hang."""
    signal.setitimer(signal.ITIMER_REAL, HANG_S)
    try:
        return growth(case.act)._replace(kind=case.kind)
    except Hang:
        return Growth(inf, HANG_S, 0, case.kind)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def run(given: Iterable[Case], most_s: float, clock: Clock = monotonic) -> tuple[dict, dict, int]:
    """The worst of each pattern and of each scanner, and how many cases there was no time for."""
    found: tuple[dict[str, Growth], dict[str, Growth]] = {}, {}
    begun, left = clock(), 0
    for number, case in enumerate(given, 1):
        if clock() - begun > most_s - HANG_S:
            left += 1
            continue
        worst = found[case.is_scanner]
        worst[case.name] = max(worst.get(case.name, Growth(0.0)), measured(case))
        if number % 200 == 0:
            print(f"{number} cases, {clock() - begun:.0f} s", file=sys.stderr)
    return *found, left


def table(title: str, rows: list[tuple[str, Growth]]) -> Iterator[str]:
    yield title
    for name, (exponent, took, size, kind) in rows:
        yield f"{exponent:5.2f}  {1_000 * took:8.1f} ms at {size // 1_000:3} KB  {name}: {kind}"


def _stop(*_: object) -> None:
    raise Hang


def main() -> None:
    reading = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    reading.add_argument("--few", action="store_true", help="only the worst, within five minutes")
    is_few = reading.parse_args().few
    signal.signal(signal.SIGALRM, _stop)
    by_pattern, by_scanner, left = run(cases(is_few=is_few), FEW_S if is_few else ALL_S)
    ranked = [sorted(one.items(), key=lambda row: -row[1].exponent) for one in (by_pattern, by_scanner)]
    print(*table(f"{len(by_pattern)} patterns; the {WORST} that grow fastest:", ranked[0][:WORST]), sep="\n")
    print(*table(f"{len(by_scanner)} scanners:", ranked[1]), sep="\n")
    above = sum(one.exponent > GOAL for rows in ranked for _, one in rows)
    print(f"above {GOAL}: {above}; not measured for want of time: {left}")
    sys.exit(bool(above or left))


if __name__ == "__main__":
    main()
