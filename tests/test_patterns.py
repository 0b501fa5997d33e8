"""No text may freeze anybody: every pattern of the source is checked by its structure, and pumped with texts made to be its worst."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NoReturn

import pytest

from benchmarks.patterns import hang_guard
from benchmarks.patterns.__main__ import GOAL, SIZES, Case, growth, run
from benchmarks.patterns.hang_guard import FROZE
from benchmarks.patterns.scanners import SCANNERS
from benchmarks.patterns.sources import BOUNDED, RUNTIME, calls, patterns
from benchmarks.patterns.texts import TEXTS
from refold import Conversation
from refold.core import regex_safety
from refold.core.regex_safety import Automaton, Use, ambiguity
from refold.model.errors import ConfigError

ROOT = Path(__file__).parents[1]
GUARD_S = 600
"""For all worst cases of one child together; each has a hang guard of its own, of ten seconds of the processor."""

BAD = [
    (r"[^\W\d]+(?:[_\-.' ][^\W\d]+)*", "fullmatch"),
    (r"(?:[_\-.]?(?:base|base64|text|[0-9]{1,3}))*", "fullmatch"),
    (r"\s*(?:[-*]|\d+\.)?\s*(?:\[ \]|TODO)", "match"),
    ("(a+)+$", "search"),
    ("(a|a)*b", "search"),
    (r"\s*x?\s*y", "match"),
    (r"(?:[_.]?[0-9]{1,3})*z", "fullmatch"),
    ("a*a*b", "match"),
    ("(a*)*b", "match"),
    ("(x+x+)+y", "match"),
    ("(.*)(.*)z", "match"),
    ("a+b", "search"),
    (".*x", "search"),
    (r"\s+$", "search"),
    ("(?:a{1,3}){1,40}z", "match"),
    ("(?>a*a*)b", "match"),
]
GOOD = [
    ("(?:a++)+b", "match"),
    ("a+b", "match"),
    (r"(?<!a)a+b", "search"),
    (r"\s*+x?\s*+y", "match"),
    ("[a-z]+-[a-z]+", "match"),
    (r"\b(?:foo|bar)\b", "search"),
    (r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', "search"),
    ("a*", "search"),
    (r"(?<=[.!?])\s+", "search"),
    (r"`[^`\n]{1,160}`", "search"),
    ("(?:[a-z]+[_-])*[a-z]+", "fullmatch"),
]


@pytest.mark.parametrize(("pattern", "use"), BAD)
def test_an_ambiguous_pattern_is_found_out(pattern, use):
    assert ambiguity(pattern, use)


@pytest.mark.parametrize(("pattern", "use"), GOOD)
def test_a_linear_pattern_passes(pattern, use):
    assert not ambiguity(pattern, use)


@pytest.fixture(scope="module")
def automata() -> Iterator[None]:
    """Make each automaton once for both tests that need them all."""

    made = cache(Automaton)

    def shared(pattern: re.Pattern, use: Use = "search", flags: int = 0) -> Automaton:
        return made(pattern, use, flags)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(regex_safety, "Automaton", shared)
        patch.setattr(hang_guard, "Automaton", shared)
        yield


@pytest.mark.usefixtures("automata")
def test_no_pattern_of_the_source_is_ambiguous():
    found = patterns()
    wrong = {
        f"{one.place} ({use})": reason
        for one in found
        for use in one.uses
        if one.place not in BOUNDED and (reason := ambiguity(one.pattern, use))
    }

    assert len(found) > 200
    assert wrong == {}


def test_a_pattern_that_is_only_known_when_it_runs_says_why_it_is_safe():
    places = {call.place.partition(":")[0] for call in calls() if call.pattern is None}

    assert places == set(RUNTIME)


def test_worst_cases_of_50_kb_come_to_an_end():
    """In a child process, since what hangs in a pattern cannot be stopped from within. It is a guard against hanging, not a speed.
    The long run takes all of them, with 200 KB each.
    """
    command = [sys.executable, "-m", "benchmarks.patterns.hang_guard", "scanners", "--few"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=GUARD_S, check=False)

    assert done.returncode == 0, f"{done.stdout.splitlines()[-1:]}\n{done.stderr[-2_000:]}"


@pytest.mark.usefixtures("automata")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_worst_cases_of_50_kb_come_to_an_end_in_every_pattern(tmp_path):
    """In a child process too, which is a copy of this one: it has the patterns and their automata."""
    assert patterns()
    out, err = tmp_path / "out", tmp_path / "err"
    if not (child := os.fork()):
        run_worst_cases(out, err)
    _, status = os.waitpid(child, 0)

    assert status == 0, f"{out.read_text().splitlines()[-1:]}\n{err.read_text()[-2_000:]}"
    assert len(out.read_text().splitlines()) > 400


def run_worst_cases(out: Path, err: Path) -> NoReturn:
    """Run them, say which to a file, and end this process."""
    try:
        sys.stdout, sys.stderr = out.open("w"), err.open("w")
        signal.alarm(GUARD_S)
        hang_guard.run(hang_guard.pattern_cases(is_few=True), hang_guard.FEW_GUARD_S)
    except BaseException:  # noqa: BLE001  # nothing of this process may go on as a test
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)


def test_a_case_that_hangs_ends_the_child_and_is_named():
    code = """if True:
    import re
    from benchmarks.patterns import hang_guard
    hang_guard.run(iter([("good", lambda: None), ("bad", lambda: re.match("(a+)+$", "a" * 60 + "b"))]), 0.2)
    """
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=GUARD_S, check=False
    )

    assert done.returncode != 0
    assert done.stdout.splitlines() == ["good", "bad"]
    assert " in match" in done.stderr


def test_every_text_that_froze_a_gateway_is_known():
    assert {*FROZE} <= TEXTS.keys()


@pytest.mark.parametrize("name", SCANNERS)
def test_every_scanner_can_read_half_of_a_surrogate_pair(name):
    SCANNERS[name](TEXTS["surrogates"](1_000))


@pytest.mark.parametrize(("power", "is_above"), [(0.5, False), (1, False), (1.5, True), (2, True)])
def test_the_growth_of_a_case_is_measured(power, is_above):
    clock = _Clock(lambda size: (size / 10_000) ** power)

    found = growth(clock.work, clock)

    assert found.exponent == pytest.approx(power)
    assert (found.exponent > GOAL) is is_above


def test_a_case_that_hardly_shows_and_then_leaps_is_above_the_goal():
    clock = _Clock(lambda size: 0.0 if size == SIZES[0] else 6.0)

    assert growth(clock.work, clock).exponent > GOAL


def test_a_case_that_takes_long_is_given_no_larger_text():
    clock = _Clock(lambda size: size / 2_000)

    found = growth(clock.work, clock)

    assert (found.size, found.exponent) == (SIZES[1], pytest.approx(1))


def test_a_campaign_ends_when_its_time_is_up_and_counts_what_is_left():
    clock = _Clock(lambda _: 1.0)
    cases = [Case(f"scanner {number}", "text", clock.work, is_scanner=True) for number in range(100)]

    _, measured, left = run(cases, 100.0, clock)

    assert 0 < len(measured) < 100
    assert left == 100 - len(measured)
    assert clock() <= 100.0


class _Clock:
    """A clock that only work moves on, by the seconds that are said for its size."""

    def __init__(self, seconds) -> None:
        self.now, self.seconds = 0.0, seconds

    def __call__(self) -> float:
        return self.now

    def work(self, size: int) -> None:
        self.now += self.seconds(size)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["patterns", "scanners"])
def test_all_worst_cases_of_200_kb_come_to_an_end(what):
    command = [sys.executable, "-m", "benchmarks.patterns.hang_guard", what]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3_600, check=False)

    assert done.returncode == 0, f"{done.stdout.splitlines()[-1:]}\n{done.stderr[-2_000:]}"


@pytest.mark.parametrize("pattern", ["(a+)+$", "(x|x)*y", r"(\s*,?\s*)*;"])
def test_a_pattern_of_the_users_own_that_could_take_for_ever_is_refused(pattern):
    async def talk() -> None:
        async with Conversation("gpt-4o", sensitive=[pattern]):
            pass

    with pytest.raises(ConfigError) as refused:
        asyncio.run(talk())

    assert pattern not in str(refused.value)
    assert "hint: " in str(refused.value)


async def test_an_ordinary_pattern_of_the_users_own_is_taken():
    async with Conversation("gpt-4o", sensitive=[r"(?i)\bsalary\b", r"\d{3}-\d{4}", "IBAN.*"]) as talk:
        await talk.add("The salary is 4711.")
