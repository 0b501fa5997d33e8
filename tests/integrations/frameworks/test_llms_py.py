"""llms.py: its server with the extension, as people start it, before the scripted provider. The seed's document is the acceptance."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import pytest

pytest.importorskip("llms")

from refold.integrations.llms_py import install_folder
from refold.testing import Received, ScriptedUpstream, call, echo, say
from tests.integrations.frameworks.session import (
    ROOT,
    SYSTEM,
    TURNS,
    WINDOW,
    Provider,
    check_session,
    question,
)

NOTES = """
from tests.integrations.frameworks.session import read_note


def __install__(ctx):
    ctx.register_tool(read_note)
"""
WRITER = "writer"


@contextmanager
def running(folder, upstream, settings=None, *, site=None, others=None, also=None, stream=False):
    """The server with a home folder of its own; yields a function that calls it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    home = folder / "home"
    extension = install_folder(home / "extensions")
    if settings is not None:
        (extension / "config.json").write_text(json.dumps(settings))
    notes = home / "extensions" / "notes"
    notes.mkdir(exist_ok=True)
    (notes / "__init__.py").write_text(NOTES)
    for name, code in (others or {}).items():
        (home / "extensions" / name).mkdir()
        (home / "extensions" / name / "__init__.py").write_text(code)
    config = json.loads(files("llms").joinpath("llms.json").read_text(encoding="utf-8"))
    model = {
        "limit": {"context": WINDOW, "output": 500},
        "tool_call": True,
        "cost": {"input": 0, "output": 0},
    }
    config["providers"] = {
        "scripted": {
            "enabled": True,
            "npm": "@ai-sdk/openai-compatible",
            "api": f"{upstream.url}/v1",
            "api_key": "any",
            "stream": stream,
            "models": {name: {"id": name, "name": name, **model} for name in ("scripted", WRITER)},
        }
    }
    config["providers"] |= {
        name: {**config["providers"]["scripted"], "api": f"{other.url}/v1"}
        for name, other in (also or {}).items()
    }
    config["limits"]["retries"] = 1
    (home / "llms.json").write_text(json.dumps(config))
    (home / "providers.json").write_text("{}")
    own = {key: value for key, value in os.environ.items() if not key.startswith("LLMS_")}
    own |= {
        "LLMS_HOME": str(home),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src"), *([str(site)] if site else [])]),
    }
    argv = [str(Path(sys.executable).parent / "llms"), "--serve", str(port)]
    with (
        (folder / "server.log").open("a") as log,
        subprocess.Popen(argv, cwd=folder, env=own, stdout=log, stderr=subprocess.STDOUT) as process,
    ):
        try:
            fetch = fetcher(f"http://127.0.0.1:{port}")
            until = time.monotonic() + 60
            while time.monotonic() < until:
                assert process.poll() is None, (folder / "server.log").read_text()[-3_000:]
                try:
                    fetch("/ext/context_compaction/config")
                    break
                except OSError:
                    time.sleep(0.1)
            yield fetch
        finally:
            process.terminate()
            process.wait(30)


def fetcher(url):
    def fetch(path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text = answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())
        return json.loads(text) if answer.headers["Content-Type"].startswith("application/json") else text

    return fetch


def ask(fetch, messages, thread="harbour", **more):
    metadata = {"threadId": thread, "nohistory": True, "nostore": True}
    reply = fetch(
        "/v1/chat/completions", {"model": "scripted", "messages": messages, "metadata": metadata, **more}
    )
    assert isinstance(reply, dict), reply
    return reply


def test_a_session(tmp_path):
    provider = Provider()

    def answer(received: Received):
        if not received.request.tools:
            return "They read the notes of the harbour office, day by day."
        return provider(received)

    with (
        ScriptedUpstream(otherwise=answer, window=WINDOW, strict=True) as server,
        running(tmp_path, server) as fetch,
    ):
        messages = [{"role": "system", "content": SYSTEM}]
        for turn in range(TURNS + 1):
            messages.append({"role": "user", "content": question(turn)})
            reply = ask(fetch, messages, max_tokens=500)
            messages += [*reply.get("tool_history", ()), reply["choices"][0]["message"]]
        status = fetch("/ext/context_compaction/status")
        summaries = [one for one in server.requests if not one.request.tools]
        server.requests[:] = [one for one in server.requests if one not in summaries]
        del server.answered[: len(summaries)]
        check_session(server, "llms-py", version("llms-py"))
    known = status["conversations"]["harbour"]
    assert known["compaction_count"] >= TURNS // 20
    assert known["message_count"] == 5 * (TURNS + 1) - 1, "the last reply comes with the next request"
    assert summaries, "the model of the conversation writes the summaries"


def test_the_config_file_and_the_api(tmp_path):
    with ScriptedUpstream(otherwise=echo) as server:
        with running(tmp_path, server) as fetch:
            path = tmp_path / "home/extensions/context_compaction/config.json"
            assert json.loads(path.read_text()) == fetch("/ext/context_compaction/config"), (
                "written with the defaults"
            )
            assert fetch("/ext/context_compaction/config")["threshold"] == 0.8

            changed = fetch("/ext/context_compaction/config", {"threshold": 0.6, "model": WRITER})
            assert changed == {**fetch("/ext/context_compaction/config"), "threshold": 0.6, "model": WRITER}
            code, error = fetch("/ext/context_compaction/config", {"threshold": 80})
            assert (code, "threshold" in error["error"]) == (400, True)
            code, error = fetch("/ext/context_compaction/config", {"treshold": 0.5})
            assert (code, "treshold" in error["error"]) == (400, True)
            assert fetch("/ext/context_compaction/config")["threshold"] == 0.6
        with running(tmp_path, server) as fetch:
            assert fetch("/ext/context_compaction/config")["model"] == WRITER, "changes persist"


def test_flag_summary_status_and_manual_compaction(tmp_path):
    def answer(received: Received):
        return "The tide was noted eight times." if received.model == WRITER else "Noted."

    with (
        ScriptedUpstream(otherwise=answer, window=WINDOW) as server,
        running(tmp_path, server, {"model": WRITER, "threshold": 0.7, "typo": 1}) as fetch,
    ):
        assert fetch("/ext/context_compaction/config")["threshold"] == 0.7, "one wrong key spoils no other"
        messages, flagged = [{"role": "system", "content": SYSTEM}], False
        for at in range(12):
            messages.append({"role": "user", "content": f"{at}. " + "The tide is high today. " * 80})
            before = len(server.requests)
            messages.append(ask(fetch, messages, max_tokens=500)["choices"][0]["message"])
            sent = server.requests[before:]
            if flagged:
                break
            flagged = fetch("/ext/context_compaction/status")["conversations"]["harbour"]["needs_compaction"]
        assert [one.model for one in sent] == [WRITER, "scripted"], (
            "the summary is written by the configured model"
        )
        assert sent[0].json["temperature"] == 0.3
        final = sent[1]
        assert final.system == SYSTEM
        assert "[Context Summary]" in final.messages[0].text
        assert "The tide was noted eight times." in final.messages[0].text
        known = fetch("/ext/context_compaction/status")["conversations"]["harbour"]
        assert (known["compaction_count"], known["needs_compaction"]) == (1, False)

        for text in ("One more.", "And another one."):
            messages.append({"role": "user", "content": text + " The sea is calm." * 100})
            messages.append(ask(fetch, messages, max_tokens=500)["choices"][0]["message"])
        assert fetch("/ext/context_compaction/compact", {"conversation": "harbour"})["status"] == "ok"
        assert fetch("/ext/context_compaction/status")["conversations"]["harbour"]["compaction_count"] == 2
        assert fetch("/ext/context_compaction/compact", {"conversation": "nothing"})[0] == 400
        page = fetch("/ext/context_compaction")
        assert "harbour" in page
        assert "Context compaction is on" in page
        assert "tide" not in page


def test_a_summary_goes_to_the_provider_of_the_conversation(tmp_path):
    """Two providers have the model. The chat names the second one."""
    with (
        ScriptedUpstream(otherwise="The tide was noted.", window=WINDOW) as first,
        ScriptedUpstream(otherwise="The tide was noted.", window=WINDOW) as second,
        running(tmp_path, first, {"threshold": 0.3}, also={"second": second}) as fetch,
    ):
        messages = []
        for at in range(12):
            if at == 8:
                assert len(second.requests) > 8, "summaries are among them"
                fetch("/ext/context_compaction/config", {"threshold": 0.95})
            messages.append({"role": "user", "content": f"{at}. " + "The tide is high today. " * 80})
            reply = ask(fetch, messages, max_tokens=500, provider="second")
            messages.append(reply["choices"][0]["message"])
        before = len(second.requests)
        assert fetch("/ext/context_compaction/compact", {"conversation": "harbour"})["status"] == "ok"
    assert (len(first.requests), len(second.requests)) == (0, before + 1), "also one on request"


def test_a_failed_summary_leaves_the_history_whole(tmp_path):
    from refold.testing import Refuse

    def answer(received: Received):
        return Refuse(500) if received.model == WRITER else "Noted."

    with (
        ScriptedUpstream(otherwise=answer, window=WINDOW) as server,
        running(tmp_path, server, {"model": WRITER, "threshold": 0.3}) as fetch,
    ):
        messages = []
        for at in range(6):
            messages.append({"role": "user", "content": f"{at}. " + "The tide is high today. " * 80})
            messages.append(ask(fetch, messages, max_tokens=500)["choices"][0]["message"])
        sent = [one for one in server.requests if one.model == "scripted"]
        assert WRITER in {one.model for one in server.requests}
        assert len(sent[-1].messages) == 11, "the conversation goes on with its full history"
        assert fetch("/ext/context_compaction/status")["conversations"]["harbour"]["needs_compaction"], (
            "the flag stays"
        )
    assert "summar" in (tmp_path / "server.log").read_text().lower(), "the failure is logged"


def test_a_provider_that_streams_two_chats_without_threads_and_a_prompt_of_the_user(tmp_path):
    """The usage at the end of a stream flags a conversation. Each chat is recognised by its first messages."""

    def answer(received: Received):
        return f"Summary for {received.messages[0].text[:5]}." if received.model == WRITER else "Noted."

    own = {"provider": "scripted", "model": WRITER, "threshold": 0.5, "summary_prompt": "SHORT {words}"}
    with (
        ScriptedUpstream(otherwise=answer, window=WINDOW) as server,
        running(tmp_path, server, own, stream=True) as fetch,
    ):
        chats = {name: [{"role": "system", "content": f"You are {name}."}] for name in ("Ann", "Bob")}
        for at in range(8):
            for name, messages in chats.items():
                messages.append({"role": "user", "content": f"{name} {at}. " + "The tide is high. " * 80})
                reply = ask(fetch, messages, thread=None, max_tokens=500)
                messages.append(reply["choices"][0]["message"])
        known = fetch("/ext/context_compaction/status")["conversations"]
    assert len(known) == 2
    assert all(one["compaction_count"] >= 1 and one["message_count"] >= 15 for one in known.values())
    asked = [one for one in server.requests if one.model == WRITER]
    assert asked
    assert all("SHORT " in one.text for one in asked)
    assert not any("You are " in one.text for one in asked), "system messages are in no summary"
    told = [one for one in server.requests if one.model == "scripted"]
    assert all(one.stream for one in told)
    folded = [one for one in told if "[Context Summary]" in one.messages[0].text]
    assert {one.system for one in folded} == {"You are Ann.", "You are Bob."}
    for one in folded:
        name, other = ("Ann", "Bob") if one.system == "You are Ann." else ("Bob", "Ann")
        assert f"{other} " not in one.text, "no chat has words of the other"
        assert one.messages[0].role == "assistant"
        assert len(one.messages) >= 3, "the last messages follow the summary"
        assert one.messages[-1].text.startswith(f"{name} ")


def test_off_means_off(tmp_path):
    with ScriptedUpstream(otherwise=echo) as server, running(tmp_path, server, {"enabled": False}) as fetch:
        ask(fetch, [{"role": "user", "content": "Hello."}])
        assert fetch("/ext/context_compaction/status") == {"enabled": False, "conversations": {}}


def test_a_loop_of_tools_in_one_request_fits(tmp_path):
    script = [
        say(call("read_note", {"number": 2 * at}), call("read_note", {"number": 2 * at + 1}))
        for at in range(9)
    ]
    with (
        ScriptedUpstream(*script, otherwise="Done.", window=WINDOW, strict=True) as server,
        running(tmp_path, server) as fetch,
    ):
        reply = ask(fetch, [{"role": "user", "content": "Read all."}], max_tokens=500)
    assert len(server.requests) == len(server.answered), "nothing was refused"
    assert reply["choices"][0]["message"]["content"] == "Done."


OTHER = """
async def add_word(chat, context):
    chat["messages"][-1]["content"] += " Ahoy, mate@example.com!"


def __install__(ctx):
    ctx.register_chat_request_filter(add_word)
"""


def test_filters_of_other_extensions_of_refold_and_of_a_plugin_compose(tmp_path):
    """An extension of the server, the compaction and the example plugin, each in one request."""
    site = tmp_path / "site"
    info = site / "refold_harbour-1.0.0.dist-info"
    info.mkdir(parents=True)
    (site / "refold_harbour.py").write_bytes(
        (ROOT / "examples" / "plugin" / "refold_harbour.py").read_bytes()
    )
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: refold-harbour\nVersion: 1.0.0\n")
    (info / "entry_points.txt").write_text("[refold.plugins]\nharbour = refold_harbour:plugin\n")
    with (
        ScriptedUpstream(
            otherwise=lambda got: "The notes of the harbour." if len(got.messages) == 1 else say("Fine.")
        ) as server,
        running(tmp_path, server, {"threshold": 0.3}, site=site, others={"a_word": OTHER}) as fetch,
    ):
        messages = [{"role": "system", "content": "Be brief."}]
        for turn in range(12):
            messages.append(
                {
                    "role": "user",
                    "content": f"{turn}. Write to clerk{turn}@example.com. " + "Tell me of the boats. " * 60,
                }
            )
            reply = ask(fetch, messages, max_tokens=200)
            messages.append(reply["choices"][0]["message"])
        sent = server.requests[:]
        status = fetch("/ext/context_compaction/status")
        refused = fetch(
            "/v1/chat/completions",
            {"model": "scripted", "messages": [{"role": "user", "content": "Load the embargoed cargo."}]},
        )
        asked_of_cargo = [one for one in server.requests if "embargoed" in one.text]

    assert "[address]" in sent[-1].text
    assert "Ahoy" in sent[-1].text
    assert "@example.com" not in "".join(json.dumps(one.json) for one in sent)
    assert status["conversations"]["harbour"]["compaction_count"] >= 1
    assert asked_of_cargo == []
    assert isinstance(refused, tuple), "the client gets an error"


USERS = """
from llms.main import AuthProvider


def __install__(ctx):
    ctx.set_auth_provider(AuthProvider(ctx.app))
    ctx.app.sessions["key-of-anna"] = {"userName": "anna", "roles": []}
    ctx.app.sessions["key-of-berta"] = {"userName": "berta", "roles": ["Admin"]}
"""


def test_only_an_administrator_changes_the_settings_of_all(tmp_path):
    def config(key):
        return f"/ext/context_compaction/config?session={key}"

    with (
        ScriptedUpstream(otherwise=say("Fine.")) as server,
        running(tmp_path, server, others={"users": USERS}) as fetch,
    ):
        unknown = [fetch(f"/ext/context_compaction{path}") for path in ("/config", "/status", "")]
        refused, message = fetch(config("key-of-anna"), {"threshold": 0.9})
        kept = fetch(config("key-of-anna"))
        changed = fetch(config("key-of-berta"), {"threshold": 0.9})

    assert [code for code, _ in unknown] == [401, 401, 401]
    assert refused == 403
    assert "administrator" in message["error"]
    assert kept["threshold"] != 0.9
    assert changed["threshold"] == 0.9


def test_settings_that_change_while_chats_run_apply_from_the_next_request_on(tmp_path):
    """Every reply and every summary is given after a change of the settings: no chat fails, none is a new conversation."""
    changes = []

    def answer(received: Received):
        threshold = 0.2 if len(changes) > 8 else 0.9 + len(changes) / 1_000
        fields = {"threshold": threshold, "model": WRITER, "summary_prompt": "SHORT {words}"}
        changes.append(fetch("/ext/context_compaction/config", fields))
        if received.model == WRITER:
            return "The tide was noted."
        if received.messages[-1].results:
            return "Read."
        return say(call("read_note", {"number": len(changes)}))

    with (
        ScriptedUpstream(otherwise=answer, window=WINDOW, strict=True) as server,
        running(tmp_path, server) as fetch,
    ):
        chats = {"harbour": [], None: []}
        for turn in range(6):
            for thread, messages in chats.items():
                messages.append(
                    {"role": "user", "content": f"{turn}, {thread}. " + "The tide is high. " * 60}
                )
                reply = ask(fetch, messages, thread=thread, max_tokens=500)
                messages += [*reply.get("tool_history", ()), reply["choices"][0]["message"]]
        known = fetch("/ext/context_compaction/status")["conversations"]
    assert all(isinstance(one, dict) for one in changes), changes
    assert len(known) == 2, "a chat without a thread is still recognised"
    assert all(one["compaction_count"] >= 1 for one in known.values()), "the new threshold holds"
    asked = [one for one in server.requests if one.model == WRITER]
    assert asked
    assert all("SHORT " in one.text for one in asked)
    log = (tmp_path / "server.log").read_text()
    assert "not open" not in log
    assert "passed on unchanged" not in log


def test_a_plain_client_without_a_thread_is_recognised_by_its_messages(tmp_path):
    """The server makes a thread for every such call. The chats of two users with the same words are two."""
    with (
        ScriptedUpstream(otherwise=say("Fine.")) as server,
        running(tmp_path, server, others={"users": USERS}) as fetch,
    ):
        for user in ("anna", "berta"):
            messages = []
            for turn in range(4):
                messages.append({"role": "user", "content": f"{turn}. How is the tide?"})
                path = f"/v1/chat/completions?session=key-of-{user}"
                reply = fetch(path, {"model": "scripted", "messages": messages})
                messages.append({"role": "assistant", "content": reply["choices"][0]["message"]["content"]})
        known = [
            fetch(f"/ext/context_compaction/status?session=key-of-{user}")["conversations"]
            for user in ("anna", "berta")
        ]
    assert [[one["message_count"] for one in found.values()] for found in known] == [[7], [7]]
    assert not {*known[0]} & {*known[1]}


def test_a_thread_of_any_length_is_a_conversation(tmp_path):
    with ScriptedUpstream(otherwise=echo) as server, running(tmp_path, server) as fetch:
        for thread in ("x" * 5_000, "x" * 4_999, "x" * 5_000, "a\nb", " "):
            reply = ask(fetch, [{"role": "user", "content": "Hello."}], thread=thread)
            assert reply["choices"][0]["message"]["content"] == "Hello."
        known = fetch("/ext/context_compaction/status")["conversations"]
    assert len(known) == 4
    assert max(map(len, known)) <= 32
