"""Vectors of messages in a small form, and the nearest of many.

A vector is kept as signed bytes, a quarter of its size, and its signs once more as bits. The bits choose the candidates: a million of them
are compared in some milliseconds. The bytes order the candidates. numpy is needed; it comes with every extra that makes vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

CONTEXT = 200
"""Characters of the message before that belong to the text of a message: an answer alone often names no subject."""
MAX_TEXT = 2_000
"""Characters of a message that are read: its beginning shows its subject. Both were chosen with the static vectors, on LoCoMo and BEAM; the
sentence model was tried with 300 and 1,000."""


def window_text(before: str, text: str) -> str:
    """The text of a message as it is embedded: after the end of the message before it."""
    return f"{before[-CONTEXT:]}\n{text[:MAX_TEXT]}" if before else text[:MAX_TEXT]


def pack(vectors: Sequence[bytes]) -> tuple[bytes, bytes]:
    """The signs of some vectors as bits, and the vectors as signed bytes, each one after another."""
    import numpy as np

    if not vectors:
        return b"", b""
    table = np.frombuffer(b"".join(vectors), "<f4").reshape(len(vectors), -1)
    most = np.abs(table).max(axis=1, keepdims=True)
    small = np.round(table / np.maximum(most, 1e-9) * 127).astype(np.int8)
    return np.packbits(table > 0, axis=1).tobytes(), small.tobytes()


def code_rows(codes: bytes, count: int) -> NDArray[Any]:
    """The signs of `count` vectors, one in a row; column by column in memory, as `nearest_of` reads them."""
    import numpy as np

    rows = np.frombuffer(codes, np.uint8).reshape(count, -1)
    return np.asfortranarray(rows.view(np.uint64) if rows.shape[1] % 8 == 0 else rows)


def nearest_of(vector: bytes, tables: Sequence[NDArray[Any]], limit: int) -> list[tuple[int, int]]:
    """The rows of some tables that have most signs in common with a vector, as pairs of table and row, best first. Of equals, the
    earlier one.
    """
    import numpy as np

    if not tables:
        return []
    own = np.packbits(np.frombuffer(vector, "<f4") > 0)
    parts = [_nearest_codes(own.view(rows.dtype), rows, limit) for rows in tables]
    table = np.concatenate([np.full(len(places), at) for at, (places, _) in enumerate(parts)])
    row = np.concatenate([places for places, _ in parts])
    differ = np.concatenate([counts for _, counts in parts])
    best = np.lexsort((row, table, differ))[:limit]
    return list(zip(table[best].tolist(), row[best].tolist(), strict=True))


def _nearest_codes(own: NDArray[Any], rows: NDArray[Any], limit: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """The places of the rows with the fewest signs that differ, and how many differ."""
    import numpy as np

    differ = np.bitwise_count(rows[:, 0] ^ own[0]).astype(np.uint16)
    for column in range(1, rows.shape[1]):
        differ += np.bitwise_count(rows[:, column] ^ own[column])
    if len(differ) <= limit:
        return np.arange(len(differ)), differ
    places = np.argpartition(differ, limit)[:limit]
    return places, differ[places]


def cosines(vector: bytes, packed: Sequence[bytes]) -> list[float]:
    """The cosine of each packed vector and a vector of length one."""
    import numpy as np

    if not packed:
        return []
    table = np.frombuffer(b"".join(packed), np.int8).reshape(len(packed), -1).astype(np.float32)
    lengths = np.linalg.norm(table, axis=1)
    return [float(one) for one in table @ np.frombuffer(vector, "<f4") / np.maximum(lengths, 1e-9)]
