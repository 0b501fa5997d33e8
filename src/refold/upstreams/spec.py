"""A model in one word, as it is named on a command line.

    openai:gpt-4o-mini              a provider that is known by its name, and one of its models
    ollama:qwen3:8b                 likewise on this machine
    my-model@https://host/v1        any server that speaks OpenAI Chat Completions
    anthropic:my-model@https://host a server that speaks another provider's format

One idea: what is wrong with a word is said before anybody is asked.
"""

from __future__ import annotations

from refold.model.errors import ConfigError
from refold.model.mask import mask_model
from refold.upstreams.provider import KNOWN, Provider

SERVER = "the server"
"""The name of a provider that has an address and no other name."""


def provider_of(spec: str, *, key_env: str = "") -> Provider:
    """The provider and the model that a word stands for; `key_env` names the variable that holds the key for an address.

    Raises:
        ConfigError: it stands for nothing.
    """
    told, at, rest = spec.partition("@http")
    name, colon, model = told.partition(":")
    is_known = bool(colon) and name in KNOWN
    if colon and not at and not is_known:
        hint = f"choose from: {', '.join(KNOWN)}; any other server is MODEL@URL"
        raise ConfigError(f"there is no provider {mask_model(name[:80])!r}", hint=hint)
    if not (model if is_known else at and told):
        hint = "such as openai:gpt-4o-mini, or my-model@http://localhost:8000/v1"
        raise ConfigError(
            f"{mask_model(spec[:80])!r} does not say which model is meant, and whose", hint=hint
        )
    if not at:
        return Provider(name, model)
    name, model = (name, model) if is_known else (SERVER, told)
    return Provider(name, model, base_url=f"http{rest}", key_env=key_env)
