"""Every store keeps keys of clients without the keys, finds whose they are, and keeps what an owner has set."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs

from refold.model.errors import Conflict
from refold.ports.records import ClientKey
from tests.contract.talks import ANNA, BORIS

DIGEST = bytes(range(224, 256))
FIRST = ClientKey(owner=ANNA, id="a1", digest=DIGEST, name="laptop", at=1.0)
SECOND = ClientKey(owner=ANNA, id="a2", digest=b"\0" * 32, name="Büro 🗝", at=1.0)
THEIRS = ClientKey(owner=BORIS, id="b1", digest=b"\x80" * 32, at=0.5)
ADMIN = ClientKey(owner=BORIS, id="b2", digest=b"\x81" * 32, at=0.6, admin=True)


async def test_a_key_finds_its_owner(store):
    for key in (FIRST, THEIRS, SECOND):
        await store.add_key(key)

    assert await store.find_key_owner("a2") == SECOND
    assert await store.find_key_owner("b1") == THEIRS
    assert [await store.find_key_owner(wrong) for wrong in ("", "a", "A1", "a1 ", "%", "a_")] == [None] * 6
    assert await store.owners() == [ANNA, BORIS]


async def test_an_admin_key_is_known_as_one_also_after_it_was_revoked(store):
    for key in (THEIRS, ADMIN):
        await store.add_key(key)

    assert await store.find_key_owner("b2") == ADMIN
    assert [key.admin for key in await store.keys(BORIS)] == [False, True]
    await store.revoke_key(BORIS, "b2", 1.0)
    assert await store.find_key_owner("b2") == structs.replace(ADMIN, revoked_at=1.0)


async def test_keys_are_listed_oldest_first_and_only_the_owner_s(store):
    assert not await store.has_keys()
    assert await store.keys(ANNA) == []
    for key in (SECOND, THEIRS, FIRST):
        await store.add_key(key)

    assert await store.has_keys()
    assert await store.keys(ANNA) == [SECOND, FIRST]
    assert await store.keys(BORIS) == [THEIRS]
    assert await store.keys("carla") == []


@pytest.mark.parametrize("owner", [ANNA, BORIS])
async def test_no_two_keys_have_the_same_id_whoever_has_them(store, owner):
    await store.add_key(FIRST)

    with pytest.raises(Conflict):
        await store.add_key(structs.replace(SECOND, id=FIRST.id, owner=owner))

    assert await store.find_key_owner(FIRST.id) == FIRST
    assert await store.owners() == [ANNA]


async def test_a_revoked_key_stays_in_the_list_and_is_revoked_once(store):
    for key in (FIRST, SECOND):
        await store.add_key(key)

    assert not await store.revoke_key(BORIS, "a1", 5.0)
    assert sorted(await asyncio.gather(*(store.revoke_key(ANNA, "a1", at) for at in (6.0, 6.0)))) == [
        False,
        True,
    ]
    assert not await store.revoke_key(ANNA, "nonsense", 7.0)

    revoked = structs.replace(FIRST, revoked_at=6.0)
    assert await store.keys(ANNA) == [revoked, SECOND]
    assert await store.find_key_owner("a1") == revoked


async def test_that_there_were_keys_is_known_after_all_were_revoked(store):
    await store.add_key(FIRST)
    await store.revoke_key(ANNA, "a1", 2.0)

    assert await store.has_keys()


async def test_the_keys_of_a_deleted_owner_open_nothing(store):
    for key in (FIRST, THEIRS):
        await store.add_key(key)

    await store.delete(ANNA)

    assert await store.find_key_owner("a1") is None
    assert await store.find_key_owner("b1") == THEIRS


async def test_the_newest_setting_counts_and_owners_do_not_meet(store):
    await store.put_setting(ANNA, "preset", b"one", 1.0)
    await store.put_setting(ANNA, "preset", bytes(range(256)), 2.0)
    await store.put_setting(BORIS, "preset", b"", 1.0)

    assert await store.setting(ANNA, "preset") == bytes(range(256))
    assert await store.setting(BORIS, "preset") == b""
    assert await store.setting(ANNA, "limit") is None
    assert await store.setting("carla", "preset") is None


async def test_settings_are_told_apart_by_name_and_can_be_forgotten(store):
    names = ("window", "Preset", "ärger", "preset")
    for name in names:
        await store.put_setting(ANNA, name, name.encode(), 1.0)
    await store.put_setting(ANNA, "window", None, 2.0)
    await store.put_setting(BORIS, "window", None, 2.0)

    found = {name: await store.setting(ANNA, name) for name in names}
    assert found == {name: None if name == "window" else name.encode() for name in names}
    assert await store.setting(BORIS, "window") is None
    assert await store.owners() == [ANNA], "who forgets what was never set is not noted"
