"""Stored messages, read again.

One idea: whoever shows, recalls, moves or examines what was stored reads it in one way, and what cannot be read has one error, which
says which message it is.
"""

from __future__ import annotations

from refold.model.dialect import DIALECTS
from refold.model.errors import Damaged, WireError
from refold.model.message import Message
from refold.ports.store import Head, Stored
from refold.wire.message import decode_message


def read_stored(one: Stored, head: Head) -> Message | None:
    """What a message of a branch says; None where nothing of it was kept.

    Raises:
        Damaged: it cannot be read, or what was shown of it cannot.
    """
    dialect = DIALECTS.get(one.format)  # type: ignore[call-overload]
    if dialect is None:
        raise Damaged(f"message {one.seq} is in a format that is not known")
    if one.format != head.format:
        raise Damaged(f"message {one.seq} is not in the format of its conversation")
    try:
        if one.shown is not None:
            decode_message(one.shown, dialect)
        return decode_message(one.body, dialect) if one.body else None
    except WireError:
        raise Damaged(f"message {one.seq} cannot be read") from None
