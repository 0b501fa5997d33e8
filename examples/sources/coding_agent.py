"""A coding agent repairs a timetable library: one long conversation in the form of a Chat Completions request."""

from __future__ import annotations

import random
from typing import Any

from examples.sources import agent_logs as logs
from examples.sources import agent_output as output
from examples.sources import ferrytime
from examples.sources.workshop import Transcript, Workshop

SYSTEM = """You are a careful software engineer who works in the repository ferrytime through tools.

- Read before you write. Change as little as the task needs.
- After every change run the tests; say plainly when something fails.
- Independent tool calls may be made at once.
- When the user states a rule, keep it for the rest of the conversation.
- Answer briefly: what was wrong, what you changed, how you know that it works."""


def request() -> dict[str, Any]:
    rng = random.Random(20250330)
    shop, chat = Workshop(ferrytime.files(rng), rng), Transcript(rng)
    chat.system(SYSTEM)
    for turn in (doubled_night_boat, missing_hour, end_of_month, slow_year, wrong_python, release, questions):
        turn(chat, shop)
    return {"model": "gpt-4o", "tools": TOOLS, "parallel_tool_calls": True, "messages": chat.messages}


def doubled_night_boat(chat: Transcript, shop: Workshop) -> None:
    chat.user(output.BUG_REPORT)
    chat.step("I will get an overview first.", shop.list_files(), shop.search("fold"))
    chat.step(
        "",
        shop.read("src/ferrytime/expand.py"),
        shop.read("src/ferrytime/clock.py"),
        shop.read("tests/test_clock.py"),
    )
    chat.step("The tests, before I touch anything:", shop.pytest(command="pytest -v"))
    chat.step(
        "All green, so nothing covers that night. I reproduce the report.",
        shop.run("python -m ferrytime board data/north.toml --day 2025-10-26", output.DOUBLED_BOARD),
    )
    chat.step(
        "Reproduced: N-77 twice, one hour apart. Which entry is it in the data?",
        shop.search("N-77"),
        shop.read("data/north.toml"),
    )
    chat.step(
        "One entry, so the data is right. `sailings_of` turns every candidate of `clock.candidates` into a sailing, and on "
        "the night the clocks go back 02:30 has two. Who else uses `candidates`?",
        shop.search("candidates"),
    )
    chat.step(
        "Only `expand` does. A boat leaves once: it takes the first of the two. I keep `candidates` as it is and choose in "
        "`expand`.",
        shop.edit(
            "src/ferrytime/expand.py",
            "    for departs in candidates(day, service.departs, zone):\n        yield Sailing(",
            "    departs = candidates(day, service.departs, zone)[0]\n    yield Sailing(",
        ),
    )
    chat.step("", shop.read("src/ferrytime/expand.py", 28, 42))
    chat.step(
        "The body is still indented for the loop. I replace the function in one piece.",
        shop.edit(
            "src/ferrytime/expand.py",
            "    departs = candidates(day, service.departs, zone)[0]\n        yield Sailing(",
            output.SAILINGS_OF,
        ),
    )
    chat.step(
        "That text was not there: my first edit wrote `yield` with four spaces. Reading again before the next attempt.",
        shop.read("src/ferrytime/expand.py", 1, 44),
    )
    chat.step(
        "",
        shop.edit(
            "src/ferrytime/expand.py",
            output.BROKEN_BODY,
            output.FIXED_BODY,
        ),
        shop.edit("src/ferrytime/expand.py", "-> Iterator[Sailing]:\n", "-> list[Sailing]:\n"),
    )
    chat.step(
        "Now a test for that night.",
        shop.append("tests/test_expand.py", output.AUTUMN_TEST),
        shop.pytest(output.AUTUMN_FAILURE),
    )
    chat.step(
        "The code is right and my test was wrong: it expected the second 02:30. The first one is still summer time, "
        "two hours ahead of UTC.",
        shop.edit(
            "tests/test_expand.py",
            "timedelta(hours=1)  # first of the two",
            "timedelta(hours=2)  # still summer time",
        ),
    )
    chat.step(
        "",
        shop.pytest(),
        shop.run("python -m ferrytime board data/north.toml --day 2025-10-26", output.SINGLE_BOARD),
    )
    chat.answer(output.FIRST_ANSWER)


def missing_hour(chat: Transcript, shop: Workshop) -> None:
    chat.user(output.SPRING_REQUEST)
    chat.step(
        "",
        shop.run("python -m ferrytime board data/north.toml --day 2025-03-30", output.SPRING_BOARD),
        shop.read("src/ferrytime/clock.py"),
        shop.search("localise"),
    )
    chat.step(
        "What does Python make of a time that does not exist?",
        shop.run(output.GAP_COMMAND, output.GAP_OUTPUT),
    )
    chat.step(
        "As I thought: the offset differs before and after, so `candidates` takes a gap for a repeated hour. A time exists "
        "when going to UTC and back gives the same clock time. I put that test into `clock`.",
        shop.edit("src/ferrytime/clock.py", output.CANDIDATES_TAIL, output.CANDIDATES_TAIL_WITH_GAP),
        shop.append("src/ferrytime/clock.py", output.AFTER_GAP),
    )
    chat.step("", shop.read("src/ferrytime/clock.py"), shop.read("src/ferrytime/model.py"))
    chat.step(
        "`Sailing` is public and must stay as it is, so the delay shows in the departure time and nowhere else.",
        shop.append("tests/test_clock.py", output.SPRING_CLOCK_TESTS),
        shop.append("tests/test_expand.py", output.SPRING_EXPAND_TEST),
    )
    chat.step("", shop.pytest(output.SPRING_FAILURE))
    chat.step(
        "`after_gap` added a whole hour to a time that was already moved. The first moment after the gap is what was asked "
        "for: 03:00, not 03:30.",
        shop.edit("src/ferrytime/clock.py", output.AFTER_GAP_WRONG_LINE, output.AFTER_GAP_RIGHT_LINE),
        shop.edit(
            "src/ferrytime/clock.py",
            "import UTC, date, datetime, time\n",
            "import UTC, date, datetime, time, timedelta\n",
        ),
    )
    chat.step("", shop.pytest(command="pytest -v"))
    chat.step(
        "Other zones have gaps of another size. I check all of them once, outside of the test suite.",
        shop.run("python scripts/scan_gaps.py 2025", logs.scan_gaps(chat.rng)),
    )
    chat.answer(output.SPRING_ANSWER)


def end_of_month(chat: Transcript, shop: Workshop) -> None:
    chat.user(output.BOARD_REQUEST)
    chat.step("", shop.read("src/ferrytime/board.py"), shop.read("tests/test_board.py"))
    chat.step(
        "`day_mark` compares days of the month: on the 31st the next day is 1, and 1 is not greater than 31.",
        shop.edit("src/ferrytime/board.py", output.DAY_MARK_WRONG, output.DAY_MARK_RIGHT),
        shop.append("tests/test_board.py", output.BOARD_TESTS),
    )
    chat.step("", shop.pytest(command="pytest -v"))
    chat.step(
        "Is the same mistake anywhere else?",
        shop.search(r"\.day\b"),
        shop.search(r"\.month\b"),
    )
    chat.answer(output.BOARD_ANSWER)


def slow_year(chat: Transcript, shop: Workshop) -> None:
    chat.user(output.SPEED_REQUEST)
    chat.step(
        "Measure first.",
        shop.run(
            "python -m cProfile -s cumtime -m ferrytime export data/north.toml --year 2025",
            logs.profile(chat.rng),
        ),
    )
    chat.step("", shop.read("src/ferrytime/expand.py"), shop.read("src/ferrytime/timetable.py"))
    chat.step(
        "Two thirds of the time go into `is_closed`, which builds a set from a frozenset for each service and day; most of "
        "the rest is `ZoneInfo(zone)` and the round trip for gaps. Days outer, services inner, and one lookup per day:",
        shop.edit("src/ferrytime/expand.py", output.LOOP_SLOW, output.LOOP_FAST),
        shop.edit("src/ferrytime/expand.py", output.IS_CLOSED, ""),
    )
    chat.step("", shop.search("is_closed"), shop.pytest())
    chat.step(
        "Nothing else used `is_closed`; it was never exported. Same output as before?",
        shop.run(output.COMPARE_COMMAND, output.COMPARE_OUTPUT),
        shop.run("python -m timeit -n 3 -r 3 -s '...' 'expand(table, first, last)'", output.TIMEIT),
    )
    chat.answer(output.SPEED_ANSWER)


def wrong_python(chat: Transcript, shop: Workshop) -> None:
    chat.user(output.ALIAS_REQUEST)
    chat.step(
        "",
        shop.search("frozenset"),
        shop.edit(
            "src/ferrytime/model.py",
            "\n\n@dataclass(frozen=True)\nclass Service:",
            "\ntype Weekdays = frozenset[int]\n\n\n@dataclass(frozen=True)\nclass Service:",
        ),
        shop.edit("src/ferrytime/model.py", "    weekdays: frozenset[int]\n", "    weekdays: Weekdays\n"),
    )
    chat.step("", shop.run("git push origin fix/clocks && ci wait", logs.ci_log(chat.rng)))
    chat.step(
        "My mistake: the `type` statement came with Python 3.12, and you told me at the start to keep 3.11 working. I use "
        "an ordinary alias.",
        shop.edit(
            "src/ferrytime/model.py",
            "\ntype Weekdays = frozenset[int]\n",
            "\nWeekdays: TypeAlias = frozenset[int]\n",
        ),
        shop.edit(
            "src/ferrytime/model.py",
            "from datetime import date, datetime, time, timedelta\n",
            "from datetime import date, datetime, time, timedelta\nfrom typing import TypeAlias\n",
        ),
    )
    chat.step("", shop.read("src/ferrytime/model.py", 1, 32), shop.pytest())
    chat.step("", shop.run("mypy && python3.11 -m compileall -q src && ci wait", output.CI_GREEN))
    chat.answer(output.ALIAS_ANSWER)


def release(chat: Transcript, shop: Workshop) -> None:
    chat.user(output.RELEASE_REQUEST)
    chat.step(
        "", shop.read("CHANGELOG.md"), shop.read("pyproject.toml"), shop.read("src/ferrytime/__init__.py")
    )
    chat.step(
        "",
        shop.edit("CHANGELOG.md", "# Changelog\n", output.CHANGELOG_ENTRY),
        shop.edit("pyproject.toml", 'version = "2.4.1"', 'version = "2.4.2"'),
    )
    chat.step(
        "`__version__` lives in `__init__.py`, the file you asked me not to touch. I leave it alone and ask.",
        shop.search("__version__"),
    )
    chat.answer(output.VERSION_QUESTION)
    chat.user("Good that you asked. Changing that one string is fine, nothing else in the file.")
    chat.step("", shop.edit("src/ferrytime/__init__.py", '__version__ = "2.4.1"', '__version__ = "2.4.2"'))
    chat.step("", shop.pytest(), shop.diff())
    chat.answer(output.RELEASE_ANSWER)


def questions(chat: Transcript, shop: Workshop) -> None:
    chat.user("Which service was it in the first report, and what did the board show for it before the fix?")
    chat.answer(
        "N-77, the 02:30 night boat from Vik to Sandholm. On 26 October 2025 the board listed it twice, arriving at 02:20 "
        "and at 03:20, because 02:30 happens twice that night."
    )
    chat.user("And is there anything that you noticed and did not change?")
    chat.step("", shop.read("src/ferrytime/expand.py"), shop.search("after"))
    chat.answer(output.LAST_ANSWER)
    chat.user("Please open an issue for the first of those and stop there.")


def _tool(name: str, description: str, required: list[str], **properties: tuple[str, str]) -> dict[str, Any]:
    schema = {key: {"type": kind, "description": text} for key, (kind, text) in properties.items()}
    parameters = {"type": "object", "properties": schema, "required": required, "additionalProperties": False}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


PATH = ("string", "Path relative to the root of the repository.")
TOOLS = [
    _tool("list_files", "List every tracked file with its size in bytes.", []),
    _tool(
        "read_file",
        "Read a text file with line numbers. Without a range the whole file is returned.",
        ["path"],
        path=PATH,
        first_line=("integer", "First line to return, counted from 1."),
        last_line=("integer", "Last line to return, included."),
    ),
    _tool(
        "search",
        "Search all tracked files with a regular expression; one line per match.",
        ["pattern"],
        pattern=("string", "A regular expression in Python's syntax."),
    ),
    _tool(
        "edit_file",
        "Replace text in a file. The old text must occur exactly once, white space included.",
        ["path", "old", "new"],
        path=PATH,
        old=("string", "The text to replace."),
        new=("string", "The text to put in its place."),
    ),
    _tool(
        "append_to_file",
        "Append text to a file.",
        ["path", "text"],
        path=PATH,
        text=("string", "What to append."),
    ),
    _tool(
        "run",
        "Run a shell command in the root of the repository. Returns its output and exit code.",
        ["command"],
        command=("string", "The command line."),
    ),
    _tool(
        "open_issue",
        "Open an issue in the tracker of the repository.",
        ["title", "body"],
        title=("string", "One line."),
        body=("string", "Markdown: what happens, what should happen, how to see it."),
    ),
]
