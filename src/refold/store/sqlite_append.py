"""Append a message to a branch with one script.

One idea: what is only said changes nothing about its branch, so its row is looked at and not written, and all that is asked of
the database is asked at once.
"""

from __future__ import annotations

from msgspec import structs

from refold.ports.store import Batch, Head
from refold.store import rows
from refold.store.committing import check_numbers, is_only_said, refuse
from refold.store.failpoints import reach
from refold.store.sqlite_file import as_said
from refold.store.transactions import Parameters, Transaction


def plain(seen: Head, batch: Batch) -> Parameters | None:
    """What the script is given; None where there is more in a batch than a message, or more to be done about it."""
    if not is_only_said(seen, batch) or batch.notes is not None or batch.model is not None:
        return None
    check_numbers(seen, batch.messages)
    return {
        **rows.of_message(seen, batch.messages[0], as_said),
        "conversation": seen.conversation,
        "seen_epoch": seen.epoch,
        "seen_revision": seen.revision,
        "seen_session": seen.session,
        "committed_at": batch.at,
    }


def append(seen: Head, asked: Parameters) -> Transaction[Head]:
    if not (yield "append_message", asked):
        yield from refuse(seen)
    reach("append.before_commit")
    return structs.replace(seen, next_seq=seen.next_seq + 1)
