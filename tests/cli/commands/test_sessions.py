"""`refold sessions`."""

from __future__ import annotations

import asyncio
import json

from refold import Engine
from tests.cli.commands.test_doctor import damage


def test_a_compaction_closes_a_session_and_opens_the_next(kept):
    kept("compact", "shifts", "--window", "12000")
    rows = json.loads(kept("sessions", "shifts", "--json").out)["sessions"]

    assert [(row["kind"], row["state"], row["carries"]) for row in rows] == [
        ("root", "live", "none"),
        ("compaction", "open", "summary"),
    ]
    assert rows[0]["last"] == rows[1]["first"]
    assert sum(row["messages"] for row in rows) == 134
    table = kept("sessions", "shifts").out.splitlines()
    assert [line.split()[1:3] for line in table[1:]] == [["root", "closed"], ["compaction", "open"]]


def test_branches_are_told_apart_where_there_are_several(kept, store):
    async def work():
        async with Engine(f"sqlite:///{store}") as engine:
            return await engine.fork("shifts", 10)

    assert " branch" not in kept("sessions", "shifts").out
    branch = asyncio.run(work())
    table = kept("sessions", "shifts").out.splitlines()
    assert table[0].endswith("  branch")
    assert table[2].endswith(branch[:8])
    assert len(kept("sessions", "shifts", "--branch", branch[:8]).out.splitlines()) == 2
    assert len(json.loads(kept("show", "shifts", "--branch", branch, "--json").out)["messages"]) == 10


def test_commands_take_the_branch_used_last_and_every_session_has_its_own_length(kept, store):
    async def work():
        async with Engine(f"sqlite:///{store}") as engine:
            main = (await engine.conversation("shifts")).branch
            side = await engine.fork("shifts", 10)
            assert (await engine.conversation("shifts")).branch == side
            talk = await engine.conversation("shifts", branch=main)
            await talk.add({"role": "user", "content": "And the night shift?"})
            return main, side

    main, side = asyncio.run(work())

    rows = json.loads(kept("sessions", "shifts", "--json").out)["sessions"]
    assert {row["branch"]: row["messages"] for row in rows} == {main: 135, side: 0}
    assert len(json.loads(kept("show", "shifts", "--json").out)["messages"]) == 135
    listed = json.loads(kept("conversations", "shifts", "--json").out)["conversations"]
    assert [one["branch"] for one in listed] == [main]


def test_a_session_of_a_branch_that_is_not_there_is_listed(kept, store):
    kept("compact", "shifts", "--window", "12000")
    damage(store, "UPDATE session SET branch = 'elsewhere' WHERE last IS NOT NULL")

    rows = json.loads(kept("sessions", "shifts", "--json").out)["sessions"]
    assert [(row["branch"] == "elsewhere", row["messages"] > 0) for row in rows] == [
        (True, True),
        (False, True),
    ]
    assert kept("doctor").code == 1
