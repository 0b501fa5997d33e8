"""`refold search`."""

from __future__ import annotations

import asyncio
import json
import shlex

import pytest

from refold import Engine
from refold.cli.output import when
from tests.bad_queries import BAD_QUERIES


def test_a_search_answers_with_handles_that_recall_takes(kept):
    found = json.loads(kept("search", '"half an hour" gap', "--json").out)["found"]

    assert {one["conversation"] for one in found} == {"shifts"}
    recalled = kept("recall", "shifts", found[0]["handle"])
    assert recalled.code == 0
    assert "half an hour" in recalled.out
    assert all("half an hour" in one["text"].replace("_", " ") or one["marks"] for one in found)


def test_people_see_the_conversation_and_the_passages(kept):
    shown = kept("search", "ferry leave", "--in", "ferry")
    (found,) = json.loads(kept("search", "ferry leave", "--in", "ferry", "--json").out)["found"]

    first, second = shown.out.splitlines()
    assert first == f"ferry  session {found['session'][:8]}  {when(found['at'])}"
    assert second == "  #m0 user: When does the ferry leave?"
    assert [found["text"][start:end] for start, end in found["marks"]] == ["ferry", "leave"]
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
    told = kept("search", "ferry Sundays", "--in", "ferry").out.splitlines()

    assert f"branch {branch[:8]}" in told[0]
    assert told[1] == "  #m1 user: A ferry on Sundays?"
    assert told[3] == "  #m0 user: When does the ferry leave?", "one of the words is enough, and counts less"
    assert "Sundays" in kept("recall", "ferry", "#m1", "--branch", branch[:8]).out


def test_the_command_that_a_hint_shows_opens_the_message_of_a_fork(kept, store):
    async def fork():
        async with Engine(f"sqlite:///{store}") as engine:
            branch = await engine.fork("ferry", 1)
            await (await engine.conversation("ferry", branch=branch)).add("A ferry on Sundays?")
            await (await engine.conversation("ferry", branch=await engine.fork("ferry", 1))).add("A ship?")

    asyncio.run(fork())
    hint = kept("search", "Sundays", "--in", "ferry").err.partition("`refold ")[2].partition("`")[0]

    assert "Sundays" in kept(*shlex.split(hint)).out


def test_a_date_without_words_lists_what_was_said_then_the_newest_first(kept):
    listed = kept("search", "in:ferry after:2020")
    assert [line.split()[0] for line in listed.out.splitlines() if "#m" in line][-1] == "#m0"
    assert "the newest first" in listed.err
    assert kept("search", "in:ferry after:2020", "--limit", "1").err.startswith("the newest 1\n")
    nothing = kept("search", "before:2001-05")
    assert (nothing.code, nothing.out) == (1, "")
    assert nothing.err.startswith(
        "there is no message of this time or place\nhint: days begin at midnight UTC"
    )
    assert "no session of this time" in kept("search", "--sessions", "7 May 2001").err
    assert kept("search", "--sessions", "in:ferry after:2020", "--words-only").err.startswith(
        "1 session, the newest first"
    )
    assert "hint: with a year" in kept("search", "in July").err


def test_a_search_in_one_conversation_finds_nothing_of_another(kept):
    assert kept("search", "half an hour gap", "--in", "ferry").code == 1


def test_nothing_found_is_said_and_is_no_error(kept):
    nothing = kept("search", "xylophone")

    assert (nothing.code, nothing.out) == (1, "")
    assert nothing.err.startswith("no message has these words\n")
    assert kept("search", "  ").code == 2


@pytest.mark.parametrize("query", BAD_QUERIES, ids=range(len(BAD_QUERIES)))
def test_whatever_is_typed_gives_results_or_a_clear_word(kept, query):
    for more in ((), ("--sessions", "--words-only")):
        answer = kept("search", *more, "--", query)
        assert answer.code in {0, 1}
        assert answer.out or "hint:" in answer.err
        assert "Error" not in answer.err


def test_a_query_can_say_where_and_when_and_what_not(kept):
    def handles(query: str) -> list[str]:
        return [one["handle"] for one in json.loads(kept("search", query, "--json").out)["found"]]

    assert handles("ferries in:ferry") == ["#m0"]
    assert handles("ferry in:ferry -leaving") == ["#m0"], "what is to be left out counts as it is written"
    assert handles("ferry in:ferry -leave") == []
    assert handles("ferry in:ferry from:assistant") == []
    assert handles("ferry in:ferry after:2000 before:9000") == ["#m0"]
    assert handles("ferry in:ferry before:2000-06-01") == []
    assert handles("ferrry leave in:ferry") == ["#m0"], "a typing error"
    assert handles('"ferry leave" in:ferry') == ["#m0"]
    assert handles('"leave ferry" in:ferry') == []


def test_a_date_that_there_is_not_is_told(kept):
    for field in ("after:2026-13", "before:2026-02-31"):
        told = kept("search", f"ferry leave {field}", "--in", "ferry")
        assert "When does the ferry leave?" in told.out
        assert f"warning: {field}: there is no such date, so it restricts nothing" in told.err
    assert "warning" not in kept("search", "ferry after:2001-02-28", "--in", "ferry").err
