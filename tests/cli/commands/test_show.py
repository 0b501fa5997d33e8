"""`refold show`: what was said, and what was sent."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from refold import Engine

USAGE = {"prompt_tokens": 9_000, "completion_tokens": 50, "total_tokens": 9_050}


def talk_on(store: Path) -> list[dict[str, object]]:
    """Two calls of a program, before and after a compaction; what was sent with each."""

    async def work() -> list[dict[str, object]]:
        async with Engine(f"sqlite:///{store}", window=60_000, max_output=1_000) as engine:
            talk = await engine.conversation("shifts")
            first = await talk.context()
            await talk.record(USAGE)
            await talk.add({"role": "assistant", "content": "Done."}, "Thanks. And now?")
            second = await talk.compact()
            await talk.record(USAGE)
            return [first, second]

    return asyncio.run(work())


def test_what_was_said_is_shown_message_by_message(kept):
    shown = kept("show", "ferry")

    head, said, blank, *_ = shown.out.splitlines()
    assert head.startswith("#m0  user  ")
    assert (said, blank) == ("  When does the ferry leave?", "")
    assert shown.out.rstrip().endswith("At noon.")
    assert shown.err.startswith("2 messages; ")


def test_programs_get_the_messages_as_they_came(kept):
    document = json.loads(kept("show", "ferry", "--json").out)

    assert document["messages"][1]["message"] == {"role": "assistant", "content": "At noon."}
    assert [one["handle"] for one in document["messages"]] == ["#m0", "#m1"]


def test_a_compaction_hides_nothing_of_what_was_said(kept):
    before = kept("show", "shifts").out
    kept("compact", "shifts", "--window", "12000")

    assert kept("show", "shifts").out == before


def test_the_messages_of_one_session_only(kept):
    kept("compact", "shifts", "--window", "12000")
    _, second = json.loads(kept("sessions", "shifts", "--json").out)["sessions"]
    found = json.loads(kept("show", "shifts", "--session", second["id"], "--json").out)["messages"]

    assert [one["seq"] for one in found] == list(range(second["first"], 134))


@pytest.mark.parametrize("undone", [False, True])
def test_what_left_with_a_call_is_put_together_again(kept, store, undone):
    sent = talk_on(store)
    if undone:
        assert kept("undo", "shifts").code == 0
    calls = json.loads(kept("show", "shifts", "--calls", "--json").out)["calls"]

    assert [call["size"] for call in calls] == [134, 136]
    assert len(sent[1]["messages"]) < len(sent[0]["messages"])
    for call, request in zip(calls, sent, strict=True):
        by_id = json.loads(kept("show", "shifts", "--as-sent", call["id"][:10], "--json").out)
        assert by_id["request"] == request
        assert json.loads(kept("show", "shifts", "--as-sent", str(call["number"]), "--json").out) == by_id


def test_people_see_the_system_prompt_and_the_summary_that_left(kept, store):
    talk_on(store)
    shown = kept("show", "shifts", "--as-sent", "2")

    assert shown.out.startswith("system\n  You are a careful software engineer")
    assert "[Earlier messages #m0 to #m" in shown.out
    assert "for 136 that were there, 7 tools" in shown.err
    assert [line.split()[0] for line in kept("show", "shifts", "--calls").out.splitlines()[1:]] == ["1", "2"]


def test_a_call_is_shown_with_its_own_system_prompt_as_long_as_that_is_stored(kept, store):
    async def work() -> None:
        async with Engine(f"sqlite:///{store}", window=12_000, model="gpt-4o") as engine:
            talk = await engine.conversation("tides")
            for number in range(1, 21):
                await talk.set_system(f"You are pilot {number}.")
                await talk.add(f"question {number}")
                await talk.context()
                await talk.record(USAGE)
                await talk.add({"role": "assistant", "content": "aye"})

    asyncio.run(work())
    for number in (20, 10):
        shown = kept("show", "tides", "--as-sent", str(number))
        assert shown.out.startswith(f"system\n  You are pilot {number}.\n")
        assert "not stored" not in shown.err
    first = kept("show", "tides", "--as-sent", "1")
    assert first.out.startswith("system\n  You are pilot 20.\n")
    assert "its system prompt and tools are not stored: those of the newest request are shown" in first.err
    found = [
        json.loads(kept("show", "tides", "--as-sent", number, "--json").out)["instructions"]
        for number in ("1", "10")
    ]
    assert found == ["newest", "own"]


def test_an_output_that_was_lowered_for_a_call_is_told(kept, store):
    async def work() -> int:
        async with Engine(f"sqlite:///{store}", window=12_000, max_output=11_000) as engine:
            talk = await engine.conversation("shifts")
            await talk.context()
            await talk.record(USAGE)
            return talk.max_output

    lowered = asyncio.run(work())
    (edit,) = json.loads(kept("show", "shifts", "--as-sent", "1", "--json").out)["edits"]
    assert (edit["stage"], edit["before"], edit["after"]) == ("output", 11_000, lowered)
    assert (
        f"asked for {lowered:,} tokens of output instead of 11,000"
        in kept("show", "shifts", "--as-sent", "1").err
    )


def test_a_call_that_is_not_there(kept, store):
    assert "no calls were recorded" in kept("show", "shifts", "--as-sent", "1").err
    assert "no calls were recorded" in kept("show", "shifts", "--calls").err
    talk_on(store)
    assert "there is no call 'nine'" in kept("show", "shifts", "--as-sent", "nine").err


def test_one_question_at_a_time(kept):
    told = kept("show", "shifts", "--calls", "--session", "a")

    assert told.code == 2
    assert "exclude each other" in told.err


def test_a_terminal_is_not_harmed_by_what_was_said(refold, store, tmp_path):
    file = tmp_path / "evil.json"
    file.write_text(json.dumps([{"role": "user", "content": "red \x1b[31m\x07 alert\nand\ttabs"}]))
    refold("import", str(file), "--as", "evil")
    shown = refold("show", "evil").out

    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "  and tabs\n" in shown


def test_a_call_that_is_not_there_is_refused_with_the_list_of_calls(kept, store):
    talk_on(store)
    refused = kept("show", "shifts", "--as-sent", "77777777")

    assert refused.code == 2
    assert "there is no call '77777777'" in refused.err
    assert "hint: `refold show CONV --calls` lists them" in refused.err
