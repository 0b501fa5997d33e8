"""Every store finds messages by their words, in any script, and takes what a user types for words and nothing else."""

from __future__ import annotations

from random import Random

import pytest
from msgspec import structs

from refold.ports.records import Batch, Head, StoredMessage
from refold.ports.store import Store
from refold.stores.search import CONSIDERED
from tests.contract.talks import ANNA, BORIS, begin, compact, first_session, message, new_head, read, say


async def found(store: Store, query: str, conversation: str = "", owner: str = ANNA) -> set[tuple[str, int]]:
    hits = await store.search(owner, query, conversation=conversation)
    return {(hit.conversation, hit.seq) for hit in hits}


async def seqs(store: Store, query: str) -> list[int]:
    return sorted(hit.seq for hit in await store.search(ANNA, query))


async def test_messages_are_found_by_a_word_of_any_case(store):
    await say(store, await begin(store), "The Harbour is closed.", "Why?", "harbour works")

    assert await seqs(store, "harbour") == [0, 2]
    assert await seqs(store, "HARBOUR") == [0, 2]
    assert await seqs(store, "nothing") == []


async def test_a_hit_says_where_it_is(store):
    head = await say(store, await begin(store), "other", "storm")

    (hit,) = await store.search(ANNA, "storm")
    assert (hit.conversation, hit.branch, hit.seq) == ("talk", head.branch, 1)


async def ranked(store: Store, query: str) -> list[int]:
    return [hit.seq for hit in await store.search(ANNA, query)]


async def test_messages_that_hold_all_words_come_first(store):
    await say(store, await begin(store), "the storm at sea", "a storm on land", "the sea is calm")

    assert await ranked(store, "storm sea") == [0, 2, 1]
    assert (await ranked(store, "sea, storm!"))[0] == 0
    assert await ranked(store, '"storm at sea"') == [0]


async def test_where_no_message_holds_all_words_those_with_some_are_found(store):
    await say(store, await begin(store), "a storm on land", "nothing here", "the sea is calm")

    assert await seqs(store, "storm sea") == [0, 2]


@pytest.mark.parametrize(
    ("query", "expected"),
    [("数据库", [0]), ("迁移", [0, 1]), ("库数", []), ("データ", [2]), ("서버", [3])],
)
async def test_words_without_spaces_between_them_are_found(store, query, expected):
    await say(
        store,
        await begin(store),
        "请把数据库迁移到新的服务器",
        "迁移完成",
        "データを移行する",
        "서버를 옮긴다",
    )

    assert await seqs(store, query) == expected


async def test_names_of_files_and_errors_are_found(store):
    said = ["see src/app/main.py line 40", "raised KeyError: 'user_id'", "version 3.14.2 of x86-64"]
    await say(store, await begin(store), *said)

    assert await seqs(store, "main.py") == [0]
    assert await seqs(store, "src/app/main.py") == [0]
    assert await seqs(store, "KeyError user_id") == [1]
    assert await seqs(store, "3.14.2") == [2]
    assert await seqs(store, "x86-64") == [2]


@pytest.mark.parametrize(
    "query",
    [
        "",
        " ",
        "\x00",
        "!!! ??? ...",
        '"',
        "' OR 1=1 --",
        "(",
        "*",
        "NEAR(",
        "AND",
        "OR NOT",
        "body:storm",
        "^storm",
        "storm*",
        "-calm",
        "storm & !sea | <->",
        ":*",
        "%",
        "\\",
        "{storm}",
        "🌊",
        "storm " * 500,
    ],
)
async def test_what_a_user_types_is_never_read_as_a_language(store, query):
    await say(store, await begin(store), "storm at sea", "calm")

    assert set(await seqs(store, query)) <= {0}


async def test_signs_of_a_query_language_are_plain_text(store):
    await say(store, await begin(store), "storm at sea", "not and or near body")

    assert await seqs(store, "storm*") == [0]
    assert await seqs(store, "-storm") == [1]
    assert await seqs(store, "^storm") == [0]
    assert await seqs(store, "sto*") == []
    assert await seqs(store, "NOT AND") == [1]
    assert await seqs(store, "OR") == [1]


async def test_a_search_stays_in_its_conversation_and_its_owner(store):
    await say(store, await begin(store), "storm")
    await say(store, await begin(store, "other"), "calm", "storm")
    await say(store, await begin(store, owner=BORIS), "storm", "storm")

    assert await found(store, "storm") == {("talk", 0), ("other", 1)}
    assert await found(store, "storm", "other") == {("other", 1)}
    assert await found(store, "storm", "nothing") == set()
    assert await found(store, "storm", owner=BORIS) == {("talk", 0), ("talk", 1)}
    assert await found(store, "storm", owner="nobody") == set()


async def test_the_best_messages_come_first_and_no_more_than_asked_for(store):
    said = ["storm storm storm", *("a storm far away behind many other words of no use" for _ in range(5))]
    await say(store, await begin(store), *said)

    hits = await store.search(ANNA, "storm", limit=3)
    assert len(hits) == 3
    assert hits[0].seq == 0
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


async def test_what_is_no_longer_shown_is_still_found(store):
    head = await say(store, await begin(store), "storm", "calm", "end")
    await compact(store, head, 2)

    assert await seqs(store, "storm") == [0]


async def test_a_message_that_branches_share_is_found_once(store):
    base = await say(store, await begin(store), "storm", "calm")
    side = new_head(branch="talk/side")
    side = await store.fork(base, 1, side, first_session(side, 1))
    await say(store, side, "another storm")

    hits = await store.search(ANNA, "storm")
    assert {(hit.branch, hit.seq) for hit in hits} == {(base.branch, 0), (side.branch, 1)}


async def test_a_search_in_a_branch_finds_what_it_has_and_shares_and_nothing_else(store):
    base = await say(store, await begin(store), "storm", "calm", "storm after the fork")
    side = new_head(branch="talk/side")
    side = await say(store, await store.fork(base, 2, side, first_session(side, 2)), "a storm aside", "end")
    deep = new_head(branch="talk/deep")
    deep = await say(store, await store.fork(side, 3, deep, first_session(deep, 3)), "deep storm")
    await say(store, await begin(store, "other"), "storm")

    async def within(head: Head) -> set[tuple[str, int]]:
        hits = await store.search(ANNA, "storm", conversation=head.conversation, branch=head)
        return {(hit.branch, hit.seq) for hit in hits}

    assert await within(base) == {(base.branch, 0), (base.branch, 2)}
    assert await within(side) == {(base.branch, 0), (side.branch, 2)}
    assert await within(deep) == {(base.branch, 0), (side.branch, 2), (deep.branch, 3)}


async def test_other_branches_leave_room_for_what_a_branch_has(store):
    base = await say(store, await begin(store), "a long story in which there is a storm somewhere", "sea")
    side = new_head(branch="talk/side")
    side = await store.fork(base, 2, side, first_session(side, 2))
    crowd = [message(seq, "storm cloud") for seq in range(2, CONSIDERED + 12)]
    await store.commit(side, Batch(at=1.0, messages=tuple(crowd)))

    for query, expected in (("storm", [0]), ("storm cloud", [0]), ("storm cloud sea", [0, 1])):
        hits = await store.search(ANNA, query, conversation="talk", branch=base)
        assert sorted(hit.seq for hit in hits) == expected


async def test_of_too_many_that_match_the_newest_are_looked_at_wherever_they_were_said(store):
    old = await say(store, await begin(store), "calm")
    new = await begin(store, "new")
    crowd = [message(seq, "a storm and some more words") for seq in range(CONSIDERED + 12)]
    await store.commit(new, Batch(at=1.0, messages=tuple(crowd)))
    assert len(await store.search(ANNA, "storm", limit=5)) == 5
    await say(store, old, "storm")

    best = (await store.search(ANNA, "storm", limit=5))[0]
    assert (best.conversation, best.seq) == ("talk", 1)


async def test_what_was_deleted_is_not_found(store):
    await say(store, await begin(store), "storm")
    await say(store, await begin(store, "other"), "storm")
    await store.delete(ANNA, "talk")

    assert await found(store, "storm") == {("other", 0)}
    await say(store, await begin(store), "calm")
    assert await found(store, "storm") == {("other", 0)}


async def test_a_message_that_is_to_be_found_by_nobody_is_kept_all_the_same(store):
    head = await begin(store)
    hidden = structs.replace(message(0, "storm"), is_findable=False)
    head = await store.commit(head, Batch(at=1.0, messages=(hidden, message(1, "storm"))))
    head = await store.commit(head, Batch(at=1.0, messages=(structs.replace(hidden, seq=2),)))

    assert await seqs(store, "storm") == [1]
    assert await read(store, head) == ["storm"] * 3


async def test_a_message_without_text_is_not_found(store):
    head = await begin(store)
    await store.commit(head, Batch(at=1.0, messages=(message(0, ""), message(1, "storm"))))

    assert await seqs(store, "storm") == [1]


TALK = [
    "When does the night boat from Vik leave?",
    "At half past two, from pier 7.",
    "I painted the old boats in the harbour last summer.",
    "Painting boats! How long did it take you?",
    "Two weeks, the harbour master helped me.",
    "The storm closed the harbour, no boat left for 3 days.",
    "Where did you sleep in the storm?",
    "In the boathouse of my brother, with his children.",
    "his child was ill, and the doctors came by boat",
    "see src/boat/pier.py line 40: raised KeyError 'pier_id'",
    "请把数据库迁移到新的服务器",
    "Wann fährt das Nachtboot, und fahren die Boote im Sturm?",
]
QUERIES = [
    "boat",
    "painting boats",
    "When did the storm close the harbour?",
    "children of the brother",
    "did the doctor visit the child by boat",
    "src/boat/pier.py",
    "pier_id",
    "the boat of 1 January 1970",
    "harbor storm",
    "harbour painted harbor",
    '"old boats" -storm',
    "数据库",
    "wann fuhr das Boot im Sturm",
    "the of and",
]


async def test_every_store_gives_the_same_order(store_set):
    """Tolerance: none. Each store counts the same words, and one function ranks them; scores differ by rounding at most."""
    stores = await store_set.open()
    try:
        for store in stores:
            first = await say(store, await begin(store), *TALK)
            side = new_head(branch="talk/side")
            await say(store, await store.fork(first, 4, side, first_session(side, 4)), "a boat on the side")
            await say(store, await begin(store, "other"), *reversed(TALK))
        for query in QUERIES:
            orders = [
                [
                    (hit.conversation, hit.branch, hit.seq, round(hit.score, 6))
                    for hit in await store.search(ANNA, query)
                ]
                for store in stores
            ]
            assert orders[0] == orders[1] == orders[2], query
            assert orders[0] or query == "the of and"
            sessions = [
                [hit.session.id for hit in await store.search_sessions(ANNA, query)] for store in stores
            ]
            assert sessions[0] == sessions[1] == sessions[2], query
    finally:
        await store_set.close(stores)


VOCABULARY = """
harbour harbor harbours painted paint painting painter boat boats boathouse storm storms stormy children child brother
brothers pier piers doctor doctors went going weeks summer Vik Anna Boris 7 12 2023 3.14.2 src/boat/pier.py pier_id KeyError
the of and in where did you a 数据库 迁移 лодка лодки Sturm fährt Boote
"""
WORDS = VOCABULARY.split()


def random_text(random: Random, most: int) -> str:
    return " ".join(random.choice(WORDS) for _ in range(random.randint(0, most)))


def mistype(random: Random, word: str) -> str:
    at = random.randint(1, len(word))
    return random.choice(
        [
            word[:at] + word[at + 1 :],
            word[:at] + random.choice("aeinorst") + word[at:],
            word[:at] + word[at - 1 :],
        ]
    )


def random_query(random: Random) -> str:
    """Words, typing errors beside their right spelling, doubles, phrases, minus, dates and fields, in any order."""
    parts = list[str]()
    for _ in range(random.randint(0, 4)):
        word = random.choice(WORDS)
        parts += random.choice(
            [
                [word],
                [word, word],
                [mistype(random, word)],
                [word, mistype(random, word)],
                [mistype(random, word), mistype(random, word)],
                [f'"{random_text(random, 2)}"'],
                [f'"{word}"', word],
                [f"-{word}"],
                [f'-"{random_text(random, 2)}"'],
                [f"{word}/{random.choice(WORDS)}"],
                [f"{word}.{mistype(random, word)}"],
                [str(random.randint(1, 40))],
            ]
        )
    fields = [
        "in:talk",
        "in:other",
        "from:user",
        "from:tool",
        "after:1970-01-03",
        "before:1970-02",
        "3 January 1970",
        "in January",
    ]
    parts += random.sample(fields, random.choice([0, 0, 0, 1, 2]))
    random.shuffle(parts)
    return " ".join(parts)


RANDOM_QUERIES = 80
"""For each seed. The slow tests have as many seeds again, twice."""


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(at, marks=pytest.mark.slow) for at in range(4, 12))]
)
async def test_every_store_gives_the_same_order_for_any_query(store_set, seed):
    """Tolerance: none for the order, and a millionth for a score."""
    random = Random(seed)
    roles = ["user", "assistant", "tool"]

    def texts(head: Head, count: int) -> tuple[StoredMessage, ...]:
        return tuple(
            structs.replace(
                message(seq, random_text(random, random.choice([4, 12, 60])), role=random.choice(roles)),
                at=seq * 20_000.0,
                is_findable=random.random() < 0.9,
            )
            for seq in range(head.next_seq, head.next_seq + count)
        )

    stores = await store_set.open()
    try:
        said, forked, elsewhere = (
            texts(structs.replace(new_head(), next_seq=first), count)
            for first, count in ((0, 60), (30, 20), (0, 40))
        )
        sides = list[Head]()
        for store in stores:
            base = await store.commit(await begin(store), Batch(at=1.0, messages=said))
            side = new_head(branch="talk/side")
            side = await store.fork(base, 30, side, first_session(side, 30))
            sides.append(await store.commit(side, Batch(at=1.0, messages=forked)))
            await store.commit(await begin(store, "other"), Batch(at=1.0, messages=elsewhere))
        found = 0
        for _ in range(RANDOM_QUERIES):
            query = random_query(random)
            place, is_branch = random.choice([("", False), ("", False), ("talk", False), ("talk", True)])
            orders = [
                [
                    (hit.conversation, hit.branch, hit.seq, hit.is_whole, round(hit.score, 6))
                    for hit in await store.search(
                        ANNA, query, conversation=place, branch=side if is_branch else None, limit=50
                    )
                ]
                for store, side in zip(stores, sides, strict=True)
            ]
            assert orders[0] == orders[1] == orders[2], query
            found += bool(orders[0])
            sessions = [
                [
                    (hit.session.id, round(hit.score, 6))
                    for hit in await store.search_sessions(ANNA, query, conversation=place)
                ]
                for store in stores
            ]
            assert sessions[0] == sessions[1] == sessions[2], query
        assert found > RANDOM_QUERIES / 2, "most queries find something, or nothing was compared"
    finally:
        await store_set.close(stores)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("boats", [0, 2, 3, 5, 8, 9]),
        ("take children", [7, 3, 8]),
        ("what was painted", [3, 2]),
        ("hrabour", [4, 5, 2]),
        ("Boote", [11]),
        ("das Boot", [11]),
        ("7", [1]),
        ('"harbour master"', [4]),
        ("harbour -storm", [4, 2]),
    ],
)
async def test_words_are_found_in_their_other_forms_and_with_a_typing_error(store, query, expected):
    await say(store, await begin(store), *TALK)

    found = [hit.seq for hit in await store.search(ANNA, query)]
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        ("the wolves came", "wolf"),
        ("one wolf came", "wolves"),
        ("her knives", "knife"),
        ("deux chevaux", "cheval"),
        ("un cheval", "chevaux"),
        ("une lettre sur les chevaux", "le cheval de mon frère"),
        ("новые дома", "новая"),
        ("zwei Hunden", "Hunde"),
        ("due libri", "libro"),
        ("drie boeken", "boek"),
        ("hablamos ayer", "hablar"),
    ],
)
async def test_one_word_is_found_in_the_forms_of_every_language(store, said, asked):
    await say(store, await begin(store), "nothing of it", said)

    assert await seqs(store, asked) == [1]


async def test_forms_of_other_languages_are_looked_for_only_where_a_word_is_nowhere(store):
    await say(store, await begin(store), "the plan", "a plane", "the start", "one star")

    assert await seqs(store, "plan") == [0]
    assert await seqs(store, "star") == [3]


async def test_of_many_misspelt_words_the_first_eight_are_corrected(store):
    words = [
        "harbour",
        "painted",
        "children",
        "company",
        "letters",
        "kitchen",
        "windows",
        "gardens",
        "travels",
    ]
    fill = ["nothing"] * 3  # a query of many words also finds the two messages beside a match
    await say(store, await begin(store), *words[:8], *fill, words[8])

    misspelt = [f"{word}q" for word in words]
    assert set(range(8)) <= set(await seqs(store, " ".join(misspelt)))
    assert 11 not in await seqs(store, " ".join(misspelt))
    assert 11 in await seqs(store, " ".join([*words[:8], misspelt[8]]))
    assert await seqs(store, misspelt[8]) == [11]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("after:1970-01-03", [5, 4, 3, 2]),
        ("before:1970-01-03", [1, 0]),
        ("after:1970-01-02 before:1970-01-04", [2, 1]),
        ("after:1970-01-02 from:assistant", [5, 3, 1]),
        ("after:1970-01-02 -storm", [5, 3, 2, 1]),
        ("-storm", [5, 3, 2, 1]),
        ('-storm -"since january"', [5, 2, 1]),
        ("from:assistant", [5, 3, 1]),
        ("in:talk", [5, 4, 3, 2, 1, 0]),
        ("in:other", []),
        ("in:a\x00b", []),
        ('in:"\ud800"', []),
        ('in:"\ud800" storm', []),
        ("3 January 1970", [2]),
        ("1970-01-03", [2]),
        ("3 Jan 1970", [2]),
        ("3. Jan. 1970", [2]),
        ("3 janv. 1970", [2]),
        ("3 ene 1970", [2]),
        ("3 gen 1970", [2]),
        ("3 янв 1970", [2]),
        ("Jan 3, 1970", [2]),
        ("January 1970", [3, 5, 4, 2, 1, 0]),
        ("3 January 1970 from:assistant", []),
        ("in January", [3]),
    ],
)
async def test_a_query_without_words_lists_the_messages_of_its_time_the_newest_first(store, query, expected):
    texts = ["storm", "calm", "rain", "since January 1970", "a storm", "end"]
    said = [
        structs.replace(
            message(seq, text, role="assistant" if seq % 2 else "user"),
            at=86_400.0 * seq + 10,
        )
        for seq, text in enumerate(texts)
    ]
    hidden = structs.replace(message(6, "hidden"), at=9e5, is_findable=False)
    empty = structs.replace(message(7, ""), at=9e5)
    head = await store.commit(await begin(store), Batch(at=9e5, messages=(*said, hidden, empty)))

    assert await ranked(store, query) == expected
    within = await store.search(ANNA, query, conversation="talk", branch=head)
    assert [hit.seq for hit in within] == expected
    assert [hit.seq for hit in await store.search(ANNA, query, limit=2)] == expected[:2]
    sessions = [hit.session.id for hit in await store.search_sessions(ANNA, query)]
    assert sessions == (["talk/main/s0"] if expected else [])


async def test_an_answer_is_found_beside_its_question(store):
    await say(
        store, await begin(store), "Nothing.", "Where did you sleep in the big storm?", "In a barn.", "Oh."
    )

    assert (await ranked(store, "where did they sleep in the big storm"))[:2] == [1, 2]
    assert await ranked(store, "storm") == [1]


async def test_a_hidden_message_beside_a_match_is_not_found(store):
    hidden = structs.replace(message(1, "In a barn."), is_findable=False)
    said = (message(0, "Where did you sleep in the big storm?"), hidden)
    await store.commit(await begin(store), Batch(at=1.0, messages=said))

    assert await ranked(store, "where did they sleep in the big storm") == [0]


async def test_the_name_of_a_speaker_is_searched(store):
    body = b'{"role": "user", "name": "Caroline", "content": "Good morning"}'
    await store.commit(
        await begin(store),
        Batch(at=1.0, messages=(structs.replace(message(0, ""), body=body), message(1, "storm"))),
    )

    assert await ranked(store, "caroline") == [0]


async def test_a_session_is_found_by_its_whole_text(store):
    head = await say(store, await begin(store), "storm", "calm sea")
    await compact(store, head, 2)
    await say(store, await begin(store, "other"), "storm", "storm")

    found = await store.search_sessions(ANNA, "storm sea")
    assert [hit.conversation for hit in found] == ["talk", "other"]
    within = await store.search_sessions(ANNA, "storm", conversation="other")
    assert [hit.session for hit in within] == [hit.session for hit in found if hit.conversation == "other"]
    assert await store.search_sessions(ANNA, "") == []


async def test_of_sessions_with_equal_scores_the_newest_comes_first(store):
    for name, at in (("c", 1.0), ("a", 3.0), ("d", 2.0), ("b", 2.0)):
        head = new_head(name)
        begun = structs.replace(first_session(head), at=at)
        await say(store, await store.create(head, begun, title="", at=at), "storm at sea")

    found = await store.search_sessions(ANNA, "storm")
    assert [hit.conversation for hit in found] == ["a", "b", "d", "c"]
    assert len({hit.score for hit in found}) == 1
