"""Every text is a query, and what it asks for is read from it alone."""

from __future__ import annotations

from datetime import UTC, datetime
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.core.search.query import Date, mark_words, parse_query


def wanted(text: str) -> list[str]:
    return [" ".join(term.phrases[0]) for term in parse_query(text).terms]


def test_stop_words_are_left_out_unless_there_is_nothing_else():
    assert wanted("When did Caroline go to the support group?") == ["caroline", "go", "support", "group"]
    assert wanted("what is that") == ["what", "is", "that"]
    assert wanted("Why don't you") == ["why", "don t", "you"]
    assert wanted("") == wanted(" ?! ") == []


def test_words_have_forms_and_names_numbers_and_paths_do_not():
    query = parse_query("did Maria paint 12 boats in src/app_test.py")
    forms = {term.phrases[0]: {word for phrase in term.phrases for word in phrase} for term in query.terms}

    assert forms["maria",] == {"maria"}
    assert forms["12",] == {"12"}
    assert {"paint", "paints", "painted", "painting"} <= forms["paint",]
    assert {"boat", "boats"} <= forms["boats",]
    assert forms["src", "app", "test", "py"] == {"src", "app", "test", "py"}


def test_the_fields_of_the_language():
    query = parse_query(
        'boat "night train" -storm -"two words" in:"my talk" from:user after:2024-02-29 before:2025'
    )

    assert query.required == (("night", "train"),)
    assert query.excluded == (("storm",), ("two", "words"))
    assert (query.conversation, query.role) == ("my talk", "user")
    assert query.after == datetime(2024, 2, 29, tzinfo=UTC).timestamp()
    assert query.before == datetime(2025, 1, 1, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("text", "date"),
    [
        ("a boat on 7 July, 2023?", Date(7, 2023, 7)),
        ("a boat on July 7th 2023", Date(7, 2023, 7)),
        ("the 7th of July", Date(7, 0, 7)),
        ("boats in June", Date(6)),
        ("boats of may", Date(5)),
        ("March 2023", Date(3, 2023)),
        ("2023-07-07 deploy", Date(7, 2023, 7)),
        ("am 3. März 2021", Date(3, 2021, 3)),
        ("el 3 de marzo de 2021", Date(3, 2021, 3)),
        ("в марте", Date(3)),
    ],
)
def test_a_date_in_plain_words_is_read(text, date):
    query = parse_query(text)

    assert query.dates == (date,)
    (term,) = (term for term in query.terms if term.is_date)
    assert not term.alternatives()
    assert not query.is_dated  # no message is left out


@pytest.mark.parametrize(
    "text",
    ["may I march", "july", "31 February 2023", "in 2023", "app-2023-07-07.log", '"7 July 2023"', "in:july"],
)
def test_other_words_are_no_date(text):
    assert parse_query(text).dates == ()


@pytest.mark.parametrize("words", ["in December 2023", "in December"])
def test_a_date_ends_a_week_later(words):
    near = parse_query(words).nearness

    def at(*day: int) -> float:
        return near(datetime(*day, 12, tzinfo=UTC).timestamp())

    assert at(2023, 12, 1) == at(2023, 12, 31) == at(2023, 11, 30) == 1
    assert 1 > at(2024, 1, 2) > at(2024, 1, 6) > 0.5
    assert at(2024, 1, 9) == at(2023, 11, 29) == 0
    assert parse_query("29 February").nearness(-1e18) == parse_query("boat").nearness(0.0) == 0


@given(st.datetimes(min_value=datetime(1, 1, 1), max_value=datetime(9999, 12, 31)))  # noqa: DTZ001
def test_a_date_is_the_beginning_of_its_day(at):
    day = at.replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=UTC)

    assert (
        parse_query(f"boat after:{day:%Y-%m-%d}".replace(f"{day:%Y}", f"{day.year:04}")).after
        == day.timestamp()
    )


@pytest.mark.parametrize(
    "field", ["before:2023-02-29", "before:soon", "after:2024-13", "from:nobody", "in:", "-rf", "-m"]
)
def test_what_does_not_fit_the_language_is_taken_for_words(field):
    query = parse_query(f"boat {field}")

    assert (query.conversation, query.role, query.is_dated, query.excluded) == ("", "", False, ())


def test_minus_signs_alone_ask_for_all_other_messages():
    query = parse_query('-storm -"night boat"')

    assert (query.terms, query.excluded) == ((), (("storm",), ("night", "boat")))
    assert query.spans == ((-inf, inf),)


@pytest.mark.parametrize(
    ("query", "form"),
    [
        ("wann fuhr das Boot", "boote"),
        ("où sont les bateaux rouges", "rouge"),
        ("¿dónde están los gatos?", "gato"),
        ("onde estão os gatos", "gato"),
        ("dove sono i gatti e la casa", "gatto"),
        ("waar zijn de boten", "boten"),
        ("где мои книги", "книга"),
    ],
)
def test_forms_follow_the_language_of_the_query(query, form):
    assert form in {word for phrase in parse_query(query).phrases() for word in phrase}


def test_words_are_marked_in_every_form():
    text = "Paint! I painted two boats, 数据库."

    assert [text[a:b] for a, b in mark_words(text, parse_query("painting boat 数据库"))] == [
        "Paint", "painted", "boats", "数据库",
    ]  # fmt: skip
    assert [text[a:b] for a, b in mark_words(text, parse_query("paimted"))] == ["painted"]


@given(st.text())
def test_every_text_can_be_parsed_and_holds_no_sign_of_a_query_language(text):
    query = parse_query(text)
    mark_words(text, query)
    for phrase in (*query.phrases(), *query.required, *query.excluded):
        assert phrase
        for word in phrase:
            assert not set(word) & set("\"'&|!<>():*^-+{}\\ \x00")
