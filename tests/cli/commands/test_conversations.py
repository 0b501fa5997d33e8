"""`refold conversations`."""

from __future__ import annotations

import asyncio
import json

import pytest

from refold import Engine
from refold.cli.output import when


def test_the_latest_conversation_comes_first_with_its_sizes(kept, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    head, ferry, shifts = kept("conversations").out.splitlines()

    assert head.split()[:4] == ["name", "messages", "sessions", "compactions"]
    assert ferry.split()[:4] == ["ferry", "2", "1", "0"]
    assert ferry.endswith("Timetable")
    assert shifts.split()[:2] == ["shifts", "134"]


def test_words_find_names_and_titles(kept):
    assert [line.split()[0] for line in kept("conversations", "timetable").out.splitlines()[1:]] == ["ferry"]

    nothing = kept("conversations", "nosuch")
    assert (nothing.code, nothing.out) == (1, "")
    assert "no conversations whose name or title holds 'nosuch'" in nothing.err


def test_a_limit_is_said(kept):
    limited = kept("conversations", "--limit", "1")

    assert len(limited.out.splitlines()) == 2
    assert "--limit shows more" in limited.err


def test_programs_get_every_number(kept):
    document = json.loads(kept("conversations", "--json").out)

    assert document["owner"] == "local"
    ferry, shifts = document["conversations"]
    assert (ferry["id"], ferry["title"], ferry["format"]) == ("ferry", "Timetable", "chat")
    assert (shifts["messages"], shifts["model"], shifts["usage"]["input"]) == (134, "gpt-4o", 0)


@pytest.mark.feature("X2")
def test_how_full_a_conversation_is_and_that_it_has_to_be_compacted_is_listed(kept, store):
    async def narrow():
        async with Engine(f"sqlite:///{store}", window=20_000, max_output=1_000) as engine:
            await (await engine.conversation("shifts", preset="opal")).record({"prompt_tokens": 35_000})
            return await (await engine.conversation("shifts", preset="opal")).status()

    roomy = json.loads(kept("sessions", "shifts", "--json").out)
    assert (roomy["needs_compaction"], roomy["reason"]) == (False, "")
    told = kept("sessions", "shifts").err.splitlines()
    assert "its context is 29 % full: 35,069 of 122,624 tokens" in told
    assert "window 128,000 − output 4,096 − reserve 1,280 = 122,624 (window: catalogue)" in told
    status = asyncio.run(narrow())
    listed = {one["id"]: one for one in json.loads(kept("conversations", "--json").out)["conversations"]}
    full = {key: listed["shifts"][key] for key in ("tokens", "limit", "ratio", "reason", "needs_compaction")}
    assert full == {
        "tokens": status.tokens,
        "limit": status.limit,
        "ratio": status.ratio,
        "reason": status.flag,
        "needs_compaction": True,
    }
    told = kept("conversations")
    assert "  ! 186 %  " in told.out
    assert "! has to be compacted: the next call does it" in told.err
    assert "it has to be compacted: " in kept("sessions", "shifts").err
    assert not listed["ferry"]["needs_compaction"]


def test_the_messages_are_those_of_the_branch_used_last(kept, store):
    async def fork():
        async with Engine(f"sqlite:///{store}", model="gpt-4o") as engine:
            branch = await engine.fork("shifts", 10)
            await (await engine.conversation("shifts", branch=branch)).add("Another way?")

    asyncio.run(fork())
    shown = len(json.loads(kept("show", "shifts", "--json").out)["messages"])
    assert shown == 11
    assert kept("conversations", "shifts").out.splitlines()[1].split()[:2] == ["shifts", str(shown)]
    (listed,) = json.loads(kept("conversations", "shifts", "--json").out)["conversations"]
    assert (listed["messages"], listed["branch_messages"], listed["branches"]) == (135, 11, 2)


def test_a_conversation_is_listed_by_its_first_question_where_it_has_no_title(kept):
    table = kept("conversations", "shifts").out.splitlines()

    assert table[1].endswith("  We have a complain…")
    assert max(map(len, table)) <= 80
    assert [line.split()[0] for line in kept("conversations", "complaint").out.splitlines()[1:]] == ["shifts"]


@pytest.mark.parametrize("at", [0.0, 1e12, 1e300, -1e300, float("inf"), float("nan")])
def test_a_time_that_cannot_be_is_a_dash(at):
    assert when(at) == "-"
    assert when(1_700_000_000.0).startswith("2023-11-1")
