"""`refold compact CONV`."""

from __future__ import annotations

import asyncio
import json

import pytest

from refold.engine.engine import Engine
from refold.model.tokens import Usage
from refold.testing import Refuse, ScriptedUpstream, say

SMALL = ("--window", "12000")
TEXT = (
    "## Goal\nThe complaint from the harbour office.\n## Progress\n### Done\nThe board was mended.\n"
    "## Next Steps\nOpen an issue for next_sailing."
)


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


def test_a_conversation_that_ends_with_the_assistant_is_compacted_too(refold, store):
    refold("import", "examples/support-chat.anthropic.json", "--as", "support")
    refold("compact", "support", "--window", "4000")

    assert refold("doctor").code == 0
    assert len(json.loads(refold("export", "support").out)["messages"]) == 13


@pytest.mark.parametrize(
    "args, words",
    [
        (("shifts", "--focus", "the clock"), "--focus is for a model"),
        (("shifts", "--summariser", "nosuch:model"), "there is no provider 'nosuch'"),
        (
            ("shifts", "--dry-run", "--summariser", "openai:gpt-4o-mini", "--focus", "x" * 4_001),
            "focus is longer than 4,000 characters",
        ),
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
            "--summariser",
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
    calls = json.loads(kept("show", "shifts", "--calls", "--json").out)["calls"]
    assert [(call["kind"], call["usage"]["input"]) for call in calls] == [("summary", 9_000)] * times
    assert kept("doctor").code == 0


def test_a_model_that_failed_three_times_is_not_asked_and_the_command_says_so(kept, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-test-1234567890")
    with ScriptedUpstream(otherwise=Refuse(403, b'{"error": "no"}')) as server:
        args = ("compact", "shifts", "--summariser", f"gpt-4o-mini@{server.url}/v1", "--key-env", "MY_KEY")
        for _ in range(3):
            told = kept(*args)
            assert "the summariser answered 403" in told.out + told.err
            assert kept("undo", "shifts").code == 0
        asked = len(server.requests)
        told = kept(*args)
        assert len(server.requests) == asked
    assert "the model was not asked: it failed 3 times at the same messages" in told.out + told.err
    assert "could not be used" not in told.out + told.err
