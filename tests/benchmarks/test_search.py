"""The benchmark of search: its server for vectors speaks the protocol that a provider has."""

import asyncio
from array import array

import pytest

from benchmarks.search.endpoint import REFUSED, served, stats_of
from refold import embeddings
from refold.engine.settings import named_embedder

pytestmark = pytest.mark.skipif(
    embeddings.installed("auto") is None, reason="the extra `search` is not installed"
)


async def test_the_vectors_of_the_server_are_those_without_it_and_a_refusal_is_tried_again():
    texts = ["the ferry leaves", "", "a refund"]
    wanted = await embeddings.StaticEmbedder().embed(texts)
    with served("static") as address:
        model = named_embedder(f"static@{address}/v1")
        for _ in range(REFUSED):
            found = await model.embed(texts)
            assert [array("f", one).tolist() for one in found] == [
                pytest.approx(array("f", one).tolist(), abs=1e-6) for one in wanted
            ]
        await model.close()
        stats = await asyncio.to_thread(stats_of, address)
    assert stats["requests"] == REFUSED + 1
    assert (stats["refused"], stats["texts"]) == (1, 2 * REFUSED)
