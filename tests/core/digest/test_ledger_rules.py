import pytest

from refold.core.digest.ledger import MAX_RULE, rules


def found(text):
    return list(rules(text))


def test_rules_are_kept_word_for_word():
    text = "Fix the bug. Never touch the public API: src/api.py stays.\nAnd do not reformat, please. Thanks!\n必须保留注释。"
    assert found(text) == [
        "Never touch the public API: src/api.py stays.",
        "And do not reformat, please.",
        "必须保留注释。",
    ]


@pytest.mark.parametrize(
    "sentence",
    [
        "Please don't rename the tables.",
        "Make sure that the tests pass before you commit.",
        "You can only use the standard library.",
        "Use at most two queries per page.",
        "I want you to ask before every deletion.",
        "Under no circumstances push to main.",
        "From now on answer in Norwegian.",
        "Connect the commands with && or || but never with a newline.",
        "Call `flush(); close()` only when the queue is empty.",
    ],
)
def test_orders_bans_and_limits_are_rules(sentence):
    assert found(f"Hello there. {sentence} Thanks for that.") == [sentence]


@pytest.mark.parametrize(
    "sentence",
    [
        "I don't know my order number.",
        "We don't have it any more.",
        "Must I restart it?",
        "Could you make sure of that?",
        "never mind",
        "It worked yesterday.",
    ],
)
def test_facts_and_questions_are_none(sentence):
    assert found(sentence) == []


@pytest.mark.parametrize(
    "line",
    [
        "# Might not be acceptable, don't crash.",
        "if (x) { return never(); }",
        "x = 'must'",
        "  225\t        # Note that prepare_auth must be last",
        '"""A doc field that is never grouped."""',
        "// always store a list",
    ],
)
def test_code_is_none(line):
    assert found(line) == []


def test_every_point_of_a_list_of_rules_is_a_rule():
    text = "Rules for everything you do here:\n1. No new dependencies.\n2. Keep it working on Python 3.11.\n\n- Tabs, not spaces.\nIt began last week.\n- This is a note."
    assert found(text) == ["No new dependencies.", "Keep it working on Python 3.11.", "Tabs, not spaces."]


def test_a_rule_that_was_wrapped_by_hand_is_whole_again():
    text = "Never touch the public API, which is src/ferrytime/__init__.py and the fields\n   of Sailing and Timetable."
    assert found(text) == [
        "Never touch the public API, which is src/ferrytime/__init__.py and the fields of Sailing and Timetable."
    ]


def test_a_pasted_document_is_no_rule():
    assert found("You must " + "read this " * (MAX_RULE // 10) + "today.") == []
