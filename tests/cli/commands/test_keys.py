"""`refold keys`."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from refold.gateway.auth import KeyRing
from refold.model.errors import KeyRefused
from refold.stores.url import open_store

KEY = re.compile(r"rf_([0-9a-f]{12})_([0-9a-f]{48})")


def owner_of(path, key: str) -> str:
    """Whom the gateway takes the bearer of a key for."""

    async def verify() -> str:
        store = await open_store(f"sqlite:///{path}")
        try:
            return (await KeyRing(store).verify(key)).owner
        finally:
            await store.close()

    return asyncio.run(verify())


@pytest.mark.feature("X18")
def test_a_key_is_printed_once_and_kept_nowhere(refold, store):
    made = refold("keys", "create", "laptop", "--owner", "anna")

    assert made.code == 0
    which, secret = KEY.fullmatch(made.out.strip()).groups()
    assert made.err == "a key of the owner 'anna'; it is not shown again\n"
    assert owner_of(store, made.out.strip()) == "anna"
    files = b"".join(path.read_bytes() for path in store.parent.iterdir())
    assert which.encode() in files
    assert secret.encode() not in files
    for args in (("list",), ("list", "--json"), ("revoke", which), ("list",)):
        shown = refold("keys", *args, "--owner", "anna")
        assert shown.code == 0
        assert secret not in shown.out + shown.err


def test_keys_are_listed_by_id_with_what_became_of_them(refold, store):
    first, second = (
        json.loads(refold("keys", "create", name, "--json").out)["id"] for name in ("laptop", "Büro")
    )
    refold("keys", "revoke", second[:6])
    refold("keys", "create", "--owner", "boris")

    head, *rows = refold("keys", "list").out.splitlines()
    assert head.split() == ["id", "state", "made", "rights", "name"]
    assert re.fullmatch(rf"{first}  valid +\S+ \S+  owner   laptop", rows[0])
    assert re.fullmatch(rf"{second}  revoked \S+ \S+  \S+ \S+  owner   Büro", rows[1])
    listed = json.loads(refold("keys", "list", "--json").out)
    assert [set(one) for one in listed["keys"]] == [{"id", "owner", "name", "admin", "at", "revoked_at"}] * 2
    assert listed["keys"][0]["revoked_at"] is None


@pytest.mark.feature("X18")
def test_an_admin_key_is_made_where_it_is_asked_for_and_listed_as_one(refold, store):
    made = refold("keys", "create", "ops", "--admin")
    other = json.loads(refold("keys", "create", "laptop", "--json").out)

    assert made.err == "an admin key of the owner 'local'; it is not shown again\n"
    assert owner_of(store, made.out.strip()) == "local", "it is a key of its owner like any other"
    assert other["admin"] is False
    assert json.loads(refold("keys", "create", "--admin", "--json").out)["admin"] is True
    listed = json.loads(refold("keys", "list", "--json").out)["keys"]
    assert [one["admin"] for one in listed] == [True, False, True]
    rows = refold("keys", "list").out.splitlines()[1:]
    assert [row.split()[4] for row in rows] == ["admin", "owner", "admin"]


@pytest.mark.feature("X18")
@pytest.mark.parametrize("given", ["id", "first letters", "whole key"])
def test_a_revoked_key_opens_nothing(refold, store, given):
    key = refold("keys", "create").out.strip()
    which = key.split("_")[1]
    told = refold("keys", "revoke", {"id": which, "first letters": which[:8]}.get(given, key))

    assert (told.code, told.err) == (0, f"revoked {which}\n")
    with pytest.raises(KeyRefused, match="revoked"):
        owner_of(store, key)
    assert refold("keys", "revoke", which).err == f"{which} was revoked before\n"
    assert json.loads(refold("keys", "revoke", which, "--json").out) == {"id": which, "revoked": False}


def test_nobody_revokes_another_s_key(refold, store):
    key = refold("keys", "create", "--owner", "anna").out.strip()
    for which in (key, key.split("_")[1], f"{key}0", "", "rf_"):
        refused = refold("keys", "revoke", which, "--owner", "boris")

        assert refused.code == 2
        assert "hint: " in refused.err
        assert key.split("_")[2] not in refused.err, "not even an error repeats it"
    assert owner_of(store, key) == "anna"


def test_where_there_is_nothing_nothing_is_made_but_by_create(refold, store):
    for args in (("list",), ("revoke", "abc")):
        missing = refold("keys", *args)
        assert missing.code == 2
        assert "there is no store yet" in missing.err
    assert not store.exists()
    assert refold("keys", "create", "--store", "memory:").code == 2
    assert refold("keys", "create", "--owner", "").code == 2

    assert refold("keys", "create").code == 0
    none = refold("keys", "list", "--owner", "boris")
    assert (none.code, none.out) == (0, "")
    assert "hint: `refold keys create` makes one" in none.err


@pytest.mark.parametrize("command", ["create", "list", "revoke"])
def test_every_command_explains_itself_with_an_example(refold, command):
    assert f"Example: refold keys {command}" in refold("keys", command, "--help").out
