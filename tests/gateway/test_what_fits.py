"""What fits passes through the gateway byte for byte, however large a single message is."""

from __future__ import annotations

import json
import random
import re
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.core.presets import PRESETS
from refold.testing import ScriptedUpstream
from tests.formats import KEYS, Plain, answer, question
from tests.gateway.conftest import served
from tests.test_what_fits import code, exchange

PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "anthropic": "/v1/messages"}
OUTPUT = {"chat": "max_tokens", "responses": "max_output_tokens", "anthropic": "max_tokens"}
every_format = pytest.mark.parametrize("name", KEYS)
every_preset = pytest.mark.parametrize("preset", PRESETS)


def body_of(name: str, messages: list[Plain], output: int = 1_000, **more: object) -> bytes:
    """A request as a client may write it: not as compact as we would."""
    fields = {"model": "some-model", OUTPUT[name]: output, KEYS[name]: messages, **more}
    return json.dumps(fields, indent=1, ensure_ascii=name == "responses").encode()


def served_plainly(upstream: ScriptedUpstream, window: int, **flags: object):
    """A gateway that asks for no summaries and sets no cache breakpoints."""
    wanted = {"summariser_enabled": False, "cache_ttl": "off", "compaction_allow_system_summary": True}
    return served(upstream, window=window, **wanted, **flags)


sizes = st.lists(
    st.tuples(st.floats(0, 1), st.lists(st.floats(0, 1), min_size=1, max_size=3)), min_size=1, max_size=3
)


@every_format
@every_preset
@given(turns=sizes)
@settings(max_examples=4)
async def test_below_every_threshold_the_clients_own_bytes_leave(name, preset, turns):
    messages: list[Plain] = []
    async with ScriptedUpstream(otherwise="Fine.") as upstream, served_plainly(upstream, 40_000) as gate:
        for number, (asks, shares) in enumerate(turns):
            texts = [code(int(share * 700), number) or "\t" for share in shares]
            messages += [
                question(f"{code(int(asks * 2_000), 90 + number)}\n  ? é"),
                *exchange(name, number, *texts),
            ]
            body = body_of(name, messages)
            status, told, _ = await gate.post(PATHS[name], body, x_refold_preset=preset)

            assert (status, told["x-refold-action"]) == (200, "passed")
            before, after = told["x-refold-tokens"].split("->")
            assert before == after
            assert upstream.requests[-1].body == body
            messages.append(answer("Fine."))


@every_format
@pytest.mark.parametrize("size", [9_400, 29_000])
async def test_one_large_message_leaves_as_it_came_and_so_does_the_next_request(name, size):
    async with ScriptedUpstream(otherwise="Fine.") as upstream, served_plainly(upstream, 64_000) as gate:
        messages = [question("Read it."), *exchange(name, 0, code(size))]
        for _ in range(2):
            body = body_of(name, messages)
            _, told, _ = await gate.post(PATHS[name], body)
            assert told["x-refold-action"] == "passed"
            assert upstream.requests[-1].body == body
            messages += [answer("Fine."), question("And now?")]


async def test_in_a_session_of_a_coding_agent_every_result_that_fits_is_seen():
    """Instructions of 29,000 tokens, and 32,000 for the reply: of a window of 75,000 about 13,000 are left."""
    tools = [
        {
            "name": f"tool_{n}",
            "description": code(1_400, n),
            "input_schema": {"type": "object", "properties": {}},
        }
        for n in range(12)
    ]
    instructions = {
        "system": [{"type": "text", "text": code(7_000, 50)}],
        "tools": tools,
        "thinking": {"type": "disabled"},
    }
    messages, plants = [question("Find the three numbers.")], []
    async with ScriptedUpstream(otherwise="Fine.") as upstream, served_plainly(upstream, 75_000) as gate:
        for number, size in enumerate((1_000, 900, 2_000, 2_500)):
            plants.append(f"the number is {48_151_623 + number}")
            half = code(size // 2, 60 + number)
            messages += exchange("anthropic", number, f"{half}# {plants[-1]}\n{half}")
            body = body_of("anthropic", messages, 32_000, **instructions)
            _, told, _ = await gate.post(PATHS["anthropic"], body)

            assert told["x-refold-action"] == "passed"
            assert upstream.requests[-1].body == body
            assert all(plant in body.decode() for plant in plants)


@every_format
async def test_what_does_not_fit_is_cut_with_its_lines_and_told(name):
    async with ScriptedUpstream(otherwise="Fine.") as upstream, served_plainly(upstream, 12_000) as gate:
        text = code(30_000)
        body = body_of(name, [question("Read it."), *exchange(name, 0, text)])
        _, told, _ = await gate.post(PATHS[name], body)

        assert told["x-refold-action"] == "reduced"
        (shown,) = [result.text for one in upstream.requests[-1].messages for result in one.results]
        lines = {*text.split("\n"), "[…]"}
        strange = [line for line in shown.split("\n") if line not in lines]
        assert 1 <= len(strange) <= 2
        assert all(line.startswith("[… #m") for line in strange)
        before, after = map(int, told["x-refold-tokens"].split("->"))
        assert before > 20_000
        assert 8_500 < after < 11_000


def drawn(alphabet: str, size: int, seed: int = 1) -> str:
    draw = random.Random(seed)
    return "".join(draw.choice(alphabet) for _ in range(size))


UNBROKEN = {
    "integers": json.dumps([number * 7_919 % 9_973 for number in range(9_000)], separators=(",", ":")),
    "fractions": ",".join(f"0.{number * 7_919 % 999_983:06}" for number in range(5_000)),
    "pipes": "|".join(f"stern{number}" for number in range(7_000)),
    "paths": ":".join(f"/usr/deck/{number}" for number in range(4_000)),
    "base64": drawn(string.ascii_letters + string.digits + "+/", 40_000),
    "hexadecimal": drawn("0123456789abcdef", 40_000),
    "encoded": "%20".join(f"mast{number}" for number in range(6_000)),
    "escaped": "\\u0e01\\u0e2d" * 4_000,
    "thai": drawn("กขคงจฉชซญดตถทนบปผพฟมยรลวสหอฮะาิีุูเแโไ", 40_000),
    "emoji": "\U0001f469\u200d\U0001f467" * 9_000,
    "drawing": f'<path d="{"".join(f"L{n},{n * 31 % 997}" for n in range(6_000))}"/>',
    "one letter": "x" * 40_000,
}
WHOLE = {
    "integers": ".*,",
    "fractions": ".*,",
    "pipes": r".*\|",
    "encoded": r"(mast\d+(%20)?)*",
    "escaped": r"(\\u[0-9a-f]{4})*",
    "emoji": "(\U0001f469\u200d\U0001f467)*",
}
"""What the beginning of a cut is made of: whole items, escapes and characters."""


@pytest.mark.parametrize("name", ["chat", "anthropic"])
@pytest.mark.parametrize("kind", UNBROKEN)
async def test_a_result_without_a_place_to_cut_is_cut_to_the_room_that_is_left(kind, name):
    text = UNBROKEN[kind]
    async with ScriptedUpstream(otherwise="Fine.") as upstream, served_plainly(upstream, 8_000) as gate:
        status, told, _ = await gate.post(
            PATHS[name], body_of(name, [question("Look."), *exchange(name, 0, text)])
        )
        (shown,) = upstream.requests[-1].messages[-1].results

    assert status == 200
    assert int(told["x-refold-tokens"].split("->")[1]) > 5_000
    beginning, end = re.split(r"\[… #m\d+ …\]", shown.text)
    assert text.startswith(beginning)
    assert text.endswith(end)
    assert min(len(beginning), len(end)) > 500
    assert re.fullmatch(WHOLE.get(kind, ".*"), beginning, re.DOTALL)


async def test_no_cut_goes_through_what_looks_like_a_secret():
    letters = string.ascii_letters + string.digits
    tokens = [
        f"eyJhbGciOiJIUzI1NiJ9.eyJ{drawn(letters, 700, seed)}.{drawn(letters, 43, seed)}"
        for seed in range(60)
    ]
    async with ScriptedUpstream(otherwise="Fine.") as upstream, served_plainly(upstream, 8_000) as gate:
        for shift in range(0, 700, 90):
            text = "x" * shift + "|" + "|".join(tokens)
            body = body_of("chat", [question("Look."), *exchange("chat", shift, text)])
            await gate.post(PATHS["chat"], body)
            shown = upstream.requests[-1].messages[-1].results[0].text

            assert "[… #m2 …]" in shown
            assert any(token in shown for token in tokens)
            assert [
                token
                for token in tokens
                if token not in shown and any(token[at : at + 40] in shown for at in range(40, 720, 20))
            ] == []


@every_format
@every_preset
async def test_a_newest_message_that_had_to_be_cut_is_told(name, preset):
    async with ScriptedUpstream(otherwise="Fine.") as upstream, served_plainly(upstream, 8_000) as gate:
        messages = [question("Read it."), *exchange(name, 0, code(200))]
        _, whole, _ = await gate.post(PATHS[name], body_of(name, messages), x_refold_preset=preset)
        messages += [answer("Fine."), question("And this one?"), *exchange(name, 1, code(20_000))]
        _, cut, _ = await gate.post(PATHS[name], body_of(name, messages), x_refold_preset=preset)
        messages += [answer("Fine."), question("Thanks.")]
        _, after, _ = await gate.post(PATHS[name], body_of(name, messages), x_refold_preset=preset)

    assert "x-refold-cut" not in whole
    handle, before, left = re.fullmatch(r"(#m\d+) (\d+)->(\d+)", cut["x-refold-cut"]).groups()
    assert int(before) > 8_000 > int(left)
    assert f"{handle}" in upstream.requests[1].body.decode("unicode_escape")
    assert "x-refold-cut" not in after
