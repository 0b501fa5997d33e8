"""One suite over the three codecs: what each of them promises, whatever its format."""

from __future__ import annotations

import json
import tracemalloc
from contextlib import suppress

import msgspec
import pytest

from refold.model.dialect import DIALECTS, Dialect
from refold.model.errors import BodyTooLarge, WireError
from refold.model.message import Message, Part, Text, ToolCall, ToolResult, assistant, tool, user
from refold.wire import decode_message, decode_request, decode_transcript, encode_message, encode_request
from tests.wire.samples import BODIES, ITEMS

ALL = [pytest.param(dialect, id=name) for name, dialect in DIALECTS.items()]
EACH_ITEM = [
    pytest.param(DIALECTS[name], item, id=f"{name}-{index}")
    for name, items in ITEMS.items()
    for index, item in enumerate(items)
]


MARK = " (changed)"


def changed(part: Part) -> Part:
    if isinstance(part, Text):
        return msgspec.structs.replace(part, text=part.text + MARK)
    if isinstance(part, ToolCall):
        return msgspec.structs.replace(part, id=part.id + MARK)
    if isinstance(part, ToolResult):
        return msgspec.structs.replace(part, parts=tuple(changed(inner) for inner in part.parts))
    return part


@pytest.mark.parametrize("dialect, item", EACH_ITEM)
def test_an_untouched_message_leaves_as_the_bytes_it_came_as(dialect: Dialect, item: bytes):
    assert bytes(encode_message(decode_message(item, dialect), dialect)) == item


@pytest.mark.parametrize("dialect, item", EACH_ITEM)
def test_a_message_marked_as_edited_but_saying_the_same_leaves_as_it_came(dialect: Dialect, item: bytes):
    message = decode_message(item, dialect)
    assert bytes(encode_message(message.with_parts(message.parts), dialect)) == item


@pytest.mark.parametrize("dialect, item", EACH_ITEM)
def test_a_change_is_read_back_and_nothing_else_changes(dialect: Dialect, item: bytes):
    message = decode_message(item, dialect)
    edited = message.with_parts(tuple(changed(part) for part in message.parts))
    out = bytes(encode_message(edited, dialect))
    assert decode_message(out, dialect).bare() == edited.bare()
    if b"stderr" not in item:  # the two streams of a shell become one text
        assert json.loads(out.replace(MARK.encode(), b"")) == json.loads(item)


@pytest.mark.parametrize("dialect, item", EACH_ITEM)
def test_each_part_can_be_left_out_by_itself(dialect: Dialect, item: bytes):
    message = decode_message(item, dialect)
    for index in range(len(message.parts)) if len(message.parts) > 1 else ():
        rest = message.parts[:index] + message.parts[index + 1 :]
        out = encode_message(message.with_parts(rest), dialect)
        assert decode_message(out, dialect).bare().parts == Message(message.role, rest).bare().parts


@pytest.mark.parametrize("dialect, item", EACH_ITEM)
def test_blocks_beside_a_changed_block_keep_their_bytes(dialect: Dialect, item: bytes):
    message = decode_message(item, dialect)
    edited = message.with_parts((*map(changed, message.parts[:1]), *message.parts[1:]))
    out = bytes(encode_message(edited, dialect))
    blocks = [bytes(part.raw) for part in message.parts[1:] if part.raw is not None]
    assert all(block in out for block in blocks if block in item)


@pytest.mark.parametrize("dialect", ALL)
def test_an_untouched_request_is_its_body(dialect: Dialect):
    request = decode_request(BODIES[dialect.name], dialect)
    assert encode_request(request) == BODIES[dialect.name]
    assert encode_request(request, [*request.messages], system=request.system) == BODIES[dialect.name]
    copies = [decode_message(bytes(encode_message(one, dialect)), dialect) for one in request.messages]
    assert encode_request(request, copies) == BODIES[dialect.name]


@pytest.mark.parametrize("dialect", ALL)
def test_wire_index_is_offset_plus_index(dialect: Dialect):
    request = decode_request(BODIES[dialect.name], dialect)
    items = ITEMS[dialect.name]
    assert request.offset + len(request.messages) == len(items)
    for index, message in enumerate(request.messages):
        assert message.origin is not None
        assert bytes(message.origin.raw) == items[request.offset + index]


@pytest.mark.parametrize("dialect", ALL)
def test_with_one_message_changed_every_other_byte_stays(dialect: Dialect):
    request = decode_request(BODIES[dialect.name], dialect)
    index = next(i for i, message in enumerate(request.messages) if message.text)
    edited = request.messages[index].with_parts((Text("changed"),))
    messages = [*request.messages[:index], edited, *request.messages[index + 1 :]]
    again = msgspec.json.decode(encode_request(request, messages), type=dict[str, msgspec.Raw])
    assert [*again] == [*request.fields]
    for key, raw in request.fields.items():
        assert key == dialect.messages_key or again[key] == raw
    new = msgspec.json.decode(again[dialect.messages_key], type=list[msgspec.Raw])
    differing = [
        i for i, (old, raw) in enumerate(zip(ITEMS[dialect.name], new, strict=True)) if old != bytes(raw)
    ]
    assert differing == [request.offset + index]


@pytest.mark.parametrize("dialect", ALL)
def test_messages_of_our_own_are_written_and_read_back(dialect: Dialect):
    for message in (
        user("hi"),
        assistant("hello"),
        assistant("", ToolCall("c1", "f", '{"a":1}')),
        tool("c1", "out"),
    ):
        again = decode_message(encode_message(message, dialect), dialect)
        assert again.bare() == message


@pytest.mark.parametrize("dialect", ALL)
def test_messages_can_be_added_and_left_out(dialect: Dialect):
    request = decode_request(BODIES[dialect.name], dialect)
    summary = user("what came before")
    again = decode_request(encode_request(request, [summary, *request.messages[2:]]), dialect)
    assert again.messages[0].bare() == summary
    assert [m.origin for m in again.messages[1:]] == [m.origin for m in request.messages[2:]]
    assert again.system == request.system
    assert again.tools == request.tools


@pytest.mark.parametrize("dialect", ALL)
def test_a_message_of_another_format_is_refused(dialect: Dialect):
    for other in DIALECTS.values():
        message = decode_message(ITEMS[other.name][2], other)
        if other is not dialect:
            with pytest.raises(WireError, match=f"{other.name} format cannot leave as {dialect.name}"):
                encode_message(message, dialect)


@pytest.mark.parametrize("dialect", ALL)
def test_the_limit_of_bytes_is_the_callers(dialect: Dialect):
    body = BODIES[dialect.name]
    assert decode_request(body, dialect, max_body_bytes=len(body)).body == body
    with pytest.raises(BodyTooLarge, match="the limit is"):
        decode_request(body, dialect, max_body_bytes=len(body) - 1)


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.parametrize("depth, is_read", [(100, True), (100_000, False)])
def test_deep_nesting_is_read_or_refused_but_never_a_crash(dialect: Dialect, depth: int, is_read: bool):
    deep = b"[" * depth + b"]" * depth
    head = BODIES[dialect.name].rstrip()[:-1]
    in_field = head + b',"x_deep":' + deep + b"}"
    in_message = head.replace(b'"role"', b'"x_deep":' + deep + b',"role"', 1) + b"}"
    for body in (in_field, in_message):
        if not is_read:
            with pytest.raises(WireError, match="nested too deeply"):
                decode_request(body, dialect)
            continue
        request = decode_request(body, dialect)
        messages = [message.with_parts(tuple(map(changed, message.parts))) for message in request.messages]
        assert deep in encode_request(request, messages)


@pytest.mark.parametrize("dialect", ALL)
def test_at_the_edge_of_what_the_parser_can_nest_there_is_no_other_error(dialect: Dialect):
    key = dialect.messages_key.encode()
    for depth in range(850, 1010, 5):
        deep = b'{"a":' * depth + b"1" + b"}" * depth
        block = b'{"type":"tool_use","id":"c","name":"f","input":' + deep + b"}"
        body = b'{"' + key + b'":[{"role":"assistant","content":[' + block + b'],"x":' + deep + b"}]}"
        with suppress(WireError):
            request = decode_request(body, dialect)
            message = request.messages[0]
            assert deep in encode_request(request, [message.with_parts((Text("a"), *message.parts))])


@pytest.mark.parametrize("dialect", ALL)
def test_no_error_quotes_the_conversation(dialect: Dialect):
    secret = "correct horse battery staple"
    key = dialect.messages_key
    for item in (
        {"role": secret, "content": ""},
        {"role": "user", "content": [{"type": "text", "text": [secret]}]},
    ):
        with pytest.raises(WireError) as caught:
            decode_request(json.dumps({key: [item, secret]}).encode(), dialect)
        assert "horse" not in str(caught.value)
        assert caught.value.place.startswith(f"{key}[")


def in_list(element: bytes) -> bytes:
    return b"[" + element + (b"," + element) * (4_000_000 // len(element) - 1) + b"]"


HOSTILE = {
    "messages of nothing": (b"", b"{}", b""),
    "messages that are numbers": (b"", b"1", b""),
    "blocks that are numbers": (b'[{"role":"user","content":', b"1", b"}]"),
    "blocks that are lists": (b'[{"role":"assistant","content":', b"[]", b"}]"),
    "calls that are numbers": (b'[{"role":"assistant","tool_calls":', b"1", b"}]"),
    "reasoning that is a list": (b'[{"role":"assistant","content":"","reasoning":', b"[]", b"}]"),
    "signed reasoning": (b'[{"role":"assistant","content":"","reasoning_details":', b"[]", b"}]"),
    "lines of reasoning": (b'[{"type":"reasoning","summary":', b"1", b"}]"),
    "results": (b'[{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":', b"1", b"}]}]"),
    "outputs": (b'[{"type":"function_call_output","call_id":"c","output":', b"1", b"}]"),
    "unknown fields": (b'[{"role":"user","content":"a","x":', b"1", b"}]"),
}  # fmt: skip
"""Around what is in a list of four megabytes, which has more elements than a list may have objects. It is made where it is
needed: all of them are much to keep.
"""


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.parametrize("before, element, after", HOSTILE.values(), ids=HOSTILE)
def test_no_body_takes_much_more_memory_than_it_has_bytes(
    dialect: Dialect, before: bytes, element: bytes, after: bytes
):
    array = before + in_list(element) + after
    body = b'{"' + dialect.messages_key.encode() + b'":' + array + b"}"
    tracemalloc.start()
    for decode in (decode_request, decode_transcript):
        with suppress(WireError):
            decode(body, dialect)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * len(body)
