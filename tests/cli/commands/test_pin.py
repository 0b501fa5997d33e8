"""`refold pin` and `refold unpin`."""

from __future__ import annotations

import json


def test_a_pinned_message_is_listed_survives_a_compaction_and_can_be_let_go(kept):
    assert kept("pin", "shifts").err == "nothing is pinned\n"
    assert kept("pin", "shifts", "#m1").out == "#m1\n"
    done = json.loads(kept("compact", "shifts", "--window", "12000", "--json").out)
    state = {change["number"]: change["state"] for change in done["changes"]}
    assert state[1] == "kept"
    assert "gone" in state.values() or "summarised" in str(done["changes"])
    told = json.loads(kept("unpin", "shifts", "#m1", "--json").out)
    assert (told["conversation"], told["pins"]) == ("shifts", [])


def test_what_cannot_be_pinned_is_told_with_a_hint(kept):
    told = kept("pin", "shifts", "#m9999")
    assert told.code != 0
    assert "there is no message 9999" in told.err
    assert "hint:" in told.err
    assert kept("pin", "nobody", "#m1").code != 0
