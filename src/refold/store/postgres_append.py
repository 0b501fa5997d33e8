"""Append a message to a branch with one statement.

One idea: what is only said needs no talk with the server. A statement that moves the branch's row, if it is still where the writer
saw it, appends to what it moved and commits by itself: one trip to the server instead of four, and nothing between its steps.
"""

from __future__ import annotations

from refold.ports.store import Batch, Head
from refold.store import rows
from refold.store.committing import check_numbers, is_only_said, refuse, swapping
from refold.store.transactions import Parameters, Transaction

PART = 2_000
"""Words that the index takes in one piece; the database divides longer texts, see `spell_words`."""


def plain(seen: Head, batch: Batch) -> Parameters | None:
    """What the statement is given; None where there is more in a batch than a message, or more to be done about it."""
    if not is_only_said(seen, batch):
        return None
    check_numbers(seen, batch.messages)
    said = rows.with_words(seen, batch.messages[0])
    words = str(said["words"]).split()
    if len(words) > PART:
        return None
    spelt = _spell(words, str(said["scope"]).split())
    return {**swapping(seen, batch), **said, "spelt": spelt, "committed_at": batch.at}


def append(seen: Head, asked: Parameters) -> Transaction[Head]:
    moved = yield "append_message", asked
    return rows.to_head(moved[0]) if moved else (yield from refuse(seen))


def _spell(words: list[str], marks: list[str]) -> str:
    """Words with their places, as `spell_words` does it: a function on the server takes three times as long."""
    placed = [f"{word}:{place}" for place, word in enumerate(words, 1)]
    return " ".join(placed + [f"{mark}:1A" for mark in marks]) if words else ""
