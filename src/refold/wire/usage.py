"""Usage reports in one meaning: `input` is what was neither read from nor written to a cache.

One idea: Anthropic reports input net of its cache, OpenAI gross; added up naively, one of them counts the cache twice.
A report of nothing is no report: servers that do not count send zeros, and zero is not the size of a window.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

from msgspec import DecodeError, Raw
from msgspec.json import Decoder

from refold.model.dialect import Dialect
from refold.model.tokens import Usage

_REPORT: Decoder[dict[str, object]] = Decoder(dict[str, object])


def decode_usage(report: Raw | bytes | Mapping[str, object], dialect: Dialect) -> Usage | None:
    """The value of a reply's `usage`; None where it reports nothing. An odd number counts as not reported."""
    if not isinstance(report, Mapping):
        try:
            report = _REPORT.decode(report)
        except (DecodeError, UnicodeDecodeError, RecursionError):
            return None
    usage = _net(report) if dialect.name == "anthropic" else _gross(report)
    return usage if usage.prompt or usage.output else None


def _net(report: Mapping[str, object]) -> Usage:
    return Usage(
        input=_count(report, "input_tokens"),
        cache_read=_count(report, "cache_read_input_tokens"),
        cache_write=_count(report, "cache_creation_input_tokens"),
        output=_count(report, "output_tokens"),
    )


def _gross(report: Mapping[str, object]) -> Usage:
    """Chat Completions says prompt and completion, Responses input and output; servers mix them."""
    prompt = _count(report, "prompt_tokens", "input_tokens")
    cached = _count(_details(report, "prompt_tokens_details", "input_tokens_details"), "cached_tokens")
    thought = _details(report, "completion_tokens_details", "output_tokens_details")
    return Usage(
        # More from the cache than in all: this server adds the cache on top, as Anthropic does.
        input=prompt - cached if cached <= prompt else prompt,
        cache_read=cached,
        output=_count(report, "completion_tokens", "output_tokens"),
        reasoning=_count(thought, "reasoning_tokens"),
    )


def _details(report: Mapping[str, object], *names: str) -> Mapping[str, object]:
    found = (report.get(name) for name in names)
    return next((value for value in found if isinstance(value, Mapping)), {})


def _count(report: Mapping[str, object], *names: str) -> int:
    """The first number of tokens among the fields; some servers write it as a float."""
    for name in names:
        value = report.get(name)
        if isinstance(value, float) and isfinite(value):
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return 0
