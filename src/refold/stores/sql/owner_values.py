"""Transactions on the values that an owner has besides conversations: learnt values, client keys, settings.

Each has one current value; earlier values are not kept.
"""

from __future__ import annotations

from msgspec import structs

from refold.ports.records import ClientKey
from refold.stores.sql import rows
from refold.stores.sql.queries import Transaction


def learnt(owner: str, topic: str, key: str) -> Transaction[bytes | None]:
    found = yield "get_learnt", {"owner": owner, "topic": topic, "key": key}
    return found[0][0] if found else None


def all_learnt(owner: str, topic: str) -> Transaction[list[tuple[str, bytes]]]:
    found = yield "all_learnt", {"owner": owner, "topic": topic}
    return [(key, value) for key, value in found]


def forget(owner: str, topic: str, key: str) -> Transaction[bool]:
    return bool((yield "forget_learnt", {"owner": owner, "topic": topic, "key": key}))


def learn(owner: str, topic: str, key: str, value: bytes, at: float) -> Transaction[None]:
    yield "add_owner", {"owner": owner, "at": at}
    yield "put_learnt", {"owner": owner, "topic": topic, "key": key, "value": value, "at": at}


def swap_learnt(
    owner: str, topic: str, key: str, seen: bytes | None, value: bytes, at: float
) -> Transaction[bool]:
    row = {"owner": owner, "topic": topic, "key": key, "value": value, "at": at}
    if seen is not None:
        return bool((yield "swap_learnt", {**row, "seen": seen}))
    yield "add_owner", {"owner": owner, "at": at}
    return bool((yield "add_learnt", row))


def add_key(key: ClientKey) -> Transaction[None]:
    yield "add_owner", {"owner": key.owner, "at": key.at}
    yield "add_key", structs.asdict(key)


def find_key_owner(which: str) -> Transaction[ClientKey | None]:
    found = yield "find_key_owner", {"id": which}
    return rows.to_client_key(found[0]) if found else None


def has_keys() -> Transaction[bool]:
    return bool((yield "has_keys", {})[0][0])


def keys(owner: str) -> Transaction[list[ClientKey]]:
    found = yield "list_keys", {"owner": owner}
    return [rows.to_client_key(row) for row in found]


def revoke_key(owner: str, which: str, at: float) -> Transaction[bool]:
    return bool((yield "revoke_key", {"owner": owner, "id": which, "at": at}))


def setting(owner: str, key: str) -> Transaction[bytes | None]:
    found = yield "get_setting", {"owner": owner, "key": key}
    return found[0][0] if found else None


def put_setting(owner: str, key: str, value: bytes | None, at: float) -> Transaction[None]:
    if value is None:
        yield "delete_setting", {"owner": owner, "key": key}
        return
    yield "add_owner", {"owner": owner, "at": at}
    yield "put_setting", {"owner": owner, "key": key, "value": value, "at": at}
