"""OpenAI Agents SDK: runs with a session of Refold, before the scripted provider."""

from __future__ import annotations

from importlib.metadata import version

import pytest

pytest.importorskip("agents")

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from agents.memory import Session
from openai import AsyncOpenAI

import refold
from refold.integrations.openai_agents import RefoldSession
from refold.testing import ScriptedUpstream, call, echo, say
from tests.integrations.frameworks import session as script
from tests.integrations.frameworks.session import (
    SYSTEM,
    TURNS,
    WINDOW,
    check_session,
    question,
    run_page,
    served,
)

set_tracing_disabled(True)
read_note = function_tool(script.read_note)

pytestmark = pytest.mark.feature("N8")


def responses(server):
    return OpenAIResponsesModel(
        "scripted", AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0)
    )


def chat(server):
    client = AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0)
    return OpenAIChatCompletionsModel("scripted", client)


@pytest.fixture
def kept():
    with refold.sync.Engine("memory:", window=WINDOW, max_output=500) as engine:
        yield engine


@pytest.mark.parametrize(("name", "model"), [("responses", responses), ("chat", chat)])
async def test_a_session(kept, name, model):
    session = RefoldSession("harbour", kept)
    assert isinstance(session, Session)
    with served() as server:
        agent = Agent(
            "clerk", instructions=SYSTEM, model=model(server), tools=[read_note, session.recall_tool()]
        )
        for turn in range(TURNS + 1):
            await Runner.run(
                agent, question(turn), session=session, run_config=session.run_config(), hooks=session.hooks()
            )
        check_session(server, f"openai-agents ({name})", version("openai-agents"))
    items = await session.get_items(limit=10_000)
    assert len(items) == session.conversation.size >= 6 * (TURNS + 1)
    assert len(await session.get_items()) < len(items)
    assert len(kept.store.calls(kept.owner, "harbour", limit=1_000)) == 2 * (TURNS + 1), "usage is fed back"


async def test_a_long_loop_in_one_run_fits(kept):
    session = RefoldSession("harbour", kept)
    with ScriptedUpstream(
        *(
            say(call("read_note", {"number": 2 * at}), call("read_note", {"number": 2 * at + 1}))
            for at in range(40)
        ),
        "Done.",
        window=WINDOW,
        strict=True,
    ) as server:
        agent = Agent("clerk", instructions=SYSTEM, model=responses(server), tools=[read_note])
        result = await Runner.run(
            agent,
            "Read all.",
            session=session,
            run_config=session.run_config(),
            hooks=session.hooks(),
            max_turns=50,
        )
    assert result.final_output == "Done."
    assert len(server.requests) == len(server.answered) == 41


async def test_items_in_and_out(kept):
    session = RefoldSession("items", kept)
    items = [{"role": "user", "content": text} for text in ("One.", "Two.", "Three.")]
    assert await session.get_items() == []
    assert await session.pop_item() is None
    await session.add_items(items)

    assert await session.get_items() == items
    assert await session.get_items(limit=2) == items[1:]
    assert await session.pop_item() == items[2]
    assert await session.get_items() == items[:2]
    await session.add_items([{"role": "user", "content": "Drei."}])
    assert [one["content"] for one in await session.get_items()] == ["One.", "Two.", "Drei."]
    await session.clear_session()
    assert await session.get_items() == []
    assert kept.search("Two") == []


async def test_a_session_goes_on_after_a_restart(tmp_path):
    url = f"sqlite:///{tmp_path}/chats.db"
    with refold.sync.Engine(url, window=WINDOW) as engine:
        session = RefoldSession("harbour", engine)
        await session.add_items([{"role": "user", "content": "One."}, {"role": "user", "content": "Two."}])
        await session.pop_item()
    with refold.sync.Engine(url, window=WINDOW) as engine:
        assert [one["content"] for one in await RefoldSession("harbour", engine).get_items()] == ["One."]


async def test_a_streamed_run(kept):
    session = RefoldSession("harbour", kept)
    with ScriptedUpstream(otherwise=echo) as server:
        agent = Agent("clerk", model=responses(server))
        run = Runner.run_streamed(agent, "Hello.", session=session, run_config=session.run_config())
        async for _ in run.stream_events():
            pass
    assert run.final_output == "Hello."
    assert session.conversation.size == 2


async def test_the_guide(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with ScriptedUpstream(otherwise=echo) as server:
        found = run_page("openai-agents.md", model=responses(server), tools=[read_note])
        assert (await found["main"]()) == "What was it?"
