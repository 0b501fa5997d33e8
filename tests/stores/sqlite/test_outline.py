"""An outline is of one moment, whatever another program writes while it is read."""

from __future__ import annotations

import apsw

from refold.stores.sql import conversations
from tests.contract.talks import ANNA, begin, say


async def test_what_another_program_does_in_the_middle_is_not_in_it(store, monkeypatch):
    head = await say(store, await begin(store), *"ab")
    sessions = conversations.sessions

    def in_the_middle(*args):
        other = apsw.Connection(str(store._file.path))
        other.execute("UPDATE session SET last = 1")
        other.close()
        return sessions(*args)

    monkeypatch.setattr(conversations, "sessions", in_the_middle)
    found = await store.outline(ANNA, "talk")

    assert found.heads == (head,)
    assert [one.last for one in found.sessions] == [None]
    assert (await store.session(ANNA, head.session)).last == 1
