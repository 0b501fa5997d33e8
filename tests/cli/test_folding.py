"""`refold compact CONV`, `refold undo` and `refold diff`."""

from __future__ import annotations

import asyncio
import json

import pytest

from refold.engine.engine import Engine
from refold.model.tokens import Usage
from refold.testing import ScriptedUpstream, say

SMALL = ("--window", "12000")
TEXT = (
    "## Goal\nThe complaint from the harbour office.\n## Progress\n### Done\nThe board was mended.\n"
    "## Next Steps\nOpen an issue for next_sailing."
)


def said(refold) -> str:
    return refold("export", "shifts").out


@pytest.mark.feature("N10")
def test_a_rehearsal_tells_what_a_compaction_would_do_and_changes_nothing(kept, store):
    bytes_before, listed = store.read_bytes(), kept("diff", "shifts", "--list").out
    rehearsed = json.loads(kept("compact", "shifts", *SMALL, "--dry-run", "--json").out)

    assert store.read_bytes() == bytes_before
    assert kept("diff", "shifts", "--list").out == listed == ""
    done = json.loads(kept("compact", "shifts", *SMALL, "--json").out)
    assert (rehearsed["before"], rehearsed["after"]) == (done["before"], done["after"])
    assert rehearsed["changes"] == done["changes"]
    assert (rehearsed["compactions"], len(done["compactions"])) == ([], 1)


def test_people_are_told_what_was_done_and_how_to_take_it_back(kept):
    told = kept("compact", "shifts", *SMALL)

    lines = told.out.splitlines()
    assert lines[0] == "shifts  134 messages"
    assert any(line.startswith("summarise  ") for line in lines)
    assert "in the summary" in told.out
    assert "`refold undo` takes it back" in told.err


@pytest.mark.feature("N10")
def test_the_difference_can_be_seen_afterwards_as_it_was_told(kept):
    done = json.loads(kept("compact", "shifts", *SMALL, "--json").out)
    seen = json.loads(kept("diff", "shifts", "--json").out)

    assert seen == {**done, "dry_run": False}
    listing = kept("diff", "shifts", done["compactions"][0][:8]).out
    assert "- #m0" in listing
    assert "+ summary" in listing
    assert "  #m133" in listing


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


def test_nothing_to_undo_and_nothing_to_see_are_said(kept):
    undone, seen = kept("undo", "shifts"), kept("diff", "shifts")

    assert (undone.code, undone.out) == (1, "")
    assert undone.err.startswith("nothing to undo in the open session\n")
    assert (seen.code, seen.out) == (1, "")
    assert seen.err.startswith("nothing was done to this conversation yet\n")


def test_a_conversation_that_ends_with_the_assistant_is_compacted_too(refold, store):
    refold("import", "examples/support-chat.anthropic.json", "--as", "support")
    refold("compact", "support", "--window", "4000")

    assert refold("doctor").code == 0
    assert len(json.loads(refold("export", "support").out)["messages"]) == 13


@pytest.mark.parametrize(
    "args, words",
    [
        (("shifts", "--focus", "the clock"), "--focus is for a model"),
        (("shifts", "--summarizer", "nosuch:model"), "there is no provider 'nosuch'"),
        (("shifts", "--preset", "nosuch"), "there is no preset 'nosuch'"),
        (("shifts", "--output", "x"), "--output is for a file"),
        (("shifts", "--now"), "--now is for a file"),
        (("examples/coding-agent.json", "--focus", "x"), "--focus is for a stored conversation"),
        (("nosuch.json",), "there is no file and no conversation 'nosuch.json'"),
    ],
)
def test_mistakes_are_told_and_nothing_is_done(kept, args, words):
    told = kept("compact", *args)

    assert (told.code, told.out) == (2, "")
    assert words in told.err
    assert "hint: " in told.err
    assert kept("diff", "shifts", "--list").out == ""


def test_another_branch_than_the_newest_is_compacted_where_it_is_named(kept, store):
    async def fork() -> str:
        async with Engine(f"sqlite:///{store}", embedder=None) as engine:
            return await engine.fork("shifts", 10)

    main = json.loads(kept("sessions", "shifts", "--json").out)["sessions"][0]["branch"]
    fork_id = asyncio.run(fork())
    (made,) = json.loads(kept("compact", "shifts", *SMALL, "--branch", main[:8], "--json").out)["compactions"]
    assert made in kept("diff", "shifts", "--list", "--branch", main, "--json").out
    assert kept("diff", "shifts", "--list", "--branch", fork_id).out == ""
    assert "there is no branch 'nowhere'" in kept("compact", "shifts", "--branch", "nowhere").err
    assert kept("doctor").code == 0


def test_a_model_writes_the_summary_and_is_told_what_matters(kept, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-test-1234567890")
    with ScriptedUpstream(
        otherwise=say(TEXT, usage=Usage(input=9_000, output=90)), key="sk-test-1234567890"
    ) as server:
        args = (
            "--summarizer",
            f"gpt-4o-mini@{server.url}/v1",
            "--key-env",
            "MY_KEY",
            "--focus",
            "the harbour office",
        )
        rehearsed = kept("compact", "shifts", "--dry-run", *args)
        assert (rehearsed.code, len(server.requests)) == (0, 0)
        done = json.loads(kept("compact", "shifts", "--json", *args).out)
        asked, times = b"".join(request.body for request in server.requests), len(server.requests)

    assert done["receipts"][-1]["summary"]["kind"] == "model"
    assert "The board was mended." in done["summary"]
    assert b"the harbour office" in asked
    (call,) = json.loads(kept("show", "shifts", "--calls", "--json").out)["calls"]
    assert (call["kind"], call["usage"]["input"]) == ("summary", times * 9_000)
    assert kept("doctor").code == 0


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
        told = kept("rerun", "shifts", *SMALL, "--summarizer", f"gpt-4o-mini@{server.url}/v1")
        assert server.requests

    assert (told.code, told.out) == (2, "")
    assert told.err.splitlines()[-2].startswith(
        "error: no summary could be written, and the old compaction was restored"
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
