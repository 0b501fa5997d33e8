"""A long agent session that is played through a real gateway, for `refold demo`.

Only the model is not real. The gateway is the one that `refold serve` starts, on a port of its own and with a temporary store; the
client is OpenAI's own where it is installed, and knows nothing of Refold; the provider is the scripted one of `refold.testing`, which
counts tokens and refuses a request that does not fit. The tokens of every call are those of the header `x-refold-tokens`, and the
reasons come from the gateway's store. `refold.cli.commands.demo` draws it.

The session is a day of a coding agent, as turns of steps: the user's requests, the agent's calls and the results. No step depends on
the messages that Refold shows the model, so the same session runs with any window and any preset.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import aiohttp
import msgspec
from msgspec import Struct

from refold.engine.engine import Engine
from refold.model.errors import ConfigError
from refold.testing import Received, Refuse, Say, ScriptedUpstream, call, say

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


class DemoStep(Struct, frozen=True):
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
    steps: tuple[DemoStep, ...]


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


def listed(folder: str, result: str, says: str = "") -> DemoStep:
    return DemoStep(says, "list_files", {"folder": folder}, result)


def read(name: str, first: int, functions: int, says: str = "") -> DemoStep:
    return DemoStep(says, "read_file", {"path": f"src/parcelroom/{name}.py"}, source(name, first, functions))


def find(words: str, files: int, each: int, says: str = "") -> DemoStep:
    names = [f"src/parcelroom/{name}.py" for name in ("codes", "pickups", "api", "night", "app", "sites")]
    return DemoStep(says, "search", {"words": words}, hits(words, names[:files], each))


def edit(path: str, change: str, says: str) -> DemoStep:
    return DemoStep(says, "edit_file", {"path": path, "change": change}, f"changed {path}: {change}")


def run(command: str, result: str, says: str = "") -> DemoStep:
    return DemoStep(says, "run", {"command": command}, result)


def answer(text: str) -> DemoStep:
    return DemoStep(text)


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


# The client of the demo: OpenAI's own, or a plain HTTP client if that is not installed. Neither
# depends on Refold. Both take the fields of a Chat Completions request and return the message of
# the reply, its headers and, if there is no message, the provider's error.


class DemoAnswer(Struct, frozen=True):
    message: dict[str, Any] | None
    headers: Mapping[str, str]
    problem: str = ""


AskFunction: TypeAlias = Callable[[dict[str, Any]], Awaitable[DemoAnswer]]


@asynccontextmanager
async def client_for(address: str) -> AsyncIterator[tuple[str, AskFunction]]:
    """The name of the client, and its function for a request."""
    if find_spec("openai"):
        async with _openai(address) as ask:
            yield "the OpenAI SDK", ask
    else:
        async with _plain(address) as ask:
            yield "a plain HTTP client", ask


@asynccontextmanager
async def _openai(address: str) -> AsyncIterator[AskFunction]:
    from openai import APIStatusError, AsyncOpenAI

    async with AsyncOpenAI(base_url=f"{address}/v1", api_key="demo", max_retries=0) as client:

        async def ask(fields: dict[str, Any]) -> DemoAnswer:
            try:
                raw = await client.chat.completions.with_raw_response.create(**fields)
            except APIStatusError as error:
                return DemoAnswer(
                    None, error.response.headers, f"{error.status_code} {error.code or error.type}"
                )
            message = raw.parse().choices[0].message
            return DemoAnswer(message.model_dump(exclude_none=True), raw.headers)

        yield ask


@asynccontextmanager
async def _plain(address: str) -> AsyncIterator[AskFunction]:
    async with aiohttp.ClientSession() as session:

        async def ask(fields: dict[str, Any]) -> DemoAnswer:
            body = {name: value for name, value in fields.items() if name != "extra_headers"}
            headers = {
                "authorization": "Bearer demo",
                "content-type": "application/json",
                **fields["extra_headers"],
            }
            async with session.post(
                f"{address}/v1/chat/completions", data=msgspec.json.encode(body), headers=headers
            ) as got:
                found = msgspec.json.decode(await got.read())
            told = {name.lower(): value for name, value in got.headers.items()}
            if got.status != 200:
                return DemoAnswer(
                    None, told, f"{got.status} {found['error']['code'] or found['error']['type']}"
                )
            message = found["choices"][0]["message"]
            return DemoAnswer({name: one for name, one in message.items() if one is not None}, told)

        yield ask


NAME = "demo"
STEP = "x-demo-step"
"""The header that tells the scripted model its next answer: the messages it sees depend on the window."""
WINDOW = 8_000
"""Small, so that a session of a minute fills it several times."""
REPLY = 800
"""Tokens that the agent asks for: its steps are short."""
STORE = "demo.db"
CHANGES = frozenset(("reduce", "summarise"))


class DemoCall(Struct, frozen=True):
    """One call of the agent, as it went."""

    number: int
    asks: str
    """The user's message before the call, if it is new."""
    does: str
    messages: int
    whole: int
    """Tokens of the whole history, and of the part that was sent."""
    sent: int
    action: str
    reason: str = ""


class DemoRecall(Struct, frozen=True):
    """The question at the end of the demo, and the passage that recall finds."""

    question: str
    handle: str
    text: str
    is_shown: bool
    """Was it still in the last window?"""


class DemoSession(Struct, frozen=True):
    """The whole session."""

    window: int
    client: str
    calls: tuple[DemoCall, ...]
    refused: int
    """How often the provider refused a request."""
    without: str
    """The provider's error for the first request that it would refuse without Refold."""
    first_refused: int | None
    """Which call that is."""
    rule: str
    keeps_rule: bool
    """True if the last window has the user's rule of the first turn, word for word."""
    recalled: DemoRecall | None

    @property
    def whole(self) -> int:
        return sum(one.whole for one in self.calls)

    @property
    def sent(self) -> int:
        return sum(one.sent for one in self.calls)

    @property
    def compactions(self) -> int:
        return sum(one.action == "summarise" for one in self.calls)


class DemoOptions(Struct, frozen=True):
    """The window, the preset and the pause between calls."""

    window: int = WINDOW
    preset: str = ""
    pause_s: float = 0.0


async def play(
    on_call: Callable[[DemoCall], Any], options: DemoOptions, *, on_start: Callable[[str], Any] | None = None
) -> DemoSession:
    """Play the session; `on_start` is told the address of the gateway, and `on_call` of every call once it is answered.

    Raises:
        ConfigError: the gateway did not start.
    """
    steps = [step for turn in session() for step in turn.steps]
    model = partial(_spoken, steps)
    with TemporaryDirectory(prefix="refold-demo-") as place:
        async with (
            ScriptedUpstream(otherwise=model, window=options.window, model=MODEL) as upstream,
            _gateway(Path(place), f"{upstream.url}/v1", options) as address,
            client_for(address) as (client, ask),
        ):
            if on_start is not None:
                on_start(address)
            player = _Player(ask, address, on_call, options.pause_s)
            await player.run()
            refused, last = (
                sum(isinstance(one, Refuse) for one in upstream.answered),
                upstream.requests[-1].body,
            )
            number, without = await player.without_refold(options.window)
        recalled = await _recalled(f"sqlite:///{place}/{STORE}", last)
    kept = RULE.encode() in last
    return DemoSession(
        options.window, client, tuple(player.calls), refused, without, number, RULE, kept, recalled
    )


class _Player:
    """The agent's own loop: it keeps its history, and sends all of it every time."""

    def __init__(
        self, ask: AskFunction, address: str, on_call: Callable[[DemoCall], Any], pause_s: float
    ) -> None:
        self._ask, self._address, self._on_call, self._pause_s = ask, address, on_call, pause_s
        self.history: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
        self.calls: list[DemoCall] = []

    def _request(self, messages: int, headers: Mapping[str, str]) -> dict[str, Any]:
        history = self.history[:messages]
        fields = {"model": MODEL, "messages": history, "tools": TOOLS, "max_tokens": REPLY}
        return {**fields, "extra_headers": headers}

    async def without_refold(self, window: int) -> tuple[int | None, str]:
        """The first call that the provider refuses without Refold, and its error."""
        for one in self.calls:
            if one.whole > 0.8 * window:  # the prompt and the tools come on top
                answered = await self._ask(self._request(one.messages, {"x-refold": "off"}))
                if answered.message is None:
                    return one.number, answered.problem
        return None, ""

    async def run(self) -> None:
        for turn in session():
            self.history.append({"role": "user", "content": turn.asks})
            asks = turn.asks
            for step in turn.steps:
                if not await self._take(step, asks):
                    return
                asks = ""
                await asyncio.sleep(self._pause_s)

    async def _take(self, step: DemoStep, asks: str) -> bool:
        """Send the request of the next step and perform its tool calls. Returns False if there was no answer."""
        headers = {"x-refold-conversation": NAME, STEP: str(len(self.calls))}
        answered = await self._ask(self._request(len(self.history), headers))
        found = await self._noted(answered, step, asks)
        self.calls.append(found)
        self._on_call(found)
        if answered.message is None:
            return False
        self.history.append(answered.message)
        for wanted in answered.message.get("tool_calls", ()):
            self.history.append({"role": "tool", "tool_call_id": wanted["id"], "content": step.result})
        return True

    async def _noted(self, answered: DemoAnswer, step: DemoStep, asks: str) -> DemoCall:
        headers = answered.headers
        whole, _, sent = headers.get("x-refold-tokens", "0->0").partition("->")
        action = "refused" if answered.message is None else headers.get("x-refold-changed", "")
        reason = await _reason(self._address) if action in CHANGES else answered.problem
        number, size = len(self.calls) + 1, len(self.history)
        return DemoCall(number, asks, step.does, size, int(whole), int(sent), action, reason)


async def _spoken(steps: list[DemoStep], received: Received) -> Say:
    number = int(received.headers.get(STEP, "0"))
    step = steps[number]
    calls = [call(step.tool, step.arguments, id=f"call_{number}")] if step.tool else []
    return say(*([step.says] if step.says else []), *calls)


async def _reason(address: str) -> str:
    """The reason of the gateway's last change."""
    url = f"{address}/refold/conversations/{NAME}/compactions"
    async with aiohttp.ClientSession() as session, session.get(url) as got:
        rows = msgspec.json.decode(await got.read()) if got.status == 200 else []
    return max(rows, key=lambda row: row["number"])["reason"] if rows else ""


async def _recalled(store: str, last: bytes) -> DemoRecall | None:
    """The passage about the detail that recall finds in the stored conversation."""
    async with Engine(store) as engine:
        passages = str(await (await engine.conversation(NAME)).recall(QUESTION))
    lines, wanted = passages.splitlines(), DETAIL.split()
    at = next((at for at, line in enumerate(lines) if line.split()[-3:] == wanted), None)
    if at is None:
        return None
    handle = next(line.split()[0] for line in reversed(lines[: at + 1]) if line.startswith("#m"))
    return DemoRecall(QUESTION, handle, " ".join(wanted), wanted[0].encode() in last)


@asynccontextmanager
async def _gateway(place: Path, url: str, options: DemoOptions) -> AsyncIterator[str]:
    """Start the gateway as `refold serve` does, without any settings of this machine."""
    (place / "none.toml").touch()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("REFOLD_")}
    flags = [
        "--port",
        "0",
        "--upstream",
        f"demo={url}",
        "--store",
        f"sqlite:///{STORE}",
        "--no-summariser-enabled",
        "--compaction-allow-system-summary",
    ]
    flags += ["--window", str(options.window), *(["--preset", options.preset] if options.preset else [])]
    with (place / "gateway.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "refold", "serve", *flags,
            stdout=asyncio.subprocess.PIPE, stderr=log, cwd=place, start_new_session=True,
            env={**environ, "REFOLD_CONFIG": str(place / "none.toml")},
        )  # fmt: skip
    try:
        yield await _address(process, place / "gateway.log")
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _address(process: asyncio.subprocess.Process, log: Path) -> str:
    assert process.stdout
    address = (await process.stdout.readline()).decode().strip()
    if not address:
        raise _complaint(log)
    return address


def _complaint(log: Path) -> ConfigError:
    what, _, hint = log.read_text(encoding="utf-8").strip().partition("\nhint: ")
    return ConfigError(f"the gateway did not start: {what.removeprefix('error: ')}", hint=hint)
