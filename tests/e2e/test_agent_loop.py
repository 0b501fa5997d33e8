"""The example agent with OpenAI's own client, against a provider that counts, checks and refuses as a real one does."""

from __future__ import annotations

import openai
import pytest

from examples import agent_loop, agent_loop_sync
from refold.core.measure import count_fixed, count_messages
from refold.core.verify import verify_window
from refold.model.dialect import CHAT
from refold.model.errors import RecoverySpent
from refold.model.window import Window
from refold.tokens import counter_for
from refold.wire import Request, decode_request
from tests.provider import Answer, Provider, Received, chat_overflow, chat_reply

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
    """Reads one or two modules at a time, then answers. Its window is `limit`, whatever the client thinks."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.called = 0
        self.requests: list[Request] = []
        self.sizes: list[int] = []

    def __call__(self, received: Received) -> Answer:
        request = decode_request(received.body, CHAT)
        size = _size(request)
        self.requests.append(request)
        self.sizes.append(size)
        if size > self.limit:
            return chat_overflow(self.limit, size)
        if self.called >= CALLS:
            return chat_reply("offset_12_3 is 12003.", prompt=size, completion=9)
        many = 2 if self.called % 5 == 0 else 1
        calls = [
            (f"call_{number}", "read_file", {"path": f"src/module_{number}.py"})
            for number in range(self.called, self.called + many)
        ]
        self.called += many
        return chat_reply(None, calls, prompt=size, completion=20)


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


def check(model: Model) -> None:
    """What must be true of every request that left, refused or not."""
    for request in model.requests:
        assert verify_window(Window(request.fixed, request.messages), as_request=True) == ()
        assert any(GOAL in message.text for message in request.messages)
        assert [tool.name for tool in request.tools] == ["list_files", "read_file"]


@both
async def test_sixty_calls_in_a_small_window(run):
    model = Model(limit=8_000)
    with Provider(model) as provider:
        said = await run(provider.url, window=8_000, max_output=500)

    assert said == "offset_12_3 is 12003."
    assert model.called >= CALLS
    assert len(provider.received) > 50
    assert {answer.status for answer in provider.answered} == {200}
    assert max(model.sizes) <= 7_500
    check(model)


@both
async def test_a_provider_with_a_smaller_window_than_thought_is_believed(run):
    model = Model(limit=5_000)
    with Provider(model) as provider:
        said = await run(provider.url, window=8_000, max_output=500)

    assert said == "offset_12_3 is 12003."
    refused = [at for at, answer in enumerate(provider.answered) if answer.status == 400]
    assert len(refused) == 1
    assert model.sizes[refused[0] + 1] < model.sizes[refused[0]]
    assert max(model.sizes[refused[0] + 1 :]) <= 5_000
    check(model)


@both
async def test_a_provider_that_always_refuses_is_asked_three_times(run):
    with (
        Provider(lambda received: chat_overflow(100, _size(decode_request(received.body, CHAT)))) as provider,
        pytest.raises(RecoverySpent),
    ):
        await run(provider.url, window=8_000)

    sizes = [len(received.body) for received in provider.received]
    assert len(sizes) <= 3
    assert sizes == sorted(set(sizes), reverse=True)


@both
async def test_a_tool_that_fails_is_for_the_model_to_read(run):
    def script(received: Received) -> Answer:
        last = received.fields["messages"][-1]
        if last["role"] == "user":
            return chat_reply(None, [("call_1", "read_file", {"path": "nowhere"}), ("call_2", "nothing", {})])
        return chat_reply(last["content"])

    with Provider(script) as provider:
        assert await run(provider.url) == "error: KeyError('nothing')"
    assert provider.received[-1].fields["messages"][-2]["content"].startswith("error: ValueError(")
