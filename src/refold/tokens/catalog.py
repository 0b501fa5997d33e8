"""The model catalogue: windows, output limits and prices of the models of many providers, offline.

The data file is built by `scripts/build_catalog.py` and committed; it is loaded at the first lookup. This
module finds a model by any spelling of its name, and determines the window of a model from the best available
source.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache, lru_cache

import msgspec
from msgspec import Struct

from refold.model.mask import mask_text
from refold.model.tokens import WindowSource, check_window

# Spellings of a model's name

_DATE = re.compile(r"[-@](?:20\d{6}|20\d\d-\d\d-\d\d|\d{2}-20\d\d|latest)$")
_BEDROCK = re.compile(r"^(?:(?:us|eu|apac|au|jp|ca|global)\.)?([a-z0-9]+)\.(?=[a-z])")
"""A region and a vendor before a dot, as in `us.anthropic.claude-sonnet-4`; `gpt-4.1` has no letter after its
dot.
"""
_REVISION = re.compile(r"-v\d+(?::\d+)?$")

LONGEST = 256
"""Characters. No model's name is half as long. The name comes from a client, and a name with many slashes has
as many spellings.
"""


def spellings(name: str) -> tuple[str, ...]:
    """The name itself, then the name without case, variant, route, vendor, revision and date, each spelling
    once.

    A name longer than `LONGEST` has no other spelling.
    """
    name = name.strip()
    return _spellings(name) if len(name) <= LONGEST else (name,)


@lru_cache(maxsize=256)
def _spellings(name: str) -> tuple[str, ...]:
    """Cached, because each request asks for the window, the prices and the counter of the same few models."""
    return tuple(dict.fromkeys(_shorter_names(name)))


def _shorter_names(name: str) -> Iterator[str]:
    yield name
    name = name.lower()
    yield name
    name = name.removeprefix("models/")
    yield name
    while "/" in name:
        yield _without_variant(name)
        name = name.partition("/")[2]
        yield name
    name = _BEDROCK.sub("", name)
    yield name
    for strip in (_without_variant, _without_revision, _without_date):
        name = strip(name)
        yield name


def _without_variant(name: str) -> str:
    """Removes `:free` or `:thinking`, which are ways to serve a model. A digit after the colon is Bedrock's
    revision or Ollama's size.
    """
    head, colon, variant = name.rpartition(":")
    return head if colon and variant[:1].isalpha() else name


def _without_revision(name: str) -> str:
    return _REVISION.sub("", name)


def _without_date(name: str) -> str:
    return _DATE.sub("", name)


_MAKERS = (
    "openai", "anthropic", "google", "mistral", "deepseek", "xai", "alibaba", "moonshotai", "zai", "llama", "cohere",
    "minimax", "amazon-bedrock", "nvidia", "perplexity",
)  # fmt: skip
"""Providers to prefer if only a model is named: makers of models, before resellers. In order of preference."""

_PROVIDER_ALIASES = {
    "aws": "amazon-bedrock", "bedrock": "amazon-bedrock", "gemini": "google", "vertex": "google-vertex",
    "vertex_ai": "google-vertex", "together": "togetherai", "together_ai": "togetherai", "fireworks": "fireworks-ai",
    "fireworks_ai": "fireworks-ai", "x-ai": "xai", "grok": "xai", "meta": "llama", "meta-llama": "llama",
    "mistralai": "mistral", "moonshot": "moonshotai", "qwen": "alibaba", "dashscope": "alibaba", "z-ai": "zai",
    "github_copilot": "github-copilot", "deepseek-ai": "deepseek", "novita": "novita-ai", "azure_openai": "azure",
}  # fmt: skip


class Model(Struct, frozen=True, array_like=True):
    """A model at one provider. Prices are in dollars per million tokens; None is unknown, 0 is free."""

    provider: str
    id: str
    window: int = 0
    """0 if no source states one."""
    max_output: int = 0
    input_price: float | None = None
    output_price: float | None = None
    cache_read_price: float | None = None
    cache_write_price: float | None = None
    max_input: int | None = None
    """Most tokens of input, if that is less than the window; None if not."""

    @property
    def name(self) -> str:
        return f"{self.provider}/{self.id}"


class _Catalogue(Struct, frozen=True):
    priced_on: str
    sources: dict[str, str]
    models: tuple[Model, ...]


def find_model(name: str, provider: str | None = None) -> Model | None:
    """The model at a provider, or the best known model with this name at any provider; None if no spelling of
    the name is known.
    """
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
    """All models whose `provider/id` contains the text, or matches it if it has `*` or `?`; makers' own
    entries first.
    """
    wanted = pattern.lower()
    if not any(sign in wanted for sign in "*?"):
        wanted = f"*{wanted.replace('[', '[[]')}*"
    found = (model for model in all_models() if fnmatchcase(model.name.lower(), wanted))
    return tuple(sorted(found, key=lambda model: (_rank(model), model.name)))


def all_models() -> tuple[Model, ...]:
    return _catalogue().models


def priced_on() -> str:
    """The date of the prices."""
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
    """The maker's own entry; among resellers one with the most common window, and the smaller of two equally
    common ones.
    """
    for maker in _MAKERS:
        for model in models:
            if model.provider == maker and model.window:
                return model
    windows = Counter(model.window for model in models if model.window)
    usual = min(windows, key=lambda window: (-windows[window], window), default=0)
    return next(model for model in models if model.window == usual)


# The window of a model, and its source

_SHOWN = 80
"""Characters of a model's name in a warning: it comes from a client."""
DEFAULT_WINDOW = 128_000
"""The smallest window that is common among hosted models of the last two years."""
LOCAL_WINDOW = 8_192
"""Local servers size the window by the available memory, often no larger than this, even if the model
supports more.
"""

GPT_5 = re.compile(r"gpt-5(?!.{0,256}chat)|codex")
GPT_5_WINDOW, GPT_5_INPUT = 400_000, 272_000
"""The window of a gpt-5 model, and the part of it that input may take; the rest is for the output."""
_SIZE_IN_NAME = re.compile(r"(?:^|[-_:])(\d{1,4})([km])(?=$|[-_:])")
_PATTERNS: tuple[tuple[re.Pattern[str], int], ...] = tuple(
    (re.compile(pattern), tokens)
    for pattern, tokens in (
        (GPT_5.pattern, GPT_5_WINDOW),
        (r"gpt-4\.1", 1_047_576),
        (r"gpt-oss", 131_072),
        (r"gpt-4(-(0314|0613))?$", 8_192),
        (r"gpt-3\.5.{0,256}instruct", 4_096),
        (r"gpt-3\.5", 16_385),
        (r"o[134]-(mini-2024|preview)|o1-mini", 128_000),
        (r"o[134](-|$)", 200_000),
        (r"(chat)?gpt-", 128_000),
        (r"claude-(instant|v?[12](?!\.1))(?!\d)", 100_000),
        (r"claude", 200_000),
        (r"gemini-1\.0|gemini-pro(-vision)?$", 32_760),
        (r"gemini", 1_048_576),
        (r"gemma-?[34]", 128_000),
        (r"gemma", 8_192),
        (r"(meta-)?llama-?4", 1_000_000),
        (r"(meta-)?llama-?3\.[1-9]", 128_000),
        (r"(meta-)?llama-?3", 8_192),
        (r"(meta-|code)?llama", 4_096),
        (r"grok-4.{0,256}fast", 2_000_000),
        (r"grok-4", 256_000),
        (r"grok", 131_072),
        (r"deepseek", 128_000),
        (r"qwen-?3.{0,256}(coder|max|next)|qwen-?3\.", 262_144),
        (r"qwen-?3|qwq", 131_072),
        (r"qwen", 32_768),
        (r"kimi-?k2", 262_144),
        (r"kimi|moonshot", 131_072),
        (r"glm-?(4\.[6-9]|[5-9])", 200_000),
        (r"glm", 128_000),
        (r"minimax", 204_800),
        (r"(open-)?mi[sx]tral-(7b|8x7b)", 32_768),
        (r"mixtral", 65_536),
        (r"(open-)?mistral|ministral|pixtral|devstral|magistral|codestral", 128_000),
        (r"command-r|command-a", 128_000),
        (r"command", 4_096),
        (r"nova-(lite|pro)", 300_000),
        (r"phi-?4(?!-mini)", 16_384),
        (r"phi-?[34]", 128_000),
    )
)
"""The first pattern that matches the start of a name wins, so special patterns come before general ones. 256
is `LONGEST`.
"""


class WindowSize(Struct, frozen=True):
    """The window of a model in tokens, where the number comes from, and a warning if it is a guess."""

    tokens: int
    source: WindowSource
    warning: str = ""
    max_input: int = 0
    """The model's own limit of input, if it is less than the window and the window is the catalogue's or the
    name's; 0 if not. Whoever states another window knows the model better."""


def window_for(
    model: str,
    *,
    provider: str = "",
    override: int | None = None,
    upstream_report: int | None = None,
    url: str = "",
    overrides: Mapping[str, int] | None = None,
) -> WindowSize:
    """The window of a model from the best source available. `overrides` are the user's, by `provider/model`
    or by model. A window that a refusal has taught is no part of it, see `refold.engine.state.Limits`.

    Raises:
        ConfigError: an override is not the size of a window.
    """
    sizes: Iterator[tuple[int | None, WindowSource]] = iter(
        (
            (_override(model, provider, override, overrides or {}), "override"),
            (upstream_report, "upstream"),
        )
    )
    for tokens, source in sizes:
        if tokens and tokens > 0:
            return WindowSize(tokens, source)
    return _known_by_name(model, provider) or _default(model, url)


def _known_by_name(model: str, provider: str) -> WindowSize | None:
    listed = find_model(model, provider or None)
    if listed and listed.window:
        return WindowSize(listed.window, "catalogue", max_input=listed.max_input or 0)
    guessed = window_by_pattern(model)
    if not guessed:
        return None
    is_divided = guessed == GPT_5_WINDOW and any(map(GPT_5.match, spellings(model)))
    return WindowSize(
        guessed,
        "pattern",
        f"the window of {mask_text(model)[:_SHOWN]!r} is unknown; its name suggests {guessed:,} tokens. Set it if it is another.",
        GPT_5_INPUT if is_divided else 0,
    )


def window_by_pattern(model: str) -> int | None:
    """The window that the name alone suggests: a size in it (`-32k`, `-1m`), or its family."""
    for name in reversed(spellings(model)):
        if stated := _SIZE_IN_NAME.search(name):
            return _size_in_tokens(int(stated[1]), stated[2])
        for pattern, tokens in _PATTERNS:
            if pattern.match(name):
                return tokens
    return None


def _size_in_tokens(number: int, unit: str) -> int:
    """Vendors round: 32k means 32,768 for small sizes, 128k may mean 128,000. Takes the smaller reading,
    which is safe.
    """
    if unit == "m":
        return number * 1_000_000
    return number * (1_024 if number < 100 else 1_000)


def _override(model: str, provider: str, override: int | None, overrides: Mapping[str, int]) -> int | None:
    for key, tokens in overrides.items():
        check_window(tokens, f"the window of {key!r}")
    if override is not None:
        check_window(override, "window")
        return override
    names = spellings(model)
    keys = [f"{provider}/{name}" for name in names if provider] + list(names)
    return next((overrides[key] for key in keys if key in overrides), None)


def _default(model: str, url: str) -> WindowSize:
    tokens = LOCAL_WINDOW if is_local(url) else DEFAULT_WINDOW
    return WindowSize(
        tokens,
        "default",
        f"the window of {mask_text(model)[:_SHOWN]!r} is unknown; {tokens:,} tokens are assumed. Set it if it is another.",
    )


def is_local(url: str) -> bool:
    """True if the URL is on this machine or in its network."""
    import ipaddress
    from urllib.parse import urlsplit

    try:
        host = urlsplit(url if "//" in url else f"//{url}").hostname or ""
    except ValueError:
        return False
    if host == "localhost" or host.endswith((".localhost", ".local", ".internal")):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_private or address.is_link_local or address.is_unspecified
