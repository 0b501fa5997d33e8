"""Words in PostgreSQL: long messages are indexed in parts, and nothing is lost where they are parted."""

from __future__ import annotations

from refold.ports.store import Head
from refold.store.postgres import PostgresStore
from tests.contract.talks import ANNA, begin, say
from tests.store.postgres.trouble import (
    by_hand,
)


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
