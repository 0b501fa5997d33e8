"""`refold search`."""

from __future__ import annotations

import asyncio
import json

import pytest

from refold import Engine


def test_a_search_answers_with_handles_that_recall_takes(kept):
    found = json.loads(kept("search", "half an hour gap", "--json").out)["found"]

    assert {one["conversation"] for one in found} == {"shifts"}
    recalled = kept("recall", "shifts", found[0]["handle"])
    assert recalled.code == 0
    assert "half_an_hour" in recalled.out


def test_people_see_the_conversation_and_the_passages(kept):
    shown = kept("search", "ferry leave", "--in", "ferry")

    assert shown.out == "ferry\n  #m0 user: When does the ferry leave?\n"
    assert "1 message\nhint: `refold recall" in shown.err


def test_what_is_found_in_another_spelling_is_shown(kept):
    for words in ("FERRY", "the", "Leave?"):
        assert "  #m0 user: When does the ferry leave?\n" in kept("search", words, "--in", "ferry").out
        assert kept("recall", "ferry", words).out == "#m0 user: When does the ferry leave?\n"


@pytest.mark.feature("L16")
def test_sessions_are_found_by_words_and_by_meaning(kept):
    kept("compact", "shifts", "--window", "12000")
    (closed, *_) = json.loads(kept("sessions", "shifts", "--json").out)["sessions"]
    found = json.loads(kept("search", "--sessions", "half an hour gap", "--json").out)["sessions"]
    assert found[0]["conversation"] == "shifts"
    assert {"id", "branch", "state", "first", "last", "at", "closed_at", "summary"} < set(found[0])

    asked = ("search", "--sessions", "daylight savings bug", "--in", "shifts")
    by_meaning = kept(*asked)
    assert closed["id"][:8] in by_meaning.out
    assert by_meaning.out.splitlines()[0].split() == [
        *("session", "conversation", "state", "from", "begun", "about"),
    ]
    assert "Task #m0" in by_meaning.out
    assert "refold show" in by_meaning.err
    assert closed["id"][:8] not in kept(*asked, "--words-only").out
    assert kept("search", "--sessions", closed["id"][:8]).out.splitlines()[1].startswith(closed["id"][:8])


def test_a_search_for_sessions_that_finds_nothing_says_so(kept):
    nothing = kept("search", "--sessions", "xylophone", "--words-only")
    assert (nothing.code, nothing.out) == (1, "")
    assert "hint:" in nothing.err
    assert kept("search", "xylophone", "--words-only").code == 2
    assert kept("search", "--sessions", " ").code == 2
    assert kept("search", "--sessions", "x", "--in", "nosuch").code == 2


def test_the_branch_is_told_where_there_are_several(kept, store):
    async def fork():
        async with Engine(f"sqlite:///{store}") as engine:
            branch = await engine.fork("ferry", 1)
            await (await engine.conversation("ferry", branch=branch)).add("A ferry on Sundays?")
            return branch

    branch = asyncio.run(fork())
    told = kept("search", "ferry Sundays", "--in", "ferry").out

    assert told == f"ferry  branch {branch[:8]}\n  #m1 user: A ferry on Sundays?\n"
    assert "Sundays" in kept("recall", "ferry", "#m1", "--branch", branch[:8]).out


def test_a_search_in_one_conversation_finds_nothing_of_another(kept):
    assert kept("search", "half an hour gap", "--in", "ferry").code == 1


def test_nothing_found_is_said_and_is_no_error(kept):
    nothing = kept("search", "xylophone")

    assert (nothing.code, nothing.out) == (1, "")
    assert nothing.err.startswith("nothing that was said holds these words\n")
    assert kept("search", "  ").code == 2
