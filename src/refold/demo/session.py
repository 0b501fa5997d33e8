"""A day of a coding agent, as turns of steps: the user's requests, the agent's calls and the results.

A scripted model plays it. No step depends on the messages that Refold shows the model, so the same session runs with any window and
any preset.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

# The files of an invented project, and the output of its tools, for the agent of the demo. They are
# as long and as repetitive as real ones, and the same every time: made from a few sentences and the
# nouns of the project, `parcelroom`, a service behind the parcel lockers of a small town.

NOUNS = ("parcel", "locker", "courier", "site", "pickup", "handover", "code", "event")
COLUMNS = {
    "parcel": ("id", "locker_id", "weight_g", "arrived_at", "state"),
    "locker": ("id", "site_id", "door", "size_cm", "is_free"),
    "courier": ("id", "name", "phone", "depot", "since"),
    "site": ("id", "town", "street", "doors", "opened_at"),
    "pickup": ("id", "parcel_id", "code_id", "at", "door"),
    "handover": ("id", "parcel_id", "courier_id", "at", "signature"),
    "code": ("id", "parcel_id", "digits", "issued_at", "used_at"),
    "event": ("id", "site_id", "kind", "at", "detail"),
}
ENDINGS = ("by_id", "of_site", "since", "count", "archive", "rename", "export", "check")
_FUNCTION = '''
def {noun}_{ending}(db: Database, {key}: int, *, limit: int = {limit}) -> list[{kind}]:
    """{sentence}"""
    rows = db.read(
        "SELECT {columns} FROM {noun} WHERE {key} = ? ORDER BY {order} DESC LIMIT ?",
        ({key}, limit),
    )
    if not rows and not db.has("{noun}", {key}):
        raise NotThere("{noun}", {key})
    return [{kind}(*row) for row in rows]
'''
_SENTENCES = (
    "The newest first, as the display at the site shows them.",
    "Those that nobody has touched for a week are left out.",
    "Used by the courier app, which asks every ten seconds.",
    "The night job calls it once for every site.",
    "An empty list is an answer; a number that nobody has is an error.",
    "Sorted by the clock of the site, which may be behind ours.",
)


def source(name: str, first: int, functions: int) -> str:
    """A module of the project."""
    head = f'"""parcelroom.{name}: see docs/{name}.md."""\n\nfrom parcelroom.database import Database, NotThere\n'
    return head + "".join(_function(first + at) for at in range(functions))


def _function(at: int) -> str:
    noun = NOUNS[at % len(NOUNS)]
    columns = COLUMNS[noun]
    return _FUNCTION.format(
        noun=noun,
        kind=noun.capitalize(),
        ending=ENDINGS[(at // len(NOUNS) + at) % len(ENDINGS)],
        key=columns[1] if columns[1].endswith("_id") else "id",
        order=columns[3],
        columns=", ".join(columns),
        limit=20 + 10 * (at % 7),
        sentence=_SENTENCES[at % len(_SENTENCES)],
    )


def checked(passed: int, failures: Sequence[tuple[str, str]] = (), seconds: float = 4.2) -> str:
    """The output of a test run."""
    names = [f"tests/test_{NOUNS[at % 8]}s.py::test_{ENDINGS[at % 7]}_{at:03}" for at in range(passed)]
    lines = [f"{name:<52} ok     {3 + at * 7 % 41:>3} ms" for at, name in enumerate(names)]
    for name, why in failures:
        lines += [f"{name:<52} FAILED", *(f"    {line}" for line in why.splitlines())]
    told = f"{len(failures)} failed, {passed} passed" if failures else f"{passed} passed"
    return "\n".join([*lines, f"{told} in {seconds:.1f} s"])


def hits(words: str, files: Sequence[str], each: int) -> str:
    """The output of a search in the project."""
    return "\n".join(_hits(words, files, each))


def _hits(words: str, files: Sequence[str], each: int) -> Iterator[str]:
    for at, file in enumerate(files):
        for number in range(each):
            line = 11 + at * 17 + number * 29
            noun = NOUNS[(at + number) % 8]
            yield f"{file}:{line}: {noun} = {words}({noun}_id, now=clock())  # {_SENTENCES[number % 6].lower()}"


def log(hour: int, lines: int, errors: Sequence[str] = ()) -> str:
    """An hour of the service's log, with the errors at their times."""
    told = [_log_line(hour, at) for at in range(lines)]
    for number, error in enumerate(errors, 1):
        told.insert(number * lines // (len(errors) + 1), f"{hour:02}:{number * 17:02}:08 ERROR {error}")
    return "\n".join(told)


def _log_line(hour: int, at: int) -> str:
    noun, status = NOUNS[at % 8], (200, 200, 201, 304, 200, 404)[at % 6]
    minute, second = at * 37 // 60 % 60, at * 37 % 60
    return f"{hour:02}:{minute:02}:{second:02} INFO  GET /{noun}s/{4_000 + at * 13} {status} {2 + at * 5 % 31} ms"


def diff(file: str, first: int, hunks: int) -> str:
    """The diff of a file."""
    lines = [f"--- a/{file}", f"+++ b/{file}"]
    for at in range(hunks):
        noun, ending = NOUNS[(first + at) % 8], ENDINGS[at % 8]
        lines += [
            f"@@ {20 + at * 31},7 +{20 + at * 33},9 @@ def {noun}_{ending}(db, {noun}_id):",
            f"-    now = datetime.now()\n-    return db.read({noun.upper()}_SQL, ({noun}_id, now))",
            f"+    now = clock.seconds()\n+    expires = now - settings.{noun}_hours * 3600",
            f"+    return db.read({noun.upper()}_SQL, ({noun}_id, expires))",
        ]
    return "\n".join(lines)


def table(title: str, unit: str, rows: Sequence[tuple[str, float]], more: int = 0) -> str:
    """Measurements, the largest first, followed by many small ones."""
    lines = [f"{title:<40}{unit:>12}", *(f"{name:<40}{value:>12,.2f}" for name, value in rows)]
    small = (f"{NOUNS[at % 8]}_{ENDINGS[at * 3 % 8]}" for at in range(more))
    return "\n".join([*lines, *(f"{name:<40}{0.9 / (at + 1):>12,.2f}" for at, name in enumerate(small))])


def listing(folders: int, files: int) -> str:
    """The files of the project."""
    return "\n".join(
        f"{'src/parcelroom' if at % 2 else 'tests'}/{NOUNS[at % 8]}/{ENDINGS[number % 8]}_{number:02}.py"
        f"  {400 + (at * 53 + number * 97) % 6_000:>6,} bytes"
        for at in range(folders)
        for number in range(files)
    )


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
"""A line of the first listing. No later step needs it, and it leaves the window early. `QUESTION` asks for it."""


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
