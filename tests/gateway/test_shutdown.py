"""A gateway that is told to stop, as a process of its own: streams end, new requests are refused, leases are released."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import aiohttp
import msgspec
import openai
import pytest
from aiohttp import web
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from refold.engine.engine import OWNER
from refold.stores.url import open_store
from refold.testing import Received, Say, ScriptedUpstream
from tests.contract.postgres import get_server, make_database
from tests.gateway.faults.clients import Talker, is_summary, named
from tests.gateway.faults.process import Program
from tests.program import command

HANG_S = 60
ASKED = [{"role": "user", "content": "Count."}]


class HeldStream:
    """A provider that says `one`, and `two` when the test lets it go on."""

    def __init__(self) -> None:
        self.may_go_on, self.url = asyncio.Event(), ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(self._chunk("one"))
        await self.may_go_on.wait()
        with suppress(ConnectionError):
            await response.write(self._chunk(" two") + self._chunk("", "stop") + b"data: [DONE]\n\n")
        return response

    @staticmethod
    def _chunk(text: str, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
        chunk = {
            "id": "c",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m",
            "choices": [choice],
        }
        return b"data: %s\n\n" % msgspec.json.encode(chunk)


@pytest.fixture
async def held() -> AsyncIterator[HeldStream]:
    stream, app = HeldStream(), web.Application()
    app.router.add_post("/v1/chat/completions", stream.answer)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    stream.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield stream
    stream.may_go_on.set()
    await runner.cleanup()


@asynccontextmanager
async def gateway(store: str, upstream: str, folder, *flags: str) -> AsyncIterator[Program]:
    async with (
        asyncio.timeout(HANG_S),
        Program(store, upstream, *flags, home=folder, command=command()) as one,
    ):
        yield one


def client_of(program: Program) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{program.url}/v1", api_key="any", max_retries=0)


async def get(url: str) -> tuple[int, dict, dict]:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.json(), dict(response.headers)


async def readiness(program: Program, is_it: Callable[[int], bool]) -> tuple[int, dict, dict]:
    """The answer of `/readyz` as soon as its status is this."""
    while not is_it((told := await get(f"{program.url}/readyz"))[0]):
        pass
    return told


async def test_a_stream_ends_and_new_requests_are_refused_meanwhile(tmp_path, held):
    store = f"sqlite:///{tmp_path}/talks.db"
    async with gateway(store, held.url, tmp_path) as program, client_of(program) as client:
        stream = await client.chat.completions.create(
            model="m", messages=ASKED, stream=True, extra_headers={"x-refold-conversation": "talk"}
        )
        words = [(await anext(stream)).choices[0].delta.content]
        program.process.send_signal(signal.SIGTERM)

        assert (await readiness(program, lambda status: status != 200))[:2] == (503, {"status": "draining"})
        with pytest.raises(openai.InternalServerError, match="being stopped") as refused:  # noqa: PT012
            while True:  # the signal is handled at once, and requests are refused a moment later
                twin = await client.chat.completions.create(model="m", messages=ASKED, stream=True)
                await twin.close()
        told = refused.value.response
        assert (told.status_code, told.headers["retry-after"]) == (503, "1")
        assert told.headers["connection"] == "close"
        async with AsyncAnthropic(base_url=program.url, api_key="any", max_retries=0) as other:
            with pytest.raises(Exception, match=r"api_error.*being stopped"):
                await other.messages.create(model="m", max_tokens=9, messages=ASKED)
        assert (await get(f"{program.url}/healthz"))[:2] == (200, {"status": "ok"})

        held.may_go_on.set()
        words += [one.choices[0].delta.content async for one in stream]
        assert "".join(filter(None, words)) == "one two"
        assert await program.ended() == 0
    assert '"one two"' in await exported(store)


async def test_several_processes_that_are_all_stopped_refuse_new_requests_as_one_does(tmp_path, held):
    store = f"sqlite:///{tmp_path}/talks.db"
    async with (
        asyncio.timeout(HANG_S),
        Program(store, held.url, "--workers", "2", home=tmp_path) as program,
        client_of(program) as client,
    ):
        stream = await client.chat.completions.create(model="m", messages=ASKED, stream=True)
        words = [(await anext(stream)).choices[0].delta.content]
        program.process.send_signal(signal.SIGTERM)
        told, refused = (0, {}, {}), None
        while told[0] != 503 or refused is None:
            try:
                told = await get(f"{program.url}/readyz")
                twin = await client.chat.completions.create(model="m", messages=ASKED, stream=True)
                await twin.close()
            except openai.InternalServerError as error:
                refused = error
            except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError, openai.APIConnectionError):
                pass  # it was accepted by a process that has just ended
        assert told[1] == {"status": "draining"}
        assert (refused.status_code, refused.response.headers["retry-after"]) == (503, "1")
        assert "being stopped" in str(refused)
        held.may_go_on.set()
        words += [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(words) == "one two"
        assert await program.process.wait() == 0


async def exported(store: str) -> str:
    argv = [*command(), "export", "talk", "--store", store]
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode()


async def test_what_takes_longer_than_the_limit_is_cut_off_and_counted(tmp_path, held):
    store = f"sqlite:///{tmp_path}/talks.db"
    async with (
        gateway(store, held.url, tmp_path, "--server-stop-s", "0") as program,
        client_of(program) as client,
    ):
        stream = await client.chat.completions.create(
            model="m", messages=ASKED, stream=True, extra_headers={"x-refold-conversation": "talk"}
        )
        assert (await anext(stream)).choices[0].delta.content == "one"
        program.process.send_signal(signal.SIGTERM)

        with pytest.raises(openai.APIError, match="being stopped"):
            async for _ in stream:
                pass
        assert await program.ended() == 0
    assert b"requests in progress were cut off requests=1" in program.err
    opened = await open_store(store)
    (call,) = await opened.calls(OWNER, "talk")
    await opened.close()
    assert (call.kind, call.upstream) == ("reply", "stub")  # the provider may bill it


async def test_a_request_without_an_answer_yet_is_refused_at_the_limit(tmp_path):
    asked = asyncio.Event()

    async def wait(_: Received) -> str:
        asked.set()
        await asyncio.Event().wait()
        return ""

    async with (
        ScriptedUpstream(otherwise=wait, window=None) as upstream,
        gateway("memory:", f"{upstream.url}/v1", tmp_path, "--server-stop-s", "0") as program,
        client_of(program) as client,
    ):
        asking = asyncio.create_task(client.chat.completions.create(model="m", messages=ASKED))
        await asked.wait()
        program.process.send_signal(signal.SIGTERM)

        with pytest.raises(openai.InternalServerError, match="being stopped") as refused:
            await asking
        assert refused.value.status_code == 503
        assert await program.ended() == 0


async def test_a_load_balancer_has_time_to_notice(tmp_path):
    async with (
        ScriptedUpstream(otherwise="Fine.", window=None) as upstream,
        gateway("memory:", f"{upstream.url}/v1", tmp_path, "--server-drain-s", "3600") as program,
        client_of(program) as client,
    ):
        program.process.send_signal(signal.SIGTERM)
        await readiness(program, lambda status: status == 503)

        answer = await client.chat.completions.with_raw_response.create(model="m", messages=ASKED)

        assert answer.parse().choices[0].message.content == "Fine."
        assert answer.headers["connection"] == "close"  # the client's next request opens another connection
        program.process.send_signal(signal.SIGINT)  # who does not want to wait says so once more
        assert await program.ended() == 0


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_another_gateway_takes_an_unfinished_summary_at_once(tmp_path, pytestconfig, kind):
    store = f"sqlite:///{tmp_path}/talks.db"
    if kind == "postgresql":
        store = make_database(get_server(pytestconfig), "shutdown")
    asked: asyncio.Queue[None] = asyncio.Queue()

    async def answer(received: Received) -> Say:
        if is_summary(received):
            asked.put_nowait(None)
            await asyncio.Event().wait()
        return named(received)

    flags, talker = ("--window", "2500"), Talker("talk")
    async with (
        ScriptedUpstream(otherwise=answer, window=None) as upstream,
        aiohttp.ClientSession() as session,
    ):
        address = f"{upstream.url}/v1"
        async with gateway(store, address, tmp_path, *flags) as program:
            while asked.empty():
                assert await talker.turn(session, program.url)
            asked.get_nowait()
            program.process.send_signal(signal.SIGTERM)
            assert await program.ended() == 0
        opened = await open_store(store)
        left = await opened.unfinished(OWNER)
        await opened.close()
        # Not `running`, which another would have to wait for, and not `failed`.
        assert [one.state for one in left] == ["planned"]

        async with gateway(store, address, tmp_path, *flags) as program:
            while asked.empty():
                assert await talker.turn(session, program.url)
