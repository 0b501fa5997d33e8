"""Long logs for the story of `coding_agent.py`: a profile, a scan, a build."""

from __future__ import annotations

import random

FRAMES = (
    ("expand.py", 13, "expand"),
    ("expand.py", 45, "is_closed"),
    ("expand.py", 28, "sailings_of"),
    ("clock.py", 18, "candidates"),
    ("clock.py", 13, "localise"),
    ("clock.py", 39, "exists"),
    ("clock.py", 29, "to_utc"),
    ("model.py", 26, "runs_on"),
    ("timetable.py", 21, "load_timetable"),
    ("timetable.py", 30, "read_service"),
    ("board.py", 24, "render_line"),
    ("csv.py", 159, "writerow"),
    ("zoneinfo/_common.py", 12, "load_tzdata"),
    ("zoneinfo/_common.py", 27, "load_data"),
    ("tomllib/_parser.py", 70, "loads"),
    ("tomllib/_parser.py", 297, "key_value_rule"),
    ("tomllib/_parser.py", 334, "parse_key_value_pair"),
    ("<frozen importlib._bootstrap>", 1167, "_find_and_load"),
    ("<frozen importlib._bootstrap_external>", 934, "exec_module"),
    ("argparse.py", 1874, "parse_args"),
)


def profile(rng: random.Random) -> str:
    """A profiler's table: the first frames hold most of the time."""
    lines = ["         41873204 function calls in 29.614 seconds", "", "   Ordered by: cumulative time", ""]
    lines.append("   ncalls  tottime  percall  cumtime  percall filename:lineno(function)")
    total = 29.614
    for file, line, name in FRAMES:
        calls, own = rng.randrange(1, 90_000), total * rng.uniform(0.05, 0.4)
        lines.append(
            f"{calls:>9} {own:>8.3f} {own / calls:>8.3f} {total:>8.3f} {total / calls:>8.3f} {file}:{line}({name})"
        )
        total *= rng.uniform(0.55, 0.9)
    return "\n".join([*lines, "[exit code 0]"])


GAP_ZONES = (
    *(
        "Africa/Casablanca",
        "America/Asuncion",
        "America/Havana",
        "America/New_York",
        "America/Nuuk",
        "America/Santiago",
    ),
    *(
        "America/St_Johns",
        "Asia/Beirut",
        "Asia/Jerusalem",
        "Atlantic/Azores",
        "Australia/Lord_Howe",
        "Australia/Sydney",
    ),
    *(
        "Europe/Chisinau",
        "Europe/Dublin",
        "Europe/London",
        "Europe/Oslo",
        "Pacific/Auckland",
        "Pacific/Chatham",
    ),
)


def scan_gaps(rng: random.Random) -> str:
    rows = []
    for zone in GAP_ZONES:
        size = 30 if zone == "Australia/Lord_Howe" else 60
        day = f"2025-{rng.choice(('03', '04', '09', '10'))}-{rng.randrange(1, 29):02}"
        rows.append(f"{zone:<24} {day}  gap {size} min  checked {size} minutes, 0 wrong")
    return "\n".join(["scanning 2025 ...", *rows, f"{len(rows)} gaps, 0 wrong", "[exit code 0]"])


def ci_log(rng: random.Random) -> str:
    """A build log: much noise, and one line that matters."""
    packages = (
        "attrs",
        "coverage",
        "iniconfig",
        "mypy",
        "mypy-extensions",
        "packaging",
        "pluggy",
        "pytest",
        "typing-extensions",
    )
    lines = ["ci: tests (3.11) started on runner-" + "".join(rng.choices("0123456789abcdef", k=12))]
    for package in packages:
        size = rng.randrange(12, 900)
        version = f"{rng.randrange(1, 25)}.{rng.randrange(10)}.{rng.randrange(10)}"
        lines += [
            f"Collecting {package}",
            f"  Downloading {package.replace('-', '_')}-{version}-py3-none-any.whl ({size} kB)",
        ]
        lines.append(f"     {'━' * 24} {size}/{size} kB {rng.uniform(1, 40):.1f} MB/s eta 0:00:00")
    lines.append(f"Successfully installed {' '.join(packages)} ferrytime-2.4.1")
    lines += [
        _CI_FAILURE,
        "ci: tests (3.12) passed in 39s",
        "ci: tests (3.13) passed in 37s",
        "[exit code 1]",
    ]
    return "\n".join(lines)


_CI_FAILURE = """\
============================= test session starts ==============================
platform linux -- Python 3.11.9, pytest-8.3.3, pluggy-1.5.0
collected 0 items / 3 errors

==================================== ERRORS ====================================
____________________ ERROR collecting tests/test_expand.py _____________________
tests/test_expand.py:5: in <module>
    from ferrytime.expand import days, expand, next_sailing
src/ferrytime/__init__.py:3: in <module>
    from ferrytime.board import render_board
src/ferrytime/board.py:8: in <module>
    from ferrytime.model import Sailing
E     File "/workspace/ferrytime/src/ferrytime/model.py", line 8
E       type Weekdays = frozenset[int]
E            ^^^^^^^^
E   SyntaxError: invalid syntax
=========================== 3 errors in 0.31s ==================================
ci: tests (3.11) FAILED in 22s"""
