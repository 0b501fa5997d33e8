"""Who writes the summaries of a replay: from a word on a command line to a model, its window and its prices.

    digest                          no model: the messages' own words
    openai:gpt-4o-mini              a provider that is known by its name, and one of its models
    ollama:qwen3:8b                 likewise on this machine
    my-model@https://host/v1        any server that speaks OpenAI Chat Completions
    anthropic:my-model@https://host a server that speaks another provider's format
    local                           the small model that `refold local install` fetches

One idea: whatever is wrong with the choice is said before the first recording is replayed, and a price is either the
catalogue's, with the name of its entry, or not known. Nobody's price is guessed.
"""

from __future__ import annotations

from typing import NoReturn

from msgspec import Struct

from refold.core.cost import Prices
from refold.model.errors import ConfigError
from refold.model.mask import mask_model
from refold.tokens import find_model
from refold.tokens.catalog import window_for
from refold.upstreams import KNOWN, Provider

DIGEST = "digest"
LOCAL = "local"
FREE = Prices(0.0, 0.0, 0.0, 0.0)
"""A model on this machine costs time and no money."""
SERVER = "the server"
"""The name of a provider that has an address and no other name."""
THIS_MACHINE = "this machine"
_OWN_MACHINE = frozenset(name for name, known in KNOWN.items() if not known.key_env)
_HINT = f"such as openai:gpt-4o-mini, my-model@http://localhost:8000/v1, {LOCAL} or {DIGEST}"


class Chosen(Struct, frozen=True):
    spec: str
    """As it was asked for, without what is secret in its address: reports show it."""
    provider: Provider | None
    """None for the small model, which has no address before it runs."""
    window: int = 0
    """0 for the small model, which says it when it runs."""
    prices: Prices | None = FREE
    """None where they are not known."""
    priced_as: str = ""
    """The entry of the catalogue that they are from."""


def choose(spec: str, *, key_env: str = "") -> Chosen | None:
    """The summariser that a word stands for; None for the digest.

    `key_env` names the variable that holds the key for an address; a provider that is known has a variable of its own.

    Raises:
        ConfigError: it stands for nothing.
    """
    if spec == DIGEST:
        return None
    if spec == LOCAL:
        return Chosen(spec, None, priced_as=THIS_MACHINE)
    provider = _provider(spec, key_env)
    prices, priced_as = _prices(provider)
    window = window_for(provider.model, provider=provider.name, url=provider.base_url).tokens
    return Chosen(mask_model(spec), provider, window, prices, priced_as)


def _provider(spec: str, key_env: str) -> Provider:
    told, at, rest = spec.partition("@http")
    name, colon, model = told.partition(":")
    is_known = bool(colon) and name in KNOWN
    if not (model if is_known else at and told):
        _refuse(name, spec, is_known=is_known or not colon)
    if not at:
        return Provider(name, model)
    name, model = (name, model) if is_known else (SERVER, told)
    return Provider(name, model, base_url=f"http{rest}", key_env=key_env)


def _refuse(name: str, spec: str, *, is_known: bool) -> NoReturn:
    if is_known:
        raise ConfigError(
            f"{mask_model(spec[:80])!r} does not say which model is meant, and whose", hint=_HINT
        )
    hint = f"choose from: {', '.join(KNOWN)}; any other server is MODEL@URL"
    raise ConfigError(f"there is no provider {mask_model(name[:80])!r}", hint=hint)


def _prices(provider: Provider) -> tuple[Prices | None, str]:
    """By the provider and the model's name; at an address of your own by the name alone."""
    if provider.name in _OWN_MACHINE and not provider.base_url:
        return FREE, THIS_MACHINE
    found = find_model(provider.model, provider.name if provider.name in KNOWN else None)
    if found is None or found.input_price is None or found.output_price is None:
        return None, ""
    prices = Prices(found.input_price, found.output_price, found.cache_read_price, found.cache_write_price)
    return prices, found.name
