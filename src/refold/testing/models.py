"""What a provider says about its models, and how long it says a prompt is.

One idea: OpenAI's list says nothing about windows, so servers of open models add a field of their own; Anthropic's does.
"""

from __future__ import annotations

from refold.model.dialect import Dialect
from refold.testing.chat import CREATED
from refold.testing.events import Json
from refold.testing.rules import Limits

_SINCE = "2025-06-15T15:06:40Z"


def listing(name: str, limits: Limits, *, is_anthropic: bool) -> Json:
    found = [model(name, limits, is_anthropic=is_anthropic)]
    if is_anthropic:
        return {"data": found, "has_more": False, "first_id": name, "last_id": name}
    return {"object": "list", "data": found}


def model(name: str, limits: Limits, *, is_anthropic: bool) -> Json:
    if not is_anthropic:
        window = {"max_model_len": limits.window} if limits.window else {}
        return {"id": name, "object": "model", "created": CREATED, "owned_by": "refold", **window}
    sizes = {"max_input_tokens": limits.window, "max_tokens": limits.max_output}
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": _SINCE,
        "lifecycle": "active",
        **sizes,
    }


def count_of(dialect: Dialect, size: int) -> Json:
    kind = {} if dialect.name == "anthropic" else {"object": "response.input_tokens"}
    return {**kind, "input_tokens": size}
