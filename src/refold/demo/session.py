"""A day of a coding agent: what the user asks for, what the agent does about it, what comes back.

One idea: the session is written down once, as turns of steps, and played by a scripted model. Nothing in it depends on what Refold
shows the model, so that the same session can be told with any window and any preset.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from refold.demo.project import checked, diff, hits, listing, log, source, table

MODEL = "demo-agent"
SYSTEM = (
    "You are a careful engineer in the project parcelroom. Look before you change something, change little, run the tests, and "
    "say in a sentence what you found. Never push; the user does that."
)
RULE = "snapshot otter-4471"
"""Said by the user in the first turn, and needed in the last."""
FILES = listing(8, 6)
QUESTION = "locker/count_03.py bytes"
DETAIL = next(line for line in FILES.splitlines() if "locker/count_03.py" in line)
"""A line of the first listing: nobody needs it again, and it leaves the window early. `QUESTION` asks for it."""


class Step(Struct, frozen=True):
    """The agent says something, calls a tool, and gets its result. Without a tool it is the answer to the user."""

    says: str
    tool: str = ""
    arguments: dict[str, Any] = {}
    result: str = ""

    @property
    def does(self) -> str:
        """In a few words."""
        what = str(next(iter(self.arguments.values()), ""))
        return f"{self.tool} {what.removeprefix('src/parcelroom/')}" if self.tool else "answers"


class Turn(Struct, frozen=True):
    asks: str
    steps: tuple[Step, ...]


def tool(name: str, *parameters: str) -> dict[str, Any]:
    fields = {parameter: {"type": "string"} for parameter in parameters}
    schema = {"type": "object", "properties": fields, "required": [*parameters]}
    return {"type": "function", "function": {"name": name, "description": f"{name}.", "parameters": schema}}


TOOLS = [
    tool("list_files", "folder"),
    tool("read_file", "path"),
    tool("search", "words"),
    tool("edit_file", "path", "change"),
    tool("run", "command"),
]


def listed(folder: str, result: str, says: str = "") -> Step:
    return Step(says, "list_files", {"folder": folder}, result)


def read(name: str, first: int, functions: int, says: str = "") -> Step:
    return Step(says, "read_file", {"path": f"src/parcelroom/{name}.py"}, source(name, first, functions))


def find(words: str, files: int, each: int, says: str = "") -> Step:
    names = [f"src/parcelroom/{name}.py" for name in ("codes", "pickups", "api", "night", "app", "sites")]
    return Step(says, "search", {"words": words}, hits(words, names[:files], each))


def edit(path: str, change: str, says: str) -> Step:
    return Step(says, "edit_file", {"path": path, "change": change}, f"changed {path}: {change}")


def run(command: str, result: str, says: str = "") -> Step:
    return Step(says, "run", {"command": command}, result)


def answer(text: str) -> Step:
    return Step(text)


def session() -> Sequence[Turn]:
    """The whole of it."""
    return (lost_codes(), expiry(), server_errors(), migration(), speed(), review(), release())


def lost_codes() -> Turn:
    broken = (
        "tests/test_codes.py::test_a_code_outlives_a_restart",
        "AssertionError: expected code 481-920 for door 17, got None\nthe table codes is empty after Controller.restart()",
    )
    second = ("tests/test_pickups.py::test_door_17", "KeyError: 'door' in pickups.open_door, line 88")
    return Turn(
        "Pickup codes stop working when a locker controller restarts. Find out why and fix it. Before you start: never open a "
        f"door at the pilot site in Oskarshamn from a test, and if a migration ever goes wrong, restore {RULE}.",
        (
            listed("src", FILES, "I look around first."),
            read("codes", 6, 7, "The codes are made here."),
            read("pickups", 4, 7, "And used here."),
            find("issue_code", 4, 4, "Who issues codes?"),
            run("pytest tests/test_codes.py", checked(24, [broken]), "Is there a test that shows it?"),
            read("controller", 1, 8, "It does. The restart is in the controller."),
            edit("src/parcelroom/controller.py", "load codes from the database in restart()", "Codes were held in memory only."),
            run("pytest tests", checked(38, [second])),
            edit("src/parcelroom/pickups.py", "take the door from the parcel, not from the session", "A second place relied on it."),
            run("pytest tests", checked(40)),
            answer("Codes were kept in the controller's memory. They are read from the database now; all 40 tests pass."),
        ),
    )  # fmt: skip


def expiry() -> Turn:
    naive = (
        "tests/test_codes.py::test_expiry",
        "TypeError: can't compare offset-naive and offset-aware datetimes",
    )
    return Turn(
        "Good. Codes should expire 72 hours after the delivery, not after they were issued.",
        (
            read("settings", 3, 6, "Where are spans of time configured?"),
            read("deliveries", 5, 8, "When is something delivered?"),
            find("datetime.now", 6, 4, "Who reads the clock?"),
            edit("src/parcelroom/codes.py", "expire 72 h after delivery.at", "Counted from the delivery."),
            run("pytest tests", checked(36, [naive]), "And the tests?"),
            read("clock", 2, 5, "Times with and without a zone are mixed."),
            edit("src/parcelroom/clock.py", "seconds() in UTC as a whole number", "Decision: every time is UTC seconds, as an integer."),
            edit("src/parcelroom/deliveries.py", "use clock.seconds()", "The same here."),
            run("pytest tests", checked(43)),
            answer("Done: 72 hours from the delivery. I decided that all times are whole UTC seconds."),
        ),
    )  # fmt: skip


def server_errors() -> Turn:
    errors = [
        f"POST /deliveries 500 courier={at} sqlite3.OperationalError: database is locked"
        for at in (31, 7, 19)
    ]
    return Turn(
        "The courier app sometimes gets a 500 from /deliveries. It happens around five in the afternoon.",
        (
            run("tail log/17.log", log(17, 44, errors), "The log of that hour."),
            read("api", 2, 9, "The route."),
            read("database", 0, 8, "And the database below it."),
            find("db.write", 5, 4, "Who writes at that time?"),
            read("night", 7, 6, "The archive runs at 17:00, in one long transaction."),
            edit("src/parcelroom/night.py", "archive in steps of 200 rows", "Many short transactions instead."),
            edit("src/parcelroom/database.py", "wait up to 5 s for a lock", "And patience where two meet."),
            run("pytest tests", checked(45)),
            answer("The archive held the lock for minutes. It works in steps of 200 rows now, and writers wait up to 5 s."),
        ),
    )  # fmt: skip


def migration() -> Turn:
    return Turn(
        "Write the migration for delivery times as seconds, and try it on a copy of the database.",
        (
            run("sqlite3 copy.db .schema", source("schema", 1, 7), "The tables as they are."),
            edit("migrations/0007_seconds.sql", "add delivered_s, fill it from at", "A new column, filled from the old one."),
            run("migrate --on copy.db", "error: duplicate column name: delivered_s\nrolled back after 0.4 s", "On the copy."),
            run("git log migrations", table("commit", "rows", [("0006_delivered_s, by hand, on Tuesday", 18_244)], 18)),
            edit("migrations/0007_seconds.sql", "only where delivered_s is not there", "Somebody added it by hand on Tuesday."),
            run("migrate --on copy.db", table("step", "seconds", [("fill delivered_s", 11.42), ("check", 3.08)], 22)),
            run("pytest tests/test_migrations.py", checked(21)),
            answer("The migration takes 15 s on the copy and can be run twice. 18,244 rows were filled."),
        ),
    )  # fmt: skip


def speed() -> Turn:
    slow = [("pickups.open_door", 112.40), ("codes.find", 96.18), ("json.dumps", 4.91)]
    fast = [("pickups.open_door", 17.65), ("codes.find", 2.07), ("json.dumps", 4.88)]
    return Turn(
        "With 50,000 parcels a pickup must stay below 40 ms. Measure it.",
        (
            edit("bench/pickup.py", "50,000 parcels, 500 pickups", "A benchmark of its own."),
            run("python bench/pickup.py", table("what", "ms", slow, 24), "It takes 112 ms."),
            run("sqlite3 bench.db 'EXPLAIN QUERY PLAN ...'", "SCAN code (no index on digits)\nSCAN parcel"),
            read("codes", 14, 8, "Which columns does it look for?"),
            edit("migrations/0008_index.sql", "CREATE INDEX code_digits ON code(digits, parcel_id)", "An index."),
            run("python bench/pickup.py", table("what", "ms", fast, 24), "Again."),
            run("pytest tests", checked(46)),
            answer("A pickup takes 17.65 ms with an index on code(digits, parcel_id); it was 112.40 ms."),
        ),
    )  # fmt: skip


def review() -> Turn:
    names = ("controller", "pickups", "codes", "deliveries", "night")
    lint = (
        "src/parcelroom/night.py:61: unused variable 'rows'\nsrc/parcelroom/codes.py:140: line too long (117)"
    )
    return Turn(
        "Review everything that you changed before I merge it.",
        (
            *(run(f"git diff {name}.py", diff(f"src/parcelroom/{name}.py", at, 7)) for at, name in enumerate(names)),
            run("ruff check", lint, "And the linter."),
            edit("src/parcelroom/night.py", "remove the variable rows", "Left over."),
            read("night", 7, 7, "As it is now."),
            run("pytest tests", checked(46)),
            answer("Two small things were left over and are mended. Nothing opens a door in Oskarshamn. Ready to merge."),
        ),
    )  # fmt: skip


def release() -> Turn:
    return Turn(
        "Write the release notes, and what to do if the migration goes wrong.",
        (
            edit("CHANGELOG.md", "codes survive restarts; 72 h; no more 500; pickups in 18 ms", "The notes."),
            answer(f"Codes survive restarts and last 72 hours from the delivery. If the migration goes wrong: {RULE}."),
        ),
    )  # fmt: skip
