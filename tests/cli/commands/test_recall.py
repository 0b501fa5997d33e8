"""`refold recall`."""

from __future__ import annotations

import json

import pytest


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
