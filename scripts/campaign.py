"""`make campaign`: run the long tests of durability until each has its number, and publish the figures.

Every row is one test, run as a process of its own; the numbers of its runs are added up. Each run is recorded in a file before the
next one begins, so a campaign that is stopped goes on where it was. A run that fails is recorded, too, and stays in the table.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / ".campaign/results.jsonl"
PAGE = ROOT / "docs/durability.md"
BEGIN, END = "<!-- campaign: begin -->", "<!-- campaign: end -->"


class Row(NamedTuple):
    key: str
    name: str
    goal: int
    """The number that is asked for."""
    portion: int
    """The number of one run."""
    test: str


FAULTS = "tests/gateway/faults/"
ROWS = (
    Row("sqlite", "kill -9 of a program, SQLite", 500, 336, "tests/durability/test_kills.py::test_killed_again_and_again_with_sqlite"),
    Row("postgres", "kill -9 of a program, PostgreSQL", 100, 50, "tests/durability/test_kills.py::test_killed_again_and_again_with_postgres"),
    Row("chat", "kill -9 of a chat", 200, 200, "tests/durability/test_chat_kills.py::test_a_chat_is_killed_again_and_again_with_sqlite"),
    Row("gateway", "kill -9 of a gateway, SQLite", 100, 130, FAULTS + "test_kills.py::test_a_gateway_that_is_killed_again_and_again_loses_nothing[sqlite-4]"),
    Row("gateway-postgres", "kill -9 of a gateway, PostgreSQL", 30, 32, FAULTS + "test_kills.py::test_a_gateway_that_is_killed_again_and_again_loses_nothing[postgresql-1]"),
    Row("cluster", "kills and cut-offs in a cluster", 100, 50, "tests/cluster/test_campaign.py"),
    Row("power", "power cuts", 1_000, 1_000, "tests/durability/test_power.py::test_nothing_acknowledged_is_lost_when_the_power_fails_again_and_again"),
    Row("frozen", "frozen gateways, SQLite and PostgreSQL", 60, 40, FAULTS + "test_frozen.py::test_gateways_that_stand_still_again_and_again_split_nothing"),
    Row("owners", "acts of owners", 10_000, 10_000, FAULTS + "test_owners.py::test_owners_who_say_the_same_never_meet_in_ten_thousand_acts"),
    Row("splits", "streams in all pieces, and cut at every byte (tests)", 2, 2, FAULTS + "test_streams.py"),
    Row("upstreams", "misbehaviours of upstreams", 37, 37, FAULTS + "test_providers.py"),
    Row("bodies", "mutated bodies", 5_000, 5_000, FAULTS + "test_bodies.py::test_five_thousand_mutated_requests_are_answered"),
    Row("soak", "requests of a soak", 200_000, 200_000, FAULTS + "test_soak.py::test_memory_is_flat_over_two_hundred_thousand_requests"),
)  # fmt: skip


class Run(NamedTuple):
    """One run of a row."""

    key: str
    number: int
    is_passed: bool
    at: str
    commit: str
    seconds: float
    said: Sequence[str]
    """What the test printed: its figures."""


def read_runs(path: Path) -> list[Run]:
    """The recorded runs. A line that was cut off by a kill is left out."""
    runs = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            runs.append(Run(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return runs


def done_of(row: Row, runs: Iterable[Run]) -> int:
    return sum(run.number for run in runs if run.key == row.key and run.is_passed)


def run_row(row: Row, python: str = sys.executable) -> Run:
    """Run the test of a row once."""
    begun = time.monotonic()
    command = [
        python,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-o",
        "addopts=",
        "-m",
        "slow or not slow",
        row.test,
    ]
    if row.key in ("cluster", "splits"):
        command[command.index("slow or not slow")] = "slow"
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    said = figures(ended.stdout) if ended.returncode == 0 else [ended.stdout[-2_000:]]
    at = datetime.now(UTC).strftime("%Y-%m-%d")
    return Run(row.key, row.portion, ended.returncode == 0, at, commit(), time.monotonic() - begun, said)


def figures(output: str) -> list[str]:
    """The lines that a test printed between the signs of pytest."""
    signs = re.compile(r"[.sxFE\s]*(\[ *\d+%\])?|\d+ passed.*|.*warnings? summary.*|=+.*")
    return [line.strip().lstrip(".") for line in output.splitlines() if not signs.fullmatch(line)]


def commit() -> str:
    found = subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "unknown"


def table(runs: Sequence[Run], rows: Sequence[Row] = ROWS) -> str:
    lines = [
        "| fault | goal | done | failed runs | last run | figures of the last run |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        own = [run for run in runs if run.key == row.key]
        last = own[-1] if own else None
        failed = sum(not run.is_passed for run in own)
        when = f"{last.at}, {last.seconds / 60:.0f} min" if last else "not run"
        said = " ".join(last.said).replace("|", "/")[:400] if last and last.is_passed else ""
        lines.append(f"| {row.name} | {row.goal:,} | {done_of(row, runs):,} | {failed} | {when} | {said} |")
    return "\n".join(lines) + "\n"


def publish(runs: Sequence[Run], page: Path = PAGE) -> None:
    """Write the table into the page, between its two marks."""
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{table(runs)}\n{END}{after}")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make campaign", description=__doc__)
    parser.add_argument(
        "rows",
        nargs="*",
        metavar="ROW",
        help=f"of {', '.join(row.key for row in ROWS)}; all of them by default",
    )
    parser.add_argument("--table", action="store_true", help="print the table, and run nothing")
    parser.add_argument(
        "--publish",
        action="store_true",
        help=f"write the table into {PAGE.relative_to(ROOT)}, and run nothing",
    )
    parser.add_argument(
        "--json", action="store_true", help="print every run as a line of JSON, and run nothing"
    )
    parser.add_argument("--fresh", action="store_true", help="forget the runs so far")
    asked = parser.parse_args(words)
    if unknown := set(asked.rows) - {row.key for row in ROWS}:
        parser.error(f"there is no row {', '.join(sorted(unknown))}")
    if asked.fresh:
        RESULTS.unlink(missing_ok=True)
    runs = read_runs(RESULTS)
    if asked.publish:
        publish(runs)
        return 0
    if asked.table or asked.json:
        print(table(runs) if asked.table else "\n".join(json.dumps(run._asdict()) for run in runs))
        return 0
    RESULTS.parent.mkdir(exist_ok=True)
    chosen = [row for row in ROWS if not asked.rows or row.key in asked.rows]
    for row in chosen:
        while done_of(row, runs) < row.goal:
            print(f"{row.name}: {done_of(row, runs):,} of {row.goal:,} ...", flush=True)
            run = run_row(row)
            with RESULTS.open("a") as file:
                file.write(json.dumps(run._asdict()) + "\n")
            runs.append(run)
            if not run.is_passed:
                print("\n".join(run.said))
                print(f"error: {row.name} failed; hint: run {row.test} alone", file=sys.stderr)
                break
    print(table(runs, chosen))
    return int(any(done_of(row, runs) < row.goal for row in chosen))


if __name__ == "__main__":
    sys.exit(main())
