"""What must hold for every conversation, in every dialect."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.core.assemble import Lead, assemble
from refold.core.cut import pair_safe
from refold.core.pairs import repair
from refold.core.verify import verify, verify_window
from refold.core.view import View
from refold.model.dialect import DIALECTS
from refold.model.message import Message, Text, ToolCall, ToolResult, user
from refold.model.window import FixedFields
from tests.core.conversations import TextCounter
from tests.property.conversations import broken, sound

every_dialect = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
NOT_ABOUT_PAIRS = {"starts_without_user", "ends_with_assistant", "no_messages"}
"""The assembler's rules: a repair works on a part of a conversation, which may begin and end anywhere."""


def rules(violations):
    return {found.rule for found in violations} - NOT_ABOUT_PAIRS


@every_dialect
@given(data=st.data())
def test_generated_conversations_are_sound(dialect, data):
    assert not verify(data.draw(sound(dialect)), dialect)


@every_dialect
@given(data=st.data(), as_request=st.booleans())
def test_a_repaired_conversation_breaks_no_rule(dialect, data, as_request):
    messages = data.draw(broken(dialect))
    fixed = repair(messages, dialect, as_request=as_request)
    assert rules(verify(fixed.messages, dialect, as_request=as_request)) == set()


@every_dialect
@given(data=st.data(), as_request=st.booleans())
def test_the_repair_is_a_fixpoint(dialect, data, as_request):
    once = repair(data.draw(broken(dialect)), dialect, as_request=as_request)
    twice = repair(once.messages, dialect, as_request=as_request)
    assert twice.messages == once.messages
    assert not twice.removed


@every_dialect
@given(data=st.data(), as_request=st.booleans())
def test_nothing_is_dropped_silently(dialect, data, as_request):
    messages = data.draw(broken(dialect))
    fixed = repair(messages, dialect, as_request=as_request)
    kept = Counter(piece for message in fixed.messages for piece in pieces(message))
    gone = Counter(piece for removed in fixed.removed for piece in pieces(removed.what))
    assert kept + gone == Counter(piece for message in messages for piece in pieces(message))


@every_dialect
@given(data=st.data())
def test_every_cut_and_repair_passes_verification(dialect, data):
    messages = data.draw(sound(dialect))
    for cut in range(len(messages) + 1):
        tail = repair(messages[cut:], dialect).messages
        window = assemble(FixedFields(dialect), tail, Lead((user("what happened before"),)))
        assert rules(verify_window(window)) - {"unanswered_call", "dangling_reasoning"} == set()
        assert rules(verify_window(window, as_request=False)) == set()


@every_dialect
@given(data=st.data())
def test_a_pair_safe_cut_needs_no_repair(dialect, data):
    messages = data.draw(sound(dialect))
    view = View.of(messages, dialect, TextCounter())
    for wanted in range(len(messages) + 1):
        cut = pair_safe(view, wanted)
        assert cut <= wanted
        assert not repair(messages[cut:], dialect).removed
        assert not repair(messages[:cut], dialect, as_request=False).removed


@every_dialect
@given(data=st.data())
def test_a_view_built_message_by_message_equals_one_built_at_once(dialect, data):
    messages = data.draw(broken(dialect))
    at_once = View.of(messages, dialect, TextCounter(), key=b"owner")
    step_by_step = View(dialect, TextCounter(), b"owner")
    for message in messages:
        step_by_step = step_by_step.append(message)
    assert step_by_step == at_once
    assert step_by_step.tokens == at_once.tokens
    assert list(step_by_step.turn_starts) == list(at_once.turn_starts)


@every_dialect
@given(data=st.data(), as_request=st.booleans())
def test_a_view_knows_the_same_violations_as_a_full_verification(dialect, data, as_request):
    messages = data.draw(broken(dialect))
    view = View.of(messages, dialect, TextCounter())
    assert view.violations(as_request=as_request) == verify(messages, dialect, as_request=as_request)
    size = data.draw(st.integers(0, len(messages)))
    prefix = view.prefix(size)
    assert prefix.violations(as_request=as_request) == verify(messages[:size], dialect, as_request=as_request)


@every_dialect
@given(data=st.data())
def test_forks_of_a_view_do_not_disturb_each_other(dialect, data):
    messages = data.draw(broken(dialect))
    others = data.draw(broken(dialect))
    at = data.draw(st.integers(0, len(messages)))
    view = View.of(messages, dialect, TextCounter())
    fork = view.prefix(at).extend(others)
    assert fork == View.of([*messages[:at], *others], dialect, TextCounter())
    assert view == View.of(messages, dialect, TextCounter())


def pieces(what):
    """What must not get lost, apart from ids and argument wrapping, which a repair may change."""
    if isinstance(what, Message):
        return [piece for part in what.parts for piece in pieces(part)]
    match what:
        case Text():
            return [("text", what.text)] if what.text.strip() else []
        case ToolCall():
            return [("call", what.name)]
        case ToolResult():
            return [("result", what.text)]
    return [(type(what).__name__, str(getattr(what, "text", "")))]
