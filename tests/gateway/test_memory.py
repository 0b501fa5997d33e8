"""The memory that large texts and large requests take, in times their size, as `tracemalloc` counts it."""

from __future__ import annotations

import gc
import random
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from refold import embeddings
from refold.core.search.terms import spaced, words
from refold.core.secrets import find_secrets
from refold.core.summary_checks.inventions import TOKEN, known_of
from refold.engine.journal import Journal
from refold.stores.sqlite.store import SqliteStore
from tests.gateway.conftest import served

_WORDS = [
    "".join(random.Random(number).choices("abcdefghijklmnop", k=number % 9 + 2)) for number in range(3_000)
]


def prose(size: int, seed: int = 1) -> str:
    chance = random.Random(seed)
    lines = (" ".join(chance.choices(_WORDS, k=200)) for _ in range(size // 400))
    return "\n".join(lines)[:size]


class Peak:
    bytes = 0


@contextmanager
def measured() -> Iterator[Peak]:
    """The most memory that the block takes above that before it."""
    found = Peak()
    gc.collect()
    tracemalloc.start(1)
    try:
        before = tracemalloc.get_traced_memory()[0]
        yield found
        found.bytes = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("search", [find_secrets, spaced, known_of])
def test_a_long_text_is_not_split_into_all_its_words_at_once(search):
    text = prose(1_000_000)
    with measured() as peak:
        search(text)

    assert peak.bytes < 3 * len(text), "a list of all words takes ten times the text"


def test_words_in_portions_are_those_of_the_whole_text():
    text = f"{prose(300_000)}\n\n   \n{'-' * 100_000} end"

    assert spaced(text) == " ".join(words(text))
    assert {token.lower() for token in TOKEN.findall(text)} == set(known_of(text).names)


@pytest.mark.skipif(embeddings.installed() is None, reason="the extra is not installed")
def test_the_vectors_of_a_long_text_are_added_up_in_portions():
    import numpy as np

    table, tokenizer = embeddings._load_table()
    text = prose(200_000)
    rows = np.asarray(table[tokenizer.encode(text, add_special_tokens=False).ids], dtype=np.float32)
    total = rows.sum(axis=0)
    whole = (total / np.linalg.norm(total)).astype("<f4").tobytes()
    with measured() as peak:
        vector = embeddings.static_vector(text)

    assert vector == whole, "bit by bit"
    assert peak.bytes < rows.nbytes / 4


async def test_the_messages_of_a_large_request_are_stored_without_a_copy_of_them_all(
    upstream, tmp_path, monkeypatch
):
    store, draft, commit, peaks = (
        await SqliteStore.open(tmp_path / "kept.db"), Journal.draft, SqliteStore.commit, list[int]()
    )  # fmt: skip

    def traced_draft(*args, **more):
        tracemalloc.start(1)
        return draft(*args, **more)

    async def traced_commit(*args):
        gc.collect()  # what is left of the draft is what the commit holds
        tracemalloc.reset_peak()
        try:
            return await commit(*args)
        finally:
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()

    said = [
        {"role": ("user", "assistant")[at % 2], "content": f"{at} {prose(10_000, at)}"} for at in range(400)
    ]
    body = msgspec.json.encode({"model": "gpt-5", "messages": said})
    async with served(upstream, store=store, window=8_000, summariser_enabled=False) as gate:
        with monkeypatch.context() as patched:
            patched.setattr(Journal, "draft", traced_draft)
            patched.setattr(SqliteStore, "commit", traced_commit)
            status, told, _ = await gate.post("/v1/chat/completions", body)
        head = await store.head("local", told["x-refold-conversation"], told["x-refold-branch"])
        stored = [msgspec.json.decode(one.body) for one in await store.messages(head)]

    assert status == 200
    assert stored == said
    assert max(peaks) < len(body) / 2, "a portion at a time"
