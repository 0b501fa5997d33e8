"""A program that follows another one reads only what is new, and then has the state that a fresh load gives, in every store."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from refold.engine.conversation import Conversation
from refold.engine.engine import Engine
from refold.engine.journal import encoder, write_snapshot
from refold.model.errors import RefoldError
from tests.engine.test_stored_conversation import answer

USAGE = {"prompt_tokens": 900, "completion_tokens": 50, "total_tokens": 950}
SECRET = "the key is sk-proj-Zq81LmXw93TgVbYh72KdPf64RsNcEj05"
ACTS = 40
KINDS = [
    *["add"] * 4,
    *["turn", "context"] * 2,
    "sensitive",
    "secret",
    "record",
    "pin",
    "unpin",
    "undo",
    "compact",
    "session",
    "rerun",
]
"""By these an act is chosen: most programs add messages."""


def opened(store, **settings: Any) -> Engine:
    return Engine(store, window=3_000, max_output=200, embedder=None, **settings)


async def follow(talk: Conversation) -> None:
    """Bring a conversation up to date as each of its acts does."""
    await talk.status()


def known(talk: Conversation, first: int) -> dict[str, Any]:
    """Everything that planning reads from a state, in a form that two programs can be compared by: one of them may hold
    messages before number `first`, which are behind summaries.
    """
    state, journal = talk.state, talk.journal
    return {
        "shown": write_snapshot(state.folded, encoder(state)),
        "facts": [piece.text for piece in state.folded.facts.pieces(first, state.size)],
        "notes": journal.notes_of(state).lasting,
        "sensitive": state.secrecy.numbers,
        "held": {number for number in state.folded.held if number >= first},
        "secrets": (state.secrecy.holders, state.secrecy.search(state.folded).known),
        "position": (journal.head, journal.session, journal.change, journal.raw),
        "instructions": journal.instructions.fields,
        "status": state.fill_level,
    }


async def act(talk: Conversation, chance: random.Random, number: int) -> None:
    """One act of a program, chosen by chance."""
    reply, handle = (
        {"role": "assistant", "content": f"answer {number}"},
        f"#m{chance.randrange(talk.size or 1)}",
    )
    long = answer(number, size=chance.choice([100, 300, 9_000]))
    acts: dict[str, list[Callable[[], Awaitable[object]]]] = {
        "add": [lambda: talk.add(f"question {number}", reply)],
        "turn": [lambda: talk.add(*long)],
        "sensitive": [lambda: talk.add(f"my salary is {number}", sensitive=True)],
        "secret": [lambda: talk.add(f"{SECRET}{number}")],
        "context": [lambda: talk.add(f"and {number}?"), talk.context],
        "record": [talk.context, lambda: talk.record(USAGE)],
        "pin": [lambda: talk.pin(handle)],
        "unpin": [lambda: talk.unpin(handle)],
        "undo": [talk.undo],
        "compact": [talk.compact],
        "session": [talk.start_session],
        "rerun": [talk.rerun],
    }
    with suppress(RefoldError):  # nothing to undo, nothing to compact, no such message
        for one in acts[chance.choice(KINDS)]:
            await one()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("preset", ["refold", "opal", "picoclaw"])
async def test_a_program_that_follows_has_the_state_of_a_fresh_load(store, seed, preset):
    chance = random.Random(f"{seed}{preset}")
    talks = [await opened(store, preset=preset).conversation("chat", model="gpt-4o-mini") for _ in range(2)]
    for number in range(ACTS):
        await act(chance.choice(talks), chance, number)
        follower = chance.choice(talks)
        await chance.choice([follow, Conversation.load])(follower)
        fresh = await opened(store, preset=preset).conversation("chat", model="gpt-4o-mini")
        await follow(fresh)
        first = fresh.state.folded.origin
        assert known(follower, first) == known(fresh, first)


async def test_a_program_that_follows_reads_the_new_messages_only(store, monkeypatch):
    writer, follower = [await opened(store).conversation("chat", model="gpt-4o-mini") for _ in range(2)]
    await writer.add(*(f"message {number}" for number in range(50)))
    await follow(follower)
    read, news = list[int](), store.news

    async def watched(seen):
        found = await news(seen)
        read.extend(one.seq for one in found.messages)
        return found

    async def refused(*_):
        raise AssertionError

    monkeypatch.setattr(store, "news", watched)
    monkeypatch.setattr(store, "messages", refused)
    await writer.add("one more", {"role": "assistant", "content": "and its answer"})
    await follower.add("the next")
    await follow(writer)
    assert read == [50, 51, 52]
    assert [one["content"] for one in (await writer.context())["messages"]][-3:] == [
        "one more",
        "and its answer",
        "the next",
    ]
