"""The settings of Refold: one typed tree, and the sources of its values.

A setting is declared once, in `tree`, which derives its variable and its flag. `layers` collects the values from
each source, `parse` reads them, and `resolution` decides which value holds and records
its origin. `policy` and `upstream` turn settings into policies and providers; `formats` writes them as TOML,
JSON schema and Markdown.

    flag > environment > change while it runs > project file > user file > default

Commands and the gateway get their settings here and pass them on; the packages below read no files and no
variables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from refold.config.layers import Layer, ValueOrigin, environment_layer, file_layers, flag_layer, runtime_layer
from refold.config.resolution import ResolvedSettings, resolve, update
from refold.config.tree import Settings, UpstreamSettings

if TYPE_CHECKING:
    from refold.config.policy import policy_of
    from refold.config.upstream import completed, summarisers_of

__all__ = [
    "Layer",
    "ResolvedSettings",
    "Settings",
    "UpstreamSettings",
    "ValueOrigin",
    "completed",
    "environment_layer",
    "file_layers",
    "flag_layer",
    "policy_of",
    "resolve",
    "runtime_layer",
    "summarisers_of",
    "update",
]

_LATER = {"policy": ("policy_of",), "upstream": ("completed", "summarisers_of")}
"""Names that need the presets or the providers. They are loaded on first use, because `refold --help` shows
every flag and should not wait for them."""


def __getattr__(name: str) -> object:
    from importlib import import_module

    for module, names in _LATER.items():
        if name in names:
            return getattr(import_module(f"refold.config.{module}"), name)
    raise AttributeError(name)
