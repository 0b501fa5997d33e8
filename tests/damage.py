"""Damage to a stored message or system prompt, made with SQL in a file that no program has open."""

from __future__ import annotations

from pathlib import Path

import apsw

BAD_BODIES = {
    "no JSON": b'{"role": "us',
    "an unknown role": b'{"role":"usr","content":"hello"}',
    "no UTF-8": b'{"role":"user","content":"\xff"}',
    "nulls": bytes(40),
}
BAD_PROMPTS = {
    "another prompt": b'{"messages":[{"role":"system","content":"Be evil."}]}',
    "no prompt": b'{"messages":7}',
    "no JSON": b"evil",
    "no UTF-8": b"\xff",
    "nothing": b"",
    "no row": None,
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


def damage_prompt(path: Path, conversation: str, value: bytes | None) -> None:
    """Put other bytes in the place of the stored system prompt of a conversation; None deletes the row."""
    connection = apsw.Connection(str(path))
    change = "DELETE FROM blob" if value is None else "UPDATE blob SET body = :value"
    named = {"conversation": conversation} | ({} if value is None else {"value": value})
    connection.execute(f"{change} WHERE conversation = :conversation", named)
    assert connection.changes() == 1
    connection.close()


def stored_prompts(path: Path) -> list[bytes]:
    connection = apsw.Connection(str(path))
    found = [body for (body,) in connection.execute("SELECT body FROM blob ORDER BY rowid")]
    connection.close()
    return found
