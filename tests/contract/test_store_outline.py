"""Every store gives the branches of a conversation and what was done about them as they were at one moment: what is exported or
looked over while others write fits together.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

from msgspec import structs

from refold.engine.archive import pack, unpack
from refold.engine.conversation import Conversation
from refold.engine.doctor import examine
from refold.ports.records import Batch, InheritedState, Outline
from refold.ports.store import Store
from refold.stores.memory import MemoryStore
from tests.contract.talks import ANNA, BORIS, begin, compact, first_session, new_head, reduce, say
from tests.durability.conversations import compacted
from tests.engine.test_stored_conversation import answer, engine

ROUNDS = 2


class Busy:
    """A store that others write to: whenever it has answered, something else has been said or done."""

    def __init__(self, store: Store, act: Callable[[], Awaitable[object]]) -> None:
        self._store, self._act = store, act

    def __getattr__(self, name: str) -> Any:
        ask = getattr(self._store, name)

        async def asked(*args: Any, **kwargs: Any) -> Any:
            found = await ask(*args, **kwargs)
            await self._act()
            return found

        return asked


async def busy(store: Store) -> Busy:
    """A conversation that is said more in, compacted, taken back, begun anew and forked, in turn."""
    made = engine(store, window=100_000, embedder=None)
    talk, numbers = await made.conversation("chat"), count()

    async def act() -> None:
        await _act(talk, next(numbers))

    for _ in range(7):
        await act()
    await made.fork("chat", 4, branch=talk.branch)
    return Busy(store, act)


async def _act(talk: Conversation, number: int) -> None:
    if number % 5 == 3:
        await compacted(talk)
    elif number % 5 == 4:
        await talk.undo() if number % 3 else await talk.start_session()
    else:
        await talk.add(*answer(number))


async def test_branches_come_in_the_order_in_which_they_were_begun(store):
    base = await say(store, await begin(store), *"abcd")
    base = await compact(store, base, 2)
    for name in ("second", "first"):
        side = new_head(branch=f"talk/{name}")
        await store.fork(base, 4, side, first_session(side, 4))
    await begin(store, "other")
    await begin(store, owner=BORIS)
    found = await store.outline(ANNA, "talk")

    assert [one.branch for one in found.heads] == ["talk/main", "talk/second", "talk/first"]
    assert list(found.heads) == [await store.head(ANNA, "talk", one.branch) for one in found.heads]
    assert list(found.sessions) == await store.sessions(ANNA, "talk")
    assert [one.branch for one in found.changes] == [one.branch for one in found.heads]
    made = [await store.compactions(ANNA, head.branch) for head in found.heads]
    assert list(found.changes) == [one for branch in made for one in branch]
    assert await store.outline(ANNA, "nobody's") == Outline()


async def test_a_fork_that_was_made_before_now_knows_what_its_base_had_then(store):
    base = await say(store, await begin(store), *"abcd")
    await store.commit(base, Batch(at=3.0, changes=(reduce(base),)))
    now, late = new_head(branch="talk/now"), structs.replace(new_head(branch="talk/late"), base_number=7)
    now = await store.fork(base, 2, now, first_session(now, 2))
    late = await store.fork(base, 2, late, first_session(late, 2), InheritedState())

    assert (now.base_number, late.base_number) == (1, 7)
    assert (await store.outline(ANNA, "talk")).heads[1:] == (now, late)


async def test_what_is_exported_while_others_write_can_be_imported(store):
    others = await busy(store)
    for _ in range(ROUNDS):
        lines = [line async for line in pack(others, ["local"])]
        other = MemoryStore()
        assert [(one.is_new, one.fault) async for one in unpack(other, lines)] == [(True, "")]
        assert await engine(other).examine("chat") == []


async def test_nothing_is_found_while_others_write(store):
    others = await busy(store)
    for _ in range(ROUNDS):
        assert await examine(others, "local", "chat", 0.0) == []
    assert len((await store.outline("local", "chat")).changes) > ROUNDS
