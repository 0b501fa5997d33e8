"""What must hold for every preset, conversation and window."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.core.presets import PRESETS
from refold.core.verify import verify_window
from refold.model.dialect import DIALECTS
from refold.model.errors import BudgetError, DoesNotFit
from refold.model.message import Message, Text, ToolResult
from tests.engine.conversations import memory, size_of
from tests.property.conversations import sound

is_thorough = settings.default.max_examples > 100
few = settings(max_examples=settings.default.max_examples // (1 if is_thorough else 3))
"""For each of the 18 pairs of a preset and a dialect: ninety examples in all in the fast run."""


def longer(message: Message, times: int) -> Message:
    """The same message with more to say, so that windows fill."""
    parts = []
    for part in message.parts:
        match part:
            case Text():
                parts.append(Text((part.text + " more of the same\n") * times))
            case ToolResult():
                inner = tuple(Text((text.text + " output line\n") * times) for text in part.parts)
                parts.append(ToolResult(part.call_id, inner))
            case _:
                parts.append(part)
    return Message(message.role, tuple(parts))


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
@few
@given(data=st.data(), window=st.integers(1, 3_000))
def test_every_context_is_valid_and_fits_or_there_is_a_typed_error(preset, dialect, data, window):
    messages = [longer(message, data.draw(st.integers(1, 12))) for message in data.draw(sound(dialect))]
    try:
        talk = memory(preset, window=window, dialect=dialect)
    except BudgetError:
        return
    for message in messages:
        talk.add(message)
        if message.role == "assistant" or talk.folded.branch.progress.open_calls:
            continue
        try:
            sent = talk.context()
        except DoesNotFit:
            continue
        assert size_of(sent) <= window
        assert verify_window(sent) == ()
    assert talk.folded.branch.messages() == tuple(messages)
    while talk.undo():
        pass
    assert talk.folded.shown.messages() == tuple(messages)
    assert not talk.folded.summaries
