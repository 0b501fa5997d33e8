"""What holds for every stage and every conversation."""

import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from refold.core.stage import HANDLE_PATTERN
from refold.core.stages import AnyStage
from refold.core.stages.fit import Fade, Fit, Squeeze
from refold.core.stages.parts import COUNT_MARK
from refold.core.stages.removal import DescribeMedia, DropHalf, DropReasoning, Select
from refold.core.stages.tool_results import Mask, Prune, Supersede, Tiers, Trim
from refold.core.verify import verify
from refold.model.dialect import DIALECTS
from refold.model.message import Message, Reasoning, Text, ToolCall, ToolResult
from refold.wire.request import decode_message, encode_message
from tests.core.conversations import TextCounter
from tests.core.stages.shown_messages import room_for, show_all
from tests.property.conversations import sound

STAGES = {
    "prune": Prune(threshold=500, keep=100),
    "prune none": Prune(threshold=100, policy="keep_none"),
    "prune forced": Prune(policy="keep_all", force=True, keep=10, text="[output of {name}: {handle}]"),
    "mask": Mask(at=0.1),
    "mask counted": Mask(at=0.1, floor=60, mark=COUNT_MARK),
    "tiers": Tiers(keep=0.5, result=120),
    "fade": Fade(base=50),
    "trim": Trim(keep_last_assistants=1, min_chars=300, soft_max=200, soft_head=70, soft_tail=70),
    "fit": Fit(user_share=0.2),
    "fit measured": Fit(user_share=0.2, measured=True, active=True),
    "fit counted": Fit(active=True, mark=COUNT_MARK),
    "select": Select(),
    "select turns": Select(by="turn"),
    "drop half": DropHalf(),
    "squeeze": Squeeze(),
    "squeeze counted": Squeeze(mark=COUNT_MARK),
    "drop reasoning": DropReasoning(),
    "describe media": DescribeMedia(),
    "supersede": Supersede(),
}
EMERGENCIES = {"tiers", "fit measured", "fit counted", "squeeze", "squeeze counted"}
"""They reach into the active turn."""
COUNTED = {"prune", "prune none", "mask counted", "fit counted", "squeeze counted", "trim", "fade"}
"""Their texts are other systems' own."""
ASSEMBLER_S = {"starts_without_user", "ends_with_assistant", "no_messages"}
every_dialect = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
some = settings(max_examples=settings.default.max_examples // 2)


@st.composite
def cases(draw, dialect):
    """A sound conversation with something worth reducing in it, what is protected of it, and the room it has."""
    messages = [draw(grown(message)) for message in draw(sound(dialect))]
    protected = draw(st.integers(0, len(messages)))
    pinned = draw(st.frozensets(st.integers(0, len(messages)), max_size=2))
    tokens = draw(st.sampled_from([-1, 0, 10, 50, 500, 2_000, 10_000, 100_000]))
    return show_all(messages, protected=protected), room_for(tokens, dialect=dialect, pinned=pinned)


@st.composite
def grown(draw, message: Message):
    """The message with text that is long and calls that touch files."""
    times = draw(st.sampled_from([1, 1, 50, 1_000]))
    return message.with_parts(tuple(_grown(part, times) for part in message.parts))


def _grown(part, times):
    match part:
        case Text():
            return structs.replace(part, text=part.text * times)
        case ToolCall():
            arguments = msgspec.json.encode({"path": "a.py", "content": part.arguments * times}).decode()
            return structs.replace(part, name="write" if times > 50 else "read", arguments=arguments)
        case ToolResult():
            return structs.replace(part, parts=tuple(_grown(inner, times) for inner in part.parts))
    return part


def test_every_stage_is_here():
    kinds = {type(stage) for stage in STAGES.values()}
    assert kinds == set(AnyStage.__args__)


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_is_data(name):
    stage = STAGES[name]
    assert msgspec.json.decode(msgspec.json.encode(stage), type=AnyStage) == stage


@every_dialect
@some
@given(data=st.data())
def test_what_was_valid_stays_valid(dialect, data):
    shown, room = data.draw(cases(dialect))
    originals = {item.seq: item.message for item in shown.items}
    for name, stage in STAGES.items():
        after = stage.apply(shown, room).shown
        broken = {found.rule for found in verify(after.messages, dialect)} - ASSEMBLER_S
        assert not broken, name
        for item in after.items:
            assert _thoughts(item.message) in ((), _thoughts(originals[item.seq])), name


def _thoughts(message):
    """A provider takes the thinking of a message as it was, or none of it."""
    return tuple(part for part in message.parts if isinstance(part, Reasoning))


@every_dialect
@some
@given(data=st.data())
def test_a_stage_applied_twice_changes_nothing_more(dialect, data):
    shown, room = data.draw(cases(dialect))
    for name, stage in STAGES.items():
        once = stage.apply(shown, room)
        twice = stage.apply(once.shown, room)
        assert twice.shown == once.shown, name
        assert not twice.edits, name
        assert not twice.removed, name
        assert twice.reason, name


@every_dialect
@some
@given(data=st.data())
def test_protected_and_pinned_messages_are_untouched(dialect, data):
    shown, room = data.draw(cases(dialect))
    for name, stage in STAGES.items():
        result = stage.apply(shown, room)
        after = {item.seq: item for item in result.shown.items}
        for index, item in enumerate(shown.items):
            is_active = index >= shown.protected and name not in EMERGENCIES
            if is_active or item.seq in room.pinned:
                assert after[item.seq] == item, name
        assert sum(seq < shown.protected for seq in after) == result.shown.protected, name


@every_dialect
@some
@given(data=st.data())
def test_nothing_is_lost_or_changed_without_an_edit(dialect, data):
    shown, room = data.draw(cases(dialect))
    seqs = [item.seq for item in shown.items]
    for name, stage in STAGES.items():
        result = stage.apply(shown, room)
        after = {item.seq: item for item in result.shown.items}
        gone = [item.seq for item in result.removed]
        changed = {item.seq for item in shown.items if after.get(item.seq) != item}
        assert {edit.seq for edit in result.edits} == changed, name
        assert sorted([*after, *gone]) == seqs, name
        assert gone == sorted(gone), name
        assert result.edits or result.reason, name
        assert result.shown.tokens == sum(map(TextCounter().message, result.shown.messages)), name


@every_dialect
@some
@given(data=st.data())
def test_every_edit_says_what_changed_and_why(dialect, data):
    shown, room = data.draw(cases(dialect))
    for name, stage in STAGES.items():
        result = stage.apply(shown, room)
        after = {item.seq: item.tokens for item in result.shown.items}
        for edit in result.edits:
            counts = (shown.items[edit.seq].tokens, after.get(edit.seq, 0))
            assert (edit.before, edit.after) == counts, name
            assert edit.handle == f"#m{edit.seq}", name
            assert edit.reason, name


@every_dialect
@some
@given(data=st.data())
def test_own_stubs_name_what_they_hide_and_bring_no_number_along(dialect, data):
    shown, room = data.draw(cases(dialect))
    originals = {item.seq: said(item.message) for item in shown.items}
    for name in STAGES.keys() - COUNTED:
        for item in STAGES[name].apply(shown, room).shown.items:
            before, after = originals[item.seq], said(item.message)
            if before != after:
                assert f"#m{item.seq}" in after, name
                numbers = set(re.findall(r"\d+", re.sub(HANDLE_PATTERN, "", after)))
                assert numbers <= set(re.findall(r"\d+", before)), name


def said(message: Message) -> str:
    """Everything in words."""
    inner = [*(result.text for result in message.results), *(call.arguments for call in message.calls)]
    return "\n".join([message.text, *inner])


@every_dialect
@some
@given(data=st.data())
def test_what_is_left_can_be_sent(dialect, data):
    """On the wire a changed message keeps the fields that nobody knows, and reads back as what it says."""
    shown, room = data.draw(cases(dialect))
    decoded = [sent(message, dialect) for message in shown.messages]
    shown = show_all(decoded, protected=shown.protected)
    for name, stage in STAGES.items():
        for message in stage.apply(shown, room).shown.messages:
            wire = encode_message(message, dialect)
            assert b'"x_extra"' in bytes(wire), name
            assert decode_message(wire, dialect).bare() == message.bare(), name


def sent(message: Message, dialect) -> Message:
    """The message as it comes from the wire, with a field that Refold does not know."""
    parts = tuple(part if dialect.signed_thinking else unsigned(part) for part in message.parts)
    raw = bytes(encode_message(Message(message.role, parts), dialect))
    return decode_message(msgspec.Raw(b'{"x_extra":1,' + raw[1:]), dialect)


def unsigned(part):
    """Signatures are one format's own; the others have no place for them."""
    return structs.replace(part, signature="") if isinstance(part, Reasoning) else part
