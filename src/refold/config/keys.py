"""Every setting by its key, with its variable and its flag.

All names follow one rule: `compaction.keep_recent` is `REFOLD_COMPACTION_KEEP_RECENT` and
`--compaction-keep-recent`. The settings of an upstream have keys such as `upstreams.NAME.url`, for any name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT, Meta, Struct, structs

from refold.config.tree import (
    PLAIN,
    UPSTREAM_NAME,
    Counted,
    SettingMask,
    Settings,
    UpstreamSettings,
    takes_text,
)
from refold.model.budget import Share, Tokens

Kind: TypeAlias = Literal["switch", "tokens", "share", "size", "list", "table", "plain"]

PREFIX = "REFOLD_"
UPSTREAMS = "upstreams"
ANY_NAME = f"{UPSTREAMS}.NAME"
TUNABLE = frozenset(
    {
        *(
            f"compaction.{field}"
            for field in ("enabled", "preset", "variant", "window", "max_output", "limit")
        ),
        *(f"compaction.{field}" for field in ("trigger", "keep_recent", "tool_policy", "tools")),
        *(f"compaction.{field}" for field in ("tool_prune_threshold", "tool_keep_threshold")),
        *(f"compaction.{field}" for field in ("read_tools", "write_tools")),
        *(f"compaction.{field}" for field in ("max_messages", "keep_messages", "resume_budget")),
        *(f"compaction.{field}" for field in ("include_usage", "recoveries", "thinking")),
        *(f"compaction.{field}" for field in ("prompt", "update_prompt")),
        "cache.ttl",
        *(f"summariser.{field}" for field in ("enabled", "strategy", "temperature", "max_tokens")),
        *(f"notify.{field}" for field in ("pruning", "compaction", "marker")),
    }
)
"""Settings that may be changed while the gateway runs. Addresses, keys, and settings that protect its users
(sensitive patterns, the limit of spending, summaries in the system prompt) are not among them. An explicit
list cannot forget to exclude one."""

SHORT_FLAGS = {
    "server.host": "--host",
    "server.port": "--port",
    "store.url": "--store",
    "compaction.preset": "--preset",
    "compaction.window": "--window",
}
"""Flags that are given often, and that other commands have under these names."""


class SettingKey(Struct, frozen=True):
    """One setting. `name` is `section.field`; for upstreams it holds the word NAME."""

    name: str
    section: str
    field: str
    type: Any
    default: Any
    what: str
    kind: Kind
    words: dict[str, int] = {}
    """Words that stand for numbers of tokens."""
    unset: str = ""
    """The value that holds if it is not set, if that is not a default of ours."""
    mask: SettingMask = PLAIN
    """How it is shown."""

    @property
    def variable(self) -> str:
        return PREFIX + _joined(self.name, "_").upper().replace("_NAME_", "_<NAME>_")

    @property
    def flag(self) -> str:
        return f"--{_joined(self.name, '-').replace('-NAME-', '-')}"

    @property
    def flags(self) -> tuple[str, ...]:
        return (self.flag, *([SHORT_FLAGS[self.name]] if self.name in SHORT_FLAGS else []))

    @property
    def is_optional(self) -> bool:
        """Whether the preset, the model or the client decides if it is not set."""
        return self.default is None

    @property
    def is_tunable(self) -> bool:
        return self.name in TUNABLE

    @property
    def is_upstream(self) -> bool:
        return self.section == UPSTREAMS


def _joined(name: str, mark: str) -> str:
    return re.sub(r"[._-]", mark, name)


def _keys(kind: type[Struct], section: str, prefix: str) -> Iterator[SettingKey]:
    hints = get_type_hints(kind, include_extras=True)
    for field in structs.fields(kind):
        default = field.default_factory() if field.default is NODEFAULT else field.default
        form, words = _kind(hints[field.name])
        meta = next(one for one in get_args(hints[field.name]) if isinstance(one, Meta))
        name, unset = f"{prefix}.{field.name}", (meta.extra or {}).get("unset", "")
        what, mask = meta.description or "", _mask(name, hints[field.name])
        yield SettingKey(
            name, section, field.name, hints[field.name], default, what, form, words, unset, mask
        )


def _mask(name: str, annotated: Any) -> SettingMask:
    """Return the mask of a setting.

    Raises:
        TypeError: the setting takes text, but has no mask that says whether a secret may be in it.
    """
    marks = [mark for mark in get_args(annotated) if isinstance(mark, SettingMask)]
    if not marks and takes_text(annotated):
        raise TypeError(f"{name} takes text: give it a mark from refold.config.tree")
    return marks[0] if marks else PLAIN


def _kind(annotated: Any) -> tuple[Kind, dict[str, int]]:
    """Return how values of a type are read."""
    marks = [*parts_of(annotated)]
    if counted := next((mark for mark in marks if isinstance(mark, Counted)), None):
        return "tokens", dict(counted.words)
    found: list[Kind] = [form for mark, form in _FORMS.items() if mark in marks]
    return (found[0] if found else "plain"), {}


def parts_of(annotated: Any) -> Iterator[Any]:
    """Yield every type and mark that a type is made of."""
    if get_origin(annotated) is Annotated:
        inner, *marks = get_args(annotated)
        yield from (*parts_of(inner), *marks)
        return
    yield get_origin(annotated) or annotated
    if get_origin(annotated) not in (tuple, dict, Literal):
        for part in get_args(annotated):
            yield from parts_of(part)


_FORMS: dict[Any, Kind] = {
    tuple: "list",
    dict: "table",
    bool: "switch",
    Tokens: "size",
    Share: "share",
}
"""The first of these that a type holds decides how it is read."""

SECTIONS: dict[str, type[Struct]] = {
    field.name: type(field.default) for field in structs.fields(Settings) if field.name != UPSTREAMS
}
KEYS: dict[str, SettingKey] = {
    key.name: key for name, kind in SECTIONS.items() for key in _keys(kind, name, name)
}
UPSTREAM_KEYS: dict[str, SettingKey] = {
    key.field: key for key in _keys(UpstreamSettings, UPSTREAMS, ANY_NAME)
}


def all_keys() -> tuple[SettingKey, ...]:
    return (*KEYS.values(), *UPSTREAM_KEYS.values())


def find_key(name: str) -> SettingKey | None:
    """Return the setting of a name in a file; None if there is none."""
    section, _, rest = name.partition(".")
    if section != UPSTREAMS:
        return KEYS.get(name)
    upstream, _, field = rest.partition(".")
    return UPSTREAM_KEYS.get(field) if is_upstream_name(upstream) else None


def is_upstream_name(name: str) -> bool:
    return re.fullmatch(UPSTREAM_NAME, name) is not None


def nearest(name: str) -> str:
    """Return the known name that is most similar; empty if none is."""
    section, _, rest = name.partition(".")
    field, upstream = name.rpartition(".")[2], rest.partition(".")[0]
    same = [key.name for key in KEYS.values() if key.field == field]
    known = [*KEYS, *SECTIONS, UPSTREAMS]
    if section == UPSTREAMS and is_upstream_name(upstream):
        known += [f"{UPSTREAMS}.{upstream}.{field}" for field in UPSTREAM_KEYS]
    return next(iter(get_close_matches(name, known, n=1) or same), "")
