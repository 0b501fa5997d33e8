"""Layers: the values of each source, which are flags, the environment, runtime updates and files.

A layer is a flat mapping from names of settings to raw values. `RANKS` alone decides which layer wins. The
layers do not interpret values; `parse` does.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeAlias
from uuid import uuid4

from msgspec import Struct, structs

from refold.config.tree import KEYS, PREFIX, SECTIONS, UPSTREAM_KEYS, UPSTREAMS, find_key, is_upstream_name
from refold.model.errors import ConfigError, SettingError
from refold.model.mask import mask_text, mask_url, printable

LayerSource: TypeAlias = Literal["flag", "environment", "runtime", "project", "user", "default"]

RANKS: tuple[LayerSource, ...] = ("default", "user", "project", "runtime", "environment", "flag")
"""From the weakest to the strongest: the nearer to the start of the program, the stronger."""
UNNAMED = "default"
"""The name of an upstream that is given as an address alone."""
STORE_VARIABLE = "REFOLD_STORE"
"""The older name of `REFOLD_STORE_URL`, which all commands know."""
UPSTREAM_LIST = f"{PREFIX}UPSTREAMS"
UPSTREAM_FLAG = "--upstream"
MAX_DEPTH = 2
"""Nesting of tables: the deepest setting is `upstreams.NAME.url`."""


_SOURCES: dict[LayerSource, str] = {
    "flag": "the flag",
    "environment": "the variable",
    "runtime": "an update while it runs",
    "project": "the project file",
    "user": "the user file",
    "default": "the default",
}


class ValueOrigin(Struct, frozen=True):
    """The source of a setting's value."""

    source: LayerSource
    place: str = ""
    """The flag, the variable or the file."""

    def __str__(self) -> str:
        return f"{_SOURCES[self.source]} {self.place}".strip()

    @property
    def without_path(self) -> ValueOrigin:
        """The origin without a path, for a user who must not learn the files of this machine."""
        return ValueOrigin(self.source) if self.source in ("project", "user") else self


DEFAULT = ValueOrigin("default")


class Layer(Struct, frozen=True):
    """The values of one source. They may hold secrets, so `repr` shows only their names."""

    source: LayerSource
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

    def origin(self, name: str) -> ValueOrigin:
        return ValueOrigin(self.source, self.places.get(name, self.path))


RUNTIME = "runtime"
"""The key under which a store has an owner's changes to the settings."""


def runtime_layer(changes: Mapping[str, object]) -> Layer:
    """Return the changes made while the gateway ran, from nested tables or dotted names."""
    return Layer("runtime", flat(changes))


def flag_layer(given: Mapping[str, object]) -> Layer:
    """Return the flags by the names of their settings, as `refold.cli.commands.serve` collects them. A flag that was
    not given is None or empty.

    Raises:
        SettingError: a flag for an upstream does not name the upstream.
    """
    values: dict[str, object] = {}
    places: dict[str, str] = {}
    for name, raw in given.items():
        if raw is None or raw == []:
            continue
        flag, given_values = _flag_values(name, raw)
        values |= given_values
        places |= dict.fromkeys(given_values, flag)
    return Layer("flag", values, places)


def environment_layer(environ: Mapping[str, str]) -> Layer:
    """Return every variable `REFOLD_SECTION_KEY`; an empty one counts as not set. A variable that begins like
    a section is taken for a setting, so that a typing error is reported.

    Raises:
        SettingError: an upstream is named twice.
    """
    values: dict[str, object] = {}
    places: dict[str, str] = {}
    for variable, text in sorted(environ.items()):
        if text and variable.startswith(PREFIX):
            given_values = _variable_values(variable, text)
            values |= given_values
            places |= dict.fromkeys(given_values, variable)
    return Layer("environment", values, places)


def flat(values: Mapping[str, object]) -> dict[str, object]:
    """Flatten nested tables into dotted names. An upstream with nothing but its name stays, as an empty
    table.
    """
    return dict(_flattened(values))


def upstreams_of(items: Iterable[str], place: str) -> dict[str, object]:
    """Read upstreams of one word each: a well-known NAME, NAME=URL, or a URL alone."""
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
        return KEYS[name].flags[-1], {name: raw}
    key = UPSTREAM_KEYS[name.rpartition(".")[2]]
    found: dict[str, object] = {}
    for text in _texts(raw):
        upstream, equals, value = text.partition("=")
        if not equals or not is_upstream_name(upstream):
            raise SettingError(
                key.name, "it does not name the upstream", place=key.flag, hint="write NAME=VALUE"
            )
        whole = f"{UPSTREAMS}.{upstream}.{key.field}"
        before = found.get(whole)
        found[whole] = [*before, value] if isinstance(before, list) else [value]
    return key.flag, {at: one if key.kind in ("list", "table") else _last(one) for at, one in found.items()}


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
    """Return the name of the setting that a variable sets; empty if it sets none."""
    if variable.startswith(f"{PREFIX}SUMMARIZER_"):  # options may be spelt so, too
        variable = variable.replace("SUMMARIZER", "SUMMARISER", 1)
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


# Settings files of the project and of the user

PROJECT_FILE = "refold.toml"
USER_FILE = "config.toml"
FILE_VARIABLE = "REFOLD_CONFIG"
ROOT_MARKS = (".git", ".hg", ".jj")
"""Entries that mark the root of a repository."""
MAX_BYTES = 1_000_000
"""The commented file has ten thousand bytes; a larger file is something else."""

MAX_LINES = 1_000
"""Lines that are searched for a mistake: the commented file has two hundred."""


def file_layers(
    environ: Mapping[str, str], folder: Path, *, platform: str = sys.platform, home: Path | None = None
) -> list[Layer]:
    """Return the layers of the user's file and of the project's, as far as they exist.

    Raises:
        ConfigError: a file cannot be read, or `REFOLD_CONFIG` names one that does not exist.
    """
    user, project = user_file(environ, platform, home or Path.home()), project_file(folder)
    layers = []
    if user.is_file() or environ.get(FILE_VARIABLE):
        layers.append(file_layer(user, "user"))
    if project is not None and project.resolve() != user.resolve():
        layers.append(file_layer(project, "project"))
    return layers


def user_file(environ: Mapping[str, str], platform: str, home: Path) -> Path:
    """Return the path of the user's file, whether it exists or not."""
    if named := environ.get(FILE_VARIABLE):
        return Path(named).expanduser()
    given = Path(environ.get("XDG_CONFIG_HOME", ""))
    if given.is_absolute():
        folder = given
    elif platform == "win32":
        folder = Path(environ.get("APPDATA") or home / "AppData" / "Roaming")
    elif platform == "darwin":
        folder = home / "Library" / "Application Support"
    else:
        folder = home / ".config"
    return folder / "refold" / USER_FILE


def project_file(folder: Path) -> Path | None:
    """Return the nearest file from a folder up to the root of its repository; outside of a repository, only
    in the folder itself.
    """
    folders = [folder, *folder.parents]
    root = next((at for at in folders if any((at / mark).exists() for mark in ROOT_MARKS)), folder)
    inside = folders[: folders.index(root) + 1]
    return next((path for at in inside if (path := at / PROJECT_FILE).is_file()), None)


def file_layer(path: Path, source: LayerSource) -> Layer:
    """Read a settings file.

    Raises:
        ConfigError: the file cannot be read, or is not TOML; the message names the line.
    """
    text = _text(path)
    try:
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(
            f"{path}: {_describe_toml_error(error)}", hint="the file is TOML: put texts in quotes"
        ) from None
    return Layer(source, flat(values), path=str(path), text=text)


def line_of(text: str, name: str) -> int | None:
    """Return the line on which a setting is written; None if it cannot be found.

    The file is parsed up to one line more each time, until the setting appears: in any notation, it began
    after the last line up to which the file could be parsed.
    """
    lines, began = text.split("\n"), 0
    for end in range(1, min(len(lines), MAX_LINES) + 1):
        try:
            values = tomllib.loads("\n".join(lines[:end]))
        except tomllib.TOMLDecodeError:
            continue
        if _holds(values, name):
            return began + 1
        began = end
    return None


def replace_file(path: Path, data: bytes) -> None:
    """Write a file completely or not at all, because another program may read it at this moment. An existing
    file keeps its mode and owner.

    Raises:
        OSError: it cannot be written; the file is unchanged.
    """
    partial = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with partial.open("xb") as file:
            with suppress(FileNotFoundError):
                there = path.stat()
                partial.chmod(there.st_mode & 0o777)
                with suppress(OSError):  # only root may give a file away
                    os.chown(partial, there.st_uid, there.st_gid)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        with suppress(OSError):
            partial.unlink()


def _holds(values: Mapping[str, Any], name: str) -> bool:
    found = flat(values)
    return name in found or any(other.startswith(f"{name}.") for other in found)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", hint="check the path") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path} is too large for settings", hint="`refold config init` writes one")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}, line {line}: this is no UTF-8", hint="save it as UTF-8") from None


def _describe_toml_error(error: Exception) -> str:
    """Return the error and its line. Of the file's own text, at most names of keys are quoted, and only if
    they are plain names.
    """
    if not isinstance(error, tomllib.TOMLDecodeError):
        return "it is nested too deep"
    text, at, place = str(error).rpartition(" (at ")
    is_plain = "@" not in text and "://" not in text and mask_text(text) == text
    return f"{text}{at}{place}" if is_plain else f"it is not TOML{at}{place}"


# Store URLs in the spelling of earlier versions
#
# Until three slashes meant a relative path, `sqlite://chats.db` was relative and
# `sqlite:///home/me/chats.db` absolute. The file is changed once, in that one value: comments,
# order, line ends and all other keys stay. If it cannot be written, the new spelling holds for
# this run only.

STORE_URL = "store.url"
MAX_TRIES = 100
"""Occurrences of the URL that are tried: a comment or two may contain it as well."""


def with_current_url(layer: Layer, report: Callable[[str], None]) -> Layer:
    """Return the layer of a settings file with its store URL in today's spelling, and change the file too.

    `report` is called with one line that says what was changed, or why it could not be.
    """
    before = layer.values.get(STORE_URL)
    if not layer.path or not isinstance(before, str):
        return layer
    from refold.stores.url import current_spelling  # here: `--help` reads settings, and loads no store

    try:
        now = current_spelling(before)
    except ConfigError:  # resolving the settings reports it
        return layer
    if now == before:
        return layer
    path = Path(layer.path)
    change = f"{STORE_URL} {_masked(before)} is written {_masked(now)} now"
    try:
        is_written = _rewrite(path, before, now)
    except OSError as error:
        report(f"{printable(str(path))}: {change}, and the file could not be changed: {error.strerror}")
    else:
        report(
            f"{printable(str(path))}: {change}; {'the file was changed' if is_written else 'please change it'}"
        )
    return structs.replace(layer, values={**layer.values, STORE_URL: now})


def _rewrite(path: Path, before: str, now: str) -> bool:
    """Change the value in the file; False if it is written in a notation that cannot be found."""
    text = path.read_bytes().decode()
    for changed in _candidates(text, before, now):
        if _values(changed) == {**_values(text), STORE_URL: now}:
            replace_file(path.resolve(), changed.encode())
            return True
    return False


def _candidates(text: str, before: str, now: str) -> Iterator[str]:
    """Yield the text with one occurrence of the URL changed, for each of the first occurrences."""
    at = text.find(before)
    for _ in range(MAX_TRIES):
        if at < 0:
            return
        yield text[:at] + now + text[at + len(before) :]
        at = text.find(before, at + 1)


def _values(text: str) -> dict[str, object]:
    try:
        return flat(tomllib.loads(text.removeprefix("\ufeff")))
    except tomllib.TOMLDecodeError:
        return {}


def _masked(url: str) -> str:
    return printable(mask_url(url))
