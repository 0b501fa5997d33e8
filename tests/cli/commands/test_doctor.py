"""`refold doctor`: damage made by hand is found and explained."""

from __future__ import annotations

import json

import apsw
import pytest

from refold.engine.doctor import RULES

DAMAGES = {
    "I-3": "DELETE FROM message WHERE seq = 5",
    "I-4": "UPDATE message SET body = CAST(replace(CAST(body AS TEXT), 'ferry', 'train') AS BLOB) WHERE seq = 0",
    "I-2": "UPDATE session SET last = last - 1 WHERE last IS NOT NULL",
    "I-5": "UPDATE branch SET session = 'elsewhere'",
    "I-6": "DELETE FROM summary",
    "I-9": "UPDATE compaction SET state = 'running', until = 1",
    "I-10": "UPDATE summary SET body = x'7b22'",
    "I-11": "UPDATE summary SET body = CAST(replace(CAST(body AS TEXT), 'e', 'a') AS BLOB)",
}


def damage(store, statement: str) -> None:
    """As somebody might who edits the database with a tool of their own."""
    connection = apsw.Connection(str(store))
    for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
        connection.execute(f'DROP TRIGGER "{name}"')
    connection.execute(statement)
    connection.close()


def test_a_sound_store_has_no_findings(kept):
    kept("compact", "shifts", "--window", "12000")
    kept("undo", "shifts")
    kept("compact", "shifts", "--window", "14000")
    looked = kept("doctor")

    assert (looked.code, looked.out) == (0, "no findings in 2 conversations\n")
    assert json.loads(kept("doctor", "ferry", "--json").out) == {
        "conversations": 1,
        "rules": RULES,
        "findings": [],
        "held_back": None,
    }


@pytest.mark.parametrize("rule, statement", DAMAGES.items(), ids=DAMAGES)
def test_damage_is_found_and_explained(kept, store, rule, statement):
    kept("compact", "shifts", "--window", "12000")
    damage(store, statement)
    looked = kept("doctor", "shifts")

    assert looked.code == 1
    assert f": {rule}: " in looked.out
    assert f"  rule: {RULES[rule]}\n" in looked.out
    found = json.loads(kept("doctor", "--json").out)["findings"]
    assert rule in {one["rule"] for one in found}
    assert all(one["means"] == RULES[one["rule"]] for one in found)


@pytest.mark.parametrize(
    "fields, what",
    [
        ("body = x'78'", "message 7 cannot be read"),
        ("format = 'klingon'", "message 7 is in a format that is not known"),
    ],
)
def test_a_message_that_cannot_be_read_is_named(kept, store, fields, what):
    damage(store, f"UPDATE message SET {fields} WHERE seq = 7")
    looked = kept("doctor")

    assert looked.code == 1
    assert f": I-10: {what}\n  rule: {RULES['I-10']}\n  hint: restore it from a backup\n" in looked.out


BAD_EDITS = {
    "no JSON": ("x'5b7b'", "cannot be read"),
    "no UTF-8": ("x'5b22ff225d'", "cannot be read"),
    "other fields": ("""'[{"stage": "prune"}]'""", "cannot be read"),
    "a number": ("x'37'", "cannot be read"),
    "an unknown message": (
        """'[{"stage": "prune", "seq": 4000, "before": 9, "after": 1, "reason": "old"}]'""",
        "name message 4000 of ",
    ),
}


@pytest.mark.parametrize("value, what", BAD_EDITS.values(), ids=BAD_EDITS)
def test_edits_that_cannot_be_read_are_named_and_nothing_else_ends(kept, store, value, what):
    kept("compact", "shifts", "--window", "12000")
    (made,) = json.loads(kept("diff", "shifts", "--list", "--json").out)["compactions"]
    damage(store, f"UPDATE compaction SET edits = CAST({value} AS BLOB)")

    looked = kept("doctor")
    assert looked.code == 1
    assert f": I-10: the edits of the compaction {made['id']} {what}" in looked.out
    assert f": I-11: the bytes of the record of the compaction {made['id']} have changed" in looked.out
    assert "2 findings in 2 conversations" in looked.out
    (listed,) = json.loads(kept("diff", "shifts", "--list", "--json").out)["compactions"]
    assert listed == {**made, "edits": None}
    told = kept("diff", "shifts")
    assert (told.code, "refold doctor" in told.err) == (2, True)
    assert kept("show", "shifts").code == kept("context", "shifts").code == 0
    assert json.loads(kept("undo", "shifts", "--json").out)["undone"][0]["id"] == made["id"]


def test_a_checksum_without_its_value_is_found(kept, store):
    damage(store, "UPDATE message SET shown = NULL, shown_digest = zeroblob(32) WHERE seq = 2")
    looked, checked = kept("doctor"), kept("db", "check")

    assert looked.code == checked.code == 1
    assert "I-11" in looked.out
    assert "the shortened form of message 2" in looked.out
    assert "the shortened form of message 2" in checked.out


def test_looking_does_not_end_what_is_stuck(kept, store):
    kept("compact", "shifts", "--window", "12000")
    damage(store, DAMAGES["I-9"])

    assert kept("doctor").out == kept("doctor").out
    assert "I-9" in kept("doctor").out


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE summary SET body = x'22ff22'",
        "UPDATE branch SET notes = x'c1'",
        "UPDATE compaction SET shown = x'00ff'",
        "DELETE FROM session",
    ],
)
def test_what_is_damaged_ends_no_command_without_a_word_and_no_other_conversation(kept, store, statement):
    kept("compact", "shifts", "--window", "12000")
    damage(store, statement)

    assert kept("doctor").code == 1
    assert kept("conversations").code == 0
    for told in (kept("recall", "shifts", "#m1"), kept("diff", "shifts")):
        assert told.code in {0, 2}
        assert "refold doctor" in told.err or told.code == 0
    assert kept("import", "examples/support-chat.anthropic.json", "--as", "new").code == 0


@pytest.mark.parametrize("fields", ["body = x'78'", "format = 'klingon'"])
def test_whoever_comes_to_a_message_that_cannot_be_read_is_told_which_it_is_and_what_to_do(
    kept, store, fields
):
    kept("compact", "shifts", "--window", "12000")
    damage(store, f"UPDATE message SET {fields} WHERE seq = 7")

    for command in (["show"], ["show", "--json"]):
        told = kept(command[0], "shifts", *command[1:])
        assert told.code == 1
        assert "message 7 " in told.out
    told = kept("export", "shifts")
    assert told.code == 1
    assert "message 7 " in told.err
    assert "hint: `refold doctor`" in told.err
    told = kept("recall", "shifts", "#m7")
    assert told.code == 2
    assert told.err.startswith("error: the conversation 'shifts' is damaged: message 7 ")
    assert "hint: run `refold doctor`" in told.err
