"""Stored conversations without `await`: the same engine, in a script and in a notebook that has a loop running."""

import asyncio

import pytest

from refold import sync
from refold.model.errors import ConfigError, NotFound


def test_a_script_keeps_a_conversation_and_finds_it_again(tmp_path):
    url = f"sqlite:///{tmp_path}/talks.db"
    with sync.Engine(url, window=2_000, max_output=100) as engine:
        talk = engine.conversation("chat")
        for number in range(60):
            talk.add(f"question {number} about order {7_000 + number}, " + "please look " * 20)
            talk.context()
            talk.record({"prompt_tokens": 500, "completion_tokens": 4})
            talk.add({"role": "assistant", "content": f"answer {number}"})
        assert talk.receipts
        talk.add("and now?")
        sent = talk.context()
        assert talk.preview().before > 0
    with sync.Engine(url, window=2_000, max_output=100) as engine:
        again = engine.conversation("chat")
        assert again.context() == sent
        assert again.recall("#m0")["content"].startswith("question 0")
        assert "7003" in again.recall("order 7003")
        assert again.status().messages == 121
        assert [one.conversation for one in engine.search("order 7003")][:1] == ["chat"]
        assert engine.find_sessions("order 7003", name="chat", by_meaning=False)[0][0] == "chat"
        assert again.rerun()
        assert again.undo()
        again.new()
        again.add("afresh")
        first = engine.sessions("chat")[0]
        assert again.resume(first).session.target == first.id
        assert engine.examine("chat") == []
        assert [one.id for one in engine.conversations()] == ["chat"]
        assert engine.fork("chat", 2)
        assert engine.delete("chat") == 1


async def test_it_works_where_a_loop_is_running_already():
    with sync.Engine("memory:") as engine:
        talk = engine.conversation("chat")
        talk.add("Hello.")
        assert len(talk.context()["messages"]) == 1
        assert talk.measurement.content.tokens > 0
        assert talk.bill.spent == 0
        with pytest.raises(NotFound):
            talk.recall("#m7")
    assert asyncio.get_running_loop().is_running()


def test_a_store_that_cannot_be_opened_leaves_no_thread_behind():
    with pytest.raises(ConfigError):
        sync.Engine("ftp://nowhere")
