"""Vectors from a provider over real HTTP: in the order of the texts, of length one, with the errors that every question has."""

from __future__ import annotations

import logging
from array import array
from contextlib import asynccontextmanager
from math import hypot

import pytest
from msgspec import structs

from refold.model.errors import ConfigError, RateLimited, UpstreamError, UpstreamUnavailable
from refold.testing import Body, Refuse, ScriptedUpstream, Slow, rate_limited
from refold.upstreams import Provider, Timeouts, open_embedder
from refold.upstreams.http import MAX_CHARACTERS
from tests.upstreams.questions import Waits


@asynccontextmanager
async def embedding(server, waits=None, **settings):
    provider = Provider("scripted", "m-1", base_url=f"{server.url}/v1")
    provider = structs.replace(provider, **settings)
    async with open_embedder(provider, environ={"KEY": "sk-1"}, pace=(waits or Waits()).pace()) as embedder:
        yield embedder


def numbers(vector: bytes) -> list[float]:
    return list(array("f", vector))


async def test_each_text_gets_its_vector_of_length_one():
    async with ScriptedUpstream(key="sk-1") as server, embedding(server, key_env="KEY") as embedder:
        cat, dog, again = await embedder.embed(["the cat", "a dog", "the cat"])
        assert await embedder.embed([]) == []
    assert cat == again != dog
    assert hypot(*numbers(cat)) == pytest.approx(1.0)
    (received,) = server.requests
    assert received.path == "/v1/embeddings"
    assert received.json == {"model": "m-1", "input": ["the cat", "a dog", "the cat"]}


async def test_vectors_that_come_out_of_order_and_of_any_length_are_put_right():
    told = [{"index": 1, "embedding": [0, 3]}, {"index": 0, "embedding": [3, 4]}]
    async with ScriptedUpstream(Body.of(200, {"data": told})) as server, embedding(server) as embedder:
        one, two = await embedder.embed(["a", "b"])
    assert numbers(one) == pytest.approx([0.6, 0.8])
    assert numbers(two) == [0.0, 1.0]


async def test_a_text_that_says_nothing_is_not_sent_and_a_long_one_only_its_beginning():
    async with ScriptedUpstream() as server, embedding(server) as embedder:
        empty, found, blank = await embedder.embed(["", "word " * 9_000, " \n"])
        assert await embedder.embed([" "]) == [b""]
    assert (empty, blank) == (b"", b"")
    assert found
    (received,) = server.requests
    assert [len(text) for text in received.json["input"]] == [MAX_CHARACTERS]


async def test_a_busy_provider_is_asked_again():
    waits = Waits()
    async with ScriptedUpstream(rate_limited(2)) as server, embedding(server, waits) as embedder:
        assert len(await embedder.embed(["a"])) == 1
    assert waits.waited == [2]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Refuse(401), UpstreamError),
        (rate_limited(999), RateLimited),
        (Body(200, b"<html>"), UpstreamError),
        (Body.of(200, {"data": [{"embedding": [0, 0]}]}), UpstreamError),
        (Body.of(200, {"data": []}), UpstreamError),
        (Slow("late", before_s=float("inf")), UpstreamUnavailable),
    ],
    ids=["key", "busy", "no JSON", "no direction", "too few", "late"],
)
async def test_whatever_is_no_vector_is_an_error_that_quotes_nothing(answer, error, caplog):
    caplog.set_level(logging.DEBUG)
    timeouts = Timeouts(first_byte_s=0.05 if isinstance(answer, Slow) else 30)
    async with (
        ScriptedUpstream(answer) as server,
        embedding(server, Waits(is_real=True), timeouts=timeouts) as embedder,
    ):
        with pytest.raises(error) as caught:
            await embedder.embed(["canaryword"])
    assert type(caught.value) is error
    assert "canaryword" not in f"{caught.value}{caplog.text}{embedder!r}"


async def test_the_name_tells_models_and_sizes_apart():
    async with (
        ScriptedUpstream() as server,
        embedding(server) as plain,
        embedding(server, parameters={"dimensions": 256}) as small,
    ):
        assert (plain.name, small.name) == ("scripted:m-1", "scripted:m-1:256")
        await small.embed(["a"])
    assert server.requests[0].json == {"model": "m-1", "input": ["a"], "dimensions": 256}


async def test_a_provider_that_gives_no_vectors_is_refused_before_it_is_asked():
    with pytest.raises(ConfigError, match="no vectors") as caught:
        async with open_embedder(Provider("anthropic", "claude"), environ={"ANTHROPIC_API_KEY": "sk-1"}):
            pass
    assert "openai" in caught.value.hint
