from __future__ import annotations

import pytest

from refold.model.errors import ConfigError
from refold.model.tokens import Prices
from refold.replay.summarisers import choose


@pytest.mark.feature("N6")
def test_a_known_provider_brings_its_address_its_key_and_its_prices():
    chosen = choose("openai:gpt-4o-mini", key_env="OTHER_KEY")

    assert (chosen.provider.name, chosen.provider.model) == ("openai", "gpt-4o-mini")
    assert (chosen.window, chosen.priced_as) == (128_000, "openai/gpt-4o-mini")
    assert chosen.prices == Prices(0.15, 0.6, 0.075)
    assert chosen.provider.key_env == ""  # its own variable is meant; the other is for addresses


def test_the_digest_is_no_model():
    assert choose("digest") is None


@pytest.mark.parametrize(
    "spec, name, model, url",
    [
        ("qwen3:8b@http://localhost:8000/v1", "the server", "qwen3:8b", "http://localhost:8000/v1"),
        ("my-model@https://host/v1", "the server", "my-model", "https://host/v1"),
        ("anthropic:mine@https://host", "anthropic", "mine", "https://host"),
        ("ollama:qwen3:8b", "ollama", "qwen3:8b", ""),
        ("openrouter:openai/gpt-4o-mini", "openrouter", "openai/gpt-4o-mini", ""),
    ],
)
def test_any_server_can_be_named(spec, name, model, url):
    provider = choose(spec, key_env="MY_KEY").provider

    assert (provider.name, provider.model, provider.base_url) == (name, model, url)
    assert provider.key_env == ("MY_KEY" if url else "")


def test_what_runs_here_is_free_and_what_nobody_prices_has_no_price():
    assert choose("local").prices == choose("ollama:qwen3:8b").prices == Prices(0, 0, 0, 0)
    assert choose("no-such-model-9@https://host/v1").prices is None


@pytest.mark.parametrize(
    "spec, words",
    [
        ("opnai:gpt-4o", "there is no provider 'opnai'"),
        ("gpt-4o-mini", "does not name a provider and a model"),
        ("openai:", "does not name a provider and a model"),
        ("openai", "does not name a provider and a model"),
        ("@http://localhost:8000/v1", "does not name a provider and a model"),
    ],
)
def test_a_choice_that_stands_for_nothing_is_told_with_what_would(spec, words):
    with pytest.raises(ConfigError, match=words) as caught:
        choose(spec)

    assert "openai" in caught.value.hint
