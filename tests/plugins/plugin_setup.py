"""Puts plugins into use without a file."""

from __future__ import annotations

from typing import Any

import refold
from refold.plugins.registry import LoadedPlugin, PluginGuard, Plugins, check_plugin, use


def using(*plugins: refold.Plugin) -> Plugins:
    made = Plugins([LoadedPlugin(check_plugin(one), "a test", PluginGuard(one)) for one in plugins])
    use(made)
    return made


def plugin(name: str = "test", **members: Any) -> refold.Plugin:
    return refold.Plugin(**{"name": name, "api": 1, **members})
