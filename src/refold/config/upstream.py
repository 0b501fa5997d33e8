"""Upstreams in their complete form: with the fields that a well-known name stands for.

A key is sent only to the host it is meant for. A key that the settings name (`key_env`, `key_command`) is the
operator's, and is used for every call. Otherwise the client's own key is passed on. A well-known name also
implies the variable of its key, if the address is its own and the variable is set: that key is used for
clients that send none.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from msgspec import structs

from refold.config.policy import block_of
from refold.config.tree import Settings, UpstreamSettings
from refold.engine.settings import NATIVE, PLUGIN, NamedEmbedder, named_embedder, providers_with_block
from refold.model.errors import ConfigError, MissingExtra, SettingError
from refold.model.message import DialectName
from refold.plugins.registry import active
from refold.ports.models import Embedder
from refold.upstreams.provider import KNOWN, Provider, complete, provider_of

FORMATS: dict[str, tuple[DialectName, ...]] = {"openai": ("chat", "responses")}
"""Formats of well-known names that speak more than one."""
ANY_MODEL = "*"


def completed(name: str, upstream: UpstreamSettings, environ: Mapping[str, str]) -> UpstreamSettings:
    """Return an upstream with its address, its formats, the gateway's key for it, and in `pass_key` whether
    the client's key comes first.

    Raises:
        SettingError: it has no address, or an invalid one.
    """
    provider = provider_for(name, upstream, ANY_MODEL)
    own = "" if upstream.key_env else provider.key_env
    key_env = upstream.key_env or (own if environ.get(own) else "")
    is_operators = bool(upstream.key_env or upstream.key_command)
    return structs.replace(
        upstream,
        url=provider.base_url,
        formats=upstream.formats or FORMATS.get(name, (provider.format or "chat",)),
        key_env=key_env,
        pass_key=not is_operators if upstream.pass_key is None else upstream.pass_key,
        private=upstream.private or is_literal(provider.base_url),
    )


def summarisers_of(settings: Settings) -> tuple[Provider, ...]:
    """Return the models that write summaries, in their order: `NAME:MODEL` with an upstream of the settings,
    or a name that `upstreams.provider` reads. Without any, the model of the settings block; if the block
    names no provider, the provider has no name, and stands for the conversation's own.

    Raises:
        SettingError: one of them names no model.
    """
    named = tuple(_writer(settings, spec, at) for at, spec in enumerate(settings.summariser.models, 1))
    block = block_of(settings)
    if block is None:
        return named
    if named:
        return providers_with_block(structs.replace(block, provider=None, model=None), named)
    return tuple(_of_block(settings, provider) for provider in providers_with_block(block, ()))


def embedder_of(settings: Settings, environ: Mapping[str, str] = os.environ) -> Embedder | None:
    """Return what `store.embedder` names: one of this machine, a model of an upstream of the settings (`NAME:MODEL`), or one that
    `upstreams.provider` reads. A model is connected to when it is first asked.

    Raises:
        SettingError: it names none, or its key is missing.
        MissingExtra: the extra of the named one is not installed.
    """
    spec = settings.store.embedder
    name, _, model = spec.partition(":")
    try:
        if model and name in settings.upstreams:
            return NamedEmbedder(provider_for(name, settings.upstreams[name], model), environ)
        return named_embedder(spec, environ)
    except MissingExtra:
        raise
    except ConfigError as error:
        raise SettingError("store.embedder", "it names no embedder", hint=error.hint) from None


def _of_block(settings: Settings, provider: Provider) -> Provider:
    name, place = provider.name, "compaction.summarization"
    if not name:
        return provider
    if name in settings.upstreams:
        known = provider_for(name, settings.upstreams[name], provider.model or ANY_MODEL)
        return structs.replace(known, model=provider.model, parameters=provider.parameters)
    if name not in KNOWN:
        hint = f"describe it as [upstreams.{name}] with its url, or take one of: {', '.join(KNOWN)}"
        raise SettingError(place, f"its provider {name!r} has no known address", hint=hint)
    if not provider.model:
        raise SettingError(place, "it names a provider and no model", hint="add the key model")
    return provider


def is_literal(url: str) -> bool:
    """Whether the URL itself identifies the machine, without a lookup of its name."""
    host = urlsplit(url).hostname or ""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return True


def _writer(settings: Settings, spec: str, at: int) -> Provider:
    name, _, model = spec.partition(":")
    if spec == NATIVE:
        return _native(at)
    if name == PLUGIN:
        return _plugin(settings, model, at)
    if model and name in settings.upstreams:
        return provider_for(name, settings.upstreams[name], model)
    try:
        provider = provider_of(spec)
        complete(provider)
    except ConfigError as error:
        raise SettingError(
            "summariser.models", f"number {at} names no model to ask", hint=error.hint
        ) from None
    return provider


def _native(at: int) -> Provider:
    if at > 1:
        raise SettingError(
            "summariser.models",
            f"number {at} is native, and it is asked first",
            hint="write native before the models that write if the provider does not compact",
        )
    return Provider(NATIVE)


def _plugin(settings: Settings, model: str, at: int) -> Provider:
    if len(settings.summariser.models) > 1:
        raise SettingError(
            "summariser.models",
            f"number {at} is a summariser of a plugin, and there are others",
            hint="a summariser of a plugin stands alone: if it fails, a digest is made",
        )
    try:
        active().summariser(model)
    except ConfigError as error:
        raise SettingError("summariser.models", error.message, hint=error.hint) from None
    return Provider(PLUGIN, model)


def provider_for(name: str, upstream: UpstreamSettings, model: str) -> Provider:
    """Return the provider of an upstream, for one of its models.

    Raises:
        SettingError: it has no address, or an invalid one.
    """
    if not upstream.url and name not in KNOWN:
        known = f"give one, or take a well-known name: {', '.join(KNOWN)}"
        raise SettingError(f"upstreams.{name}.url", "it has no address", hint=known)
    speaks = upstream.formats[0] if upstream.formats else None
    asked = Provider(
        name, model, speaks, upstream.url, upstream.key_env, upstream.key_command, headers=upstream.headers
    )
    try:
        return complete(asked)
    except ConfigError as error:
        field = "headers" if "header" in error.message else "url"
        fault = error.message.replace(f"the base_url of {name!r}", "it")
        raise SettingError(f"upstreams.{name}.{field}", fault, hint=error.hint) from None
