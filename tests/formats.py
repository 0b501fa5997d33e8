"""Conversations as plain dictionaries, in the three formats, as programs have them."""

from __future__ import annotations

import json
from collections.abc import Callable

from refold.core.verify import verify_window
from refold.model.dialect import DIALECTS
from refold.model.window import Window
from refold.wire import decode_request

Plain = dict[str, object]


def question(text: str) -> Plain:
    return {"role": "user", "content": text}


def answer(text: str) -> Plain:
    return {"role": "assistant", "content": text}


def chat_call(name: str, **arguments: object) -> Plain:
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": f"call_{name}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def responses_call(name: str, **arguments: object) -> Plain:
    return {
        "type": "function_call",
        "call_id": f"call_{name}",
        "name": name,
        "arguments": json.dumps(arguments),
    }


def anthropic_call(name: str, **arguments: object) -> Plain:
    return {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": f"call_{name}", "name": name, "input": arguments}],
    }


def chat_result(name: str, text: str) -> Plain:
    return {"role": "tool", "tool_call_id": f"call_{name}", "content": text}


def responses_result(name: str, text: str) -> Plain:
    return {"type": "function_call_output", "call_id": f"call_{name}", "output": text}


def anthropic_result(name: str, text: str) -> Plain:
    return {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": f"call_{name}", "content": text}],
    }


CALLS: dict[str, Callable[..., Plain]] = {
    "chat": chat_call,
    "responses": responses_call,
    "anthropic": anthropic_call,
}
RESULTS: dict[str, Callable[[str, str], Plain]] = {
    "chat": chat_result,
    "responses": responses_result,
    "anthropic": anthropic_result,
}
KEYS = {name: dialect.messages_key for name, dialect in DIALECTS.items()}


def turn(number: int, format_name: str = "chat", *, lines: int = 20) -> list[Plain]:
    """A question, a look into a file and an answer."""
    name = f"read_{number}"
    return [
        question(f"What is in file {number}?"),
        CALLS[format_name](name, path=f"src/f{number}.py"),
        RESULTS[format_name](name, f"value_{number} = {number * 37}\n" * lines),
        answer(f"File {number} sets value_{number} to {number * 37}."),
    ]


def violations(fields: Plain, format_name: str = "chat") -> tuple[object, ...]:
    """What a provider would refuse of a request with these fields."""
    request = decode_request(json.dumps(fields).encode(), DIALECTS[format_name])  # type: ignore[index]
    return verify_window(Window(request.fixed, request.messages), as_request=True)
