"""A window that verification lets pass can be written in its format, and reads back as what it was."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.core.pairs import repair
from refold.core.verify import verify
from refold.model.dialect import DIALECTS
from refold.model.message import Message, Reasoning, Text
from refold.wire import decode_message, encode_message
from tests.property.conversations import broken


def portable(message: Message, dialect) -> Message:
    """Signatures belong to one provider; where a format has no place for them they are left out here."""
    if dialect.signed_thinking:
        return message
    parts = (Reasoning(part.text) if isinstance(part, Reasoning) else part for part in message.parts)
    return Message(message.role, tuple(part for part in parts if part != Reasoning("")))


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
@given(data=st.data())
def test_what_is_verified_can_be_written_and_read(dialect, data):
    messages = [portable(message, dialect) for message in data.draw(broken(dialect))]
    fixed = repair(messages, dialect).messages
    left = {found.rule for found in verify(fixed, dialect)} - {"starts_without_user"}
    assert left == set()
    for message in fixed:
        again = decode_message(encode_message(message, dialect), dialect)
        assert again.role == message.role
        assert said(again) == said(message)


def said(message: Message):
    calls = [(call.id, call.name) for call in message.calls]
    results = [(result.call_id, result.text) for result in message.results]
    return [part.text for part in message.parts if isinstance(part, Text)], calls, results
