"""A conversation that is served by two gateways, or asked again, stays one branch."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import msgspec
import pytest

from refold.model.tokens import Usage
from refold.stores.memory import MemoryStore
from refold.stores.sqlite.store import SqliteStore
from refold.testing import Received, Say, ScriptedUpstream, say
from tests.gateway.conftest import served

OWNER = "local"


def history(turns: int) -> list[dict[str, str]]:
    """A question, and so many answers, each with the next question."""
    said = [{"role": "user", "content": "question 0"}]
    for turn in range(turns):
        said += [
            {"role": "assistant", "content": f"answer {turn}"},
            {"role": "user", "content": f"question {turn + 1}"},
        ]
    return said


async def ask(gate, messages, **headers) -> dict[str, str]:
    body = msgspec.json.encode({"model": "gpt-5", "messages": messages})
    status, told, _ = await gate.post("/v1/chat/completions", body, **headers)
    assert status == 200
    return told


async def branches(store) -> list[list[str]]:
    """What every branch of every conversation holds."""
    outlines = [await store.outline(OWNER, listed.id) for listed in await store.conversations(OWNER)]
    heads = [head for outline in outlines for head in outline.heads]
    return [
        [msgspec.json.decode(one.body)["content"] for one in await store.messages(head)] for head in heads
    ]


@pytest.fixture(params=["memory", "sqlite"])
async def two(request, tmp_path):
    """Two gateways on one store, as two programs have it: each with a connection of its own, and a memory of its own."""
    async with ScriptedUpstream(otherwise="Fine.") as upstream, AsyncExitStack() as stack:
        one = MemoryStore() if request.param == "memory" else await SqliteStore.open(tmp_path / "c.db")
        other = one if request.param == "memory" else await SqliteStore.open(tmp_path / "c.db")
        stack.push_async_callback(one.close)
        stack.push_async_callback(other.close)
        gates = [
            await stack.enter_async_context(
                served(upstream, store=store, window=8_000, summariser_enabled=False, id_prefix=name)
            )
            for store, name in ((one, "a"), (other, "b"))
        ]
        yield gates


@pytest.mark.parametrize("name", [{}, {"x_refold_conversation": "talk"}], ids=["unnamed", "named"])
async def test_a_late_retry_at_another_gateway_does_not_split_a_conversation(two, name):
    a, b = two
    await ask(a, history(0), **name)
    await ask(b, history(1), **name)
    await ask(a, history(0), **name)
    for turn in range(2, 8):
        await ask((a, b)[turn % 2], history(turn), **name)

    assert await branches(a.store) == [[one["content"] for one in history(7)]]


async def test_an_earlier_answer_is_asked_for_again_without_a_branch_of_its_own(two):
    a, _ = two
    for turn in range(4):
        last = await ask(a, history(turn))
    again = await ask(a, history(2))
    on = await ask(a, history(4))

    assert again["x-refold-branch"] == last["x-refold-branch"] == on["x-refold-branch"]
    assert await branches(a.store) == [[one["content"] for one in history(4)]]
    assert len(await a.store.calls(OWNER, again["x-refold-conversation"])) == 6


async def test_what_is_said_differently_after_that_is_a_branch_of_its_own(two):
    a, _ = two
    for turn in range(4):
        await ask(a, history(turn))
    await ask(a, history(2))
    other = [
        *history(2),
        {"role": "assistant", "content": "another answer"},
        {"role": "user", "content": "so?"},
    ]
    await ask(a, other)

    assert sorted(await branches(a.store), key=len) == [
        [one["content"] for one in history(3)],
        [one["content"] for one in other],
    ]


async def test_a_folded_conversation_is_asked_again_in_the_same_branch(upstream):
    """What was shown then is shown again, also where it was folded before and after."""
    async with served(upstream, window=2_000, summariser_enabled=False) as gate:
        said = [{"role": "user", "content": "Begin. " + "some words to fill the room " * 20}]
        for turn in range(20):
            await ask(gate, said)
            said += [
                {"role": "assistant", "content": f"answer {turn} " + "and words " * 40},
                {"role": "user", "content": f"question {turn} " + "and words " * 40},
            ]
        told = await ask(gate, said)
        again = await ask(gate, said[:-4])

        assert again["x-refold-conversation"] == told["x-refold-conversation"]
        sent = upstream.requests[-1]
        assert sent.text.startswith(said[-5]["content"][:12])


async def test_both_gateways_at_the_same_time_still_make_one_branch(two):
    a, b = two
    for turn in range(6):
        await asyncio.gather(ask(a, history(turn)), ask(b, history(turn)))
        await ask((a, b)[turn % 2], history(max(0, turn - 2)))

    assert await branches(a.store) == [[one["content"] for one in history(5)]]


@pytest.mark.parametrize("preset", ["refold", "lis", "opal", "llms", "librechat"])
async def test_a_late_retry_finds_its_branch_although_the_provider_counts_more_since(preset):
    """By the count of today the earlier window is above the fold point; the provider has answered it."""
    asked = 0

    def counting(received: Received) -> Say:
        nonlocal asked
        asked += 1
        return say("Fine.", usage=Usage(input=len(received.body) * (5 if asked < 8 else 8) // 25, output=5))

    async with (
        ScriptedUpstream(otherwise=counting) as upstream,
        served(upstream, window=3_000, summariser_enabled=False, compaction_preset=preset) as gate,
    ):
        said = [{"role": "user", "content": "Begin. " + "some words to fill the room " * 40}]
        for turn in range(10):
            told = await ask(gate, said)
            said += [
                {"role": "assistant", "content": f"answer {turn} " + "and words " * 40},
                {"role": "user", "content": f"question {turn} " + "and words " * 40},
            ]
        for size in range(1, len(said) - 2, 2):
            again = await ask(gate, said[:size])
            assert again["x-refold-branch"] == told["x-refold-branch"]
        on = await ask(gate, said)

        assert on["x-refold-branch"] == told["x-refold-branch"]
        assert await branches(gate.store) == [[one["content"] for one in said]]


async def answered_above_the_window(gate) -> tuple[list[dict[str, str]], dict[str, str]]:
    """Talk until the provider has answered a request that is above the window by its own count, and then went on."""
    said = [{"role": "user", "content": "Begin. " + "some words to fill the room " * 40}]
    told: dict[str, str] = {}
    for turn in range(10):
        told = await ask(gate, said)
        said += [
            {"role": "assistant", "content": f"answer {turn} " + "and words " * 40},
            {"role": "user", "content": f"question {turn} " + "and words " * 40},
        ]
    calls = await gate.store.calls(OWNER, told["x-refold-conversation"])
    assert max(call.usage.input for call in calls) > 3_000
    return said, told


@pytest.fixture(params=["refold", "lis"])
async def counting_more(request):
    """A gateway with a window of 3,000 tokens before a provider with a larger one, which counts more from the eighth call on."""
    asked = 0

    def counting(received: Received) -> Say:
        nonlocal asked
        asked += 1
        return say("Fine.", usage=Usage(input=len(received.body) * (10 if asked < 8 else 19) // 42, output=5))

    async with (
        ScriptedUpstream(otherwise=counting) as upstream,
        served(upstream, window=3_000, summariser_enabled=False, compaction_preset=request.param) as gate,
    ):
        yield gate


async def test_a_late_retry_of_what_was_answered_above_the_window_makes_no_branch(counting_more):
    """The window that is set is smaller than the provider's own, which answered the request and answers it again."""
    said, told = await answered_above_the_window(counting_more)
    for size in range(1, len(said) - 2, 2):
        again = await ask(counting_more, said[:size])
        assert again["x-refold-branch"] == told["x-refold-branch"]
    on = await ask(counting_more, said)

    assert on["x-refold-branch"] == told["x-refold-branch"]
    assert await branches(counting_more.store) == [[one["content"] for one in said]]


async def test_a_late_retry_with_a_smaller_window_is_folded_in_a_branch_of_its_own(counting_more):
    said, told = await answered_above_the_window(counting_more)
    again = await ask(counting_more, said[:15], x_refold_window="2000")

    assert again["x-refold-branch"] != told["x-refold-branch"]
    assert again["x-refold-action"] == "folded"


# Responses: a reasoning item has no identity, and stands between a question and its answer


def reasoned(turns: int, thought: str = "t") -> list[dict[str, object]]:
    """A question, and so many answers with their reasoning, each with the next question."""
    said: list[dict[str, object]] = [{"role": "user", "content": "question 0"}]
    for turn in range(turns):
        said += [
            {"type": "reasoning", "id": f"rs_{thought}{turn}", "summary": [], "encrypted_content": thought},
            {"role": "assistant", "content": f"answer {turn}"},
            {"role": "user", "content": f"question {turn + 1}"},
        ]
    return said


async def ask_responses(gate, items, model: str = "gpt-5") -> dict[str, str]:
    body = msgspec.json.encode({"model": model, "input": items})
    status, told, _ = await gate.post("/v1/responses", body)
    assert (status, told["x-refold-action"]) == (200, "passed")
    return told


async def stored_items(store) -> list[list[str]]:
    """The text or the id of every item, by branch, the shortest first."""
    outlines = [await store.outline(OWNER, listed.id) for listed in await store.conversations(OWNER)]
    items = [
        [msgspec.json.decode(one.body) for one in await store.messages(head)]
        for outline in outlines
        for head in outline.heads
    ]
    return sorted(([one.get("content") or one["id"] for one in branch] for branch in items), key=len)


def told_of(items) -> list[object]:
    return [one.get("content") or one["id"] for one in items]


async def test_a_conversation_with_reasoning_goes_on_with_another_model_and_at_another_gateway(two):
    for turn in range(10):
        await ask_responses(two[turn // 2 % 2], reasoned(turn), ("gpt-5", "gpt-5-mini", "gpt-4o")[turn % 3])

    assert await stored_items(two[0].store) == [told_of(reasoned(9))]


async def test_a_repeated_request_with_reasoning_makes_no_branch(two):
    a, b = two
    for turn in range(4):
        await ask_responses(a, reasoned(turn))
    for gate in two:
        await ask_responses(gate, reasoned(2), "gpt-5-mini")
    await asyncio.gather(ask_responses(a, reasoned(4)), ask_responses(b, reasoned(4)))

    assert await stored_items(a.store) == [told_of(reasoned(4))]


async def test_an_answer_that_was_made_again_keeps_its_own_reasoning(two):
    """The fork holds what the client sent: reasoning of the first answer does not belong to the second."""
    for turn in range(4):
        await ask_responses(two[0], reasoned(turn))
    again = [
        *reasoned(2),
        {"type": "reasoning", "id": "rs_again", "summary": [], "encrypted_content": "again"},
        {"role": "assistant", "content": "another answer"},
        {"role": "user", "content": "so?"},
    ]
    for gate in two:
        await ask_responses(gate, again)
    longer = [*again, {"role": "assistant", "content": "Well."}, {"role": "user", "content": "and so?"}]
    await ask_responses(two[1], longer)

    assert await stored_items(two[0].store) == [told_of(reasoned(3)), told_of(longer)]
