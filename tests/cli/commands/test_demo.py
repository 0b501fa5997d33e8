"""`refold demo`: a session that people can watch, and that is what it says it is."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from refold.cli.commands.demo import Painter
from refold.demo import DETAIL, DemoCall, session
from tests.program import command

PATIENCE_S = 120


def demo(*args: str, code: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "COLUMNS": "80", "PYTHONIOENCODING": "utf-8", **more}
    argv = [*((sys.executable, "-c", code) if code else command()), "demo", *args]
    return subprocess.run(
        argv, capture_output=True, encoding="utf-8", env=environ, timeout=PATIENCE_S, check=False
    )


WITHOUT_CLIENT = "import sys; sys.modules['openai'] = None; from refold.__main__ import main; main()"


@pytest.fixture(scope="module")
def played() -> dict:
    """The session as it goes where OpenAI's client is not installed, and other things are set on the machine."""
    told = demo(
        "--json", code=WITHOUT_CLIENT, REFOLD_COMPACTION_ENABLED="false", REFOLD_STORE="sqlite:///nowhere.db"
    )
    assert told.returncode == 0, told.stderr
    return json.loads(told.stdout)


@pytest.fixture(scope="module")
def printed() -> subprocess.CompletedProcess[str]:
    """The same with OpenAI's client, for people."""
    return demo()


def test_a_history_of_several_windows_fits_into_one(played):
    calls = played["calls"]

    assert len(calls) == sum(len(turn.steps) for turn in session())
    assert max(call["sent"] for call in calls) <= played["window"]
    assert calls[-1]["whole"] > 3 * played["window"]
    assert played["totals"]["sent"] < played["totals"]["history"] / 2
    assert played["totals"]["compactions"] >= 3
    assert played["refused"] == 0


def test_every_change_has_its_reason(played):
    changed = [call for call in played["calls"] if call["action"] in ("reduce", "summarise")]

    assert {call["action"] for call in changed} == {"reduce", "summarise"}
    assert all(call["reason"] for call in changed)


def test_without_refold_the_same_session_is_refused(played):
    first = played["first_refused"]

    assert played["without"] == "400 context_length_exceeded"
    assert played["calls"][first - 1]["whole"] < 1.2 * played["window"]
    assert len(played["calls"]) - first > 20


def test_what_left_the_window_is_recalled(played):
    found = played["recalled"]

    assert found["text"].split() == DETAIL.split()
    assert found["handle"] == "#m2"
    assert not found["is_shown"]
    assert played["keeps_rule"]


def test_people_see_it_without_colour_in_eighty_columns(printed):
    told = printed

    assert told.returncode == 0, told.stderr
    assert "\x1b" not in told.stdout
    assert max(map(len, told.stdout.splitlines())) <= 80
    assert "user: Pickup codes stop working" in told.stdout
    assert "summarise: " in told.stdout
    assert "0 refused by the provider" in told.stdout
    assert "█" in told.stdout


def test_the_readme_shows_what_is_printed(printed):
    readme = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
    shown = readme.partition("`make demo`")[2].partition("```text\n")[2].partition("```")[0].splitlines()

    assert len(shown) > 10
    assert not set(shown) - {*printed.stdout.splitlines(), "..."}


@pytest.mark.parametrize(
    ("encoding", "line"),
    [
        ("utf-8", "  9  answers                     40    9,000  4,000  ████████░░░░░░░░▶ summarise"),
        ("ascii", "  9  answers                     40    9,000  4,000  ########........> summarise"),
    ],
)
def test_a_bar_is_the_window(monkeypatch, encoding, line):
    written = io.BytesIO()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    call = DemoCall(9, "", "answers", 40, 9_000, 4_000, "summarise", "too much")

    Painter(8_000).draw(call)

    assert written.getvalue().decode(encoding).splitlines() == [line, "     summarise: too much"]


def test_any_client_sees_the_same(played, printed):
    assert played["client"] == "a plain HTTP client"
    assert f"{played['totals']['sent']:,} tokens" in printed.stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--preset", "nonsense"), "there is no such preset"),
        (("--window", "10"), "--window"),
        (("--speed", "-1"), "--speed"),
    ],
)
def test_mistakes_are_told_in_a_line_with_a_hint(refold, args, words):
    told = refold("demo", *args, "--json")

    assert (told.code, told.out) == (2, "")
    assert words in told.err
    assert "hint: " in told.err
    assert "Traceback" not in told.err


def test_the_preset_of_the_settings_is_played_where_none_is_named(refold, monkeypatch):
    # It takes as long to load OpenAI's client as to play the session.
    monkeypatch.setitem(sys.modules, "openai", None)
    named = refold("demo", "--json", "--preset", "picoclaw")
    monkeypatch.setenv("REFOLD_COMPACTION_PRESET", "picoclaw")
    told = refold("demo", "--json")

    assert told.code == named.code == 0, told.err
    sent = [[call["sent"] for call in json.loads(one.out)["calls"]] for one in (told, named)]
    assert sent[0] == sent[1]
