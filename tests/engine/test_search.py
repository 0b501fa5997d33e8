"""When vectors of messages are made: requests come first, and a search does not wait for a quiet moment."""

import asyncio
from array import array
from math import inf

import numpy as np
import pytest

import refold
from refold.embeddings import installed
from refold.engine import search
from refold.testing import Refuse, ScriptedUpstream
from tests.embedder import Failing, Subjects

MANY = 3 * search.TOGETHER


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
    monkeypatch.setattr(search, "IDLE_S", inf)
    monkeypatch.setattr(search, "MOST_DELAY_S", 3600.0)
    async with refold.Engine(f"sqlite:///{tmp_path}/one.db", embedder=(told := Told())) as engine:
        await say(engine, MANY)
        assert not told.asked.is_set()
        assert await engine.search("ships at sea")
        assert told.texts > MANY, "a search does not wait for a quiet moment"


@pytest.mark.parametrize("name", ["IDLE_S", "MOST_DELAY_S"])
async def test_vectors_are_made_in_a_quiet_moment_and_at_the_latest_after_a_delay(
    monkeypatch, tmp_path, name
):
    monkeypatch.setattr(search, "IDLE_S", inf)
    monkeypatch.setattr(search, "MOST_DELAY_S", 3600.0)
    monkeypatch.setattr(search, name, 0.0)
    async with refold.Engine(f"sqlite:///{tmp_path}/one.db", embedder=(told := Told())) as engine:
        await say(engine, MANY)
        async with asyncio.timeout(20):
            await told.asked.wait()


async def test_the_rests_between_blocks_end_when_a_search_waits(monkeypatch, tmp_path):
    monkeypatch.setattr(search, "IDLE_S", 0.0)
    monkeypatch.setattr(search, "RESTS", 1e9)
    async with refold.Engine(f"sqlite:///{tmp_path}/one.db", embedder=(told := Told())) as engine:
        await say(engine, MANY)
        async with asyncio.timeout(20):
            await told.asked.wait()
        assert told.texts == search.PAGE, "the second block waits for the end of a rest"
        assert await engine.embed_messages() == 0, "the background work has finished them"
        assert told.texts == MANY


async def test_the_signs_in_memory_are_bounded_and_the_newest_stay(monkeypatch, store):
    monkeypatch.setattr(search, "_PART", 1)
    monkeypatch.setattr(search, "MOST_BYTES", 15)  # a byte for a vector of `Subjects`
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


class Hanging(Subjects):
    """Does not answer for as long as it hangs."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs, self.asked = True, 0

    async def embed(self, texts):
        self.asked += 1
        if self.hangs:
            await asyncio.Event().wait()
        return await super().embed(texts)


async def test_searches_wait_once_for_an_embedder_that_hangs_and_go_by_words(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(search, "WORDS_PATIENCE_S", 0.01)
    async with refold.Engine(f"sqlite:///{tmp_path}/one.db", embedder=(hanging := Hanging())) as engine:
        talk = await engine.conversation("talk", model="gpt-4o")
        await talk.add("the boat at the harbour", {"role": "assistant", "content": "a refund"})
        assert engine.search_problem == ""
        for _ in range(3):
            assert (await engine.search("boat in the old harbour"))[0].handle == "#m0"
            assert await engine.find_sessions("boat in the old harbour")
            assert "#m0" in await talk.recall("boat in the old harbour")
        assert hanging.asked == 1
        (told,) = [one.getMessage() for one in caplog.records]
        assert told == (
            "this search goes by words and not by meaning (TimeoutError). So do those of the next 60 seconds"
        )
        assert "searches go by words alone" in engine.search_problem
        monkeypatch.setattr(search, "monotonic", lambda: inf)
        hanging.hangs = False
        assert engine.search_problem == ""
        assert (await engine.search("vessel"))[0].handle == "#m0", "it is asked again later"


async def test_a_search_waits_once_for_messages_that_get_no_vector(monkeypatch, tmp_path):
    class Slow(Hanging):
        async def embed(self, texts):
            if len(texts) == 1:
                return await Subjects.embed(self, texts)
            return await super().embed(texts)

    waits = []

    async def wait(tasks, *, timeout):  # noqa: ASYNC109
        waits.append(timeout)
        return await given(tasks, timeout=0.0)

    given = asyncio.wait
    async with refold.Engine(f"sqlite:///{tmp_path}/one.db", embedder=Slow()) as engine:
        talk = await engine.conversation("talk", model="gpt-4o")
        await talk.add("the boat", {"role": "assistant", "content": "a refund"})
        with monkeypatch.context() as patched:
            patched.setattr(search.asyncio, "wait", wait)
            for _ in range(3):
                await engine.search("ships on the sea")
    assert waits == [search.SEARCH_PATIENCE_S, 0.0, 0.0]


async def test_who_asks_for_vectors_is_told_why_there_are_none(tmp_path):
    async with ScriptedUpstream() as server:
        spec = f"m-1@{server.url}/v1"
        async with refold.Engine(f"sqlite:///{tmp_path}/one.db", embedder=spec) as engine:
            talk = await engine.conversation("talk", model="gpt-4o")
            await talk.add("the boat")
            server.script(Refuse(401))
            with pytest.raises(refold.UpstreamError, match="401"):
                await engine.embed_messages()
            assert await engine.embed_messages() == 1
    async with refold.Engine(f"sqlite:///{tmp_path}/two.db", embedder=Failing()) as engine:
        talk = await engine.conversation("talk", model="gpt-4o")
        await talk.add("the boat")
        with pytest.raises(refold.UpstreamError, match="RuntimeError") as raised:
            await engine.embed_messages()
        assert "canaryword" not in str(raised.value)


PARAPHRASES = {
    "food intolerance": "I'm allergic to peanuts, so please keep that in mind for the recipes.",
    "which city do we live in now": "We moved to Lisbon in March because the rent in Porto was too high.",
    "child's age": "My daughter starts school in September, she is six.",
    "plane departure time": "The flight to Tokyo leaves at 9:40 from terminal 2.",
    "how often are credentials changed": "Our database password rotation happens every ninety days.",
    "father's operation": "Dad had heart surgery last week and is recovering well.",
    "what did the pet damage": "The cat knocked over the vase and it broke.",
    "favourite drink": "I prefer tea over coffee in the morning.",
}


@pytest.mark.skipif(installed() is None, reason="the extra `search` is not installed")
async def test_a_paraphrase_finds_its_message_by_the_static_vectors(tmp_path):
    async with refold.Engine(f"sqlite:///{tmp_path}/one.db", model="gpt-4o") as engine:
        talk = await engine.conversation("talk")
        await talk.add(*PARAPHRASES.values(), "Every operation of the plane is paid for at this age.")
        for number, words in enumerate(PARAPHRASES):
            found = await engine.search(words, limit=20)
            assert f"#m{number}" in [one.handle for one in found], words
            assert f"#m{number}" in await talk.recall(words), words
            assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
            has_words = [bool(one.marks) for one in found]
            if len(words.split()) == 2:
                assert has_words == sorted(has_words, reverse=True), "what is only near follows"
        assert await engine.search("qwrtzp lkjh") == []
        assert [one.handle for one in await engine.search("tea coffee")] == ["#m7"], "all words are there"


async def test_results_are_in_the_order_of_their_scores_whatever_the_branches(store):
    async with refold.Engine(store, model="gpt-4o") as engine:
        talk = await engine.conversation("talk")
        await talk.add("Nothing.", "the harbour", "the boat", "Nothing more.")
        other = await engine.conversation("other")
        await other.add("boat boat, and nothing else", "Nothing.")
        fork = await engine.conversation("talk", branch=await engine.fork("talk", 1))
        await fork.add("the boat", "Nothing more of it.")  # the same message, away from the harbour

        found = await engine.search("boat harbour")
        assert len([one for one in found if "the boat" in one.text]) == 1
        assert next(one for one in found if "the boat" in one.text).branch == fork.branch
        scores = [one.score for one in found]
        assert scores == sorted(scores, reverse=True)
