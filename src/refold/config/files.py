"""Settings in files: the project's and the user's.

One idea: a project's file is found from where the program runs, up to the root of the repository and no further, so that
nobody's file in a folder above decides for it; the user's stands where the platform keeps such things.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from refold.config.layers import Layer, Source, flat
from refold.model.errors import ConfigError
from refold.model.mask import mask_text

PROJECT_FILE = "refold.toml"
USER_FILE = "config.toml"
FILE_VARIABLE = "REFOLD_CONFIG"
ROOT_MARKS = (".git", ".hg", ".jj")
"""What the root of a repository holds."""
MAX_BYTES = 1_000_000
"""The commented file has ten thousand; whatever is larger is something else."""

MAX_LINES = 1_000
"""How far the line of a mistake is looked for: the commented file has two hundred."""


def file_layers(
    environ: Mapping[str, str], folder: Path, *, platform: str = sys.platform, home: Path | None = None
) -> list[Layer]:
    """The user's file and the project's, those that are there.

    Raises:
        ConfigError: a file cannot be read, or `REFOLD_CONFIG` names one that is not there.
    """
    user, project = user_file(environ, platform, home or Path.home()), project_file(folder)
    layers = []
    if user.is_file() or environ.get(FILE_VARIABLE):
        layers.append(file_layer(user, "user"))
    if project is not None and project.resolve() != user.resolve():
        layers.append(file_layer(project, "project"))
    return layers


def user_file(environ: Mapping[str, str], platform: str, home: Path) -> Path:
    """Where the user's file is, or would be."""
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
    """The nearest one from a folder up to the root of its repository; outside of a repository, in the folder alone."""
    folders = [folder, *folder.parents]
    root = next((at for at in folders if any((at / mark).exists() for mark in ROOT_MARKS)), folder)
    inside = folders[: folders.index(root) + 1]
    return next((path for at in inside if (path := at / PROJECT_FILE).is_file()), None)


def file_layer(path: Path, source: Source) -> Layer:
    """
    Raises:
        ConfigError: the file cannot be read, or is no TOML; the message says where.
    """
    text = _text(path)
    try:
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: {_told(error)}", hint="it is TOML: texts stand in quotes") from None
    return Layer(source, flat(values), path=str(path), text=text)


def line_of(text: str, name: str) -> int | None:
    """The line on which a setting is written; None where it cannot be told.

    The file is read up to one line more each time, until the setting is there: whatever form it has, it began after the last
    line that could be read.
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
    """Write a file whole or not at all: another program may read it at this moment. One that is there keeps its mode and owner.

    Raises:
        OSError: it cannot be written; the file is as it was.
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


def _told(error: Exception) -> str:
    """What is wrong and where; of the file's own words at most the names of keys, and those only where they are plain names."""
    if not isinstance(error, tomllib.TOMLDecodeError):
        return "it is nested too deep"
    what, at, place = str(error).rpartition(" (at ")
    is_plain = "@" not in what and "://" not in what and mask_text(what) == what
    return f"{what}{at}{place}" if is_plain else f"it is no TOML{at}{place}"
