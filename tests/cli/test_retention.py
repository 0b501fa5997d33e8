"""Retention as people meet it: `refold expire` asks, `REFOLD_STORE_KEEP_DAYS` waits, a gateway with a wrong clock deletes nothing."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
import time
import urllib.request

import pytest

from refold.engine.engine import Engine
from tests.program import command

DAY = 86_400.0
PATIENCE_S = 60
AHEAD = """
import sys, time
true, days = time.time, float(sys.argv.pop(1))
time.time = lambda: true() + days * 86_400
from refold.__main__ import main
main()
"""
"""The program on a machine whose clock is some days ahead."""


async def fill(store, ages):
    """Conversations that were last used so many days ago."""
    at = 0.0
    async with Engine(f"sqlite:///{store}", clock=lambda: at) as engine:
        for name, days in ages.items():
            at = time.time() - days * DAY
            await (await engine.conversation(name)).add("hello")


@pytest.fixture
def filled(refold, store):
    """The program, with twenty conversations, of which `old` many were last used 40 days ago."""

    def make(old):
        ages = {f"c{number:02}": 40 if number < old else 0 for number in range(20)}
        asyncio.run(fill(store, ages))
        return refold

    return make


def count(refold):
    return len(json.loads(refold("conversations", "--json").out)["conversations"])


def test_a_tenth_is_deleted_without_a_question(filled):
    refold = filled(2)
    assert refold("expire", "--older-than", "30d") == (0, "", "deleted 2 conversations\n")
    assert count(refold) == 18


def test_more_is_refused_without_a_terminal_and_without_yes(filled):
    refold = filled(3)
    for more in ((), ("--json",)):
        code, out, err = refold("expire", "--older-than", "30d", *more)
        assert (code, out) == (2, "")
        assert "error: this would delete 3 of 20 conversations (15 %): that is more than 10 % of all\n" in err
        assert "hint: see them with --dry-run, and add --yes if you mean it" in err
        assert "c00" not in err
    assert count(refold) == 20

    rehearsed = json.loads(refold("expire", "--older-than", "30d", "--dry-run", "--json").out)
    assert (rehearsed["deleted"], rehearsed["would_delete"], rehearsed["conversations"]) == (0, 3, 20)
    assert time.time() - 41 * DAY < rehearsed["oldest"] <= rehearsed["newest"] < time.time() - 39 * DAY
    assert refold("expire", "--older-than", "30d", "--dry-run").err.count("last used") == 3
    done = json.loads(refold("expire", "--older-than", "30d", "--yes", "--json").out)
    assert (done["deleted"], done["conversations"]) == (3, 20)
    assert count(refold) == 17


def test_the_share_that_needs_no_question_can_be_set(filled, monkeypatch):
    refold = filled(3)
    monkeypatch.setenv("REFOLD_STORE_MAX_EXPIRED_SHARE", "0.15")
    assert refold("expire", "--older-than", "30d").err == "deleted 3 conversations\n"


@pytest.mark.parametrize("share", ["much", "-1", "15", "nan"])
def test_a_share_that_cannot_be_is_refused(filled, monkeypatch, share):
    refold = filled(1)
    monkeypatch.setenv("REFOLD_STORE_MAX_EXPIRED_SHARE", share)
    code, _, err = refold("expire", "--older-than", "30d")
    assert code == 2
    assert "hint: " in err
    assert count(refold) == 20


@pytest.mark.parametrize("span", ["0d", "0m", "00w"])
def test_everything_is_never_deleted_without_a_word(filled, monkeypatch, span):
    refold = filled(1)
    monkeypatch.setenv("REFOLD_STORE_MAX_EXPIRED_SHARE", "1")
    code, _, err = refold("expire", "--older-than", span)
    assert code == 2
    assert "this would delete 20 of 20 conversations (100 %): every conversation is older than that" in err
    assert count(refold) == 20
    assert refold("expire", "--older-than", span, "--yes").err == "deleted 20 conversations\n"
    assert refold("expire", "--older-than", span).err == "deleted 0 conversations\n", "nothing to ask about"


def test_a_clock_that_is_far_ahead_of_the_last_use_is_asked_about(filled, monkeypatch):
    refold, true = filled(1), time.time
    monkeypatch.setattr(time, "time", lambda: true() + 40 * DAY)
    code, _, err = refold("expire", "--older-than", "60d")
    assert code == 2
    assert (
        "this would delete 1 of 20 conversations (5 %): the clock is 40.0 days ahead of the last use" in err
    )
    assert refold("expire", "--older-than", "60d", "--yes").err == "deleted 1 conversation\n"


def at_a_terminal(store, answer, *args):
    """The program at a terminal of its own, and whoever sits there; its exit code and all that it showed."""
    ours, theirs = pty.openpty()
    environ = os.environ | {"REFOLD_STORE": f"sqlite:///{store}", "NO_COLOR": "1"}
    process = subprocess.Popen(
        [*command(), *args],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=environ,
        start_new_session=True,
    )
    os.close(theirs)
    os.write(ours, answer)
    shown = b""
    try:
        while piece := os.read(ours, 4_096):
            shown += piece
    except OSError:
        pass  # a terminal that nobody has open any more
    process.communicate(timeout=PATIENCE_S)
    os.close(ours)
    return process.returncode, shown.decode()


@pytest.mark.parametrize(
    "span, gone, what, why",
    [
        ("30d", 5, "5 of 20 conversations (25 %)", "that is more than 10 % of all"),
        ("0d", 20, "20 of 20 conversations (100 %)", "every conversation is older than that"),
    ],
)
@pytest.mark.parametrize("answer, code", [(b"n\n", 1), (b"\n", 1), (b"y\n", 0)])
def test_whoever_sits_at_a_terminal_is_asked(filled, store, span, gone, what, why, answer, code):
    refold = filled(5)
    ended, shown = at_a_terminal(store, answer, "expire", "--older-than", span)

    assert ended == code
    assert f"{what} would be deleted, last used " in shown
    assert why in shown
    assert "Delete them for good? [y/N]" in shown
    assert ("nothing was deleted" if code else f"deleted {gone} conversations") in shown
    assert count(refold) == (20 if code else 20 - gone)


def test_nobody_is_asked_with_yes_or_about_little(filled, store):
    filled(2)
    for args in (("30d",), ("0d", "--yes")):
        ended, shown = at_a_terminal(store, b"", "expire", "--older-than", *args)
        assert ended == 0
        assert "[y/N]" not in shown


def test_a_command_says_what_it_has_not_deleted_yet(filled, monkeypatch):
    refold = filled(6)
    monkeypatch.setenv("REFOLD_STORE_KEEP_DAYS", "30")
    told = refold("new", "c19").err
    assert "deleted 2 conversations that nothing happened in for 30 days (REFOLD_STORE_KEEP_DAYS)" in told
    assert (
        "warning: not deleted yet: 4 of 18 conversations that are past 30 days; one run deletes 10 %" in told
    )
    assert "hint: `refold expire` deletes them now" in told

    looked = refold("doctor")
    assert (looked.code, looked.out) == (0, "no findings in 18 conversations\n"), "nothing is wrong with them"
    assert "not deleted yet, past their time: 4 conversations; they are more than one run may" in looked.err
    held = json.loads(refold("doctor", "--json").out)["held_back"]
    assert (held["conversations"], held["reason"]) == (4, "share")


def test_a_command_with_a_clock_that_is_ahead_deletes_nothing(filled, store):
    """Though it writes itself, by that clock, before it looks."""
    refold = filled(0)
    environ = os.environ | {"REFOLD_STORE": f"sqlite:///{store}", "REFOLD_STORE_KEEP_DAYS": "30"}
    for days in ("40", "41"):
        ahead = [sys.executable, "-c", AHEAD, days, "new", "c19"]
        told = subprocess.run(
            ahead, env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=True
        )
        assert "warning: not deleted yet: 19 of 20 conversations" in told.stderr
    assert count(refold) == 20
    subprocess.run([*command(), "new", "c18"], env=environ, check=True, timeout=PATIENCE_S)
    assert count(refold) == 20
    assert refold("doctor").err == "", "the clock was set right"


def serve(store, days):
    """A gateway on a machine whose clock is so many days ahead: what its page says of retention, and its log."""
    flags = ("--port", "0", "--store", f"sqlite:///{store}", "--store-keep-days", "30")
    upstream = ("--upstream", "http://127.0.0.1:9/v1")
    process = subprocess.Popen(
        [sys.executable, "-c", AHEAD, str(days), "serve", *flags, *upstream],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        url = process.stdout.readline().strip()
        with urllib.request.urlopen(f"{url}/refold/status", timeout=PATIENCE_S) as answer:
            page = json.load(answer)
    finally:
        process.send_signal(signal.SIGINT)
        _, log = process.communicate(timeout=PATIENCE_S)
    return page["held_back"], log


@pytest.mark.feature("X2")
def test_a_gateway_that_is_started_with_a_clock_40_days_ahead_deletes_nothing(refold, store):
    asyncio.run(fill(store, dict.fromkeys(("one", "two", "three", "four", "five"), 0)))
    for days in (40, 41):
        held, log = serve(store, days)
        assert (held["conversations"], held["reason"]) == (5, "clock")
        assert "not deleted yet: 5 of 5 conversations that are past 30 days; the clock is " in log
        assert count(refold) == 5
    held, log = serve(store, 0)
    assert held is None
    assert "not deleted yet" not in log
    assert count(refold) == 5
