"""Replies and errors in the format of OpenAI Responses.

A reply is a list of items, each with an id and an index. A stream has, for each item, events for its start,
its deltas and its end; every event has a number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count

from refold.model.message import Text, ToolCall
from refold.model.tokens import Usage
from refold.testing import chat
from refold.testing.script import Finish, JsonObject, NumberedReply, Refuse, ReplyEvent, ReplyPart, pieces

OPENING = 2
"""Events before the first one with content."""

_INCOMPLETE: dict[Finish, str] = {
    "length": "max_output_tokens",
    "filter": "content_filter",
    "window": "max_output_tokens",
}


def body(spoken: NumberedReply) -> JsonObject:
    reason = _INCOMPLETE.get(spoken.finish)
    return {
        **_response(spoken, "incomplete" if reason else "completed"),
        "incomplete_details": {"reason": reason} if reason else None,
        "output": _items(spoken),
        "usage": usage_of(spoken.usage),
    }


def events(spoken: NumberedReply) -> list[ReplyEvent]:
    whole = body(spoken)
    items = _items(spoken)
    found: list[JsonObject] = [*_opening(spoken)]
    for index, item in enumerate(items):
        found += _item_events(item, index)
    found.append({"type": f"response.{whole['status']}", "response": whole})
    return _numbered(found)


def error(refuse: Refuse, number: int) -> JsonObject:
    return chat.error(refuse, number)


def error_event(spoken: NumberedReply, refuse: Refuse, at: int) -> ReplyEvent:
    """The error event that ends a stream in progress; it has number `at`."""
    details = error(refuse, spoken.number)["error"]
    assert isinstance(details, dict)
    failure = {"code": details["code"] or details["type"], "message": details["message"]}
    failed = {**_response(spoken, "failed"), "error": failure}
    return _numbered([{"type": "response.failed", "response": failed}], at)[0]


def usage_of(usage: Usage) -> JsonObject:
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
        "created_at": chat.CREATED,
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


def _opening(spoken: NumberedReply) -> list[JsonObject]:
    begun = _response(spoken, "in_progress")
    return [{"type": f"response.{word}", "response": begun} for word in ("created", "in_progress")]


def _numbered(events: Iterable[JsonObject], first: int = 0) -> list[ReplyEvent]:
    numbers = count(first)
    return [ReplyEvent({**data, "sequence_number": next(numbers)}, str(data["type"])) for data in events]


def _items(spoken: NumberedReply) -> list[JsonObject]:
    return [_item(part, f"{spoken.number}_{index}", spoken) for index, part in enumerate(spoken.parts)]


def _item(part: ReplyPart, name: str, spoken: NumberedReply) -> JsonObject:
    status = "incomplete" if spoken.finish in _INCOMPLETE else "completed"
    if isinstance(part, Text):
        content = [_content(part.text, refuses=spoken.finish == "refusal")]
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


def _content(text: str, *, refuses: bool) -> JsonObject:
    if refuses:
        return {"type": "refusal", "refusal": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _item_events(item: JsonObject, index: int) -> Iterator[JsonObject]:
    at = {"item_id": item["id"], "output_index": index}
    unsaid: JsonObject = {"content": [], "summary": [], "arguments": "", "status": "in_progress"}
    empty = {key: unsaid.get(key, value) for key, value in item.items()}
    yield {"type": "response.output_item.added", "output_index": index, "item": empty}
    if item["type"] == "function_call":
        yield from _delta_events("response.function_call_arguments", "arguments", str(item["arguments"]), at)
    elif item["type"] == "message":
        yield from _content_events(item["content"], at)
    else:
        yield from _summary_events(item["summary"], at)
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _content_events(contents: object, at: JsonObject) -> Iterator[JsonObject]:
    assert isinstance(contents, list)
    for index, part in enumerate(contents):
        place = {**at, "content_index": index}
        key = "refusal" if part["type"] == "refusal" else "text"
        yield {"type": "response.content_part.added", **place, "part": {**part, key: ""}}
        kind = f"response.{part['type']}"
        extra: JsonObject = {"logprobs": []} if key == "text" else {}
        yield from _delta_events(kind, key, part[key], {**place, **extra})
        yield {"type": "response.content_part.done", **place, "part": part}


def _summary_events(summary: object, at: JsonObject) -> Iterator[JsonObject]:
    assert isinstance(summary, list)
    for index, part in enumerate(summary):
        place = {**at, "summary_index": index}
        kind = "response.reasoning_summary_part"
        yield {"type": f"{kind}.added", **place, "part": {**part, "text": ""}}
        yield from _delta_events("response.reasoning_summary_text", "text", part["text"], place)
        yield {"type": f"{kind}.done", **place, "part": part}


def _delta_events(kind: str, key: str, text: str, place: JsonObject) -> Iterator[JsonObject]:
    """A text as delta events, and then as a whole."""
    for piece in pieces(text):
        yield {"type": f"{kind}.delta", **place, "delta": piece}
    yield {"type": f"{kind}.done", **place, key: text}
