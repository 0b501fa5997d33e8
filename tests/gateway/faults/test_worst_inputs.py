"""While the worst texts are worked on, a gateway answers others, and ends when it is told to. Nothing here is timed: what does not come
within a guard hangs.
"""

from __future__ import annotations

import asyncio
import base64
import os
import random
import signal
import threading
from collections.abc import Callable

import aiohttp
import msgspec
import pytest

from refold.config import Layer, resolve
from refold.config.layers import flat
from refold.engine import actions
from refold.gateway import server
from refold.stores.memory import MemoryStore
from refold.testing import ScriptedUpstream
from refold.text_work import MAX_LOOP_BYTES
from tests.gateway.faults.process import Program
from tests.program import command

GUARD_S = 60
"""For anything: a hundred times what it takes on a busy machine."""
ENDS_S = 30
"""For a gateway that is told to end: three times what it promises."""
SUMMARY = "## Goal\nFind out why it fails."
_WORDS = ("the", "build", "fails", "because", "a", "test", "imports", "what", "was", "moved", "last", "week")


def prose(size: int) -> str:
    chance, said, length = random.Random(7), [], 0
    while length < size:
        said.append(" ".join(chance.choices(_WORDS, k=12)).capitalize() + ".")
        length += len(said[-1]) + 1
    return "\n".join(said)[:size]


UNDERSCORES = 'Why is password = "' + "a_" * 40 + '1" refused?'
ESCAPES = "\\" * 15 + "u0075" + "\\" * 7 + "u003d"
TEXTS = {
    "underscores in a password": ("user", UNDERSCORES),
    "digits after a password": ("user", "password" + "1" * 40 + "z= is what I typed"),
    "wrapped lines in small letters": (
        "user",
        ("lower case words that go on and on without any end to them at all\n" * 2_400),
    ),
    "a line of blanks": ("assistant", " " * 20_000 + "x"),
    "comments of keys": ("tool", "Comment: Private-Lines: 1\n" * 4_000),
    "escapes within escapes": ("tool", ESCAPES * 14_000),
    "many passwords": ("tool", "".join(f'password="pa{number:x}Ss!{number}"\n' for number in range(12_000))),
    "5 MB of prose": ("user", lambda: prose(5 << 20)),
    "10 MB of base64": ("tool", lambda: base64.b64encode(random.Random(3).randbytes(7_500_000)).decode()),
    "2 million short lines": ("tool", "a\n" * 2_000_000),
}
"""Those that have taken longest, or for ever: who says it, and what; the largest are made where they are needed."""


def messages(role: str, text: str | Callable[[], str]) -> list[dict]:
    """A conversation that is too long for its window and holds a text, so that the text is summed up as well."""
    text = text() if callable(text) else text
    said = [{"role": "user", "content": "Why does it fail?"}]
    if role == "tool":
        called = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
        said.append({"role": "assistant", "content": None, "tool_calls": [called]})
        said.append({"role": "tool", "tool_call_id": "c1", "content": text})
        said.append({"role": "assistant", "content": "I see."})
    elif role == "assistant":
        said.append({"role": "assistant", "content": text})
    else:
        said += [{"role": "assistant", "content": "Tell me more."}, {"role": "user", "content": text}]
        said.append({"role": "assistant", "content": "I see."})
    for number in range(12):
        said.append({"role": "user", "content": f"{number} {prose(3_000)}"})
        said.append({"role": "assistant", "content": f"{number} {prose(3_000)}"})
    return [*said, {"role": "user", "content": "And now?"}]


async def sent(body: bytes, is_sent: asyncio.Event):
    """A body, and when all of it is out."""
    for start in range(0, len(body), 1 << 18):
        yield body[start : start + (1 << 18)]
    is_sent.set()


async def post(session: aiohttp.ClientSession, url: str, said: list[dict], is_sent: asyncio.Event) -> int:
    body = msgspec.json.encode({"model": "gpt-4o", "messages": said})
    headers = {"content-type": "application/json", "x-refold-conversation": "talk"}
    async with session.post(
        f"{url}/v1/chat/completions", data=sent(body, is_sent), headers=headers
    ) as answer:
        await answer.read()
        return answer.status


async def is_healthy(session: aiohttp.ClientSession, url: str) -> bool:
    async with asyncio.timeout(GUARD_S), session.get(f"{url}/healthz") as answer:
        return answer.status == 200


def answer(received) -> str:
    return SUMMARY if "You write checkpoints" in str(received.json) else "Fine."


@pytest.fixture
def provider():
    with ScriptedUpstream(otherwise=answer, window=10**8, validates=False) as upstream:
        yield upstream


def program(tmp_path, provider) -> Program:
    return Program(
        f"sqlite:///{tmp_path}/talks.db",
        f"{provider.url}/v1",
        "--compaction-window",
        "12000",
        "--server-stop-s",
        "10",
        home=tmp_path,
        command=command(),
    )


@pytest.mark.parametrize("name", TEXTS)
async def test_others_are_answered_and_it_ends_when_it_is_told_to(tmp_path, provider, name):
    async with program(tmp_path, provider) as gateway, aiohttp.ClientSession() as session:
        said, is_sent = messages(*TEXTS[name]), asyncio.Event()
        async with asyncio.timeout(2 * GUARD_S):
            first = asyncio.create_task(post(session, gateway.url, said, is_sent))
            await is_sent.wait()
            assert await is_healthy(session, gateway.url)
            assert await first == 200
            # The summary of it is being written, and the next turn comes.
            more = [*said, {"role": "assistant", "content": "Fine."}, {"role": "user", "content": "Go on."}]
            second = asyncio.create_task(post(session, gateway.url, more, asyncio.Event()))
            assert await is_healthy(session, gateway.url)
            assert await second == 200
        gateway.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(ENDS_S):
            assert await gateway.ended() == 0
    assert b"Traceback" not in gateway.err


async def test_it_ends_while_it_is_at_work(tmp_path, provider):
    """Told to end in the middle of a body that takes longer than the grace."""
    said = [{"role": ("user", "assistant")[number % 2], "content": prose(10_000)} for number in range(3_001)]
    async with program(tmp_path, provider) as gateway, aiohttp.ClientSession() as session:
        is_sent = asyncio.Event()
        asking = asyncio.create_task(post(session, gateway.url, said, is_sent))
        async with asyncio.timeout(GUARD_S):
            await is_sent.wait()
        assert await is_healthy(session, gateway.url)
        gateway.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(ENDS_S):
            assert await gateway.ended() == 0
        await asyncio.gather(asking, return_exceptions=True)
    assert b"Traceback" not in gateway.err


async def test_what_a_thread_is_at_work_on_when_it_ends_is_not_waited_for_nor_stored(provider, monkeypatch):
    is_begun, may_end, store = threading.Event(), threading.Event(), MemoryStore()
    address = asyncio.get_running_loop().create_future()

    def wait(state, messages, request):
        is_begun.set()
        may_end.wait(GUARD_S)

    async def open_store(_, **_more):
        return store

    monkeypatch.setattr(actions, "take_request", wait)
    monkeypatch.setattr(server, "open_store", open_store)
    monkeypatch.setattr(store, "close", lambda: asyncio.sleep(0))
    settings = {"server": {"port": 0, "stop_s": 1.0}, "upstreams": {"stub": {"url": f"{provider.url}/v1"}}}
    serve = server.serve(resolve([Layer("project", flat(settings))]), lambda url, _: address.set_result(url))
    running, said = asyncio.create_task(serve), [{"role": "user", "content": "word " * MAX_LOOP_BYTES}]
    try:
        async with asyncio.timeout(GUARD_S), aiohttp.ClientSession() as session:
            asking = asyncio.create_task(post(session, await address, said, asyncio.Event()))
            await asyncio.to_thread(is_begun.wait)
            os.kill(os.getpid(), signal.SIGTERM)
            await running
            assert not may_end.is_set()
            await asyncio.gather(asking, return_exceptions=True)
        (listed,) = await store.conversations("local")
        assert listed.messages == 0
    finally:
        may_end.set()
