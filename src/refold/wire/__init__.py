"""Codecs between JSON and messages, for OpenAI Chat Completions, OpenAI Responses and Anthropic Messages.

JSON is decoded into messages, and is sent with the bytes that came, except for messages that were changed.

    body ──decode_request──▶ Request(system, messages, tools, …) ──encode_request──▶ body
              each message keeps its own JSON (`Origin`), each part its block (`raw`)

    untouched message     its original bytes
    changed message       its original JSON with only the changed fields set; unknown fields and other blocks stay
    message of our own    written in the format's normal form

One element of the wire's list is one message, index for index. `role` is the meaning of a message: every
message with tool results is a `tool` message. Blocks that only the provider understands are `Opaque` parts
and pass unchanged. Odd but readable messages are read as they are (verification judges them). JSON that
cannot be a conversation raises a `WireError` with a `place` (`messages[3].content[0]`), which never quotes
content.

`json_codec` reads and writes JSON within limits; `chat`, `anthropic` and `responses` are the items and
streams of one format, `request` a message of any format and whole requests; `reply`, `error` and `transcript` are
whole bodies; `reply` reads streamed replies too, from the events of `sse`; `transcript` also recognises the
format, `translate` converts between formats, `sdk` takes and returns plain Python values; `logs` reads the
session logs of coding agents.
"""

from __future__ import annotations

from refold.wire.error import ErrorBody, decode_error
from refold.wire.json_codec import MAX_BODY_BYTES, MAX_MESSAGES, MAX_OBJECTS
from refold.wire.reply import Reply, decode_reply, decode_usage
from refold.wire.request import (
    Request,
    decode_message,
    decode_messages,
    decode_request,
    decode_tools,
    encode_message,
    encode_request,
    encode_window,
)
from refold.wire.transcript import decode_transcript, detect_dialect, encode_transcript

__all__ = [
    "MAX_BODY_BYTES",
    "MAX_MESSAGES",
    "MAX_OBJECTS",
    "ErrorBody",
    "Reply",
    "Request",
    "decode_error",
    "decode_message",
    "decode_messages",
    "decode_reply",
    "decode_request",
    "decode_tools",
    "decode_transcript",
    "decode_usage",
    "detect_dialect",
    "encode_message",
    "encode_request",
    "encode_transcript",
    "encode_window",
]
