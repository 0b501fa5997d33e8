"""A program that writes to a store, says after each step that it is done, and fails where `REFOLD_FAILPOINT` says."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from pathlib import Path

from refold.ports.records import Batch
from refold.stores.sql.commit import Reached
from refold.stores.sqlite import writer
from refold.stores.sqlite.store import SqliteStore
from tests.contract.talks import ANNA, begin, call, embedding, fold, messages, planned, say, written

tell = partial(print, flush=True)


async def main(path: str) -> None:
    writer.QUICK_S, writer.ALONE_S = 60.0, 0.0  # whatever disk this is
    store = await SqliteStore.open(Path(path))
    head = await begin(store)
    tell("begun")
    head = await say(store, head, *"abc")
    tell("said")
    head = await say(store, head, "d")
    tell("on")
    await store.plan(ANNA, planned(head, "work"))
    try:
        await store.claim(ANNA, "work", "me", now=1.0, until=9.0)
        tell("claimed")
        await store.reply(ANNA, "work", "me", written("work"), call(head, "paid", input=1))
        tell("replied")
        change, near = fold(head, 3, "work"), embedding(head.session, "work", 1.0, 0.0)
        batch = Batch(at=3.0, messages=messages(head, "e"), changes=(change,), embeddings=(near,))
        await store.commit(head, batch)
        tell("installed")
    except Reached:
        tell("reached")
        head = await store.head(ANNA, "talk")
        tell((await store.commit(head, Batch(at=4.0, messages=messages(head, "z")))).next_seq)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
