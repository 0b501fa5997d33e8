"""What `refold config` does.

One idea: the settings of a command are those of the place it runs in, so every command here begins with the same layers: the
environment, the project's file and the user's.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from msgspec import structs

from refold.cli import output
from refold.cli.output import plain, plural
from refold.config.formats import commented, settings_toml, tree_of
from refold.config.formats import schema as schema_of
from refold.config.layers import (
    PROJECT_FILE,
    RANKS,
    Layer,
    environment_layer,
    file_layer,
    file_layers,
    replace_file,
    user_file,
    with_current_url,
)
from refold.config.resolution import faults, resolve
from refold.model.errors import ConfigError


def init(*, for_user: bool, force: bool) -> int:
    path = user_file(os.environ, sys.platform, Path.home()) if for_user else Path.cwd() / PROJECT_FILE
    if path.exists() and not force:
        raise ConfigError(f"{plain(str(path))} is there already", hint="--force writes over it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path.resolve(), commented().encode())
    except OSError as error:
        raise ConfigError(
            f"{plain(str(path))} cannot be written: {error.strerror}",
            hint="see that its folder can be written and has room",
        ) from None
    output.write(f"{plain(str(path))}\n")
    return 0


def show(*, with_origins: bool, as_json: bool) -> int:
    resolved = resolve(_layers())
    if as_json:
        output.write_json({"settings": tree_of(resolved), "origins": resolved.origins})
    else:
        output.write(settings_toml(resolved, with_origins=with_origins))
    return 0


def schema() -> int:
    output.write_json(schema_of())
    return 0


def check(file: str, *, as_json: bool) -> int:
    layers = [_named(file)] if file else _layers()
    found = faults(layers)
    if as_json:
        told = [{"key": one.key, "place": one.place, "what": one.what, "hint": one.hint} for one in found]
        output.write_json({"faults": told, "files": [layer.path for layer in layers if layer.path]})
    else:
        output.write("".join(f"{plain(one.located)}\n  hint: {one.hint}\n" for one in found))
        read = ", ".join(plain(layer.path) for layer in layers if layer.path) or "the environment"
        output.note(f"{plural(len(found), 'fault') if found else 'no faults'} in {read}")
    return 1 if found else 0


def store_url() -> str:
    """The store that the settings of this place name; empty where they name none. A settings file in which the URL has the
    spelling of earlier versions is rewritten.

    Raises:
        ConfigError: a file cannot be read.
    """
    name = "store.url"
    saying = [layer for layer in _layers() if layer.values.get(name)]
    if not saying:
        return ""
    layer = max(saying, key=lambda one: RANKS.index(one.source))
    if layer.source == "project":  # it came with the project: say so before anything goes there
        output.note(f"the store is the one that {plain(layer.path)} names")
    layer = with_current_url(layer, output.note)
    return resolve([structs.replace(layer, values={name: layer.values[name]})]).settings.store.url


def _layers() -> list[Layer]:
    return [environment_layer(os.environ), *file_layers(os.environ, Path.cwd())]


def _named(file: str) -> Layer:
    """A file by its name; one that is called like a project's is read as such."""
    path = Path(file)
    return file_layer(path, "project" if path.name == PROJECT_FILE else "user")
