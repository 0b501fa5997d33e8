from __future__ import annotations

import pytest
from msgspec import Raw

from refold.model.errors import BodyTooLarge, WireError
from refold.wire.reading import FIELDS, ITEMS, check_body, each, join, kind_of, read, within


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
        (b'{"a":"\\ud800 and some more"}', "malformed"),
        (b'{"a":"\\udc00 and some more"}', "malformed"),
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


def test_elements_keep_their_bytes():
    assert [bytes(raw) for raw in read(ITEMS, b'[ {"a" : 1} ,2.50, "\\u00e9" ]')] == [
        b'{"a" : 1}',
        b"2.50",
        b'"\\u00e9"',
    ]
