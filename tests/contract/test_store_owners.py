"""Every store keeps owners apart, and what is deleted is gone."""

from __future__ import annotations

import asyncio
import struct
from hashlib import sha256

import pytest
from msgspec import structs

from refold.model.errors import NotFound
from refold.ports.records import Batch, ClientKey, Embedding, Head, Idle
from refold.ports.store import Store
from refold.stores.memory import MemoryStore
from tests.contract.talks import (
    ANNA,
    BORIS,
    arrival,
    begin,
    block,
    call,
    command,
    compact,
    first_session,
    message,
    new_head,
    next_session,
    planned,
    queued,
    read,
    say,
    summary,
    written,
)

VECTOR = struct.pack("<2f", 0.6, 0.8)


async def live(store: Store, owner: str, word: str, conversation: str = "talk") -> Head:
    """A conversation in which everything happens that a store can keep."""
    head = await begin(store, conversation, owner, title=f"About {word}", at=2.0)
    said = (message(0, word, key="k0"), message(1, f"{word} again"), message(2, "end"))
    chains = tuple(f"{word} {size}".encode() for size in range(3))
    batch = Batch(at=3.0, messages=said, notes=word.encode(), blobs=(b"prompt",), chains=chains)
    head = await store.commit(head, batch)
    head = await compact(store, head, 1, f"{conversation}/c1")
    head = await store.commit(head, Batch(at=3.0, changes=(arrival(head, 2),)))
    head = await store.commit(head, Batch(at=3.0, undoes=f"{head.branch}/a2"))
    head = await store.commit(head, Batch(at=3.0, opens=next_session(head, 3, kind="new")))
    late, session = written(f"{conversation}/late", word), f"{conversation}/c1/s"
    vector = Embedding(session=session, summary=late.id, name="tiny", vector=VECTOR, at=3.0)
    await store.attach_summary(owner, session, late, vector)
    paid = structs.replace(call(head, f"{conversation}/paid", input=len(word)), reply=word.encode())
    head = await store.commit(head, Batch(at=3.0, calls=(paid,)))
    await store.plan(owner, planned(head, f"{conversation}/work"))
    await store.claim(owner, f"{conversation}/work", word, now=1.0, until=9.0)
    await store.reply(owner, f"{conversation}/work", word, written(f"{conversation}/work", word))
    await store.put_turns(owner, block(head, 0, 3, (1.0, float(len(word)))))
    head = await store.commit(head, Batch(at=3.0, pins=(len(word) % 3,)))
    side = new_head(conversation, owner, f"{conversation}/side")
    await store.fork(head, 2, side, first_session(side, 2))
    await store.reserve(owner, "key", 1.0)
    await store.cache(owner, "key", summary(word), 1.0)
    await store.enqueue(head, queued(f"{conversation}/q", word))
    await store.keep_command(owner, command(head, f"{conversation}/done", word))
    await store.lease(owner, head.branch, word, now=1.0, until=2.0)
    await store.learn(owner, "limit", "gpt", word.encode(), 1.0)
    await store.put_setting(owner, "preset", word.encode(), 1.0)
    if not await store.keys(owner):
        await store.add_key(ClientKey(owner=owner, id=f"{owner}'s", digest=word.encode(), at=1.0))
    return head


async def ask_everything(store: Store, owner: str, conversation: str = "talk") -> dict[str, object]:
    """The answer of every method that tells something, asked with the same ids whoever asks."""
    head = new_head(conversation, owner)
    outline = await store.outline(owner, conversation)
    names = [f"{conversation}/{name}" for name in ("c1", "late", "work")]
    return {
        "head": await store.head(owner, conversation, head.branch),
        "head, the latest": await store.head(owner, conversation),
        "outline": [*outline.heads, *outline.sessions, *outline.changes],
        "messages": await store.messages(head),
        "pick": await store.pick(head, [0, 1, 2]),
        "blob": await store.blob(head, sha256(b"prompt").digest()),
        "find_key": await store.find_key(head, "k0"),
        "sessions": await store.sessions(owner, conversation),
        "session": await store.session(owner, f"{conversation}/main/s0"),
        "find_sessions": await store.find_sessions(owner, f"{conversation}/main"),
        "holding": await store.holding(owner, [(head.branch, 0)]),
        "compactions": await store.compactions(owner, head.branch),
        "compaction": await store.compaction(owner, f"{conversation}/c1"),
        "last_change": await store.last_change(owner, f"{conversation}/c1/s"),
        "count_summarised": await store.count_summarised(owner, head.branch),
        "latest": await store.latest(head),
        "raw_arrivals": await store.raw_arrivals(head, 0),
        "written": await store.written(owner, names),
        "summary": await store.summary(head, 0),
        "calls": await store.calls(owner, conversation),
        "calls_before": await store.calls_before(owner, conversation, f"{conversation}/paid"),
        "spent": await store.spent(owner, conversation, "reply"),
        "reply_to": await store.reply_to(owner, f"{conversation}/paid"),
        "newest_replies": await store.newest_replies(
            owner, [(conversation, head.branch, size) for size in range(9)]
        ),
        "embeddings": await store.embeddings(owner, [f"{conversation}/c1/s"]),
        "failures": (await store.failures(owner, head.branch))[0],
        "search": await find(store, owner, conversation),
        "search_sessions": {
            (hit.conversation, hit.session.id)
            for word in ("alpha", "omega")
            for hit in await store.search_sessions(owner, word, conversation=conversation)
        },
        "pins": await store.pins(head),
        "news": await store.news(structs.replace(head, next_seq=1)),
        "tokens_since": sum((await store.tokens_since(owner, [(head.branch, 0)])).values()),
        "spent_each": await store.spent_each(owner, [conversation], "reply"),
        "queued": await store.queued(owner, head.branch),
        "commands": await store.commands(owner, head.branch),
        "lease_holder": await store.lease_holder(owner, head.branch),
        "damaged": await store.damaged(head),
        "damaged_values": await store.damaged_values(head),
        "uncounted": sum(await store.uncounted(owner)),
    }


async def ask_owner(store: Store, owner: str) -> dict[str, object]:
    """What is asked about an owner without naming a conversation."""
    gaps = sorted(await store.turn_gaps(owner, "another"), key=lambda gap: gap.branch)
    codes = await store.turn_codes(owner, "tiny")
    return {
        "sessions, of all": await store.sessions(owner),
        "conversations": await store.conversations(owner),
        "latest_heads": [(one.title, one.head) for one in await store.latest_heads(owner)],
        "failing": await store.failing(owner),
        "search, in all": await find(store, owner),
        "unfinished": await store.unfinished(owner),
        "places": await store.places(owner, [b"alpha 1", b"omega 1"]),
        "nearest": await store.nearest(owner, "tiny", VECTOR, limit=9),
        "unembedded": await store.unembedded(owner, "another", 9),
        "turn_gaps": sorted((one.branch, one.first, one.last) for one in gaps),
        "turn_messages": [one.body for gap in gaps for one in await store.turn_messages(owner, gap)],
        "turn_codes": [(one.conversation, one.branch, one.seqs, one.codes) for one in codes],
        "turn_vectors": [*(await store.turn_vectors(owner, [(one.id, 0) for one in codes], 2)).values()],
        "unfinished, of one branch": await store.unfinished(owner, "talk/main"),
        "cached": await store.cached(owner, "key"),
        "learnt": await store.learnt(owner, "limit", "gpt"),
        "all_learnt": await store.all_learnt(owner, "limit"),
        "keys": await store.keys(owner),
        "setting": await store.setting(owner, "preset"),
        "idle": (await store.idle(owner, 1e12)).idle,
        "conversation_calls": await store.conversation_calls(owner),
        "call_days": await store.call_days(owner),
        "compaction_days": await store.compaction_days(owner),
    }


async def find(store: Store, owner: str, conversation: str = "") -> set[tuple[str, str, int]]:
    """Where there is a word; how well it is found differs from store to store."""
    hits = [
        hit
        for word in ("alpha", "omega")
        for hit in await store.search(owner, word, conversation=conversation)
    ]
    return {(hit.conversation, hit.branch, hit.seq) for hit in hits}


async def all_answers(store: Store, owner: str) -> dict[str, object]:
    return await ask_everything(store, owner) | await ask_owner(store, owner)


ACTS = {
    *("create", "fork", "commit", "attach_summary", "plan", "claim", "beat", "reply", "give_up"),
    *("embed", "put_turns", "reserve", "cache", "learn", "delete", "expire", "forget_plans"),
    *("enqueue", "begin_command", "keep_command", "lease", "release"),
    *("add_key", "revoke_key", "put_setting", "swap_learnt", "forget", "forget_oldest", "backfill"),
}


OF_ALL = {"owners", "find_key_owner", "has_keys", "close", "fault"}
"""What is asked without an owner."""


async def test_owners_with_the_same_names_for_everything_never_meet(store):
    alone = MemoryStore()
    for owner, word in ((ANNA, "alpha"), (BORIS, "omega")):
        await live(alone, owner, word)
        await live(store, owner, word)

    for owner in (ANNA, BORIS):
        answers = await all_answers(store, owner)
        assert answers == await all_answers(alone, owner)
        assert [name for name, answer in answers.items() if not answer] == [
            "find_key",
            "calls_before",
            "failures",
            "damaged",
            "damaged_values",
            "uncounted",
            "failing",
        ]
        answered = {name.partition(",")[0] for name in answers}
        methods = {name for name in dir(Store) if not name.startswith("_")}
        assert answered | ACTS | OF_ALL == methods, "every method of the port is asked"
    assert not any((await all_answers(store, "carla")).values())
    assert await store.owners() == [ANNA, BORIS]


async def test_nobody_changes_what_is_another_s(store):
    head = await live(store, ANNA, "alpha")
    before = await all_answers(store, ANNA)
    thief = structs.replace(head, owner=BORIS)

    for act in (
        say(store, thief, "mine"),
        store.plan(BORIS, planned(thief)),
        store.commit(thief, Batch(at=3.0, pins=(2,))),
        store.enqueue(thief, queued("mine", "mine")),
        store.keep_command(BORIS, command(thief, "talk/q", "mine")),
        store.lease(BORIS, head.branch, "thief", now=99.0, until=100.0),
    ):
        with pytest.raises(NotFound):
            await act
    assert not await store.attach_summary(BORIS, "talk/main/s0", written("w"))
    assert await store.claim(BORIS, "talk/work", "thief", now=99.0, until=100.0) is None
    assert not await store.beat(BORIS, "talk/work", "alpha", 99.0)
    assert not await store.reply(BORIS, "talk/work", "alpha", written("talk/stolen"))
    assert not await store.give_up(BORIS, "talk/work", "alpha", "failed")
    assert not await store.begin_command(BORIS, "talk/q")
    await store.release(BORIS, head.branch, "alpha")
    assert await store.lease(ANNA, head.branch, "thief", now=1.5, until=9.0) is None
    assert not await store.revoke_key(BORIS, f"{ANNA}'s", 99.0)
    assert await store.delete(BORIS, "talk") == 0
    assert await store.delete(BORIS) == 0
    assert await store.expire(BORIS, 1e12) == 0
    assert not await store.swap_learnt(BORIS, "limit", "gpt", b"alpha", b"omega", 99.0)
    assert await store.forget_oldest(BORIS, "limit", 1) == 0

    assert await all_answers(store, ANNA) == before
    assert await store.owners() == [ANNA]


async def test_a_deleted_conversation_is_gone_with_its_caches_and_nothing_else(store):
    await live(store, ANNA, "alpha")
    await live(store, BORIS, "alpha")
    await live(store, ANNA, "omega", "other")
    theirs, others = await all_answers(store, BORIS), await ask_everything(store, ANNA, "other")

    assert await store.delete(ANNA, "talk") == 1

    assert not any((await ask_everything(store, ANNA)).values())
    assert await ask_everything(store, ANNA, "other") == others
    assert await store.cached(ANNA, "key") is None, "what was cached may have been said in any conversation"
    assert await store.learnt(ANNA, "limit", "gpt") == b"omega"
    assert [one.id for one in await store.conversations(ANNA)] == ["other"]
    assert [one.id for one in await store.unfinished(ANNA)] == ["other/work"]
    assert await all_answers(store, BORIS) == theirs
    assert await store.delete(ANNA, "talk") == 0


async def test_a_deleted_owner_is_gone(store):
    await live(store, ANNA, "alpha")
    await live(store, ANNA, "alpha", "other")
    await live(store, BORIS, "alpha")
    theirs = await all_answers(store, BORIS)

    assert await store.delete(ANNA) == 2

    assert not any((await all_answers(store, ANNA)).values())
    assert await all_answers(store, BORIS) == theirs
    assert await store.owners() == [BORIS]
    assert await store.delete(ANNA) == 0


async def test_a_name_can_be_used_again_after_its_conversation_was_deleted(store):
    await live(store, ANNA, "alpha")
    await store.delete(ANNA, "talk")
    head = await live(store, ANNA, "omega")

    assert await read(store, head) == ["omega", "omega again", "end"]


async def test_conversations_of_long_ago_expire(store):
    old = await live(store, ANNA, "alpha", "old")
    await say(store, await begin(store, "new", at=1.0), "x", at=50.0)
    await begin(store, "empty", at=2.0)
    await live(store, BORIS, "alpha", "old")

    assert await store.expire(ANNA, 50.0) == 2

    assert [one.id for one in await store.conversations(ANNA)] == ["new"]
    assert await store.messages(old) == []
    assert [one.id for one in await store.conversations(BORIS)] == ["old"]
    assert await store.expire(ANNA, 50.0) == 0


async def test_what_is_to_be_kept_does_not_expire(store):
    for name in ('it\'s "open"', "kept", "old"):
        await begin(store, name, at=1.0)

    assert await store.expire(ANNA, 50.0, ["kept", 'it\'s "open"', "not there"]) == 1
    assert {one.id for one in await store.conversations(ANNA)} == {'it\'s "open"', "kept"}


async def test_of_what_expires_the_oldest_go_first_up_to_a_limit(store):
    for name, at in (("third", 3.0), ("first", 1.0), ("second", 2.0), ("beside", 2.0), ("new", 60.0)):
        await begin(store, name, at=at)
    await begin(store, "theirs", BORIS, at=1.0)

    assert await store.idle(ANNA, 50.0) == Idle(5, 60.0, 4, 1.0, 3.0)
    assert await store.idle(ANNA, 50.0, ["first", "new"]) == Idle(5, 60.0, 3, 2.0, 3.0)
    assert await store.idle(ANNA, 1.0) == Idle(5, 60.0)
    assert await store.idle("carla", 50.0) == Idle()
    assert await store.expire(ANNA, 50.0, limit=0) == 0
    assert await store.expire(ANNA, 50.0, ["first"], limit=1) == 1
    assert {one.id for one in await store.conversations(ANNA)} == {"first", "beside", "third", "new"}
    assert await store.expire(ANNA, 50.0, limit=2) == 2
    assert {one.id for one in await store.conversations(ANNA)} == {"third", "new"}
    assert await store.expire(ANNA, 50.0, limit=9) == 1
    assert await store.idle(ANNA, 50.0) == Idle(1, 60.0)
    assert await store.idle(BORIS, 50.0) == Idle(1, 1.0, 1, 1.0, 1.0)


async def test_what_was_learnt_is_listed_by_topic_and_forgotten(store):
    for owner, topic, key in (
        (ANNA, "window", "b"),
        (ANNA, "window", "a"),
        (ANNA, "other", "c"),
        (BORIS, "window", "d"),
    ):
        await store.learn(owner, topic, key, key.encode(), 1.0)
    assert await store.all_learnt(ANNA, "window") == [("a", b"a"), ("b", b"b")]
    assert await store.forget(ANNA, "window", "a")
    assert not await store.forget(ANNA, "window", "a")
    assert not await store.forget(BORIS, "window", "b")
    assert await store.all_learnt(ANNA, "window") == [("b", b"b")]


async def test_the_oldest_that_was_learnt_is_forgotten(store):
    for number, key in enumerate("cabd"):
        await store.learn(ANNA, "provider_response", key, b"row", float(number))
    await store.learn(ANNA, "other", "e", b"row", 0.0)
    assert await store.forget_oldest(ANNA, "provider_response", 4) == 0
    assert await store.forget_oldest(ANNA, "provider_response", 3) == 1
    await store.learn(ANNA, "provider_response", "a", b"used again", 9.0)
    assert await store.forget_oldest(ANNA, "provider_response", 2) == 1
    assert await store.all_learnt(ANNA, "provider_response") == [("a", b"used again"), ("d", b"row")]
    assert await store.all_learnt(ANNA, "other") == [("e", b"row")]


async def test_what_was_learnt_is_swapped_only_for_what_was_seen(store):
    asked = (ANNA, "retention", "time")
    assert not await store.swap_learnt(*asked, b"nothing is there", b"one", 1.0)
    assert await store.swap_learnt(*asked, None, b"one", 1.0)
    assert not await store.swap_learnt(*asked, None, b"two", 1.0), "another was first"
    assert not await store.swap_learnt(BORIS, "retention", "time", b"one", b"two", 1.0)
    assert await store.learnt(*asked) == b"one"
    assert await store.swap_learnt(*asked, b"one", b"two", 2.0)
    assert not await store.swap_learnt(*asked, b"one", b"three", 3.0)
    assert await store.learnt(*asked) == b"two"


async def test_of_many_who_swap_at_once_one_succeeds(store):
    asked = (ANNA, "retention", "time")
    for seen in (None, b"0"):
        swaps = (store.swap_learnt(*asked, seen, str(number).encode(), 1.0) for number in range(1, 9))
        done = await asyncio.gather(*swaps)
        assert done.count(True) == 1
        await store.learn(*asked, b"0", 1.0)


async def test_what_was_kept_for_an_owner_without_a_conversation_is_deleted_too(store):
    await store.learn(ANNA, "limit", "gpt", b"1", 1.0)
    await store.reserve(BORIS, "key", 1.0)
    await store.cache(BORIS, "key", summary(), 1.0)
    assert await store.owners() == [ANNA, BORIS]

    assert await store.delete(ANNA) == 0
    assert await store.delete(BORIS) == 0

    assert await store.learnt(ANNA, "limit", "gpt") is None
    assert await store.cached(BORIS, "key") is None
    assert await store.owners() == []
