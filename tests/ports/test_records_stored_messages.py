"""A stored message is read in one way, and a damaged one is an error that names it."""

from __future__ import annotations

import pickle

import pytest

from refold.model.errors import Damaged
from refold.ports.records import Head, StoredMessage, read_body, read_stored, read_with_shown
from tests.damage import BAD_BODIES

HEAD = Head(owner="anna", conversation="tides", branch="b")
GOOD = b'{"role":"user","content":"hello"}'


def stored(body: bytes = GOOD, **fields: object) -> StoredMessage:
    return StoredMessage(**{"seq": 3, "role": "user", "format": "chat", "body": body, **fields})


def test_a_message_is_read_with_the_form_in_which_it_was_shown():
    shorter = b'{"role":"user","content":"hel"}'
    message, shown = read_with_shown(stored(shown=shorter), HEAD)

    assert (message.text, shown.text) == ("hello", "hel")
    assert read_with_shown(stored(), HEAD) == (read_stored(stored(), HEAD),) * 2


def test_a_message_without_content_is_none():
    assert read_stored(stored(b""), HEAD) is None


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES)
@pytest.mark.parametrize("field", ["body", "shown"])
def test_bytes_that_are_no_message_are_damage_that_is_named(field, body):
    with pytest.raises(Damaged) as told:
        read_stored(stored(**{field: body}), HEAD)

    error = pickle.loads(pickle.dumps(told.value))
    assert (error.conversation, error.seq, error.what) == ("tides", 3, "message 3 cannot be read")
    assert error.message == "the conversation 'tides' is damaged: message 3 cannot be read"
    assert "refold doctor" in error.hint


@pytest.mark.parametrize(
    ("wire_format", "what"),
    [
        ("klingon", "message 3 is in a format that is not known"),
        ("anthropic", "message 3 is not in the format of its conversation"),
    ],
)
def test_a_message_of_another_format_is_damage(wire_format, what):
    with pytest.raises(Damaged) as told:
        read_stored(stored(format=wire_format), HEAD)

    assert told.value.what == what


def test_bytes_alone_are_read_in_the_same_way():
    assert read_body(GOOD, "chat").text == "hello"
    for body, wire_format in ((b"x", "chat"), (GOOD, "klingon")):
        with pytest.raises(Damaged):
            read_body(body, wire_format)
