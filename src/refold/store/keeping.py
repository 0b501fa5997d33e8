"""Small things that are kept: what was learnt about models, and pins.

One idea: the newest word counts; nothing here has a history.
"""

from __future__ import annotations

from refold.ports.store import Head
from refold.store.transactions import Transaction


def learnt(owner: str, topic: str, key: str) -> Transaction[bytes | None]:
    found = yield "get_learnt", {"owner": owner, "topic": topic, "key": key}
    return found[0][0] if found else None


def learn(owner: str, topic: str, key: str, value: bytes, at: float) -> Transaction[None]:
    yield "add_owner", {"owner": owner, "at": at}
    yield "put_learnt", {"owner": owner, "topic": topic, "key": key, "value": value, "at": at}


def pin(head: Head, seq: int, on: bool) -> Transaction[None]:
    yield "add_pin" if on else "remove_pin", {"owner": head.owner, "branch": head.branch, "seq": seq}


def pins(head: Head) -> Transaction[list[int]]:
    found = yield "list_pins", {"owner": head.owner, "branch": head.branch}
    return [row[0] for row in found]
