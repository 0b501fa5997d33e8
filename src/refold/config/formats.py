"""Settings as text: the commented file of `refold config init`, the output of `refold config show`, the JSON
schema for editors, and the table in docs/configuration.md.

The printed TOML can be read again. In the commented file each setting has its description, its range and its
default, so removing the comment mark alone changes nothing. Every value passes the mask of its setting first:
all code that shows settings, also over HTTP, takes them from here, so no secret is printed.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from refold.config.layers import DEFAULT, ValueOrigin
from refold.config.parse import ELSEWHERE, expected, shown
from refold.config.resolution import ResolvedSettings
from refold.config.tree import (
    KEYS,
    SECTIONS,
    UPSTREAM_KEYS,
    UPSTREAM_NAME,
    UPSTREAMS,
    SettingKey,
    UpstreamSettings,
    all_keys,
)
from refold.model.errors import MAX_TOKENS
from refold.model.tokens import Share, Tokens

HEAD = """\
# Settings of Refold. Every line that is commented out shows the default.
# flag > environment variable > change while it runs > refold.toml of the project > your own file > default
# docs/configuration.md has all of it in one table; `refold config check` reads this file.
"""
EXAMPLE = """\
# An upstream by its well-known name; its key is in OPENAI_API_KEY, or the client brings its own.
# [upstreams.openai]
# models = ["gpt-*"]

# A server of your own. Never write a key here: name the variable that holds it, or a command that prints it.
"""
SAMPLE = "my-server"
"""The upstream in the commented file."""
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def commented() -> str:
    """Return a file with every setting as a comment, with its description and its default."""
    parts = [HEAD]
    for section, kind in SECTIONS.items():
        parts.append(f"# {_first_line(kind)}\n[{section}]\n")
        parts.extend(_entry(key) for key in KEYS.values() if key.section == section)
    parts.append(EXAMPLE + f"# [{UPSTREAMS}.{SAMPLE}]\n")
    parts.extend(_entry(key) for key in UPSTREAM_KEYS.values())
    return "\n".join(parts)


def settings_toml(resolved: ResolvedSettings, *, with_origins: bool = False) -> str:
    """Return all settings as TOML, on request each with its origin."""
    blocks: dict[str, list[str]] = {section: [] for section in SECTIONS}
    for name, value, origin in values_of(resolved):
        section, _, field = name.rpartition(".")
        note = (
            f"  # {''.join(filter(str.isprintable, str(origin)))}"
            if with_origins and origin != DEFAULT
            else ""
        )
        blocks.setdefault(section, []).append(f"{field} = {toml(value)}{note}\n")
    return "\n".join(f"[{section}]\n{''.join(lines)}" for section, lines in blocks.items())


def values_of(
    resolved: ResolvedSettings, *, for_admin: bool = True
) -> Iterator[tuple[str, Any, ValueOrigin]]:
    """Yield every setting with its value in a form that can be shown, and its origin. A user who is not an
    admin sees the settings that they can change, and origins without paths: the rest is about the operation
    of the gateway.
    """
    settings = resolved.settings
    for key in KEYS.values():
        if for_admin or key.is_tunable:
            value, origin = getattr(getattr(settings, key.section), key.field), resolved.origins[key.name]
            yield key.name, _plain(key, value), origin if for_admin else origin.without_path
    if not for_admin:
        return
    for name, upstream in settings.upstreams.items():
        for field, key in UPSTREAM_KEYS.items():
            whole = f"{UPSTREAMS}.{name}.{field}"
            yield whole, _plain(key, getattr(upstream, field)), resolved.origins[whole]


def hidden_names() -> list[str]:
    """Return the names that only an admin sees: whole sections, and single settings of the others."""
    seen = {key.section for key in KEYS.values() if key.is_tunable}
    whole = [section for section in (*SECTIONS, UPSTREAMS) if section not in seen]
    return [*whole, *(key.name for key in KEYS.values() if key.section in seen and not key.is_tunable)]


def tree_of(resolved: ResolvedSettings, *, for_admin: bool = True) -> dict[str, Any]:
    """Return the settings as nested tables, for JSON."""
    tree: dict[str, Any] = {section: {} for section in (*SECTIONS, UPSTREAMS)} if for_admin else {}
    for name, value, _ in values_of(resolved, for_admin=for_admin):
        *path, field = name.split(".")
        table = tree
        for part in path:
            table = table.setdefault(part, {})
        table[field] = value
    return tree


def toml(value: Any) -> str:
    """Encode a value as TOML."""
    match value:
        case None:
            return toml(ELSEWHERE)
        case bool():
            return "true" if value else "false"
        case list() | tuple():
            return f"[{', '.join(map(toml, value))}]"
        case dict():
            pairs = (f"{_name(name)} = {toml(one)}" for name, one in value.items())
            return f"{{ {', '.join(pairs)} }}" if value else "{}"
        case str():
            return "".join(map(_letter, json.dumps(value, ensure_ascii=False)))
        case _:
            return str(value)


def _entry(key: SettingKey) -> str:
    unset = f"; default: {key.unset}" if key.unset else ""
    return f"# {key.what} ({expected(key)}{unset})\n# {key.field} = {toml(plain_default(key))}\n"


def plain_default(key: SettingKey) -> Any:
    """Return the default as it is written into a file."""
    return ELSEWHERE if key.is_optional else _plain(key, key.default)


def _plain(key: SettingKey, value: Any) -> Any:
    """Return a value in builtin types, without secrets."""
    if isinstance(value, Tokens | Share):
        return shown(value)
    visible = key.mask.show(value)
    return list(visible) if isinstance(visible, tuple) else visible


def _letter(letter: str) -> str:
    """Escape a character that is not harmless in a terminal; TOML reads it back unchanged."""
    return letter if letter.isprintable() else f"\\U{ord(letter):08x}"


def _name(name: str) -> str:
    return name if _BARE.fullmatch(name) else toml(name)


def _first_line(kind: type) -> str:
    return (kind.__doc__ or "").partition("\n")[0]


# JSON schema of the file, for editors

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
    """Return the schema of refold.toml."""
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


def _table(keys: list[SettingKey], what: str | None) -> Form:
    return {
        "type": "object",
        "description": what or "",
        "additionalProperties": False,
        "properties": {key.field: _property(key) for key in keys},
    }


def _property(key: SettingKey) -> Form:
    choices = _choices(key)
    if key.is_optional:
        choices = [*(one for one in choices if one != {"type": "null"}), {"const": ELSEWHERE}]
    form = choices[0] if len(choices) == 1 else {"anyOf": choices}
    return {"description": key.what, **form, "default": plain_default(key)}


def _choices(key: SettingKey) -> list[Form]:
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


# Table of all settings for docs/configuration.md

BEGIN, END = "<!-- settings: written by `python -m refold.config.formats` -->", "<!-- /settings -->"
_HEAD = (
    "| key | variable | flag | default | takes | what it does | over HTTP |\n|---|---|---|---|---|---|---|\n"
)


def reference() -> str:
    """Return one Markdown table for each section."""
    kinds = {**SECTIONS, UPSTREAMS: UpstreamSettings}
    return "\n".join(
        f"### {section}\n\n{kind.__doc__}\n\n{_HEAD}{''.join(_row(key) for key in all_keys() if key.section == section)}"
        for section, kind in kinds.items()
    )


def with_reference(page: str) -> str:
    """Return the page with the present table."""
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n\n{reference()}\n{END}{after}"


def _row(key: SettingKey) -> str:
    default = key.unset or f"`{toml(plain_default(key))}`"
    flags = " ".join(f"`{flag}`" for flag in key.flags)
    cells = (f"`{key.name}`", f"`{key.variable}`", flags, default, expected(key), _escaped(key.what))
    return f"| {' | '.join(cells)} | {'yes' if key.is_tunable else ''} |\n"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(with_reference(target.read_text(encoding="utf-8")), encoding="utf-8")
