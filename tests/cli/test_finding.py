"""`refold search` and `refold recall`."""

from __future__ import annotations

import json

import pytest


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


def test_a_search_in_one_conversation_finds_nothing_of_another(kept):
    assert kept("search", "half an hour gap", "--in", "ferry").code == 1


def test_nothing_found_is_said_and_is_no_error(kept):
    nothing = kept("search", "xylophone")

    assert (nothing.code, nothing.out) == (1, "")
    assert nothing.err.startswith("nothing that was said holds these words\n")
    assert kept("search", "  ").code == 2


def test_an_original_comes_back_although_it_was_folded_away(kept):
    before = kept("recall", "shifts", "#m3", "--json").out
    kept("compact", "shifts", "--window", "12000")

    assert kept("recall", "shifts", "#m3", "--json").out == before
    assert json.loads(before)["found"]["role"] == "tool"


def test_words_bring_passages(kept):
    recalled = kept("recall", "shifts", "half an hour gap", "--max-tokens", "100")

    assert recalled.code == 0
    assert "#m" in recalled.out
    assert len(recalled.out) < 1_000


@pytest.mark.parametrize("handle", ["#m999", "#s7"])
def test_a_handle_of_nothing(kept, handle):
    told = kept("recall", "shifts", handle)

    assert (told.code, told.out) == (2, "")
    assert told.err.startswith("error: ")
