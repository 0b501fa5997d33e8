"""LiteLLM: `acompletion` with the callback, and the proxy as people start it, before the scripted provider."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path

import pytest

litellm = pytest.importorskip("litellm")

import openai

import refold
from refold.integrations.litellm import RefoldCallback
from refold.testing import ScriptedUpstream, echo, overflow
from tests.integrations.frameworks.session import (
    ROOT,
    SYSTEM,
    TOOL,
    TURNS,
    WINDOW,
    check_session,
    question,
    read_note,
    run_page,
    served,
)

pytestmark = pytest.mark.feature("N8")

TOOLS = [{"type": "function", "function": TOOL}, refold.recall_tool()]


@pytest.fixture
def kept():
    with refold.sync.Engine("memory:", window=WINDOW, max_output=500) as engine:
        yield engine


@pytest.fixture
def callback(kept, monkeypatch):
    made = RefoldCallback(kept)
    monkeypatch.setattr(litellm, "callbacks", [made])
    return made


def place(server):
    return {"model": "openai/scripted", "api_base": f"{server.url}/v1", "api_key": "any", "max_retries": 0}


def plain(message):
    return {
        key: value
        for key, value in message.model_dump().items()
        if key in ("role", "content", "tool_calls") and value
    }


def answers(message, recall):
    for call in message.tool_calls or ():
        arguments = json.loads(call.function.arguments)
        text = recall(arguments) if call.function.name == "recall" else read_note(**arguments)
        yield {"role": "tool", "tool_call_id": call.id, "content": text}


async def until(condition):
    """LiteLLM logs in the background: wait for it."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  # the event is LiteLLM's
            await asyncio.sleep(0.01)


async def test_a_session(callback, kept):
    messages = [{"role": "system", "content": SYSTEM}]
    with served() as server:
        for turn in range(TURNS + 1):
            messages.append({"role": "user", "content": question(turn)})
            while messages[-1]["role"] != "assistant":
                reply = await litellm.acompletion(
                    **place(server),
                    messages=messages,
                    tools=TOOLS,
                    metadata={"refold_conversation": "harbour"},
                )
                message = reply.choices[0].message
                messages.append(plain(message))
                messages += answers(message, lambda asked: callback.recall(asked, name="harbour"))
        check_session(server, "litellm (acompletion)", version("litellm"))
    assert len(messages) == 1 + 5 * (TURNS + 1), "the caller's list is not changed"
    assert len(kept.store.calls(kept.owner, "harbour", limit=1_000)) == 2 * (TURNS + 1)


def test_a_session_of_completion_with_arguments_by_position(callback, kept):
    messages = [{"role": "system", "content": SYSTEM}]
    completion = callback.wrap(litellm.completion)
    with served() as server:
        where = place(server)
        model = where.pop("model")

        def ask():
            return completion(
                model, messages, tools=TOOLS, metadata={"refold_conversation": "harbour"}, **where
            )

        for turn in range(TURNS + 1):
            messages.append({"role": "user", "content": question(turn)})
            while messages[-1]["role"] != "assistant":
                message = ask().choices[0].message
                messages.append(plain(message))
                messages += answers(message, lambda asked: callback.recall(asked, name="harbour"))
        check_session(server, "litellm (completion)", version("litellm"))
    assert len(messages) == 1 + 5 * (TURNS + 1), "the caller's list is not changed"
    assert len(kept.store.calls(kept.owner, "harbour", limit=1_000)) == 2 * (TURNS + 1)


async def test_wrapped_functions_stream_and_take_arguments_by_position(callback, kept):
    with ScriptedUpstream(otherwise=echo) as server:
        where = place(server)
        model = where.pop("model")
        named = {"metadata": {"refold_conversation": "one"}, "stream_options": {"include_usage": True}}
        stream = callback.wrap(litellm.completion)(
            model, [{"role": "user", "content": "One."}], stream=True, **named, **where
        )
        said = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        reply = await callback.wrap(litellm.acompletion)(
            model, [{"role": "user", "content": "Two."}], metadata={"refold_conversation": "two"}, **where
        )
        answer = callback.wrap(litellm.responses)("Three.", model, **where)
    assert (said, reply.choices[0].message.content, answer.output_text) == ("One.", "Two.", "Three.")
    assert [talk.usage.input > 0 for talk in kept.conversations()] == [True] * 3
    with pytest.raises(refold.ConfigError, match="embedding"):
        callback.wrap(litellm.embedding)


def test_the_usage_is_recorded_also_if_the_event_loop_ends_with_the_call(callback, kept):
    said = [{"role": "user", "content": "One."}]
    told = {"stream": True, "stream_options": {"include_usage": True}}

    async def read(stream):
        return "".join([chunk.choices[0].delta.content or "" async for chunk in await stream])

    with ScriptedUpstream(otherwise=echo) as server:
        asyncio.run(litellm.acompletion(**place(server), messages=said))
        asyncio.run(litellm.aresponses(**place(server), input="One."))
        where = {"model": "anthropic/scripted", "api_base": server.url, "api_key": "any"}
        asyncio.run(litellm.anthropic.messages.acreate(**where, max_tokens=100, messages=said))
        ask = callback.wrap(litellm.acompletion)
        named = {"metadata": {"refold_conversation": "streamed"}}
        assert asyncio.run(read(ask(**place(server), messages=said, **told, **named))) == "One."
    recorded = [(talk.format, talk.usage.input > 0) for talk in kept.conversations()]
    assert sorted(recorded) == [("anthropic", True), ("chat", True), ("chat", True), ("responses", True)]


async def test_a_translated_call_is_one_call_of_one_conversation(callback, kept):
    said = [{"role": "user", "content": "Three."}]
    with ScriptedUpstream(otherwise=echo) as server:
        reply = await litellm.anthropic.messages.acreate(**place(server), max_tokens=100, messages=said)
    assert reply["content"][0]["text"] == "Three."
    (talk,) = kept.conversations()
    assert (talk.format, talk.usage.input > 0) == ("anthropic", True)
    assert len(kept.store.calls(kept.owner, talk.id)) == 1


def test_a_refused_completion_is_sent_again_smaller(callback):
    asked = [
        part
        for at in range(8)
        for part in (
            {"role": "user", "content": f"{at}. " + "The tide. " * 150},
            {"role": "assistant", "content": "Yes."},
        )
    ]
    asked.append({"role": "user", "content": "Go on."})
    with ScriptedUpstream(overflow("openai", window=2_000, prompt=2_500), "Going on.") as server:
        reply = callback.wrap(litellm.completion)(**place(server), messages=asked)
    assert reply.choices[0].message.content == "Going on."
    assert len(server.requests[1].body) < len(server.requests[0].body)


async def test_streams_responses_and_messages(callback, kept):
    with ScriptedUpstream(otherwise=echo) as server:
        stream = await litellm.acompletion(
            **place(server),
            messages=[{"role": "user", "content": "One."}],
            stream=True,
            stream_options={"include_usage": True},
            metadata={"refold_conversation": "one"},
        )
        said = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        answer = await litellm.aresponses(**place(server), input="Two.")
        message = await litellm.anthropic.messages.acreate(
            model="anthropic/scripted",
            api_base=server.url,
            api_key="any",
            max_tokens=100,
            messages=[{"role": "user", "content": "Three."}],
        )
    assert (said, answer.output_text, message["content"][0]["text"]) == ("One.", "Two.", "Three.")
    assert {talk.format for talk in kept.conversations()} == {"chat", "responses", "anthropic"}
    await until(lambda: all(talk.usage.input > 0 for talk in kept.conversations()))


async def test_a_callback_that_replaces_another_one_gets_the_usage_of_streams(callback, kept, monkeypatch):
    async def ask(name):
        stream = await litellm.acompletion(
            **place(server),
            messages=[{"role": "user", "content": "One."}],
            stream=True,
            stream_options={"include_usage": True},
            metadata={"refold_conversation": name},
        )
        assert [chunk async for chunk in stream]
        await until(lambda: {talk.id: talk.usage.input for talk in kept.conversations()}[name])

    with ScriptedUpstream(otherwise=echo) as server:
        await ask("first")
        monkeypatch.setattr(litellm, "callbacks", [RefoldCallback(kept)])
        await ask("second")


async def test_the_words_of_a_client_are_not_recalled_by_equal_messages(callback, kept):
    """As in a proxy, where LiteLLM puts the hash of the key into the metadata."""
    said = [{"role": "user", "content": "The tide?"}]
    more = [
        *said,
        {"role": "assistant", "content": "High."},
        {"role": "user", "content": "The word is MARIGOLD."},
    ]
    with ScriptedUpstream(otherwise="High.") as server:
        for messages in (said, more):
            await litellm.acompletion(
                **place(server), messages=messages, metadata={"user_api_key_hash": "a" * 64}
            )
    (talk,) = kept.conversations()
    assert talk.messages == len(more)
    assert "MARIGOLD" not in callback.recall({"what": "MARIGOLD"}, more[:2])
    assert "MARIGOLD" in callback.recall({"what": "MARIGOLD"}, name=talk.id)


async def test_a_refusal_is_learnt(callback, kept):
    history = [
        part
        for at in range(8)
        for part in (
            {"role": "user", "content": f"{at}. " + "The tide. " * 150},
            {"role": "assistant", "content": "Yes."},
        )
    ]
    asked = [*history, {"role": "user", "content": "Go on."}]
    with ScriptedUpstream(overflow("openai", window=2_000, prompt=2_500), "Going on.") as server:
        with pytest.raises(litellm.ContextWindowExceededError):
            await litellm.acompletion(**place(server), messages=asked)
        reply = await litellm.acompletion(**place(server), messages=asked)
    assert reply.choices[0].message.content == "Going on."
    assert len(server.requests[1].body) < len(server.requests[0].body)


CALLBACK = f"""
import refold
from refold.integrations.litellm import RefoldCallback

engine = refold.sync.Engine("sqlite:///chats.db", window={WINDOW}, max_output=500)
callback = RefoldCallback(engine)
"""


@contextmanager
def proxy(folder, config, key):
    """The proxy as people start it, with the callback beside its configuration; yields its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "refold_callback.py").write_text(CALLBACK)
    (folder / "config.yaml").write_text(config)
    program = Path(sys.executable).parent / "litellm"
    argv = [str(program), "--config", "config.yaml", "--port", str(port), "--host", "127.0.0.1"]
    own = {name: value for name, value in os.environ.items() if not name.startswith("LITELLM_")}
    own |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MASTER_KEY": key}
    with (
        (folder / "proxy.log").open("w") as log,
        subprocess.Popen(argv, cwd=folder, env=own, stdout=log, stderr=subprocess.STDOUT) as process,
    ):
        try:
            wait_for(f"http://127.0.0.1:{port}/health/liveliness", process, folder / "proxy.log")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(30)


def blocks(kind):
    page = (ROOT / "docs" / "guides" / "litellm.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{kind}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def master_key():
    """The key that the commands of the guide make. Without one the proxy does not start."""
    start = "litellm --config config.yaml"
    (commands,) = [one for one in blocks("sh") if start in one]
    shown = commands.replace(start, 'printf %s "$LITELLM_MASTER_KEY"')
    own = {"PATH": os.environ["PATH"]}
    return subprocess.run(["sh", "-c", shown], env=own, capture_output=True, text=True, check=True).stdout


def proxy_config(server):
    """The configuration of the guide, with the scripted provider as the model."""
    (found,) = blocks("yaml")
    model = "model: openai/gpt-4o-mini\n"
    assert model in found
    place = f"      api_base: {server.url}/v1\n      api_key: any\n      max_retries: 0\n"
    return found.replace(model, model + place)


def test_the_proxy(tmp_path):
    key = master_key()
    with served() as server:
        with proxy(tmp_path, proxy_config(server), key) as url:
            play(url, key, tmp_path)
        check_session(server, "litellm (proxy)", version("litellm"))


CUSTOM_AUTH = """
from litellm.proxy._types import UserAPIKeyAuth


async def user_api_key_auth(request, api_key):
    if api_key.startswith("no-key-"):
        return UserAPIKeyAuth(user_id=api_key)
    return UserAPIKeyAuth(api_key=api_key)
"""


def test_no_client_of_the_proxy_reaches_the_names_of_another_and_no_key_is_stored(tmp_path):
    """Keys that LiteLLM does not hash, with equal beginnings, and users without a key."""
    (tmp_path / "own_auth.py").write_text(CUSTOM_AUTH)
    clients = ["customer-key-alice", "customer-key-mallory", "no-key-bob", "no-key-eve", "a" * 64]
    with ScriptedUpstream(otherwise=echo) as server:
        config = proxy_config(server).replace(
            "general_settings:\n", "general_settings:\n  custom_auth: own_auth.user_api_key_auth\n"
        )
        with proxy(tmp_path, config, master_key()) as url:
            for key in clients:
                with openai.OpenAI(base_url=url, api_key=key, max_retries=0) as client:
                    for name in ("boats", "x" * 5_000):
                        client.chat.completions.create(
                            model="gpt-4o-mini",
                            messages=[{"role": "user", "content": f"From client {clients.index(key)}."}],
                            extra_headers={"X-Refold-Conversation": name},
                        )
                    client.responses.create(
                        model="gpt-4o-mini",
                        input="And this?",
                        metadata={"user_api_key": "a" * 64, "user_api_key_hash": "a" * 64},
                        extra_headers={"X-Refold-Conversation": "answers"},
                    )
    with refold.sync.Engine(f"sqlite:///{tmp_path}/chats.db") as engine:
        known = {one.id: (one.messages, one.branches) for one in engine.conversations()}
    assert set(known.values()) == {(1, 1)}, known
    owners = {name.partition("/")[0] for name in known}
    assert (len(known), len(owners)) == (3 * len(clients), len(clients))
    assert "a" * 12 in owners, "the name of a hashed key stays as it was"
    assert not [name for name in known if "key" in name]


def test_no_client_of_the_proxy_continues_the_unnamed_conversation_of_another(tmp_path):
    """Equal questions get equal replies, so the histories of two clients begin with the same messages."""
    (tmp_path / "own_auth.py").write_text(CUSTOM_AUTH)
    keys = ["customer-key-alice", "customer-key-mallory"]
    said = {key: [] for key in keys}
    with ScriptedUpstream(otherwise=echo) as server:
        config = proxy_config(server).replace(
            "general_settings:\n", "general_settings:\n  custom_auth: own_auth.user_api_key_auth\n"
        )
        with proxy(tmp_path, config, master_key()) as url:
            for text in ("The tide?", "And the wind?", "Thanks."):
                for key in keys:
                    said[key].append({"role": "user", "content": text})
                    with openai.OpenAI(base_url=url, api_key=key, max_retries=0) as client:
                        reply = client.chat.completions.create(model="gpt-4o-mini", messages=said[key])
                    said[key].append({"role": "assistant", "content": reply.choices[0].message.content})
    with refold.sync.Engine(f"sqlite:///{tmp_path}/chats.db") as engine:
        known = {one.id: (one.messages, one.branches) for one in engine.conversations()}
    assert [*known.values()] == [(5, 1), (5, 1)], known
    assert len({name.partition("/")[0] for name in known}) == len(keys)


def play(url, key, folder):
    """A session through the proxy. The recalls are answered from the store, as a client on the same machine may."""
    messages = [{"role": "system", "content": SYSTEM}]
    with openai.OpenAI(base_url=url, api_key=key, max_retries=0) as client:
        for turn in range(TURNS + 1):
            messages.append({"role": "user", "content": question(turn)})
            while messages[-1]["role"] != "assistant":
                reply = client.chat.completions.create(
                    model="gpt-4o-mini",
                    messages=messages,
                    tools=TOOLS,
                    extra_headers={"X-Refold-Conversation": "harbour"},
                )
                message = reply.choices[0].message
                messages.append(plain(message))
                if message.tool_calls and message.tool_calls[0].function.name == "recall":
                    with refold.sync.Engine(f"sqlite:///{folder}/chats.db") as engine:
                        (talk,) = [one.id for one in engine.conversations() if one.id.endswith("harbour")]
                        opened = engine.conversation(talk)
                        messages += [*answers(message, partial(refold.sync.answer_recall, opened))]
                else:
                    messages += answers(message, None)


def wait_for(url, process, log):
    until = time.monotonic() + 120
    while time.monotonic() < until:
        assert process.poll() is None, log.read_text()[-2_000:]
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(log.read_text()[-2_000:])


def test_the_guide(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(litellm, "callbacks", [])
    with ScriptedUpstream(otherwise=echo) as server:
        monkeypatch.setenv("OPENAI_API_BASE", f"{server.url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "any")
        run_page("litellm.md")
