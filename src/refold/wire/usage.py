"""Usage reports in one meaning: `input` is what was neither read from nor written to a cache.

One idea: Anthropic reports input net of its cache, OpenAI gross; added up naively, one of them counts the cache twice.
A report of nothing is no report: servers that do not count send zeros, and zero is not the size of a window.

    Anthropic    input_tokens + cache_read… + cache_creation…     thinking within output; sums over `iterations`
    OpenAI       prompt_tokens ⊇ cached, written                  reasoning within completion
    DeepSeek     prompt_cache_hit_tokens, Kimi cached_tokens      beside the prompt instead of in its details
    xAI          prompt + completion + reasoning = total          reasoning beside completion
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import DecodeError, Raw, structs
from msgspec.json import Decoder

from refold.model.dialect import Dialect
from refold.model.tokens import Usage

MAX_TOKENS = 10**9
"""A thousand times the largest window there is; a larger number is no count of tokens."""
MAX_REPORT_BYTES = 1024 * 1024
"""Five thousand iterations of a server's tool loop; a report has a few hundred bytes otherwise."""

_REPORT: Decoder[dict[str, object]] = Decoder(dict[str, object])
_Report = Mapping[str, object]


def decode_usage(report: Raw | bytes | Mapping[str, object], dialect: Dialect) -> Usage | None:
    """The value of a reply's `usage`; None where it reports nothing. An odd number counts as not reported."""
    if not isinstance(report, Mapping):
        if len(report) > MAX_REPORT_BYTES:
            return None
        try:
            report = _REPORT.decode(report)
        except (DecodeError, UnicodeDecodeError, RecursionError):
            return None
    usage = _net(report) if dialect.name == "anthropic" else _gross(report)
    return usage if usage.prompt or usage.output else None


def _net(report: _Report) -> Usage:
    """The top level sums up the model's turns in a server's tool loop, and leaves out what a compaction cost."""
    listed = report.get("iterations")
    steps = [step for step in listed if isinstance(step, Mapping)] if isinstance(listed, list) else []
    usage = _step(report)
    for step in steps:
        if step.get("type") == "compaction":
            usage += _step(step)
    turns = [step for step in steps if step.get("type") in ("message", "fallback_message")]
    last = _step(turns[-1]).prompt if turns else 0
    return structs.replace(usage, last_prompt=last if last != usage.prompt else 0)


def _step(report: _Report) -> Usage:
    return Usage(
        input=_count(report, "input_tokens"),
        cache_read=_count(report, "cache_read_input_tokens"),
        cache_write=_count(report, "cache_creation_input_tokens"),
        output=_count(report, "output_tokens"),
        reasoning=_count(_details(report, "output_tokens_details"), "thinking_tokens"),
    )


def _gross(report: _Report) -> Usage:
    """Chat Completions says prompt and completion, Responses input and output; servers mix them."""
    prompt = _count(report, "prompt_tokens", "input_tokens")
    details = _details(report, "prompt_tokens_details", "input_tokens_details")
    read = _count(details, "cached_tokens") or _count(report, *_READ)
    written = _count(details, "cache_write_tokens", "cache_creation_tokens") or _count(report, *_WRITTEN)
    output, reasoning = _output(report, prompt)
    # More from the cache than in all: this server adds the cache on top, as Anthropic does.
    fresh = prompt - read - written if read + written <= prompt else prompt
    return Usage(fresh, read, written, output, reasoning)


_READ = ("prompt_cache_hit_tokens", "cached_tokens", "cache_read_input_tokens")
_WRITTEN = ("cache_creation_input_tokens",)


def _output(report: _Report, prompt: int) -> tuple[int, int]:
    """What was written, and how much of it was reasoning."""
    output = _count(report, "completion_tokens", "output_tokens")
    details = _details(report, "completion_tokens_details", "output_tokens_details")
    reasoning = _count(details, "reasoning_tokens")
    is_beside = reasoning > output or prompt + output + reasoning == _count(report, "total_tokens")
    return (output + reasoning if is_beside else output), reasoning


def _details(report: _Report, *names: str) -> _Report:
    found = (report.get(name) for name in names)
    return next((value for value in found if isinstance(value, Mapping)), {})


def _count(report: _Report, *names: str) -> int:
    """The first number of tokens among the fields; some servers write it as a float."""
    for name in names:
        value = report.get(name)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_TOKENS:
            return value
    return 0
