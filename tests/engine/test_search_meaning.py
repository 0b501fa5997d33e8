"""What closed sessions were about: with the closing where it can be had in time, later where not, and never what is secret."""

from __future__ import annotations

import asyncio
import logging

import pytest

from refold.embeddings import StaticEmbedder
from refold.engine import search
from refold.engine.engine import Engine
from refold.model.errors import Damaged
from refold.stores.memory import MemoryStore
from tests.embedder import Failing, Subjects, vector_of
from tests.engine.test_stored_conversation import answer, engine, long


async def lacking(store: MemoryStore, name: str = "subjects") -> int:
    return len(await store.unembedded("local", name))


async def closed(made: Engine, name: str = "chat"):
    return [one for one in await made.sessions(name) if one.last is not None]


async def test_a_session_is_closed_with_the_vector_of_its_summary():
    store, embedder = MemoryStore(), Subjects()
    made = engine(store, embedder=embedder)
    await long(made, turns=60)
    sessions = await closed(made)
    assert len(sessions) > 1
    texts = [one.summary.text for one in await made.summaries([one.summary for one in sessions])]
    kept = await store.embeddings("local", [one.id for one in sessions])

    assert embedder.read == texts, "each once, and nothing else"
    assert [one.vector for one in kept] == [vector_of(text) for text in texts]
    assert [(one.session, one.summary, one.name) for one in kept] == [
        (one.id, one.summary, "subjects") for one in sessions
    ]


async def test_where_an_embedder_fails_sessions_are_closed_without_and_get_their_vector_later(caplog):
    store, embedder = MemoryStore(), Failing()
    made = engine(store, embedder=embedder)
    await long(made, turns=30)
    count = len(await closed(made))
    assert count == await lacking(store) > 0
    assert await made.examine("chat") == []
    assert await made.find_sessions("src/f1.py"), "words find it all the same"
    warnings = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert "RuntimeError" in warnings[0].getMessage()
    assert "canaryword" not in caplog.text
    assert "question" not in caplog.text

    assert await made.sweep() == 0, "it fails still"
    embedder.error = None
    assert await made.sweep() == count
    assert await lacking(store) == 0
    assert await made.sweep() == 0


class Silent(Subjects):
    """Never answers."""

    async def embed(self, texts):
        self.read += texts
        await asyncio.Event().wait()


async def test_nobody_waits_long_for_a_vector(monkeypatch, caplog):
    monkeypatch.setattr(search, "SESSION_PATIENCE_S", 0.0)
    store, embedder = MemoryStore(), Silent()
    await long(engine(store, embedder=embedder), turns=30)

    assert embedder.read
    assert await lacking(store) == len(await closed(engine(store))) > 0
    assert "TimeoutError" in caplog.text


async def test_who_reads_the_log_learns_what_it_means_and_what_happens_next(caplog):
    made = engine(MemoryStore(), embedder=Failing())
    talk = await made.conversation("chat")
    await talk.add("Where is the ship?", {"role": "assistant", "content": "In the harbour."})
    await talk.start_session()
    assert await made.find_sessions("harbour")
    closing, looking = [one.getMessage() for one in caplog.records]

    assert closing == (
        "sessions without a vector: 1 (RuntimeError). They are found by their words meanwhile, and get one when a program opens"
        " the store the next time"
    )
    assert looking == "this search goes by words and not by meaning (RuntimeError). The next one tries again"


async def test_the_installed_embedder_gives_no_warning_in_a_store_in_memory(monkeypatch, caplog):
    async def fail(self, texts):
        raise TimeoutError

    monkeypatch.setattr(StaticEmbedder, "embed", fail)
    made = engine(MemoryStore(), embedder=StaticEmbedder())
    talk = await made.conversation("chat")
    await talk.add("Where is the ship?", {"role": "assistant", "content": "In the harbour."})
    await talk.start_session()

    assert [one.getMessage() for one in caplog.records if one.levelname == "WARNING"] == []


class Short(Subjects):
    async def embed(self, texts):
        return (await super().embed(texts))[1:]


async def test_an_embedder_that_gives_too_few_has_given_nothing():
    store = MemoryStore()
    await long(engine(store, embedder=Short()), turns=30)

    assert await lacking(store) > 0


@pytest.mark.feature("X19")
async def test_sensitive_messages_and_secrets_never_reach_an_embedder():
    embedder = Subjects()
    made = engine(MemoryStore(), embedder=embedder, sensitive=["diagnosis"])
    talk = await made.conversation("chat")
    await talk.add("The patient has scurvy.", {"role": "assistant", "content": "Noted."}, sensitive=True)
    await talk.add("The diagnosis is beriberi.", {"role": "assistant", "content": "I see."})
    await talk.add("The password is hunter2222.", {"role": "assistant", "content": "I log in."})
    await talk.start_session()
    await talk.add("Say it again?", {"role": "assistant", "content": "It was hunter2222, for the harbour."})
    await talk.start_session()
    await long(made, turns=30)
    await talk.add("and now?")
    await talk.compact()
    told = "\n".join(embedder.read)

    assert "harbour" in told
    assert len(embedder.read) > 3
    assert not [word for word in ("scurvy", "beriberi", "hunter2222") if word in told]


async def test_where_nothing_may_be_kept_nothing_is_embedded():
    store, embedder = MemoryStore(), Subjects()
    made = engine(store, embedder=embedder, keeps_content=False)
    talk = await long(made, turns=30)
    await talk.start_session()
    await made.sweep()

    assert len(await closed(made)) > 1
    assert embedder.read == []
    assert await store.nearest("local", "subjects", vector_of("ship")) == []


async def test_what_was_kept_without_content_stands_in_nobody_s_way(monkeypatch):
    monkeypatch.setattr(search, "MOST_AT_ONCE", 1)
    store = MemoryStore()
    talk = await engine(store).conversation("kept")
    await talk.add("Where is the ship?", {"role": "assistant", "content": "In the harbour."})
    await talk.start_session()
    await long(engine(store, keeps_content=False), turns=30)
    made = engine(store, embedder=Subjects())
    for _ in range(await lacking(store)):
        await made.sweep()

    assert await lacking(store) == 0
    assert [name for name, _ in await made.find_sessions("vessel")] == ["kept"]


async def test_many_sessions_get_their_vectors_a_few_at_a_time(monkeypatch):
    monkeypatch.setattr(search, "MOST_AT_ONCE", 5)
    monkeypatch.setattr(search, "SESSION_PAGE", 2)
    store, embedder = MemoryStore(), Subjects()
    talk = await engine(store).conversation("chat")
    for number in range(7):
        await talk.add(f"question {number}", {"role": "assistant", "content": "yes"})
        await talk.start_session()
    made = engine(store, embedder=embedder)

    assert [await made.sweep() for _ in range(3)] == [5, 2, 0]
    assert "question 6" in embedder.read[0], "the newest first"


async def test_a_summary_is_embedded_once_though_another_process_was_first():
    store, embedder = MemoryStore(), Subjects()
    one = await engine(store, embedder=embedder, window=100_000).conversation("chat")
    for number in range(10):
        await one.add(*answer(number))
    await one.add("and now?")
    commit, others = store.commit, [True]

    async def commit_late(seen, batch):
        if batch.embeddings and others.pop():
            others.append(False)
            head = await store.head("local", "chat")
            await commit(head, type(batch)(at=1.0, notes=head.notes))
        return await commit(seen, batch)

    store.commit = commit_late
    await one.compact()
    assert len(await closed(engine(store))) == 1
    assert others == [], "it was tried twice"
    assert len(embedder.read) == 1


async def test_a_summary_that_is_damaged_keeps_no_other_from_its_vector_and_no_program_from_opening():
    store = MemoryStore()
    await long(engine(store), turns=60)
    bad, *others = await closed(engine(store))
    written = store.written

    async def damaged(owner, ids):
        if bad.summary in ids:
            raise Damaged
        return await written(owner, ids)

    store.written = damaged
    assert await engine(store, embedder=Subjects()).sweep() == len(others) > 0
    assert [one.id for one in await store.unembedded("local", "subjects")] == [bad.id]
