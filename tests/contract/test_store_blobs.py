"""Every store keeps what a conversation comes in with once, shares it with forks, and deletes it with the conversation."""

from __future__ import annotations

from hashlib import sha256

import pytest
from msgspec import structs

from refold.model.errors import Conflict
from refold.ports.records import NEWEST_BLOBS, Batch
from tests.contract.talks import ANNA, BORIS, begin, first_session, new_head, say

PROMPT = b'{"system":"Be brief.","tools":[]}' * 100
DIGEST = sha256(PROMPT).digest()


async def test_what_was_kept_is_found_by_its_hash(store):
    head = await store.commit(await begin(store), Batch(at=2.0, blobs=(PROMPT, b"other")))

    assert await store.blob(head, DIGEST) == PROMPT
    assert await store.blob(head, sha256(b"other").digest()) == b"other"
    assert await store.blob(head, sha256(b"never said").digest()) is None


async def test_what_comes_again_is_kept_all_the_same(store):
    head = await store.commit(await begin(store), Batch(at=2.0, blobs=(PROMPT,)))
    head = await store.commit(head, Batch(at=3.0, blobs=(PROMPT, PROMPT)))

    assert await store.blob(head, DIGEST) == PROMPT


async def test_a_fork_finds_what_its_base_came_in_with(store):
    base = await store.commit(await say(store, await begin(store), "a"), Batch(at=2.0, blobs=(PROMPT,)))
    side = new_head(branch="side")
    side = await store.fork(base, 1, side, first_session(side, 1))

    assert await store.blob(side, DIGEST) == PROMPT


async def test_other_conversations_and_owners_find_nothing(store):
    await store.commit(await begin(store), Batch(at=2.0, blobs=(PROMPT,)))

    assert await store.blob(await begin(store, "other"), DIGEST) is None
    assert await store.blob(await begin(store, owner=BORIS), DIGEST) is None


async def test_it_is_deleted_with_its_conversation_and_stays_with_others(store):
    head = await store.commit(await begin(store), Batch(at=2.0, blobs=(PROMPT,)))
    other = await store.commit(await begin(store, "other"), Batch(at=2.0, blobs=(PROMPT,)))
    await store.delete(ANNA, "talk")

    assert await store.blob(head, DIGEST) is None
    assert await store.blob(other, DIGEST) == PROMPT
    await store.delete(ANNA)
    assert await store.blob(other, DIGEST) is None


async def test_of_a_batch_that_is_refused_nothing_is_kept(store):
    seen = await begin(store)
    head = await say(store, seen, "first")
    with pytest.raises(Conflict):
        await store.commit(seen, Batch(at=2.0, blobs=(PROMPT,)))

    assert await store.blob(head, DIGEST) is None


async def test_of_prompts_that_change_only_the_newest_are_kept_and_those_in_use(store):
    base = await say(store, await begin(store), "a")
    base = await store.commit(base, Batch(at=2.0, blobs=(PROMPT,), notes=b"uses " + DIGEST))
    side = structs.replace(new_head(branch="side"), notes=base.notes)
    side = await store.fork(base, 1, side, first_session(side, 1))
    other = await store.commit(await begin(store, "other"), Batch(at=2.0, blobs=(b"unused",)))

    said = [b"It is %d o'clock." % hour for hour in range(3 * NEWEST_BLOBS)]
    for prompt in said:
        base = await store.commit(base, Batch(at=3.0, blobs=(prompt,), notes=sha256(prompt).digest()))
    kept = [one for one in said if await store.blob(base, sha256(one).digest()) == one]

    assert kept == said[-NEWEST_BLOBS:]
    assert await store.blob(side, DIGEST) == PROMPT
    assert await store.blob(other, sha256(b"unused").digest()) == b"unused"
    side = await store.commit(side, Batch(at=4.0, blobs=(b"last",), notes=sha256(b"last").digest()))
    assert await store.blob(side, DIGEST) is None
