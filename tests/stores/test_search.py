"""A query can never speak the language of a database, and what it finds is weighed by its owner's messages alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from refold.core.search.query import Term, parse_query, phrases
from refold.stores.search import scope, within
from refold.stores.sql.search import count_positions, spell_match


def test_a_search_is_spelt_for_each_database():
    query = parse_query('"max page" storm -calm')
    terms = [Term((("max", "page"),)), Term((("storm",), ("storms",)))]

    assert spell_match("sqlite", "mark", query, terms) == (
        'scope : mark AND text : (("max page" OR "storm" OR "storms") AND ("max page"))'
    )
    assert spell_match("postgres", "mark", query, terms) == (
        "mark & ((max <-> page) | (storm) | (storms)) & ((max <-> page)) & !((calm))"
    )


class _ReadCounter(list[tuple[tuple[str, ...], int]]):
    reads = 0

    def __iter__(self):
        self.reads += 1
        return super().__iter__()


def test_the_spellings_of_a_misspelt_word_are_not_compared_with_every_message():
    (instead,) = parse_query("harbuor").terms[0].alternatives()
    groups = _ReadCounter([(phrase, 0) for phrase in instead.phrases] + [(("night", "boat"), 1)])
    positions = '{"harbour": [1, 7], "night": [2, 5], "boat": [3, 9]}'
    rows = [("talk", "main", seq, 9, positions, 0.0) for seq in range(50)]

    found = count_positions(rows, groups, 2, lambda _: 0.0)

    assert [one.counts for one in found] == [(2, 1)] * 50
    assert groups.reads == 1  # with one reading for each message, a search held up the event loop for seconds


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
