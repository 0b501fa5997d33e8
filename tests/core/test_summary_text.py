import pytest

from refold.core.digest.ledger import EMPTY, Ledger, merge
from refold.core.summary_checks import check_headings_once
from refold.core.summary_text import MODIFIED, READ, RULES, SAID, KeptText, mechanical, sections
from refold.model.message import assistant, tool, user
from tests.core.conversations import talk
from tests.core.digest.conversations import call, work
from tests.core.digest.ledgers import ledger_of

LEDGER = Ledger(
    read=("a.py",),
    modified=("b.py",),
    rules=("Never reformat.",),
    errors=("error: boom",),
    decisions=("I go with msgspec.",),
    tasks=("write docs",),
)


def test_each_section_has_its_heading_and_entries():
    text = sections(LEDGER, 4_000)
    assert text.startswith(f"{RULES}\n- Never reformat.\n{MODIFIED}\n- b.py\n")
    assert all(entry in text for entry in ("- a.py", "- error: boom", "- I go with msgspec.", "- write docs"))


def test_an_empty_ledger_says_nothing():
    assert sections(EMPTY, 4_000) == ""


def test_what_is_shown_already_is_not_repeated():
    assert "Never reformat." not in sections(
        LEDGER, 4_000, beside=KeptText("Please. Never reformat. Thanks.")
    )


def test_a_file_is_shown_by_a_call_that_does_the_same_with_it():
    ledger = Ledger(modified=("config.py", "tests/config.py"), read=("a.py",))
    kept = [
        assistant("", call("edit_file", path="tests/config.py")),
        assistant("", call("read_file", path="config.py")),
    ]
    assert sections(ledger, 4_000, beside=KeptText.of(kept)) == f"{MODIFIED}\n- config.py\n{READ}\n- a.py"


def test_errors_and_decisions_are_shown_by_their_own_speakers():
    kept = [tool("c", "I go with msgspec.\nerror: boom"), assistant("Still open: write docs")]
    text = sections(LEDGER, 4_000, beside=KeptText.of(kept))
    assert "- I go with msgspec." in text
    assert "boom" not in text
    assert "write docs" not in text


def test_a_message_that_is_a_rule_is_not_said_twice():
    text = sections(Ledger(rules=("Never reformat.",), said=("Never reformat.", "Now do step two.")), 4_000)
    assert text == f"{RULES}\n- Never reformat.\n{SAID}\n- Now do step two."


def test_changes_of_the_task_stay_before_newer_messages():
    said = ("Forget the importer, build the exporter.", *(f"Then do step {n} of it." for n in range(50)))
    text = sections(Ledger(said=said), 2_000)
    assert said[0] in text
    assert said[-1] in text
    assert said[1] not in text


def test_the_newest_files_stay_when_room_is_short():
    many = Ledger(modified=tuple(f"src/module_{n}.py" for n in range(100)))
    text = sections(many, 4_000)
    assert "src/module_99.py" in text
    assert "src/module_0.py" not in text
    assert len(text) <= 4_000 * 0.04


@pytest.mark.feature("O7")
def test_a_mechanical_summary_counts_roles_lists_files_and_keeps_the_previous():
    text = mechanical(talk("u a:x t:x u a"), LEDGER, previous="The user moved to Oslo.")
    assert "2 user, 2 assistant, 1 tool" in text
    assert "- b.py" in text
    assert "- a.py" in text
    assert "The user moved to Oslo." in text


def test_the_first_part_of_a_split_turn_is_counted_apart_and_once():
    first = mechanical(talk("u a"), Ledger(), turn=talk("u a:x t:x"))
    assert (
        first == "[Compacted messages: 1 user, 1 assistant]\n[This turn so far: 1 user, 1 assistant, 1 tool]"
    )
    assert mechanical(talk("u a"), Ledger(), previous=first) == "[Compacted messages: 1 user, 1 assistant]"


def test_a_long_rule_does_not_keep_shorter_ones_out():
    ledger = Ledger(rules=("Never reformat.", f"Always {'run the whole suite ' * 15}first.", "Use tabs."))
    assert sections(ledger, 600) == f"{RULES}\n- Never reformat.\n- Use tabs."


@pytest.mark.feature("O7")
def test_the_lists_of_a_mechanical_summary_can_be_bounded():
    many = Ledger(modified=tuple(f"src/module_{n}.py" for n in range(100)), rules=("Never reformat.",))
    text = mechanical(talk("u a"), many, previous="As before.", room=600)
    assert len(text) < 700
    assert all(said in text for said in ("- Never reformat.", "- src/module_99.py", "As before."))
    assert mechanical(talk("u a"), many, room=0) == "[Compacted messages: 1 user, 1 assistant]"


@pytest.mark.feature("O7")
def test_fifty_mechanical_cycles_keep_rules_files_and_the_first_summary():
    ledger, text = ledger_of([user("Never change the schema.")]), "What a model wrote at first."
    for cycle in range(50):
        messages = work(1, start=cycle)
        ledger = merge(ledger, ledger_of(messages))
        text = mechanical(messages, ledger, previous=text)
        assert check_headings_once(text).passed
    assert "What a model wrote at first." in text
    assert "Never change the schema." in text
    assert all(f"- src/billing/fix_{n}.py" in text for n in range(50))
    assert len(text) < 5_000
