"""Every table that a command prints fits a screen of 80 columns, also with long names and wide characters."""

from __future__ import annotations

import shutil

import pytest
import typer
from rich.cells import cell_len

from refold.cli.commands.serve import ServeNotice, UpstreamNotice, notice_text
from refold.cli.main import app, run
from refold.sync import Engine

LONG = "support/tickets/2026/november/the night boat from Vik and its timetable, part 2"
WIDE = "夜行フェリーの予約システムを直す長い会話・夜行フェリーの予約システムを直す長い会話"
MODEL = "accounts/fireworks/models/llama-4-maverick-instruct-basic-with-a-long-suffix@upstream-of-the-team"
WORDS = "lorem ipsum dolor sit amet 夜行フェリー " * 40
USAGE = {"prompt_tokens": 123_456_789, "completion_tokens": 9_876_543}
REFUSAL = {"error": {"message": "prompt is too long: 60000 tokens > 12000 maximum"}}

TABLES = {
    "conversations": ["conversations"],
    "sessions": ["sessions", LONG],
    "sessions, wide": ["sessions", WIDE],
    "stats": ["stats"],
    "limits": ["limits"],
    "models": ["models", "--all"],
    "keys": ["keys", "list"],
    "show": ["show", LONG, "--calls"],
    "diff": ["diff", LONG, "--list"],
    "search": ["search", "lorem", "--sessions", "--words-only"],
    "resume": ["resume", LONG],
    "context": ["context", LONG],
    "compact": ["compact", "examples/coding-agent.json", "--window", "12k", "--dry-run"],
    "plugins": ["plugins", "check", "examples/plugin/refold_harbour.py"],
    "replay": ["replay", "examples/coding-agent.json", "--preset", "refold", "--window", "8k"],
}
"""The commands that print a table, each with a table that is too wide as it is."""
WITHOUT_TABLES = {
    *(
        "chat",
        "check",
        "completion",
        "config",
        "dashboard",
        "db",
        "delete",
        "demo",
        "doctor",
        "expire",
        "export",
        "import",
        "jobs",
    ),
    *("local", "mcp", "new", "off", "on", "pin", "recall", "rerun", "serve", "undo", "unpin", "worker"),
}
"""The other commands print messages, sentences, or nothing; `jobs` needs PostgreSQL; `serve` and `demo` have tests below."""


@pytest.fixture(scope="module")
def wide_file(tmp_path_factory):
    """A store with long names, names in wide characters, forks, large numbers and everything that is listed."""
    path = tmp_path_factory.mktemp("wide") / "chats.db"
    with Engine(f"sqlite:///{path}", model=MODEL, window=20_000) as engine:
        for name in (LONG, WIDE):
            talk = engine.conversation(name)
            for number in range(14):
                if number == 7:
                    engine.fork(name, 6)
                    talk = engine.conversation(name, branch=talk.branch)
                talk.add(f"Question {number}: {WORDS}")
                talk.context()
                talk.record(USAGE)
                talk.add({"role": "assistant", "content": f"Answer {number}. {WORDS}"})
            talk.compact()
            talk.start_session()
    with Engine(f"sqlite:///{path}", model=MODEL) as engine:
        learnt = engine.conversation("learnt")
        learnt.add(WORDS * 30, {"role": "assistant", "content": "Yes."}, "And now?")
        learnt.context()
        learnt.recover(REFUSAL)
        learnt.record({"prompt_tokens": 1_000, "completion_tokens": 5})
        learnt.add({"role": "assistant", "content": "Fine."})
    for name in (LONG, WIDE):
        assert run(["keys", "create", name, "--store", f"sqlite:///{path}"]) == 0
    return path


@pytest.fixture
def wide(wide_file, refold, store):
    shutil.copy(wide_file, store)
    return refold


def widest(text: str) -> int:
    return max(map(cell_len, text.splitlines()))


def test_every_command_is_looked_at():
    command = typer.main.get_command(app)

    assert set(command.commands) == {args[0] for args in TABLES.values()} | WITHOUT_TABLES


@pytest.mark.parametrize("args", TABLES.values(), ids=TABLES)
def test_a_table_fits_80_columns(wide, args):
    shown = wide(*args)

    assert shown.code == 0, shown.err
    # The name of a conversation and of its model are whole lines before the picture or the steps.
    table = shown.out.partition("\n\n")[2] if args[0] in ("context", "compact") else shown.out
    assert len(table.splitlines()) > 1
    assert widest(table) <= 80, table


def test_the_table_of_serve_fits_80_columns_and_says_which_key_goes_where(refold):
    key = "the client's, else $A_LONG_NAME_OF_A_VARIABLE; as a fallback $ANOTHER_ONE"
    upstream = UpstreamNotice(WIDE, ("chat", "responses", "anthropic"), (MODEL, WIDE), key, LONG)
    text = notice_text(ServeNotice("http://127.0.0.1:7336", (upstream,), "refold", "", "", False, False))

    head, row, rest = text.partition("upstream ")[2].split("\n", 2)
    assert widest(f"upstream {head}\n{row}") <= 80
    assert rest.startswith(f"key of {WIDE}: {key}\n")
