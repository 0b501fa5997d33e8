from __future__ import annotations

import json

import pytest

from refold.model.dialect import ANTHROPIC, CHAT, RESPONSES, Dialect
from refold.model.errors import WireError
from refold.model.message import Message, Text, ToolCall, system, user
from refold.model.window import FixedFields
from refold.wire import decode_request, encode_request
from tests.wire.samples import BODIES


def body(**fields: object) -> bytes:
    return json.dumps(fields).encode()


HI = {"role": "user", "content": "hi"}


def test_chat_takes_the_leading_run_as_system_prompt():
    request = decode_request(BODIES["chat"], CHAT)
    assert [message.role for message in request.system] == ["system", "developer"]
    assert request.offset == 2
    assert request.messages[0].role == "user"
    assert (request.model, request.max_output, request.stream) == ("gpt-x", 10, True)
    assert [tool.name for tool in request.tools] == ["read"]
    assert request.fixed == FixedFields(CHAT, request.system, request.tools)


def test_a_later_system_message_stays_where_it_is():
    request = decode_request(body(messages=[HI, {"role": "system", "content": "s"}]), CHAT)
    assert request.system == ()
    assert [message.role for message in request.messages] == ["user", "system"]


def test_responses_puts_the_instructions_before_the_leading_run():
    request = decode_request(BODIES["responses"], RESPONSES)
    assert [message.text for message in request.system] == ["Be ü.", "Rules"]
    assert request.offset == 1
    assert request.max_output == 99
    assert [tool.name for tool in request.tools] == ["read", "web_search"]


def test_anthropic_has_its_system_prompt_beside_the_messages():
    request = decode_request(BODIES["anthropic"], ANTHROPIC)
    assert [message.text for message in request.system] == ["Be kind."]
    assert request.offset == 0
    assert request.max_output == 1024
    plain = decode_request(body(system="Be kind.", messages=[HI]), ANTHROPIC)
    assert plain.system[0].bare() == request.system[0].bare()


def test_an_input_of_one_string_is_one_message_and_can_grow():
    request = decode_request(body(model="m", input="hi", store=True), RESPONSES)
    assert request.messages[0].bare() == user("hi")
    assert encode_request(request) == request.body
    edited = request.messages[0].with_parts((Text("ho"),))
    assert json.loads(encode_request(request, [edited])) == {"model": "m", "input": "ho", "store": True}
    grown = json.loads(encode_request(request, [user("before"), *request.messages]))
    assert [item["content"] for item in grown["input"]] == ["before", "hi"]


def test_the_system_prompt_can_be_extended():
    for dialect, key in ((ANTHROPIC, "system"), (RESPONSES, "instructions")):
        request = decode_request(BODIES[dialect.name], dialect)
        first = request.system[0].with_parts((*request.system[0].parts, Text("More.")))
        new = decode_request(encode_request(request, system=(first, *request.system[1:])), dialect)
        assert new.system[0].text == f"{request.system[0].text}\nMore."
        assert new.messages == request.messages
        assert [*new.fields] == [*request.fields]
        assert key in new.fields
    anthropic = decode_request(BODIES["anthropic"], ANTHROPIC)
    first = anthropic.system[0].with_parts((*anthropic.system[0].parts, Text("More.")))
    assert json.loads(encode_request(anthropic, system=(first,)))["system"][0]["cache_control"]["ttl"] == "1h"


def test_a_system_prompt_can_be_added_where_there_was_none():
    for dialect in (CHAT, ANTHROPIC):
        request = decode_request(body(messages=[HI]), dialect)
        new = decode_request(encode_request(request, system=(system("s"),)), dialect)
        assert [message.text for message in new.system] == ["s"]
        assert new.messages == request.messages


def test_a_message_that_cannot_be_written_is_named_by_its_place():
    request = decode_request(body(messages=[HI]), ANTHROPIC)
    bad = Message("assistant", (ToolCall("c", "f", "{"),))
    with pytest.raises(WireError) as caught:
        encode_request(request, [*request.messages, bad])
    assert caught.value.place == "messages[1].content[0].input"


@pytest.mark.parametrize("name", ["max_completion_tokens", "max_tokens"])
def test_both_names_of_the_output_limit_are_read(name: str):
    assert decode_request(body(messages=[HI], **{name: 7}), CHAT).max_output == 7


@pytest.mark.parametrize("written, read", [(b"4096.0", 4096), (b"1e3", 1000), (b"0", 0)])
def test_a_limit_written_as_a_float_is_the_number_it_means(written: bytes, read: int):
    data = b'{"max_tokens":' + written + b',"messages":[{"role":"user","content":"a"}]}'
    assert decode_request(data, CHAT).max_output == read


@pytest.mark.parametrize("field", ["previous_response_id", "conversation", "prompt"])
@pytest.mark.parametrize("given", [{}, {"input": None}, {"input": []}])
def test_a_request_that_goes_on_from_what_the_provider_keeps_needs_no_messages(
    field: str, given: dict[str, object]
):
    data = body(model="m", **{field: "x"}, **given)
    request = decode_request(data, RESPONSES)
    assert request.messages == ()
    assert encode_request(request) == data
    new = json.loads(encode_request(request, [user("hi")]))
    assert [item["content"] for item in new["input"]] == ["hi"]
    prompted = json.loads(encode_request(request, system=[system("s")]))
    assert prompted["instructions"] == "s"
    assert prompted.get("input") in (None, [])


def test_a_system_message_that_stands_among_the_messages_stays_there():
    later = {"role": "system", "content": "s"}
    request = decode_request(body(system="first", messages=[HI, later, HI]), ANTHROPIC)
    assert [message.role for message in request.messages] == ["user", "system", "user"]
    out = json.loads(encode_request(request, [*request.messages, system("new")]))
    assert out["messages"][1:] == [later, HI, {"role": "system", "content": "new"}]
    with pytest.raises(WireError) as caught:
        encode_request(request, system=[request.messages[1]])
    assert caught.value.place == "system"


@pytest.mark.parametrize("dialect, key", [(ANTHROPIC, "system"), (RESPONSES, "instructions")])
def test_without_a_system_message_its_field_goes(dialect: Dialect, key: str):
    request = decode_request(body(**{key: "old", dialect.messages_key: [HI]}), dialect)
    assert json.loads(encode_request(request, system=[])) == {dialect.messages_key: [HI]}


def test_instructions_are_always_a_string_and_items_stay_items():
    rules = {"role": "developer", "content": "rules"}
    request = decode_request(body(instructions="old", input=[rules, HI]), RESPONSES)
    prompt, item = request.system
    for chosen, expected in (
        ([item], {"input": [rules, HI]}),
        ([system("new")], {"instructions": "new", "input": [HI]}),
        ([system("new"), item], {"instructions": "new", "input": [rules, HI]}),
        ([prompt], {"instructions": "old", "input": [HI]}),
        (
            [prompt.with_parts((*prompt.parts, Text("more"))), item],
            {"instructions": "old\nmore", "input": [rules, HI]},
        ),
    ):
        assert json.loads(encode_request(request, system=chosen)) == expected
    added = json.loads(encode_request(request, system=[item, Message("developer", (Text("more"),))]))
    assert [message["content"] for message in added["input"]] == ["rules", "more", "hi"]


def test_null_means_not_given():
    fields = {"model": None, "tools": None, "stream": None, "max_tokens": None, "system": None}
    request = decode_request(body(messages=[HI], **fields), ANTHROPIC)
    assert (request.model, request.tools, request.stream, request.max_output) == ("", (), False, None)
    assert request.system == ()


@pytest.mark.parametrize(
    "dialect, data, place",
    [
        (CHAT, b"", ""),
        (CHAT, b"[]", ""),
        (CHAT, b'{"messages":[', ""),
        (CHAT, b'{"messages":[]}', "messages"),
        (CHAT, b'{"model":"m"}', "messages"),
        (CHAT, b'{"messages":null}', "messages"),
        (CHAT, b'{"messages":"hi"}', "messages"),
        (CHAT, b'{"messages":[null]}', "messages[0]"),
        (CHAT, b'{"messages":[{"role":"user","content":"a"},{"role":"user","content":[{"type":"text"}]}]}', "messages[1].content[0].text"),
        (CHAT, b'{"model":1,"messages":[{"role":"user","content":"a"}]}', "model"),
        (CHAT, b'{"max_tokens":"9","messages":[{"role":"user","content":"a"}]}', "max_tokens"),
        (CHAT, b'{"max_tokens":1' + b"0" * 5000 + b',"messages":[{"role":"user","content":"a"}]}', "max_tokens"),
        (CHAT, b'{"stream":"yes","messages":[{"role":"user","content":"a"}]}', "stream"),
        (CHAT, b'{"tools":[{"function":1}],"messages":[{"role":"user","content":"a"}]}', "tools[0].function"),
        (RESPONSES, b'{"input":[]}', "input"),
        (RESPONSES, b'{"input":3}', "input"),
        (RESPONSES, b'{"previous_response_id":null}', "input"),
        (RESPONSES, b'{"input":null}', "input"),
        (CHAT, b'{"previous_response_id":"r"}', "messages"),
        (CHAT, b'{"max_tokens":-5,"messages":[{"role":"user","content":"a"}]}', "max_tokens"),
        (CHAT, b'{"max_tokens":1.5,"messages":[{"role":"user","content":"a"}]}', "max_tokens"),
        (RESPONSES, b'{"instructions":[],"input":"a"}', "instructions"),
        (RESPONSES, b'{"input":[{"role":"user","content":"a"},{"type":"function_call_output","output":""}]}', "input[1].call_id"),
        (ANTHROPIC, b'{"system":3,"messages":[{"role":"user","content":"a"}]}', "system"),
        (ANTHROPIC, b'{"system":[{"type":"text"}],"messages":[{"role":"user","content":"a"}]}', "system[0].text"),
        (ANTHROPIC, b'{"messages":[{"role":"user","content":null}]}', "messages[0].content"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_by_its_place(dialect: Dialect, data: bytes, place: str):
    with pytest.raises(WireError) as caught:
        decode_request(data, dialect)
    assert caught.value.place == place


@pytest.mark.parametrize("bad", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\\ud83d", b"\\ude00 x"])
def test_text_that_is_no_text_is_refused_wherever_it_is(bad: bytes):
    for data in (
        b'{"messages":[{"role":"user","content":"' + bad + b'"}]}',
        b'{"x":"' + bad + b'","messages":[{"role":"user","content":"a"}]}',
    ):
        with pytest.raises(WireError):
            decode_request(data, CHAT)


def test_numbers_no_machine_can_hold_pass_through_unread():
    data = b'{"x":1e999,"seed":1' + b"0" * 5000 + b',"messages":[{"role":"user","content":"a","n":-1e-999}]}'
    request = decode_request(data, CHAT)
    out = encode_request(request, [request.messages[0].with_parts((Text("b"),))])
    assert out == data.replace(b'"a"', b'"b"')
