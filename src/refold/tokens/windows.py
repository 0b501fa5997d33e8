"""How large a model's window is, and how that is known.

One idea: the best evidence wins, and a guess says that it is one. In order: what the user set, what the upstream reports,
what an error taught, the catalogue, the name, and at last a default with a warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

from refold.model.errors import ConfigError
from refold.tokens.catalog import find_model
from refold.tokens.names import spellings

WindowSource: TypeAlias = Literal["override", "upstream", "learned", "catalogue", "pattern", "default"]

DEFAULT_WINDOW = 128_000
"""The smallest window that hosted models of the last two years commonly have."""
LOCAL_WINDOW = 8_192
"""Local servers give a conversation what memory allows, often no more than this, whatever the model could do."""

_SIZE_IN_NAME = re.compile(r"(?:^|[-_:])(\d{1,4})([km])(?=$|[-_:])")
_PATTERNS: tuple[tuple[re.Pattern[str], int], ...] = tuple(
    (re.compile(pattern), tokens)
    for pattern, tokens in (
        (r"gpt-5(?!.{0,256}chat)|codex", 400_000),
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
"""The first pattern that fits the start of a name decides, so the special stands before the general. 256 is `names.LONGEST`."""


class WindowSize(Struct, frozen=True):
    tokens: int
    source: WindowSource
    warning: str = ""


def window_for(
    model: str,
    *,
    provider: str = "",
    override: int | None = None,
    upstream_report: int | None = None,
    learned: int | None = None,
    url: str = "",
    overrides: Mapping[str, int] | None = None,
) -> WindowSize:
    """The window of a model as the best evidence has it. `overrides` are the user's, by `provider/model` or model.

    Raises:
        ConfigError: an override is not a positive whole number.
    """
    sizes: Iterator[tuple[int | None, WindowSource]] = iter(
        (
            (_override(model, provider, override, overrides or {}), "override"),
            (upstream_report, "upstream"),
            (learned, "learned"),
        )
    )
    for tokens, source in sizes:
        if tokens and tokens > 0:
            return WindowSize(tokens, source)
    return _known_by_name(model, provider) or _default(model, url)


def _known_by_name(model: str, provider: str) -> WindowSize | None:
    listed = find_model(model, provider or None)
    if listed and listed.window:
        return WindowSize(listed.window, "catalogue")
    guessed = window_by_pattern(model)
    return WindowSize(guessed, "pattern") if guessed else None


def window_by_pattern(model: str) -> int | None:
    """What a name alone says: a size in it (`-32k`, `-1m`), or its family."""
    for name in reversed(spellings(model)):
        if stated := _SIZE_IN_NAME.search(name):
            return _stated(int(stated[1]), stated[2])
        for pattern, tokens in _PATTERNS:
            if pattern.match(name):
                return tokens
    return None


def _stated(number: int, unit: str) -> int:
    """Makers round: 32k is 32,768 where sizes are small, 128k may be 128,000, and the smaller reading is safe."""
    if unit == "m":
        return number * 1_000_000
    return number * (1_024 if number < 100 else 1_000)


def _override(model: str, provider: str, override: int | None, overrides: Mapping[str, int]) -> int | None:
    for key, tokens in overrides.items():
        _check(f"window override for {key!r}", tokens)
    if override is not None:
        _check("window override", override)
        return override
    names = spellings(model)
    keys = [f"{provider}/{name}" for name in names if provider] + list(names)
    return next((overrides[key] for key in keys if key in overrides), None)


def _check(what: str, tokens: object) -> None:
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
        raise ConfigError(
            f"{what} is not a positive whole number", hint="give the window in tokens, such as 200000"
        )


def _default(model: str, url: str) -> WindowSize:
    tokens = LOCAL_WINDOW if is_local(url) else DEFAULT_WINDOW
    return WindowSize(
        tokens,
        "default",
        f"the window of {model!r} is unknown; {tokens:,} tokens are assumed. Set it if it is another.",
    )


def is_local(url: str) -> bool:
    """Does the URL lead to this machine or its network?"""
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
