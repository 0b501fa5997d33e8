"""An outline is of one moment, whatever another program writes while it is read."""

from __future__ import annotations

import psycopg

from refold.stores.sql import conversations
from tests.contract.talks import ANNA, begin, read, say


async def test_what_another_program_does_in_the_middle_is_not_in_it(url, store, monkeypatch):
    head = await say(store, await begin(store), *"ab")
    sessions = conversations.sessions

    def in_the_middle(*args):
        with psycopg.connect(url) as other:
            other.execute("UPDATE refold.session SET last = 1")
        return sessions(*args)

    monkeypatch.setattr(conversations, "sessions", in_the_middle)
    found = await store.outline(ANNA, "talk")

    assert found.heads == (head,)
    assert [one.last for one in found.sessions] == [None]
    assert (await store.session(ANNA, head.session)).last == 1
    assert await read(store, await say(store, head, "c")) == ["a", "b", "c"]
