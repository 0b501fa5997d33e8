"""`refold rerun`."""

from __future__ import annotations

import json

import pytest

from refold.testing import ScriptedUpstream, say

SMALL = ("--window", "12000")


@pytest.mark.feature("N10")
def test_a_compaction_is_done_again_by_another_preset_on_the_same_messages(kept):
    first = json.loads(kept("compact", "shifts", *SMALL, "--json").out)
    again = json.loads(kept("rerun", "shifts", "--preset", "opal", *SMALL, "--json").out)

    assert first["compactions"] != again["compactions"]
    assert first["before"] == again["before"]
    assert first["summary"] != again["summary"]
    rows = json.loads(kept("sessions", "shifts", "--json").out)["sessions"]
    assert [row["state"] for row in rows] == ["live", "undone", "open"]
    assert rows[1]["first"] == rows[2]["first"]
    assert kept("doctor").code == 0


def test_without_a_compaction_there_is_nothing_to_do_again(kept):
    told = kept("rerun", "shifts")

    assert (told.code, told.out) == (1, "")
    assert told.err.startswith("no compaction of the open session can be done again\nhint: ")


def test_a_model_that_fails_leaves_the_compaction_as_it_was(kept):
    kept("compact", "shifts", *SMALL)
    before = json.loads(kept("diff", "shifts", "--json").out)
    with ScriptedUpstream(otherwise=say("I'm sorry, but I can't help with that.")) as server:
        told = kept("rerun", "shifts", *SMALL, "--summariser", f"gpt-4o-mini@{server.url}/v1")
        assert server.requests

    assert (told.code, told.out) == (2, "")
    assert told.err.splitlines()[-2].startswith(
        "error: no summary could be written, and the old compaction stays"
    )
    after = json.loads(kept("diff", "shifts", "--json").out)
    assert {**after, "compactions": []} == {**before, "compactions": []}, "by another id: it was made again"
    assert kept("doctor").code == 0


@pytest.mark.parametrize("command", ["diff", "rerun"])
def test_where_there_is_nothing_to_show_json_says_so_too(kept, command):
    told = kept(command, "shifts", "--json")
    found = json.loads(told.out)

    assert told.code == 1
    assert (found["compactions"], found["receipts"]) == ([], [])
    assert found["before"] == found["after"] > 0
    assert {one["state"] for one in found["changes"]} == {"kept"}
