"""Text as vectors, on this machine: search by meaning without a key and without a network.

Finds sessions by their subject, even if no word is the same. `StaticEmbedder` uses a table of word vectors and takes
a fraction of a millisecond. A provider's model gives better results: `refold.upstreams.open_embedder`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field, json

from refold.model.errors import MissingExtra

if TYPE_CHECKING:
    from numpy import memmap
    from tokenizers import Tokenizer


# An embedder with static word vectors: the vector of a text is the mean of its tokens' vectors. The
# vectors are a table in a file, so nothing is downloaded, no model runs, and a summary takes a
# millisecond. The order of words is lost, which matters little for the subject of a text. The table
# and its tokenizer are two files inside the wheel `wordllama`. They are read directly: the
# package's own loader uses the network, and importing the package configures logging.

NAME = "wordllama-l2-supercat-256"
LEAST = 0.05
"""Least similarity of a match. Set with 1,070 questions about 182 sessions: each was nearer to its own
session, and an unrelated text was farther from every session. For sessions that are mostly code, similarity
is lower and noisier.
"""
_TABLE, _TOKENIZER = "weights/l2_supercat_256.safetensors", "tokenizers/l2_supercat_tokenizer_config.json"


class StaticEmbedder:
    """An embedder that needs the extra `search`.

    Raises:
        MissingExtra: the extra is not installed.
    """

    name = NAME
    least = LEAST

    def __init__(self) -> None:
        if _folder() is None:
            raise MissingExtra("search", "search by meaning")

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """A vector for each of the texts, empty for a blank text."""
        # In a thread: the first call takes a fifth of a second and must not block other tasks.
        return await asyncio.to_thread(_embed, list(texts))


def installed() -> StaticEmbedder | None:
    """The embedder, if its extra is installed."""
    return StaticEmbedder() if _folder() is not None else None


@cache
def _folder() -> Path | None:
    """The folder with the files. Nothing is imported to find it."""
    if any(find_spec(name) is None for name in ("numpy", "tokenizers")):
        return None
    found = find_spec("wordllama")
    places = list(found.submodule_search_locations or ()) if found else []
    folders = (Path(place) for place in places)
    return next((one for one in folders if (one / _TABLE).is_file() and (one / _TOKENIZER).is_file()), None)


class _Table(Struct, frozen=True):
    shape: tuple[int, int]
    data_offsets: tuple[int, int]


class _Header(Struct, frozen=True):
    table: _Table = field(name="embedding.weight")


@cache
def _load_table() -> tuple[memmap[Any, Any], Tokenizer]:
    import numpy as np
    from tokenizers import Tokenizer

    folder = _folder()
    assert folder is not None
    path = folder / _TABLE
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        table = json.decode(file.read(size), type=_Header).table
    offset = 8 + size + table.data_offsets[0]
    # Memory-mapped: only the rows that are used are read from the file.
    vectors = np.memmap(path, dtype="<f2", mode="r", offset=offset, shape=table.shape)
    return vectors, Tokenizer.from_file(str(folder / _TOKENIZER))


def _embed(texts: list[str]) -> list[bytes]:
    import numpy as np

    table, tokenizer = _load_table()
    vectors = []
    for text in texts:  # one by one: a batch starts threads, and warns in programs that fork later
        pieces = tokenizer.encode(text, add_special_tokens=False).ids
        total = np.asarray(table[pieces], dtype=np.float32).sum(axis=0)
        length = np.linalg.norm(total)
        vectors.append((total / length).astype("<f4").tobytes() if length else b"")
    return vectors
