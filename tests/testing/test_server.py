from __future__ import annotations

import ast
import inspect
import logging
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import aiohttp
import pytest

import refold.testing
from refold.testing import SILENT, WORDINGS, Received, ScriptedUpstream, rate_limited, say, think
from tests.testing.exchanges import PROTOCOLS, ask, post

PACKAGE = Path(refold.testing.__file__).parent


async def test_everything_that_came_is_kept(server):
    server.script(otherwise="ok")

    await post(
        server, "/v1/messages/count_tokens", {"model": "m", "messages": [{"role": "user", "content": "a"}]}
    )
    await ask(server, "anthropic", "what?", system="Be brief.", stream=True)
    counted, asked = server.requests

    assert (counted.path, asked.path) == ("/v1/messages/count_tokens", "/v1/messages")
    assert (asked.number, asked.model, asked.stream, asked.text, asked.system, asked.key) == (
        2,
        "m",
        True,
        "what?",
        "Be brief.",
        "k",
    )
    assert asked.json["messages"] == [{"role": "user", "content": "what?"}]
    assert [message.role for message in asked.messages] == ["user"]
    assert asked.headers["anthropic-version"]


async def test_what_was_answered_is_kept_too():
    async with ScriptedUpstream("one", rate_limited(), window=100) as server:
        for text in ("a", "b", "long " * 200):
            await ask(server, "chat", text)
        await ask(server, "anthropic", messages=[])

    said, limited, large, malformed = server.answered
    assert (said, limited) == (say("one"), rate_limited())
    assert (large.status, malformed.status) == (400, 400)


async def test_what_cannot_be_read_is_kept_as_well(server):
    await post(server, "/v1/chat/completions", b"no JSON")

    (received,) = server.requests
    assert (received.body, received.request, received.messages, received.text) == (b"no JSON", None, (), "")


async def test_neither_a_log_nor_a_printed_request_shows_what_was_said(server, caplog, capfd):
    with caplog.at_level(logging.DEBUG):
        await ask(server, "chat", "a-secret-of-the-user")
        await post(server, "/v1/chat/completions", b"a-secret-of-the-user")

    printed = capfd.readouterr()
    shown = f"{server.requests!r} {caplog.text} {printed.out} {printed.err}"
    assert "a-secret-of-the-user" not in shown
    assert shown.startswith("[<request 1: /v1/chat/completions, 1 messages, ")


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_the_same_script_gives_the_same_bytes(protocol):
    contents = []
    for _ in range(2):
        async with ScriptedUpstream(otherwise=say(think("x"), "Hello.")) as server:
            answered = [await ask(server, protocol, stream=stream) for stream in (False, True)]
            contents.append([answer.content for answer in answered])

    assert contents[0] == contents[1]


def test_a_thread_serves_plain_tests_and_ends_with_them():
    before = threading.active_count()
    with ScriptedUpstream("ok") as server:
        assert server.url.startswith("http://127.0.0.1:")
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


def test_what_a_function_raises_fails_a_plain_test_too():
    def check(_):
        raise AssertionError("not what was expected")

    def run():
        with ScriptedUpstream(check) as server:
            body = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'
            request = urllib.request.Request(f"{server.url}/v1/chat/completions", body)
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request)
            refused.value.close()

    with pytest.raises(AssertionError, match="not what was expected"):
        run()


async def test_a_long_reply_is_no_trouble(server):
    server.script("word " * 500_000, "word " * 20_000)

    whole, streamed = await ask(server, "chat"), await ask(server, "anthropic", stream=True)

    assert len(whole.content) > 2_500_000
    assert len(streamed.events) > 4_000


async def test_models_tell_their_window(server, gpt, claude):
    (by_openai,) = [model async for model in gpt.models.list()]
    (by_anthropic,) = [model async for model in claude.models.list()]
    one = await claude.models.retrieve("claude-x")

    assert (by_openai.id, by_openai.max_model_len) == ("scripted", 128_000)
    assert (by_anthropic.id, by_anthropic.max_input_tokens) == ("scripted", 128_000)
    assert one.id == "claude-x"


async def test_an_unknown_path_is_not_found(server):
    async with aiohttp.ClientSession() as session, session.get(f"{server.url}/v2/what") as answered:
        assert answered.status == 404


async def test_two_servers_run_side_by_side(server):
    async with ScriptedUpstream("there") as other:
        server.answers.append("here")
        assert (await ask(other, "chat")).json["choices"][0]["message"]["content"] == "there"
        assert (await ask(server, "chat")).json["choices"][0]["message"]["content"] == "here"


def test_the_package_stands_on_wire_core_model_and_tokens_alone():
    allowed = ("refold.testing", "refold.wire", "refold.core", "refold.model", "refold.tokens")
    for path in PACKAGE.glob("*.py"):
        more = ("refold.sync",) if path.name == "evaluation.py" else ()  # it adapts the face that users have
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("refold"):
                assert node.module.startswith((*allowed, *more)), path.name


def test_without_aiohttp_it_says_what_to_install():
    code = "import sys; sys.modules['aiohttp'] = None; import refold.testing"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )

    assert "pip install 'refold[testing]'" in done.stderr


def test_the_page_names_everything_there_is():
    page = (PACKAGE.parents[2] / "docs" / "testing-your-app.md").read_text(encoding="utf-8")
    settings = inspect.signature(ScriptedUpstream).parameters
    fields = [name for name in dir(Received) if not name.startswith("_")]

    wanted = {*refold.testing.__all__, *settings, *WORDINGS, *SILENT, *fields}
    assert not [name for name in wanted if not re.search(rf"[`*]{re.escape(name)}\b", page)]
