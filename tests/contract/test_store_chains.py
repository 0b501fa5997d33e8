"""Every store recognises a history by its hash, and keeps what was answered."""

from __future__ import annotations

import pytest
from msgspec import structs

from refold.model.errors import HeldElsewhere
from refold.ports.records import Batch, Head, HistoryPlace
from refold.ports.store import Store
from tests.contract.talks import ANNA, begin, call, first_session, message, new_head

BEN = "ben"


async def seen(store: Store, head: Head, *hashes: bytes) -> Head:
    """One more message for each hash."""
    said = tuple(message(head.next_seq + index, "so") for index in range(len(hashes)))
    return await store.commit(head, Batch(at=1.0, messages=said, chains=hashes))


async def test_a_history_is_found_by_the_hash_of_any_of_its_prefixes(store):
    head = await seen(store, await begin(store), b"a", b"ab", b"abc")

    assert await store.places(ANNA, [b"ab", b"nothing"]) == [HistoryPlace(b"ab", "talk", head.branch, 2, 3)]
    assert [at.size for at in await store.places(ANNA, [b"a", b"ab", b"abc"])] == [3, 2, 1]
    assert await store.places(ANNA, []) == []


async def test_nobody_finds_the_history_of_another_owner(store):
    await seen(store, await begin(store), b"a")

    assert await store.places(BEN, [b"a"]) == []


async def test_where_a_branch_ends_comes_first_then_the_newest_branch(store):
    old = await seen(store, await begin(store), b"a", b"ab")
    await seen(store, await begin(store, "later"), b"a", b"x")
    await seen(store, await begin(store, "short"), b"a")

    assert [at.conversation for at in await store.places(ANNA, [b"a"])] == ["short", "later", "talk"]
    assert (await store.places(ANNA, [b"ab"]))[0].branch == old.branch


async def test_of_equal_hashes_of_one_branch_the_last_place_comes_first(store):
    await seen(store, await begin(store), b"a", b"a", b"b")

    assert [at.size for at in await store.places(ANNA, [b"a"])] == [2, 1]


async def test_the_hashes_of_a_deleted_conversation_are_gone(store):
    await seen(store, await begin(store), b"a")
    await store.delete(ANNA, "talk")

    assert await store.places(ANNA, [b"a"]) == []
    await begin(store)
    assert await store.places(ANNA, [b"a"]) == []


async def test_a_batch_that_claims_what_another_branch_holds_is_refused_whole(store):
    await seen(store, await begin(store), b"a", b"ab")
    other = await seen(store, await begin(store, "other"), b"a")
    batch = Batch(at=1.0, messages=(message(1, "so"), message(2, "so")), chains=(b"ab", b"abc"), claims=b"ab")

    with pytest.raises(HeldElsewhere):
        await store.commit(other, batch)

    assert await store.head(ANNA, "other") == other
    assert await store.places(ANNA, [b"abc"]) == []


async def test_a_claim_is_not_refused_for_the_own_branch_another_format_another_size_or_another_owner(store):
    head = await seen(store, await begin(store), b"a", b"ab")
    spoken = structs.replace(new_head("answers"), format="responses")
    answers = await store.create(spoken, first_session(spoken), at=1.0)
    longer, ben = await begin(store, "longer"), await begin(store, "bens", BEN)
    said = (message(0, "so"), message(1, "so"))

    await store.commit(head, Batch(at=1.0, messages=(message(2, "so"),), chains=(b"abc",), claims=b"abc"))
    await store.commit(answers, Batch(at=1.0, messages=said, chains=(b"a", b"ab"), claims=b"ab"))
    await store.commit(ben, Batch(at=1.0, messages=said, chains=(b"a", b"ab"), claims=b"ab"))
    more = (*said, message(2, "so"))
    await store.commit(longer, Batch(at=1.0, messages=more, chains=(b"x", b"a", b"ab"), claims=b"ab"))


async def test_a_reply_is_kept_beside_its_call_for_its_owner_only(store):
    head = await begin(store)
    made = structs.replace(call(head, "c1"), reply=b'{"said":"yes"}')
    await store.commit(head, Batch(at=1.0, calls=(made,)))

    assert await store.reply_to(ANNA, "c1") == b'{"said":"yes"}'
    assert await store.reply_to(BEN, "c1") == b""
    assert (await store.calls(ANNA, "talk"))[0].reply == b""
    await store.delete(ANNA, "talk")
    assert await store.reply_to(ANNA, "c1") == b""
