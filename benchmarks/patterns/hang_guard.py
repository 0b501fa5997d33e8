"""Runs worst cases in this process, and ends it with a traceback if one of them takes longer than a hang
guard allows.

    python -m benchmarks.patterns.hang_guard patterns|scanners|doors

The guard applies to each input separately and counts processor time, so that a busy machine does not set it
off. It only ends work that would never end; `python -m benchmarks.patterns` measures the speed.
"""

import argparse
import faulthandler
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice

from benchmarks.patterns.scanners import SCANNERS, Scanner
from benchmarks.patterns.sources import patterns
from benchmarks.patterns.texts import TEXTS
from benchmarks.patterns.worst_cases import pumped
from refold.core.regex_safety import Automaton

SIZE = 200_000
GUARD_S = 10.0
FEW_SIZE = 50_000
"""Characters of a text in a short run."""
FEW_GUARD_S = 1.0
"""Guard of a pattern in a short run. Where the time is quadratic, a quarter of the text takes a sixteenth of it."""
FEW = 2
"""Worst cases of each pattern in a short run: enough to find every ambiguous pattern of
`tests/test_patterns.py` that hangs.
"""
ON_THE_WAY = ("conversation", "redact")
"""Scanners of a short run: those that read a message in a conversation, and on its way to a summariser."""
FROZE = (
    *(
        "underscores",
        "digits",
        "blanks",
        "wrapped lines",
        "long names",
        "key comments",
        "inline key comments",
    ),
    *("a quoted name", "a name with digits", "nested escapes", "secrets in escapes", "passwords"),
)
"""Texts that froze a gateway before: in a short run both scanners read them."""
STEP = 10
"""A short run puts one in this many of the other texts through a conversation, and the rest through the other
scanner.
"""
SHAPES = ("parallel calls", "new files")
"""Scanners for which the number of parts matters, and hardly their text: in a short run each has one text."""
Case = tuple[str, Callable[[], object]]


def pattern_cases(*, is_few: bool = False) -> Iterator[Case]:
    for found in patterns():
        for use in found.uses:
            automaton = Automaton(found.pattern, use)
            texts = pumped(automaton, FEW_SIZE if is_few else SIZE)
            for number, text in enumerate(islice(texts, FEW if is_few else None)):
                yield f"{found.place} {use} {number}", partial(tried, found.pattern, use, text)


def tried(pattern: re.Pattern, use: str, text: str) -> object:
    """Use a pattern as the source does: a search finds all matches."""
    given = text if isinstance(pattern.pattern, str) else text.encode("latin-1", "replace")
    if use == "search":
        return sum(1 for _ in pattern.finditer(given))
    return getattr(pattern, use)(given)


def scanner_cases(names: Iterable[str], *, is_few: bool = False) -> Iterator[Case]:
    """Every scanner with every text; with `is_few`, each text with one or both of the scanners that read it
    on its way.
    """
    for name in names:
        for number, (kind, text) in enumerate(TEXTS.items()):
            if not is_few or _is_in_few(name, number, kind):
                yield f"{name}, {kind}", partial(_scan, SCANNERS[name], text, FEW_SIZE if is_few else SIZE)


def _is_in_few(name: str, number: int, kind: str) -> bool:
    """True if a short run puts this text through this scanner."""
    if name in ON_THE_WAY:
        return kind in FROZE or (name == "conversation") == (number % STEP == 0)
    return name in SHAPES and not number


def _scan(scanner: Scanner, text: Callable[[int], str], size: int) -> object:
    return scanner(text(size))


def run(cases: Iterator[Case], guard_s: float = GUARD_S) -> int:
    """Run each case under a guard of its own; returns the number of cases."""
    count = 0
    # The traceback is written by the handler, and the signal then ends the process.
    faulthandler.register(signal.SIGPROF, chain=True)
    for name, act in cases:
        print(name, flush=True)
        signal.setitimer(signal.ITIMER_PROF, guard_s)
        act()
        count += 1
    signal.setitimer(signal.ITIMER_PROF, 0)
    return count


def main() -> None:
    reading = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    reading.add_argument("what", choices=("patterns", "scanners"))
    reading.add_argument("--only", nargs="*", default=[], help="scanners by name")
    reading.add_argument("--few", action="store_true", help="only the worst, for a test that runs often")
    chosen = reading.parse_args()
    is_few = chosen.few
    if chosen.what == "patterns":
        count = run(pattern_cases(is_few=is_few), FEW_GUARD_S if is_few else GUARD_S)
    else:
        count = run(scanner_cases(chosen.only or SCANNERS, is_few=is_few))
    print(f"{count} cases", file=sys.stderr)


if __name__ == "__main__":
    main()
