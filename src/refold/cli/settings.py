"""What holds where a command runs: the settings of the environment, the project's file and the user's file, and the installed extras."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from refold.cli import output
from refold.cli.output import plain
from refold.config.layers import RANKS, Layer, environment_layer, file_layers, flag_layer, with_current_url
from refold.config.resolution import resolve
from refold.config.tree import PluginSettings
from refold.core.policy import Policy
from refold.model.errors import MissingExtra
from refold.ports.models import Embedder

if TYPE_CHECKING:
    from refold.plugins.registry import Plugins
    from refold.upstreams.provider import Provider


def layers_here() -> list[Layer]:
    return [environment_layer(os.environ), *file_layers(os.environ, Path.cwd())]


def load_plugins_here(flags: Layer | None = None) -> Plugins:
    """Load the plugins of the settings of this place, once for each program that is started.

    Raises:
        ConfigError: a file cannot be read, or a plugin cannot be used.
    """
    from refold.plugins.registry import LOAD_S, load_plugins

    wanted = plugin_settings_here(flags)
    if wanted not in _loaded:
        _loaded.clear()
        _loaded[wanted] = load_plugins(
            *wanted.files,
            installed=wanted.installed,
            off=wanted.off,
            required=wanted.required,
            timeout_s=LOAD_S,
        )
    return _loaded[wanted]


def find_plugins_here() -> Plugins:
    """The plugins of the settings of this place, without using them; a file that cannot be used is a problem, and no error."""
    from refold.plugins.registry import LOAD_S, find_plugins

    wanted = plugin_settings_here()
    return find_plugins(wanted.files, installed=wanted.installed, off=wanted.off, timeout_s=LOAD_S)


def plugin_settings_here(flags: Layer | None = None) -> PluginSettings:
    """
    Raises:
        ConfigError: a file cannot be read, or a setting cannot be used.
    """
    layers = [*layers_here(), *([flags] if flags else [])]
    return resolve([structs.replace(one, values=_of_plugins(one)) for one in layers]).settings.plugins


_loaded: dict[PluginSettings, Plugins] = {}


def _of_plugins(layer: Layer) -> dict[str, object]:
    return {name: raw for name, raw in layer.values.items() if name.partition(".")[0] == "plugins"}


def policy_here(preset: str = "", strategy: str = "") -> Policy:
    """The policy of a command: the named preset, else that of the settings of this place, with their settings for it.

    A system prompt that a summary is put into is the user's own here, so `compaction.allow_system_summary` is not asked for.

    Raises:
        ConfigError: a file cannot be read, a setting cannot be used, or there is no such preset.
    """
    from refold.config.policy import policy_of
    from refold.engine.settings import preset_named

    load_plugins_here()
    if preset:
        preset_named(preset)
    layers = [structs.replace(layer, values=_of_policies(layer)) for layer in layers_here()]
    given: dict[str, object] = {"compaction.allow_system_summary": True}
    if strategy:
        given["summariser.strategy"] = strategy
    return policy_of(resolve([flag_layer(given), *layers]).settings, preset=preset)


def summarisers_here() -> tuple[Provider, ...]:
    """The models that write summaries by the settings of this place; none if they name none, or turn them off.

    Raises:
        ConfigError: a file cannot be read, or a setting names no model.
    """
    from refold.config.upstream import summarisers_of

    layers = [structs.replace(one, values=_of_summarisers(one)) for one in layers_here()]
    settings = resolve(layers).settings
    return summarisers_of(settings) if settings.summariser.enabled and settings.summariser.models else ()


def _of_summarisers(layer: Layer) -> dict[str, object]:
    return {name: raw for name, raw in layer.values.items() if name.startswith(("summariser.", "upstreams."))}


def preset_here() -> str:
    """The preset that the settings of this place name; empty where they name none.

    Raises:
        ConfigError: a file cannot be read.
    """
    name = "compaction.preset"
    naming = [
        structs.replace(one, values={name: one.values[name]}) for one in layers_here() if one.values.get(name)
    ]
    if naming:
        load_plugins_here()
    allowed = flag_layer({"compaction.allow_system_summary": True})  # as for `policy_here`
    return resolve([allowed, *naming]).settings.compaction.preset if naming else ""


def embedder_here() -> Embedder | None:
    """What finds messages by meaning: that of the settings of this place, else the one that is installed.

    Raises:
        ConfigError: a file cannot be read, or the setting names none.
    """
    from refold.config.upstream import embedder_of

    name, keys = "store.embedder", ("store.embedder", "upstreams.")
    layers = layers_here()
    if not any(one.values.get(name) for one in layers):
        from refold.embeddings import installed

        return installed()
    asked = [
        structs.replace(one, values={key: raw for key, raw in one.values.items() if key.startswith(keys)})
        for one in layers
    ]
    return embedder_of(resolve(asked).settings)


def _of_policies(layer: Layer) -> dict[str, object]:
    return {
        name: raw for name, raw in layer.values.items() if name.partition(".")[0] not in ("server", "store")
    }


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


SERVER_PACKAGES = ("aiohttp", "jinja2", "starlette", "uvicorn")
"""The packages of the extra `server`."""


def check_server_extra(what: str) -> None:
    """
    Raises:
        MissingExtra: a package that the gateway needs is not installed.
    """
    if not all(map(find_spec, SERVER_PACKAGES)):
        raise MissingExtra("server", what)
