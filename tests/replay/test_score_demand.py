from __future__ import annotations

import pytest

from refold.model.message import assistant, user
from refold.replay.facts import Context, FactBook, ReferenceCounter
from refold.replay.score import Mentions, band, is_bound

BOOK = FactBook(ReferenceCounter())
SOURCE = "The Harbour office confirmed that order W2378156 ships on Monday with express delivery."


def context(*texts):
    return Context(BOOK.all_of(map(user, texts)), None)


def mentions(*texts, fixed=()):
    found = Mentions(lambda facts: facts.literals, fixed)
    for index, text in enumerate(texts):
        found.note(BOOK.of(user(text)), index)
    return found


@pytest.mark.parametrize(
    ("distance", "expected"), [(0, "near"), (999, "near"), (1_000, "mid"), (3_999, "mid"), (4_000, "far")]
)
def test_how_long_ago_is_measured_in_windows(distance, expected):
    assert band(distance, 4_000) == expected


def test_a_reply_demands_what_it_uses_and_what_was_there_before():
    known = mentions("see app.py", "and main.py, app.py", fixed={"read_file"})
    reply = BOOK.all_of([assistant("read_file on app.py gives other.py")])

    assert known.demanded_by(reply) == ["app.py"]
    assert list(known.latest("app.py")) == [0, 1]
    assert "read_file" in known
    assert "other.py" not in known


def test_a_literal_is_in_the_context_alone_or_inside_a_longer_one():
    known = mentions("see app.py")

    assert known.is_in("app.py", context("hello", "open app.py"))
    assert known.is_in("app.py", context("open src/app.py"))
    assert not known.is_in("app.py", context("open myapp.pyc"))


def test_a_fact_is_bound_by_the_words_around_it_and_a_list_is_not():
    sources = BOOK.all_of([user(SOURCE)])

    assert is_bound("W2378156", sources, context(SOURCE))
    assert is_bound("W2378156", sources, context("Order W2378156: ships on Monday"))
    assert not is_bound("W2378156", sources, context("Seen: W2378156 ZFA04Y HAT271"))
    assert is_bound("W2378156", BOOK.all_of([user("W2378156 ok")]), context("Seen: W2378156"))
