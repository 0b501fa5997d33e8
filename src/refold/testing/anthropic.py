"""Replies and errors in the format of Anthropic Messages.

A reply is a list of blocks; a stream opens each block empty, fills it with deltas and closes it. Usage comes
twice: for the prompt at the start, for the output at the end.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from refold.model.message import Reasoning, Text, ToolCall
from refold.model.tokens import Usage
from refold.testing.script import Finish, JsonObject, NumberedReply, Refuse, ReplyEvent, ReplyPart, pieces

OPENING = 1
"""Events before the first one with content."""

_FINISH: dict[Finish, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "calls": "tool_use",
    "refusal": "refusal",
    "filter": "refusal",
    "window": "model_context_window_exceeded",
}
_ERRORS = {
    400: ("invalid_request_error", "Invalid request."),
    401: ("authentication_error", "invalid x-api-key"),
    403: ("permission_error", "Your API key does not have permission to use the specified resource."),
    404: ("not_found_error", "The requested resource could not be found."),
    413: ("request_too_large", "Request exceeds the maximum size"),
    429: ("rate_limit_error", "This request would exceed your organization's rate limit. Please try again later."),
    500: ("api_error", "Internal server error"),
    529: ("overloaded_error", "Overloaded"),
}  # fmt: skip


def body(spoken: NumberedReply) -> JsonObject:
    return {
        **_head(spoken),
        "content": [_block(part) for part in spoken.parts],
        "stop_reason": _FINISH[spoken.finish],
        "usage": usage_of(spoken.usage, spoken.written_1h),
    }


def events(spoken: NumberedReply) -> list[ReplyEvent]:
    found = [_start(spoken)]
    for index, part in enumerate(spoken.parts):
        found += _block_events(index, part)
        if index == 0:
            found.insert(2, _event("ping"))
    if not spoken.parts:
        found.append(_event("ping"))
    delta = {"stop_reason": _FINISH[spoken.finish], "stop_sequence": None}
    usage = _output(spoken.usage)
    return [*found, _event("message_delta", delta=delta, usage=usage), _event("message_stop")]


def error(refuse: Refuse, number: int) -> JsonObject:
    kind, message = _ERRORS.get(refuse.status) or _ERRORS[500 if refuse.status >= 500 else 400]
    details = {"type": refuse.type or kind, "message": refuse.message or message}
    return {"type": "error", "error": details, "request_id": f"req_{number}"}


def error_event(spoken: NumberedReply, refuse: Refuse, at: int) -> ReplyEvent:  # noqa: ARG001
    """The error event that ends a stream in progress."""
    return ReplyEvent(error(refuse, spoken.number), "error")


def usage_of(usage: Usage, written_1h: int = 0) -> JsonObject:
    written = {
        "ephemeral_5m_input_tokens": usage.cache_write - written_1h,
        "ephemeral_1h_input_tokens": written_1h,
    }
    return {
        "input_tokens": usage.input,
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cache_read,
        "cache_creation": written,
        **_output(usage),
        "service_tier": "standard",
    }


def _output(usage: Usage) -> JsonObject:
    details = {"thinking_tokens": usage.reasoning}
    return {"output_tokens": usage.output, "output_tokens_details": details}


def _head(spoken: NumberedReply) -> JsonObject:
    return {
        "id": f"msg_{spoken.number}",
        "type": "message",
        "role": "assistant",
        "model": spoken.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _event(kind: str, **fields: object) -> ReplyEvent:
    return ReplyEvent({"type": kind, **fields}, kind)


def _start(spoken: NumberedReply) -> ReplyEvent:
    usage = {**usage_of(spoken.usage, spoken.written_1h), **_output(Usage(output=1))}
    return _event("message_start", message={**_head(spoken), "usage": usage})


def _block(part: ReplyPart) -> JsonObject:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text, "citations": None}
    if isinstance(part, Reasoning):
        if part.sealed:
            return {"type": "redacted_thinking", "data": part.sealed}
        return {"type": "thinking", "thinking": part.text, "signature": part.signature}
    return {"type": "tool_use", "id": part.id, "name": part.name, "input": _input(part.arguments)}


def _input(arguments: str) -> object:
    """The arguments as an object. Invalid JSON can only be sent in a stream, so it becomes an empty object
    here.
    """
    try:
        return msgspec.json.decode(arguments or "{}")
    except msgspec.DecodeError:
        return {}


def _block_events(index: int, part: ReplyPart) -> Iterator[ReplyEvent]:
    yield _event("content_block_start", index=index, content_block=_empty_block(part))
    for delta in _deltas(part):
        yield _event("content_block_delta", index=index, delta=delta)
    yield _event("content_block_stop", index=index)


def _empty_block(part: ReplyPart) -> JsonObject:
    """A block at the start of its stream, with empty content."""
    block = _block(part)
    empty = {"text": "", "thinking": "", "signature": "", "input": {}}
    return {key: empty.get(key, value) if key != "type" else value for key, value in block.items()}


def _deltas(part: ReplyPart) -> Iterator[JsonObject]:
    if isinstance(part, Text):
        yield from _delta_events("text_delta", "text", pieces(part.text))
    elif isinstance(part, ToolCall):
        yield from _delta_events("input_json_delta", "partial_json", ["", *pieces(part.arguments)])
    elif not part.sealed:
        yield from _delta_events("thinking_delta", "thinking", pieces(part.text))
        yield {"type": "signature_delta", "signature": part.signature}


def _delta_events(kind: str, key: str, texts: list[str]) -> Iterator[JsonObject]:
    for text in texts:
        yield {"type": kind, key: text}
