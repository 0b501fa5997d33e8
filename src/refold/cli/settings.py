"""The settings that hold where a command runs: the environment, the project's file and the user's file."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import structs

from refold.cli import output
from refold.cli.output import plain
from refold.config.layers import RANKS, Layer, environment_layer, file_layers, with_current_url
from refold.config.resolution import resolve


def layers_here() -> list[Layer]:
    return [environment_layer(os.environ), *file_layers(os.environ, Path.cwd())]


def store_url() -> str:
    """The store that the settings of this place name; empty where they name none. A settings file in which the URL has the
    spelling of earlier versions is rewritten.

    Raises:
        ConfigError: a file cannot be read.
    """
    name = "store.url"
    naming = [layer for layer in layers_here() if layer.values.get(name)]
    if not naming:
        return ""
    layer = max(naming, key=lambda one: RANKS.index(one.source))
    if layer.source == "project":  # it came with the project: say so before anything goes there
        output.note(f"the store is the one that {plain(layer.path)} names")
    layer = with_current_url(layer, output.note)
    return resolve([structs.replace(layer, values={name: layer.values[name]})]).settings.store.url
