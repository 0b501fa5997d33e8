"""Sessions that are closed with what they were about, found by it in other words, and gone on with."""

from __future__ import annotations

import re

import pytest
from msgspec import structs

from refold.config import resolve
from refold.config.layers import Layer
from refold.config.upstream import embedder_of
from refold.embeddings import installed
from refold.engine.engine import Engine
from refold.ports.records import Batch
from refold.stores.memory import MemoryStore
from refold.stores.sqlite.store import SqliteStore
from refold.testing import Refuse, ScriptedUpstream
from refold.upstreams import Provider, Retries, open_embedder
from tests.embedder import Subjects, vector_of
from tests.engine.test_stored_conversation import engine, long

WORK = {
    "flat": (
        "My landlord refuses to pay back the deposit after I moved out of the flat.",
        "Write him a formal letter with a deadline of 14 days, then go to the small claims court.",
    ),
    "bread": (
        "My sourdough loaf is dense and gummy inside. What did I do wrong?",
        "Let the dough rise longer at a warmer temperature, and bake it until the crumb is dry.",
    ),
    "tests": (
        "The pytest suite hangs in CI when it runs in parallel on two workers.",
        "Two fixtures wait for the same database lock; give each worker a schema of its own.",
    ),
    "run": (
        "I want to train for my first marathon in October, and my knee hurts after long runs.",
        "Increase the distance by ten percent a week, and see a physiotherapist about the knee.",
    ),
    "trip": (
        "Which ferry goes from Bergen to Stavanger, and can I take my bicycle?",
        "The express boat leaves twice a day, and bicycles travel for a small fee.",
    ),
}
PARAPHRASES = {
    "flat": "tenant's quarrel over cash that an apartment owner keeps",
    "bread": "why homemade pastry became so heavy",
    "tests": "deadlock among concurrent continuous integration jobs",
    "run": "jogging preparation despite joint pain",
    "trip": "ship between Norwegian cities, bringing one's bike",
}


@pytest.fixture(params=["memory", "sqlite"])
async def store(request, tmp_path):
    made = MemoryStore() if request.param == "memory" else await SqliteStore.open(tmp_path / "talks.db")
    yield made
    await made.close()


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.casefold()))


def turn(question: str, answer: str) -> list[object]:
    return [question, {"role": "assistant", "content": answer}]


async def fill(made: Engine, talks: dict[str, str]) -> dict[str, str]:
    """A closed session for each of the subjects, in the conversation that `talks` names; their ids."""
    ids = {}
    for subject, name in talks.items():
        talk = await made.conversation(name)
        await talk.add(*turn(*WORK[subject]))
        ids[talk._journal.session.id] = subject
        await talk.start_session()
    return ids


async def found(made: Engine, ids: dict[str, str], text: str, **more) -> list[str]:
    return [ids[one.id] for _, one in await made.find_sessions(text, **more) if one.id in ids]


@pytest.mark.skipif(installed() is None, reason="the extra `search` is not installed")
@pytest.mark.feature("L16", "L3")
async def test_a_session_is_found_by_a_paraphrase_that_shares_no_word_with_it(store):
    made = Engine(store, embedder=installed(), window=8_000)
    ids = await fill(made, dict.fromkeys(WORK, "home") | dict.fromkeys(("tests", "trip"), "work"))
    said = words(" ".join(text for pair in WORK.values() for text in pair))
    for subject, text in PARAPHRASES.items():
        assert not words(text) & said
        assert (await found(made, ids, text))[0] == subject
        own = "work" if subject in {"tests", "trip"} else "home"
        assert (await found(made, ids, text, name=own))[0] == subject

        assert subject not in await found(made, ids, text, by_meaning=False)
    assert await found(made, ids, "xylophone") == [], "nothing is near"


@pytest.mark.feature("L1")
async def test_above_80_percent_a_session_is_closed_with_summary_vector_and_statistics(store):
    embedder = Subjects()
    made = Engine(store, embedder=embedder, window=20_000, max_output=200, preset="lis")
    talk = await made.conversation("chat")
    for number in range(40):
        text = f"question {number} about the ship " + "word " * 200
        await talk.add(*turn(text, f"answer {number}"))
    await talk.add("and now?")

    for used, sessions in ((16_000, 1), (16_001, 2)):
        await talk.context()
        await talk.record({"prompt_tokens": used, "completion_tokens": 0, "total_tokens": used})
        await talk.add(*reversed(turn("and then?", "ok")))
        assert len(await made.sessions("chat")) == sessions

    closed, child = await made.sessions("chat")
    head = await store.head("local", "chat")
    assert (head.session, child.kind, child.parent, child.first) == (
        child.id, "compaction", closed.id, closed.last,
    )  # fmt: skip
    kept = await store.messages(head)
    assert closed.tokens == sum(one.tokens for one in kept[: closed.last])
    assert 3_500 < sum(one.tokens for one in kept[child.first :]) <= 4_000
    (written,) = await made.summaries([closed.summary])
    (vector,) = await store.embeddings("local", [closed.id])
    assert vector.vector == vector_of(written.summary.text)
    assert closed.closed_at
    assert await made.examine("chat") == []


class Broken(MemoryStore):
    """A store whose commits fail before they are done."""

    is_broken = False

    async def commit(self, seen, batch):
        if self.is_broken and batch.embeddings:
            raise OSError
        return await super().commit(seen, batch)


@pytest.mark.feature("L1")
async def test_where_the_closing_fails_the_session_stays_as_it_was_and_can_be_closed_later():
    store = Broken()
    made = engine(store, embedder=Subjects(), window=100_000)
    talk = await long(made, turns=10)
    await talk.add("and now?")
    before = await talk.context()
    store.is_broken = True
    with pytest.raises(OSError):
        await talk.compact()
    (only,) = await made.sessions("chat")
    assert (only.last, only.summary) == (None, "")
    assert await store.embeddings("local", [only.id]) == []
    assert await talk.context() == before

    store.is_broken = False
    await talk.compact()
    closed, _ = await made.sessions("chat")
    assert [one.session for one in await store.embeddings("local", [closed.id])] == [closed.id]
    assert await made.examine("chat") == []


async def test_what_is_taken_back_is_no_longer_found_by_meaning(store):
    made = engine(store, embedder=Subjects(), window=100_000)
    talk = await made.conversation("chat")
    await talk.add(*turn("Where are the ships?", "In the harbour. " * 20))
    await long(made, turns=10)
    await talk.add("and now?")
    await talk.compact()
    assert await made.find_sessions("vessel")
    assert await talk.undo()
    ((_, found),) = await made.find_sessions("vessel")
    assert found.last is None, "the messages are found, in the session that is open again"
    await talk.compact()
    assert await made.find_sessions("vessel")


@pytest.mark.feature("L3")
async def test_sessions_are_listed_found_and_gone_on_with(store):
    made = engine(store, embedder=Subjects())
    talk = await made.conversation("chat")
    await talk.add(*turn("When does the boat leave the harbour?", "At noon."))
    shown = (await talk.context())["messages"]
    await talk.start_session()
    await talk.add(*turn("Was the invoice paid?", "Yes."))
    await talk.start_session()
    await talk.add("Hello again.")
    trip, bill, now = await made.sessions("chat")
    assert [one.id for one in await made.sessions(limit=2)] == [bill.id, now.id], "the latest"
    assert [name for name, _ in await made.find_sessions(trip.id[:8])][:1] == ["chat"]

    (_, target), *_ = await made.find_sessions("vessel")
    assert (await talk.resume(target)).carries == "full"
    assert (await talk.context())["messages"] == shown
    opened = (await made.sessions("chat"))[-1]
    assert (opened.kind, opened.target, opened.first) == ("resume", trip.id, 5)
    found = await made.find_sessions("Hello")
    assert found[0][1].summary, "the one that was left is summed up too"


@pytest.mark.feature("L3")
async def test_a_session_is_resumed_whole_up_to_70_percent_of_the_window(store):
    big = engine(store, window=100_000, max_output=0)
    talk = await long(big, turns=5)
    size = talk.state.folded.tokens
    await talk.start_session()
    first, _ = await big.sessions("chat")
    room = int(size / 0.70)
    carried = []
    for window in (room + 2, room - 2):
        small = await engine(store, window=window, max_output=0).conversation("chat")
        carried.append((await small.resume(first)).carries)
    assert carried == ["full", "summary"]


@pytest.mark.feature("L3")
async def test_a_summary_that_is_missing_is_written_when_a_session_is_resumed(store):
    embedder = Subjects()
    made = engine(store, embedder=embedder, window=100_000)
    talk = await long(made, turns=20)
    head = await store.head("local", "chat")
    opened = structs.replace(talk._journal.session, id="next", first=head.next_seq, kind="new")
    await store.commit(head, Batch(at=1.0, opens=opened))
    first, _ = await made.sessions("chat")
    assert (first.summary, await store.embeddings("local", [first.id])) == ("", [])

    small = await engine(store, embedder=embedder, window=1_500).conversation("chat")
    assert (await small.resume(first)).carries == "summary"
    (first, *_) = await made.sessions("chat")
    (written,) = await made.summaries([first.summary])
    assert "question 0" in written.summary.text
    assert [one.summary for one in await store.embeddings("local", [first.id])] == [first.summary]


async def test_vectors_of_a_provider_serve_as_well():
    store = MemoryStore()
    async with ScriptedUpstream() as server:
        provider = Provider("mine", "m-1", base_url=f"{server.url}/v1", retries=Retries(tries=1))
        async with open_embedder(provider) as embedder:
            made = Engine(store, embedder=embedder, window=8_000)
            ids = await fill(made, dict.fromkeys(WORK, "home"))
            assert (await found(made, ids, "sourdough loaf"))[0] == "bread"
            assert {one.path for one in server.requests} == {"/v1/embeddings"}
            server.script(Refuse(500))
            talk = await made.conversation("home")
            await talk.add(*turn("One more thing.", "Yes?"))
            await talk.start_session()
            (lacking,) = await store.unembedded("local", "mine:m-1")
            assert lacking.summary
            assert await made.sweep() == 1


@pytest.mark.feature("L16")
async def test_a_model_behind_an_embeddings_endpoint_is_named_by_a_setting(tmp_path, monkeypatch):
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    async with ScriptedUpstream() as server:
        spec = f"m-1@{server.url}/v1"
        async with Engine(url, embedder=spec) as made:
            talk = await made.conversation("home")
            await talk.add(
                *turn("My key is sk-proj-aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3z.", "I bake sourdough bread.")
            )
            assert await made.embed_messages() == 2
            assert {one.path for one in server.requests} == {"/v1/embeddings"}
            assert not any(b"aB3dE5fG7" in one.body for one in server.requests), "a secret leaves"
        settings = resolve([Layer("user", {"store.embedder": spec})]).settings
        async with Engine(url, embedder=embedder_of(settings)) as made:
            assert await made.embed_messages() == 0, "the setting names the same one"


@pytest.mark.skipif(installed() is None, reason="the extra `search` is not installed")
async def test_an_engine_that_is_opened_takes_what_is_installed(tmp_path):
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    async with Engine(url, embedder=None, window=8_000) as made:
        await fill(made, dict.fromkeys(WORK, "home"))
        assert await made.store.unembedded("local", installed().name)
    async with Engine(url, window=8_000) as made:
        assert await made.store.unembedded("local", installed().name) == []
        assert await made.find_sessions(PARAPHRASES["bread"])
