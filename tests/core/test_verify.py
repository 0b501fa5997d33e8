import msgspec
import pytest

from refold.core.verify import verify, verify_edit, verify_fit, verify_fixed, verify_window
from refold.model.dialect import ANTHROPIC, CHAT, DIALECTS, RESPONSES
from refold.model.message import Message, Reasoning, Text, ToolCall, ToolResult, assistant, system, tool, user
from refold.model.window import Fixed, Tool, Window
from tests.core.conversations import talk


def broken(messages, dialect=CHAT, *, as_request=False):
    return [(found.rule, found.index) for found in verify(messages, dialect, as_request=as_request)]


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
@pytest.mark.parametrize("script", ["u", "u a u", "u a:x t:x", "u a:x t:x a u"])
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
        ("u a:x u t:x", RESPONSES, []),  # this format finds a result by its call id, wherever it stands
        ("u a:x t:x u a:x t:x", CHAT, []),
        ("u a:x t:x u a:x t:x", ANTHROPIC, [("duplicate_call_id", 4)]),
        ("u a:x,x t:x t:x", CHAT, [("duplicate_call_id", 1)]),
        ("u a:x,y t:x t:y", ANTHROPIC, [("split_results", 3)]),
        ("a u", ANTHROPIC, [("starts_without_user", 0)]),
        ("s u", ANTHROPIC, [("illegal_role", 0), ("starts_without_user", 0)]),
        ("u r u", RESPONSES, [("dangling_reasoning", 1)]),
        ("u r u", ANTHROPIC, [("dangling_reasoning", 1)]),
        ("u r c:x t:x", RESPONSES, []),
    ],
)
def test_structure(script, dialect, expected):
    assert broken(talk(script), dialect) == expected


@pytest.mark.parametrize(
    "script, expected",
    [
        ("", [("no_messages", None)]),
        ("u a", [("ends_with_assistant", 1)]),
        ("u a:x", [("unanswered_call", 1)]),
        ("u a:x,y t:x", [("unanswered_call", 1)]),
    ],
)
def test_a_transcript_may_stop_where_a_request_must_not(script, expected):
    assert broken(talk(script)) == []
    assert broken(talk(script), as_request=True) == expected


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
        ("", True, True),
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
    rules = [rule for rule, _ in broken(messages)]
    assert rules.count("misplaced_part") == 3


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


def test_every_violation_says_what_to_do():
    for found in verify(talk("u t:x a:y,y a u"), CHAT, as_request=True):
        assert found.message
        assert found.hint


def test_size():
    assert verify_fit(tokens=100, limit=100) == ()
    assert [found.rule for found in verify_fit(tokens=101, limit=100)] == ["over_tokens"]
    assert verify_fit(tokens=1, limit=2, size_bytes=10**9) == ()
    over = verify_fit(tokens=1, limit=2, size_bytes=33 * 2**20, max_bytes=ANTHROPIC.max_body_bytes)
    assert [found.rule for found in over] == ["over_bytes"]


def test_thinking_leaves_whole_or_not_at_all():
    one, two, said = Reasoning("a", "s1"), Reasoning("b", "s2"), Text("so")
    before = Message("assistant", (one, two, said))
    assert verify_edit(before, Message("assistant", (said,)), 0) == ()
    assert verify_edit(before, Message("assistant", (one, two)), 0) == ()
    for kept in ((one, said), (two, one), (Reasoning("a", "s9"), two)):
        assert [found.rule for found in verify_edit(before, Message("assistant", kept), 7)] == [
            "altered_thinking"
        ]


def test_system_and_tools_leave_as_they_came():
    before = Fixed(CHAT, (system("be kind"),), (Tool("look"),))
    assert verify_fixed(before, before) == ()
    after = Fixed(CHAT, (system("be unkind"),), ())
    assert [found.rule for found in verify_fixed(before, after)] == ["altered_system", "altered_tools"]


def test_a_window_is_verified_with_its_summaries():
    fixed = Fixed(ANTHROPIC)
    tail = tuple(talk("a:x t:x"))
    assert verify_window(Window(fixed, tail, (user("what happened before"),))) == ()
    assert [found.rule for found in verify_window(Window(fixed, tail))] == ["starts_without_user"]
