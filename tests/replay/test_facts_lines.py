"""Whole lines and phrases: the texts that a reply may copy from an earlier message."""

from __future__ import annotations

import pytest

from refold.replay.facts import lines, phrases

LINE = "total = sum(item.price for item in basket)"


@pytest.mark.parametrize(
    "shown",
    [
        LINE,
        f"        {LINE}   ",
        f"   12\t{LINE}",
        f"  12→    {LINE}",
        f"812:    {LINE}",
        f"+    {LINE}",
        f"- {LINE}",
        f"> {LINE}\r",
    ],
)
def test_a_line_is_the_same_whatever_stands_before_it(shown):
    assert lines(f"def bill(basket):\n{shown}\n    return total") == {LINE}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "    return None",
        "import numpy as np",
        "# ---------------------------------",
        "/srv/shop/billing/basket_of_orders.py",
        "https://shop.example/billing/orders/of/2025",
        "}  else  {                              ",
    ],
)
def test_what_anybody_writes_without_memory_and_one_path_are_no_lines(text):
    assert lines(text) == frozenset()


def test_a_phrase_is_five_words_of_one_line_without_the_marks_around_them():
    assert phrases('The "northern harbour" ships orders, (late)\non Fridays') == {
        "The northern harbour ships orders",
        "northern harbour ships orders late",
    }
    assert phrases("northern harbour\nships orders late today") == frozenset()


def test_short_words_alone_are_no_phrase():
    assert phrases("it is one of the two that we had") == frozenset()
