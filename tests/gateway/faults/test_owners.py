"""What is one owner's is nobody else's: not in a request, not in an answer, not on a page."""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter

import aiohttp
import msgspec
import pytest

from refold.stores.url import open_store
from refold.testing import ScriptedUpstream
from tests.gateway.conftest import served
from tests.gateway.faults.owners import OWNERS, WINDOW, Owner, Provider, owners_of

SEED = 20_261_118


async def live(owners: list[Owner], acts: int, seed: int) -> None:
    """So many acts, three at a time, in an order by chance."""
    chance, left = random.Random(seed), [acts]

    async def one(owner: Owner) -> None:
        while left[0] > 0:
            left[0] -= 1
            await owner.act(lambda: [other for other in owners if other is not owner])
            await asyncio.sleep(0 if chance.random() < 0.5 else 0.001)

    await asyncio.gather(*map(one, owners))


async def run_owners(url: str, acts: int) -> tuple[Provider, list[Owner]]:
    """Half of it before the gateway is started again, and half after it."""
    provider, store = Provider(), await open_store(url)
    async with (
        ScriptedUpstream(otherwise=provider, window=None) as upstream,
        aiohttp.ClientSession() as session,
    ):
        owners: list[Owner] = []
        for half in range(2):
            async with served(upstream, store=store, window=WINDOW, id_prefix=f"life{half}") as gate:
                owners = owners or await owners_of(store, gate.url, session, SEED)
                for owner in owners:
                    owner.url = gate.url
                listening = [asyncio.create_task(owner.listen()) for owner in owners]
                await live(owners, acts // 2, SEED + half)
                for task in listening:
                    task.cancel()
                await asyncio.gather(*listening, return_exceptions=True)
        findings = [await gate.gateway.host(name) for name in OWNERS]
        for host in findings:
            for one in await host.engine.conversations(limit=1_000):
                provider.mixed += [f"{one.id}: {found.what}" for found in await host.engine.examine(one.id)]
    await store.close()
    return provider, owners


def judge(provider: Provider, owners: list[Owner]) -> Counter[str]:
    wrong = provider.mixed + [one for owner in owners for one in owner.mixed]
    for owner in owners:
        wrong += owner.overheard([other for other in owners if other is not owner])
        assert b"compaction_end" in owner.heard
    assert wrong == []
    assert all(provider.asked[f"{name} summary"] for name in OWNERS)
    return sum((owner.acts for owner in owners), Counter())


@pytest.mark.feature("X18")
async def test_owners_who_say_the_same_never_meet(tmp_path):
    provider, owners = await run_owners(f"sqlite:///{tmp_path}/talks.db", 300)
    acts = judge(provider, owners)

    assert acts.total() == 300
    assert acts["_pry"] > 5


@pytest.mark.slow
@pytest.mark.feature("X18")
async def test_owners_who_say_the_same_never_meet_in_ten_thousand_acts(tmp_path, capsys):
    provider, owners = await run_owners(f"sqlite:///{tmp_path}/talks.db", 10_000)
    acts = judge(provider, owners)

    with capsys.disabled():
        requests = provider.asked.total()
        sys.stdout.write(
            f"\nOwners: {acts.total()} acts, {requests} requests at the provider, foreign words 0; {dict(acts)}\n"
        )


@pytest.mark.feature("X3")
async def test_a_conversation_without_a_name_never_joins_one_that_has_a_name(gate):
    """Though every byte of it is the same so far."""
    said = [{"role": ("user", "assistant")[at % 2], "content": f"Sentence {at}. " * 900} for at in range(5)]
    told = []
    for size, headers in (
        (1, {"x_refold_conversation": "work"}),
        (1, {}),
        (3, {}),
        (5, {"x_refold_conversation": "work"}),
    ):
        body = msgspec.json.encode({"model": "gpt-5", "messages": said[:size]})
        _, found, _ = await gate.post("/v1/chat/completions", body, **headers)
        told.append((found["x-refold-conversation"], found["x-refold-branch"]))
    named, unnamed, later, again = told

    assert named[0] == again[0] == "work"
    assert unnamed[0] == later[0] != "work"
    assert unnamed[1] == later[1] != named[1]
