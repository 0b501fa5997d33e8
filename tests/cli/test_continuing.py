"""`refold new` and `refold resume`."""

from __future__ import annotations

import json

import pytest


def begun_anew(kept) -> dict[str, object]:
    return json.loads(kept("new", "shifts", "--json").out)


@pytest.mark.feature("L2")
def test_a_new_session_shows_nothing_and_says_how_to_go_back(kept):
    told = kept("new", "shifts")
    old, new = json.loads(kept("sessions", "shifts", "--json").out)["sessions"]

    assert told.out == f"{new['id'][:8]}  begins at #m134, with nothing shown\n"
    assert f"`refold resume shifts {old['id'][:8]}`" in told.err
    assert (new["kind"], new["carries"], new["state"], old["last"]) == ("new", "none", "open", 134)
    assert json.loads(kept("conversations", "--json").out)["conversations"][0]["ratio"] < 0.01
    assert kept("doctor").code == 0


@pytest.mark.feature("L3")
def test_a_session_is_resumed_by_the_letters_of_its_id(kept):
    closed = begun_anew(kept)["closed"]
    told = kept("resume", "shifts", closed[:8])

    *_, last = json.loads(kept("sessions", "shifts", "--json").out)["sessions"]
    assert (last["kind"], last["carries"], last["target"]) == ("resume", "full", closed)
    assert told.out == f"{last['id'][:8]}  goes on with {closed[:8]} (134 messages): all that it showed\n"
    assert "of 118,528 tokens" in told.err
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
    assert kept("resume", "shifts", "  ").code == 2
