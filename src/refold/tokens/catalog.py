"""The model catalogue: windows, output limits and prices of the models of many providers, offline.

One idea: the facts are data, made by `scripts/build_catalog.py` and committed. What is here only finds a model by any of
its names. Nothing is read before the first question.
"""

from __future__ import annotations

from collections import Counter
from fnmatch import fnmatchcase
from functools import cache

import msgspec
from msgspec import Struct

from refold.tokens.names import spellings

_MAKERS = (
    "openai", "anthropic", "google", "mistral", "deepseek", "xai", "alibaba", "moonshotai", "zai", "llama", "cohere",
    "minimax", "amazon-bedrock", "nvidia", "perplexity",
)  # fmt: skip
"""Who is meant when only a model is named: those who make models, before those who serve the models of others."""

_PROVIDER_ALIASES = {
    "aws": "amazon-bedrock", "bedrock": "amazon-bedrock", "gemini": "google", "vertex": "google-vertex",
    "vertex_ai": "google-vertex", "together": "togetherai", "together_ai": "togetherai", "fireworks": "fireworks-ai",
    "fireworks_ai": "fireworks-ai", "x-ai": "xai", "grok": "xai", "meta": "llama", "meta-llama": "llama",
    "mistralai": "mistral", "moonshot": "moonshotai", "qwen": "alibaba", "dashscope": "alibaba", "z-ai": "zai",
    "github_copilot": "github-copilot", "deepseek-ai": "deepseek", "novita": "novita-ai", "azure_openai": "azure",
}  # fmt: skip


class Model(Struct, frozen=True, array_like=True):
    """What is known of one model at one provider. Prices are dollars per million tokens; None is unknown, 0 is free."""

    provider: str
    id: str
    window: int = 0
    """0 where no source states one."""
    max_output: int = 0
    input_price: float | None = None
    output_price: float | None = None
    cache_read_price: float | None = None
    cache_write_price: float | None = None

    @property
    def name(self) -> str:
        return f"{self.provider}/{self.id}"


class _Catalogue(Struct, frozen=True):
    priced_on: str
    sources: dict[str, str]
    models: tuple[Model, ...]


def find_model(name: str, provider: str | None = None) -> Model | None:
    """The model of a provider, or the best known model of that name anywhere; None if no spelling of the name is known."""
    names = spellings(name)
    at_provider, anywhere = _indexes()
    if provider:
        for spelling in names:
            if model := at_provider.get((_provider_id(provider), spelling.lower())):
                return model
    for spelling in names:
        vendor, _, rest = spelling.lower().partition("/")
        if rest and (model := at_provider.get((_provider_id(vendor), rest))):
            return model
        if model := anywhere.get(spelling.lower()):
            return model
    return None


def search_models(pattern: str = "") -> tuple[Model, ...]:
    """All models whose `provider/id` contains the text, or fits it where it holds `*` or `?`; makers' own first."""
    wanted = pattern.lower()
    if not any(sign in wanted for sign in "*?"):
        wanted = f"*{wanted.replace('[', '[[]')}*"
    found = (model for model in all_models() if fnmatchcase(model.name.lower(), wanted))
    return tuple(sorted(found, key=lambda model: (_rank(model), model.name)))


def all_models() -> tuple[Model, ...]:
    return _catalogue().models


def priced_on() -> str:
    """The date for which the prices are those of the providers."""
    return _catalogue().priced_on


def _rank(model: Model) -> int:
    return _MAKERS.index(model.provider) if model.provider in _MAKERS else len(_MAKERS)


def _provider_id(provider: str) -> str:
    provider = provider.lower()
    return _PROVIDER_ALIASES.get(provider, provider)


@cache
def _catalogue() -> _Catalogue:
    import gzip
    from importlib import resources

    data = resources.files("refold.tokens").joinpath("data/models.json.gz").read_bytes()
    return msgspec.json.decode(gzip.decompress(data), type=_Catalogue)


@cache
def _indexes() -> tuple[dict[tuple[str, str], Model], dict[str, Model]]:
    at_provider = {(model.provider, model.id.lower()): model for model in all_models()}
    by_name: dict[str, list[Model]] = {}
    for model in all_models():
        by_name.setdefault(model.id.lower(), []).append(model)
        _, slash, bare = model.id.lower().rpartition("/")
        if slash:
            by_name.setdefault(bare, []).append(model)
    return at_provider, {name: _best(models) for name, models in by_name.items()}


def _best(models: list[Model]) -> Model:
    """The maker's own entry; among resellers one with the window most of them state, the smaller of two equally common."""
    for maker in _MAKERS:
        for model in models:
            if model.provider == maker and model.window:
                return model
    windows = Counter(model.window for model in models if model.window)
    usual = min(windows, key=lambda window: (-windows[window], window), default=0)
    return next(model for model in models if model.window == usual)
