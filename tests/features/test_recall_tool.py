"""N14: the gateway offers every model the recall tool and runs it, through the official SDKs."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from refold.model.tokens import Usage
from refold.testing import Say, ScriptedUpstream, say, think
from tests.gateway.conftest import served
from tests.gateway.recall_clients import CLIENTS, WIRES, forgetful, planted, question, word_of

WINDOW = 8_000
FILLER = (
    "The tide tables of the northern harbours list wind, depth and swell for every hour of the day. " * 12
)
THINKS: dict[str, dict[str, object]] = {
    "anthropic": {"max_tokens": 1_200, "thinking": {"type": "enabled", "budget_tokens": 1_024}},
    "responses": {"store": False, "include": ["reasoning.encrypted_content"]},
}
"""The fields with which a client gets thinking that it can send back."""


def thoughtful(received) -> Say:
    """The forgetful model, which thinks before every reply."""
    reply = forgetful(received)
    return say(think(f"Thought {received.number}."), *reply.parts)


async def talk(
    wire: str, *, stream: bool, turns: int, recalls: bool
) -> tuple[ScriptedUpstream, Usage, list[str]]:
    """A conversation in which a fact is planted in every tenth turn, and asked for much later. Without the tool the
    model is not asked. Returns the provider, the usage of all calls, and the words that were not answered.
    """
    model = forgetful if wire == "chat" else thoughtful
    more = THINKS.get(wire, {})
    async with (
        ScriptedUpstream(otherwise=model, window=WINDOW, strict=True) as provider,
        served(provider, window=WINDOW, summariser_enabled=False, compaction_recall_tool=recalls) as gate,
        CLIENTS[wire](gate, stream=stream, **more) as client,
    ):
        missing = list[str]()
        for turn in range(turns):
            fact = f" Mind: {planted(turn)}." if turn % 10 == 3 else ""
            await client.ask(f"Turn {turn}.{fact} {FILLER}")
            asked = turn - 20
            if recalls and asked % 10 == 3 and asked >= 0:
                text, calls = await client.ask(f"{question(asked)} Turn {turn}.")
                assert not calls
                if word_of(asked) not in text:
                    missing.append(word_of(asked))
        assert b'"recall"' not in msgspec.json.encode(client.history)
        assert not [one for one in provider.answered if not isinstance(one, Say)]
        (listed,) = await gate.store.conversations("local")
        assert listed.compactions >= 1
        assert listed.branches == 1
        assert rewrites(provider) == listed.compactions
    return provider, listed.usage, missing


async def check(wire: str, *, stream: bool, turns: int) -> Usage:
    provider, usage, missing = await talk(wire, stream=stream, turns=turns, recalls=True)
    assert missing == []
    asked = [one for one in provider.requests if "which code word" in one.text]
    assert len(asked) == 2 * len([turn for turn in range(turns - 20) if turn % 10 == 3])
    assert all([tool.name for tool in one.request.tools] == ["recall"] for one in provider.requests)
    folded = [one for one in provider.requests if b"recall opens a handle" in one.body]
    assert folded
    return usage


def rewrites(provider: ScriptedUpstream) -> int:
    """The number of requests that do not begin with all messages of the one before: their cached prefix is lost."""
    sent = [[message.bare() for message in one.messages] for one in provider.requests]
    return sum(later[: len(earlier)] != earlier for earlier, later in pairwise(sent))


async def check_cache(usage: Usage, wire: str, *, stream: bool, turns: int) -> None:
    """The share of the prompts that came from the provider's cache is that of the same conversation without the tool;
    the recalled texts themselves are new once.
    """
    _, without, _ = await talk(wire, stream=stream, turns=turns, recalls=False)
    shares = [one.cache_read / one.prompt for one in (usage, without)]
    assert shares[0] >= shares[1] - 0.03


@pytest.mark.feature("N14")
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("wire", WIRES)
async def test_facts_that_left_the_window_are_recalled_in_one_ordinary_reply(wire, stream):
    await check(wire, stream=stream, turns=34)


@pytest.mark.slow
@pytest.mark.feature("N14")
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("wire", WIRES)
async def test_a_hundred_turns_with_recalls_stay_valid_and_cached(wire, stream):
    usage = await check(wire, stream=stream, turns=100)
    await check_cache(usage, wire, stream=stream, turns=100)
