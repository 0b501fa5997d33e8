"""Stored conversations without `await`: the same engine, in a script and in a notebook that has a loop running."""

import asyncio
import inspect
import os
import subprocess
import sys
import threading

import pytest

from refold import sync
from refold.chat.chat import Chat
from refold.core.presets import PRESETS
from refold.engine import conversation
from refold.engine import engine as engine_module
from refold.engine.conversation import Conversation
from refold.engine.engine import Engine
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
        again.start_session()
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
    with sync.Engine("memory:"):
        pass
    known = {*threading.enumerate()}
    with pytest.raises(ConfigError):
        sync.Engine("ftp://nowhere")
    assert {*threading.enumerate()} <= known


def faces(*classes):
    """What can be asked of each, and with what; `open` is how an engine without `await` is made."""
    return [
        {
            name: [*inspect.signature(found).parameters.items()] if callable(found) else []
            for name, found in inspect.getmembers(face)
            if not name.startswith("_") and name != "open"
        }
        for face in classes
    ]


def test_what_can_be_asked_with_await_can_be_asked_without():
    talk, blocking_talk = faces(Conversation, sync.Conversation)
    assert talk.keys() > conversation.OF_SURFACES
    users = {name: asked for name, asked in talk.items() if name not in conversation.OF_SURFACES}
    assert blocking_talk == {**users, "window": []}
    chat, blocking_chat = faces(Chat, sync.Chat)
    assert blocking_chat == {**chat, "send": chat["send"]}
    engine, blocking_engine = faces(Engine, sync.Engine)
    assert engine.keys() > engine_module.OF_SURFACES
    users = {name: asked for name, asked in engine.items() if name not in engine_module.OF_SURFACES}
    assert blocking_engine == {**users, "owner": [], "settings": [], "store": []}


def test_a_script_sees_what_left_what_was_done_and_what_each_message_takes():
    with sync.Engine("memory:", window=2_000, max_output=100) as engine:
        talk = engine.conversation("chat")
        for number in range(60):
            talk.add(f"question {number}, " + "please look " * 20, {"role": "assistant", "content": "done"})
        talk.add("and now?")
        sent = talk.context()
        talk.record({"prompt_tokens": 500, "completion_tokens": 4})
        (call,) = talk.calls()
        assert engine.store.calls(engine.owner, talk.id) == [call]
        assert talk.window_of(call) == sent
        *_, change = talk.compactions()
        found = talk.diff(change)
        assert (found.before.tokens, found.after.tokens) == (change.before, change.after)
        assert len(talk.message_usage()) == 121
        assert talk.preview(policy=PRESETS["llms"]).difference.receipts
        branch = engine.fork("chat", 2, branch=talk.branch)
        assert engine.conversation("chat", branch=branch).status().messages == 2
        assert engine.expire(0.0) == 0


def test_an_engine_whose_settings_cannot_work_leaves_no_thread_behind(tmp_path):
    with sync.Engine(f"sqlite:///{tmp_path}/talks.db"):
        pass  # the loop that all engines of a process share has its threads from here on
    known = {*threading.enumerate()}
    with pytest.raises(ConfigError):
        sync.Engine(f"sqlite:///{tmp_path}/talks.db", keep_days=-1)
    begun = {*threading.enumerate()} - known
    # The loop's own executor may have begun one more; a store's threads have other names.
    assert [thread.name for thread in begun if not thread.name.startswith("asyncio_")] == []


FORKED = """
import os, signal, sys
from refold import sync
from refold.model.errors import ConfigError

with sync.Engine("memory:") as engine:
    talk = engine.conversation("chat")
    if child := os.fork():
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        talk.add("Still here?")
        sys.exit(code)
    signal.alarm(20)  # it must not outlive a test that fails
    for act in (talk.context, engine.conversations, lambda: engine.store.owners()):
        try:
            act()
        except ConfigError as error:
            print(error)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is nothing to fork with")
def test_an_engine_from_before_a_fork_says_so_instead_of_waiting_for_a_thread_that_is_not_there():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore:.*fork:DeprecationWarning", "-c", FORKED],
        check=False,
        capture_output=True,
        text=True,
        timeout=30,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("this engine or conversation was opened in another process") == 3
    assert done.stdout.count("hint: open one in the new process") == 3
