"""What leaves in place of a client's request: its own bytes wherever nothing was changed."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from refold.testing import Say, ScriptedUpstream, call, say, think
from tests.e2e.test_gateway_sdks import prose
from tests.gateway.conftest import served

WINDOW = 6_000


def blocks(text, **more):
    return [{"type": "text", "text": text, **more}]


def marks(body: bytes) -> int:
    return body.count(b'"cache_control"')


async def post(gate, messages, **fields):
    body = msgspec.json.encode(
        {"model": "claude-opus-4-8", "max_tokens": 200, "messages": messages, **fields}
    )
    status, told, _ = await gate.post("/v1/messages", body, x_refold_conversation="c")
    assert status == 200
    return body, gate.upstream.requests[-1].body, told


def chapters(count):
    return [
        {"role": ("user", "assistant")[n % 2], "content": f"Chapter {n}: {prose(n, 60)}"}
        for n in range(count)
    ]


@pytest.mark.feature("L9")
async def test_a_client_without_marks_gets_up_to_four(upstream):
    async with served(upstream, window=200_000) as gate:
        came, sent, _ = await post(gate, chapters(9), system="You tell stories.")
        assert marks(came) == 0
        assert 1 <= marks(sent) <= 4
        _, off, _ = await post(gate, chapters(11), system="You tell stories.")
        assert marks(off) <= 4
    async with served(upstream, window=200_000, cache_ttl="off") as gate:
        came, sent, _ = await post(gate, chapters(9), system="You tell stories.")
        assert sent == came


@pytest.mark.feature("L9")
async def test_a_string_that_becomes_a_block_keeps_its_spelling(upstream):
    prompt, said = rb'"Be \u0041ble: caf\u00e9\/bar"', rb'"\u65e5\u672c \u2028 \ud83d\ude00"'
    parts = (b'{"model": "claude-opus-4-8", "max_tokens": 200, "system": ', prompt)
    parts = (*parts, b', "messages": [{"role": "user", "content": ', said, b"}]}")
    async with served(upstream, window=200_000) as gate:
        await gate.post("/v1/messages", b"".join(parts))

    mark = rb',"cache_control":{"type":"ephemeral"}}]'
    sent = upstream.requests[-1].body
    assert b'"system":[{"type":"text","text":' + prompt + mark in sent.replace(b": [", b":[")
    assert b'"content":[{"type":"text","text":' + said + mark in sent


@pytest.mark.parametrize(
    "arguments", [r'{"path": "\ud800"}', r'{"path": "\ud800", "n": NaN}', r'{"path": "\ud800"']
)
async def test_arguments_with_half_a_character_are_left_alone(upstream, arguments):
    """As a model wrote them: OpenAI takes the text of its own call back, also if it is no JSON."""
    function = {"name": "read", "arguments": arguments}
    made = {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]}
    result = {"role": "tool", "tool_call_id": "c", "content": "ok"}
    messages = [{"role": "user", "content": "Read it."}, made, result]
    body = msgspec.json.encode({"model": "gpt-5", "messages": messages})
    async with served(upstream, window=200_000) as gate:
        status, told, _ = await gate.post("/v1/chat/completions", body)

    assert status == 200
    assert upstream.requests[-1].body == body
    assert told["x-refold-action"] == "passed"


@pytest.mark.feature("L9", "X5")
async def test_a_client_that_marks_its_own_prefixes_is_left_alone(upstream):
    async with served(upstream, window=200_000) as gate:
        for turn in range(1, 17, 2):  # the stored messages have more marks than a request may have
            messages = chapters(turn)
            messages[-1]["content"] = blocks(messages[-1]["content"], cache_control={"type": "ephemeral"})
            came, sent, told = await post(gate, messages)
            assert sent == came
            assert told["x-refold-action"] == "passed"
        assert len(await gate.store.conversations("local")) == 1


@pytest.mark.feature("L9")
async def test_more_marks_than_a_request_may_have_lose_the_oldest(upstream):
    async with served(upstream, window=200_000) as gate:
        messages = [
            {**one, "content": blocks(one["content"], cache_control={"type": "ephemeral"})}
            for one in chapters(7)
        ]
        came, sent, told = await post(gate, messages)
        assert (marks(came), marks(sent)) == (7, 4)
        kept = [one["content"][0] for one in msgspec.json.decode(sent)["messages"]]
        assert ["cache_control" in block for block in kept] == [False] * 3 + [True] * 4
        assert told["x-refold-action"] == "passed"


@pytest.mark.feature("X4")
async def test_fields_and_tools_that_nobody_knows_survive_a_compaction():
    async with (
        ScriptedUpstream(window=WINDOW, otherwise="Fine.") as upstream,
        served(upstream, window=WINDOW, summariser_enabled=False) as gate,
    ):
        odd = {
            "betas": ["x-2099"],
            "tools": [{"type": "web_search_20250305", "name": "web_search"}],
            "top_k": 3,
        }
        for turn in range(1, 121, 2):
            _, sent, _ = await post(gate, chapters(turn), **odd)
        fields = msgspec.json.decode(sent)
        assert len(fields["messages"]) < 60
        assert {key: fields[key] for key in odd} == odd


@pytest.mark.feature("L13", "X4")
async def test_thinking_goes_through_tool_loops_and_compactions_as_it_came_or_not_at_all():
    async with (
        ScriptedUpstream(window=WINDOW, binds_thinking=True) as upstream,
        served(upstream, window=WINDOW, summariser_enabled=False) as gate,
        gate.anthropic() as client,
    ):
        history = []
        for turn in range(40):
            upstream.script(
                say(think(f"Hm {turn}: {prose(turn, 10)}"), call("read", {"path": f"f{turn}.py"})),
                say(think("Now I know."), prose(turn, 20)),
            )
            history.append({"role": "user", "content": f"Question {turn}: {prose(turn, 30)}"})
            for _ in range(2):
                reply = await client.messages.create(
                    model="claude-opus-4-8", max_tokens=1_500, messages=history,
                    thinking={"type": "enabled", "budget_tokens": 1_024},
                )  # fmt: skip
                history.append(
                    {"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in reply.content]}
                )
                results = [
                    {"type": "tool_result", "tool_use_id": block.id, "content": prose(turn, 60)}
                    for block in reply.content
                    if block.type == "tool_use"
                ]
                history += [{"role": "user", "content": results}] if results else []
        # A turn that outgrows the window while it is at work is refused once, and sent without its thoughts.
        assert sum(not isinstance(answer, Say) for answer in upstream.answered) <= 7
        assert len(upstream.requests[-1].messages) < len(history) / 2


@pytest.mark.feature("L9")
async def test_a_mark_that_moves_on_does_not_stay_on_what_was_shortened():
    async with (
        ScriptedUpstream(window=8_000) as upstream,
        served(upstream, window=8_000, summariser_enabled=False) as gate,
    ):
        mark = {"cache_control": {"type": "ephemeral"}}
        system = [{"type": "text", "text": f"Rule {n}.", **mark} for n in range(2)]
        history, actions = [{"role": "user", "content": blocks("Go.")}], []
        for turn in range(6):
            upstream.script(say("Running.", call("run", {"n": turn})))
            messages = msgspec.json.decode(msgspec.json.encode(history))
            messages[-1]["content"][-1] |= mark
            _, sent, told = await post(gate, messages, system=system)
            actions.append(told["x-refold-action"])
            assert marks(sent) == 3
            assert "cache_control" in msgspec.json.decode(sent)["messages"][-1]["content"][-1]
            result = {
                "type": "tool_result",
                "tool_use_id": f"toolu_{turn + 1}",
                "content": "a line of output\n" * 600,
            }
            said = [
                {"type": "text", "text": "Running."},
                {"type": "tool_use", "id": f"toolu_{turn + 1}", "name": "run", "input": {"n": turn}},
            ]
            history += [{"role": "assistant", "content": said}, {"role": "user", "content": [result]}]
        assert "reduced" in actions


async def test_instructions_that_leave_no_room_are_refused_before_anything_is_sent():
    async with (
        ScriptedUpstream(window=3_000, otherwise="Fine.") as upstream,
        served(upstream, window=3_000, summariser_enabled=False) as gate,
    ):
        system = "A rule that is long. " * 450
        body = msgspec.json.encode(
            {"model": "claude-opus-4-8", "max_tokens": 900, "system": system, "messages": chapters(3)}
        )
        status, _, answer = await gate.post("/v1/messages", body)
        assert status == 400
        assert b"prompt is too long" in answer
        assert b"window 3,000" in answer
        assert not upstream.requests


def chat_step(number, text):
    function = {"name": "read", "arguments": "{}"}
    called = {"id": f"c{number}", "type": "function", "function": function}
    said = {"role": "assistant", "content": None, "tool_calls": [called]}
    return [said, {"role": "tool", "tool_call_id": f"c{number}", "content": text}]


def anthropic_step(number, text):
    called = {"type": "tool_use", "id": f"c{number}", "name": "read", "input": {}}
    result = {"type": "tool_result", "tool_use_id": f"c{number}", "content": text}
    return [{"role": "assistant", "content": [called]}, {"role": "user", "content": [result]}]


def responses_step(number, text):
    called = {"type": "function_call", "call_id": f"c{number}", "name": "read", "arguments": "{}"}
    return [called, {"type": "function_call_output", "call_id": f"c{number}", "output": text}]


@pytest.mark.parametrize("cache_ttl", ["off", "5m"])
@pytest.mark.parametrize(
    ("path", "key", "step"),
    [
        ("/v1/chat/completions", "messages", chat_step),
        ("/v1/messages", "messages", anthropic_step),
        ("/v1/responses", "input", responses_step),
    ],
)
async def test_a_result_that_was_cut_is_sent_with_the_same_json_again(upstream, path, key, step, cache_ttl):
    items, sent = [{"role": "user", "content": "Read the files."}], []
    async with served(upstream, window=WINDOW, cache_ttl=cache_ttl) as gate:
        for number in range(16):
            items += step(
                number, f"File {number}\n" + "\n".join(prose(number + line, 8) for line in range(25))
            )
            body = msgspec.json.encode({"model": "a-model", "max_tokens": 200, key: items})
            assert (await gate.post(path, body, x_refold_conversation="c"))[0] == 200
            sent.append(msgspec.json.decode(upstream.requests[-1].body)[key])

    cut = [[item for item in one if "the rest is in #m" in str(item)] for one in map(unmarked_items, sent)]
    again = [(old, new) for old, new in pairwise(cut) if old and old[0] in new]
    assert len(again) > 2
    assert any(len(old) > 1 and old == new[: len(old)] for old, new in again)


def unmarked_items(items):
    """The items without cache marks, which move to the newest ones."""
    text = msgspec.json.encode(items).replace(b',"cache_control":{"type":"ephemeral"}', b"")
    return msgspec.json.decode(text)
