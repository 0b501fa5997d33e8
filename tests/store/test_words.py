"""Texts and queries are taken apart alike, in any script, and a query can never speak the language of a database."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.store.words import (
    CONSIDERED,
    fragments,
    phrases,
    scope,
    spaced,
    spell_query,
    weigh,
    within,
    words,
    worth,
)


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


def test_parts_of_a_query_are_words_and_pairs_of_characters():
    assert fragments([("max", "page"), ("数", "据", "库"), ("用",), ("page",)]) == [
        ("max",),
        ("page",),
        ("数", "据"),
        ("据", "库"),
        ("用",),
    ]


def test_rare_parts_weigh_more_and_those_that_are_everywhere_are_left_out():
    weighed = weigh([("the",), ("storm",), ("nowhere",), ("sea",)], [CONSIDERED, 3, 0, CONSIDERED])

    assert weighed[("storm",)] > weighed[("the",)]
    assert ("nowhere",) not in weighed
    assert len(weighed) == 2, "one that is everywhere fills what is looked at"
    assert list(weigh([("the",)], [CONSIDERED])) == [("the",)], "where there is nothing else it has to do"


def test_a_message_is_worth_more_the_more_it_holds_and_the_shorter_it_is():
    assert worth([2], [1.0], 50) > worth([1], [1.0], 50)
    assert worth([1], [1.0], 10) > worth([1], [1.0], 500)
    assert worth([1, 1], [1.0, 1.0], 50) > worth([2, 0], [1.0, 1.0], 50)
    assert worth([1, 0], [5.0, 1.0], 50) > worth([0, 1], [5.0, 1.0], 50)
    assert worth([0], [1.0], 50) == 0


def test_queries_are_spelt_for_each_database():
    wanted = [("max", "page"), ("storm",)]

    assert spell_query("sqlite", wanted, every=True) == '"max page" AND "storm"'
    assert spell_query("sqlite", wanted, every=False) == '"max page" OR "storm"'
    assert spell_query("postgres", wanted, every=True) == "(max <-> page) & (storm)"
    assert spell_query("postgres", wanted, every=False) == "(max <-> page) | (storm)"


@given(st.text())
def test_no_query_holds_a_sign_of_a_query_language(query):
    for phrase in phrases(query):
        for word in phrase:
            assert not set(word) & set("\"'&|!<>():*^-+{}\\ \x00")


def test_marks_tell_owners_and_conversations_apart():
    marks = {
        within("anna"),
        within("boris"),
        within("anna", "talk"),
        within("boris", "talk"),
        within("anna", "x"),
    }

    assert len(marks) == 5
    assert within("anna") in scope("anna", "talk").split()
    assert within("anna", "talk") in scope("anna", "talk").split()
    assert within("a\0b", "c") != within("a", "b\0c")
    assert within("\ud800"), "a name out of JSON can be no text at all"
