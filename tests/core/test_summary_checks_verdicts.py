import pytest

from refold.core.summary_checks import (
    check_headings_once,
    check_says_something,
    check_summary,
    is_smaller,
    keeps_facts,
    passes,
)


@pytest.mark.parametrize("text", ["", "  \n\t", "## Goal\n## Progress\n", "---\n***", "# A\n\n- \n"])
def test_a_summary_that_says_nothing_fails(text):
    assert not check_says_something(text).passed


@pytest.mark.parametrize("text", ["fixed it", "## Goal\nfix it", "- a.py", "修复了"])
def test_a_summary_that_says_something_passes(text):
    assert check_says_something(text).passed


@pytest.mark.parametrize("tokens, source, passed", [(99, 100, True), (100, 100, False), (101, 100, False)])
def test_a_summary_must_be_smaller_than_its_source(tokens, source, passed):
    assert is_smaller(tokens, source).passed is passed


def test_headings_stand_there_once():
    assert check_headings_once("## Goal\nx\n## Done\ny").passed
    verdict = check_headings_once("## Goal\nx\n## Goal\ny")
    assert not verdict.passed
    assert "x" not in verdict.reason


@pytest.mark.parametrize("text", ["## A\n### Done\nx\n## B\n### Done\ny", "```\n# step\n# step\n```"])
def test_smaller_headings_and_code_may_repeat_themselves(text):
    assert check_headings_once(text).passed


def test_facts_that_must_stay_are_looked_for_word_for_word():
    assert keeps_facts("edit src/a.py now", ["src/a.py"]).passed
    assert not keeps_facts("edit src/a.pyc now", ["src/a.py"]).passed
    assert keeps_facts("edit it", ["src/a.py"]).reason == "1 facts that had to stay are missing"


def test_all_checks_at_once():
    good = check_summary("## Goal\nfix src/a.py", tokens=8, source_tokens=80, must_keep=["src/a.py"])
    assert passes(good)
    assert [verdict.check for verdict in good] == [
        "says_something",
        "is_smaller",
        "headings_once",
        "keeps_facts",
    ]
    assert not passes(check_summary("", tokens=0, source_tokens=80))
