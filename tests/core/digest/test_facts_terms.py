import pytest

from refold.core.digest.facts import TermKind, kind_of, terms
from tests.core.digest.conversations import kinds


@pytest.mark.parametrize(
    "token, kind",
    [
        ("src/app/main.py", TermKind.LITERAL),
        ("compute_total", TermKind.LITERAL),
        ("SessionLive", TermKind.LITERAL),
        ("os.path.join", TermKind.LITERAL),
        ("HAT136", TermKind.LITERAL),
        ("/clear", TermKind.LITERAL),
        ("4711", TermKind.NUMBER),
        ("3.14", TermKind.NUMBER),
        ("42", TermKind.SMALL),
        ("JFK", TermKind.NAME),
        ("well-known", TermKind.NAME),
        ("harbour", TermKind.WORD),
        ("Harbour", TermKind.WORD),
    ],
)
def test_a_token_is_known_by_its_shape(token, kind):
    assert kind_of(token) is kind


def test_names_stay_whole_and_their_parts_count_too():
    found = dict(kinds("see `self.config.ignore_paths`, then ../lib/core.py:12"))
    assert found["self.config.ignore_paths"] is TermKind.LITERAL
    assert found["ignore_paths"] is TermKind.PART
    assert found["../lib/core.py"] is TermKind.LITERAL


def test_neighbours_make_phrases_and_stop_words_do_not():
    found = terms("The night boat leaves the harbour")
    assert ("night", "boat") in found.phrases
    assert "the" not in found.single


def test_a_phrase_does_not_reach_over_a_gap():
    assert not terms("alpha          beta").phrases


def test_text_without_spaces_is_read_two_characters_at_a_time():
    found = dict(kinds("请修复foo_bar.py中的错误"))
    assert found["foo_bar.py"] is TermKind.LITERAL
    assert found["修复"] is TermKind.WORD
    assert found["错误"] is TermKind.WORD


def test_blobs_are_no_terms():
    assert not terms("a" * 500)


def test_every_term_counts_once():
    text = "read src/app.py and src/app.py again"
    assert terms(text).single == dict(kinds(text)).keys()
    assert terms(text).phrases == {("read", "src/app.py"), ("src/app.py", "src/app.py")}


@pytest.mark.parametrize("unit", ["a", ".", "/", "a.", "-", "中", "a-", "~/", "x" * 50 + " "])
def test_a_giant_text_is_read_to_its_end(unit):
    text = unit * (1_000_000 // len(unit))  # quadratic work would take a day
    assert "src/last_one.py" in terms(f"{text} src/last_one.py").single
