import pytest

from refold.core.digest.terms import Kind, distinct, kind_of, terms


@pytest.mark.parametrize(
    "token, kind",
    [
        ("src/app/main.py", Kind.LITERAL),
        ("compute_total", Kind.LITERAL),
        ("SessionLive", Kind.LITERAL),
        ("os.path.join", Kind.LITERAL),
        ("HAT136", Kind.LITERAL),
        ("/clear", Kind.LITERAL),
        ("4711", Kind.NUMBER),
        ("3.14", Kind.NUMBER),
        ("42", Kind.SMALL),
        ("JFK", Kind.NAME),
        ("well-known", Kind.NAME),
        ("harbour", Kind.WORD),
        ("Harbour", Kind.WORD),
    ],
)
def test_a_token_is_known_by_its_shape(token, kind):
    assert kind_of(token) is kind


def test_names_stay_whole_and_their_parts_count_too():
    found = dict(terms("see `self.config.ignore_paths`, then ../lib/core.py:12"))
    assert found["self.config.ignore_paths"] is Kind.LITERAL
    assert found["ignore_paths"] is Kind.PART
    assert found["../lib/core.py"] is Kind.LITERAL


def test_neighbours_make_phrases_and_stop_words_do_not():
    found = dict(terms("The night boat leaves the harbour"))
    assert found["night boat"] is Kind.PHRASE
    assert "the" not in found


def test_a_phrase_does_not_reach_over_a_gap():
    assert "alpha beta" not in dict(terms("alpha          beta"))


def test_text_without_spaces_is_read_two_characters_at_a_time():
    found = dict(terms("请修复foo_bar.py中的错误"))
    assert found["foo_bar.py"] is Kind.LITERAL
    assert found["修复"] is Kind.WORD
    assert found["错误"] is Kind.WORD


def test_blobs_are_no_terms():
    assert list(terms("a" * 500)) == []


def test_distinct_terms_are_those_of_the_text():
    text = "read src/app.py and src/app.py again"
    assert distinct(text) == {term for term, _ in terms(text)}


@pytest.mark.parametrize("unit", ["a", ".", "/", "a.", "-", "中", "a-", "~/", "x" * 50 + " "])
def test_a_giant_text_is_read_to_its_end(unit):
    text = unit * (1_000_000 // len(unit))  # quadratic work would take a day
    assert ("src/last_one.py", Kind.LITERAL) in terms(f"{text} src/last_one.py")
