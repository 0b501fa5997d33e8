"""A commit whose answer never came: whether it was stored or not, the conversation goes on with what the store has.

Without content the store cannot be read again: the state that the commit would have stored is kept until it is known.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from refold.engine.conversation import Conversation
from refold.model.errors import StoreError
from refold.ports.records import Batch, Head
from refold.ports.store import Store
from tests.durability.conversations import engine, names, turn
from tests.durability.notes import OWNER

WIDE = {"window": 100_000}
LAST = {"role": "user", "content": "<last> and now?"}
TURNS = [message for number in range(10) for message in turn(number)]
WITH_AND_WITHOUT = pytest.mark.parametrize("keeps_content", [True, False], ids=["content", "no content"])


async def _add(talk: Conversation) -> None:
    await talk.add({"role": "assistant", "content": "<well> well"}, LAST, key="same")


async def _compact(talk: Conversation) -> None:
    await talk.compact()


ACTS: dict[str, Callable[[Conversation], Awaitable[None]]] = {"add": _add, "compact": _compact}


async def talked(store: Store, *, keeps_content: bool) -> Conversation:
    talk = await engine(store, **WIDE, keeps_content=keeps_content).conversation("talk")
    await talk.add(*TURNS, LAST)
    return talk


def lose_next_answer(patch: pytest.MonkeyPatch, store: Store, *, is_stored: bool) -> None:
    """The next commit is stored or not, and nobody is told which."""
    commit = store.commit

    async def lost(head: Head, batch: Batch) -> Head:
        patch.setattr(store, "commit", commit)
        if is_stored:
            await commit(head, batch)
        raise StoreError("the answer to the commit never came")

    patch.setattr(store, "commit", lost)


async def shown(talk: Conversation) -> list[str]:
    return names((await talk.context())["messages"])


@WITH_AND_WITHOUT
@pytest.mark.parametrize("act", ACTS)
async def test_what_was_stored_counts_once(store, monkeypatch, act, keeps_content):
    talk = await talked(store, keeps_content=keeps_content)
    lose_next_answer(monkeypatch, store, is_stored=True)
    with pytest.raises(StoreError, match="never came"):
        await ACTS[act](talk)
    stored = await store.head(OWNER, "talk")
    if act == "add":
        await ACTS[act](talk)  # as a client does that was not told: the same, with the same key
    seen = await shown(talk)

    assert stored.next_seq == talk.state.size == 41 + 2 * (act == "add")
    assert stored.session == talk._journal.session.id
    assert len(await store.sessions(OWNER, "talk")) == 1 + (act == "compact")
    if act == "add":
        assert seen == [*names(TURNS), "<last>", "<well>", "<last>"]
    else:
        assert talk.state.folded.summaries
        assert seen[-1] == "<last>"
        assert len(seen) < 41
    await talk.add({"role": "assistant", "content": "<end> well"})
    assert (await store.head(OWNER, "talk")).next_seq == stored.next_seq + 1
    assert await engine(store).examine("talk") == []


@WITH_AND_WITHOUT
@pytest.mark.parametrize("act", ACTS)
async def test_what_was_not_stored_is_not_there(store, monkeypatch, act, keeps_content):
    talk = await talked(store, keeps_content=keeps_content)
    before = await shown(talk)
    lose_next_answer(monkeypatch, store, is_stored=False)
    with pytest.raises(StoreError, match="never came"):
        await ACTS[act](talk)

    assert await shown(talk) == before
    await ACTS[act](talk)
    head = await store.head(OWNER, "talk")
    assert head.next_seq == talk.state.size == 41 + 2 * (act == "add")
    assert len(await store.sessions(OWNER, "talk")) == 1 + (act == "compact")
    assert await engine(store).examine("talk") == []
