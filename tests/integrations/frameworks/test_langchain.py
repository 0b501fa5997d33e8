"""LangChain: an agent of `create_agent` with the middleware, before the scripted provider."""

from __future__ import annotations

from importlib.metadata import version

import pytest

pytest.importorskip("langchain")

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

import refold
from refold.integrations.langchain import RefoldMiddleware
from refold.testing import ScriptedUpstream, echo, overflow
from tests.integrations.frameworks import session
from tests.integrations.frameworks.session import (
    SYSTEM,
    TURNS,
    WINDOW,
    check_session,
    question,
    run_page,
    served,
)

read_note = tool(session.read_note)
THREAD = {"configurable": {"thread_id": "harbour"}}

pytestmark = pytest.mark.feature("N8")


def model_of(server):
    return ChatOpenAI(model="scripted", base_url=f"{server.url}/v1", api_key="any", max_retries=0)


@pytest.fixture
def kept():
    with refold.sync.Engine("memory:", window=WINDOW, max_output=500) as engine:
        yield engine


def test_a_session(kept):
    with served() as server:
        middleware = RefoldMiddleware(kept)
        agent = create_agent(
            model_of(server),
            [read_note],
            system_prompt=SYSTEM,
            middleware=[middleware],
            checkpointer=InMemorySaver(),
        )
        for turn in range(TURNS + 1):
            state = agent.invoke({"messages": [HumanMessage(question(turn))]}, THREAD)
        check_session(server, "langchain", version("langchain"))
    assert len(state["messages"]) == 5 * (TURNS + 1), "the state is not compacted"
    assert kept.conversation("harbour").size == 5 * (TURNS + 1) - 1


async def test_an_async_session_with_a_small_state(kept):
    with served() as server:
        agent = create_agent(
            model_of(server),
            [read_note],
            system_prompt=SYSTEM,
            middleware=[RefoldMiddleware(kept, trims_state=True)],
            checkpointer=InMemorySaver(),
        )
        sizes = []
        for turn in range(TURNS + 1):
            state = await agent.ainvoke({"messages": [HumanMessage(question(turn))]}, THREAD)
            sizes.append(len(state["messages"]))
        check_session(server, "langchain (async, trims_state)", version("langchain"))
    assert max(sizes) < 4 * TURNS
    assert kept.conversation("harbour").size == 5 * (TURNS + 1) - 1, "every original is in the store"


def test_a_trimmed_state_goes_on_after_a_restart(tmp_path):
    saver, url = InMemorySaver(), f"sqlite:///{tmp_path}/chats.db"
    with ScriptedUpstream(otherwise=echo, window=4_096) as server:
        for part in range(4):
            with refold.sync.Engine(url, window=4_096, max_output=200) as engine:
                middleware = RefoldMiddleware(engine, trims_state=True)
                agent = create_agent(model_of(server), [], middleware=[middleware], checkpointer=saver)
                for turn in range(5):
                    agent.invoke(
                        {"messages": [HumanMessage(f"{part}.{turn} " + "The tide is high. " * 60)]}, THREAD
                    )
                (talk,) = engine.conversations()
    assert (talk.messages, talk.branches) == (39, 1), "it goes on in the same branch"
    assert len(server.requests) == len(server.answered) == 20


def test_an_earlier_checkpoint_goes_on_in_a_branch(kept):
    with ScriptedUpstream(otherwise=echo) as server:
        agent = create_agent(
            model_of(server), [], middleware=[RefoldMiddleware(kept)], checkpointer=InMemorySaver()
        )
        agent.invoke({"messages": [HumanMessage("One.")]}, THREAD)
        early = agent.get_state(THREAD).config
        agent.invoke({"messages": [HumanMessage("Two.")]}, THREAD)
        agent.invoke({"messages": [HumanMessage("Zwei.")]}, early)
    assert [one.text for one in server.requests[-1].messages] == ["One.", "One.", "Zwei."]
    assert len(kept.conversations()) == 1


def test_two_agents_of_one_graph_share_the_conversation_of_its_thread(tmp_path):
    """Subgraphs on one list of messages, with a restart after each part. Each message is stored once."""
    saver, url = InMemorySaver(), f"sqlite:///{tmp_path}/chats.db"
    with ScriptedUpstream(otherwise=echo, window=4_096, strict=True) as server:
        for part in range(3):
            with refold.sync.Engine(url, window=4_096, max_output=200) as engine:
                graph = StateGraph(MessagesState)
                for name in ("clerk", "pilot"):
                    agent = create_agent(
                        model_of(server),
                        system_prompt=f"You are the {name}.",
                        middleware=[RefoldMiddleware(engine)],
                    )
                    graph.add_node(name, agent)
                graph.add_edge(START, "clerk").add_edge("clerk", "pilot")
                both = graph.compile(checkpointer=saver)
                for turn in range(4):
                    said = HumanMessage(f"{part}.{turn} " + "The tide is high. " * 40)
                    state = both.invoke({"messages": [said]}, THREAD)
                (talk,) = engine.conversations()
    assert (talk.messages, talk.branches) == (35, 1)
    assert len(state["messages"]) == 36
    assert len(server.requests) == len(server.answered) == 24


def test_a_refused_request_is_sent_again_smaller(kept):
    history = [
        part for at in range(6) for part in (HumanMessage(f"{at}. " + "The tide. " * 200), AIMessage("Yes."))
    ]
    with ScriptedUpstream(overflow("openai", window=2_000, prompt=2_500), "Going on.") as server:
        agent = create_agent(model_of(server), [], middleware=[RefoldMiddleware(kept)])
        state = agent.invoke({"messages": [*history, HumanMessage("Go on.")]})
    assert state["messages"][-1].content == "Going on."
    assert len(server.requests[1].body) < len(server.requests[0].body)


def test_the_guide(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with ScriptedUpstream(otherwise=echo) as server:
        run_page("langchain.md", model=model_of(server), tools=[read_note])
