from __future__ import annotations

import asyncio

import openai
import pytest

from refold.testing import LateSummaries, ScriptedUpstream, rate_limited, say
from tests.testing.exchanges import ask

USER = [{"role": "user", "content": "hi"}]


async def texts(server, count):
    return [(await ask(server, "chat")).json["choices"][0]["message"]["content"] for _ in range(count)]


async def test_answers_come_in_their_order_and_then_the_other():
    async with ScriptedUpstream("one", say("two"), otherwise="more") as server:
        assert await texts(server, 4) == ["one", "two", "more", "more"]


async def test_answers_can_be_added_and_replaced_on_the_way(server):
    server.answers.extend(["one", "two"])
    assert await texts(server, 1) == ["one"]

    server.script("three", otherwise="four")
    server.answers.append("later")

    assert await texts(server, 3) == ["three", "later", "four"]


async def test_an_answer_can_be_a_function_of_the_request(server):
    server.script(otherwise=lambda received: f"{received.number}: {received.text}")

    assert await texts(server, 2) == ["1: hi", "2: hi"]


async def test_a_function_may_wait_for_something(server):
    gate = asyncio.Event()

    async def wait(_):
        await gate.wait()
        return rate_limited()

    server.answers.append(wait)
    asked = asyncio.create_task(ask(server, "chat"))
    gate.set()

    assert (await asked).status == 429


async def test_a_request_too_many_is_an_error_that_says_so_and_is_not_tried_again(server):
    server.answers.append("only one")
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=2) as client:
        await client.chat.completions.create(model="m", messages=USER)
        with pytest.raises(openai.APIStatusError, match="The script is over: it has no answer to request 2"):
            await client.chat.completions.create(model="m", messages=USER)

    assert len(server.requests) == 2


async def test_a_refused_request_uses_up_no_answer(server):
    server.answers.append("still here")

    refused = await ask(server, "chat", model="")

    assert refused.status == 400
    assert await texts(server, 1) == ["still here"]


def refuse_all(_):
    raise AssertionError("not what was expected")


async def run(error=None):
    async with ScriptedUpstream(refuse_all) as server:
        answered = await ask(server, "chat")
        assert (answered.status, answered.json["error"]["type"]) == (410, "script_failed")
        if error:
            raise error


async def test_what_a_function_raises_fails_the_test():
    with pytest.raises(AssertionError, match="not what was expected"):
        await run()


async def test_but_an_error_of_the_test_itself_comes_first():
    with pytest.raises(KeyError):
        await run(KeyError("first"))


def late(turns, **settings):
    return LateSummaries(turns, writer="small", summary="short", otherwise="Fine.", **settings)


@pytest.mark.parametrize("turns", [0, 1, 3])
async def test_a_summary_can_take_some_turns(turns):
    async with ScriptedUpstream(otherwise=late(turns, patience_s=60)) as server:
        asked = asyncio.create_task(ask(server, "chat", model="small"))
        for _ in range(turns):
            while not server.requests:  # noqa: ASYNC110  # a request arrives without an event
                await asyncio.sleep(0)
            assert not asked.done()
            assert (await ask(server, "chat")).json["choices"][0]["message"]["content"] == "Fine."
        assert (await asked).json["choices"][0]["message"]["content"] == "short"


async def test_a_summary_that_is_waited_for_takes_no_turn():
    async with ScriptedUpstream(otherwise=late(20, patience_s=0.01)) as server:
        assert (await ask(server, "chat", model="small")).json["choices"][0]["message"]["content"] == "short"
