"""The scripted provider gives vectors, as the official client asks for them."""

from __future__ import annotations

import openai
import pytest

from refold.testing import ScriptedUpstream, rate_limited
from refold.testing.provider import SIZE


def likeness(one: list[float], two: list[float]) -> float:
    return sum(a * b for a, b in zip(one, two, strict=True))


async def vectors(gpt, texts, **more) -> list[list[float]]:
    return [one.embedding for one in (await gpt.embeddings.create(model="m", input=texts, **more)).data]


@pytest.mark.parametrize("more", [{}, {"encoding_format": "float"}], ids=["base64", "float"])
async def test_texts_that_share_words_are_near_one_another(gpt, more):
    cat, cats, ship = await vectors(gpt, ["a black cat", "the black cat sleeps", "ships at sea"], **more)
    assert len(cat) == SIZE
    assert likeness(cat, cats) > likeness(cat, ship)
    assert likeness(cat, cat) == pytest.approx(1.0)
    assert [cat] == await vectors(gpt, "a black cat", **more)


async def test_what_was_asked_is_kept_and_faults_come_in_their_turn(server, gpt):
    server.script(rate_limited(), "a reply")
    with pytest.raises(openai.RateLimitError):
        await vectors(gpt, ["a"])
    assert len(await vectors(gpt, ["a"])) == 1
    assert [one.path for one in server.requests] == ["/v1/embeddings"] * 2
    assert server.answers == ["a reply"], "what is to be said is for whoever asks for a reply"


async def test_a_wrong_key_and_an_empty_text_are_refused(gpt):
    with pytest.raises(openai.BadRequestError):
        await vectors(gpt, ["a", ""])
    async with ScriptedUpstream(key="right") as server:
        client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0)
        with pytest.raises(openai.AuthenticationError):
            await vectors(client, ["a"])
        await client.close()
