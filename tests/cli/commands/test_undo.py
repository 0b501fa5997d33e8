"""`refold undo`."""

from __future__ import annotations

import json

import pytest

SMALL = ("--window", "12000")


def said(refold) -> str:
    return refold("export", "shifts").out


@pytest.mark.feature("N10")
def test_an_undone_compaction_can_still_be_looked_at_and_another_one_made(kept):
    first = json.loads(kept("compact", "shifts", *SMALL, "--json").out)
    before = said(kept)
    undone = kept("undo", "shifts")
    assert undone.code == 0
    assert undone.out.startswith(f"undone: {first['compactions'][0][:8]}  summarise")
    second = json.loads(kept("compact", "shifts", "--window", "20000", "--json").out)

    assert first["compactions"] != second["compactions"]
    assert first["before"] == second["before"]
    assert first["after"] < second["after"]
    again = json.loads(kept("diff", "shifts", first["compactions"][0], "--json").out)
    assert again["changes"] == first["changes"]
    states = [
        one["state"] for one in json.loads(kept("diff", "shifts", "--list", "--json").out)["compactions"]
    ]
    assert states == ["undone", "installed"]
    assert said(kept) == before


def test_nothing_to_undo_and_nothing_to_see_are_said(kept):
    undone, seen = kept("undo", "shifts"), kept("diff", "shifts")

    assert (undone.code, undone.out) == (1, "")
    assert undone.err.startswith("nothing to undo in the open session\n")
    assert (seen.code, seen.out) == (1, "")
    assert seen.err.startswith("nothing was done to this conversation yet\n")
