"""Vectors of messages in a small form, and the nearest of many.

A vector is kept as signed bytes, a quarter of its size, and its signs once more as bits. The bits choose the candidates: a million of them
are compared in some milliseconds. The bytes order the candidates. numpy is needed; it comes with every extra that makes vectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import hypot, isfinite
from struct import error as StructError  # noqa: N812 - the module's own name says nothing here
from struct import pack as struct_pack
from struct import unpack
from typing import TYPE_CHECKING, Any

from refold.model.errors import ConfigError

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


_HINT = (
    "`embed` returns one vector for each text: little-endian 32-bit floats as bytes, or a sequence of numbers"
)


def read_vectors(found: object, count: int) -> list[bytes]:
    """The vectors that an embedder gave for `count` texts, as bytes of 32-bit floats; a sequence of numbers is brought to length one.

    Raises:
        ConfigError: they are no vectors, or not as many, or of several dimensions.
    """
    if isinstance(found, str | bytes) or not isinstance(found, Iterable):
        raise ConfigError("the embedder gave no list of vectors", hint=_HINT)
    vectors = [_read_vector(one) for one in found]
    if len(vectors) != count:
        raise ConfigError(f"the embedder gave {len(vectors)} vectors for {count} texts", hint=_HINT)
    sizes = sorted({len(one) // 4 for one in vectors if one})
    if len(sizes) > 1:
        raise ConfigError(
            f"the embedder gave vectors of {sizes[0]} and of {sizes[-1]} numbers",
            hint="all vectors of an embedder have one dimension; another model is an embedder of another name",
        )
    return vectors


def _read_vector(one: object) -> bytes:
    try:
        if isinstance(one, bytes | bytearray | memoryview):
            packed = bytes(one)
            numbers = unpack(f"<{len(packed) // 4}f", packed)
        else:
            given = [float(number) for number in one]  # type: ignore[attr-defined]
            length = hypot(*given)
            numbers = tuple(number / length for number in given) if length else ()
            packed = struct_pack(f"<{len(numbers)}f", *numbers)
    except (TypeError, ValueError, OverflowError, StructError):
        raise ConfigError(f"the embedder gave a {type(one).__name__} for a vector", hint=_HINT) from None
    if not all(map(isfinite, numbers)):
        raise ConfigError("the embedder gave a vector with a number that is not finite", hint=_HINT)
    return packed


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
    table, row, differ = (np.empty(0, kind) for kind in (np.intp, np.intp, np.uint16))
    for at, rows in enumerate(tables):
        counts = _count_differing(own.view(rows.dtype), rows)
        if len(differ) == limit:  # a later row comes after an earlier one that is as near
            places = np.flatnonzero(counts < differ[-1])
        elif len(counts) > limit:
            places = np.flatnonzero(counts <= np.partition(counts, limit - 1)[limit - 1])
        else:
            places = np.arange(len(counts))
        table = np.concatenate((table, np.full(len(places), at)))
        row, differ = np.concatenate((row, places)), np.concatenate((differ, counts[places]))
        best = np.lexsort((row, table, differ))[:limit]
        table, row, differ = table[best], row[best], differ[best]
    return list(zip(table.tolist(), row.tolist(), strict=True))


_STEP = 16_384
"""Rows that are compared at a time: what is computed for them stays in the cache of a core."""


def _count_differing(own: NDArray[Any], rows: NDArray[Any]) -> NDArray[Any]:
    """How many signs of each row differ."""
    import numpy as np

    differ = np.zeros(len(rows), np.uint16)
    for start in range(0, len(rows), _STEP):
        part = differ[start : start + _STEP]
        for column in range(rows.shape[1]):
            part += np.bitwise_count(rows[start : start + _STEP, column] ^ own[column])
    return differ


def cosines(vector: bytes, packed: Sequence[bytes]) -> list[float]:
    """The cosine of each packed vector and a vector of length one."""
    import numpy as np

    if not packed:
        return []
    table = np.frombuffer(b"".join(packed), np.int8).reshape(len(packed), -1).astype(np.float32)
    lengths = np.linalg.norm(table, axis=1)
    return [float(one) for one in table @ np.frombuffer(vector, "<f4") / np.maximum(lengths, 1e-9)]
