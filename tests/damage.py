"""Damage to a stored message, made with SQL in a file that no program has open."""

from __future__ import annotations

from pathlib import Path

import apsw

BAD_BODIES = {
    "no JSON": b'{"role": "us',
    "an unknown role": b'{"role":"usr","content":"hello"}',
    "no UTF-8": b'{"role":"user","content":"\xff"}',
    "nulls": bytes(40),
}


def damage(
    path: Path,
    conversation: str,
    seq: int,
    value: bytes | str = BAD_BODIES["an unknown role"],
    column: str = "body",
) -> None:
    """Put another value in the place of a message of the first branch of a conversation, or of another column of its row."""
    connection = apsw.Connection(str(path))
    connection.execute("DROP TRIGGER IF EXISTS message_never_changes")
    connection.execute(
        f"""UPDATE message SET {column} = :value
        WHERE id = (SELECT min(ordinal) FROM branch WHERE conversation = :conversation) << 32 | :seq""",
        {"value": value, "conversation": conversation, "seq": seq},
    )
    assert connection.changes() == 1
    connection.close()
