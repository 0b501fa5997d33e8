"""Codecs between JSON and messages, for OpenAI Chat Completions, OpenAI Responses and Anthropic Messages.

The idea: JSON comes in, is read into messages, and leaves as the bytes that came, except where somebody changed a message.

    body ──decode_request──▶ Request(system, messages, tools, …) ──encode_request──▶ body
              each message keeps its own JSON (`Origin`), each part its block (`raw`)

    untouched message     its original bytes
    changed message       its original JSON with only the changed fields set; unknown fields and other blocks stay
    message of our own    written in the format's normal form

One element of the wire's list is one message, index for index. `role` is what a message is: whatever carries tool results
is a `tool` message. What the provider alone understands is an `Opaque` part and passes untouched. Odd but readable
messages are read as they are (verification judges them); JSON that cannot be a conversation is a `WireError` whose `place`
names the spot (`messages[3].content[0]`) and which never quotes content.

A module for each thing: `reading` guards and limits, `faults` what is wrong and where, `patch` changes; `chat`,
`anthropic`, `responses` (with `…_content`, `chat_reasoning`, `responses_tools`) the items of a format, `message` one item of
any format; `breakpoints` where a provider is to cache; `request`, `tools`, `reply`, `error`, `usage`, `transcript` whole
bodies, `detect` which format it is; `logs` the session logs of coding agents.
"""

from __future__ import annotations

from refold.wire.detect import detect_dialect
from refold.wire.error import ErrorBody, decode_error
from refold.wire.json_codec import MAX_BODY_BYTES, MAX_MESSAGES, MAX_OBJECTS
from refold.wire.message import decode_message, decode_messages, encode_message
from refold.wire.reply import Reply, decode_reply, decode_usage
from refold.wire.request import Request, decode_request, decode_tools, encode_request, encode_window
from refold.wire.transcript import decode_transcript, encode_transcript

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
