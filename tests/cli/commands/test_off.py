"""`refold off` and `refold on`, and what the other commands say of a conversation that is off."""

from __future__ import annotations

import asyncio
import json

import pytest

from refold import Engine


@pytest.fixture
def due(kept, store):
    """The command line, with a stored conversation that has to be compacted in its window."""

    async def narrow():
        async with Engine(f"sqlite:///{store}", window=20_000, max_output=1_000) as engine:
            await (await engine.conversation("shifts", preset="opal")).record({"prompt_tokens": 35_000})

    asyncio.run(narrow())
    return kept


def test_other_commands_say_that_a_conversation_is_off_and_nothing_is_due(due):
    before = due("conversations", "shifts"), due("show", "shifts"), due("sessions", "shifts")
    assert all("has to be compacted" in one.err for one in before)
    assert ": now" in due("context", "shifts", "--preset", "opal").out

    assert due("off", "shifts").code == 0
    after = due("conversations", "shifts"), due("show", "shifts"), due("sessions", "shifts")

    assert not any("has to be compacted" in one.err for one in after)
    assert all("passed on unchanged" in one.err and "`refold on " in one.err for one in after)
    assert " off " in after[0].out
    drawn = due("context", "shifts").out
    assert "it is off: its next requests are passed on unchanged" in drawn
    assert "when it is on, with the preset refold:" in drawn
    (listed,) = json.loads(due("conversations", "shifts", "--json").out)["conversations"]
    assert (listed["off"], listed["needs_compaction"]) == (True, False)
    for command in ("show", "sessions", "context"):
        assert json.loads(due(command, "shifts", "--json").out)["off"] is True


def test_a_switch_says_what_happens_to_the_next_requests_and_how_to_undo_it(due):
    off, listed, on, none = due("off", "shifts"), due("off"), due("on", "shifts"), due("off")

    assert off.out == listed.out == "shifts\n"
    assert "next requests are passed on unchanged, neither compacted\nnor stored" in off.err
    assert "`refold on shifts`" in off.err
    assert "`refold on CONV`" in listed.err
    assert "its next request brings what was not stored" in on.err
    assert "`refold off shifts`" in on.err
    assert (none.out, "no conversation is off" in none.err) == ("", True)


def test_a_switch_lists_no_other_conversation(due):
    due("off", "ferry")

    assert due("off", "shifts").out == "shifts\n"
    assert due("on", "shifts").out == ""
    assert due("off").out == "ferry\n"
    assert json.loads(due("on", "shifts", "--json").out)["off"] == ["ferry"]


def test_a_conversation_that_is_not_there_is_not_switched(due):
    code, _, err = due("off", "boats")

    assert (code != 0, "there is no conversation 'boats'" in err) == (True, True)
