"""Which vectors are nearest: the same with numpy and without."""

from __future__ import annotations

import sys
from array import array

import pytest

from refold.stores.search import Nearest, likeness


def vector(*numbers: float) -> bytes:
    return array("f", numbers).tobytes()


@pytest.fixture(params=["numpy", "plain"])
def arithmetic(request, monkeypatch):
    if request.param == "plain":
        monkeypatch.setitem(sys.modules, "numpy", None)


def test_likeness_is_the_cosine_of_vectors_of_length_one(arithmetic):
    others = [vector(1, 0), vector(0.6, 0.8), vector(0, 1), vector(-1, 0)]

    assert likeness(vector(1, 0), others) == pytest.approx([1.0, 0.6, 0.0, -1.0])
    assert likeness(vector(1, 0), []) == []


def test_the_best_of_all_pages_are_held(arithmetic):
    found = Nearest[str](vector(1, 0), 2)
    found.take([("half", vector(0.6, 0.8)), ("far", vector(0, 1))])
    found.take([("whole", vector(1, 0)), ("half again", vector(0.6, 0.8))])
    found.take([])

    assert found.best == ["whole", "half"], "of two that are as near, the first"


def test_what_is_too_far_is_left_out(arithmetic):
    found = Nearest[str](vector(1, 0), 5, least=0.5)
    found.take([("near", vector(0.6, 0.8)), ("far", vector(0, 1))])

    assert found.best == ["near"]


def test_what_cannot_be_compared_is_passed_over(arithmetic):
    found = Nearest[str](vector(1, 0), 5)
    found.take([("empty", b""), ("longer", vector(1, 0, 0)), ("fits", vector(0, 1))])
    nothing = Nearest[str](b"", 5)
    nothing.take([("empty", b""), ("fits", vector(0, 1))])

    assert found.best == ["fits"]
    assert nothing.best == []
