"""What cannot be stored at once: requests go on, and what was asked and answered is stored when the store takes it."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager, contextmanager

import aiohttp
import apsw
import msgspec
import pytest

from refold.model.errors import StoreError
from refold.stores.memory import MemoryStore
from refold.stores.sqlite.store import SqliteStore
from refold.testing import ScriptedUpstream, say
from tests.gateway.conftest import served
from tests.gateway.faults.wires import RawUpstream

OWNER, HANG_S = "local", 30.0
"""A guard against waiting for ever; nothing here takes a tenth of it."""


class Failing(MemoryStore):
    """A store that takes nothing while it `is_away`, and waits with calls while `may_go_on` is not set."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away, self.refuses_calls = False, False
        self.may_go_on, self.is_waiting = asyncio.Event(), asyncio.Event()
        self.may_go_on.set()

    async def create(self, head, session, **more):
        self._check()
        return await super().create(head, session, **more)

    async def commit(self, seen, batch):
        self._check()
        if batch.calls and self.refuses_calls:
            raise StoreError("the connection was cut")
        if batch.calls and not self.may_go_on.is_set():
            self.is_waiting.set()
            await self.may_go_on.wait()
        return await super().commit(seen, batch)

    def _check(self) -> None:
        if self.is_away:
            raise StoreError("the connection was cut")


def history(turns: int, more: str = "") -> list[dict[str, str]]:
    said = [{"role": "user", "content": f"question 0 {more}"}]
    for turn in range(turns):
        said += [
            {"role": "assistant", "content": f"answer {turn} {more}"},
            {"role": "user", "content": f"question {turn + 1} {more}"},
        ]
    return said


async def ask(gate, messages, **headers) -> dict[str, str]:
    body = msgspec.json.encode({"model": "gpt-5", "messages": messages})
    status, told, _ = await gate.post("/v1/chat/completions", body, x_refold_conversation="talk", **headers)
    assert status == 200
    return told


async def readiness(gate) -> tuple[int, dict]:
    async with aiohttp.ClientSession() as session, session.get(f"{gate.url}/readyz") as response:
        return response.status, await response.json()


async def stored(gate) -> list[str]:
    head = await gate.store.head(OWNER, "talk")
    return [msgspec.json.decode(one.body)["content"] for one in await gate.store.messages(head)]


async def everything_is_stored(gate) -> None:
    async with asyncio.timeout(HANG_S):
        await gate.gateway.backlog.drained()


@contextmanager
def held_lock(path):
    """Somebody else who holds the lock of the file."""
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


@asynccontextmanager
async def over_file(path, **settings):
    async with ScriptedUpstream(otherwise="Fine.") as upstream:
        store = await SqliteStore.open(path, patience_s=0.2)
        async with served(upstream, store=store, summariser_enabled=False, **settings) as gate:
            yield gate
        await store.close()


async def test_a_held_lock_lets_requests_go_on_and_what_came_meanwhile_is_stored_afterwards(tmp_path):
    path = tmp_path / "c.db"
    async with over_file(path, window=8_000) as gate, asyncio.timeout(HANG_S):
        first = await ask(gate, history(0))
        with held_lock(path):
            during = [await ask(gate, history(turn)) for turn in (1, 2, 3)]
            other = await gate.post(
                "/v1/chat/completions", b'{"model":"gpt-5","messages":[{"role":"user","content":"new"}]}'
            )
            state = await readiness(gate)
        await everything_is_stored(gate)

        assert first["x-refold-action"] == "passed"
        assert [one["x-refold-action"] for one in during] == ["not-kept"] * 3
        assert [one.get("x-refold-not-kept") for one in during] == ["1", "2", "3"]
        assert (other[0], other[1]["x-refold-action"]) == (200, "not-kept")
        assert state == (503, {"status": "not kept", "waiting": 4})
        assert await readiness(gate) == (200, {"status": "ready"})
        assert await stored(gate) == [one["content"] for one in history(3)]
        assert len(await gate.store.calls(OWNER, "talk")) == 4
        assert len(await gate.store.conversations(OWNER)) == 2
        assert "x-refold-not-kept" not in await ask(gate, history(4))


async def test_requests_do_not_queue_behind_a_held_lock(tmp_path):
    """Twenty conversations at once wait for the lock together, and not one after the other."""
    path = tmp_path / "c.db"
    async with over_file(path, window=8_000) as gate:
        await ask(gate, history(0))
        with held_lock(path):
            bodies = [
                msgspec.json.encode(
                    {"model": "m", "messages": [{"role": "user", "content": f"no. {number}"}]}
                )
                for number in range(20)
            ]
            told = await asyncio.gather(*(gate.post("/v1/chat/completions", body) for body in bodies))
            waits = gate.store._file._writer.workers._entries.qsize()
        await everything_is_stored(gate)

        assert [one[1]["x-refold-action"] for one in told] == ["not-kept"] * 20
        assert waits <= 1  # the backlog tries the oldest exchange again meanwhile, and no other
        assert len(await gate.store.conversations(OWNER)) == 21


async def test_a_folded_conversation_leaves_folded_while_nothing_can_be_stored(tmp_path):
    path, more = tmp_path / "c.db", "and many words to fill the window " * 20
    async with over_file(path, window=3_000) as gate:
        for turn in range(14):
            told = await ask(gate, history(turn, more))
        whole, sent = map(int, told["x-refold-tokens"].split("->"))
        assert sent < whole
        with held_lock(path):
            during = await ask(gate, history(14, more))
        await everything_is_stored(gate)

        assert during["x-refold-action"] == "not-kept"
        whole, sent = map(int, during["x-refold-tokens"].split("->"))
        assert sent < 3_000 < whole
        assert await stored(gate) == [one["content"] for one in history(14, more)]


async def test_a_reply_that_the_store_refuses_is_stored_when_it_takes_it():
    store = Failing()
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        served(upstream, store=store, summariser_enabled=False) as gate,
    ):
        store.refuses_calls = True
        told = await ask(gate, history(0))
        assert told["x-refold-action"] == "passed"
        assert await store.calls(OWNER, "talk") == []
        store.refuses_calls = False
        await everything_is_stored(gate)

        (call,) = await store.calls(OWNER, "talk")
        assert call.id == told["x-refold-receipt"]
        assert b"Fine." in await store.reply_to(OWNER, call.id)


@pytest.mark.parametrize("path", ["/v1/responses"])
async def test_a_chain_of_responses_goes_on_after_a_reply_that_was_stored_late(path):
    store = Failing()
    async with (
        ScriptedUpstream(otherwise=lambda _: say("Fine. " + "word " * 80), window=None) as upstream,
        served(upstream, store=store, window=2_000, summariser_enabled=False) as gate,
        gate.openai() as client,
    ):
        previous = None
        for turn in range(24):
            store.refuses_calls = turn == 3
            reply = await client.responses.create(
                model="gpt-5", input=f"step {turn} " + "word " * 40, previous_response_id=previous
            )
            previous = reply.id
            store.refuses_calls = False
            await everything_is_stored(gate)

        (listed,) = await store.conversations(OWNER)
        assert (listed.messages, listed.branches) == (47, 1)
        assert listed.compactions


@pytest.mark.parametrize("stored_turns", [0, 2])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_chain_of_responses_that_a_lock_meets_stays_one_branch(tmp_path, is_stream, stored_turns):
    path, told, previous = tmp_path / "c.db", [], None
    async with over_file(path, window=8_000) as gate, asyncio.timeout(HANG_S):

        async def respond(turn: int) -> None:
            nonlocal previous
            asked = {"model": "gpt-5", "input": f"step {turn}", "stream": is_stream}
            asked |= {"previous_response_id": previous} if previous else {}
            body = msgspec.json.encode(asked)
            _, headers, answer = await gate.post("/v1/responses", body, x_refold_conversation="talk")
            previous = re.search(rb'"id": ?"(resp_[^"]+)"', answer)[1].decode()
            told.append((headers["x-refold-action"], headers.get("x-refold-not-kept")))

        for turn in range(stored_turns):
            await respond(turn)
        with held_lock(path):
            for turn in range(stored_turns, stored_turns + 3):
                await respond(turn)
            state = await readiness(gate)
        await everything_is_stored(gate)
        await respond(stored_turns + 3)

        assert state == (503, {"status": "not kept", "waiting": 3})
        assert [action for action, _ in told] == ["passed"] * stored_turns + ["not-kept"] * 3 + ["passed"]
        if stored_turns:  # a branch that cannot be made yet has no headers of its own
            assert all(waiting for _, waiting in told[stored_turns + 1 : -1])
        (listed,) = await gate.store.conversations(OWNER)
        assert (listed.messages, listed.branches) == (2 * len(told) - 1, 1)


async def test_the_end_of_a_long_answer_waits_until_the_reply_is_stored():
    """An answer of several megabytes that is not a stream: whoever has all of it has what is stored."""
    store, text = Failing(), "x" * 3_000_000
    async with (
        ScriptedUpstream(otherwise=text, window=None) as upstream,
        served(upstream, store=store, window=2_000_000, summariser_enabled=False) as gate,
    ):
        store.may_go_on.clear()
        asked = asyncio.create_task(ask(gate, history(0)))
        async with asyncio.timeout(HANG_S):
            await store.is_waiting.wait()
        assert not asked.done()
        store.may_go_on.set()
        told = await asked

        assert text.encode() in await store.reply_to(OWNER, told["x-refold-receipt"])


async def test_a_store_that_does_not_answer_holds_the_end_of_an_answer_for_a_moment_only(monkeypatch):
    monkeypatch.setattr("refold.gateway.exchange.KEEP_S", 0.05)
    store = Failing()
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        served(upstream, store=store, summariser_enabled=False) as gate,
    ):
        store.may_go_on.clear()
        async with asyncio.timeout(HANG_S):
            told = await ask(gate, history(0))
        assert await store.reply_to(OWNER, told["x-refold-receipt"]) == b""
        store.may_go_on.set()
        await everything_is_stored(gate)

        assert b"Fine." in await store.reply_to(OWNER, told["x-refold-receipt"])


async def status(gate) -> dict:
    async with aiohttp.ClientSession() as session, session.get(f"{gate.url}/refold/status") as response:
        return await response.json()


@asynccontextmanager
async def in_small_memory(monkeypatch):
    """A gateway with room for few waiting exchanges, and its store, which takes nothing."""
    monkeypatch.setattr("refold.gateway.exchange.MAX_WAITING_BYTES", 4_000)
    store = Failing()
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        served(upstream, store=store, summariser_enabled=False) as gate,
    ):
        yield gate, store


async def test_what_waits_is_bounded_and_what_was_dropped_is_counted_until_it_comes_again(
    monkeypatch, caplog
):
    async with in_small_memory(monkeypatch) as (gate, store):
        said = [[{"role": "user", "content": f"{number} " + "word " * 80}] for number in range(30)]
        store.is_away = True
        for one in said:
            await ask(gate, one)
        code, state = await readiness(gate)
        assert (code, state["status"]) == (503, "not kept")
        assert state["waiting"] + state["dropped"] == 30 == (await status(gate))["not_kept"]
        assert 0 < state["waiting"] < 20
        store.is_away = False
        await everything_is_stored(gate)

        lost = state["dropped"]
        assert await readiness(gate) == (200, {"status": "not kept", "waiting": 0, "dropped": lost})
        assert (await status(gate))["not_kept"] == lost
        assert "dropped, and is stored only if its client sends it again" in caplog.text
        for left, one in zip(range(lost - 1, -1, -1), said, strict=False):
            more = [*one, {"role": "assistant", "content": "Fine."}, {"role": "user", "content": "On."}]
            assert "x-refold-not-kept" not in await ask(gate, more)
            assert (await status(gate))["not_kept"] == left
        assert await readiness(gate) == (200, {"status": "ready"})


async def test_the_header_counts_what_was_dropped_too(monkeypatch):
    """A client that sends its growing history: each exchange is larger than the one before, and displaces it."""
    async with in_small_memory(monkeypatch) as (gate, store):
        await ask(gate, history(0, "word " * 80))
        store.is_away = True
        told = [await ask(gate, history(turn, "word " * 80)) for turn in range(1, 9)]
        assert [one["x-refold-not-kept"] for one in told] == [str(count) for count in range(1, 9)]
        assert (await readiness(gate))[1]["dropped"] > 4
        store.is_away = False
        await everything_is_stored(gate)

        assert await readiness(gate) == (200, {"status": "ready"})
        assert await stored(gate) == [one["content"] for one in history(8, "word " * 80)]
        assert "x-refold-not-kept" not in await ask(gate, history(9, "word " * 80))


@pytest.mark.parametrize("is_waiting", [False, True], ids=["while it is answered", "while it waits"])
async def test_a_reply_of_a_deleted_conversation_is_forgotten_and_the_name_can_be_used_again(
    caplog, is_waiting
):
    store = Failing()
    caplog.set_level("INFO")
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        served(upstream, store=store, summariser_enabled=False, window=8_000) as gate,
        asyncio.timeout(HANG_S),
    ):
        if is_waiting:
            store.refuses_calls = True
            await ask(gate, history(0))
            assert len(gate.gateway.backlog) == 1
        else:
            store.may_go_on.clear()
            answer = asyncio.create_task(ask(gate, history(0)))
            await store.is_waiting.wait()
        assert await store.delete(OWNER, "talk")
        store.refuses_calls = False
        store.may_go_on.set()
        if not is_waiting:
            await answer
        await everything_is_stored(gate)

        assert (len(gate.gateway.backlog), gate.gateway.backlog.dropped) == (0, 0)
        assert "its conversation was deleted meanwhile" in caplog.text
        assert await store.head(OWNER, "talk") is None
        async with aiohttp.ClientSession() as session, session.get(f"{gate.url}/index.json") as response:
            assert (await response.json())["attention"] == []

        await ask(gate, history(1))
        assert len(await stored(gate)) == 3


async def test_an_answer_that_is_no_reply_passes_in_pieces_as_it_comes():
    """What is no conversation's is not held back: there is nothing to store."""

    async def answer(line) -> None:
        await line.begin()
        await line.send(b"a" * 10)
        await line.end("end")

    async with RawUpstream(answer) as upstream, served(upstream) as gate:
        status, _, body = await gate.post("/v1/embeddings", b"{}")

    assert (status, body) == (200, b"a" * 10)


class Away(SqliteStore):
    """A file that takes no commit of this program while it `is_away`."""

    is_away = False

    async def commit(self, seen, batch):
        if self.is_away:
            raise StoreError("the connection was cut")
        return await super().commit(seen, batch)


async def test_exchanges_that_are_stored_late_stay_in_the_branch_that_another_gateway_went_on_with(tmp_path):
    """Some of them were above the limit at their time, and were sent whole: that is no reason for a branch of their own."""
    path, more = tmp_path / "c.db", "and some words more " * 30
    async with ScriptedUpstream(otherwise="Fine.") as upstream, asyncio.timeout(HANG_S):
        late, store = await Away.open(path), await SqliteStore.open(path)
        async with (
            served(upstream, store=late, summariser_enabled=False, window=2_500) as one,
            served(upstream, store=store, summariser_enabled=False, window=2_500) as two,
        ):
            await ask(two, history(2, more))
            late.is_away = True
            told = [await ask(one, history(turn, more)) for turn in range(3, 16)]
            assert all("x-refold-not-kept" in one or one["x-refold-action"] == "not-kept" for one in told)
            await ask(two, history(16, more))
            late.is_away = False
            await everything_is_stored(one)

            sessions = await store.sessions(OWNER, "talk", limit=100)
            assert len({session.branch for session in sessions}) == 1
            assert len(await stored(two)) == len(history(16))
        await late.close()
        await store.close()
