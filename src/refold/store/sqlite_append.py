"""Append a message to a branch with one script.

One idea: what is only said changes nothing about its branch, so its row is looked at and not written, and all that is asked of
the database is asked at once. Every message takes this way, and the disk takes a tenth of a millisecond: so values are given in
their order, which is found much sooner than by name.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TypeAlias

import apsw
from msgspec import structs

from refold.ports.store import Batch, Head
from refold.store.committing import is_only_said, out_of_order, refuse
from refold.store.failpoints import reach
from refold.store.queries import load
from refold.store.sqlite_commit import run

Asked: TypeAlias = tuple[object, ...]


def plain(seen: Head, batch: Batch) -> Asked | None:
    """What the script is given; None where there is more in a batch than a message, or more to be done about it."""
    if batch.notes is not None or batch.model is not None or not is_only_said(seen, batch):
        return None
    said = batch.messages[0]
    if said.seq != seen.next_seq:
        raise out_of_order()
    return (
        said.seq, seen.owner, seen.branch, seen.conversation, seen.epoch, seen.revision, seen.session,
        said.role, said.format, said.tokens, said.is_findable, said.body, sha256(said.body).digest(),
        said.shown, said.key, said.at,
        said.seq, said.is_findable,
    )  # fmt: skip


def append(seen: Head, asked: Asked, at: float, cursor: apsw.Cursor) -> tuple[Head, bool]:
    """Run the script, and note when the conversation was last used; was that another second?"""
    try:
        cursor.execute(load("sqlite")["append_message"], asked)
    except apsw.ConstraintError:
        run(cursor, refuse(seen))
    place = {"at": at, "owner": seen.owner, "conversation": seen.conversation}
    is_noted = cursor.execute(load("sqlite")["touch_conversation"], place).fetchall()
    reach("append.before_commit")
    return structs.replace(seen, next_seq=seen.next_seq + 1), bool(is_noted)
