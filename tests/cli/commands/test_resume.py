"""`refold resume`."""

from __future__ import annotations

import asyncio
import json

import pytest

from refold.engine.engine import Engine
from refold.model.tokens import Usage
from refold.testing import ScriptedUpstream, say
from tests.embedder import Subjects

TEXT = (
    "## Goal\nThe complaint from the harbour office.\n## Progress\n### Done\nThe board was mended.\n"
    "## Next Steps\nOpen an issue for next_sailing."
)


def begun_anew(kept) -> dict[str, object]:
    return json.loads(kept("new", "shifts", "--json").out)


def wrong(which: str) -> str:
    """An id that differs in its last letter."""
    return which[:7] + ("d" if which[7] == "c" else "c")


@pytest.mark.feature("L3")
def test_a_session_is_resumed_by_the_letters_of_its_id(kept):
    closed = begun_anew(kept)["closed"]
    told = kept("resume", "shifts", closed[:8])

    *_, last = json.loads(kept("sessions", "shifts", "--json").out)["sessions"]
    assert (last["kind"], last["carries"], last["target"]) == ("resume", "full", closed)
    assert told.out == f"{last['id'][:8]}  goes on with {closed[:8]} (134 messages): all that it showed\n"
    assert "of 122,624 tokens" in told.err
    assert kept("doctor").code == 0


@pytest.mark.feature("L3")
def test_a_session_is_resumed_by_words_and_by_its_summary_where_it_does_not_fit(kept):
    closed = begun_anew(kept)["closed"]
    done = json.loads(kept("resume", "shifts", "half an hour gap", "--window", "12000", "--json").out)

    assert (done["conversation"], done["target"], done["carries"]) == ("shifts", closed, "summary")
    assert 0 < done["tokens"] < done["limit"] < 12_000
    assert kept("doctor").code == 0


@pytest.mark.parametrize("words", ["xylophone", "half an hour gap"])
def test_the_open_session_is_none_that_could_be_resumed(kept, words):
    told = kept("resume", "shifts", words)

    assert (told.code, told.out) == (2, "")
    assert "no earlier session of 'shifts' fits" in told.err
    assert "hint: " in told.err
    (only,) = json.loads(kept("sessions", "shifts", "--json").out)["sessions"]
    assert "no session that can be resumed" in kept("resume", "shifts", only["id"]).err


@pytest.mark.parametrize("spelled", [wrong, lambda which: which[:8] + "x", lambda _: "facade"])
def test_an_id_that_is_none_changes_nothing_and_those_that_there_are_are_listed(kept, spelled):
    closed = [begun_anew(kept)["closed"] for _ in range(2)]
    before = kept("sessions", "shifts", "--json").out
    what = spelled(closed[0])
    told = kept("resume", "shifts", what)

    assert (told.code, told.out) == (2, "")
    assert f"no session of 'shifts' has an id that begins with '{what}', and nobody said it" in told.err
    assert f"hint: those that can be resumed: {closed[1][:8]}, {closed[0][:8]};" in told.err
    assert kept("sessions", "shifts", "--json").out == before


def test_an_id_where_nothing_can_be_resumed_says_so(kept):
    told = kept("resume", "shifts", "0123456789abcdef")

    assert told.code == 2
    assert "hint: no earlier one can be resumed" in told.err


@pytest.mark.parametrize("words", ["qwrtzpsdf", "zzzznothing", "zzzznothing xylophone"])
def test_words_that_nobody_said_change_nothing(kept, words):
    begun_anew(kept)
    before = kept("sessions", "shifts", "--json").out
    told = kept("resume", "shifts", words)

    assert (told.code, told.out) == (2, "")
    assert f"no earlier session of 'shifts' fits '{words}': nobody said that there" in told.err
    assert "hint: " in told.err
    assert kept("sessions", "shifts", "--json").out == before


def test_what_is_only_close_in_meaning_is_offered_and_not_taken(kept, monkeypatch):
    monkeypatch.setattr("refold.cli.store_access.embedder_here", Subjects)
    closed = begun_anew(kept)["closed"]
    told = kept("resume", "shifts", "ships")

    assert (told.code, told.out) == (2, "")
    assert (
        f"hint: closest in meaning is {closed[:8]}; `refold resume shifts {closed[:8]}` goes on with it"
        in told.err
    )
    assert kept("search", "--sessions", "ships", "--in", "shifts").out.splitlines()[1].startswith(closed[:8])
    assert kept("resume", "shifts", closed[:8]).code == 0


@pytest.mark.feature("L3")
def test_words_that_were_said_go_before_what_is_closer_in_meaning(kept, monkeypatch, tmp_path):
    monkeypatch.setattr("refold.cli.store_access.embedder_here", Subjects)
    begun_anew(kept)
    more = tmp_path / "more.json"
    more.write_text('[{"role": "user", "content": "facade"}, {"role": "assistant", "content": "I see."}]')
    assert kept("import", str(more), "--as", "shifts", "--append").code == 0
    closed = begun_anew(kept)["closed"]

    for words in ("facade", "ships facade"):
        assert json.loads(kept("resume", "shifts", words, "--json").out)["target"] == closed


@pytest.mark.feature("L3")
def test_without_a_session_those_that_can_be_resumed_are_listed_the_latest_first(kept):
    nothing = kept("resume", "shifts")
    assert (nothing.code, nothing.out) == (1, "")
    assert "no earlier session of 'shifts' can be resumed" in nothing.err
    closed = [begun_anew(kept)["closed"] for _ in range(2)]

    listed = kept("resume", "shifts")
    assert [line.split()[0] for line in listed.out.splitlines()[1:]] == [one[:8] for one in closed[::-1]]
    assert "Task #m0: We have a co" in listed.out.splitlines()[2]
    assert "`refold resume shifts ID`" in listed.err
    told = json.loads(kept("resume", "shifts", "--json").out)
    assert (told["conversation"], [one["id"] for one in told["sessions"]]) == ("shifts", closed[::-1])
    assert len(json.loads(kept("sessions", "shifts", "--json").out)["sessions"]) == 3


@pytest.mark.feature("L3")
def test_a_fork_goes_on_with_a_session_from_before_it(kept, store):
    closed = begun_anew(kept)["closed"]

    async def fork() -> str:
        async with Engine(f"sqlite:///{store}", embedder=None) as engine:
            return await engine.fork("shifts", 134)

    branch = asyncio.run(fork())
    assert [one["id"] for one in json.loads(kept("resume", "shifts", "--json").out)["sessions"]] == [closed]
    done = json.loads(kept("resume", "shifts", "half an hour gap", "--json").out)
    assert (done["target"], done["carries"]) == (closed, "full")
    sessions = json.loads(kept("sessions", "shifts", "--json").out)["sessions"]
    assert [one["branch"] for one in sessions if one["target"] == closed] == [branch]
    assert kept("doctor").code == 0


@pytest.mark.feature("L2", "L3")
def test_a_model_sums_up_what_was_left_and_it_comes_back_by_that(kept):
    with ScriptedUpstream(otherwise=say(TEXT, usage=Usage(input=9_000, output=90))) as server:
        model = ("--summariser", f"gpt-4o-mini@{server.url}/v1")
        left = kept("new", "shifts", *model)
        times = len(server.requests)
        old = json.loads(kept("sessions", "shifts", "--json").out)["sessions"][0]
        done = kept("resume", "shifts", old["id"], "--window", "12000", *model)

    assert "it was summed up by the model" in left.err
    assert times == len(server.requests) > 0
    assert "its summary" in done.out
    assert (
        "The board was mended."
        in json.loads(kept("resume", "shifts", "--json").out)["sessions"][-1]["summary"]
    )
    (call,) = json.loads(kept("show", "shifts", "--calls", "--json").out)["calls"]
    assert (call["kind"], call["session"]) == ("summary", old["id"])
    assert kept("doctor").code == 0
