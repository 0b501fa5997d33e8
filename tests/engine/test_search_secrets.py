"""A secret that one message of a branch gives away is hidden from the embedder in all others."""

from __future__ import annotations

import pytest
from msgspec import structs

from refold.engine import search
from refold.engine.engine import Engine
from refold.stores.memory import MemoryStore
from refold.stores.sqlite.store import SqliteStore
from tests.embedder import Failing, Subjects

SECRET = "Vp7-kestrel-Quarry42"
BARE = {"role": "assistant", "content": f"I will log in with {SECRET} now."}
GIVEN = {"role": "user", "content": f"Here it is: password={SECRET}"}
CALL = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{}"}}


@pytest.fixture(params=["memory", "sqlite"])
async def store(request, tmp_path):
    made = MemoryStore() if request.param == "memory" else await SqliteStore.open(tmp_path / "talks.db")
    yield made
    await made.close()


async def read(store) -> list[str]:
    """What the embedder of a program that has just begun is given."""
    embedder = Subjects()
    made = Engine(store, embedder=embedder, window=8_000)
    await made.embed_messages()
    await made.rest()
    return embedder.read


def is_hidden(texts: list[str]) -> bool:
    told = "\n".join(texts)
    return "log in with [" in told and SECRET not in told


@pytest.mark.feature("L16", "X19")
async def test_a_secret_of_an_earlier_message_is_hidden_where_it_is_said_again(store, monkeypatch):
    monkeypatch.setattr(search, "SECRETS_PAGE", 2)
    embedder = Subjects()
    made = Engine(store, embedder=embedder, window=8_000)
    talk = await made.conversation("talk")
    await talk.add(GIVEN, {"role": "assistant", "content": "Thanks."}, "Go on.")
    await made.embed_messages()
    await talk.add(BARE)
    await made.embed_messages()
    assert is_hidden(embedder.read), "in one program"
    await made.rest()

    await talk.add("Again?", BARE)
    assert is_hidden(await read(store)), "in another one, which has to read the branch"


@pytest.mark.feature("L16", "X19")
async def test_a_secret_of_a_tool_result_or_a_sensitive_message_is_hidden_too(store):
    made = Engine(store, embedder=None, window=8_000)
    talk = await made.conversation("tool")
    result = {"role": "tool", "tool_call_id": "c1", "content": f"password={SECRET}"}
    await talk.add("Read it.", {"role": "assistant", "content": None, "tool_calls": [CALL]}, result, BARE)
    assert is_hidden(await read(store))
    await made.delete("tool")

    talk = await made.conversation("marked")
    await talk.add(GIVEN, sensitive=True)
    await talk.add(BARE)
    assert is_hidden(await read(store))


@pytest.mark.feature("L16", "X19")
async def test_a_fork_knows_the_secrets_of_the_messages_that_it_shares_and_no_others(store):
    made = Engine(store, embedder=None, window=8_000)
    talk = await made.conversation("talk")
    await talk.add("Hello.", {"role": "assistant", "content": "Yes?"}, GIVEN)
    after, before = await made.fork("talk", 3), await made.fork("talk", 1)
    secrets = search.KnownSecrets(store, made.owner)
    for branch in (after, before):
        await (await made.conversation("talk", branch=branch)).add(BARE)
    assert await secrets.of("talk", after, 4) == {SECRET}
    assert await secrets.of("talk", before, 2) == frozenset()
    assert await secrets.of("gone", after, 4) == frozenset()


@pytest.mark.feature("L16", "X19")
async def test_a_conversation_that_is_begun_again_under_its_name_is_read_again(store):
    embedder = Subjects()
    made = Engine(store, embedder=embedder, window=8_000)
    for first in ("Hello there.", GIVEN):
        embedder.read.clear()
        talk = await made.conversation("talk")
        await talk.add(first)
        await made.embed_messages()
        if first is not GIVEN:
            await made.delete("talk")
    await talk.add(BARE)
    await made.embed_messages()
    assert is_hidden(embedder.read)
    await made.rest()


class Telling(MemoryStore):
    """A store with summaries, of another program perhaps, that repeat the secret."""

    async def written(self, owner, ids):
        found = await super().written(owner, ids)
        return [
            structs.replace(one, summary=structs.replace(one.summary, text=BARE["content"])) for one in found
        ]


@pytest.mark.feature("L16", "X19")
async def test_a_summary_that_is_embedded_later_is_searched_for_the_secrets_of_its_branch():
    embedder = Failing()
    made = Engine(Telling(), embedder=embedder, window=8_000)
    talk = await made.conversation("talk")
    await talk.add(GIVEN, {"role": "assistant", "content": "Thanks."})
    await talk.start_session()
    embedder.error = None
    assert await made.sweep() == 1
    assert is_hidden(embedder.read[:1])
    await made.rest()
