"""The example agent of the chat, and the same conversation in the terminal."""

from __future__ import annotations

import pytest

from examples import chat_agent
from refold.cli.main import run
from refold.testing import Refuse, ScriptedUpstream, call, echo, say


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("REFOLD_STORE", f"sqlite:///{tmp_path / 'agent.db'}")
    (tmp_path / "harbours").mkdir()
    (tmp_path / "harbours" / "vik.txt").write_text("501 mm")
    return tmp_path


async def test_it_calls_its_tools_asks_first_and_goes_on_another_time(folder, monkeypatch, capsys):
    target = folder / "note.txt"
    answers = (
        say(call("list_files", {"folder": str(folder / "harbours")})),
        say(call("write_file", {"path": str(target), "text": "low"})),
        "Vik is low; it is noted.",
    )
    monkeypatch.setattr("builtins.input", lambda question: "y" if "write_file" in question else "n")
    store = f"sqlite:///{folder / 'agent.db'}"
    async with ScriptedUpstream(*answers, otherwise=echo) as server:
        model = f"m-1@{server.url}/v1"
        await chat_agent.ask(model, "How is the water?", store)
        out, err = capsys.readouterr()
        await chat_agent.ask(model, "Thanks.", store)

        assert "harbours/vik.txt 6" in server.requests[1].messages[-1].results[0].text
        assert len(server.requests[-1].messages) == 7
    assert out == "Vik is low; it is noted."
    assert "[list_files]" in err
    assert target.read_text() == "low"


async def test_a_provider_that_refuses_is_said(folder):
    async with ScriptedUpstream(Refuse(401, "no")) as server:
        with pytest.raises(SystemExit, match="status 401"):
            await chat_agent.ask(f"m-1@{server.url}/v1", "hi", "memory:")


def test_its_conversation_and_its_tools_open_in_the_terminal(folder, capsys):
    answers = say(call("list_files", {"folder": str(folder / "harbours")})), "One file."
    with ScriptedUpstream(*answers) as server:
        model = f"m-1@{server.url}/v1"
        tools = chat_agent.__file__
        assert run(["chat", "agent", "--model", model, "--tools", tools, "--once", "How many files?"]) == 0

    out, err = capsys.readouterr()
    assert out == "One file.\n"
    assert "⚙ list_files(folder=" in err
