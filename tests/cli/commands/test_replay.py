"""`refold replay`: as the script runs it, and its parts."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from refold.cli.commands.replay import ReplayOptions, ReplaySummariserOptions, measure, summariser_order
from refold.replay.summarisers import ReplaySummarisers, choose
from refold.testing import ScriptedUpstream
from tests.program import command

ROOT = Path(__file__).parents[3]


def program(*args: str) -> subprocess.CompletedProcess[str]:
    argv = [*command(), *args]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.feature("N6", "X17")
def test_presets_are_measured_side_by_side():
    shown = program(
        "replay", "examples/coding-agent.json", "--preset", "refold", "--preset", "opal", "--window", "8000"
    )
    assert (shown.returncode, shown.stderr) == (0, "")
    lines = shown.stdout.splitlines()
    assert lines[0].startswith("window 8,000: 1 recording, 52 calls")
    assert [line.split()[0] for line in lines[4:6]] == ["refold", "opal"]


@pytest.fixture
def rows(refold):
    """What a replay measures, in this process: it takes the program longer to start than to measure."""

    def replayed(*args: str) -> dict[str, dict]:
        shown = refold(*("replay", "examples/coding-agent.json", "--window", "8000", "--json"), *args)
        assert shown.code == 0, shown.err
        return {row["candidate"]: row for row in json.loads(shown.out)["rows"]}

    return replayed


def test_the_preset_of_the_settings_is_replayed_where_none_is_named(rows, monkeypatch):
    monkeypatch.setenv("REFOLD_COMPACTION_PRESET", "opal")

    assert list(rows()) == ["opal"]


@pytest.mark.feature("N6")
def test_the_messages_get_what_output_and_reserve_leave(rows):
    whole = rows("--preset", "refold", "--baselines", "--output", "0", "--reserve", "0")
    usual = rows("--preset", "refold", "--baselines")
    little = rows("--preset", "refold", "--baselines", "--output", "3000", "--reserve", "1000")

    for name in ("refold", "drop oldest", "mask output at 80 %"):
        assert [found[name]["fits"] for found in (whole, usual, little)] == [100.0] * 3
        assert whole[name]["fill"] > usual[name]["fill"] > little[name]["fill"]
    assert whole["no limit"]["fits"] > usual["no limit"]["fits"] > little["no limit"]["fits"]


@pytest.mark.feature("N6")
def test_the_columns_of_lines_and_phrases_are_in_the_document_and_in_the_table(refold, rows):
    for row in rows("--preset", "refold", "--baselines").values():
        assert row["repeats"]["lines_near"] >= row["repeats"]["lines_old"]
        assert row["phrases_old"] is not None
    shown = refold("replay", "examples/coding-agent.json", "--preset", "refold", "--window", "8000").out
    assert "kept free in every window: an eighth, at most 4,096, for the reply" in shown
    assert re.match(
        r"lines: [\d,]+ near, [\d,]+ old; phrases: [\d,]+ near, [\d,]+ old$", shown.splitlines()[1]
    )
    assert "phrases" in shown.splitlines()[2]
    assert "\n-: not measured" in shown


@pytest.mark.parametrize(
    "args, words",
    [
        (
            ("examples/coding-agent.json", "--window", "4000", "--output", "3900", "--reserve", "100"),
            "output and reserve leave no room for messages in a window of 4,000 tokens",
        ),
        (("nosuch.jsonl",), "there is no file nosuch.jsonl"),
        (("examples/coding-agent.json", "--preset", "nonsense"), "there is no preset 'nonsense'"),
        (("examples/coding-agent.json", "--window", "0"), "--window"),
    ],
)
def test_mistakes_are_told_in_a_line_with_a_hint(refold, args, words):
    told = refold("replay", *args)
    assert told.code == 2
    assert words in told.err
    assert "hint: " in told.err
    assert "Traceback" not in told.err


@pytest.mark.parametrize("place, words", [(".", "is a directory"), ("missing/report.html", "no directory")])
def test_a_place_that_cannot_hold_a_report_is_told_before_the_replay(refold, tmp_path, place, words):
    told = refold("replay", "nosuch.jsonl", "--report", str(tmp_path / place))

    assert told.code == 2
    assert words in told.err
    assert "hint: " in told.err


DATA = str(ROOT / "examples" / "coding-agent.json")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def watched(order: ReplaySummarisers, monkeypatch) -> list[str]:
    """Every state of the progress line."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    measure(DATA, ReplayOptions(presets=["refold"], windows=[4_000]), order)
    return screen.getvalue().replace("\x1b[K", "").split("\r")[1:]


@pytest.mark.feature("N6")
def test_whoever_watches_sees_every_call_and_what_was_spent(monkeypatch, tmp_path):
    with ScriptedUpstream(otherwise="Files were read and changed.") as server:
        order = ReplaySummarisers((choose(f"gpt-4o-mini@{server.url}/v1"),), folder=tmp_path)
        lines = watched(order, monkeypatch)

    calls = len(server.requests)
    assert lines[0].startswith("replaying; 1 calls, $0.00")
    assert len(lines) == calls + 2
    assert lines[-2].startswith(f"replayed 1 of 1; {calls} calls, $0.0")
    assert lines[-1] == ""


def test_without_a_model_only_the_progress_is_shown(monkeypatch):
    assert watched(summariser_order(ReplaySummariserOptions()), monkeypatch) == ["replayed 1 of 1", ""]


def test_the_same_summariser_twice_is_one():
    order = summariser_order(
        ReplaySummariserOptions(
            summarisers=["digest", "openai:gpt-4o", "digest"],
            max_tokens=300,
            max_spend=1.0,
        )
    )

    assert [one and one.spec for one in order.chosen] == [None, "openai:gpt-4o"]
    assert (order.max_tokens, order.most) == (300, 1.0)


def test_a_file_that_is_no_transcript_is_refused_with_a_hint(refold, tmp_path):
    (tmp_path / "notes.md").write_text("# Notes\n")
    refused = refold("replay", str(tmp_path / "notes.md"))

    assert refused.code == 2
    assert "hint: give transcripts in JSON or JSONL" in refused.err
