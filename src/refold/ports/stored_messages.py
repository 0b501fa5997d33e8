"""Read stored messages: the one way from the bytes of a store to a `Message`.

Engine, search, doctor, archive, command line and the index of words all read here. A stored message that cannot be read is therefore
the same error everywhere: `Damaged`, which names the conversation and the message, and is never taken for a fault of the caller.
"""

from __future__ import annotations

from refold.model.dialect import DIALECTS
from refold.model.errors import Damaged, WireError
from refold.model.message import Message
from refold.ports.records import Head, StoredMessage
from refold.wire.message import decode_message


def read_stored(stored: StoredMessage, head: Head) -> Message | None:
    """A stored message of a branch; None where no content was stored.

    Raises:
        Damaged: it cannot be read, or the form in which it was shown on arrival cannot.
    """
    both = read_with_shown(stored, head)
    return None if both is None else both[0]


def read_with_shown(stored: StoredMessage, head: Head) -> tuple[Message, Message] | None:
    """A stored message, and the same as it was shown on arrival; None where no content was stored.

    Raises:
        Damaged: one of them cannot be read.
    """
    if stored.format not in DIALECTS:
        raise _damaged("is in a format that is not known", stored, head)
    if stored.format != head.format:
        raise _damaged("is not in the format of its conversation", stored, head)
    if stored.is_emptied:
        raise _damaged("has lost its content", stored, head)
    try:
        shown = read_body(stored.shown, stored.format) if stored.shown is not None else None
        message = read_body(stored.body, stored.format) if stored.body else None
    except Damaged:
        raise _damaged("cannot be read", stored, head) from None
    if message is None:
        return None
    return message, message if shown is None else shown


def read_body(body: bytes, wire_format: str) -> Message:
    """The message in the bytes of a store, where nothing else is known about it.

    Raises:
        Damaged: it cannot be read, or its format is not known.
    """
    dialect = DIALECTS.get(wire_format)  # type: ignore[call-overload]
    if dialect is None:
        raise Damaged("a stored message is in a format that is not known")
    try:
        return decode_message(body, dialect)
    except WireError:
        raise Damaged("a stored message cannot be read") from None


def _damaged(what: str, stored: StoredMessage, head: Head) -> Damaged:
    return Damaged(f"message {stored.seq} {what}", conversation=head.conversation, seq=stored.seq)
