"""What is told of conversations behind the gateway: to their owner, and into the log."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import pytest
import uvicorn

from refold.config.tree import Notify
from refold.engine.events import ContextSize, Pruned, Reduction
from refold.gateway.admin import BEAT, Admin, EventStream
from refold.gateway.auth import Rules, id_of, mint
from refold.gateway.events import KEPT, Channel, Events
from refold.gateway.server import GatewayServer, OriginForm, RequestsInProgress, build
from refold.stores.memory import MemoryStore
from refold.testing import ScriptedUpstream
from tests.gateway.conftest import served
from tests.gateway.gates import make_key
from tests.gateway.served_gateway import scope_of
from tests.gateway.test_log import log  # noqa: F401  # a fixture

PATIENCE_S = 30
"""For what should be there at once: a test that fails should end."""
WORDS = "tell me about the canary "
PRUNED = Pruned(
    conversation="chat",
    path="automatic",
    reason="full",
    before=ContextSize(9_000, "counted", 10_000, 90),
    after=ContextSize(2_000, "counted", 10_000, 20),
    reductions=(Reduction("prune", 3, 3, 8_000, 1_000),),
)


class Stream:
    """An event stream, read as a browser reads it."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def block(self) -> bytes:
        """The lines up to the next empty one."""
        return await self.response.content.readuntil(b"\n\n")

    async def next(self) -> tuple[str, dict]:
        """The id and the data of the next message; comments, and the usage of every call, are passed over."""
        block = BEAT
        async with asyncio.timeout(PATIENCE_S):
            while block == BEAT or b"event: usage_recorded\n" in block:
                block = await self.block()
        fields = dict(line.split(": ", 1) for line in block.decode().strip().split("\n"))
        data = json.loads(fields["data"])
        assert data["event"] == fields["event"]
        return fields.get("id", ""), data


@asynccontextmanager
async def listening(url: str, **headers: str) -> AsyncIterator[Stream]:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{url}/refold/events", headers=sent) as response,
    ):
        stream = Stream(response)
        assert (response.status, response.content_type) == (200, "text/event-stream")
        assert await stream.block() == BEAT
        yield stream


async def chat(gate, name="chat", turns=16, **headers) -> None:
    """A conversation that grows beyond its window."""
    messages: list[dict[str, str]] = []
    for number in range(turns):
        messages.append({"role": "user", "content": f"{number} {WORDS * 100}"})
        body = msgspec.json.encode({"model": "gpt-5", "messages": messages})
        sent = {"x_refold_conversation": name, **headers}
        status, _, _ = await gate.post("/v1/chat/completions", body, **sent)
        assert status == 200
        messages.append({"role": "assistant", "content": "Fine."})


@pytest.mark.feature("O3", "L15")
async def test_who_listens_hears_of_every_compaction_as_it_happens(gate):
    async with listening(gate.url) as stream:
        await chat(gate)
        _, start = await stream.next()
        number, end = await stream.next()

    assert (start["event"], end["event"], end["outcome"]) == (
        "compaction_start",
        "compaction_end",
        "installed",
    )
    assert start["conversation"] == end["conversation"] == "chat"
    assert start["before"] == end["before"]
    assert end["after"]["tokens"] < end["before"]["tokens"] == sum(end["before"]["regions"].values())
    assert end["text"].startswith("⚙️ Compacted (")
    assert end["at"] > 0
    assert number
    assert "canary" not in json.dumps([start, end])


@pytest.mark.feature("O3")
async def test_what_is_asked_for_over_http_is_told_too(gate):
    await chat(gate, turns=6)
    async with listening(gate.url) as stream:
        for path in ("compact", "undo"):
            status, _, _ = await gate.post(f"/refold/conversations/chat/{path}", b"{}")
            assert status == 200
        told = [(await stream.next())[1] for _ in range(3)]

    assert [one["event"] for one in told] == ["compaction_start", "compaction_end", "undone"]
    assert {one.get("path") for one in told[:2]} == {"manual"}
    assert told[1]["outcome"] == "installed"


async def test_a_compaction_over_http_that_would_save_nothing_is_told_as_skipped(gate):
    """The summary of so few and short messages is as large as they are."""
    said = ("Where is it?", "Here.", "And the other one?", "There.", "Fine.")
    messages = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(said)]
    body = msgspec.json.encode({"model": "gpt-5", "messages": messages})
    await gate.post("/v1/chat/completions", body, x_refold_conversation="chat")
    async with listening(gate.url) as stream:
        status, _, body = await gate.post("/refold/conversations/chat/compact", b"{}")
        told = [(await stream.next())[1] for _ in range(2)]

    assert (status, json.loads(body)["compactions"]) == (200, 0)
    assert [one["event"] for one in told] == ["compaction_start", "compaction_end"]
    assert told[1]["outcome"] == "skipped"
    assert "the summary was not used" in told[1]["problem"]


@pytest.mark.feature("O3")
async def test_a_refusal_that_is_got_over_is_told():
    async with (
        ScriptedUpstream(otherwise="Fine.", window=4_000) as upstream,
        served(upstream, window=100_000, summariser_enabled=False) as gate,
        listening(gate.url) as stream,
    ):
        await chat(gate, turns=10)
        told = [(await stream.next())[1] for _ in range(3)]

    assert [one["event"] for one in told] == ["compaction_start", "compaction_end", "recovered"]
    assert told[0]["path"] == "overflow"


async def test_who_comes_back_hears_what_was_told_meanwhile(gate):
    async with listening(gate.url) as stream:
        await chat(gate)
        first, _ = await stream.next()
    async with listening(gate.url, last_event_id=first) as stream:
        _, end = await stream.next()
    async with listening(gate.url) as stream:
        await chat(gate, "other")
        _, news = await stream.next()

    assert end["event"] == "compaction_end"
    assert news["conversation"] == "other", "who comes for the first time hears what is next"


@pytest.mark.feature("X18")
async def test_nobody_hears_of_another_owner(upstream):
    store = MemoryStore()
    anna, ben = await make_key(store, "anna"), await make_key(store, "ben")
    async with served(upstream, store=store, window=8_000, summariser_enabled=False) as gate:
        async with (
            listening(gate.url, x_refold_key=anna) as hers,
            listening(gate.url, x_refold_key=ben) as his,
        ):
            await chat(gate, "annas", x_refold_key=anna)
            await chat(gate, "bens", x_refold_key=ben)
            assert (await his.next())[1]["conversation"] == "bens"
            assert (await hers.next())[1]["conversation"] == "annas"
        async with aiohttp.ClientSession() as session, session.get(f"{gate.url}/refold/events") as response:
            assert response.status == 401


async def test_the_gateway_does_not_wait_for_who_listens(upstream):
    async with served(upstream) as gate:
        app = RequestsInProgress(build(gate.gateway, Admin(gate.gateway, "test"), Rules()))
        config = uvicorn.Config(app, http=OriginForm, lifespan="off", loop="asyncio", log_config=None)
        config.load()
        server = GatewayServer(config, app, ending=gate.gateway.events.close, stop_s=PATIENCE_S)
        server.lifespan = config.lifespan_class(config)
        with socket.create_server(("127.0.0.1", 0)) as bound:
            await server.startup(sockets=[bound])
            async with listening(f"http://127.0.0.1:{bound.getsockname()[1]}") as stream:
                async with asyncio.timeout(PATIENCE_S):
                    await server.shutdown(sockets=[bound])
                assert await stream.response.content.read() == b""


@pytest.mark.feature("X18")
async def test_who_has_no_key_any_more_hears_nothing_any_more(upstream):
    store = MemoryStore()
    key = await make_key(store, "anna")
    async with (
        served(upstream, store=store, window=8_000, summariser_enabled=False) as gate,
        listening(gate.url, x_refold_key=key) as stream,
    ):
        await store.revoke_key("anna", id_of(key), 2.0)
        gate.gateway.events.tell("anna", PRUNED, Notify())
        async with asyncio.timeout(PATIENCE_S):
            assert await stream.response.content.read() == b""


async def test_who_came_in_without_a_key_leaves_when_there_are_some(gate):
    async with listening(gate.url) as stream:
        await make_key(gate.store, "anna")
        gate.gateway.events.tell("local", PRUNED, Notify())
        async with asyncio.timeout(PATIENCE_S):
            assert await stream.response.content.read() == b""


class Client:
    """A client without a socket, which may leave, and reads nothing until it is told to."""

    def __init__(self, *, reads: bool = True) -> None:
        self.sent: list[bytes] = []
        self.may_read, self.is_asked, self.has_heard, self.leaves = (asyncio.Event() for _ in range(4))
        if reads:
            self.may_read.set()

    async def send(self, message) -> None:
        self.is_asked.set()
        await self.may_read.wait()
        self.sent.append(message.get("body", b""))
        if self.sent.count(BEAT) == 3:
            self.has_heard.set()

    async def receive(self):
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    def get(self, events: Events, method: str = "GET", **settings) -> asyncio.Task[None]:
        state = {"owner": "anna", "key_id": ""}
        scope = scope_of("/refold/events") | {"state": state, "method": method}
        page = EventStream(events, MemoryStore(), **settings)
        return asyncio.create_task(page(scope, self.receive, self.send))


async def test_a_listener_that_leaves_is_let_go():
    client = Client()
    page = client.get(Events(lambda: 1.0, "here"))
    await client.is_asked.wait()
    client.leaves.set()

    async with asyncio.timeout(PATIENCE_S):
        await page


async def test_a_slow_listener_loses_the_oldest_and_is_told_how_many():
    events, slow = Events(lambda: 1.0, "here"), Client(reads=False)
    page = slow.get(events)
    await slow.is_asked.wait()
    for _ in range(KEPT + 44):
        events.tell("anna", PRUNED, Notify())
    slow.may_read.set()
    events.close()
    await page

    lost, first, *_ = messages = [body for body in slow.sent if body not in (b"", BEAT)]
    assert lost == b'event: lost\ndata: {"event":"lost","count":44}\n\n'
    assert first.startswith(b"id: here-45\n")
    assert messages[-1].startswith(b"id: here-%d\n" % (KEPT + 44))
    assert len(messages) == KEPT + 1


def told(channel: Channel, last_id: str) -> list[bytes]:
    return [line.split(b"\n")[0] for line in channel.since(channel.place(last_id)).lines]


def test_where_somebody_was_is_known_for_as_long_as_it_is_kept():
    channel = Channel("here", kept=3)
    assert told(channel, "") == []
    for number in range(5):
        channel.put("pruned", (b"%d" % number).__bytes__)

    assert told(channel, "") == []
    assert told(channel, "here-4") == [b"id: here-5"]
    assert told(channel, "here-1") == [b"event: lost", b"id: here-3", b"id: here-4", b"id: here-5"]
    assert b'"count":1' in channel.since(channel.place("here-1")).lines[0]


@pytest.mark.parametrize("last_id", ["gone-4", "here-6", "here-x", "here-4 ", "4", "here-" + "9" * 5_000])
def test_who_was_at_another_process_has_missed_nobody_knows_how_much(last_id):
    channel = Channel("here", kept=3)
    for number in range(5):
        channel.put("pruned", (b"%d" % number).__bytes__)

    assert told(channel, last_id) == [b"event: lost", b"id: here-3", b"id: here-4", b"id: here-5"]
    assert b'"count":null' in channel.since(channel.place(last_id)).lines[0]


async def test_where_nothing_happens_there_is_a_sign_of_life():
    events, client = Events(lambda: 1.0, "here"), Client()
    page = client.get(events, heartbeat_s=0.001)
    async with asyncio.timeout(PATIENCE_S):
        await client.has_heard.wait()
    events.close()
    await page

    assert client.sent[-1] == b"", "the stream ends with the gateway, and properly"


async def test_no_sign_of_life_comes_after_the_key_was_revoked():
    store, client = MemoryStore(), Client()
    _, row = mint("anna", at=1.0)
    await store.add_key(row)
    scope = scope_of("/refold/events") | {"state": {"owner": "anna", "key_id": row.id}, "method": "GET"}
    stream = EventStream(Events(lambda: 1.0, "here"), store, heartbeat_s=0.001)
    page = asyncio.create_task(stream(scope, client.receive, client.send))
    async with asyncio.timeout(PATIENCE_S):
        await client.has_heard.wait()
        await store.revoke_key("anna", row.id, 2.0)
        heard = client.sent.count(BEAT)
        await page

    assert client.sent.count(BEAT) == heard


async def test_who_asks_for_the_headers_only_gets_them():
    client = Client()
    await client.get(Events(lambda: 1.0, "here"), "HEAD")

    assert client.sent == [b"", b""]


@pytest.mark.feature("L15")
async def test_what_is_told_is_in_the_log(gate, log):  # noqa: F811
    written = log("text")
    await chat(gate)

    lines = written.getvalue().splitlines()
    (line,) = [line for line in lines if " info    ⚙️ Compacted (" in line]
    assert "event=compaction_end conversation=chat" in line
    assert "outcome=installed" in line
    assert [part.split(":")[0] for part in line.split(" | ")[1:]] == [
        "🔧 System",
        "📝 Summary",
        "💬 Kept context",
        "🛠️ Tools",
        "📊 Total",
    ]
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", line) for line in lines)
    assert "canary" not in written.getvalue()


@pytest.mark.feature("L15")
def test_a_log_for_machines_has_the_facts(log):  # noqa: F811
    written = log("json")
    Events(lambda: 1.0, "here").tell("anna", PRUNED, Notify())

    told = json.loads(written.getvalue())
    assert told["message"] == "🔧 Tool outputs pruned (8k → 1k, -87%)\n  📊 Context: 2k/10k (20%)"
    assert {name: told[name] for name in ("level", "event", "owner", "conversation", "path", "reason")} == {
        "level": "info",
        "event": "pruned",
        "owner": "anna",
        "conversation": "chat",
        "path": "automatic",
        "reason": "full",
    }
    assert (told["before"], told["after"], told["results"]) == (9_000, 2_000, 3)


@pytest.mark.feature("L15")
async def test_notices_can_be_turned_off_while_it_runs(gate, caplog):
    with caplog.at_level(logging.INFO, "refold.events"):
        async with listening(gate.url) as stream:
            await chat(gate, "loud")
            assert [bool((await stream.next())[1]["text"]) for _ in range(2)] == [True, True]
            status, _, _ = await gate.post("/refold/config", b'{"notify": {"compaction": false}}')
            await chat(gate, "quiet")
            quiet = [(await stream.next())[1] for _ in range(2)]

    assert status == 200
    assert [(one["conversation"], one["text"]) for one in quiet] == [("quiet", "")] * 2
    told = [record for record in caplog.records if record.name == "refold.events"]
    assert [record.refold_facts["conversation"] for record in told] == ["loud"]


@pytest.mark.feature("L15")
def test_each_kind_of_notice_has_its_own_switch(caplog):
    events = Events(lambda: 1.0, "here")
    with caplog.at_level(logging.INFO, "refold.events"):
        events.tell("anna", PRUNED, Notify(pruning=False))
        assert not caplog.records
        events.tell("anna", PRUNED, Notify(compaction=False))

    assert len(caplog.records) == 1
