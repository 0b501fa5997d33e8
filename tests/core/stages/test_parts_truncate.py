import pytest

from refold.core.stages.parts import COUNT_MARK, HANDLE_MARK, Mark, excerpt, truncate
from tests.core.stages.shown_messages import lines


@pytest.mark.parametrize(
    "length, limit, head, tail",
    [(10_000, 300, 175, 74), (1_000, 500, 315, 135), (1_000, 235, 185, 0)],
)
def test_golden_sizes_of_head_and_tail(length, limit, head, tail):
    text = "a" * (length // 2) + "b" * (length // 2)
    mark = f"\n\n… [truncated: {length} chars exceeded {limit} limit] …\n\n"
    assert truncate(text, limit, COUNT_MARK) == "a" * head + mark + "b" * tail


def test_without_room_for_the_mark_the_first_characters_stay():
    assert truncate("x" * 40, 30, COUNT_MARK) == "x" * 30


def test_without_room_for_the_mark_a_handle_stands_alone():
    assert truncate("x" * 40, 20, HANDLE_MARK, "#m7") == "[… the rest is in #m7]"


@pytest.mark.parametrize("mark", [HANDLE_MARK, COUNT_MARK])
def test_cuts_fall_at_line_ends(mark):
    text = lines(100)
    cut = truncate(text, 1_000, mark, "#m7")
    said = [line for line in cut.splitlines() if line and "…" not in line]
    assert len(cut) <= 1_000
    assert set(said) <= set(text.splitlines())
    assert said[0] == text.splitlines()[0]
    assert said[-1] == text.splitlines()[-1]


def test_no_word_is_cut_where_lines_are_long():
    words = [f"id-{number:06d}" for number in range(2_000)]
    cut = truncate(" ".join(words), 900, HANDLE_MARK, "#m7")
    left = cut.replace("[… the rest is in #m7]", " ").split()
    assert set(left) <= set(words)
    assert 50 < len(left) < 90


def test_what_is_no_word_is_cut_anywhere_but_leaves_no_short_piece():
    assert truncate("x" * 9_000, 1_000, HANDLE_MARK, "#m7").startswith("x" * 600)
    assert truncate("x" * 9_000, 150, HANDLE_MARK, "#m7") == "\n[… the rest is in #m7]\n"


def test_chinese_text_is_cut_between_characters():
    cut = truncate("汉" * 5_000, 1_000, HANDLE_MARK, "#m7")
    assert cut.count("汉") > 900


def test_a_text_that_was_cut_before_is_cut_further_and_keeps_both_ends():
    once = truncate(lines(200), 4_000, HANDLE_MARK, "#m7")
    twice = truncate(once, 1_000, HANDLE_MARK, "#m7")
    assert twice.count("#m7") == 1
    assert twice.startswith("line 0.")
    assert "line 199." in twice


@pytest.mark.parametrize("limit", [10, 40, 100, 300, 999])
@pytest.mark.parametrize("mark", [HANDLE_MARK, COUNT_MARK])
def test_cutting_twice_is_cutting_once(limit, mark):
    once = truncate(lines(50), limit, mark, "#m7")
    assert truncate(once, limit, mark, "#m7") == once


def test_a_text_never_grows():
    assert truncate("short", 3, HANDLE_MARK, "#m7") == "short"


def test_the_mark_may_say_what_it_likes():
    mark = Mark("<{handle} {length} {limit} {kept}>")
    assert mark.spell(handle="#m1", length=10, limit=5, kept=3) == "<#m1 10 5 3>"
    assert excerpt("abcdef", 2, 2, "-", whole_words=False) == "ab-ef"
