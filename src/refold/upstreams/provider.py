"""The settings of one provider: the address of a model, its key, its timeouts and retries.

A well-known name stands for an address, a format and an environment variable with the key; explicit settings
override them. A custom address also drops the known variable, so that no key goes to a host it was not meant
for.

The `repr` of a provider shows its name and its model. Headers, proxies and parameters may hold secrets and
are never shown.
"""

from __future__ import annotations

import asyncio
import random
import re
import shlex
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import Literal, TypeAlias, get_args
from urllib.parse import urlsplit

from msgspec import Struct, structs

from refold.model.errors import ConfigError
from refold.model.mask import mask_model, mask_variable
from refold.model.message import DialectName

Auth: TypeAlias = Literal["bearer", "x-api-key", "api-key"]


class Timeouts(Struct, frozen=True, forbid_unknown_fields=True):
    """Time limits, in seconds."""

    connect_s: float = 10.0
    """Name resolution, connection and TLS; a reachable host needs one or two seconds."""
    first_byte_s: float = 300.0
    """Until the answer begins: a reply that is not streamed begins when it is complete, and models think for
    minutes.
    """
    between_s: float = 120.0
    """Between two chunks of a stream: some models think without sending anything."""
    total_s: float = 600.0
    """For one question with all its retries and waits: the providers' own clients allow the same."""


class Retries(Struct, frozen=True, forbid_unknown_fields=True):
    """Retries of a question to a provider that is busy or unreachable."""

    tries: int = 3
    """Attempts in total. For longer overloads another provider is the better answer."""
    base_s: float = 0.5
    """The first wait is at most this long; every further limit is twice the previous one."""
    longest_s: float = 8.0
    """The longest wait chosen by the client."""
    longest_asked_s: float = 60.0
    """The longest wait that a provider may ask for: until the next minute's tokens. A longer one counts as a
    failure.
    """


class Pace(Struct, frozen=True):
    """The clocks, the sleep and the randomness of retries; tests replace them."""

    clock: Callable[[], float]
    """A monotonic clock, in seconds."""
    wall: Callable[[], float]
    """Seconds since 1970."""
    sleep: Callable[[float], Awaitable[None]]
    draw: Callable[[], float]
    """A random number from 0 to 1."""


REAL_PACE = Pace(time.monotonic, time.time, asyncio.sleep, random.random)


class Provider(Struct, frozen=True, forbid_unknown_fields=True):
    """A provider, or a server of your own, and one of its models; `refold.open_upstream` connects to it."""

    name: str
    """A well-known name (`KNOWN`), or any name with a `base_url`."""
    model: str = ""
    format: DialectName | None = None
    """Default: the format of the name, or Chat."""
    base_url: str = ""
    key_env: str = ""
    """The environment variable with the key. Default: the variable of the name, unless `base_url` is set."""
    key_command: str = ""
    """A command that prints the key, for keys in a vault. It is run without a shell."""
    auth: Auth | None = None
    """The header that carries the key. Default: the one of the format's own provider."""
    headers: dict[str, str] = {}
    """Sent with every request; they replace the client's own."""
    parameters: dict[str, object] = {}
    """Fields of the request body, such as `reasoning_effort`; they replace the client's own, and null removes
    one.
    """
    output_field: str = ""
    """The field of the output limit on Chat servers. Default: `max_tokens`, and `max_completion_tokens` for
    OpenAI.
    """
    proxy: str = ""
    ca_file: str = ""
    """Certificates to trust instead of the system's."""
    trust_env: bool = False
    """Use proxies (and .netrc) from the environment. Off, so that the settings alone decide the route to a
    provider.
    """
    timeouts: Timeouts = Timeouts()
    retries: Retries = Retries()

    def __repr__(self) -> str:
        return f"<provider {self.name}: {self.model or 'no model'}>"


class ProviderDefaults(Struct, frozen=True):
    base_url: str
    key_env: str = ""
    format: DialectName = "chat"
    output_field: str = "max_tokens"


KNOWN: dict[str, ProviderDefaults] = {
    "openai": ProviderDefaults(
        "https://api.openai.com/v1", "OPENAI_API_KEY", output_field="max_completion_tokens"
    ),
    "anthropic": ProviderDefaults("https://api.anthropic.com", "ANTHROPIC_API_KEY", "anthropic"),
    "openrouter": ProviderDefaults("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "groq": ProviderDefaults("https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "gemini": ProviderDefaults("https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY"),
    "mistral": ProviderDefaults("https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    "deepseek": ProviderDefaults("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    "xai": ProviderDefaults("https://api.x.ai/v1", "XAI_API_KEY"),
    "together": ProviderDefaults("https://api.together.xyz/v1", "TOGETHER_API_KEY"),
    "fireworks": ProviderDefaults("https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
    "cerebras": ProviderDefaults("https://api.cerebras.ai/v1", "CEREBRAS_API_KEY"),
    "moonshot": ProviderDefaults("https://api.moonshot.ai/v1", "MOONSHOT_API_KEY"),
    "ollama": ProviderDefaults("http://localhost:11434/v1"),
    "lmstudio": ProviderDefaults("http://localhost:1234/v1"),
    "vllm": ProviderDefaults("http://localhost:8000/v1"),
    "local": ProviderDefaults("http://localhost:8080/v1"),
}
"""The last four run on the user's own machine and need no key; `local` is llama.cpp's default port."""

_UNKNOWN = ProviderDefaults("")
_HOSTS = frozenset(
    urlsplit(known.base_url).hostname for known in KNOWN.values() if known.base_url.startswith("https")
)


@lru_cache(256)
def is_hosted(url: str) -> bool:
    """Whether an address belongs to a well-known provider, and not to a server that anyone can run."""
    return urlsplit(url).hostname in _HOSTS


@lru_cache(256)
def server_of(url: str) -> str:
    """The address of a server in one spelling, to tell servers apart: without the version's path, which some clients leave out."""
    parts = urlsplit(url)
    place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}".lower()
    return f"{place}{parts.path.rstrip('/').removesuffix('/v1')}" if url else ""


def complete(provider: Provider) -> Provider:
    """The provider with the defaults of its name filled in.

    Raises:
        ConfigError: a setting is missing or invalid.
    """
    known = KNOWN.get(provider.name, _UNKNOWN)
    format = provider.format or known.format  # noqa: A001
    whole = structs.replace(
        provider,
        format=format,
        base_url=(provider.base_url or known.base_url).rstrip("/"),
        key_env=provider.key_env or ("" if provider.base_url or provider.key_command else known.key_env),
        auth=provider.auth or ("x-api-key" if format == "anthropic" else "bearer"),
        output_field=provider.output_field or known.output_field,
    )
    _check(whole)
    return whole


def _check(provider: Provider) -> None:
    name = provider.name
    if not provider.base_url:
        raise ConfigError(
            f"provider {name!r} has no base_url", hint=f"give one, or a known name: {', '.join(KNOWN)}"
        )
    if not provider.model:
        raise ConfigError(f"provider {name!r} has no model", hint="say which model to ask")
    if provider.format not in get_args(DialectName):
        raise ConfigError(
            f"provider {name!r} has no known format: {str(provider.format)[:80]!r}",
            hint=f"choose from: {', '.join(get_args(DialectName))}",
        )
    _check_url(provider.base_url, f"the base_url of {name!r}", secret=False)
    if provider.proxy:
        _check_url(provider.proxy, f"the proxy of {name!r}", secret=True)
    if provider.retries.tries < 1 or min(structs.astuple(provider.timeouts)) <= 0:
        raise ConfigError(
            f"provider {name!r} has retries or timeouts that are too small",
            hint="set tries to at least 1 and timeouts above 0",
        )
    if not all(_is_plain(part) for header in provider.headers.items() for part in header):
        raise ConfigError(f"a header of {name!r} holds a control character", hint="headers are one line each")


def _check_url(url: str, what: str, *, secret: bool) -> None:
    """Check an address. An error shows neither the address nor a password in it."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  # reading it checks it
    except ValueError:
        raise ConfigError(
            f"{what} is not an address", hint="an address begins with https:// or http://"
        ) from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{what} is not an address", hint="an address begins with https:// or http://")
    if not secret and (parts.username or parts.password):
        raise ConfigError(f"{what} holds a password", hint="give the key with key_env or key_command")


def _is_plain(text: str) -> bool:
    return text.isprintable()


# The key of a provider, from the environment or from a command

COMMAND_TIMEOUT_S = 30.0
"""A vault may ask its owner for a fingerprint."""


class ProviderKey:
    def __init__(self, provider: Provider, environ: Mapping[str, str]) -> None:
        """
        Raises:
            ConfigError: the environment does not hold the key.
        """
        self._name, self._command, self._auth = provider.name, provider.key_command, provider.auth or "bearer"
        self._lock = asyncio.Lock()
        self._value = ""
        if provider.key_env and not provider.key_command:
            self._value = _checked(
                environ.get(provider.key_env, ""), f"the variable {mask_variable(provider.key_env)}"
            )

    def __repr__(self) -> str:
        return "<key ***>"

    async def headers(self) -> dict[str, str]:
        """The header that carries the key; empty if the provider needs none."""
        async with self._lock:
            if self._command and not self._value:
                self._value = await asyncio.to_thread(self._run)
        if not self._value:
            return {}
        return (
            {"authorization": f"Bearer {self._value}"}
            if self._auth == "bearer"
            else {self._auth: self._value}
        )

    async def renew(self, refused: Mapping[str, str]) -> bool:
        """Run the command again, unless another task did already. True if the key differs from the one in
        these headers.
        """
        if not self._command:
            return False
        if await self.headers() == refused:
            self._value = ""
        return await self.headers() != refused

    def _run(self) -> str:
        try:
            done = subprocess.run(  # noqa: S603  # the operator's own command, without a shell
                shlex.split(self._command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=COMMAND_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            problem = f"did not finish within {COMMAND_TIMEOUT_S:g} s"
        except (OSError, ValueError):
            problem = "cannot be run"
        else:
            if done.returncode == 0:
                return _checked(done.stdout.decode("utf-8", "replace"), "the output of the key command")
            problem = f"ended with code {done.returncode}"
        raise ConfigError(f"the key command of {self._name!r} {problem}", hint="run it by hand to see why")


def _checked(text: str, what: str) -> str:
    key = text.strip()
    if not key:
        raise ConfigError(f"{what} holds no key", hint="set it, or name another with key_env or key_command")
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise ConfigError(
            f"{what} holds no valid key", hint="a key is one word of printable ASCII characters"
        )
    return key


# A model in one word, as named on a command line
#
#     openai:gpt-4o-mini                a known provider and one of its models
#     ollama:qwen3:8b                   a model on this machine
#     my-model@https://host/v1          any server that speaks OpenAI Chat Completions
#     anthropic:my-model@https://host   a server that speaks another provider's format

SERVER = "the server"
"""The name of a provider that has only an address."""
_SPEC_HINT = "such as openai:gpt-4o-mini, or my-model@http://localhost:8000/v1"
_ADDRESS = re.compile(
    r"(?:localhost|\[[0-9a-fA-F:]++\]|\d{1,3}(?:\.\d{1,3}){3}|(?:[\w-]++\.)++[a-zA-Z]{2,}+|[\w.-]++(?=:\d))"
    r"(?::\d{1,5}+)?+(?:/[^\s@]*+)?+$"
)
"""A host, with a port and a path if it has them, and without a scheme."""


def check_model(model: str) -> None:
    """
    Raises:
        ConfigError: no model can have this name: it has a space, or is an address without its scheme. A name may have
            an @ of its own, such as `claude-sonnet-4@20250514`.
    """
    before, at, rest = model.partition("@")
    if before and _ADDRESS.match(rest):
        raise ConfigError(
            "the address of the model has no http:// or https://",
            hint=f"such as {mask_model(f'{before}@http://{rest}')}",
        )
    if not model or (at and not rest) or not model.isprintable() or " " in model:
        raise ConfigError("this cannot be the name of a model", hint=_SPEC_HINT)


def provider_of(spec: str, *, key_env: str = "") -> Provider:
    """The provider and the model that a word stands for; `key_env` names the variable with the key for an
    address.

    Raises:
        ConfigError: the word names no model.
    """
    if spec:
        check_model(spec)
    before, at, rest = spec.partition("@http")
    name, colon, model = before.partition(":")
    is_known = bool(colon) and name in KNOWN
    if colon and not at and not is_known:
        hint = f"choose from: {', '.join(KNOWN)}; any other server is MODEL@URL"
        raise ConfigError(f"there is no provider {mask_model(name[:80])!r}", hint=hint)
    if not (model if is_known else at and before):
        raise ConfigError(f"{mask_model(spec[:80])!r} does not name a provider and a model", hint=_SPEC_HINT)
    if not at:
        return Provider(name, model)
    name, model = (name, model) if is_known else (SERVER, before)
    return Provider(name, model, base_url=f"http{rest}", key_env=key_env)
