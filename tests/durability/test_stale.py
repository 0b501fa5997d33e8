"""Writers who saw an earlier state are refused, whatever they want to write: also where no number would collide."""

from __future__ import annotations

import pytest

from refold.model.errors import Conflict
from refold.ports.records import Batch
from tests.contract.talks import begin, call, compact, fold, next_session, read, reduce, say


async def test_a_change_by_a_writer_who_missed_a_message_is_refused(store):
    stale = await say(store, await begin(store), *"ab")
    head = await say(store, stale, "c")
    batches = {
        "notes": Batch(at=3.0, notes=b"n"),
        "a compaction": Batch(at=3.0, changes=(fold(stale, 1),)),
        "a reduction": Batch(at=3.0, changes=(reduce(stale),)),
        "a session": Batch(at=3.0, opens=next_session(stale, 2, "s9", kind="new")),
        "a call": Batch(at=3.0, calls=(call(stale, "k"),)),
    }
    for batch in batches.values():
        with pytest.raises(Conflict):
            await store.commit(stale, batch)

    assert await store.head(head.owner, "talk") == head
    assert await read(store, head) == ["a", "b", "c"]


async def test_a_change_by_a_writer_who_missed_a_switch_is_refused(store):
    stale = await say(store, await begin(store), *"abc")
    head = await compact(store, stale, 1, "c1")
    for batch in (
        Batch(at=3.0, notes=b"n"),
        Batch(at=3.0, undoes="c1"),
        Batch(at=3.0, changes=(reduce(stale),)),
    ):
        with pytest.raises(Conflict):
            await store.commit(stale, batch)

    assert await store.head(head.owner, "talk") == head
