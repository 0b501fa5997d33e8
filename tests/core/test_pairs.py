"""The acceptance cases A1 to A14 for tool pairs, by name."""

import pytest
from msgspec import Raw

from refold.core.pairs import repair
from refold.core.verify import verify
from refold.model.dialect import ANTHROPIC, CHAT, DIALECTS, RESPONSES
from refold.model.message import Message, Origin, Reasoning, Text, ToolCall, ToolResult, assistant, tool, user
from tests.core.conversations import show, talk


def repaired(script, dialect=CHAT, *, as_request=False):
    fixed = repair(talk(script), dialect, as_request=as_request)
    assert not verify(fixed.messages, dialect, as_request=as_request)
    return show(fixed.messages)


def removed(script, dialect=CHAT, **options):
    return [(gone.index, gone.reason) for gone in repair(talk(script), dialect, **options).removed]


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_what_is_sound_is_left_alone(dialect):
    messages = talk("u c:x t:x a u")
    fixed = repair(messages, dialect)
    assert (fixed.messages, fixed.removed, fixed.changed) == (tuple(messages), (), False)
    assert all(kept is given for kept, given in zip(fixed.messages, messages, strict=True))


@pytest.mark.parametrize(
    "script, whole",
    [
        ("t:x t:y a u a", "a u a"),  # a cut after the calls of a batch
        ("t:y a u a", "a u a"),  # a cut inside the results of a batch
        ("a:x,y t:x t:y t:z u", "a:x,y t:x t:y u"),
        ("u a:x t:x a:y u", "u a:x t:x a u"),  # chained calls, the second without its result
    ],
)
def test_a1_no_half_pairs_after_a_cut(script, whole):
    assert repaired(script) == whole


def test_a2_an_id_used_again_in_a_later_turn_survives_twice():
    assert repaired("u a:x t:x u a:x t:x t:q") == "u a:x t:x u a:x t:x"
    assert repaired("u a:x t:x u a:x t:x", ANTHROPIC) == "u a:x t:x u a:x-2 t:x-2"


def test_a2_an_unanswered_call_does_not_steal_the_result_of_a_later_one():
    assert repaired("u a:x u a:x t:x") == "u a u a:x t:x"


def test_a3_of_two_results_in_a_block_one_stays():
    assert repaired("u a:x t:x t:x u") == "u a:x t:x u"
    assert removed("u a:x t:x t:x u") == [(3, "duplicate_result")]


def test_a4_calls_and_results_without_an_id_go():
    messages = [user("go"), assistant("I look", ToolCall("", "look")), tool("", "found"), user("and?")]
    fixed = repair(messages, CHAT)
    assert show(fixed.messages) == "u a u"
    assert [gone.reason for gone in fixed.removed] == ["missing_call_id", "missing_call_id"]


def test_a5_a_partial_batch_leaves_its_neighbours_intact():
    assert repaired("u a:p t:p u a:x,y t:x u a:q t:q") == "u a:p t:p u a:x t:x u a:q t:q"


def test_a6_a_displaced_result_moves_next_to_its_call_in_call_order():
    assert repaired("u a:x,y u t:y t:x a") == "u a:x,y t:x t:y u a"
    assert repaired("u a:x,y t:y u t:x a") == "u a:x,y t:x t:y u a"
    assert removed("u a:x,y t:y u t:x a") == []


def test_a7_a_deep_orphan_is_repaired():
    tail = " ".join(["u a"] * 200)
    assert repaired(f"u t:x a {tail}") == f"u a {tail}"


def test_a8_only_unmatched_calls_go_and_the_text_stays():
    fixed = repair(talk("u a:x,y t:x u"), CHAT)
    assert [call.id for call in fixed.messages[1].calls] == ["x"]
    assert fixed.messages[1].text == "answer 1"


def test_a9_an_assistant_left_empty_is_dropped():
    assert repaired("u c:x u") == "u u"
    assert removed("u c:x u") == [(1, "unanswered_call"), (1, "empty_message")]


def test_a9_a_reply_that_lost_its_calls_does_not_end_a_request():
    assert repaired("u a:x", as_request=True) == "u"
    assert removed("u a:x", as_request=True) == [(1, "unanswered_call"), (1, "unanswered_call")]


def test_a10_a_call_in_flight_survives():
    assert repaired("u t:q a:x,y t:x") == "u a:x,y t:x"
    assert repaired("u t:q a:x,y t:x", as_request=True) == "u a:x t:x"


def test_a10_where_results_may_come_late_an_open_call_waits_wherever_it_is():
    assert repaired("u c:x u t:q", RESPONSES) == "u c:x u"
    assert repaired("u c:x u t:q", RESPONSES, as_request=True) == "u u"


def test_a11_what_is_removed_is_handed_back():
    gone = repair(talk("u t:x a"), CHAT).removed
    assert [(entry.index, entry.what.text) for entry in gone] == [(1, "result 1")]


def test_a12_chained_cuts_leave_no_orphans():
    messages = talk("u a:x,y t:x t:y a u a:z t:z a:w t:w u a")
    for cut in (2, 1, 3):
        messages = list(repair(messages[cut:], CHAT).messages)
        assert not verify(messages, CHAT)


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
@pytest.mark.parametrize("script", ["t:a u c:x,y t:y u t:x t:x r c:z u", "u c:x,x t:x t:x c:x t:x u r u r"])
def test_a14_the_repair_is_a_fixpoint(script, dialect):
    once = repair(talk(script), dialect)
    twice = repair(once.messages, dialect)
    assert (twice.messages, twice.removed, twice.changed) == (once.messages, (), False)


def test_ids_used_twice_in_one_batch_are_told_apart_by_order():
    fixed = repair(talk("u a:x,x t:x t:x u"), CHAT)
    assert show(fixed.messages) == "u a:x,x-2 t:x t:x-2 u"
    assert [message.results[0].text for message in fixed.messages[2:4]] == ["result 2", "result 3"]


def test_malformed_arguments_are_wrapped_and_nothing_of_them_is_lost():
    messages = [user("go"), assistant("", ToolCall("x", "look", '{"path": "a')), tool("x", "found")]
    (_, reply, _) = repair(messages, CHAT).messages
    assert reply.calls[0].arguments == '{"_malformed":"{\\"path\\": \\"a"}'


def test_arguments_that_utf8_cannot_carry_are_wrapped_too():
    messages = [user("go"), assistant("", ToolCall("x", "look", "{\ud800")), tool("x", "found")]
    assert repair(messages, CHAT).messages[1].calls[0].arguments == '{"_malformed":"{?"}'


def test_results_of_a_batch_become_one_message_where_the_dialect_wants_that():
    assert repaired("u a:x,y t:x t:y u", ANTHROPIC) == "u a:x,y t:x,y u"


def test_text_beside_results_stays_when_the_results_go():
    mixed = Message("tool", (ToolResult("q", (Text("old"),)), Text("and hurry")))
    fixed = repair([user("go"), assistant("ok"), mixed], ANTHROPIC)
    assert show(fixed.messages) == "u a u"
    assert fixed.messages[-1].text == "and hurry"


def test_results_stand_before_the_text_of_their_message():
    mixed = Message("tool", (Text("note"), ToolResult("x", (Text("found"),))))
    fixed = repair([user("go"), assistant("", ToolCall("x", "look")), mixed], ANTHROPIC)
    assert [type(part) for part in fixed.messages[2].parts] == [ToolResult, Text]


def test_thinking_that_lost_its_reply_goes_too():
    assert repaired("u r c:x u", RESPONSES, as_request=True) == "u u"
    thinking = Message(
        "assistant", (Reasoning("hm", "s"), Text("so"), Reasoning("then", "s"), ToolCall("x", "look"))
    )
    (_, reply, _) = repair([user("go"), thinking, user("stop")], ANTHROPIC).messages
    assert [type(part) for part in reply.parts] == [Text]


def test_unsigned_thinking_goes_whole():
    thoughts = Message("assistant", (Reasoning("a", "signed"), Reasoning("b"), Text("so")))
    fixed = repair([user("go"), thoughts], ANTHROPIC)
    assert [type(part) for part in fixed.messages[1].parts] == [Text]
    assert [gone.reason for gone in fixed.removed] == ["unsigned_thinking"] * 2


def test_parts_of_the_wrong_role_go_and_are_never_doubled():
    result, call = ToolResult("x", (Text("found"),)), ToolCall("x", "look")
    for messages in (
        [user("go"), Message("assistant", (call, result, Text("so")))],
        [user("go"), assistant("", call), Message("user", (result, Text("so")))],
        [Message("user", (Text("go"), call, Reasoning("hm", "s"))), tool("x", "found")],
    ):
        for dialect in DIALECTS.values():
            fixed = repair(messages, dialect)
            assert not verify(fixed.messages, dialect)
            assert "misplaced_part" in [gone.reason for gone in fixed.removed]
            kept = [part for message in fixed.messages for part in message.parts]
            assert kept.count(result) <= 1


def test_what_is_removed_comes_in_the_order_of_the_messages():
    assert [index for index, _ in removed("u c:p t:q c:z u t:w u")] == [1, 1, 2, 3, 3, 5]


def test_moving_and_renaming_is_a_change_though_nothing_is_removed():
    moved = repair(talk("u a:x u t:x"), CHAT)
    assert (moved.removed, moved.changed) == ((), True)


def test_blank_text_goes_from_a_message_that_says_something_else():
    messages = [user("go"), Message("assistant", (Text(" "), ToolCall("x", "look"))), tool("x", "1")]
    fixed = repair(messages, ANTHROPIC)
    assert fixed.messages[1].parts == (ToolCall("x", "look"),)
    assert [gone.reason for gone in fixed.removed] == ["blank_text"]


def test_a_reply_of_several_things_becomes_several_items():
    messages = [
        user("go"),
        assistant("I look", ToolCall("x", "look"), ToolCall("y", "look")),
        *talk("t:x t:y"),
    ]
    assert show(repair(messages, RESPONSES).messages) == "u a c:x c:y t:x t:y"


def test_ids_are_renamed_within_what_the_dialect_takes():
    long = "functions.read:" + "0" * 60
    fixed = repair(talk(f"u c:{long} t:{long} u c:{long} t:{long} u"), ANTHROPIC)
    ids = [call.id for message in fixed.messages for call in message.calls]
    assert ids == [long.replace(".", "_").replace(":", "_"), "functions_read_" + "0" * 23 + "-2"]
    assert not verify(fixed.messages, ANTHROPIC)


def test_an_edited_message_keeps_its_origin():
    origin = Origin("anthropic", Raw(b'{"role":"user","content":[]}'))
    mixed = Message("tool", (Text("note"), ToolResult("x", (Text("found"),))), origin)
    fixed = repair([user("go"), assistant("", ToolCall("x", "look")), mixed], ANTHROPIC)
    assert fixed.messages[2].origin == Origin("anthropic", origin.raw, edited=True)
    renamed = Message("tool", (ToolResult("x", (Text("found"),)),), origin)
    again = repair([*talk("u c:x t:x u c:x"), renamed], ANTHROPIC)
    assert again.messages[-1].origin == Origin("anthropic", origin.raw, edited=True)


def test_results_for_calls_that_the_provider_holds_stay():
    fixed = repair(talk("t:p u c:x t:x t:q t:x u"), RESPONSES, continues=True)
    assert show(fixed.messages) == "t:p u c:x t:x t:q u"
    assert [gone.reason for gone in fixed.removed] == ["duplicate_result"]


def test_an_id_reused_in_every_turn_costs_no_more_than_a_fresh_one():
    tried = []

    class Id(str):
        __slots__ = ()

        def __hash__(self):
            tried.append(1)
            return super().__hash__()

    for turns in (100, 200):
        tried.clear()
        messages = [
            message
            for _ in range(turns)
            for message in (user("q"), assistant("", ToolCall(Id("c"), "look")), tool("c", "1"))
        ]
        repair(messages, ANTHROPIC)
        per_turn = len(tried) / turns
    assert per_turn < 40


def test_a_result_message_without_a_result_or_a_word_goes():
    messages = [Message("tool", (Text(" "),)), user("go")]
    for dialect in DIALECTS.values():
        fixed = repair(messages, dialect)
        assert show(fixed.messages) == "u"
        assert [gone.reason for gone in fixed.removed] == ["empty_message"]


def test_text_in_a_result_message_without_a_result_is_the_user_s():
    messages = [user("go"), *talk("c:x"), Message("tool", (Text("wait"),)), *talk("c:y t:y")]
    for dialect in (CHAT, ANTHROPIC):
        assert "misplaced_part" in [found.rule for found in verify(messages, dialect)]
        fixed = repair(messages, dialect)
        assert show(fixed.messages) == "u u c:y t:y"
