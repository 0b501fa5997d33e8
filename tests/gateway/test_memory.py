"""The memory that large texts and large requests take, in times their size, as `tracemalloc` counts it."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import tracemalloc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from refold import embeddings
from refold.core.digest.typed_text import is_typed, request_text
from refold.core.identity import identity
from refold.core.inventions import TOKEN, known_of
from refold.core.search.query import spaced, words
from refold.core.secrets import find_secrets
from refold.engine.journal import Journal
from refold.engine.search import _window_texts
from refold.model.dialect import DIALECTS
from refold.model.message import Text, user
from refold.ports.records import StoredMessage
from refold.stores.sqlite.store import SqliteStore, _divide
from refold.stores.sqlite.writer import JobOutcome, WorkerPool
from refold.wire.request import decode_message, decode_messages, encode_item, read_history
from tests.gateway.conftest import served

_WORDS = [
    "".join(random.Random(number).choices("abcdefghijklmnop", k=number % 9 + 2)) for number in range(3_000)
]


def prose(size: int, seed: int = 1) -> str:
    chance = random.Random(seed)
    lines = (" ".join(chance.choices(_WORDS, k=200)) for _ in range(size // 400))
    return "\n".join(lines)[:size]


def said_at(at: int, size: int) -> dict[str, object]:
    return {"role": ("user", "assistant")[at % 2], "content": f"{at} {prose(size, at)}"}


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


@pytest.mark.parametrize("text", ["ab\n" * 500_000, "größer\n" * 200_000, prose(1_000_000)])
@pytest.mark.parametrize("look", [identity, request_text, is_typed])
def test_a_long_message_is_looked_at_without_a_copy_of_its_text(look, text):
    with measured() as peak:
        look(user(text))

    assert peak.bytes < len(text) / 2


def test_the_bytes_of_a_message_are_freed_before_its_text_is_searched(monkeypatch):
    bodies = [msgspec.json.encode(said_at(at, 100_000)) for at in range(3)]
    rows = [StoredMessage(seq=at, role="user", format="chat", body=body) for at, body in enumerate(bodies)]
    held, own = list[list[bool]](), 3  # the list of this test, the name in the loop and the argument

    def search(text: str, known: object) -> str:
        held.append([sys.getrefcount(body) > own for body in bodies])
        return text

    monkeypatch.setattr("refold.engine.search.without_secrets", search)
    texts = _window_texts(rows, 0, ())

    assert [seq for seq, _ in texts] == [0, 1, 2]
    assert held == [[False, True, True], [False, False, True], [False, False, False]]


@pytest.mark.parametrize("text", ["ab\n" * 500_000, "中文\n" * 200_000, prose(1_000_000)])
def test_a_long_message_is_decoded_without_a_second_copy_of_its_text(text):
    raw = msgspec.Raw(msgspec.json.encode({"role": "user", "content": text}))
    with measured() as peak:
        message = decode_message(raw, DIALECTS["chat"])

    assert message.text == text
    assert peak.bytes < 1.5 * sys.getsizeof(text), "the text, and slices of it"


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

    said = [said_at(at, 10_000) for at in range(400)]
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


def test_the_words_of_a_long_message_are_indexed_without_all_of_them_in_memory():
    text = prose(3_000_000)
    with measured() as peak:
        count = sum(1 for _ in _divide(text, 0))

    assert count > 4
    assert peak.bytes < len(text)


def test_a_large_message_after_known_ones_is_held_once_beside_its_text():
    known, new = [said_at(at, 1_000) for at in range(3)], said_at(3, 3_000_000)
    before = read_history(msgspec.json.encode(known), DIALECTS["chat"]).history
    array = memoryview(msgspec.json.encode([*known, new]))
    with measured():
        reading = read_history(array, DIALECTS["chat"], before)
        held = tracemalloc.get_traced_memory()[0]

    assert (reading.known, len(reading.messages)) == (3, 1)
    assert reading.messages[0].text == new["content"]
    assert held < 1.2 * len(array), "its text, and a view of the request"


def test_a_changed_message_is_written_without_its_original_text_once_more():
    dialect = DIALECTS["chat"]
    (original,) = decode_messages(msgspec.json.encode([said_at(0, 3_000_000)]), dialect)
    changed = original.with_parts((Text("Short."),))
    with measured() as peak:
        raw = encode_item(changed, dialect, original)

    assert bytes(raw) == bytes(encode_item(changed, dialect))
    assert peak.bytes < 100_000


async def test_a_thread_holds_the_rows_of_a_job_no_longer_than_the_job():
    class Rows(list[bytes]):
        """A list that can be watched."""

    pool = WorkerPool(
        lambda: True, lambda _: None, lambda _, jobs: [job() for job in jobs], threads=1, most=1
    )
    rows = await pool.submit(lambda: JobOutcome(Rows([b"text"])))
    there = weakref.ref(rows)
    del rows
    for _ in range(200):  # the thread drops them after it has told the event loop
        if there() is None:
            break
        await asyncio.sleep(0.01)
    still_there = there() is not None
    pool.close()

    assert not still_there
