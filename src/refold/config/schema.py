"""The JSON schema of the file, for editors.

One idea: a schema says what may be written, which is more than the types of the tree: a size may be a text such as `4k`, and
what may be left to somebody else may be the word `default`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from refold.config.keys import KEYS, SECTIONS, UPSTREAM_KEYS, UPSTREAMS, Key
from refold.config.reading import ELSEWHERE
from refold.config.sizes import MAX_TOKENS
from refold.config.tree import UPSTREAM_NAME
from refold.config.writing import plain_default

Form: TypeAlias = dict[str, Any]

TOKENS_TEXT = r"^(\d[\d_]*|\d+(\.\d+)? ?[kKmM])$"
SHARE_TEXT = r"^(\d+(\.\d+)? ?%|[01]\.\d+)$"
_TOKENS: list[Form] = [
    {"type": "integer", "minimum": 0, "maximum": MAX_TOKENS},
    {"type": "string", "pattern": TOKENS_TEXT},
]
_SHARE: list[Form] = [
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "string", "pattern": SHARE_TEXT},
]


def schema() -> Form:
    """The schema of refold.toml."""
    sections = {
        name: _table([key for key in KEYS.values() if key.section == name], kind.__doc__)
        for name, kind in SECTIONS.items()
    }
    upstream = _table([*UPSTREAM_KEYS.values()], "A provider, or a server of your own.")
    sections[UPSTREAMS] = {
        "type": "object",
        "propertyNames": {"pattern": UPSTREAM_NAME},
        "additionalProperties": upstream,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Settings of Refold",
        "type": "object",
        "additionalProperties": False,
        "properties": sections,
    }


def _table(keys: list[Key], what: str | None) -> Form:
    return {
        "type": "object",
        "description": what or "",
        "additionalProperties": False,
        "properties": {key.field: _property(key) for key in keys},
    }


def _property(key: Key) -> Form:
    choices = _choices(key)
    if key.is_optional:
        choices = [*(one for one in choices if one != {"type": "null"}), {"const": ELSEWHERE}]
    form = choices[0] if len(choices) == 1 else {"anyOf": choices}
    return {"description": key.what, **form, "default": plain_default(key)}


def _choices(key: Key) -> list[Form]:
    match key.kind:
        case "tokens":
            words: list[Form] = [{"enum": [*key.words]}] if key.words else []
            return [*words, *_TOKENS]
        case "share":
            return _SHARE
        case "size":
            return [*_TOKENS, *_SHARE]
        case _:
            found = msgspec.json.schema(key.type)
            found.pop("description", None)
            parts: list[Form] = found.get("anyOf", [found])
            return parts
