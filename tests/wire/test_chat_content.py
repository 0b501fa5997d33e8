from __future__ import annotations

import json

from msgspec import structs

from refold.model.dialect import CHAT
from refold.model.message import File, Image, Message, Opaque, ToolCall
from refold.wire import decode_message, encode_message
from tests.wire.samples import CHAT_MESSAGES, PNG


def encoded(message: Message) -> dict[str, object]:
    return json.loads(bytes(encode_message(message, CHAT)))


def test_every_kind_of_block_is_read():
    image, link, audio, stored, pdf, video = decode_message(CHAT_MESSAGES[3], CHAT).bare().parts[1:]
    assert image == Image(media_type="image/png", data=PNG)
    assert link == Image(url="https://example.org/a.png")
    assert audio == File(media_type="audio/wav", data="UklGRg==")
    assert stored == File(file_id="file-1")
    assert pdf == File(media_type="application/pdf", data="JVBERi0=", name="a.pdf")
    assert isinstance(video, Opaque)
    assert video.kind == "video_url"


def test_a_change_of_one_call_keeps_the_fields_of_the_other():
    message = decode_message(CHAT_MESSAGES[4], CHAT)
    thought, first, second = message.parts
    edited = encoded(message.with_parts((thought, structs.replace(first, arguments="{}"), second)))
    calls = edited["tool_calls"]
    assert calls[0] == {
        "id": "call_1",
        "type": "function",
        "index": 0,
        "function": {"name": "read", "arguments": "{}"},
    }
    assert calls[1]["extra"] == [100.0]
    assert edited["annotations"] == []


def test_a_changed_image_keeps_its_detail():
    message = decode_message(CHAT_MESSAGES[3], CHAT)
    image = structs.replace(message.parts[1], data="AAAA")
    edited = encoded(message.with_parts((image,)))
    assert edited["content"][0]["image_url"] == {"url": "data:image/png;base64,AAAA", "detail": "low"}


def test_malformed_arguments_are_kept_as_the_model_wrote_them():
    call = ToolCall("c", "f", '{"a": ')
    assert encoded(Message("assistant", (call,)))["tool_calls"][0]["function"]["arguments"] == '{"a": '


def test_an_address_alone_stays_alone():
    message = decode_message(CHAT_MESSAGES[15], CHAT)
    assert message.bare().parts == (Image(url="https://example.org/a.png"),)
    edited = encoded(message.with_parts((structs.replace(message.parts[0], url="https://example.org/b"),)))
    assert edited["content"] == [{"type": "image_url", "image_url": "https://example.org/b"}]


def test_arguments_that_are_no_text_are_read_as_the_text_they_would_be():
    message = decode_message(CHAT_MESSAGES[16], CHAT)
    assert [call.arguments for call in message.calls] == ['{"a":1.0}', ""]
    first, second = message.calls
    renamed = encoded(message.with_parts((structs.replace(first, id="c"), second)))
    assert renamed["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1.0}}
    changed = encoded(message.with_parts((structs.replace(first, arguments="{}"), second)))
    assert changed["tool_calls"][0]["function"]["arguments"] == "{}"
    assert changed["tool_calls"][1] == {"id": "call_4", "function": {"name": "g", "arguments": None}}
