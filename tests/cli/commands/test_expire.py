"""`refold expire`."""

from __future__ import annotations

import json

import pytest

from refold.cli.commands.expire import seconds_of


def test_what_nothing_happened_in_for_long_expires(kept):
    assert kept("expire", "--older-than", "1d").err == "deleted 0 conversations\n"
    rehearsed = kept("expire", "--older-than", "0m", "--dry-run")
    assert rehearsed.err.startswith("would delete 2 conversations\n  ferry  last used ")
    assert len(kept("conversations").out.splitlines()) == 3

    assert json.loads(kept("expire", "--older-than", "0m", "--yes", "--json").out)["deleted"] == 2
    assert kept("conversations").out == ""


@pytest.mark.parametrize(
    "span, seconds", [("90d", 7_776_000), ("4w", 2_419_200), ("12h", 43_200), ("30m", 1_800)]
)
def test_spans_of_time(span, seconds):
    assert seconds_of(span) == seconds


@pytest.mark.parametrize("span", ["", "90", "d", "1y", "-1d", "1.5d", "soon"])
def test_what_is_no_span_deletes_nothing(kept, span):
    refused = kept("expire", "--older-than", span)

    assert refused.code == 2
    assert "is no span of time\nhint: write 90d" in refused.err
    assert len(kept("conversations").out.splitlines()) == 3
