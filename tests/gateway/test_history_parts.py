"""A history of many megabytes is stored in several transactions, so that other writers do not wait for all of it.

The size of a part is made small here: nothing else differs from a long history.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from refold.model.errors import StoreError
from refold.ports.records import Batch, Head
from refold.stores.memory import MemoryStore
from refold.stores.sqlite.store import SqliteStore
from refold.testing import ScriptedUpstream
from tests import agent_session
from tests.gateway.conftest import served

OWNER = "local"
PRESETS = ("refold", "lis", "opal", "llms", "picoclaw", "librechat")


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refold.gateway.conversations.PART_BYTES", 2_000)


@pytest.fixture
async def upstream() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(otherwise="Fine.") as server:
        yield server


class CountingStore(MemoryStore):
    """Notes the number of messages of each commit, and refuses the commits that it is told to."""

    def __init__(self, *refused: int) -> None:
        super().__init__()
        self.sizes, self._refused, self._asked = list[int](), refused, 0

    async def commit(self, seen: Head, batch: Batch) -> Head:
        if batch.messages:
            self._asked += 1
            if self._asked in self._refused:
                raise StoreError("the disk is full")
        head = await super().commit(seen, batch)
        if batch.messages:
            self.sizes.append(len(batch.messages))
        return head


def history(turns: int = 12) -> list[dict[str, object]]:
    said = [one for at in range(turns) for one in (*agent_session.turn(at), agent_session.reply(at))]
    return [*said, {"role": "user", "content": "And now?"}]


async def post(gate, messages, **headers: str) -> tuple[int, dict[str, str], bytes]:
    body = msgspec.json.encode({"model": "gpt-5", "messages": messages})
    return await gate.post("/v1/chat/completions", body, **headers)


async def ask(gate, messages, **headers: str) -> dict[str, str]:
    status, told, answer = await post(gate, messages, **headers)
    assert status == 200, answer
    return told


async def stored(store, told) -> list[object]:
    head = await store.head(OWNER, told["x-refold-conversation"], told["x-refold-branch"])
    return [msgspec.json.decode(one.body) for one in await store.messages(head)]


async def branches(store) -> list[int]:
    outlines = [await store.outline(OWNER, listed.id) for listed in await store.conversations(OWNER)]
    return [head.next_seq for outline in outlines for head in outline.heads]


async def first_sight(
    preset: str, window: int
) -> tuple[list[bytes], dict[str, str], list[object], list[int]]:
    store = CountingStore()
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        served(
            upstream,
            store=store,
            window=window,
            summariser_enabled=False,
            compaction_preset=preset,
            compaction_allow_system_summary=True,
        ) as gate,
    ):
        told = await ask(gate, history())
        later = await ask(
            gate, [*history(), {"role": "assistant", "content": "Fine."}, {"role": "user", "content": "On."}]
        )
        assert later["x-refold-branch"] == told["x-refold-branch"]
        sent = [one.body for one in upstream.requests]
        return sent, told, await stored(store, later), store.sizes


@pytest.mark.parametrize("window", [4_000, 200_000])
@pytest.mark.parametrize("preset", PRESETS)
async def test_the_windows_are_those_of_one_transaction(monkeypatch, preset, window):
    whole = await first_sight(preset, window)
    monkeypatch.setattr("refold.gateway.conversations.PART_BYTES", 2_000)
    parts = await first_sight(preset, window)

    assert parts[0] == whole[0]
    assert {name: value for name, value in parts[1].items() if name.startswith("x-refold")} == {
        name: value for name, value in whole[1].items() if name.startswith("x-refold")
    }
    assert parts[2] == whole[2]
    assert sum(parts[3]) == sum(whole[3])
    assert len(parts[3]) > len(whole[3]) + 3


async def test_the_last_reply_belongs_to_the_last_part(small_parts, upstream):
    store, said = CountingStore(), history()
    async with served(upstream, store=store, window=200_000) as gate:
        await ask(gate, said)

    replies = [at for at, one in enumerate(said) if one["role"] == "assistant"]
    assert sum(store.sizes[:-1]) <= replies[-1]


@pytest.mark.parametrize("refused", [1, 2, 3])
async def test_a_store_that_refuses_a_part_does_not_refuse_the_request(small_parts, upstream, refused):
    store = CountingStore(refused)
    async with served(upstream, store=store, window=200_000) as gate:
        told = await ask(gate, history())

        assert await stored(store, told) == history()
        assert upstream.requests[-1].json["messages"] == history()


async def test_a_full_disk_leaves_a_beginning_that_the_next_request_goes_on(small_parts, upstream):
    store = CountingStore(3, 4)
    async with served(upstream, store=store, window=200_000) as gate:
        told = await ask(gate, history())
        on = [*history(), {"role": "assistant", "content": "Fine."}, {"role": "user", "content": "On."}]
        later = await ask(gate, on)

        assert later["x-refold-conversation"] == told["x-refold-conversation"]
        assert await stored(store, later) == on
        assert await branches(store) == [len(on)]


async def test_a_gateway_that_ends_between_two_parts_leaves_a_beginning(
    small_parts, upstream, tmp_path: Path
):
    class EndingStore(SqliteStore):
        commits = 0

        async def commit(self, seen: Head, batch: Batch) -> Head:
            if batch.messages:
                self.commits += 1
            if self.commits > 2:
                raise asyncio.CancelledError  # the program ends here
            return await super().commit(seen, batch)

    store = await EndingStore.open(tmp_path / "chats.db")
    async with served(upstream, store=store, window=200_000) as gate:
        body = msgspec.json.encode({"model": "gpt-5", "messages": history()})
        status, _, _ = await gate.post("/v1/chat/completions", body)
        assert status == 503
        (begun,) = await branches(store)
        assert 0 < begun < len(history())
    await store.close()

    store = await SqliteStore.open(tmp_path / "chats.db")
    async with served(upstream, store=store, window=200_000) as gate:
        told = await ask(gate, history())
        assert await stored(store, told) == history()
        assert await branches(store) == [len(history())]
    await store.close()


async def test_equal_long_requests_at_once_make_one_branch(small_parts, upstream):
    store = CountingStore()
    async with (
        served(upstream, store=store, window=200_000) as one,
        served(upstream, store=store, window=200_000, id_prefix="two") as two,
    ):
        told = await asyncio.gather(*(ask((one, two)[at % 2], history()) for at in range(6)))

        assert len({each["x-refold-branch"] for each in told}) == 1
        assert await stored(store, told[0]) == history()
        assert await branches(store) == [len(history())]


async def test_two_chats_with_one_long_opening_stay_apart(small_parts, upstream):
    """The message that no other branch may hold is in the first part: a branch that may not hold it stores nothing."""
    opening = [
        {"role": "user", "content": "Read this. " + "some words to fill the room " * 100} for _ in range(5)
    ]
    said = [*opening, {"role": "assistant", "content": "Done."}, *history()]
    store = CountingStore()
    async with served(upstream, store=store, window=200_000) as gate:
        told = await asyncio.gather(*(ask(gate, said) for _ in range(3)))

        assert len({each["x-refold-branch"] for each in told}) == 1
        assert await branches(store) == [len(said)]


async def test_a_request_that_no_window_can_be_made_for_is_answered_as_in_one_transaction(
    monkeypatch, upstream
):
    tools = [
        {
            "type": "function",
            "function": {"name": f"tool{at}", "description": "words " * 400, "parameters": {}},
        }
        for at in range(20)
    ]
    body = msgspec.json.encode({"model": "gpt-5", "messages": history(), "tools": tools})
    answers = []
    for size in (8_000_000, 2_000):
        monkeypatch.setattr("refold.gateway.conversations.PART_BYTES", size)
        store = CountingStore()
        async with served(upstream, store=store, window=3_000, summariser_enabled=False) as gate:
            status, told, _ = await gate.post("/v1/chat/completions", body)
            marks = {name: value for name, value in told.items() if name.startswith("x-refold")}
            answers.append((status, marks, store.sizes))

    assert answers[0] == answers[1]


async def test_without_stored_content_a_history_is_one_transaction(small_parts, upstream):
    """A new process could not go on with a part: the messages are in the memory of the one that began it."""
    store = CountingStore()
    async with served(upstream, store=store, window=200_000, store_content=False) as gate:
        await ask(gate, history())

    assert store.sizes == [len(history())]


async def test_a_history_of_which_a_part_is_stored_is_not_taken_for_another_of_its_length(
    small_parts, upstream
):
    class CutOffStore(CountingStore):
        left = 2

        async def commit(self, seen: Head, batch: Batch) -> Head:
            if batch.messages:
                if not self.left:
                    raise asyncio.CancelledError  # the client has gone
                self.left -= 1
            return await super().commit(seen, batch)

    store, said = CutOffStore(), history()
    other = [*said[:-1], {"role": "user", "content": "And yesterday?"}]
    on = [*other, {"role": "assistant", "content": "Fine."}, {"role": "user", "content": "On."}]
    async with (
        served(upstream, store=store, window=200_000) as one,
        served(upstream, store=store, window=200_000, id_prefix="two") as two,
    ):
        status, _, _ = await post(one, said)
        assert status == 503
        store.left = 1_000
        told = await ask(two, other)  # it goes on with the parts of the first
        store.left = 0
        status, _, _ = await post(one, on)
        assert status == 503
        store.left = 1_000

        again = await ask(one, said)
        assert upstream.requests[-1].json["messages"] == said
        assert again["x-refold-branch"] != told["x-refold-branch"]
        assert await stored(store, again) == said
        assert await stored(store, told) == other


@pytest.mark.parametrize("refused", [1, 3])
async def test_a_store_that_is_down_from_a_part_on_does_not_change_what_is_sent(
    monkeypatch, upstream, refused
):
    class DownStore(CountingStore):
        is_down = False

        async def commit(self, seen: Head, batch: Batch) -> Head:
            try:
                return await super().commit(seen, batch)
            except StoreError:
                self.is_down = True
                raise

        async def head(self, owner: str, conversation: str, branch: str = "") -> Head | None:
            if self.is_down:
                raise StoreError("the server is down")
            return await super().head(owner, conversation, branch)

    sent = []
    for size, number in ((8_000_000, 1), (2_000, refused)):
        monkeypatch.setattr("refold.gateway.conversations.PART_BYTES", size)
        store = DownStore(*range(number, 100))
        async with served(upstream, store=store, window=4_000, summariser_enabled=False) as gate:
            told = await ask(gate, history())
            assert told["x-refold-action"] == "not-kept"
            sent.append(upstream.requests[-1].body)
            store.is_down, store._refused = False, ()

    assert sent[1] == sent[0]
    assert len(sent[0]) < len(msgspec.json.encode(history()))
