"""A query can never speak the language of a database, and what it finds is weighed by its owner's messages alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from refold.core.search_terms import phrases
from refold.stores.search import CONSIDERED, scope, weigh, within, worth
from refold.stores.sql.search import spell_query


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
