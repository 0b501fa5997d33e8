"""Which sessions are found: named ones first, then what fits words and meaning, of one conversation or of all."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from refold.engine.search import merged
from refold.model.errors import ConfigError
from refold.ports.records import Session
from refold.stores.memory import MemoryStore
from tests.embedder import Subjects, vector_of
from tests.engine.test_stored_conversation import engine


def named(*ids: str) -> list[tuple[str, Session]]:
    return [("talk", Session(id=which, branch="b", first=0)) for which in ids]


def ids(found) -> list[str]:
    return [one.id for _, one in found]


def test_what_stands_in_both_lists_comes_first():
    assert ids(merged(named("a", "b", "c"), named("d", "b"))) == ["b", "a", "d", "c"]


def test_a_session_counts_once_in_a_list():
    assert ids(merged(named("a", "b", "b", "b"), named("a"))) == ["a", "b"]


def test_without_one_list_the_other_is_as_it_was():
    assert ids(merged(named("a", "b"), [])) == ids(merged([], named("a", "b"))) == ["a", "b"]


async def told(made, name: str, *texts: str) -> list[str]:
    """One closed session for each of the texts; their ids."""
    talk = await made.conversation(name)
    for text in texts:
        await talk.add(text, {"role": "assistant", "content": "I see."})
        await talk.start_session()
    return [one.id for one in await made.sessions(name) if one.last is not None]


async def test_a_session_that_is_named_comes_before_all_others():
    made = engine(MemoryStore(), embedder=Subjects())
    trip, bill = await told(made, "work", "The boat sailed.", "We paid.")

    assert ids(await made.find_sessions(bill[:8]))[0] == bill
    assert bill not in ids(await made.find_sessions(bill[:8], name="other"))
    assert ids(await made.find_sessions("boat", limit=1)) == [trip]


async def test_a_date_in_plain_words_ranks_what_was_said_then_higher(store):
    now = [0.0]
    made = engine(store, clock=lambda: now[0])
    months = {month: datetime(2023, month, 9, tzinfo=UTC).timestamp() for month in (5, 7, 9)}
    talk, sessions = await made.conversation("talk"), {}
    for month, at in months.items():
        now[0] = at
        sessions[month] = (await talk.start_session()).id
        await talk.add(
            f"We went camping for the {month}th time.", {"role": "assistant", "content": "Was it cold?"}
        )

    for words, month in (("camping in July", 7), ("camping on 8 May 2023", 5), ("camping", 9)):
        hits = await made.search(words)
        assert [hit.at for hit in hits][:1] == [months[month]], words
        assert len(hits) == 3
        assert ids(await made.find_sessions(words))[0] == sessions[month] or month == 9


@pytest.mark.parametrize(("month", "asked"), [(5, "May 2023"), (5, "in may 2023"), (7, "July 2023")])
async def test_a_month_alone_lists_what_was_said_then_and_not_every_message_with_its_name(
    store, month, asked
):
    now = [datetime(2023, month, 9, tzinfo=UTC).timestamp()]
    made = engine(store, clock=lambda: now[0])
    talk = await made.conversation("talk")
    await talk.add("The boat sailed.")
    await talk.start_session()
    now[0] = datetime(2024, 1, 9, tzinfo=UTC).timestamp()
    await talk.add(*(f"It may rain in July, or it may not: {number}." for number in range(9)))
    await talk.add("We met in May 2023.", "We met in July 2023.")

    named, then = await made.search(asked)

    assert (named.handle, then.handle) == ("#m10" if month == 5 else "#m11", "#m0")
    assert ids(await made.find_sessions(asked)) == [one.id for one in reversed(await made.sessions("talk"))]


async def test_another_embedder_s_vectors_are_not_compared():
    store = MemoryStore()
    await told(engine(store, embedder=Subjects()), "work", "The boat sailed.")

    class Other(Subjects):
        name = "other"

        async def embed(self, texts):  # it has a vector for the words of the search alone
            return [vector_of(text) if text == "vessel" else b"" for text in texts]

    assert await engine(store, embedder=Other()).find_sessions("vessel") == []


@pytest.mark.parametrize(
    "condition",
    [
        '"vessel"',
        "-sailed",
        '-"the boat"',
        "in:nowhere",
        "in:bills",
        "after:9999",
        "before:1990",
        "from:tool",
    ],
)
async def test_no_session_is_found_by_meaning_that_a_condition_of_the_query_leaves_out(condition):
    made = engine(MemoryStore(), embedder=Subjects())
    (trip,) = await told(made, "trips", "The boat sailed.")
    await told(made, "bills", "We paid.")

    assert ids(await made.find_sessions("vessel")) == [trip]
    assert ids(await made.find_sessions("in:trips vessel")) == [trip]
    assert ids(await made.find_sessions(f"{condition} vessel")) == []


@pytest.mark.parametrize("nothing", ["   ", "*", '""', "(", "\x00", "\ud800"])
async def test_a_query_without_words_finds_no_session_by_meaning(nothing):
    class Near(Subjects):
        async def embed(self, texts):
            return [vector_of("boat") for _ in texts]

    made = engine(MemoryStore(), embedder=Near())
    await told(made, "trips", "The boat sailed.")

    assert await made.find_sessions("vessel") != []
    assert await made.find_sessions(nothing) == []


@pytest.mark.parametrize("ask", ["conversations", "sessions", "search", "find_sessions"])
async def test_a_limit_means_the_same_whatever_the_store(store, ask):
    made = engine(store)
    await told(made, "talk", "storm at sea", "the storm is over")
    words = ["storm"] if ask in {"search", "find_sessions"} else []
    look = getattr(made, ask)
    assert await look(*words, limit=0) == []
    assert await look(*words, limit=10**30) == await look(*words, limit=50) != []
    for limit in (-1, 1.5, None):
        with pytest.raises(ConfigError, match="a limit is a whole number") as caught:
            await look(*words, limit=limit)
        assert caught.value.hint
