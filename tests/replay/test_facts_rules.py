from __future__ import annotations

import pytest

from refold.replay.facts import rules


@pytest.mark.parametrize(
    "sentence",
    [
        "Never touch the migrations folder.",
        "Please don't commit to main.",
        "You must answer in French.",
        "From now on use metric units",
        "Do NOT modify: tests, configuration files.",
        "Make sure every function has a test!",
        "The budget is at most 300 dollars.",
    ],
)
def test_an_order_a_ban_or_a_limit_is_a_rule(sentence):
    assert rules(sentence) == (sentence,)


@pytest.mark.parametrize(
    "sentence",
    [
        "I don't know the order number.",
        "Must I sign it?",
        "Thank you for the help.",
        "Never mind.",
        "always " + "word " * 90,
    ],
)
def test_facts_questions_and_pasted_documents_are_none(sentence):
    assert rules(sentence) == ()


def test_each_rule_is_a_sentence_of_its_own_without_its_bullet():
    text = "Hello there. Always run the linter. Thanks!\n- never push on Friday\n2. Always run the linter."

    assert rules(text) == ("Always run the linter.", "never push on Friday")
