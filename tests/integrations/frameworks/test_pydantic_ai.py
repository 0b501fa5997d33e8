"""Pydantic AI: agents with the capability or the history processor, before the scripted provider."""

from __future__ import annotations

from importlib.metadata import version

import pytest

pytest.importorskip("pydantic_ai")

from pydantic_ai import Agent
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse, ThinkingPart
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

import refold
from refold.integrations.pydantic_ai import RefoldCapability, history_processor
from refold.testing import ScriptedUpstream, call, echo, overflow, say, think
from tests.integrations.frameworks.session import (
    SYSTEM,
    TURNS,
    WINDOW,
    check_session,
    question,
    read_note,
    run_page,
    served,
)

pytestmark = pytest.mark.feature("N8")


def openai_model(server):
    return OpenAIChatModel("scripted", provider=OpenAIProvider(base_url=f"{server.url}/v1", api_key="any"))


def anthropic_model(server):
    return AnthropicModel("scripted", provider=AnthropicProvider(base_url=server.url, api_key="any"))


@pytest.fixture
def kept():
    with refold.sync.Engine("memory:", window=WINDOW, max_output=500) as engine:
        yield engine


@pytest.mark.parametrize(("name", "model"), [("openai", openai_model), ("anthropic", anthropic_model)])
async def test_a_session(kept, name, model):
    with served() as server:
        agent = Agent(
            model(server),
            system_prompt=SYSTEM,
            tools=[read_note],
            capabilities=[RefoldCapability(kept)],
            model_settings={"max_tokens": 500},
        )
        history = []
        for turn in range(TURNS + 1):
            result = await agent.run(question(turn), message_history=history)
            history = result.all_messages()
        check_session(server, f"pydantic-ai ({name})", version("pydantic-ai-slim"))
    assert len(history) == 4 * (TURNS + 1), "the history of the run is not compacted"
    assert all(one.system.startswith(SYSTEM) for one in server.requests)
    (talk,) = kept.conversations()
    assert len(kept.store.calls(kept.owner, talk.id, limit=1_000)) == 2 * (TURNS + 1), "usage is fed back"


async def test_a_session_with_the_history_processor(kept):
    kept = refold.sync.Engine("memory:", window=WINDOW, max_output=500, limit=6_500)
    processor = history_processor(kept)
    with served() as server, kept:
        names = []

        async def recall(ctx, what: str) -> str:
            names.append(ctx.conversation_id)
            return refold.sync.answer_recall(kept.conversation(ctx.conversation_id), {"what": what})

        from pydantic_ai import RunContext

        recall.__annotations__["ctx"] = RunContext
        agent = Agent(
            openai_model(server),
            instructions=SYSTEM,
            tools=[read_note, recall],
            capabilities=[ProcessHistory(processor)],
        )
        history, sizes = [], []
        for turn in range(TURNS + 1):
            result = await agent.run(question(turn), message_history=history)
            history = result.all_messages()
            sizes.append(len(history))
        check_session(server, "pydantic-ai (history processor)", version("pydantic-ai-slim"))
        assert max(sizes) < 3 * TURNS
        assert len(kept.conversations()) == 1


async def test_a_replaced_history_goes_on_in_its_branch_after_a_restart(tmp_path):
    url, stored = f"sqlite:///{tmp_path}/chats.db", b"[]"
    with ScriptedUpstream(otherwise=echo, window=4_096, strict=True) as server:
        for part in range(4):
            with refold.sync.Engine(url, window=4_096, max_output=200, limit=3_000) as engine:
                agent = Agent(openai_model(server), capabilities=[ProcessHistory(history_processor(engine))])
                for turn in range(6):
                    history = ModelMessagesTypeAdapter.validate_json(stored)
                    asked = f"{part}.{turn} " + "The tide. " * 80
                    done = await agent.run(asked, message_history=history, conversation_id="harbour")
                    stored = ModelMessagesTypeAdapter.dump_json(done.all_messages())
                (talk,) = engine.conversations()
    assert (talk.messages, talk.branches) == (47, 1)
    assert len(server.requests) == len(server.answered) == 24
    assert len(history) < 40, "the history was replaced"


async def test_thinking_is_kept_with_its_signature(kept):
    thought = say(think("The notes will tell."), call("read_note", {"number": 1}))
    with ScriptedUpstream(thought, "Done.", thought, "Done.", window=WINDOW) as server:
        settings = {"anthropic_thinking": {"type": "enabled", "budget_tokens": 1_024}, "max_tokens": 2_000}
        agent = Agent(anthropic_model(server), tools=[read_note], capabilities=[RefoldCapability(kept)])
        first = await agent.run("Read a note.", model_settings=settings)
        second = await agent.run("And again.", message_history=first.all_messages(), model_settings=settings)
    assert len(server.requests) == len(server.answered) == 4, "a changed or missing signature is refused"
    parts = [part for one in second.all_messages() if isinstance(one, ModelResponse) for part in one.parts]
    assert all(part.signature for part in parts if isinstance(part, ThinkingPart))


async def test_a_refused_request_is_attempted_again_smaller(kept):
    with ScriptedUpstream(otherwise=echo) as server:
        agent = Agent(openai_model(server), capabilities=[RefoldCapability(kept)])
        history = []
        for at in range(6):
            history = (
                await agent.run(f"{at}. " + "The tide. " * 150, message_history=history)
            ).all_messages()
        server.script(overflow("openai", window=2_000, prompt=2_500), "Going on.")
        result = await agent.run("Go on.", message_history=history)
    assert result.output == "Going on."
    assert len(server.requests[-1].body) < len(server.requests[-2].body)


async def test_a_streamed_run(kept):
    with ScriptedUpstream(otherwise=echo) as server:
        agent = Agent(openai_model(server), capabilities=[RefoldCapability(kept)])
        async with agent.run_stream("Hello.") as stream:
            text = await stream.get_output()
    assert text == "Hello."


def test_the_guide(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with ScriptedUpstream(otherwise=echo) as server:
        run_page("pydantic-ai.md", model=openai_model(server), tools=[read_note])
