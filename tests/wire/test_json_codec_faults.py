from __future__ import annotations

import pytest

from refold.model.dialect import CHAT
from refold.model.errors import WireError
from refold.wire import decode_request, decode_transcript
from refold.wire.json_codec import FIELDS, ITEMS, read

HI = b'{"role":"user","content":"hi \\ud83d\\ude00 \\\\ud800"}'


def body(*items: bytes) -> bytes:
    return b'{"model":"m","messages":[' + b",".join(items) + b"]}"


def fault(data: bytes) -> WireError:
    with pytest.raises(WireError) as caught:
        decode_request(data, CHAT)
    return caught.value


@pytest.mark.parametrize(
    "half", [b"\\ud83d", b"\\ud83d tail", b"\\uDE00", b"\\ud83d\\ud83d\\ude00", b"\\ud83d\\n"]
)
def test_half_of_a_character_is_named_by_its_byte_and_its_message(half: bytes):
    data = body(HI, b'{"role":"tool","tool_call_id":"c","content":[{"type":"text","text":"a' + half + b'"}]}')
    error = fault(data)
    at = data.index(b"a" + half) + 1
    assert error.place == "messages[1].content[0]"
    assert error.message.endswith(f"holds half of a surrogate pair (byte {at})")


def test_a_fault_before_half_of_a_character_is_the_one_that_is_told():
    data = body(HI, b'{"role":"user","content":}', b'{"role":"user","content":"\\ud83d"}')
    assert "invalid character" in fault(data).message


@pytest.mark.parametrize("size", [0, 1, 14, 30, 60])
def test_json_that_ends_too_early_is_named_by_the_byte(size: int):
    assert f"(byte {size})" in fault(body(HI)[:size]).message


@pytest.mark.parametrize("opening, closing", [(b"[", b"]"), (b'{"a":', b"}")])
def test_what_is_nested_too_deeply_is_named_by_its_message(opening: bytes, closing: bytes):
    deep = opening * 3_000 + b"1" + closing * 3_000
    block = b'{"type":"text","text":"a, [b]","z":' + deep + b"}"
    message = b'{"role":"user","content":[{"type":"text","text":"\\"{"},' + block + b"]}"
    assert fault(body(HI, HI, message)).place == "messages[2].content[1]"
    with pytest.raises(WireError) as caught:
        decode_transcript(HI + b"\n" + message)
    assert caught.value.place == "line 2, content[1]"


def test_nesting_that_can_be_read_is_not_blamed():
    fine = b'{"role":"user","content":"a","z":' + b"[" * 150 + b"]" * 150 + b"}"
    deep = b'{"role":"user","content":"a","z":' + b"[" * 3_000 + b"]" * 3_000 + b"}"
    assert fault(body(fine, deep)).place == "messages[1]"


def test_a_field_that_is_not_known_is_not_named():
    assert fault(b'{"secret":' + b"[" * 3_000 + b"]" * 3_000 + b"}").place == ""


def test_a_place_costs_no_more_than_the_limit():
    data = b"[" + b'{"a":1},' * 400_000 + b"[" * 3_000 + b"]" * 3_000 + b"]"
    with pytest.raises(WireError, match="nested too deeply"):
        read(ITEMS, data)


@pytest.mark.parametrize("data", [b'"', b'{"a', b'{"a":"\\', b"}}]]", b'{"a":"\\ud83d', b'["\\ud83d'])
def test_no_fault_leads_to_another(data: bytes):
    with pytest.raises(WireError):
        read(FIELDS, data)
