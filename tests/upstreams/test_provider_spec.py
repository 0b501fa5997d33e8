"""A model in one word."""

from __future__ import annotations

import pytest

from refold.model.errors import ConfigError
from refold.upstreams import Provider
from refold.upstreams.provider import SERVER, provider_of


@pytest.mark.parametrize(
    "spec, provider",
    [
        ("openai:gpt-4o-mini", Provider("openai", "gpt-4o-mini")),
        ("ollama:qwen3:8b", Provider("ollama", "qwen3:8b")),
        (
            "mine@http://localhost:8000/v1",
            Provider(SERVER, "mine", base_url="http://localhost:8000/v1", key_env="KEY"),
        ),
        (
            "anthropic:mine@https://host",
            Provider("anthropic", "mine", base_url="https://host", key_env="KEY"),
        ),
    ],
)
def test_a_word_says_which_model_and_where(spec, provider):
    assert provider_of(spec, key_env="KEY") == provider


@pytest.mark.parametrize(
    "spec, words",
    [
        ("", "a provider and a model"),
        ("gpt-4o", "a provider and a model"),
        ("openai:", "a provider and a model"),
        ("@http://host", "a provider and a model"),
        ("nosuch:model", "there is no provider 'nosuch'"),
    ],
)
def test_a_word_that_says_too_little(spec, words):
    with pytest.raises(ConfigError, match=words):
        provider_of(spec)
