"""When vectors of messages are made: requests come first, and a search does not wait for a quiet moment."""

import asyncio
from array import array
from math import inf

import numpy as np
import pytest

import refold
from refold.engine import message_search
from tests.embedder import Subjects

MANY = 3 * message_search.TOGETHER


class Told(Subjects):
    """Tells when it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.texts = 0

    async def embed(self, texts):
        self.texts += len(texts)
        self.asked.set()
        return await super().embed(texts)


async def say(engine: refold.Engine, count: int) -> None:
    talk = await engine.conversation("talk", model="gpt-4o")
    await talk.add(*(f"the boat {number}" for number in range(count)))


@pytest.mark.feature("L16")
async def test_vectors_wait_until_no_message_is_added(monkeypatch, tmp_path):
    monkeypatch.setattr(message_search, "IDLE_S", inf)
    monkeypatch.setattr(message_search, "MOST_DELAY_S", 3600.0)
    async with refold.Engine(f"sqlite:///{tmp_path}/one.db", embedder=(told := Told())) as engine:
        await say(engine, MANY)
        assert not told.asked.is_set()
        assert await engine.search("ships at sea")
        assert told.texts > MANY, "a search does not wait for a quiet moment"


@pytest.mark.parametrize("name", ["IDLE_S", "MOST_DELAY_S"])
async def test_vectors_are_made_in_a_quiet_moment_and_at_the_latest_after_a_delay(
    monkeypatch, tmp_path, name
):
    monkeypatch.setattr(message_search, "IDLE_S", inf)
    monkeypatch.setattr(message_search, "MOST_DELAY_S", 3600.0)
    monkeypatch.setattr(message_search, name, 0.0)
    async with refold.Engine(f"sqlite:///{tmp_path}/one.db", embedder=(told := Told())) as engine:
        await say(engine, MANY)
        async with asyncio.timeout(20):
            await told.asked.wait()


async def test_the_rests_between_blocks_end_when_a_search_waits(monkeypatch, tmp_path):
    monkeypatch.setattr(message_search, "IDLE_S", 0.0)
    monkeypatch.setattr(message_search, "RESTS", 1e9)
    async with refold.Engine(f"sqlite:///{tmp_path}/one.db", embedder=(told := Told())) as engine:
        await say(engine, MANY)
        async with asyncio.timeout(20):
            await told.asked.wait()
        assert told.texts == message_search.PAGE, "the second block waits for the end of a rest"
        assert await engine.embed_messages() == 0, "the background work has finished them"
        assert told.texts == MANY


async def test_the_signs_in_memory_are_bounded_and_the_newest_stay(monkeypatch, store):
    monkeypatch.setattr(message_search, "_PART", 1)
    monkeypatch.setattr(message_search, "MOST_BYTES", 15)  # a byte for a vector of `Subjects`
    async with refold.Engine(store, embedder=Subjects()) as engine:
        talk = await engine.conversation("talk", model="gpt-4o")

        async def numbers(words: str) -> set[int]:
            return {int(hit.handle.removeprefix("#m")) for hit in await engine.search(words, limit=100)}

        for first in (0, 10):
            await talk.add(*(f"the boat {number}" for number in range(first, first + 10)))
            await engine.embed_messages()
            assert await numbers("vessel") == set(range(first, first + 10))
        assert await numbers("boat") == set(range(20))


async def test_a_lone_surrogate_in_a_query_does_not_turn_meaning_off(caplog):
    class Strict(Subjects):
        async def embed(self, texts):
            assert all(text.encode() for text in texts)
            return await super().embed(texts)

    async with refold.Engine("memory:", embedder=Strict()) as engine:
        talk = await engine.conversation("talk", model="gpt-4o")
        await talk.add("the boat", {"role": "assistant", "content": "a refund"})
        assert (await engine.search("vessel \ud800"))[0].handle == "#m0"
        assert await engine.find_sessions("vessel \ud800")
    assert "by words and not by meaning" not in caplog.text


class Given(Subjects):
    """Gives vectors in another form."""

    def __init__(self, form) -> None:
        super().__init__()
        self._form = form

    async def embed(self, texts):
        return self._form([array("f", one) for one in await super().embed(texts)])


@pytest.mark.parametrize(
    "form",
    [
        lambda found: [list(one) for one in found],
        lambda found: tuple(tuple(3 * number for number in one) for one in found),
        lambda found: found,
        lambda found: [np.asarray(one, "<f8") for one in found],
        lambda found: [bytearray(one.tobytes()) for one in found],
    ],
    ids=["lists", "tuples", "arrays", "numpy", "bytearrays"],
)
async def test_vectors_may_be_sequences_of_numbers(tmp_path, caplog, form):
    async with refold.Engine(f"sqlite:///{tmp_path}/one.db", embedder=Given(form)) as engine:
        talk = await engine.conversation("talk", model="gpt-4o")
        await talk.add("the boat", {"role": "assistant", "content": "a refund"})
        assert await engine.embed_messages() == 2
        assert (await engine.search("vessel"))[0].handle == "#m0"
        assert await engine.find_sessions("vessel")
    assert not caplog.records


@pytest.mark.parametrize(
    ("form", "told"),
    [
        (lambda found: [[float("nan")] * 4 for _ in found], "not finite"),
        (lambda found: [b"\0\0\xc0\x7f" for _ in found], "not finite"),
        (
            lambda found: [[1.0] * (place + 1) for place, _ in enumerate(found)],
            "vectors of 1 and of 2 numbers",
        ),
        (lambda found: [*found, found[0]], "3 vectors for 2 texts"),
        (lambda found: ["0.1 0.2" for _ in found], "a str for a vector"),
        (lambda found: [None for _ in found], "a NoneType for a vector"),
        (lambda found: [b"abc" for _ in found], "a bytes for a vector"),
        (lambda found: 7, "no list of vectors"),
    ],
)
async def test_what_is_no_vector_is_told_and_the_conversation_goes_on(tmp_path, caplog, form, told):
    async with refold.Engine(f"sqlite:///{tmp_path}/one.db", embedder=Given(form)) as engine:
        talk = await engine.conversation("talk", model="gpt-4o")
        await talk.add("the boat", {"role": "assistant", "content": "a refund"})
        with pytest.raises(refold.ConfigError, match=told) as caught:
            await engine.embed_messages()
        assert "`embed` returns one vector" in caught.value.hint or "one dimension" in caught.value.hint
        assert [hit.handle for hit in await engine.search("boat")] == ["#m0"]
    assert "messages without a vector" not in caplog.text or "embedder gave" in caplog.text


async def test_a_dimension_that_changes_under_one_name_finds_by_words(tmp_path):
    url = f"sqlite:///{tmp_path}/one.db"
    for size in (4, 3, 2):
        form = lambda found, size=size: [list(one)[:size] for one in found]  # noqa: E731
        async with refold.Engine(url, embedder=Given(form)) as engine:
            talk = await engine.conversation("talk", model="gpt-4o")
            await talk.add(f"the boat of {size}")
            await engine.embed_messages()
            assert (await engine.search(f"where is the boat of {size}"))[0].text.endswith(str(size))


class Plain:
    """What somebody writes who knows of a name and vectors alone."""

    name = "plain"

    async def embed(self, texts):
        return await Subjects().embed(texts)


async def test_an_embedder_needs_no_least_similarity(tmp_path):
    async with refold.Engine(f"sqlite:///{tmp_path}/one.db", embedder=Plain()) as engine:
        talk = await engine.conversation("talk", model="gpt-4o")
        await talk.add("the boat is here", "a refund of money")
        await talk.start_session()

        found = await engine.search("vessel")
        assert "boat" in found[0].text
        assert await engine.find_sessions("vessel")
