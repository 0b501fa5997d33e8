"""Texts and queries are taken apart alike, in any script."""

from __future__ import annotations

import json
import random
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.core.search.query import fragments, limit_query, phrases, spaced, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Harbour is closed.", ["the", "harbour", "is", "closed"]),
        (
            "max_page_count in src/store/a.py:40",
            ["max", "page", "count", "in", "src", "store", "a", "py", "40"],
        ),
        ("Café ÉCOLE naïve Straße", ["cafe", "ecole", "naive", "strasse"]),
        ("ÅNGSTRÖM № ﬁne", ["angstrom", "no", "fine"]),
        ("数据库 v2", ["数", "据", "库", "v2"]),
        ("サーバー", ["サ", "ー", "バ", "ー"]),
        ("서버를", ["서", "버", "를"]),
        ("用abc完", ["用", "abc", "完"]),
        ("สวัสดี", list("สวัสดี")),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("Привет, мир", ["привет", "мир"]),
        ("שלום עולם", ["שלום", "עולם"]),
        ("🌊 !!! \x00 …", []),
        ("", []),
    ],
)
def test_words_are_found_in_any_script(text, expected):
    assert words(text) == expected
    assert spaced(text) == " ".join(expected)


def test_encoded_data_is_not_indexed():
    assert words(f"see {'QUJD' * 40} here") == ["see", "here"]


def test_a_long_run_of_base64_is_not_indexed_and_the_text_around_it_is():
    run = b64encode(random.Random(7).randbytes(3_100)).decode()
    assert len(run) > 4_096
    assert "/" in run
    assert "+" in run

    assert words(f'the picture "{run}" shows a/b') == ["the", "picture", "shows", "a", "b"]
    assert words(f"first\n{run.translate({43: 45, 47: 95})}\nlast") == ["first", "last"]


def test_shorter_runs_and_long_text_without_blanks_are_indexed():
    path = "/".join(["folder"] * 580)
    listed = json.dumps(
        [{"order": number, "status": "paid"} for number in range(9_000)], separators=(",", ":")
    )

    assert words(path) == ["folder"] * 580
    assert len(listed) > 200_000
    assert words(listed) == [word for n in range(9_000) for word in ("order", str(n), "status", "paid")]
    assert words("数据库" * 50_000) == list("数据库" * 50_000)
    assert words("-" * 5_000 + "TITLE next") == ["title", "next"]
    for sign in "+/=_-":
        assert words(sign.join(["harbour"] * 2_000)) == ["harbour"] * 2_000


@pytest.mark.parametrize(
    ("word", "folded"), [("किताब", "किताब"), ("re\u0301sume\u0301", "resume"), ("مُحَمَّد", "مُحَمَّد")]
)
def test_a_long_text_without_blanks_is_not_split_inside_of_a_word(word, folded):
    assert set(words(",".join([word] * 40_000))) == set(words(folded))


def test_a_megabyte_of_base64_has_no_words():
    run = b64encode(random.Random(8).randbytes(1_000_000)).decode()

    assert len(words(f"before {run} after")) < 4_096 // 10
    assert words(f"before {run} after")[0] == "before"
    assert words(f"before {run} after")[-1] == "after"


@given(st.text())
def test_what_was_taken_apart_is_taken_apart_the_same_way_again(text):
    assert words(spaced(text)) == words(text)


@given(st.text(), st.text(), st.text())
def test_a_piece_of_a_text_is_a_phrase_of_it(before, middle, after):
    whole, piece = words(f"{before} {middle} {after}"), words(middle)

    assert any(whole[at : at + len(piece)] == piece for at in range(len(whole) + 1))


def test_what_is_written_together_is_asked_for_together():
    assert phrases("max_page_count  Storm storm 数据库 !") == [
        ("max", "page", "count"),
        ("storm",),
        ("数", "据", "库"),
    ]
    assert phrases(" \x00 ?! ") == []


def test_a_whole_page_as_a_query_is_cut_short():
    assert len(phrases(" ".join(f"w{number}" for number in range(1_000)))) <= 32


def test_a_long_query_ends_with_a_whole_word():
    assert limit_query("a" * 2_000) == "a" * 1_000
    assert limit_query("abc " * 500).split() == ["abc"] * 250
    assert limit_query("abc " * 249 + "abcd efg").split()[-1] == "abcd"
    assert limit_query("abc " * 249 + "abcdefg").split()[-1] == "abc"
    assert limit_query(" " * 5_000 + "storm") == "storm"


def test_parts_of_a_query_are_words_and_pairs_of_characters():
    assert fragments([("max", "page"), ("数", "据", "库"), ("用",), ("page",)]) == [
        ("max",),
        ("page",),
        ("数", "据"),
        ("据", "库"),
        ("用",),
    ]
