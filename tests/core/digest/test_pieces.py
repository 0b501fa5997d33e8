import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.core.digest.pieces import head, is_safe, pieces, tail

NAME = re.compile(r"[A-Za-z0-9_]+(?:[-./@+%:]+[A-Za-z0-9_]+)*")
TEXTS = st.text(
    st.one_of(
        st.sampled_from("ab1_.-/ ,;:(){}\"'\n\t"),
        st.sampled_from("中文😀👩\u200d👧🇳🇴é"),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=600,
)


def names(text):
    return set(NAME.findall(text))


def test_short_lines_stay_whole():
    assert list(pieces("first line of text\n\n  second line of text  \n")) == [
        "first line of text",
        "second line of text",
    ]


def test_a_stub_of_a_line_joins_the_next():
    assert list(pieces('{\n  "total": 4711,\n}')) == ['{\n  "total": 4711,', "}"]


def test_long_lines_break_after_a_clause():
    line = "The first clause is here and it goes on, the second clause follows it here, and the third ends the line."
    found = list(pieces(line))
    assert " ".join(found) == line
    assert all(part.endswith((",", ".")) for part in found)


@given(TEXTS)
def test_no_piece_tears_a_name_or_a_number(text):
    whole = names(text)
    for piece in pieces(text):
        assert names(piece) <= whole


@given(TEXTS)
def test_pieces_hold_every_visible_character_in_order(text):
    assert "".join("".join(pieces(text)).split()) == "".join(text.split())


@given(TEXTS, st.integers(0, 700))
def test_head_and_tail_keep_to_the_limit_and_tear_nothing(text, limit):
    for part in (head(text, limit), tail(text, limit)):
        assert len(part) <= max(0, limit)
        assert names(part) <= names(text)
    assert text.startswith(head(text, limit))
    assert text.endswith(tail(text, limit))


def test_emoji_and_flags_are_not_parted():
    for text in ("👩\u200d👧", "🇳🇴", "👍🏽", "❤\ufe0f"):
        assert not any(is_safe(text, at) for at in range(1, len(text)))


def test_text_without_spaces_can_be_parted():
    found = list(pieces("这是一个很长的句子没有任何空格" * 20))
    assert len(found) > 3
    assert max(map(len, found)) <= 80


@pytest.mark.parametrize("unit", ["x", "word ", "中", '{"a":1},', ".", "\n"])
def test_a_giant_line_is_parted_to_its_end(unit):
    text = unit * (1_000_000 // len(unit))  # quadratic work would take a day
    assert "".join("".join(pieces(text)).split()) == "".join(text.split())
