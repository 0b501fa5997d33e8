from __future__ import annotations

import re
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import typer

from refold.cli import options
from refold.cli.main import app
from refold.engine.engine import OWNER
from refold.wire import MAX_BODY_BYTES

ROOT = Path(__file__).parents[2]
OWN = ("context", "check", "compact", "models", "limits")
KEPT = (
    *("conversations", "stats", "sessions", "show", "search", "recall", "diff", "export", "doctor"),
    *("import", "undo", "pin", "unpin", "off", "on", "rerun", "new", "resume", "delete", "expire"),
)
JOINED = ("replay", "serve", "dashboard", "chat", "demo", "mcp", "worker", "jobs")
GROUPS = ("db", "keys", "config", "local", "plugins")
COMMANDS = (*OWN, *KEPT, *JOINED, *GROUPS, "completion")


def test_the_version_is_the_installed_one(refold):
    assert refold("--version") == (0, f"refold {version('refold')}\n", "")


def test_help_names_every_command(refold):
    code, out, err = refold("--help")

    assert (code, err) == (0, "")
    listed = re.findall(r"^  (\w+)  ", out.partition("Start here:")[2], re.MULTILINE)
    assert sorted(listed) == sorted(COMMANDS)
    assert listed[:5] == ["serve", "dashboard", "chat", "demo", "context"]


@pytest.mark.parametrize("command", [[], ["show"]], ids=" ".join)
def test_help_on_a_full_disk_is_an_error_without_a_traceback(refold, monkeypatch, command):
    with open("/dev/full", "w") as stream:  # noqa: PTH123 - a device
        monkeypatch.setattr(sys, "stdout", stream)
        code, _, err = refold(*command, "--help")

    assert code == 2
    assert err.startswith("error: the output cannot be written: No space left on device\nhint: ")


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in GROUPS])
def test_every_command_explains_itself_with_an_example(refold, command):
    code, out, _ = refold(command, "--help")

    assert code == 0
    assert re.search(rf"Examples?:\s+refold {command}\b", out)


def test_without_a_command_there_is_help_but_no_data(refold):
    code, out, err = refold()

    assert (code, out) == (2, "")
    assert "Start here:" in err


@pytest.mark.parametrize(
    ("args", "message", "command"),
    [
        (["nonsense"], "no such command 'nonsense'", "refold"),
        (["context"], "missing argument 'FILE|CONV'", "refold context"),
        (["context", "x.json", "--window", "0"], "--window", "refold context"),
        (["context", "x.json", "--window", "large"], "--window", "refold context"),
        (["context", "x.json", "--window", "9" * 5000], "--window", "refold context"),
        (["context", "x.json", "--max-output", "-1"], "--max-output", "refold context"),
        (["check", "x.json", "--max-body-bytes", "0"], "--max-body-bytes", "refold check"),
        (["check", "x.json", "--as-requets"], "--as-requets", "refold check"),
        (["compact", "x.json", "--window", "0"], "--window", "refold compact"),
    ],
)
def test_a_wrong_command_line_is_an_error_with_a_hint(refold, args, message, command):
    code, out, err = refold(*args)

    assert (code, out) == (2, "")
    first, *_, last = err.splitlines()
    assert first.startswith("error: ")
    assert message in err
    assert last == f"hint: see {command} --help"


def test_a_bug_is_not_hidden(refold, monkeypatch):
    def fail(*_args: object, **_options: object) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr("refold.cli.commands.models.find", fail)

    with pytest.raises(ZeroDivisionError):
        refold("models")


def test_an_interrupt_ends_quietly(refold, monkeypatch):
    def interrupt(*_args: object, **_options: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("refold.cli.commands.models.find", interrupt)

    assert refold("models") == (130, "", "")


def test_limits_written_twice_are_the_same():
    assert options.MAX_BODY_BYTES == MAX_BODY_BYTES
    assert options.OWNER == OWNER


def options_in(help_text: str) -> set[str]:
    return set(re.findall(r"^  (?:-h, )?(--[a-z-]+)", help_text, re.MULTILINE)) - {"--help"}


def sections(command: str) -> str:
    """All that docs/cli.md says about a command, with what it says about all of its kind."""
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    parts = re.split(r"^(?=##+ )", page, flags=re.MULTILINE)
    own = [part for part in parts if re.match(rf"##+ `?refold {command}\b", part)]
    assert own, f"there is no section for refold {command}"
    shared = [part for part in parts if part.startswith("## Stored conversations")]
    return "".join(own + (shared if command in (*KEPT, *GROUPS, "compact") else []))


@pytest.mark.parametrize(
    "command", [name for name in COMMANDS if name not in ("serve", "worker")]
)  # those are settings
def test_every_option_is_documented(refold, command):
    told = sections(command)

    assert not [option for option in options_in(refold(command, "--help").out) if option not in told]


@pytest.mark.parametrize("command", ["upgrade", "check", "backup", "vacuum", "export", "import"])
def test_every_command_of_db_is_documented(refold, command):
    told = sections("db")

    assert f"`db {command}" in told
    assert not [option for option in options_in(refold("db", command, "--help").out) if option not in told]


def help_pages(command, *path):
    """The path of every command and of every command of a group."""
    yield path
    for name, one in getattr(command, "commands", {}).items():
        yield from help_pages(one, *path, name)


def test_every_help_page_fits_80_columns_and_cuts_no_line(refold):
    pages = [*help_pages(typer.main.get_command(app))]
    assert ("db", "upgrade") in pages

    for path in pages:
        code, out, _ = refold(*path, "--help")
        assert code == 0
        assert [line for line in out.splitlines() if len(line) > 80] == [], path
        listed = out.partition("Commands:")[2]
        assert "..." not in listed, path


def test_options_of_stored_conversations_speak_of_nothing_else(refold):
    out = refold("rerun", "--help").out

    assert "CONV:" not in out
    assert "the file's own" not in out
