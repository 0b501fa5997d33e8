"""Requests whose instructions and output leave messages little room: the output is lowered, told, recorded, or refused with the sum."""

from __future__ import annotations

import json
import logging

import aiohttp
import pytest

from refold.model.tokens import Usage
from refold.testing import Refuse, Say, ScriptedUpstream, say
from tests.gateway.conftest import served

WINDOW = 8_000
RULES = "Answer in one line, and never touch the public interface of the timetable. " * 170
"""Some 2,400 tokens of system prompt."""
FORMATS = ("chat", "responses", "anthropic")
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "anthropic": "/v1/messages"}
FIELDS = {"chat": "max_completion_tokens", "responses": "max_output_tokens", "anthropic": "max_tokens"}


def turns(count: int, length: int = 60) -> list[dict]:
    """A history that ends with a question; a longer one begins with it."""
    said = []
    for number in range(count):
        asked = f"Question {number}: " + f"what is in row {number}? " * length
        said.append({"role": "user", "content": asked})
        said.append({"role": "assistant", "content": f"Row {number} holds the boat of {number} o'clock."})
    return said[:-1]


def request(wire: str, messages: list[dict], output: int | None, rules: str = RULES, **more) -> dict:
    body: dict = {"model": "claude-sonnet-4-5" if wire == "anthropic" else "gpt-4o", **more}
    if output is not None:
        body[FIELDS[wire]] = output
    if wire == "chat":
        return {**body, "messages": [{"role": "system", "content": rules}, *messages]}
    key, prompt = ("input", "instructions") if wire == "responses" else ("messages", "system")
    return {**body, prompt: rules, key: messages}


async def post(gate, wire: str, body: dict, **headers):
    return await gate.post(PATHS[wire], json.dumps(body).encode(), **headers)


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("wire", FORMATS)
async def test_the_output_is_lowered_in_the_clients_own_field_and_nothing_else_changes(wire, is_stream):
    async with (
        ScriptedUpstream(otherwise="Fine.", window=WINDOW) as upstream,
        served(upstream, window=WINDOW, summariser_enabled=False, cache_ttl="off") as gate,
    ):
        body = request(wire, turns(1), 5_500, stream=is_stream)
        status, headers, _ = await post(gate, wire, body)
    assert status == 200
    sent = upstream.requests[-1].json
    lowered = sent[FIELDS[wire]]
    assert WINDOW // 8 <= lowered < 5_500
    assert headers["x-refold-output"] == f"5500->{lowered}"
    assert {**sent, FIELDS[wire]: 5_500} == body
    assert headers["x-refold-action"] == "passed"


@pytest.mark.parametrize("wire", FORMATS)
async def test_a_growing_conversation_is_never_refused(wire):
    async with (
        ScriptedUpstream(otherwise="Fine.", window=WINDOW) as upstream,
        served(upstream, window=WINDOW, summariser_enabled=False) as gate,
    ):
        for count in range(1, 17):
            status, headers, answer = await post(gate, wire, request(wire, turns(count), 5_500))
            assert status == 200, answer
            assert headers["x-refold-action"] != "recovered"
        outputs = [one.json[FIELDS[wire]] for one in upstream.requests if "count_tokens" not in one.path]
    assert len(outputs) == 16  # none was refused by the provider, which counts input and output
    lowered = [output for output in outputs if output < 5_500]
    assert outputs[-len(lowered) :] == lowered  # once lowered, it stays so: it does not go up and down
    assert len(set(lowered)) == 1


@pytest.mark.parametrize("wire", FORMATS)
async def test_what_fits_leaves_as_it_came_and_the_client_is_warned_once(wire, caplog):
    async with (
        ScriptedUpstream(otherwise="Fine.", window=WINDOW) as upstream,
        served(upstream, window=WINDOW, summariser_enabled=False, cache_ttl="off") as gate,
    ):
        bodies = [json.dumps(request(wire, turns(count, 1), 4_500)).encode() for count in (1, 2)]
        with caplog.at_level(logging.WARNING, "refold.gateway"):
            first, second = [(await gate.post(PATHS[wire], body))[1] for body in bodies]
    assert [one.body for one in upstream.requests] == bodies
    assert first["x-refold-room"].startswith(f"window {WINDOW} - instructions ")
    assert " - output 4500 = " in first["x-refold-room"]
    assert "x-refold-room" not in second
    assert not {"x-refold-output"} & {*first, *second}
    warnings = [one.getMessage() for one in caplog.records if "quarter of the window" in one.getMessage()]
    assert len(warnings) == 1
    assert "timetable" not in warnings[0]


async def test_a_client_with_room_is_not_warned():
    async with (
        ScriptedUpstream(otherwise="Fine.", window=WINDOW) as upstream,
        served(upstream, window=WINDOW, summariser_enabled=False) as gate,
    ):
        _, headers, _ = await post(gate, "chat", request("chat", turns(1, 1), 1_000))
    assert not {"x-refold-output", "x-refold-room"} & {*headers}


@pytest.mark.parametrize("output", [7_500, 7_990, 8_000, 32_000])
@pytest.mark.parametrize("wire", FORMATS)
async def test_an_output_as_large_as_the_window_leaves_room_for_the_history(wire, output):
    async with (
        ScriptedUpstream(otherwise="Fine.", window=WINDOW) as upstream,
        served(upstream, window=WINDOW, summariser_enabled=False) as gate,
    ):
        body = request(wire, turns(3, 40), output, rules="Be brief.")
        status, headers, answer = await post(gate, wire, body)
    assert status == 200, answer
    assert headers["x-refold-output"].startswith(f"{output}->")
    assert "Question 0: " in upstream.requests[-1].body.decode()  # the whole history: it has its quarter


async def test_the_output_stays_above_the_thinking_budget():
    async with (
        ScriptedUpstream(otherwise="Fine.", window=WINDOW) as upstream,
        served(upstream, window=WINDOW, summariser_enabled=False) as gate,
    ):
        thinking = {"type": "enabled", "budget_tokens": 3_500}
        body = request("anthropic", turns(1, 40), 5_500, thinking=thinking)
        status, headers, answer = await post(gate, "anthropic", body)
    assert status == 200, answer
    assert upstream.requests[-1].json["thinking"] == thinking
    assert headers["x-refold-output"] == "5500->4524"


async def test_a_thinking_budget_of_the_settings_counts_as_well():
    async with (
        ScriptedUpstream(otherwise="Fine.", window=WINDOW) as upstream,
        served(upstream, window=WINDOW, summariser_enabled=False, compaction_thinking=3_500) as gate,
    ):
        _, headers, _ = await post(gate, "anthropic", request("anthropic", turns(1, 40), 5_500))
    assert headers["x-refold-output"] == "5500->4524"


@pytest.mark.parametrize("wire", FORMATS)
async def test_what_can_not_be_made_to_fit_is_refused_before_it_is_sent(wire):
    async with (
        ScriptedUpstream(otherwise="Fine.", window=WINDOW) as upstream,
        served(upstream, window=WINDOW, summariser_enabled=False) as gate,
    ):
        status, _, answer = await post(gate, wire, request(wire, turns(1), 5_500, rules=RULES * 4))
    assert status == 400
    told = json.loads(answer)["error"]
    assert "window 8,000 − instructions " in told["message"]
    assert "output 1,000 (lowered from 5,500) = " in told["message"]
    assert told["message"].startswith("prompt is too long") or told["code"] == "context_length_exceeded"
    assert not upstream.requests


@pytest.mark.parametrize("count", [178, 188, 196])
async def test_what_fits_into_the_reserve_is_folded_and_sent(count):
    """Instructions, and an output that is all thinking, leave messages less than twice the reserve of 400 tokens."""
    rules, thinking = "Answer in one line. Never touch the interface of the old timetable. " * count, 4_499
    async with (
        ScriptedUpstream(otherwise="Fine.", window=WINDOW) as upstream,
        served(upstream, window=WINDOW, summariser_enabled=False, cache_ttl="off") as gate,
    ):
        for number in range(1, 13):
            body = request("anthropic", turns(number, 8), 4_500, rules)
            body["thinking"] = {"type": "enabled", "budget_tokens": thinking}
            status, headers, answer = await post(gate, "anthropic", body)
            assert status == 200, answer
    whole, sent = map(int, headers["x-refold-tokens"].split("->"))
    assert sent < whole
    assert upstream.requests[-1].json["max_tokens"] == 4_500


async def test_after_a_fold_the_output_is_lowered_by_how_the_provider_counted_before():
    """A provider that counts a seventh more than we do, and instructions that take more than the messages."""

    def answer(received) -> Say | Refuse:
        tokens = len(received.body) // 4
        if tokens + received.json["max_completion_tokens"] > WINDOW:
            return Refuse(
                400,
                f"This model's maximum context length is {WINDOW} tokens.",
                code="context_length_exceeded",
            )
        return say("Fine.", usage=Usage(tokens, output=2))

    async with (
        ScriptedUpstream(otherwise=answer) as upstream,
        served(upstream, window=WINDOW, summariser_enabled=False) as gate,
    ):
        actions = []
        for number in range(1, 36):
            status, headers, _ = await post(gate, "chat", request("chat", turns(number, 12), 4_000))
            assert status == 200
            actions.append(headers["x-refold-action"])
    assert actions.count("folded") > 1
    assert not any(isinstance(one, Refuse) for one in upstream.answered)


async def test_a_budget_of_thinking_that_is_disabled_keeps_no_output():
    async with (
        ScriptedUpstream(otherwise="Fine.", window=WINDOW) as upstream,
        served(upstream, window=WINDOW, summariser_enabled=False) as gate,
    ):
        disabled = {"type": "disabled", "budget_tokens": 5_000}
        await post(gate, "anthropic", request("anthropic", turns(2), 5_500))
        await post(gate, "anthropic", request("anthropic", turns(2), 5_500, thinking=disabled))
        plain, off = (one.json["max_tokens"] for one in upstream.requests)
    assert off == plain < 5_000


async def test_nothing_is_refused_for_a_window_that_is_only_assumed():
    async with (
        ScriptedUpstream(otherwise="Fine.", window=None) as upstream,
        served(upstream, summariser_enabled=False) as gate,
    ):
        body = {**request("chat", turns(1), 5_500, rules=RULES * 60), "model": "nobodys-model"}
        status, _, _ = await post(gate, "chat", body)
    assert status == 200
    assert upstream.requests[-1].json == body


async def test_a_request_that_cannot_be_made_smaller_is_not_called_folded():
    async with (
        ScriptedUpstream(otherwise="Fine.", window=None) as upstream,
        served(upstream, summariser_enabled=False) as gate,
    ):
        body = {**request("chat", turns(12), None), "model": "nobodys-model"}
        _, folded, _ = await post(gate, "chat", body, x_refold_conversation="c", x_refold_window="6000")
        body = {**request("chat", turns(12), None, rules=RULES * 60), "model": "nobodys-model"}
        _, told, _ = await post(gate, "chat", body, x_refold_conversation="c")
    assert folded["x-refold-action"] == "folded"
    assert upstream.requests[-1].json == body
    assert told["x-refold-action"] == "passed"
    assert "x-refold-summary" not in told
    whole, sent = told["x-refold-tokens"].split("->")
    assert whole == sent


async def test_no_field_is_added_for_a_client_that_states_no_output():
    async with (
        ScriptedUpstream(otherwise="Fine.", window=WINDOW) as upstream,
        served(upstream, window=WINDOW, summariser_enabled=False, compaction_max_output=6_000) as gate,
    ):
        body = request("chat", turns(1), None)
        status, headers, _ = await post(gate, "chat", body)
    assert status == 200
    assert upstream.requests[-1].json == body
    assert "x-refold-output" not in headers


async def test_every_field_that_asks_for_more_is_lowered():
    async with (
        ScriptedUpstream(otherwise="Fine.", window=WINDOW) as upstream,
        served(upstream, window=WINDOW, summariser_enabled=False) as gate,
    ):
        await post(gate, "chat", request("chat", turns(1), 5_500, max_tokens=5_500))
        sent = upstream.requests[-1].json
    assert sent["max_tokens"] == sent["max_completion_tokens"] < 5_500


async def test_the_lowering_is_recorded_with_the_call():
    async with (
        ScriptedUpstream(otherwise="Fine.", window=WINDOW) as upstream,
        served(upstream, window=WINDOW, summariser_enabled=False) as gate,
    ):
        await post(gate, "chat", request("chat", turns(1), 5_500), x_refold_conversation="tight")
        lowered = upstream.requests[-1].json["max_completion_tokens"]
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{gate.url}/refold/conversations/tight/receipts") as response,
        ):
            (call,) = await response.json()
    edits = [edit for edit in call["receipt"]["marks"] if edit["stage"] == "output"]
    assert [(edit["before"], edit["after"]) for edit in edits] == [(5_500, lowered)]


async def test_a_coding_agent_goes_on_for_many_rounds_of_tool_calls():
    """Claude Code in a window of 64,000 tokens, at a quarter of the size: 45 % instructions and tools, half output."""
    window, output = 16_000, 8_000
    tools = [
        {"name": f"tool_{number}", "description": "Reads a row. " * 220, "input_schema": {"type": "object"}}
        for number in range(7)
    ]
    history: list[dict] = [{"role": "user", "content": "Fix the departure board."}]
    async with (
        ScriptedUpstream(otherwise="Fine.", window=window) as upstream,
        served(upstream, window=window, summariser_enabled=False) as gate,
    ):
        for number in range(64):
            body = request("anthropic", history, output, tools=tools)
            status, headers, answer = await post(gate, "anthropic", body)
            assert status == 200, answer
            assert headers["x-refold-action"] != "recovered"
            call = {"type": "tool_use", "id": f"toolu_{number}", "name": "tool_1", "input": {"row": number}}
            result = {"type": "tool_result", "tool_use_id": f"toolu_{number}"}
            row = " ".join(f"row {number}.{at} of the board" for at in range(30 + 10 * (number % 5)))
            history.append({"role": "assistant", "content": [call]})
            history.append({"role": "user", "content": [{**result, "content": row}]})
    sent = [one for one in upstream.requests if "count_tokens" not in one.path]
    assert len(sent) == 64
    assert {one.json["max_tokens"] for one in sent[5:]} == {sent[-1].json["max_tokens"]}
    assert 2_000 <= sent[-1].json["max_tokens"] < output


class TestAfterARefusal:
    """The provider's window is smaller than the gateway thinks."""

    @pytest.mark.parametrize("is_stream", [False, True])
    async def test_less_output_is_tried_before_anything_is_folded(self, is_stream):
        async with (
            ScriptedUpstream(otherwise="Fine.", window=5_000) as upstream,
            served(upstream, window=WINDOW, summariser_enabled=False, cache_ttl="off") as gate,
        ):
            body = request("anthropic", turns(1), 3_000, rules="Be brief.", stream=is_stream)
            body["messages"] = turns(3, 100)
            status, headers, _ = await post(gate, "anthropic", body)
        first, second = [one.json for one in upstream.requests]
        assert (status, headers["x-refold-action"]) == (200, "recovered")
        assert first == body
        assert second == {**body, "max_tokens": second["max_tokens"]}
        assert headers["x-refold-output"] == f"3000->{second['max_tokens']}"
        assert 625 <= second["max_tokens"] < 3_000

    async def test_where_less_output_is_not_enough_both_are_smaller(self):
        async with (
            ScriptedUpstream(otherwise="Fine.", window=2_600) as upstream,
            served(upstream, window=WINDOW, summariser_enabled=False) as gate,
        ):
            body = request("anthropic", turns(3, 100), 3_000, rules="Be brief.")
            status, headers, answer = await post(gate, "anthropic", body)
        assert (status, headers["x-refold-action"]) == (200, "recovered"), answer
        sent = upstream.requests[-1].json
        assert 325 <= sent["max_tokens"] < 3_000
        assert sent["messages"] != body["messages"]

    async def test_the_window_that_was_stated_is_remembered(self):
        async with (
            ScriptedUpstream(otherwise="Fine.", window=5_000) as upstream,
            served(upstream, summariser_enabled=False) as gate,
        ):
            for count in (3, 4):
                body = request("anthropic", turns(count, 100), 3_000, rules="Be brief.")
                status, headers, answer = await post(gate, "anthropic", body)
                assert status == 200, answer
        assert headers["x-refold-action"] != "recovered"
        assert len(upstream.requests) == 3

    async def test_a_refusal_without_numbers_is_answered_with_the_least_output(self):
        told = "input length and `max_tokens` exceed context limit"
        async with (
            ScriptedUpstream(Refuse(400, told), otherwise="Fine.") as upstream,
            served(upstream, window=WINDOW, summariser_enabled=False, cache_ttl="off") as gate,
        ):
            body = request("chat", turns(2, 1), 3_000)
            status, headers, _ = await post(gate, "chat", body)
        assert (status, headers["x-refold-action"]) == (200, "recovered")
        assert upstream.requests[-1].json == {**body, "max_completion_tokens": 1_000}
