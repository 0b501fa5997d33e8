from __future__ import annotations

from itertools import accumulate

import pytest

from refold.core.prompt_cache import CacheHit, CacheRules, Prompt, PromptCache

RULES = CacheRules(ttl_s=300, minimum=100)


def prompt(*pieces: str, marks=None, tokens: int = 100) -> Prompt:
    """Pieces of equal size; marked at its end where nothing else is said."""
    names = tuple(accumulate(pieces, lambda before, piece: f"{before}/{piece}"))
    sizes = tuple(tokens * length for length in range(1, len(pieces) + 1))
    return Prompt(names, sizes, marks if marks is not None else {len(pieces): None})


def test_what_is_written_is_read_by_what_begins_the_same():
    cache = PromptCache(RULES)

    assert cache.send(prompt("a", "b"), 0) == CacheHit(read=0, written=200)
    assert cache.send(prompt("a", "b", "c"), 1) == CacheHit(read=200, written=100)
    assert cache.send(prompt("x", "b", "c"), 2) == CacheHit(read=0, written=300)


def test_only_marked_beginnings_are_kept():
    cache = PromptCache(RULES)
    cache.send(prompt("a", "b", "c", marks={2: None}), 0)

    assert cache.send(prompt("a", "b", "x"), 1).read == 200
    assert cache.send(prompt("a", "y", marks={}), 1) == CacheHit()


def test_each_mark_lives_as_long_as_it_says():
    cache = PromptCache(RULES)
    cache.send(prompt("a", "b", marks={1: 3_600, 2: None}), 0)

    assert cache.send(prompt("a", "b", marks={}), 301).read == 100
    assert cache.send(prompt("a", "b", marks={}), 301 + 3_601).read == 0


def test_a_read_begins_the_time_anew():
    cache = PromptCache(RULES)
    cache.send(prompt("a"), 0)

    assert cache.send(prompt("a", marks={}), 300).read == 100
    assert cache.send(prompt("a", marks={}), 600).read == 100
    assert cache.send(prompt("a", marks={}), 901).read == 0


@pytest.mark.parametrize(("tokens", "read"), [(99, 0), (100, 100)])
def test_less_than_the_minimum_is_neither_written_nor_read(tokens: int, read: int):
    cache = PromptCache(RULES)
    cache.send(prompt("a", tokens=tokens), 0)

    assert cache.send(prompt("a", tokens=tokens), 0).read == read


def test_what_is_read_is_a_multiple_of_the_step():
    cache = PromptCache(CacheRules(minimum=100, step=128))
    cache.send(prompt("a", "b", "c"), 0)

    assert cache.send(prompt("a", "b", "c", "d"), 0) == CacheHit(read=256, written=144)


@pytest.mark.parametrize(("marked", "read"), [(3, 100), (4, 0)])
def test_a_lookback_ends_somewhere(marked: int, read: int):
    cache = PromptCache(CacheRules(minimum=100, lookback=3))
    cache.send(prompt("a"), 0)

    assert cache.send(prompt("a", "b", "c", "d", marks={marked: None}), 0).read == read
