import pytest

from refold.core.summary_text import (
    count_repeated,
    headings_once,
    says_something,
    section_span,
    split_section,
)


@pytest.mark.feature("N3")
@pytest.mark.parametrize(
    ("text", "once"),
    [
        ("## Goal\nA\n## Done\nB\n## Goal\nC", "## Goal\nA\nC\n## Done\nB"),
        ("## Goal\nA\n## GOAL:\nB", "## Goal\nA\nB"),
        ("first\n## Goal\nA\n## Goal\nB", "first\n## Goal\nA\nB"),
        ("## A\n### Done\n1\n## B\n### Done\n2\n## A\n### Open\n3\n### Done\n4", "## A\n### Done\n1\n4\n### Open\n3\n## B\n### Done\n2"),
    ],
)  # fmt: skip
def test_what_stands_under_the_second_of_two_headings_moves_under_the_first(text, once):
    assert count_repeated(text)
    assert headings_once(text) == once
    assert not count_repeated(once)


@pytest.mark.feature("N3")
@pytest.mark.parametrize(
    "text",
    [
        "## Goal\nA\n## Done\nB",
        "## A\n### Done\n1\n## B\n### Done\n2",
        "```\n# step\n# step\n```",
        "~~~\n# step\n```\n# step\n~~~",
        "#no heading\n#no heading",
        "#m2 user: yes\n#m2 user: yes",
        " ## Goal\n ## Goal",
    ],
)
def test_what_is_no_heading_twice_stays_as_it_is(text):
    assert headings_once(text) == text
    assert not count_repeated(text)


@pytest.mark.parametrize(("text", "said"), [("## A\n- \n---", False), ("## A\nx", True), ("```\n# x\n```", True), ("修", True)])  # fmt: skip
def test_headings_and_rules_say_nothing(text, said):
    assert says_something(text) is said


@pytest.mark.feature("N3")
@pytest.mark.parametrize(
    "text",
    [
        "OK",
        "Done.",
        "N/A",
        "TODO",
        "(empty)",
        "Here is the checkpoint:",
        "Summary unavailable.",
        "[Summary unavailable]",
        "## Goal\nN/A\n## Progress\n- None.\n**nothing yet**",
        "## 目标\n无",
    ],
)
def test_a_word_in_the_place_of_any_says_nothing(text):
    assert not says_something(text)
    assert says_something(f"{text}\nThe login.")


def test_what_stands_under_a_heading_can_be_taken_out():
    text = "a\n## This Turn\nb\n### Files\nc\n## Goal\nd"
    assert split_section(text, "## This turn:") == ("a\n## Goal\nd", "## This Turn\nb\n### Files\nc")
    assert split_section(text, "## Other") == (text, "")


def test_a_part_is_found_by_its_heading():
    text = "a\n## Files Read:\n- b\n\n### more\n- c\n"
    assert section_span(text, "## Files read") == (2, 3)
    assert section_span(text, "### more") == (5, 6)
    assert section_span(text, "## Errors") is None
