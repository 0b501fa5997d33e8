"""What all commands about stored conversations have in common."""

from __future__ import annotations

import asyncio
import json
import time

import apsw
import pytest

from refold import Engine
from refold.stores.sql import queries

READING = (
    ("conversations",),
    ("sessions", "x"),
    ("show", "x"),
    ("search", "x"),
    ("recall", "x", "#m0"),
    ("diff", "x"),
    ("export", "x"),
    ("doctor",),
    ("compact", "x", "--dry-run"),
    ("expire", "--older-than", "1d", "--dry-run"),
    ("db", "check"),
    ("db", "backup", "copy.db"),
    ("db", "export", "copy.jsonl"),
)
CHANGING = (
    ("undo", "x"),
    ("rerun", "x"),
    ("new", "x"),
    ("resume", "x", "y"),
    ("delete", "x"),
    ("compact", "x"),
    ("expire", "--older-than", "1d"),
)


@pytest.mark.parametrize("args", [*READING, *CHANGING], ids=" ".join)
def test_a_store_that_is_not_there_is_said_to_be_missing_and_not_made(refold, store, args):
    code, out, err = refold(*args)

    assert (code, out) == (2, "")
    assert err.startswith(f"error: there is no store yet: {store}\nhint: ")
    assert not list(store.parent.iterdir())


@pytest.mark.parametrize("args", [("conversations",), ("import", "examples/coding-agent.json", "--as", "a")])
def test_a_store_in_memory_is_of_no_use_to_a_command(refold, args):
    code, _, err = refold(*args, "--store", "memory:")

    assert code == 2
    assert "a store in memory is forgotten when the command ends" in err


@pytest.mark.parametrize(
    "args",
    [
        ("sessions", "nosuch"),
        ("show", "nosuch"),
        ("search", "x", "--in", "nosuch"),
        ("recall", "nosuch", "#m0"),
        ("compact", "nosuch"),
        ("undo", "nosuch"),
        ("rerun", "nosuch"),
        ("new", "nosuch"),
        ("resume", "nosuch", "words"),
        ("diff", "nosuch"),
        ("export", "nosuch"),
        ("delete", "nosuch"),
        ("doctor", "nosuch"),
        ("sessions", ""),
    ],
    ids=" ".join,
)
def test_a_conversation_that_is_not_there_is_named_with_a_hint(kept, args):
    code, out, err = kept(*args)

    assert (code, out) == (2, "")
    assert "conversation" in err.splitlines()[0]
    assert "hint: `refold conversations` lists those that are there" in err


def test_nobody_sees_the_conversations_of_another_owner(kept):
    assert kept("conversations", "--owner", "eve").out == ""
    assert kept("search", "ferry", "--owner", "eve").code == 1
    assert kept("show", "shifts", "--owner", "eve").code == 2
    assert kept("delete", "--all", "--yes", "--owner", "eve").code == 0
    assert "shifts" in kept("conversations").out


def test_an_id_may_be_given_by_its_first_letters_if_they_are_enough(kept):
    kept("compact", "shifts", "--window", "12000")
    first, second = json.loads(kept("sessions", "shifts", "--json").out)["sessions"]

    assert kept("show", "shifts", "--session", second["id"][:12]).out.startswith(f"#m{second['first']}  ")
    ambiguous = kept("show", "shifts", "--session", "")
    assert ambiguous.out.startswith("#m0  ")
    assert "there is no session 'zz'" in kept("show", "shifts", "--session", "zz").err
    assert "there is no branch 'zz'" in kept("show", "shifts", "--branch", "zz").err
    assert first["branch"] == second["branch"]


@pytest.mark.parametrize(
    "command",
    [
        *(
            "conversations",
            "sessions",
            "show",
            "search",
            "recall",
            "compact",
            "undo",
            "rerun",
            "new",
            "resume",
            "diff",
            "import",
            "export",
        ),
        *("delete", "expire", "doctor", "db upgrade", "db check", "db backup", "db export", "db import"),
    ],
)
def test_help_teaches_with_an_example(refold, command):
    told = refold(*command.split(), "--help")

    assert told.code == 0
    assert "Example" in told.out
    assert f"refold {command}" in told.out.split("Example")[1]
    assert "--store URL" in told.out
    assert "--json" in told.out


@pytest.mark.feature("X2")
def test_old_conversations_go_when_it_is_set_for_how_long_they_are_kept(kept, store, monkeypatch):
    async def begin_long_ago(days):
        made = await Engine(f"sqlite:///{store}", clock=lambda: time.time() - days * 86_400).start()
        async with made as engine:
            await engine.delete("shifts")
            await (await engine.conversation("shifts")).add("Long ago.")

    asyncio.run(begin_long_ago(40))
    assert kept("new", "ferry").code == 0
    assert "shifts" in kept("conversations").out, "nothing is deleted that nobody asked to have deleted"
    monkeypatch.setenv("REFOLD_STORE_KEEP_DAYS", "30")
    assert "shifts" in kept("conversations").out, "whoever looks changes nothing"
    told = kept("new", "ferry")
    assert "deleted 1 conversation that nothing happened in for 30 days (REFOLD_STORE_KEEP_DAYS)" in told.err
    assert "shifts" not in kept("conversations").out
    asyncio.run(begin_long_ago(40))
    assert kept("new", "shifts").code == 0, "what a command names is used, and not of long ago"
    assert "shifts" in kept("conversations").out


@pytest.mark.parametrize("days", ["soon", "0", "-1", "inf"])
def test_a_time_to_keep_conversations_that_cannot_be_is_refused(kept, monkeypatch, days):
    monkeypatch.setenv("REFOLD_STORE_KEEP_DAYS", days)
    told = kept("new", "shifts")

    assert (told.code, told.out) == (2, "")
    assert "days" in told.err
    assert "hint: " in told.err
    assert len(json.loads(kept("sessions", "shifts", "--json").out)["sessions"]) == 1


def earlier_file(path) -> None:
    """An empty store with the tables of the version before."""
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", "wal")
    connection.execute(queries.load("sqlite")["begin_migrating"])
    for name, script in list(queries.migrations("sqlite").items())[:-1]:
        connection.execute(script)
        connection.execute(queries.load("sqlite")["add_migration"], {"name": name})
    connection.close()


@pytest.mark.parametrize("args", [one for one in READING if one[:2] != ("db", "backup")], ids=" ".join)
def test_a_command_that_only_reads_leaves_the_tables_of_an_earlier_version(refold, store, args):
    earlier_file(store)
    before = store.read_bytes()

    result = refold(*args)

    assert result.code == 2
    assert "refold db upgrade" in result.err
    assert store.read_bytes() == before


def test_the_command_that_upgrades_names_the_store_that_was_given(refold, tmp_path):
    path = tmp_path / "my chats.db"
    earlier_file(path)
    result = refold("db", "check", "--store", str(path))

    assert f"run: refold db upgrade --store '{path}'" in result.err.replace("\n", " ").replace("  ", " ")
    assert refold("db", "upgrade", "--store", str(path)).code == 0


def test_a_store_of_an_earlier_version_can_be_backed_up_and_then_upgraded(refold, store, tmp_path):
    earlier_file(store)

    assert refold("db", "backup", str(tmp_path / "copy.db")).code == 0
    assert refold("conversations").code == 2
    assert refold("db", "upgrade").code == 0
    assert refold("conversations").code == 0
    assert refold("conversations", "--store", str(tmp_path / "copy.db")).code == 2
