"""The settings of Refold: one typed tree, and everywhere its values may come from.

The idea: a setting is written down once, in `tree`. `keys` gives it its variable and its flag, `layers` and `files` collect what
was said about it, `reading` (with `sizes`) understands that, and `resolving` says what holds and where it comes from. What it
means is said by `policy` and `upstream`; `reference` tells people about it.

    flag > environment > change while it runs > project file > user file > default

Surfaces get their settings here and hand them on; the packages below know nothing of files or variables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from refold.config.layers import Layer, ValueOrigin, environment_layer, file_layers, flag_layer, runtime_layer
from refold.config.resolution import Resolved, resolve, update
from refold.config.tree import Settings, UpstreamSettings

if TYPE_CHECKING:
    from refold.config.policy import limit_for, policy_of
    from refold.config.upstream import completed, summarisers_of

__all__ = [
    "Layer",
    "Resolved",
    "Settings",
    "UpstreamSettings",
    "ValueOrigin",
    "completed",
    "environment_layer",
    "file_layers",
    "flag_layer",
    "limit_for",
    "policy_of",
    "resolve",
    "runtime_layer",
    "summarisers_of",
    "update",
]

_LATER = {"policy": ("limit_for", "policy_of"), "upstream": ("completed", "summarisers_of")}
"""What needs the presets or the providers: `refold --help` knows every flag and should not wait for them."""


def __getattr__(name: str) -> object:
    from importlib import import_module

    for module, names in _LATER.items():
        if name in names:
            return getattr(import_module(f"refold.config.{module}"), name)
    raise AttributeError(name)
