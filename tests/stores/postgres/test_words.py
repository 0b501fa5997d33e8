"""Words in PostgreSQL: long messages are indexed in parts, and nothing is lost where they are parted."""

from __future__ import annotations

from threading import get_ident

import pytest
from msgspec import Raw, structs

from refold.ports.records import Batch, Head, NewMessages, read_body
from refold.stores.postgres.store import PostgresStore
from refold.stores.sql import commit, search
from tests.contract.talks import ANNA, begin, messages, say
from tests.stores.postgres.trouble import by_hand


async def test_many_matches_are_counted_outside_of_the_event_loop(store, monkeypatch):
    threads, count = set[int](), search.count_positions

    def counted(*args):
        threads.add(get_ident())
        return count(*args)

    monkeypatch.setattr(search, "count_positions", counted)
    await say(store, await begin(store), *["the night boat"] * 300)

    assert len(await store.search(ANNA, "boat", limit=1_000)) == 300
    assert threads
    assert get_ident() not in threads


async def found(store: PostgresStore, query: str) -> list[int]:
    return sorted(hit.seq for hit in await store.search(ANNA, query))


async def test_words_are_found_wherever_they_are_in_a_long_message(store):
    filler = " ".join(f"w{number}" for number in range(9_000))
    await say(
        store, await begin(store), f"{filler} harbour_master {filler}", f"harbour {filler} master", "end"
    )

    assert await found(store, "harbour_master") == [0]
    assert await found(store, "harbour") == [0, 1]
    assert await found(store, "w8999") == [0, 1]


async def test_a_phrase_of_the_commonest_characters_is_found_after_hundreds_of_them(store):
    await say(store, await begin(store), "的" * 10 + "他的书很好" * 3_000 + "我的船", "我" * 300)

    assert await found(store, "我的船") == [0]


async def test_no_phrase_is_lost_where_a_long_message_is_parted(store):
    words = [f"w{number}" for number in range(4_100)]
    await say(store, await begin(store), " ".join(words), "w1 w3")

    for place in (1_998, 1_999, 2_000, 3_999, 4_000):
        assert await found(store, f"{words[place]}-{words[place + 1]}") == [0], place
    assert await found(store, "w1-w3") == [1], "in the other these do not follow each other"


async def test_a_purge_of_a_branch_takes_its_words_with_it(url, store):
    head: Head = await say(store, await begin(store), "storm " * 3_000)
    await store.delete(ANNA, head.conversation)

    with by_hand(url) as connection:
        assert connection.execute("SELECT count(*) FROM words").fetchone() == (0,)


TEXTS = (
    "",
    "a",
    "of the of the of",
    "max_page_count isn't src/a.py: C:\\x 'quoted' 1:2A",
    "Ünïcode ﬁne ½ 他的书 ไทย हिन्दी",
    "w " * 2_000,
    "w " * 2_001,
)


async def test_one_message_alone_is_indexed_as_it_is_among_others(url, store):
    """It goes in with a statement of its own."""
    together = await begin(store, "together")
    await store.commit(together, Batch(at=2.0, messages=messages(together, *TEXTS)))
    head = await begin(store, "talk")
    for text in TEXTS:
        head = await say(store, head, text)

    with by_hand(url) as connection:
        connection.execute("SET search_path = refold")
        asked = (
            "SELECT seq, ts_filter(words, '{d}'), length(words) FROM words WHERE branch = %s ORDER BY ordinal"
        )
        alone, others = (
            connection.execute(asked, [f"{name}/main"]).fetchall() for name in ("talk", "together")
        )
    assert alone == others
    assert len({seq for seq, *_ in alone}) == len(TEXTS) - 1, "there are no words in the first"


@pytest.mark.parametrize(
    "count", [0, 1, 1_999, 2_000, 2_001, 2_031, 2_032, 2_033, 4_000, 4_031, 4_032, 9_001]
)
async def test_a_long_message_is_indexed_as_the_database_would_do_it(url, store, monkeypatch, count):
    text = " ".join(f"w{number % 700}" for number in range(count)) + " " + "-" * 300
    head = await begin(store, "usual")
    await store.commit(head, Batch(at=2.0, messages=messages(head, "first", text, "w5")))
    monkeypatch.setattr(commit, "PORTION_BYTES", 256)
    head = await begin(store, "long")
    await store.commit(head, Batch(at=2.0, messages=messages(head, "first", text, "w5")))

    with by_hand(url) as connection:
        connection.execute("SET search_path = refold")
        words = "SELECT seq, ts_filter(words, '{d}') FROM words WHERE branch = %s ORDER BY ordinal"
        rows = "SELECT seq, role, format, body, digest, shown, tokens, key, at FROM message WHERE branch = %s ORDER BY seq"
        for asked in (words, rows):
            usual, long = (
                connection.execute(asked, [f"{name}/main"]).fetchall() for name in ("usual", "long")
            )
            assert long == usual


@pytest.mark.parametrize("is_decoded", [False, True])
async def test_the_bytes_and_the_words_of_a_message_of_megabytes_are_those_that_came(store, is_decoded):
    text = "harbour " + "x" * 3_000_000 + " master"
    head = await begin(store)
    given = messages(head, "first", text)
    rows, bodies = [structs.replace(one, body=b"") for one in given], [Raw(one.body) for one in given]
    decoded = [read_body(body, one.format) for body, one in zip(bodies, given, strict=True)]
    new = NewMessages(rows, bodies, decoded if is_decoded else ())
    assert new.decoded(1) is (decoded[1] if is_decoded else None)
    await store.commit(head, Batch(at=2.0, messages=new))

    assert [one.body for one in await store.messages(head)] == [one.body for one in given]
    assert await found(store, "master") == [1]
