"""Long conversations before providers at their strictest: they count otherwise than we do, refuse input and output that are
too long together, accept thinking only whole, and write summaries slowly.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import asynccontextmanager

import aiohttp
import pytest
from hypothesis import settings

from refold.core.presets import PRESETS
from refold.testing import Body, LateSummaries, Refuse, Say, ScriptedUpstream, say, sign
from tests.e2e.test_gateway_sdks import prose
from tests.formats import CALLS, KEYS, RESULTS, Plain, answer, question
from tests.gateway.conftest import served, target_for

WINDOW, OUTPUT = 6_000, 400
is_thorough = settings.default.max_examples > 100
TURNS, FEWER = (60, 40) if is_thorough else (40, 30)
"""Enough for two summaries and for one. A client sends all of its history each time, so twice the turns cost four times as much."""
FACTORS = (0.6, 1.0, 1.4, 1.9)
ALL = tuple(PRESETS)
ALLOWED = {"compaction_allow_system_summary": True}
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "anthropic": "/v1/messages"}
OUTPUTS = {"chat": "max_tokens", "responses": "max_output_tokens", "anthropic": "max_tokens"}
HEADERS = {"anthropic-version": "2023-06-01", "x-refold-conversation": "ships"}
LATE_AT_MOST = {("refold", 1.9): 1}
"""Requests that a summary may take and still come in time, where they are fewer than two. `refold` begins at 80 % of the fold
point, and a request adds up to 9 % of it here: one is sure to come between the first that passes the threshold and the fold."""
GOAL = "Port the ferry timetable to version 7 and never touch the ledger."
SUMMARY = f"## Goal\n{GOAL}\n## Progress\n### Done\nThe first files were read, and their steps were answered."
every_preset = pytest.mark.parametrize("preset", ALL)


def format_for(preset: str, factor: float) -> str:
    """Another format for each pair: every preset meets all three, and so does every factor."""
    return tuple(PATHS)[(ALL.index(preset) + FACTORS.index(factor)) % 3]


PAIRS = [
    pytest.param(preset, factor, marks=() if (at + place) % 2 == 0 else pytest.mark.slow)
    for at, preset in enumerate(ALL)
    for place, factor in enumerate(FACTORS)
]
"""Each preset with two factors in two formats, each factor with three presets; the other pairs are slow."""


def asked(turn: int) -> str:
    return GOAL if not turn else f"Step {turn}: {prose(turn, 20)}"


def loop(name: str, turn: int, *, thinks: bool = False) -> list[Plain]:
    """A tool call and its result."""
    call = CALLS[name](f"read_{turn}", path=f"src/f{turn}.py")
    if thinks:
        thought = f"The file of step {turn} will tell. {prose(turn, 10)}"
        block = {"type": "thinking", "thinking": thought, "signature": sign(thought)}
        call = {**call, "content": [block, *call["content"]]}  # type: ignore[misc]
    return [call, RESULTS[name](f"read_{turn}", prose(turn, 90))]


class Client:
    """A client that sends its whole history with every request."""

    def __init__(self, url: str, name: str, session: aiohttp.ClientSession, **fields: object) -> None:
        self.url, self.name, self.session, self.fields = f"{url}{PATHS[name]}", name, session, fields
        self.history: list[Plain] = []
        self.actions = Counter[str]()
        self.authors = Counter[str]()
        self.sizes: list[int] = []
        """The prompts as the provider counts them."""

    async def ask(self) -> None:
        fields = {"model": "some-model", OUTPUTS[self.name]: OUTPUT, **self.fields}
        body = json.dumps({**fields, KEYS[self.name]: self.history}).encode()
        async with self.session.post(self.url, data=body, headers=HEADERS) as reply:
            answered = await reply.read()
            assert reply.status == 200, answered
        usage = json.loads(answered)["usage"]
        cached = [usage.get(f"cache_{kind}_input_tokens", 0) for kind in ("read", "creation")]
        self.sizes.append(usage.get("prompt_tokens") or usage["input_tokens"] + sum(cached))
        self.actions[reply.headers["x-refold-action"]] += 1
        if reply.headers.get("x-refold-changed") == "summarise":
            self.actions["summarised"] += 1
            self.authors[reply.headers["x-refold-summary"]] += 1

    async def talk(self, turns: range, *, thinks: bool = False) -> None:
        """Turns of two requests each: one is answered with a tool call, the next with a text."""
        for turn in turns:
            self.history.append(question(asked(turn)))
            await self.ask()
            self.history += loop(self.name, turn, thinks=thinks)
            await self.ask()
            self.history.append(answer(f"Done: {prose(turn, 20)}"))


@asynccontextmanager
async def before(name: str, preset: str, *, turns: int = 2, fields: Plain | None = None, **more: object):
    """A client, a gateway and a provider; another model writes summaries in so many requests."""
    script = LateSummaries(turns, writer="small", summary=SUMMARY, otherwise="Fine.", patience_s=0.02)
    async with (
        ScriptedUpstream(otherwise=script) as writer,
        ScriptedUpstream(otherwise=script, window=WINDOW, **more) as provider,
        served(
            provider,
            window=WINDOW,
            compaction_preset=preset,
            summariser_models=[f"small@{writer.url}/v1"],
            **ALLOWED,
        ) as gate,
        aiohttp.ClientSession() as session,
    ):
        yield Client(gate.url, name, session, **(fields or {})), provider, writer


@pytest.mark.feature("C3", "N4", "X6")
@pytest.mark.parametrize(("preset", "factor"), PAIRS)
async def test_a_provider_that_counts_otherwise_refuses_nothing_and_its_summaries_come_in_time(
    preset, factor
):
    name = format_for(preset, factor)
    late = LATE_AT_MOST.get((preset, factor), 2)
    async with before(name, preset, turns=late, count_factor=factor) as (client, provider, writer):
        await client.talk(range(TURNS if factor >= 1 else 60))  # it takes longer to fill what counts little

    assert all(isinstance(one, Say) for one in provider.answered)
    if preset in ("refold", "opal", "lis"):  # a count that is too high would fold too early
        assert 0.7 * WINDOW < max(client.sizes) <= WINDOW - OUTPUT
    assert client.actions["summarised"] >= 2
    assert set(client.authors) == {"model small"}  # asked early enough, and never bridged
    assert len(writer.requests) >= client.actions["summarised"]
    assert GOAL in json.dumps(provider.requests[-1].json)


@pytest.mark.feature("O12")
@pytest.mark.parametrize("factor", [1.4, 1.9])
@every_preset
async def test_a_first_request_that_is_too_long_for_the_provider_is_made_smaller(preset, factor):
    """Nothing is known of the provider's count yet: our own says that it fits."""
    name = format_for(preset, factor)
    async with before(name, preset, count_factor=factor) as (client, provider, _):
        for turn in range(14):
            client.history += [question(asked(turn)), *loop(name, turn), answer("Done.")]
        client.history.append(question("And now?"))
        await client.ask()
        refused = [at for at, one in enumerate(provider.answered) if isinstance(one, Body)]
        client.history.append(answer("Fine."))
        await client.talk(range(20, FEWER))

    assert 1 <= len(refused) <= 2
    assert client.actions["recovered"] == 1
    assert [one for one in provider.answered[len(refused) :] if not isinstance(one, Say)] == []


@pytest.mark.feature("L13", "N7")
@every_preset
@pytest.mark.parametrize("factor", [1.9, pytest.param(0.6, marks=pytest.mark.slow)])
async def test_thinking_stays_whole_in_every_tool_loop(preset, factor):
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 200}}
    async with before("anthropic", preset, count_factor=factor, fields=thinking) as (client, provider, _):
        await client.talk(range(FEWER), thinks=True)

    assert all(isinstance(one, Say) for one in provider.answered)
    assert client.actions["summarised"] >= 1


@pytest.mark.feature("N4")
@pytest.mark.parametrize(
    "turns", [20, *(pytest.param(turns, marks=pytest.mark.slow) for turns in (0, 5, 40))]
)
@every_preset
async def test_a_slow_summary_never_stops_a_conversation(preset, turns):
    name = format_for(preset, 1.0)
    async with before(name, preset, turns=turns, count_factor=1.4) as (client, provider, writer):
        await client.talk(range(TURNS))

    assert all(isinstance(one, Say) for one in provider.answered)
    assert writer.requests
    assert any(b"their steps were answered" in one.body for one in provider.requests)


@every_preset
async def test_the_two_sides_stay_in_turn_for_the_chat_templates_that_want_it(preset):
    async with (
        ScriptedUpstream(otherwise=say("Fine."), window=WINDOW, alternates=True) as provider,
        served(
            provider,
            targets=[target_for(provider, window=WINDOW, alternates=True)],
            summariser_enabled=False,
            compaction_preset=preset,
            **ALLOWED,
        ) as gate,
        aiohttp.ClientSession() as session,
    ):
        client = Client(gate.url, "chat", session)
        await client.talk(range(30))
        engine = (await gate.gateway.host("local")).engine
        (call, *_) = (await engine.store.calls("local", "ships"))[-1:]
        rebuilt = await (await engine.conversation("ships")).window_of(call)

    assert all(isinstance(one, Say) for one in provider.answered)
    assert client.actions["summarised"] >= 1
    assert rebuilt["messages"] == json.loads(provider.requests[-1].body)["messages"]


async def test_a_fallback_gets_the_two_sides_in_turn():
    async with (
        ScriptedUpstream(otherwise=say("Fine."), window=WINDOW, alternates=True) as strict,
        ScriptedUpstream(otherwise=Refuse(503), window=WINDOW) as busy,
        served(
            busy,
            targets=[
                target_for(busy, window=WINDOW, fallback=("strict",)),
                target_for(strict, name="strict", alternates=True),
            ],
            summariser_enabled=False,
            compaction_preset="opal",
        ) as gate,
        aiohttp.ClientSession() as session,
    ):
        client = Client(gate.url, "chat", session)
        await client.talk(range(30))

    assert all(isinstance(one, Say) for one in strict.answered)
    assert client.actions["summarised"] >= 1
