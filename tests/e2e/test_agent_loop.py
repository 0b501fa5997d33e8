"""The example agent with OpenAI's own client, against a provider that counts, checks and refuses as a real one does."""

from __future__ import annotations

import subprocess
import sys

import openai
import pytest

from examples import agent_loop, agent_loop_sync
from refold.core.measure import count_fixed, count_messages
from refold.model.errors import RecoverySpent
from refold.testing import Body, Received, Say, ScriptedUpstream, call, overflow, say
from refold.tokens import counter_for
from refold.wire import Request

MODEL = "gpt-4o"
GOAL = "Find the module that sets the tide offset of Vik, and tell me its value. Never touch data/north.toml."
CALLS = 64
COUNTER = counter_for(MODEL)


def read_file(path: str) -> str:
    """A module of some length; every seventh is very long."""
    number = int(path.removeprefix("src/module_").removesuffix(".py"))
    lines = 400 if number % 7 == 3 else 20 + 5 * (number % 9)
    return "".join(
        f"offset_{number}_{line} = {number * 1000 + line}  # harbour {line}\n" for line in range(lines)
    )


class Model:
    """Reads one or two modules at a time, then answers."""

    def __init__(self) -> None:
        self.called = 0

    def __call__(self, received: Received) -> Say:
        if self.called >= CALLS:
            return say("offset_12_3 is 12003.")
        many = 2 if self.called % 5 == 0 else 1
        paths = [f"src/module_{number}.py" for number in range(self.called, self.called + many)]
        self.called += many
        return say(*(call("read_file", {"path": path}) for path in paths))


def _size(request: Request) -> int:
    fixed = count_fixed(request.fixed, COUNTER).total.tokens
    return fixed + count_messages(request.messages, COUNTER).tokens


async def run_async(url: str, **settings: int) -> str:
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        return await agent_loop.run_agent(client, MODEL, GOAL, {"read_file": read_file}, **settings)


async def run_sync(url: str, **settings: int) -> str:
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        return agent_loop_sync.run_agent(client, MODEL, GOAL, {"read_file": read_file}, **settings)


both = pytest.mark.parametrize("run", [run_async, run_sync])


def sizes_of(server: ScriptedUpstream) -> list[int]:
    return [_size(received.request) for received in server.requests]


def check(server: ScriptedUpstream) -> None:
    """What must be true of every request that left, refused or not; the server itself refuses what is malformed."""
    for received in server.requests:
        assert any(GOAL in message.text for message in received.messages)
        assert [tool.name for tool in received.request.tools] == ["list_files", "read_file"]


def refused(server: ScriptedUpstream) -> list[int]:
    return [at for at, answer in enumerate(server.answered) if not isinstance(answer, Say)]


@both
async def test_sixty_calls_in_a_small_window(run):
    with ScriptedUpstream(otherwise=(model := Model()), window=8_000, counter=COUNTER) as server:
        said = await run(f"{server.url}/v1", window=8_000, max_output=500)

    assert said == "offset_12_3 is 12003."
    assert model.called >= CALLS
    assert len(server.requests) > 50
    assert refused(server) == []
    assert max(sizes_of(server)) <= 7_500
    check(server)


@both
async def test_a_provider_with_a_smaller_window_than_thought_is_believed(run):
    with ScriptedUpstream(otherwise=Model(), window=5_000, counter=COUNTER) as server:
        said = await run(f"{server.url}/v1", window=8_000, max_output=500)

    assert said == "offset_12_3 is 12003."
    (at,) = refused(server)
    sizes = sizes_of(server)
    assert isinstance(server.answered[at], Body)
    assert sizes[at + 1] < sizes[at]
    assert max(sizes[at + 1 :]) <= 5_000
    check(server)


@both
async def test_a_provider_that_always_refuses_is_asked_three_times(run):
    def too_long(received: Received) -> Body | Say:
        return overflow("openai", window=100, prompt=_size(received.request))

    with ScriptedUpstream(otherwise=too_long) as server, pytest.raises(RecoverySpent):
        await run(f"{server.url}/v1", window=8_000)

    sizes = [len(received.body) for received in server.requests]
    assert len(sizes) <= 3
    assert sizes == sorted(set(sizes), reverse=True)


@both
async def test_a_refusal_for_another_reason_is_the_provider_s_own_error(run):
    refused = Body(400, b'{"error":{"message":"Unknown parameter.","type":"invalid_request_error"}}')

    with (
        ScriptedUpstream(refused) as server,
        pytest.raises(openai.BadRequestError, match="Unknown parameter"),
    ):
        await run(f"{server.url}/v1")

    assert len(server.requests) == 1


@both
async def test_a_tool_that_fails_is_for_the_model_to_read(run):
    def results(received: Received) -> str:
        return received.json["messages"][-1]["content"]

    first = say(call("read_file", {"path": "nowhere"}), call("nothing"))
    with ScriptedUpstream(first, results) as server:
        assert await run(f"{server.url}/v1") == "error: KeyError('nothing')"
    assert server.requests[-1].json["messages"][-2]["content"].startswith("error: ValueError(")


@pytest.mark.parametrize("name", ["agent_loop", "agent_loop_sync", "recall_loop"])
def test_without_a_model_and_a_question_an_example_says_how_it_is_used(name):
    ended = subprocess.run(
        [sys.executable, "-m", f"examples.{name}"], capture_output=True, text=True, check=False
    )

    assert ended.returncode == 1
    assert ended.stderr == f'usage: python -m examples.{name} MODEL "QUESTION"\n'
