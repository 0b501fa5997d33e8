import msgspec
import pytest

from refold.core.verify import verify, verify_fit, verify_window
from refold.model.dialect import ANTHROPIC, CHAT, DIALECTS, RESPONSES
from refold.model.message import (
    Image,
    Message,
    Opaque,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    assistant,
    tool,
    user,
)
from refold.model.window import FixedFields, Tool, Window
from tests.core.conversations import talk


def broken(messages, dialect=CHAT, *, as_request=False):
    return [(found.rule, found.index) for found in verify(messages, dialect, as_request=as_request)]


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
@pytest.mark.parametrize("script", ["u", "u a u", "u c:x t:x", "u c:x t:x a u"])
def test_a_sound_request_breaks_no_rule(script, dialect):
    assert broken(talk(script), dialect, as_request=True) == []


@pytest.mark.parametrize(
    "script, dialect, expected",
    [
        ("u t:x", CHAT, [("orphan_result", 1)]),
        ("u a:x u", CHAT, [("unanswered_call", 1)]),
        ("u a:x,y t:x u", CHAT, [("unanswered_call", 1)]),
        ("u a:x t:x t:x", CHAT, [("duplicate_result", 3)]),
        ("u a:x u t:x", CHAT, [("unanswered_call", 1), ("orphan_result", 3)]),
        ("u c:x u t:x", RESPONSES, []),  # this format finds a result by its call id, wherever it stands
        ("u a:x t:x u a:x t:x", CHAT, []),
        ("u a:x t:x u a:x t:x", ANTHROPIC, [("duplicate_call_id", 4)]),
        ("u a:x,x t:x t:x", CHAT, [("duplicate_call_id", 1)]),
        ("u a:x,y t:x t:y", ANTHROPIC, [("split_results", 3)]),
        ("a u", ANTHROPIC, [("starts_without_user", 0)]),
        ("s u", ANTHROPIC, [("system_without_user", 0), ("system_without_reply", 0)]),
        ("u s a u s", ANTHROPIC, []),
        ("u c:x t:x s a u", ANTHROPIC, []),
        ("u s u", ANTHROPIC, [("system_without_reply", 1)]),
        ("u a s", ANTHROPIC, [("system_without_user", 2)]),
        ("u s s a", ANTHROPIC, [("system_without_reply", 1), ("system_without_user", 2)]),
        ("u s u a s s", CHAT, []),
        ("u s u a s s", RESPONSES, []),
        ("u r u", RESPONSES, [("dangling_reasoning", 1)]),
        ("u r u", ANTHROPIC, [("dangling_reasoning", 1)]),
        ("u r c:x t:x", RESPONSES, []),
    ],
)
def test_structure(script, dialect, expected):
    assert broken(talk(script), dialect) == expected


def test_a_role_that_the_format_does_not_have():
    rule = Message("developer", (Text("be brief"),))
    assert broken([user("go"), rule], ANTHROPIC) == [("illegal_role", 1)]
    assert broken([user("go"), rule], CHAT) == []


@pytest.mark.parametrize(
    "script, expected",
    [
        ("", [("no_messages", None)]),
        ("u a:x", [("unanswered_call", 1)]),
        ("u a:x,y t:x", [("unanswered_call", 1)]),
    ],
)
def test_a_transcript_may_stop_where_a_request_must_not(script, expected):
    assert broken(talk(script)) == []
    assert broken(talk(script), as_request=True) == expected


def test_the_assistant_has_the_last_word_only_where_the_provider_allows_it():
    assert broken(talk("u a"), ANTHROPIC, as_request=True) == [("ends_with_assistant", 1)]
    assert broken(talk("u a"), CHAT, as_request=True) == []
    paused = Message("assistant", (Text("searching"), Opaque("server_tool_use", raw=msgspec.Raw(b"{}"))))
    assert broken([user("go"), paused], ANTHROPIC, as_request=True) == []


def test_a_result_may_answer_a_call_that_only_the_provider_holds():
    messages = talk("t:x u")
    assert [found.rule for found in verify(messages, RESPONSES)] == ["orphan_result"]
    assert verify(messages, RESPONSES, continues=True) == ()


def test_reasoning_at_the_end_of_a_request_waits_for_its_reply():
    assert broken(talk("u r"), RESPONSES) == []
    assert broken(talk("u r"), RESPONSES, as_request=True) == [("dangling_reasoning", 1)]


@pytest.mark.parametrize("message", [Message("user", ()), user("  \n"), Message("assistant", ())])
def test_an_empty_message(message):
    assert broken([message]) == [("empty_message", 0)]


def test_calls_and_results_without_an_id():
    messages = [user("go"), assistant("", ToolCall("", "look")), tool("", "found")]
    assert broken(messages) == [("missing_call_id", 1), ("missing_call_id", 2)]


@pytest.mark.parametrize(
    "arguments, chat, anthropic",
    [
        ("{}", False, False),
        ('{"a": [1]}', False, False),
        ("[1]", False, True),
        ('"text"', False, True),
        ("", False, False),  # no arguments at all: an ordinary call
        (" ", False, False),
        ('{"a": ', True, True),
        ("\ud800", True, True),
        ("[" * 100_000, True, True),
    ],
)
def test_arguments(arguments, chat, anthropic):
    messages = [user("go"), assistant("", ToolCall("x", "look", arguments)), tool("x", "found")]
    assert bool(broken(messages, CHAT)) is chat
    assert bool(broken(messages, ANTHROPIC)) is anthropic


def test_a_custom_tool_takes_plain_text():
    assert (
        broken([user("go"), assistant("", ToolCall("x", "sql", "select 1", "custom")), tool("x", "1")]) == []
    )


def test_parts_in_the_wrong_place():
    messages = [
        Message("user", (Text("go"), ToolCall("x", "look"))),
        Message("user", (ToolResult("x", (Text("found"),)),)),
        Message("tool", (Text("and"), ToolResult("y", (Text("found"),)))),
    ]
    assert [index for rule, index in broken(messages, ANTHROPIC) if rule == "misplaced_part"] == [0, 1, 2]


def test_things_that_need_an_item_of_their_own():
    text_and_call = Message("assistant", (Text("I look"), ToolCall("x", "look")))
    two_results = Message("tool", (ToolResult("x", (Text("1"),)), ToolResult("y", (Text("2"),))))
    assert broken([user("go"), text_and_call, tool("x", "1")], RESPONSES) == [("misplaced_part", 1)]
    assert broken([user("go"), text_and_call, tool("x", "1")], CHAT) == []
    both = Message("assistant", (ToolCall("x", "look"), ToolCall("y", "look")))
    assert broken([user("go"), both, two_results], CHAT) == [("misplaced_part", 2)]
    assert broken([user("go"), both, two_results], ANTHROPIC) == []


def test_images_in_results_only_where_the_format_has_them():
    seen = Message("tool", (ToolResult("x", (Image(data="AAAA"),)),))
    assert broken([user("go"), *talk("c:x"), seen], CHAT) == [("misplaced_part", 2)]
    assert broken([user("go"), *talk("c:x"), seen], ANTHROPIC) == []


@pytest.mark.parametrize(
    "call_id, dialect, legal",
    [
        ("functions.read:0", CHAT, True),
        ("functions.read:0", ANTHROPIC, False),
        ("toolu_01-a", ANTHROPIC, True),
        ("x" * 64, RESPONSES, True),
        ("x" * 65, RESPONSES, False),
    ],
)
def test_call_ids(call_id, dialect, legal):
    found = broken(talk(f"u c:{call_id} t:{call_id}"), dialect)
    assert found == ([] if legal else [("bad_call_id", 1)])


def test_blank_text_beside_other_blocks():
    blank = Message("assistant", (Text(" "), ToolCall("x", "look")))
    assert broken([user("go"), blank, tool("x", "1")], ANTHROPIC) == [("blank_text", 1)]
    assert broken([user("go"), blank, tool("x", "1")], CHAT) == []


def test_a_call_answered_before_may_not_come_again_in_its_own_reply():
    assert broken(talk("u c:x t:x c:x t:x"), RESPONSES) == []
    assert broken(talk("u c:x c:x t:x t:x"), RESPONSES) == [("duplicate_call_id", 2)]


def test_open_calls_are_remembered_across_replies():
    assert broken(talk("u c:x a c:y t:y u"), RESPONSES, as_request=True) == [("unanswered_call", 1)]


def test_thinking_without_its_signature():
    thoughts = (Reasoning("hm"), Text("well"))
    assert broken([user("go"), Message("assistant", thoughts)], ANTHROPIC) == [("unsigned_thinking", 1)]
    assert broken([user("go"), Message("assistant", thoughts)], CHAT) == []
    sealed = (Reasoning("", sealed="abc"), Text("well"))
    assert broken([user("go"), Message("assistant", sealed)], ANTHROPIC) == []


def test_more_than_four_breakpoints():
    raw = msgspec.Raw(b'{"type":"text","text":"hi","cache_control":{"type":"ephemeral"}}')
    innocent = msgspec.Raw(b'{"type":"text","text":"\\"cache_control\\":{}","cache_control":null}')
    marked, plain = Text("hi", raw=raw), Text("hi", raw=innocent)
    assert broken([Message("user", (marked,) * 4 + (plain,))], ANTHROPIC) == []
    assert broken([Message("user", (marked,) * 5)], ANTHROPIC) == [("too_many_breakpoints", None)]
    assert broken([Message("user", (marked,) * 5)], CHAT) == []


def test_breakpoints_count_in_system_prompt_tools_and_results_too():
    raw = msgspec.Raw(b'{"type":"text","text":"hi","cache_control":{"type":"ephemeral"}}')
    outer = msgspec.Raw(b'{"type":"tool_result","content":[' + bytes(raw) + b"]}")
    rules = Message("system", (Text("hi", raw=raw),) * 2)
    fixed = FixedFields(ANTHROPIC, (rules,), (Tool("look", raw=raw),))
    result = Message("tool", (ToolResult("x", (Text("hi", raw=raw),), raw=outer),))
    messages = (user("go"), *talk("c:x"), result)
    assert verify_window(Window(fixed, messages)) == ()
    one_more = (*messages, Message("user", (Text("hi", raw=raw),)))
    assert [found.message for found in verify_window(Window(fixed, one_more))] == [
        "5 cache breakpoints; 4 are allowed"
    ]


def test_every_violation_says_what_to_do():
    messages = [*talk("s t:x a:y,y a r a: u"), Message("user", (ToolCall("q", "look"), Text("")))]
    messages.append(Message("developer", (Text("rule"),)))
    found = [*verify(messages, ANTHROPIC, as_request=True), *verify(messages, RESPONSES, as_request=True)]
    found += verify_fit(tokens=2, limit=1, size_bytes=2, max_bytes=1)
    assert len({violation.rule for violation in found}) >= 11
    assert all(violation.message and violation.hint for violation in found)


def test_size():
    assert verify_fit(tokens=100, limit=100) == ()
    assert [found.rule for found in verify_fit(tokens=101, limit=100)] == ["over_tokens"]
    assert verify_fit(tokens=1, limit=2, size_bytes=10**9) == ()
    over = verify_fit(tokens=1, limit=2, size_bytes=33 * 2**20, max_bytes=ANTHROPIC.max_body_bytes)
    assert [found.rule for found in over] == ["over_bytes"]


def test_a_window_is_verified_with_its_summaries():
    fixed = FixedFields(ANTHROPIC)
    tail = tuple(talk("a:x t:x"))
    assert verify_window(Window(fixed, tail, (user("what happened before"),))) == ()
    assert [found.rule for found in verify_window(Window(fixed, tail))] == ["starts_without_user"]
