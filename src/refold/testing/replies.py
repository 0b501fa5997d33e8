"""What the scripted provider answers: replies, streams and errors, in each of the three formats.

`PROTOCOLS` has one `WireProtocol` per format. All encode the same `NumberedReply`, as a body or as the events of a stream, and
the same `Refuse`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from typing import Protocol

import msgspec

from refold.model.message import DialectName, Reasoning, Text, ToolCall
from refold.model.tokens import Usage
from refold.testing.script import Finish, JsonObject, NumberedReply, Refuse, ReplyEvent, ReplyPart, pieces


class WireProtocol(Protocol):
    """The encoding of replies and errors in one protocol, as bodies and as events."""

    OPENING: int

    def body(self, spoken: NumberedReply) -> JsonObject: ...

    def events(self, spoken: NumberedReply) -> list[ReplyEvent]: ...

    def error(self, refuse: Refuse, number: int) -> JsonObject: ...

    def error_event(self, spoken: NumberedReply, refuse: Refuse, at: int) -> ReplyEvent: ...


# OpenAI Chat Completions

CREATED = 1_750_000_000
"""The time of all replies: a real clock would not be deterministic."""
_DONE = ReplyEvent("[DONE]")

_CHAT_FINISH: dict[Finish, str] = {
    "stop": "stop",
    "length": "length",
    "calls": "tool_calls",
    "refusal": "stop",
    "filter": "content_filter",
    "window": "model_context_window_exceeded",
}
_OPENAI_ERRORS = {
    400: ("invalid_request_error", None, "Invalid request."),
    401: ("invalid_request_error", "invalid_api_key", "Incorrect API key provided."),
    403: ("invalid_request_error", None, "You are not allowed to use this model."),
    404: ("invalid_request_error", "model_not_found", "The model does not exist or you do not have access to it."),
    413: ("invalid_request_error", None, "Request body is too large."),
    429: ("requests", "rate_limit_exceeded", "Rate limit reached for requests per min (RPM). Please try again later."),
    500: ("server_error", None, "The server had an error while processing your request. Sorry about that!"),
    503: ("server_error", None, "The engine is currently overloaded, please try again later."),
}  # fmt: skip


def _chat_usage(usage: Usage) -> JsonObject:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.output,
        "total_tokens": usage.prompt + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning, "audio_tokens": 0},
    }


def _chat_head(spoken: NumberedReply, kind: str) -> JsonObject:
    return {"id": f"chatcmpl-{spoken.number}", "object": kind, "created": CREATED, "model": spoken.model}


def _chat_message(spoken: NumberedReply) -> JsonObject:
    refuses = spoken.finish == "refusal"
    message: JsonObject = {"role": "assistant", "content": None, "refusal": None}
    if any(isinstance(part, Text) for part in spoken.parts) or not spoken.calls:
        message["refusal" if refuses else "content"] = spoken.text
    if spoken.thoughts:
        message["reasoning_content"] = spoken.thoughts
    if spoken.calls:
        message["tool_calls"] = [_chat_call(call) for call in spoken.calls]
    return message


def _chat_call(call: ToolCall) -> JsonObject:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _chat_chunk(head: JsonObject, delta: JsonObject, finish: str | None = None) -> ReplyEvent:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return ReplyEvent({**head, "choices": [choice]})


def _chat_deltas(spoken: NumberedReply) -> list[JsonObject]:
    text_key = "refusal" if spoken.finish == "refusal" else "content"
    found: list[JsonObject] = []
    calls = 0
    for part in spoken.parts:
        found += _chat_part_deltas(part, text_key, calls)
        calls += isinstance(part, ToolCall)
    return found


def _chat_part_deltas(part: ReplyPart, text_key: str, calls: int) -> list[JsonObject]:
    if isinstance(part, Text):
        return [{text_key: piece} for piece in pieces(part.text)]
    if isinstance(part, Reasoning):
        return [{"reasoning_content": piece} for piece in pieces(part.text)]
    first: JsonObject = {**_chat_call(part), "index": calls, "function": {"name": part.name, "arguments": ""}}
    rest = [{"index": calls, "function": {"arguments": piece}} for piece in pieces(part.arguments)]
    return [{"tool_calls": [delta]} for delta in (first, *rest)]


def _openai_error(refuse: Refuse) -> JsonObject:
    """An error as both of OpenAI's formats have it."""
    kind, code, message = (
        _OPENAI_ERRORS.get(refuse.status) or _OPENAI_ERRORS[500 if refuse.status >= 500 else 400]
    )
    text = refuse.message or message
    given = refuse.code if refuse.message or refuse.code else code
    return {"error": {"message": text, "type": refuse.type or kind, "param": None, "code": given}}


class ChatReplies:
    """Replies and errors in the format of OpenAI Chat Completions.

    A stream is the message of the reply, split into deltas. Reasoning, which OpenAI's own format does not have,
    is `reasoning_content`, as at DeepSeek and most servers of open models.
    """

    OPENING = 1
    """Events before the first one with content."""

    def body(self, spoken: NumberedReply) -> JsonObject:
        choice = {
            "index": 0,
            "message": _chat_message(spoken),
            "logprobs": None,
            "finish_reason": _CHAT_FINISH[spoken.finish],
        }
        return {
            **_chat_head(spoken, "chat.completion"),
            "choices": [choice],
            "usage": _chat_usage(spoken.usage),
        }

    def events(self, spoken: NumberedReply) -> list[ReplyEvent]:
        head = _chat_head(spoken, "chat.completion.chunk")
        if spoken.include_usage:
            head["usage"] = None
        deltas: list[JsonObject] = [{"role": "assistant", "content": ""}, *_chat_deltas(spoken)]
        found = [_chat_chunk(head, delta) for delta in deltas]
        found.append(_chat_chunk(head, {}, _CHAT_FINISH[spoken.finish]))
        if spoken.include_usage:
            found.append(ReplyEvent({**head, "choices": [], "usage": _chat_usage(spoken.usage)}))
        return [*found, _DONE]

    def error(self, refuse: Refuse, number: int) -> JsonObject:  # noqa: ARG002
        return _openai_error(refuse)

    def error_event(self, spoken: NumberedReply, refuse: Refuse, at: int) -> ReplyEvent:  # noqa: ARG002
        """The error event that ends a stream in progress."""
        return ReplyEvent(self.error(refuse, spoken.number))


# OpenAI Responses

_INCOMPLETE: dict[Finish, str] = {
    "length": "max_output_tokens",
    "filter": "content_filter",
    "window": "max_output_tokens",
}


def responses_usage(usage: Usage) -> JsonObject:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.output,
    }


def _response(spoken: NumberedReply, status: str) -> JsonObject:
    return {
        "id": response_id(spoken.number),
        "object": "response",
        "created_at": CREATED,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": spoken.model,
        "output": [],
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": None,
    }


def response_id(number: int) -> str:
    return f"resp_{number}"


def _responses_opening(spoken: NumberedReply) -> list[JsonObject]:
    begun = _response(spoken, "in_progress")
    return [{"type": f"response.{word}", "response": begun} for word in ("created", "in_progress")]


def _responses_numbered(events: Iterable[JsonObject], first: int = 0) -> list[ReplyEvent]:
    numbers = count(first)
    return [ReplyEvent({**data, "sequence_number": next(numbers)}, str(data["type"])) for data in events]


def _responses_items(spoken: NumberedReply) -> list[JsonObject]:
    return [
        _responses_item(part, f"{spoken.number}_{index}", spoken) for index, part in enumerate(spoken.parts)
    ]


def _responses_item(part: ReplyPart, name: str, spoken: NumberedReply) -> JsonObject:
    status = "incomplete" if spoken.finish in _INCOMPLETE else "completed"
    if isinstance(part, Text):
        content = [_responses_content(part.text, refuses=spoken.finish == "refusal")]
        return {
            "id": f"msg_{name}",
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }
    if isinstance(part, ToolCall):
        call = {"call_id": part.id, "name": part.name, "arguments": part.arguments}
        return {"id": f"fc_{name}", "type": "function_call", "status": status, **call}
    summary = [{"type": "summary_text", "text": part.text}] if part.text else []
    item: JsonObject = {"id": f"rs_{name}", "type": "reasoning", "summary": summary}
    return {**item, "encrypted_content": part.sealed or part.signature} if spoken.include_sealed else item


def _responses_content(text: str, *, refuses: bool) -> JsonObject:
    if refuses:
        return {"type": "refusal", "refusal": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _responses_item_events(item: JsonObject, index: int) -> Iterator[JsonObject]:
    at = {"item_id": item["id"], "output_index": index}
    unsaid: JsonObject = {"content": [], "summary": [], "arguments": "", "status": "in_progress"}
    empty = {key: unsaid.get(key, value) for key, value in item.items()}
    yield {"type": "response.output_item.added", "output_index": index, "item": empty}
    if item["type"] == "function_call":
        yield from _responses_delta_events(
            "response.function_call_arguments", "arguments", str(item["arguments"]), at
        )
    elif item["type"] == "message":
        yield from _responses_content_events(item["content"], at)
    else:
        yield from _responses_summary_events(item["summary"], at)
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _responses_content_events(contents: object, at: JsonObject) -> Iterator[JsonObject]:
    assert isinstance(contents, list)
    for index, part in enumerate(contents):
        place = {**at, "content_index": index}
        key = "refusal" if part["type"] == "refusal" else "text"
        yield {"type": "response.content_part.added", **place, "part": {**part, key: ""}}
        kind = f"response.{part['type']}"
        extra: JsonObject = {"logprobs": []} if key == "text" else {}
        yield from _responses_delta_events(kind, key, part[key], {**place, **extra})
        yield {"type": "response.content_part.done", **place, "part": part}


def _responses_summary_events(summary: object, at: JsonObject) -> Iterator[JsonObject]:
    assert isinstance(summary, list)
    for index, part in enumerate(summary):
        place = {**at, "summary_index": index}
        kind = "response.reasoning_summary_part"
        yield {"type": f"{kind}.added", **place, "part": {**part, "text": ""}}
        yield from _responses_delta_events("response.reasoning_summary_text", "text", part["text"], place)
        yield {"type": f"{kind}.done", **place, "part": part}


def _responses_delta_events(kind: str, key: str, text: str, place: JsonObject) -> Iterator[JsonObject]:
    """A text as delta events, and then as a whole."""
    for piece in pieces(text):
        yield {"type": f"{kind}.delta", **place, "delta": piece}
    yield {"type": f"{kind}.done", **place, key: text}


class ResponsesReplies:
    """Replies and errors in the format of OpenAI Responses.

    A reply is a list of items, each with an id and an index. A stream has, for each item, events for its start,
    its deltas and its end; every event has a number.
    """

    OPENING = 2
    """Events before the first one with content."""

    def body(self, spoken: NumberedReply) -> JsonObject:
        reason = _INCOMPLETE.get(spoken.finish)
        return {
            **_response(spoken, "incomplete" if reason else "completed"),
            "incomplete_details": {"reason": reason} if reason else None,
            "output": _responses_items(spoken),
            "usage": responses_usage(spoken.usage),
        }

    def events(self, spoken: NumberedReply) -> list[ReplyEvent]:
        whole = self.body(spoken)
        items = _responses_items(spoken)
        found: list[JsonObject] = [*_responses_opening(spoken)]
        for index, item in enumerate(items):
            found += _responses_item_events(item, index)
        found.append({"type": f"response.{whole['status']}", "response": whole})
        return _responses_numbered(found)

    def error(self, refuse: Refuse, number: int) -> JsonObject:  # noqa: ARG002
        return _openai_error(refuse)

    def error_event(self, spoken: NumberedReply, refuse: Refuse, at: int) -> ReplyEvent:
        """The error event that ends a stream in progress; it has number `at`."""
        details = _openai_error(refuse)["error"]
        assert isinstance(details, dict)
        failure = {"code": details["code"] or details["type"], "message": details["message"]}
        failed = {**_response(spoken, "failed"), "error": failure}
        return _responses_numbered([{"type": "response.failed", "response": failed}], at)[0]


# Anthropic Messages

_ANTHROPIC_FINISH: dict[Finish, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "calls": "tool_use",
    "refusal": "refusal",
    "filter": "refusal",
    "window": "model_context_window_exceeded",
}
_ANTHROPIC_ERRORS = {
    400: ("invalid_request_error", "Invalid request."),
    401: ("authentication_error", "invalid x-api-key"),
    403: ("permission_error", "Your API key does not have permission to use the specified resource."),
    404: ("not_found_error", "The requested resource could not be found."),
    413: ("request_too_large", "Request exceeds the maximum size"),
    429: ("rate_limit_error", "This request would exceed your organization's rate limit. Please try again later."),
    500: ("api_error", "Internal server error"),
    529: ("overloaded_error", "Overloaded"),
}  # fmt: skip


def _anthropic_usage(usage: Usage, written_1h: int = 0) -> JsonObject:
    written = {
        "ephemeral_5m_input_tokens": usage.cache_write - written_1h,
        "ephemeral_1h_input_tokens": written_1h,
    }
    return {
        "input_tokens": usage.input,
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cache_read,
        "cache_creation": written,
        **_anthropic_output(usage),
        "service_tier": "standard",
    }


def _anthropic_output(usage: Usage) -> JsonObject:
    details = {"thinking_tokens": usage.reasoning}
    return {"output_tokens": usage.output, "output_tokens_details": details}


def _anthropic_head(spoken: NumberedReply) -> JsonObject:
    return {
        "id": f"msg_{spoken.number}",
        "type": "message",
        "role": "assistant",
        "model": spoken.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _anthropic_event(kind: str, **fields: object) -> ReplyEvent:
    return ReplyEvent({"type": kind, **fields}, kind)


def _anthropic_start(spoken: NumberedReply) -> ReplyEvent:
    usage = {**_anthropic_usage(spoken.usage, spoken.written_1h), **_anthropic_output(Usage(output=1))}
    return _anthropic_event("message_start", message={**_anthropic_head(spoken), "usage": usage})


def _anthropic_block(part: ReplyPart) -> JsonObject:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text, "citations": None}
    if isinstance(part, Reasoning):
        if part.sealed:
            return {"type": "redacted_thinking", "data": part.sealed}
        return {"type": "thinking", "thinking": part.text, "signature": part.signature}
    return {"type": "tool_use", "id": part.id, "name": part.name, "input": _anthropic_input(part.arguments)}


def _anthropic_input(arguments: str) -> object:
    """The arguments as an object. Invalid JSON can only be sent in a stream, so it becomes an empty object
    here.
    """
    try:
        return msgspec.json.decode(arguments or "{}")
    except msgspec.DecodeError:
        return {}


def _anthropic_block_events(index: int, part: ReplyPart) -> Iterator[ReplyEvent]:
    yield _anthropic_event("content_block_start", index=index, content_block=_anthropic_empty_block(part))
    for delta in _anthropic_deltas(part):
        yield _anthropic_event("content_block_delta", index=index, delta=delta)
    yield _anthropic_event("content_block_stop", index=index)


def _anthropic_empty_block(part: ReplyPart) -> JsonObject:
    """A block at the start of its stream, with empty content."""
    block = _anthropic_block(part)
    empty = {"text": "", "thinking": "", "signature": "", "input": {}}
    return {key: empty.get(key, value) if key != "type" else value for key, value in block.items()}


def _anthropic_deltas(part: ReplyPart) -> Iterator[JsonObject]:
    if isinstance(part, Text):
        yield from _anthropic_delta_events("text_delta", "text", pieces(part.text))
    elif isinstance(part, ToolCall):
        yield from _anthropic_delta_events("input_json_delta", "partial_json", ["", *pieces(part.arguments)])
    elif not part.sealed:
        yield from _anthropic_delta_events("thinking_delta", "thinking", pieces(part.text))
        yield {"type": "signature_delta", "signature": part.signature}


def _anthropic_delta_events(kind: str, key: str, texts: list[str]) -> Iterator[JsonObject]:
    for text in texts:
        yield {"type": kind, key: text}


class AnthropicReplies:
    """Replies and errors in the format of Anthropic Messages.

    A reply is a list of blocks; a stream opens each block empty, fills it with deltas and closes it. Usage comes
    twice: for the prompt at the start, for the output at the end.
    """

    OPENING = 1
    """Events before the first one with content."""

    def body(self, spoken: NumberedReply) -> JsonObject:
        return {
            **_anthropic_head(spoken),
            "content": [_anthropic_block(part) for part in spoken.parts],
            "stop_reason": _ANTHROPIC_FINISH[spoken.finish],
            "usage": _anthropic_usage(spoken.usage, spoken.written_1h),
        }

    def events(self, spoken: NumberedReply) -> list[ReplyEvent]:
        found = [_anthropic_start(spoken)]
        for index, part in enumerate(spoken.parts):
            found += _anthropic_block_events(index, part)
            if index == 0:
                found.insert(2, _anthropic_event("ping"))
        if not spoken.parts:
            found.append(_anthropic_event("ping"))
        delta = {"stop_reason": _ANTHROPIC_FINISH[spoken.finish], "stop_sequence": None}
        usage = _anthropic_output(spoken.usage)
        return [
            *found,
            _anthropic_event("message_delta", delta=delta, usage=usage),
            _anthropic_event("message_stop"),
        ]

    def error(self, refuse: Refuse, number: int) -> JsonObject:
        kind, message = (
            _ANTHROPIC_ERRORS.get(refuse.status) or _ANTHROPIC_ERRORS[500 if refuse.status >= 500 else 400]
        )
        details = {"type": refuse.type or kind, "message": refuse.message or message}
        return {"type": "error", "error": details, "request_id": f"req_{number}"}

    def error_event(self, spoken: NumberedReply, refuse: Refuse, at: int) -> ReplyEvent:  # noqa: ARG002
        """The error event that ends a stream in progress."""
        return ReplyEvent(self.error(refuse, spoken.number), "error")


PROTOCOLS: dict[DialectName, WireProtocol] = {
    "chat": ChatReplies(),
    "responses": ResponsesReplies(),
    "anthropic": AnthropicReplies(),
}
