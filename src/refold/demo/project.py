"""What the agent of the demo looks at: the files of a project that does not exist, and what its tools print.

One idea: it has to be as long and as dull as the real thing, and the same every time. So it is made from a few sentences and the
nouns of the project: `parcelroom`, a service behind the parcel lockers of a small town.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
    """What a run of the tests prints."""
    names = [f"tests/test_{NOUNS[at % 8]}s.py::test_{ENDINGS[at % 7]}_{at:03}" for at in range(passed)]
    lines = [f"{name:<52} ok     {3 + at * 7 % 41:>3} ms" for at, name in enumerate(names)]
    for name, why in failures:
        lines += [f"{name:<52} FAILED", *(f"    {line}" for line in why.splitlines())]
    told = f"{len(failures)} failed, {passed} passed" if failures else f"{passed} passed"
    return "\n".join([*lines, f"{told} in {seconds:.1f} s"])


def hits(words: str, files: Sequence[str], each: int) -> str:
    """What a search in the project prints."""
    return "\n".join(_hits(words, files, each))


def _hits(words: str, files: Sequence[str], each: int) -> Iterator[str]:
    for at, file in enumerate(files):
        for number in range(each):
            line = 11 + at * 17 + number * 29
            noun = NOUNS[(at + number) % 8]
            yield f"{file}:{line}: {noun} = {words}({noun}_id, now=clock())  # {_SENTENCES[number % 6].lower()}"


def log(hour: int, lines: int, errors: Sequence[str] = ()) -> str:
    """An hour of the service's log; the errors stand where they happened."""
    told = [_log_line(hour, at) for at in range(lines)]
    for number, error in enumerate(errors, 1):
        told.insert(number * lines // (len(errors) + 1), f"{hour:02}:{number * 17:02}:08 ERROR {error}")
    return "\n".join(told)


def _log_line(hour: int, at: int) -> str:
    noun, status = NOUNS[at % 8], (200, 200, 201, 304, 200, 404)[at % 6]
    minute, second = at * 37 // 60 % 60, at * 37 % 60
    return f"{hour:02}:{minute:02}:{second:02} INFO  GET /{noun}s/{4_000 + at * 13} {status} {2 + at * 5 % 31} ms"


def diff(file: str, first: int, hunks: int) -> str:
    """What changed in a file."""
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
    """Measurements, the largest first, and then what hardly counts."""
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
