"""Where cache breakpoints stand, and what a provider's cache makes of them."""

from __future__ import annotations

import pytest
from msgspec import Raw, structs

from refold.core.assemble import BRIDGE, NO_LEAD, Lead, assemble
from refold.core.fold import FoldedBranch
from refold.core.prompt_cache import NO_SEQ, breakpoint_edits, mark_window, prune_boundary
from refold.core.stage import Room
from refold.core.stages import Prune
from refold.core.verify import verify_window
from refold.core.view import View
from refold.model.dialect import ANTHROPIC, CHAT, RESPONSES
from refold.model.message import Message, Opaque, Reasoning, Text, ToolCall, ToolResult, system, user
from refold.model.window import FixedFields, Tool, Window
from tests.core.conversations import TextCounter, talk

pytestmark = pytest.mark.feature("L9")

RULES = FixedFields(ANTHROPIC, (system("be kind"),))
LOOP = "u a:x t:x a:y t:y a u"
FIVE = Raw(b'{"type":"text","text":"hi","cache_control":{"type":"ephemeral"}}')
HOUR = Raw(b'{"type":"text","text":"hi","cache_control":{"type":"ephemeral","ttl":"1h"}}')
LEAD = Lead((user("what happened before"),))


def shown_as(messages, *, lead: Lead = NO_LEAD) -> FoldedBranch:
    folded = FoldedBranch.of(View.of(messages, ANTHROPIC, TextCounter()))
    return structs.replace(folded, lead=lead)


def pruned(folded: FoldedBranch) -> FoldedBranch:
    """The branch with all tool results before the active turn replaced."""
    shown = folded.items
    result = Prune(force=True, keep=0, text="{name}").apply(shown, Room(10**6, 0, TextCounter(), ANTHROPIC))
    return folded.show(result.shown.items)


def window_of(
    folded: FoldedBranch, last: Window | None = None, *, fixed: FixedFields = RULES, ttl="5m"
) -> Window:
    return mark_window(assemble(fixed, folded.shown.messages(), folded.lead), folded, ttl, last)


def places(window: Window) -> list[tuple[str, int | None]]:
    return [(mark.reason, mark.index) for mark in window.breakpoints]


def marked(text: str, raw: Raw = FIVE) -> Message:
    return Message("user", (Text(text, raw=raw),))


def test_they_stand_after_the_system_prompt_the_summary_the_pruned_and_everything():
    window = window_of(pruned(shown_as(talk(LOOP), lead=LEAD)))
    assert places(window) == [("system prompt", None), ("summary", 0), ("prune boundary", 5), ("tail", 7)]
    assert {mark.ttl for mark in window.breakpoints} == {"5m"}
    assert verify_window(window) == ()


def test_only_the_tail_moves_between_two_compactions():
    folded = pruned(shown_as(talk(LOOP), lead=LEAD))
    before = window_of(folded).breakpoints
    after = window_of(folded.extend([*talk("a"), user("and then?")])).breakpoints
    assert before[:3] == after[:3]
    assert (before[3].index, after[3].index) == (7, 9)


def test_a_summary_in_the_system_prompt_has_its_own_after_the_client_s():
    lead = Lead(block="what happened before")
    window = window_of(shown_as(talk("u"), lead=lead))
    assert [(mark.reason, mark.part) for mark in window.breakpoints] == [
        ("system prompt", 0), ("summary", 1), ("tail", 0)
    ]  # fmt: skip
    alone = window_of(shown_as(talk("u"), lead=lead), fixed=FixedFields(ANTHROPIC))
    assert places(alone) == [("summary", None), ("tail", 0)]


def test_a_bridge_is_no_summary():
    window = window_of(shown_as(talk("a u")))
    assert window.summaries == (user(BRIDGE),)
    assert places(window) == [("system prompt", None), ("tail", 2)]


def test_they_can_be_switched_off_and_are_for_formats_that_have_them():
    folded = shown_as(talk(LOOP))
    assert window_of(folded, ttl=None).breakpoints == ()
    assert {mark.ttl for mark in window_of(folded, ttl="1h").breakpoints} == {"1h"}
    for dialect in (CHAT, RESPONSES):
        assert window_of(folded, fixed=FixedFields(dialect, (system("be kind"),))).breakpoints == ()


def test_thinking_blank_text_and_the_provider_s_own_blocks_carry_none():
    odd = (Text("so"), Text(" "), Opaque("server_tool_use", raw=Raw(b'{"type":"server_tool_use"}')))
    window = window_of(shown_as([user("go"), Message("assistant", (Reasoning("hm", "signed"), *odd))]))
    assert window.breakpoints[-1].index == 1
    assert window.breakpoints[-1].part == 1
    thought = window_of(shown_as([user("go"), Message("assistant", (Reasoning("hm", "signed"),))]))
    assert places(thought)[-1] == ("tail", 0)
    nothing = window_of(shown_as([Message("user", (Text(""),))]), fixed=FixedFields(ANTHROPIC))
    assert nothing.breakpoints == ()


@pytest.mark.parametrize(
    ("taken", "left"),
    [
        (1, ["system prompt", "prune boundary", "tail"]),
        (2, ["system prompt", "tail"]),
        (3, ["tail"]),
        (4, []),
    ],
)
def test_what_the_client_took_is_not_there_for_others(taken: int, left: list[str]):
    fixed = structs.replace(RULES, tools=tuple(Tool(f"tool {at}", raw=FIVE) for at in range(taken)))
    window = window_of(pruned(shown_as(talk(LOOP), lead=LEAD)), fixed=fixed)
    assert [reason for reason, _ in places(window)] == left
    assert verify_window(window) == ()


def test_no_place_is_marked_twice():
    fixed = FixedFields(ANTHROPIC, (Message("system", (Text("hi", raw=FIVE),)),))
    window = window_of(shown_as([user("go"), *talk("a"), marked("hi")]), fixed=fixed)
    assert window.breakpoints == ()
    outer = Raw(b'{"type":"tool_result","tool_use_id":"x","content":[' + bytes(FIVE) + b"]}")
    result = Message("tool", (ToolResult("x", (Text("hi", raw=FIVE),), raw=outer),))
    inside = window_of(shown_as([*talk("u a:x"), result]))
    assert places(inside) == [("system prompt", None)]


def test_where_the_provider_marks_the_end_itself_the_tail_is_taken():
    fixed = structs.replace(RULES, automatic="5m")
    folded = pruned(shown_as(talk(LOOP), lead=LEAD))
    window = window_of(folded, fixed=fixed, ttl="5m")
    assert [reason for reason, _ in places(window)] == ["system prompt", "summary", "prune boundary"]
    assert verify_window(window) == ()
    only = window_of(shown_as((), lead=LEAD), fixed=fixed, ttl="1h")
    assert places(only) == [("system prompt", None)]


def test_a_longer_time_never_comes_after_a_shorter_one():
    folded = shown_as([user("go"), *talk("a"), marked("hi", HOUR), *talk("a u")])
    assert [mark.ttl for mark in window_of(folded, ttl="5m").breakpoints] == ["1h", "5m"]
    folded = shown_as([user("go"), *talk("a"), marked("hi"), *talk("a u")])
    assert [mark.ttl for mark in window_of(folded, ttl="1h").breakpoints] == ["1h", "5m"]
    early = structs.replace(RULES, tools=(Tool("look", raw=FIVE),))
    assert {mark.ttl for mark in window_of(folded, fixed=early, ttl="1h").breakpoints} == {"5m"}
    late = structs.replace(RULES, automatic="1h")
    for messages in (talk(LOOP), [Message("user", (Text(""),))]):
        assert {mark.ttl for mark in window_of(shown_as(messages), fixed=late).breakpoints} == {"1h"}


@pytest.mark.parametrize("ttl", ["5m", None])
def test_of_too_many_of_the_client_s_own_the_newest_stay(ttl):
    messages = [message for number in range(6) for message in (marked(f"question {number}"), *talk("a"))]
    folded = shown_as([*messages, user("go")])
    window = window_of(folded, ttl=ttl)
    kept = [b"cache_control" in bytes(message.parts[0].raw or b"") for message in window.messages[:-1:2]]
    assert kept == [False, False, True, True, True, True]
    assert verify_window(window) == ()
    assert [(edit.stage, edit.seq) for edit in breakpoint_edits(window, folded)] == [
        ("cache", 0),
        ("cache", 2),
    ]
    assert folded.shown.messages() == folded.branch.messages()


def test_one_inside_of_a_result_is_left_out_as_well():
    raw = Raw(b'{"type":"tool_result","tool_use_id":"x","content":[' + bytes(FIVE) + b'],"y":1}')
    result = Message("tool", (ToolResult("x", (Text("hi", raw=FIVE),), raw=raw),))
    window = window_of(shown_as([*talk("u a:x"), result, *(marked("hi") for _ in range(4))]))
    assert verify_window(window) == ()
    assert [part.raw for part in window.messages[2].results[0].parts] == [Raw(b'{"type":"text","text":"hi"}')]


def test_what_is_marked_in_system_prompt_and_tools_is_never_taken_away():
    fixed = structs.replace(RULES, tools=(Tool("look", raw=FIVE),) * 5)
    folded = shown_as([marked("hi")])
    window = window_of(folded, fixed=fixed)
    assert window.fixed == fixed
    assert b"cache_control" not in bytes(window.messages[0].parts[0].raw or b"")
    assert [found.rule for found in verify_window(window)] == ["too_many_breakpoints"]


def test_every_breakpoint_is_an_edit():
    folded = pruned(shown_as(talk(LOOP), lead=LEAD))
    edits = breakpoint_edits(window_of(folded, ttl="1h"), folded)
    assert [(edit.stage, edit.seq, edit.handle) for edit in edits] == [
        ("cache", NO_SEQ, ""), ("cache", NO_SEQ, ""), ("cache", 4, "#m4"), ("cache", 6, "#m6")
    ]  # fmt: skip
    assert all(edit.before == edit.after for edit in edits)
    assert edits[0].reason == "cache breakpoint for 1h: system prompt"


def test_the_prune_boundary_is_after_the_last_message_shown_otherwise():
    folded = shown_as(talk(LOOP))
    assert prune_boundary(folded) == 0
    once = pruned(folded)
    assert prune_boundary(once) == 5
    grown = once.extend(talk("a:z t:z a u"))
    assert prune_boundary(grown) == 5
    assert prune_boundary(pruned(grown)) == 9
    assert prune_boundary(once.show(once.items.items[5:])) == 0
    copies = [structs.replace(item, message=structs.replace(item.message)) for item in folded.items.items]
    assert prune_boundary(folded.show(copies)) == 0


def batch(number: int, calls: int) -> list[Message]:
    """A reply of many calls at once, and their results."""
    ids = [f"call-{number}-{at}" for at in range(calls)]
    reply = (Reasoning("hm", "signed"), Text("look"), *(ToolCall(name, "look") for name in ids))
    return [
        Message("assistant", reply),
        Message("tool", tuple(ToolResult(name, (Text("seen"),)) for name in ids)),
    ]


class Provider:
    """A cache as Anthropic describes it: written at breakpoints only, looked for 20 blocks back from each."""

    def __init__(self) -> None:
        self.cached: set[tuple[str, ...]] = set()

    def read(self, window: Window) -> int:
        """Send a window; how many of its blocks came from the cache."""
        blocks, marks = [], []
        for index, message in enumerate((*window.system, *window.summaries, *window.messages)):
            at = None if index < len(window.system) else index - len(window.system)
            for part, said in enumerate(message.bare().parts):
                blocks.append(f"{message.role} {said}")
                if any((mark.index, mark.part) == (at, part) for mark in window.breakpoints):
                    marks.append(len(blocks))
        assert len(marks) <= 4
        seen = (end for mark in marks for end in range(mark, max(0, mark - 20), -1))
        found = max((end for end in seen if tuple(blocks[:end]) in self.cached), default=0)
        self.cached.update(tuple(blocks[:mark]) for mark in marks)
        return found


def blocks(window: Window) -> int:
    return sum(len(message.parts) for message in (*window.system, *window.summaries, *window.messages))


@pytest.mark.parametrize("calls", [1, 8, 9, 10, 30])
def test_every_call_reads_all_that_the_one_before_has_sent(calls: int):
    provider, folded, last = Provider(), pruned(shown_as(talk(LOOP), lead=LEAD)), None
    for number in range(5):
        window = window_of(folded, last)
        assert provider.read(window) == (blocks(last) if last else 0)
        folded, last = folded.extend(batch(number, calls)), window


def test_what_was_cached_is_marked_again_only_where_it_is_out_of_sight():
    folded = pruned(shown_as(talk(LOOP), lead=LEAD))
    first = window_of(folded)
    near = window_of(folded.extend(batch(1, 8)), first)
    assert [reason for reason, _ in places(near)] == ["system prompt", "summary", "prune boundary", "tail"]
    far = window_of(folded.extend(batch(1, 9)), first)
    assert places(far) == [("system prompt", None), ("prune boundary", 5), ("cached before", 7), ("tail", 9)]
    again = window_of(folded.extend([*batch(1, 9), *talk("a u")]), far)
    assert [reason for reason, _ in places(again)] == ["system prompt", "summary", "prune boundary", "tail"]


def test_a_pruning_loses_nothing_before_the_old_boundary():
    provider, folded = Provider(), pruned(shown_as(talk(LOOP), lead=LEAD))
    grown = folded.extend([*talk("a u"), *batch(1, 30), *talk("a u")])
    last = window_of(grown)
    provider.read(last)
    after = window_of(pruned(grown), last)
    assert provider.read(after) == 1 + 1 + sum(len(message.parts) for message in folded.shown.messages(0, 5))
    assert provider.read(window_of(pruned(grown), after)) == blocks(after)


def test_a_new_summary_keeps_the_system_prompt():
    provider, folded = Provider(), pruned(shown_as(talk(LOOP), lead=LEAD))
    last = window_of(folded)
    provider.read(last)
    later = structs.replace(folded, lead=Lead((user("what happened until now"),)))
    assert provider.read(window_of(later, last)) == 1


def test_nothing_is_cached_where_system_prompt_or_tools_have_changed():
    folded = shown_as(talk(LOOP))
    last = window_of(folded)
    grown, other = folded.extend(batch(1, 30)), FixedFields(ANTHROPIC, (system("be strict"),))
    assert "cached before" in dict(places(window_of(grown, last)))
    assert "cached before" not in dict(places(window_of(grown, last, fixed=other)))
    told = structs.replace(grown, lead=Lead(block="what happened before"))
    assert "cached before" not in dict(places(window_of(told, last)))
