from __future__ import annotations

import random

import msgspec
import pytest
from msgspec import Raw, Struct
from msgspec.json import Decoder

from refold.model.errors import BodyTooLarge, WireError
from refold.wire.json_codec import (
    FIELDS,
    ITEMS,
    MAX_OBJECTS,
    NULL,
    check_body,
    each,
    is_null,
    join,
    kind_of,
    read,
    read_content,
    read_list,
    read_long_text,
    strip,
    text_of,
    within,
    word,
)


class Tagged(Struct, tag_field="type", tag="text"):
    text: str


class Other(Struct, tag_field="type", tag="other"):
    pass


@pytest.mark.parametrize(
    "data, message",
    [
        (b"", "truncated"),
        (b'{"a":', "truncated"),
        (b'{"a":1}}', "trailing characters"),
        (b"{'a':1}", "malformed"),
        (b'{"a":NaN}', "malformed"),
        (b'{"a":Infinity}', "malformed"),
        (b"[1]", "expected `object`, got `array`"),
        (b'{"a":"\\ud800 and some more"}', "half of a surrogate pair"),
        (b'{"a":"\\udc00 and some more"}', "half of a surrogate pair"),
        (b'{"a":' + b"[" * 100_000, "nested too deeply"),
    ],
)
def test_bad_json_is_a_wire_error_at_its_place(data: bytes, message: str):
    with pytest.raises(WireError, match=message) as caught:
        read(FIELDS, data, "messages[3]")
    assert caught.value.place == "messages[3]"


def test_the_body_must_be_text_within_the_limit():
    check_body("é".encode(), 2)
    with pytest.raises(WireError, match=r"not valid UTF-8 \(byte 1\)"):
        check_body(b"a\xff")
    with pytest.raises(BodyTooLarge, match="3 bytes; the limit is 2"):
        check_body(b"abc", 2)


def test_duplicate_keys_are_read_as_every_provider_reads_them():
    assert read(FIELDS, b'{"a":1,"a":2}') == {"a": Raw(b"2")}


def test_an_error_gets_its_place_on_the_way_up():
    def fail(value: int) -> int:
        if value == 2:
            raise WireError("is odd", place="n", hint="h")
        return value

    with pytest.raises(WireError) as caught:
        each(fail, [0, 1, 2], "items")
    outer = within(caught.value, "body")
    assert outer.place == "body.items[2].n"
    assert str(outer) == "body.items[2].n: is odd\nhint: h"
    assert type(within(BodyTooLarge("too large"), "x")) is BodyTooLarge


@pytest.mark.parametrize(
    "outer, inner, place",
    [
        ("messages", "[3].content", "messages[3].content"),
        ("messages[3]", "content[0]", "messages[3].content[0]"),
        ("", "a", "a"),
        ("a", "", "a"),
        ("line 7", "content[0]", "line 7, content[0]"),
    ],
)
def test_places_join(outer: str, inner: str, place: str):
    assert join(outer, inner) == place


def test_a_block_without_a_type_is_named():
    with pytest.raises(WireError) as caught:
        kind_of(Raw(b'{"text":"a"}'))
    assert caught.value.place == "type"


def test_a_place_never_quotes_content():
    for raw in (
        b'{"type":"zz - at `$CANARY","type":"text","text":"a"}',
        b'{"type":"zz - at `$.CANARY`","text":"a"}',
    ):
        with pytest.raises(WireError) as caught:
            read(Decoder(Tagged | Other), raw, "content[0]")
        assert caught.value.place == "content[0].type"
        assert "CANARY" not in str(caught.value)


def test_a_list_of_too_many_objects_is_refused_wherever_they_are():
    many = b"[" + b"{}," * MAX_OBJECTS + b"{}]"
    for array in (many, b'[{"content":' + many + b"}]"):
        with pytest.raises(WireError, match="more than 1,000,000 objects") as caught:
            read_list(array, "messages")
        assert caught.value.place == "messages"
    with pytest.raises(WireError):
        read_content(Raw(many))
    assert len(read_list(many.replace(b",{}]", b"]"))) == MAX_OBJECTS


def test_braces_in_texts_are_no_objects():
    text = b'"' + b'{\\"' * (2 * MAX_OBJECTS) + b'"'
    assert len(read_list(b'[{"text":' + text + b"}]")) == 1
    assert read_content(Raw(text)) == '{"' * (2 * MAX_OBJECTS)


def test_a_long_list_of_anything_else_is_refused_at_its_first_element():
    for element in (b"1", b"[]", b'"{"'):
        with pytest.raises(WireError, match="expected `object`") as caught:
            read_content(Raw(b"[{}," + b",".join([element] * MAX_OBJECTS) + b"]"))
        assert caught.value.place == "content[1]"


def test_what_is_no_text_is_a_wire_error():
    with pytest.raises(WireError, match="not valid UTF-8"):
        text_of(Raw(b'{"x":"\xff"}'))


@pytest.mark.parametrize(
    "raw, text",
    [
        (b'"abc"', "abc"),
        (b"5", "5"),
        (b"null", ""),
        (b"true", ""),
        (b"{}", ""),
        (b"1.5", ""),
        (b'"\xff"', ""),
    ],
)
def test_a_word_is_a_text_or_a_number(raw: bytes, text: str):
    assert word(Raw(raw)) == text


def test_white_space_and_null():
    assert bytes(strip(b' \t\r\n{"a": 1 } ')) == b'{"a": 1 }'
    assert bytes(strip(Raw(b" 1 "))) == b"1"
    assert is_null(NULL)
    assert is_null(Raw(b"null"))
    assert not is_null(Raw(b"[]"))


def test_elements_keep_their_bytes():
    assert [bytes(raw) for raw in read(ITEMS, b'[ {"a" : 1} ,2.50, "\\u00e9" ]')] == [
        b'{"a" : 1}',
        b"2.50",
        b'"\\u00e9"',
    ]


ATOMS = [
    b"a", b"bc ", b"\\n", b"\\\\", b"\\\\\\\\", b'\\"', b"\\/", b"\\u00e9", b"\\ud83d\\ude00", b"\\uD83D\\uDE00", "é".encode(),
    "中".encode(), "\U0001f600".encode(), b"ud83d",
]  # fmt: skip
WRONG = [b"\\ud83d", b"\\ude00", b"\\x", b"\\u12", b"\xff"]


@pytest.mark.parametrize("seed", range(40))
def test_a_text_that_is_decoded_in_slices_is_the_same(monkeypatch, seed):
    monkeypatch.setattr("refold.wire.json_codec._SLICE", 40)
    chance = random.Random(seed)
    for _ in range(50):
        chosen = chance.sample(ATOMS, chance.randrange(1, 6))
        text = b'"%b"' % b"".join(chance.choices(chosen, k=chance.randrange(60)))

        assert read_long_text(Raw(text)) == msgspec.json.decode(text), text


@pytest.mark.parametrize("seed", range(20))
def test_a_long_text_that_is_no_json_is_left_to_the_decoder(monkeypatch, seed):
    monkeypatch.setattr("refold.wire.json_codec._SLICE", 40)
    chance = random.Random(seed)
    text = (
        b"".join(chance.choices(ATOMS, k=30)) + WRONG[seed % 5] + b" " + b"".join(chance.choices(ATOMS, k=30))
    )

    assert read_long_text(Raw(b'"%b"' % text)) is None


@pytest.mark.parametrize("start", [b"", b"a", "é".encode()])
def test_a_long_text_of_continuation_bytes_is_left_to_the_decoder(start):
    assert read_long_text(Raw(b'"%b"' % (start + b"\x80" * 200_000))) is None


@pytest.mark.parametrize("value", [b"null", b"[]", b'{"a":"b"}', b"1", b""])
def test_another_value_is_no_long_text(value):
    assert read_long_text(Raw(value)) is None
