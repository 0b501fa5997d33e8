"""Replies and errors in the format of OpenAI Chat Completions.

A stream is the message of the reply, split into deltas. Reasoning, which OpenAI's own format does not have,
is `reasoning_content`, as at DeepSeek and most servers of open models.
"""

from __future__ import annotations

from refold.model.message import Reasoning, Text, ToolCall
from refold.model.tokens import Usage
from refold.testing.script import Finish, JsonObject, NumberedReply, Refuse, ReplyEvent, ReplyPart, pieces

CREATED = 1_750_000_000
"""The time of all replies: a real clock would not be deterministic."""
DONE = ReplyEvent("[DONE]")
OPENING = 1
"""Events before the first one with content."""

_FINISH: dict[Finish, str] = {
    "stop": "stop",
    "length": "length",
    "calls": "tool_calls",
    "refusal": "stop",
    "filter": "content_filter",
    "window": "model_context_window_exceeded",
}
_ERRORS = {
    400: ("invalid_request_error", None, "Invalid request."),
    401: ("invalid_request_error", "invalid_api_key", "Incorrect API key provided."),
    403: ("invalid_request_error", None, "You are not allowed to use this model."),
    404: ("invalid_request_error", "model_not_found", "The model does not exist or you do not have access to it."),
    413: ("invalid_request_error", None, "Request body is too large."),
    429: ("requests", "rate_limit_exceeded", "Rate limit reached for requests per min (RPM). Please try again later."),
    500: ("server_error", None, "The server had an error while processing your request. Sorry about that!"),
    503: ("server_error", None, "The engine is currently overloaded, please try again later."),
}  # fmt: skip


def body(spoken: NumberedReply) -> JsonObject:
    choice = {
        "index": 0,
        "message": _message(spoken),
        "logprobs": None,
        "finish_reason": _FINISH[spoken.finish],
    }
    return {**_head(spoken, "chat.completion"), "choices": [choice], "usage": usage_of(spoken.usage)}


def events(spoken: NumberedReply) -> list[ReplyEvent]:
    head = _head(spoken, "chat.completion.chunk")
    if spoken.include_usage:
        head["usage"] = None
    deltas: list[JsonObject] = [{"role": "assistant", "content": ""}, *_deltas(spoken)]
    found = [_chunk(head, delta) for delta in deltas]
    found.append(_chunk(head, {}, _FINISH[spoken.finish]))
    if spoken.include_usage:
        found.append(ReplyEvent({**head, "choices": [], "usage": usage_of(spoken.usage)}))
    return [*found, DONE]


def error(refuse: Refuse, number: int) -> JsonObject:  # noqa: ARG001
    kind, code, message = _ERRORS.get(refuse.status) or _ERRORS[500 if refuse.status >= 500 else 400]
    text = refuse.message or message
    given = refuse.code if refuse.message or refuse.code else code
    return {"error": {"message": text, "type": refuse.type or kind, "param": None, "code": given}}


def error_event(spoken: NumberedReply, refuse: Refuse, at: int) -> ReplyEvent:  # noqa: ARG001
    """The error event that ends a stream in progress."""
    return ReplyEvent(error(refuse, spoken.number))


def usage_of(usage: Usage) -> JsonObject:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.output,
        "total_tokens": usage.prompt + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning, "audio_tokens": 0},
    }


def _head(spoken: NumberedReply, kind: str) -> JsonObject:
    return {"id": f"chatcmpl-{spoken.number}", "object": kind, "created": CREATED, "model": spoken.model}


def _message(spoken: NumberedReply) -> JsonObject:
    refuses = spoken.finish == "refusal"
    message: JsonObject = {"role": "assistant", "content": None, "refusal": None}
    if any(isinstance(part, Text) for part in spoken.parts) or not spoken.calls:
        message["refusal" if refuses else "content"] = spoken.text
    if spoken.thoughts:
        message["reasoning_content"] = spoken.thoughts
    if spoken.calls:
        message["tool_calls"] = [_call(call) for call in spoken.calls]
    return message


def _call(call: ToolCall) -> JsonObject:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _chunk(head: JsonObject, delta: JsonObject, finish: str | None = None) -> ReplyEvent:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return ReplyEvent({**head, "choices": [choice]})


def _deltas(spoken: NumberedReply) -> list[JsonObject]:
    text_key = "refusal" if spoken.finish == "refusal" else "content"
    found: list[JsonObject] = []
    calls = 0
    for part in spoken.parts:
        found += _part_deltas(part, text_key, calls)
        calls += isinstance(part, ToolCall)
    return found


def _part_deltas(part: ReplyPart, text_key: str, calls: int) -> list[JsonObject]:
    if isinstance(part, Text):
        return [{text_key: piece} for piece in pieces(part.text)]
    if isinstance(part, Reasoning):
        return [{"reasoning_content": piece} for piece in pieces(part.text)]
    first: JsonObject = {**_call(part), "index": calls, "function": {"name": part.name, "arguments": ""}}
    rest = [{"index": calls, "function": {"arguments": piece}} for piece in pieces(part.arguments)]
    return [{"tool_calls": [delta]} for delta in (first, *rest)]
