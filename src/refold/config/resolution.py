"""Resolution: merges all layers into the settings in effect, with the origin of each value.

The settings are a pure function of the layers. A change is a new layer, and everything is computed and
checked again as a whole before it takes effect; on an error, which names the key, the old settings stay.

    resolved = resolve([flag_layer(given), environment_layer(os.environ), *file_layers(os.environ,
        Path.cwd())])
    resolved = resolve([*resolved.layers, runtime_layer(saved)])
    resolved = update(resolved, {"compaction": {"trigger": "70%"}})      # then save resolved.runtime
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from refold.config.layers import DEFAULT, RANKS, STORE_URL, Layer, ValueOrigin, flat, line_of, runtime_layer
from refold.config.parse import Unreadable, read
from refold.config.tree import (
    KEYS,
    LOCAL_EMBEDDERS,
    SECTIONS,
    UPSTREAM_KEYS,
    UPSTREAMS,
    SettingKey,
    Settings,
    UpstreamSettings,
    find_key,
    is_upstream_name,
    nearest,
)
from refold.model.errors import ConfigError, SettingError, SettingFixed, SettingLocked
from refold.model.mask import HIDDEN
from refold.model.tokens import Share, Tokens

# Checks across settings

KEY_HEADERS = ("authorization", "proxy-authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def check(settings: Settings) -> None:
    """Check settings that are valid by themselves but may contradict one another.

    Raises:
        SettingError: something cannot work; `key` names the setting.
    """
    _check_sizes(settings)
    _check_patterns(settings)
    for name, upstream in settings.upstreams.items():
        _check_upstream(settings, name, upstream)
    _check_policy(settings)
    _check_summarisers(settings)


def _check_sizes(settings: Settings) -> None:
    chosen = settings.compaction
    if chosen.limit in (Tokens(0), Share(0.0)):
        raise SettingError(
            "compaction.limit", "it leaves no tokens to use", hint="give more, or leave it out"
        )
    if chosen.trigger == Share(0.0):
        raise SettingError(
            "compaction.trigger", "it would compact without end", hint="give more than 0%, such as 80%"
        )


def _check_patterns(settings: Settings) -> None:
    from refold.core.regex_safety import ambiguity  # here: `refold --help` loads this module

    for at, pattern in enumerate(settings.compaction.sensitive, 1):
        try:
            if ambiguity(re.compile(pattern)):
                raise SettingError(
                    "compaction.sensitive",
                    f"number {at} could take for ever on some text",
                    hint="it can read one text in several ways: write .{0,200} for .*, and no repetition inside of another",
                )
        except re.error as error:
            # The text of `re.error` quotes the pattern, which is as private as the words it is to hide.
            position = "" if error.pos is None else f" (at character {error.pos + 1})"
            raise SettingError(
                "compaction.sensitive",
                f"number {at} is no regular expression{position}",
                hint=r"such as '(?i)\bsalary\b'; put a backslash before literal special characters",
            ) from None


def _check_upstream(settings: Settings, name: str, upstream: UpstreamSettings) -> None:
    from refold.config.upstream import completed

    place = f"upstreams.{name}"
    for header in upstream.headers:
        if header.lower() in KEY_HEADERS:
            hint = "name the variable that holds it with key_env, or a command with key_command"
            raise SettingError(f"{place}.headers", "a key does not belong here", hint=hint)
        if not _HEADER_NAME.fullmatch(header):
            raise SettingError(
                f"{place}.headers", "a header has no valid name", hint="give a name such as X-Title"
            )
    if upstream.key_env and upstream.key_command:
        raise SettingError(f"{place}.key_command", "there is a key_env already", hint="give one of the two")
    for other in upstream.fallback:
        if other == name or other not in settings.upstreams:
            known = ", ".join(one for one in settings.upstreams if one != name) or "there are no others"
            raise SettingError(
                f"{place}.fallback", "it names no other upstream", hint=f"choose from: {known}"
            )
    completed(name, upstream, {})


def _check_policy(settings: Settings) -> None:
    from refold.config.policy import policy_of

    policy_of(settings)


def _check_summarisers(settings: Settings) -> None:
    if settings.summariser.models or settings.compaction.summarization:
        from refold.config.upstream import summarisers_of

        summarisers_of(settings)


# Merging of layers

SECRET_NAMES = ("key", "apikey", "token", "secret", "password", "authorization", "bearer")
"""Common names of a field for a key. None of them is a setting, because a file is copied, shared and
committed."""
FIXED = ("flag", "environment")
MAX_NAME = 80
_NOT_IN_NAMES = frozenset(":/@?#=&%")


class ResolvedSettings(Struct, frozen=True):
    """The settings in effect, with the layers they come from."""

    settings: Settings
    origins: dict[str, ValueOrigin]
    """Of every setting, by its name."""
    layers: tuple[Layer, ...]
    """From the weakest to the strongest."""

    @property
    def runtime(self) -> dict[str, object]:
        """The changes made while the gateway ran, to be saved; pass them to `runtime_layer` after a restart."""
        return {
            name: raw
            for layer in self.layers
            if layer.source == "runtime"
            for name, raw in layer.values.items()
        }


def resolve(layers: Iterable[Layer] = ()) -> ResolvedSettings:
    """Merge layers into settings, and check them.

    Raises:
        SettingError: a key is not known, a value cannot be used, or settings contradict one another.
    """
    ordered = tuple(sorted(layers, key=lambda layer: RANKS.index(layer.source)))
    values: dict[str, Any] = {}
    origins = dict.fromkeys(KEYS, DEFAULT)
    for layer in ordered:
        for name, raw in layer.values.items():
            values[name] = _value(layer, name, raw)
            origins[name] = layer.origin(name)
    settings = _tree(values, _upstreams_in(ordered))
    origins |= {name: DEFAULT for name in _upstream_names(settings) if name not in origins}
    resolved = ResolvedSettings(
        settings, {name: one for name, one in origins.items() if find_key(name)}, ordered
    )
    try:
        check(settings)
    except SettingError as error:
        raise _with_place(resolved, error) from None
    return resolved


def update(resolved: ResolvedSettings, changes: Mapping[str, object]) -> ResolvedSettings:
    """Return the settings with changes made while the gateway runs; None undoes an earlier change.

    Raises:
        SettingFixed: a flag or the environment sets a key.
        SettingLocked: a key cannot be changed while the gateway runs.
        SettingError: a key is not known, a value cannot be used, or settings contradict one another.
    """
    flat_changes = flat(changes)
    for name in flat_changes:
        _check_tunable(resolved, name)
    runtime = {name: raw for name, raw in {**resolved.runtime, **flat_changes}.items() if raw is not None}
    others = [layer for layer in resolved.layers if layer.source != "runtime"]
    return resolve([*others, runtime_layer(runtime)])


def faults(layers: Iterable[Layer]) -> list[SettingError]:
    """Return every error in single values; if there is none, the contradictions between settings, and then the
    store URLs that cannot be opened.
    """
    found = []
    layers = [*layers]
    for layer in layers:
        for name, raw in layer.values.items():
            try:
                _value(layer, name, raw)
            except SettingError as error:
                found.append(error)
    try:
        if not found:
            resolve(layers)
    except SettingError as error:
        found.append(error)
    return found or [*_store_faults(layers)]


def _store_faults(layers: Iterable[Layer]) -> Iterator[SettingError]:
    """Yield a fault for each store URL that a command would refuse. One in the spelling of earlier versions is none:
    the command rewrites the file, or warns.
    """
    from refold.stores.url import current_spelling, sqlite_file  # here: `--help` reads settings

    for layer in layers:
        url = layer.values.get(STORE_URL)
        if not isinstance(url, str):
            continue
        try:
            sqlite_file(current_spelling(url) if layer.path else url)
        except ConfigError as error:
            yield SettingError(STORE_URL, error.message, place=_place(layer, STORE_URL), hint=error.hint)


def _value(layer: Layer, name: str, raw: object) -> Any:
    """Read the value that a layer gives to a setting, checked by itself."""
    key = find_key(name)
    try:
        _check_source(layer, name, key, raw)
        if key is None:
            return _read_unknown(name, raw)
        return read(key, raw, is_text=layer.is_text)
    except Unreadable as error:
        raise SettingError(
            _printable_name(name), error.what, place=_place(layer, name), hint=error.hint
        ) from None


def _check_source(layer: Layer, name: str, key: SettingKey | None, raw: object) -> None:
    is_upstream = name.partition(".")[0] == UPSTREAMS
    if layer.source == "runtime" and (is_upstream or (key is not None and not key.is_tunable)):
        raise SettingLocked(_printable_name(name))
    if layer.source == "project" and key is not None and chooses_code(key):
        raise Unreadable(
            "a project's file must not choose the programs and plugins that run",
            "put it into your own file: refold config init --user",
        )
    if layer.source == "project" and name == "store.embedder" and raw not in LOCAL_EMBEDDERS:
        # Every stored conversation is sent there, also those that have nothing to do with the project.
        raise Unreadable(
            "a project's file must not name a model that reads all your messages",
            "put it into your own file: refold config init --user",
        )


def chooses_code(key: SettingKey) -> bool:
    """Whether a setting says which code of others runs. It also says which does not: a project's file could switch off a filter that
    protects the user's data.
    """
    return key.field == "key_command" or key.section == "plugins"


def _read_unknown(name: str, raw: object) -> Any:
    """Accept an upstream with nothing but its name, and refuse any other unknown name."""
    section, _, upstream = name.partition(".")
    if section == UPSTREAMS and upstream and "." not in upstream and raw == {}:
        if is_upstream_name(upstream):
            return raw
        raise Unreadable(
            "it is neither an address nor a name for an upstream",
            "an address begins with http:// or https://, such as http://localhost:8000/v1; a name is small letters, digits and hyphens",
        )
    if name.rpartition(".")[2].replace("_", "").replace("-", "").lower() in SECRET_NAMES:
        raise Unreadable(
            "a key does not belong here",
            "name the variable that holds it with key_env, or a command with key_command",
        )
    if name in (*SECTIONS, UPSTREAMS) or (section == UPSTREAMS and "." not in upstream):
        raise Unreadable(
            "it is a table of settings", f"write [{_printable_name(name)}] and its settings below it"
        )
    near = nearest(name)
    hint = f"did you mean {near}?" if near else "`refold config show` lists every setting"
    raise Unreadable("there is no such setting", hint)


def _tree(values: Mapping[str, Any], named: Iterable[str]) -> Settings:
    sections: dict[str, dict[str, Any]] = {}
    upstreams: dict[str, dict[str, Any]] = {name: {} for name in named}
    for name, value in values.items():
        section, _, rest = name.partition(".")
        if section != UPSTREAMS:
            sections.setdefault(section, {})[rest] = value
            continue
        upstream, _, field = rest.partition(".")
        upstreams[upstream].update({field: value} if field else {})
    made: dict[str, Any] = {name: SECTIONS[name](**fields) for name, fields in sections.items()}
    return Settings(
        **made, upstreams={name: UpstreamSettings(**fields) for name, fields in upstreams.items()}
    )


def _upstreams_in(ordered: tuple[Layer, ...]) -> list[str]:
    """Return the names of upstreams: those of the strongest layer first, each layer in its own order."""
    names = (name.split(".") for layer in reversed(ordered) for name in layer.values)
    return [*dict.fromkeys(rest[0] for section, *rest in names if section == UPSTREAMS)]


def _upstream_names(settings: Settings) -> Iterator[str]:
    return (f"{UPSTREAMS}.{name}.{field}" for name in settings.upstreams for field in UPSTREAM_KEYS)


def _check_tunable(resolved: ResolvedSettings, name: str) -> None:
    key, origin, layer = find_key(name), resolved.origins.get(name, DEFAULT), runtime_layer({})
    _check_source(layer, name, key, None)
    if key is None:
        _value(layer, name, None)
    elif origin.source in FIXED:
        raise SettingFixed(name, str(origin))


def _with_place(resolved: ResolvedSettings, error: SettingError) -> SettingError:
    """Return the error with the place at which the value was written."""
    names = (error.key, error.key.rpartition(".")[0])
    written = [(layer, name) for name in names for layer in reversed(resolved.layers) if name in layer.values]
    place = _place(*written[0]) if written else ""
    return SettingError(error.key, error.what, place=place, hint=error.hint)


def _place(layer: Layer, name: str) -> str:
    place = layer.origin(name).place
    line = line_of(layer.text, name) if layer.text else None
    return f"{place}, line {line}" if line else place


def _printable_name(name: str) -> str:
    """Return a name from a file in a form that is harmless in a terminal. A name with unusual characters may
    be an address in the wrong place: then only its section is shown.
    """
    if set(name) & _NOT_IN_NAMES:
        section = name.partition(".")[0]
        return f"{section}.{HIDDEN}" if section in (*SECTIONS, UPSTREAMS) else HIDDEN
    return "".join(letter if letter.isprintable() else "�" for letter in name[:MAX_NAME])
