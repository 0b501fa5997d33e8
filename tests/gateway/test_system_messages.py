"""Claude Code on a model that takes system messages: what leaves is what the provider takes, after folds, restarts and refusals."""

from __future__ import annotations

import json

import pytest

from refold.testing import ScriptedUpstream
from tests.gateway.conftest import served
from tests.test_system_messages import CLAUDE_CODE, PRESETS, said

NAMED = {"x_claude_code_session_id": "5f0c2a34-7b0e-4d62-9d55-0a7c5c0b9a11"}


async def ask(gate, messages, **headers):
    body = json.dumps({"model": "claude-opus-4-8", "max_tokens": 300, "messages": messages}).encode()
    return await gate.post("/v1/messages", body, **NAMED, **headers)


async def converse(gate, script: str, length: int = 60, start: int = 0) -> list[tuple[int, str]]:
    """Status and action of every request that a client makes which keeps its whole history."""
    told = []
    for number in range(start, len(script)):
        if script[number] != "a" and script[number + 1 : number + 2] in ("", "a"):
            history = [said(kind, at, length) for at, kind in enumerate(script[: number + 1])]
            status, headers, body = await ask(gate, history)
            assert status == 200, body
            told.append((status, headers["x-refold-action"]))
    return told


def shape(received) -> str:
    return "".join(message.role[0] for message in received.messages)


@pytest.mark.parametrize("preset", PRESETS)
async def test_a_session_goes_on_after_folds_and_a_restart(preset):
    async with ScriptedUpstream(otherwise="Fine.", window=4_000) as upstream:
        flags = {"window": 4_000, "summariser_enabled": False, "compaction_preset": preset}
        flags |= {"compaction_allow_system_summary": True}
        async with served(upstream, **flags) as gate:
            told = await converse(gate, CLAUDE_CODE[:24], 100)
            store = gate.store
        async with served(upstream, store=store, **flags) as gate:
            told += await converse(gate, CLAUDE_CODE, 100, start=24)
    assert {status for status, _ in told} == {200}
    assert len(upstream.requests[-1].messages) < len(CLAUDE_CODE)


async def test_a_refusal_as_too_long_is_answered_with_less_that_is_taken():
    async with (
        ScriptedUpstream(otherwise="Fine.", window=3_000) as upstream,
        served(upstream, window=8_000, summariser_enabled=False) as gate,
    ):
        told = await converse(gate, CLAUDE_CODE)
    assert "recovered" in {action for _, action in told}


async def test_old_reminders_that_fill_the_window_fold_away():
    async with (
        ScriptedUpstream(otherwise="Fine.", window=8_000) as upstream,
        served(upstream, window=8_000, summariser_enabled=False) as gate,
    ):
        history = []
        for number in range(4):
            reminder = {"role": "system", "content": f"reminder {number} " + "file content " * 1_500}
            history += [said("u", number), reminder]
            status, _, body = await ask(gate, history)
            assert status == 200, body
            assert f"reminder {number} " in upstream.requests[-1].body.decode()
            history.append(said("a", number))


async def test_what_fits_leaves_as_it_came_and_what_is_misplaced_is_moved():
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        served(upstream, window=32_000, summariser_enabled=False) as gate,
    ):
        await ask(gate, [said(kind, at) for at, kind in enumerate("usausaus")])
        status, headers, _ = await ask(gate, [said(kind, at) for at, kind in enumerate("usausausasu")])
    assert [shape(one) for one in upstream.requests] == ["usausaus", "usausausaus"]
    assert (status, headers["x-refold-action"]) == (200, "reduced")


async def test_the_same_messages_in_another_format_are_read_again(gate):
    """In Chat a system message at the beginning is the prompt, in Anthropic's format it is a message."""
    opening = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "When is high tide?"}]
    history = [*opening, {"role": "assistant", "content": "At noon."}, {"role": "user", "content": "Where?"}]
    name = {"x_refold_conversation": "tides"}
    first = json.dumps({"model": "m", "messages": opening}).encode()
    await gate.post("/v1/chat/completions", first, **name)
    again = json.dumps({"model": "m", "max_tokens": 300, "messages": history}).encode()
    _, told, _ = await gate.post("/v1/messages", again, **name)
    _, alone, _ = await gate.post("/v1/messages", again, x_refold_conversation="tides alone")
    assert told["x-refold-action"] == alone["x-refold-action"] == "reduced"
    assert told["x-refold-tokens"] == alone["x-refold-tokens"]
