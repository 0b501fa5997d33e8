import msgspec
import pytest

from refold.core.identity import chain_of, identity
from refold.model.message import (
    File,
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
from tests.core.conversations import talk

RAW = msgspec.Raw(b'{"type":"text","text":"hi","cache_control":{"type":"ephemeral"}}')


def opaque(text: str) -> Message:
    return Message("assistant", (Opaque("search", raw=msgspec.Raw(text.encode())),))


@pytest.mark.parametrize("size", [65_535, 65_536, 65_537, 131_072, 131_073])
@pytest.mark.parametrize("letter", ["a", "é", "中", "\U0001f600", "\ud800"])
@pytest.mark.parametrize(
    "said", [user, assistant, lambda text: tool("c1", text), lambda text: tool(text, "done")]
)
def test_a_long_text_has_the_hash_of_its_whole_encoding(monkeypatch, size, letter, said):
    message = said(letter * size)
    in_slices = identity(message)
    monkeypatch.setattr("refold.core.identity._SLICE", 1_000_000)

    assert identity(message) == in_slices


@pytest.mark.parametrize(
    "one, other",
    [
        (user("hi"), Message("user", (Text("hi", raw=RAW),))),
        (user("hi"), Message("user", (Text(""), Text("hi")))),
        (assistant("so"), Message("assistant", (Reasoning("hm", "sig"), Text("so")))),
        (
            assistant("", ToolCall("x", "f", '{"a":1,"b":2}')),
            assistant("", ToolCall("x", "f", '{ "b": 2, "a": 1, "c": null }')),
        ),
        (opaque('{"type":"search","id":"1","extra":null}'), opaque('{"id":"1", "type":"search"}')),
        (opaque('{"type":"search","cache_control":{"type":"ephemeral"}}'), opaque('{"type":"search"}')),
        (
            assistant("", ToolCall("x", "f", '{"a":1.0,"b":[1e3]}')),
            assistant("", ToolCall("x", "f", '{"a":1,"b":[1000]}')),
        ),
        (assistant("", ToolCall("x", "f", "")), assistant("", ToolCall("x", "f", "{}"))),
        (tool("x", "1"), tool("x", "1", is_error=True)),
    ],
    ids=[
        "blocks and cache marks",
        "empty text",
        "reasoning",
        "argument order and nulls",
        "opaque nulls",
        "cache marks of blocks",
        "whole numbers",
        "no arguments",
        "error marks",
    ],
)
def test_the_way_a_client_writes_a_message_down_does_not_matter(one, other):
    assert identity(one) == identity(other)


def test_what_a_message_says_does():
    said = [
        user("hi"),
        user("hi "),
        assistant("hi"),
        user("h\ni"),
        Message("user", (Text("h"), Text("i"))),
        assistant("", ToolCall("x", "f", '{"a":1}')),
        assistant("", ToolCall("x", "f", '{"a":2}')),
        assistant("", ToolCall("y", "f", '{"a":1}')),
        assistant("", ToolCall("x", "g", '{"a":1}')),
        assistant("", ToolCall("x", "f", '{"a":')),
        tool("x", "1"),
        tool("y", "1"),
        Message("tool", (ToolResult("x", (Text("1"), Text("1"))),)),
        Message("user", (Image(data="AAAA"),)),
        Message("user", (Image(data="AAAB"),)),
        Message("user", (Image(url="AAAA"),)),
        Message("user", (Image(file_id="AAAA"),)),
        Message("user", (Image(file_id="AAAB"),)),
        Message("user", (File(text="AAAA"),)),
        Message("user", (File(text="AAAC"),)),
        assistant("", ToolCall("x", "f", '{"cache_control":"public"}')),
        assistant("", ToolCall("x", "f", '{"cache_control":"no-store"}')),
        assistant("", ToolCall("x", "f", '{"a":1.5}')),
        opaque('{"type":"search","id":"1"}'),
        opaque('{"type":"search","id":"2"}'),
    ]
    assert len({identity(message) for message in said}) == len(said)


def test_hostile_arguments_have_an_identity_too():
    deep = "[" * 100_000
    assert identity(assistant("", ToolCall("x", "f", deep))) != identity(
        assistant("", ToolCall("x", "f", deep + "["))
    )


@pytest.mark.parametrize("nesting", [10, 63, 64, 65, 400, 900])
def test_the_identity_does_not_depend_on_how_deep_the_caller_stands(nesting):
    message = assistant("", ToolCall("x", "f", '{"b":1,"a":' + "[" * nesting + "]" * nesting + "}"))

    def deeper(frames):
        return deeper(frames - 1) if frames else identity(message)

    assert deeper(300) == deeper(0)


def test_brackets_in_strings_are_not_nesting():
    one, other = '{"b":"%s","a":1}' % ("[" * 100), '{"a":1, "b":"%s"}' % ("[" * 100)
    assert identity(assistant("", ToolCall("x", "f", one))) == identity(
        assistant("", ToolCall("x", "f", other))
    )


def test_text_that_utf8_cannot_carry_has_an_identity():
    assert identity(user("half \ud800")) != identity(user("half \ud801"))
    assert identity(Message("user", (Image(url="\ud800"),))) is not None


def test_a_long_key_is_a_key():
    messages = talk("u a")
    assert len({tuple(chain_of(messages, key)) for key in (b"k" * 64, b"k" * 65, b"k" * 66)}) == 3


def test_the_identity_of_version_2_never_changes():
    # Stored chains depend on these bytes. A change needs a new VERSION.
    messages = [user("héllo"), assistant("on it", ToolCall("c1", "f", '{"b":1,"a":2.5}')), tool("c1", "done")]
    assert list(chain_of(messages, b"owner"))[-1].hex() == "1a94c1f1f9e38ba62fbf628276c267af"


def test_two_conversations_with_the_same_opening_do_not_meet_after_it():
    opening = talk("u a")
    one, two = set(chain_of([*opening, user("cats")])), set(chain_of([*opening, user("dogs")]))
    assert one & two == set(chain_of(opening))
    assert not one & set(chain_of([*opening, user("cats")], b"another owner"))


def test_a_client_that_drops_reasoning_items_has_the_same_chain():
    stored = talk("u r c:x t:x r a")
    resent = [message for message in stored if message.parts and not isinstance(message.parts[0], Reasoning)]
    assert list(chain_of([*resent, user("more")]))[-1] == list(chain_of([*stored, user("more")]))[-1]
