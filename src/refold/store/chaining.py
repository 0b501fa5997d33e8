"""Histories that come in anew with every request: where they were seen before, and what was answered.

One idea: the hash of a prefix names its place in a branch, so a request is found by its own last words and never by scanning.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from refold.model.errors import HeldElsewhere
from refold.ports.store import Batch, Head, Place
from refold.store.transactions import Transaction

PLACES = 64
"""Of one question: equal openings of many branches are not all of interest."""


def keep_chains(head: Head, batch: Batch) -> Transaction[None]:
    """Note the hashes of a batch's messages, and the replies to its calls.

    Raises:
        HeldElsewhere: another branch holds the history that the batch claims.
    """
    scope, first = {"owner": head.owner, "branch": head.branch}, head.next_seq - len(batch.chains)
    if batch.claims:
        size = first + batch.chains.index(batch.claims) + 1
        if (yield "find_other_holder", {**scope, "format": head.format, "size": size, "hash": batch.claims}):
            raise HeldElsewhere
    if batch.chains:
        yield (
            "add_chain",
            [{**scope, "size": size, "hash": one} for size, one in enumerate(batch.chains, first + 1)],
        )
    answered = [call for call in batch.calls if call.reply]
    if answered:
        yield "add_reply", [{"owner": head.owner, "call": call.id, "body": call.reply} for call in answered]


def places(owner: str, hashes: Sequence[bytes]) -> Transaction[list[Place]]:
    asked = msgspec.json.encode([one.hex() for one in hashes]).decode()
    rows = yield "find_chains", {"owner": owner, "hashes": asked, "limit": PLACES}
    return [Place(bytes(row[0]), *row[1:]) for row in rows]


def reply_to(owner: str, call: str) -> Transaction[bytes]:
    found = yield "get_reply", {"owner": owner, "call": call}
    return bytes(found[0][0]) if found else b""
