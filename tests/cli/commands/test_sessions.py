"""`refold sessions`."""

from __future__ import annotations

import asyncio
import json

from refold import Engine


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
