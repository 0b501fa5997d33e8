"""Where values come from: flags, the environment, updates, files.

One idea: every source is a layer, flat, from names of settings to what was written there. Which layer wins is said once, by
the order of `RANKS`; what a value means is not the layers' business.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

from refold.config.keys import KEYS, PREFIX, SECTIONS, UPSTREAM_KEYS, UPSTREAMS, find_key, is_upstream_name
from refold.model.errors import SettingError

Source: TypeAlias = Literal["flag", "environment", "runtime", "project", "user", "default"]

RANKS: tuple[Source, ...] = ("default", "user", "project", "runtime", "environment", "flag")
"""From the weakest to the strongest: the nearer to the start of the program, the stronger."""
UNNAMED = "default"
"""The name of an upstream that is given as an address alone."""
STORE_VARIABLE = "REFOLD_STORE"
"""The older name of `REFOLD_STORE_URL`, which all commands know."""
UPSTREAM_LIST = f"{PREFIX}UPSTREAMS"
UPSTREAM_FLAG = "--upstream"
MAX_DEPTH = 2
"""Tables within tables: nothing lies deeper than `upstreams.NAME.url`."""


_SOURCES: dict[Source, str] = {
    "flag": "the flag",
    "environment": "the variable",
    "runtime": "an update while it runs",
    "project": "the project file",
    "user": "the user file",
    "default": "the default",
}


class Origin(Struct, frozen=True):
    """Where the value of a setting comes from."""

    source: Source
    place: str = ""
    """The flag, the variable or the file."""

    def __str__(self) -> str:
        return f"{_SOURCES[self.source]} {self.place}".strip()

    @property
    def without_path(self) -> Origin:
        """The same for whoever is not to know the files of this machine."""
        return Origin(self.source) if self.source in ("project", "user") else self


DEFAULT = Origin("default")


class Layer(Struct, frozen=True):
    """What one source says. Values may hold a secret and are not shown."""

    source: Source
    values: dict[str, object]
    places: dict[str, str] = {}
    """The flag or the variable of each value."""
    path: str = ""
    text: str = ""
    """The whole file, to find the line of a mistake."""

    def __repr__(self) -> str:
        return f"<{self.source}: {', '.join(self.values)}>"

    @property
    def is_text(self) -> bool:
        return self.source in ("flag", "environment")

    def origin(self, name: str) -> Origin:
        return Origin(self.source, self.places.get(name, self.path))


def runtime_layer(changes: Mapping[str, object]) -> Layer:
    """What was changed while the gateway ran: nested tables or dotted names."""
    return Layer("runtime", flat(changes))


def flag_layer(given: Mapping[str, object]) -> Layer:
    """Flags by the names of their settings, as `refold.cli.flags` collects them; what was not given is None or empty.

    Raises:
        SettingError: a flag for an upstream does not say for which.
    """
    values: dict[str, object] = {}
    places: dict[str, str] = {}
    for name, raw in given.items():
        if raw is None or raw == []:
            continue
        flag, said = _flag_values(name, raw)
        values |= said
        places |= dict.fromkeys(said, flag)
    return Layer("flag", values, places)


def environment_layer(environ: Mapping[str, str]) -> Layer:
    """Every variable `REFOLD_SECTION_KEY`; an empty one counts as not set. What begins like a section is taken for a setting.

    Raises:
        SettingError: an upstream is named twice.
    """
    values: dict[str, object] = {}
    places: dict[str, str] = {}
    for variable, text in sorted(environ.items()):
        if text and variable.startswith(PREFIX):
            said = _variable_values(variable, text)
            values |= said
            places |= dict.fromkeys(said, variable)
    return Layer("environment", values, places)


def flat(values: Mapping[str, object]) -> dict[str, object]:
    """Tables within tables as dotted names. An upstream that only has its name stays, as an empty table."""
    return dict(_flattened(values))


def upstreams_of(items: Iterable[str], place: str) -> dict[str, object]:
    """Upstreams in a word each: a well-known NAME, NAME=URL, or a URL alone."""
    values: dict[str, object] = {}
    for item in items:
        name, equals, url = item.partition("=")
        if not equals or "/" in name:
            name, url = (UNNAMED, item) if "://" in item else (item, "")
        if f"{UPSTREAMS}.{name}" in values:
            shown = f"{name!r}" if is_upstream_name(name) else "a name"
            raise SettingError(UPSTREAMS, f"{shown} is given twice", place=place, hint="write NAME=URL")
        values[f"{UPSTREAMS}.{name}"] = {}
        if url:
            values[f"{UPSTREAMS}.{name}.url"] = url
    return values


def _flattened(values: Mapping[str, object], before: str = "") -> Iterator[tuple[str, object]]:
    for name, value in values.items():
        whole = f"{before}{name}"
        is_deep = before.count(".") >= MAX_DEPTH
        if not isinstance(value, Mapping) or find_key(whole) is not None or is_deep:
            yield whole, value
        elif value or not _is_upstream(whole):
            yield from _flattened(value, f"{whole}.")
        else:
            yield whole, value


def _is_upstream(name: str) -> bool:
    section, _, upstream = name.partition(".")
    return section == UPSTREAMS and bool(upstream) and "." not in upstream


def _flag_values(name: str, raw: object) -> tuple[str, dict[str, object]]:
    if name == UPSTREAMS:
        return UPSTREAM_FLAG, upstreams_of(_texts(raw), UPSTREAM_FLAG)
    if name in KEYS:
        return KEYS[name].flag, {name: raw}
    key = UPSTREAM_KEYS[name.rpartition(".")[2]]
    said: dict[str, object] = {}
    for text in _texts(raw):
        upstream, equals, value = text.partition("=")
        if not equals or not is_upstream_name(upstream):
            raise SettingError(
                key.name, "it does not say for which upstream", place=key.flag, hint="write NAME=VALUE"
            )
        whole = f"{UPSTREAMS}.{upstream}.{key.field}"
        before = said.get(whole)
        said[whole] = [*before, value] if isinstance(before, list) else [value]
    return key.flag, {at: one if key.kind in ("list", "table") else _last(one) for at, one in said.items()}


def _last(values: object) -> object:
    return values[-1] if isinstance(values, list) else values


def _texts(raw: object) -> list[str]:
    return [str(text) for text in raw] if isinstance(raw, list | tuple) else [str(raw)]


def _variable_values(variable: str, text: str) -> dict[str, object]:
    if variable == STORE_VARIABLE:
        return {"store.url": text}
    if variable == UPSTREAM_LIST:
        return upstreams_of((item.strip() for item in text.split(",")), variable)
    name = _setting_of(variable)
    return {name: text} if name else {}


def _setting_of(variable: str) -> str:
    """The setting that a variable is for; empty where it is none of ours."""
    known = next((key.name for key in KEYS.values() if key.variable == variable), "")
    section, _, rest = variable.removeprefix(PREFIX).lower().partition("_")
    if known or section not in (*SECTIONS, UPSTREAMS) or not rest:
        return known
    if section == UPSTREAMS:
        for field in sorted(UPSTREAM_KEYS, key=len, reverse=True):
            name = rest.removesuffix(f"_{field}").replace("_", "-")
            if rest.endswith(f"_{field}") and is_upstream_name(name):
                return f"{UPSTREAMS}.{name}.{field}"
        rest = rest.replace("_", ".", 1)
    return f"{section}.{rest}"
