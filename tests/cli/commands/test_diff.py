"""`refold diff`."""

from __future__ import annotations

import json

import pytest

SMALL = ("--window", "12000")


@pytest.mark.feature("N10")
def test_the_difference_can_be_seen_afterwards_as_it_was_told(kept):
    done = json.loads(kept("compact", "shifts", *SMALL, "--json").out)
    seen = json.loads(kept("diff", "shifts", "--json").out)

    assert seen == {**done, "dry_run": False}
    listing = kept("diff", "shifts", done["compactions"][0][:8]).out
    assert "- #m0" in listing
    assert "+ summary" in listing
    assert "  #m133" in listing


def test_two_compactions_are_two_differences(kept, tmp_path):
    kept("compact", "shifts", *SMALL)
    more = tmp_path / "more.jsonl"
    lines = [
        json.dumps({"role": role, "content": f"{role} {n} " * 200})
        for n in range(9)
        for role in ("user", "assistant")
    ]
    more.write_text("\n".join(lines[:-1]) + "\n")
    assert kept("import", str(more), "--as", "shifts", "--append").code == 0
    second = json.loads(kept("compact", "shifts", *SMALL, "--json").out)

    seen = json.loads(kept("diff", "shifts", "--json").out)
    assert seen["changes"] == second["changes"]
    assert min(change["number"] for change in seen["changes"]) > 100
    assert kept("doctor").code == 0
