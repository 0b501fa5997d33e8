"""The settings of a conversation, the state that it begins with, and the models that write its summaries.

Every setting has a default. This module decides which counter, window, prices and policy a model's name
stands for, and turns names such as `openai:gpt-4o-mini` into summarisers.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from copy import copy
from typing import TYPE_CHECKING, TypeAlias, cast
from urllib.parse import urlsplit

from msgspec import Struct, structs

from refold.core.budget import OUTPUT_PART
from refold.core.policy import Policy, topic_changes
from refold.core.presets import PresetBlock, policy_of_block, read_block
from refold.core.stages import AnyStage, Prune
from refold.core.stages.tool_results import ToolRule
from refold.engine.arguments import (
    check_kind,
    check_listener,
    check_members,
    check_spend,
    check_summariser,
    check_texts,
    check_timeout,
    check_unicode,
    check_whole,
)
from refold.engine.events import Listener
from refold.engine.state import Secrecy, State
from refold.engine.summary_jobs import LEASE_S, FunctionSummariser
from refold.model.dialect import DIALECTS, Dialect
from refold.model.errors import ConfigError
from refold.model.message import Message, system
from refold.model.summary import Summary
from refold.model.tokens import Budget, Prices, TokenCounter, Usage, call_cost
from refold.model.window import FixedFields
from refold.plugins.registry import active
from refold.ports.models import (
    Embedder,
    PaidQuestion,
    Summariser,
    SummaryCache,
    SummaryFunction,
    SummaryTask,
    Upstream,
)
from refold.summarisers import ModelSummariser, SummaryWriter
from refold.tokens.catalog import WindowSize, find_model, window_for
from refold.tokens.counters import counter_for
from refold.upstreams import Provider, open_embedder, open_upstream
from refold.upstreams.provider import KNOWN, ProviderKey, complete, provider_of, server_of
from refold.wire.anthropic import decode_system
from refold.wire.sdk import as_json, read_message, read_tools

if TYPE_CHECKING:
    from refold.embeddings import LocalEmbedder

SystemPrompt: TypeAlias = "str | Sequence[object] | None"

USUAL_OUTPUT = 4_096
"""Room for a reply if its length is not set: longer ones are rare."""
SUMMARISER_TIMEOUT_S = 60.0
"""Longer than models take for a summary; a client waits about so long for its first byte."""


class ConversationSettings(Struct, frozen=True, kw_only=True):
    """The settings of a conversation. Everything has a default."""

    model: str = ""
    system: SystemPrompt = None
    tools: Sequence[object] = ()
    window: int | None = None
    """In tokens; None looks the model up."""
    reported_window: int | None = None
    """The size that the upstream runs the model with, by its own report; None if it gives none."""
    used_window: WindowSize | None = None
    """The window that a stored conversation was last used with, for a program that knows no other."""
    url: str = ""
    """The address of the upstream, if it is known. A model that is not known has a smaller window at a local
    one."""
    alternates: bool = False
    """Whether the upstream wants user and assistant in turn."""
    held: int = 0
    """Tokens of the window that are taken by messages that only the provider holds."""
    max_output: int | None = None
    """The most tokens of a reply; None takes the model's figure, at most 4,096 and an eighth of the window."""
    thinking_budget: int = 0
    """Tokens of the reply that requests let the model think with; 0 if they do not mention it."""
    limit: int = 0
    """Tokens of the window that may be used; 0 for all of it."""
    format: str = "chat"
    preset: str = "refold"
    policy: Policy | None = None
    """A policy of your own instead of a preset."""
    counter: TokenCounter | None = None
    sensitive: Sequence[str] = ()
    """Regular expressions: messages that one of them matches stay out of every summary."""
    summariser: Summariser | SummaryFunction | str | None = None
    """Writes summaries ahead of time: a model by its name (`openai:gpt-4o-mini`), a summariser, or a
    function; None for a digest of the messages' own words."""
    summariser_timeout_s: float = SUMMARISER_TIMEOUT_S
    """Seconds that a request waits for a summary, if its policy waits for one."""
    max_spend: float | None = None
    """Dollars that summaries may cost; None for no limit."""
    on_event: Listener | None = None
    lease_s: float = LEASE_S
    """Lease on a summary job."""
    cache: SummaryCache | None = None
    """A cache of summaries, for a summariser that is given by its name. An engine gives its own."""
    summarisers: tuple[Provider, ...] = ()
    """Models that write summaries, in the order in which they are asked; none for the conversation's own. See
    `open_summariser`."""


def state_for(settings: ConversationSettings, fixed: FixedFields | None = None) -> tuple[State, WindowSize]:
    """Return the state that a conversation begins with, and the size of its window with the source of that
    figure. The instructions are those of the settings, unless `fixed` gives them.

    Raises:
        ConfigError: a setting names nothing that exists, or leaves no room.
    """
    _check_types(settings)
    if fixed is None:
        dialect = dialect_named(settings.format)
        fixed = FixedFields(dialect, read_prompt(settings.system, dialect), read_tools(settings.tools))
    fixed = structs.replace(fixed, model=settings.model)
    policy = policy_for(settings)
    check_topic_change(policy)
    counter = settings.counter or counter_for(settings.model)
    window = _window_size(settings, policy)
    budget = _budget(settings, window)
    prices, secrecy = prices_of(settings.model), Secrecy.of(settings.sensitive)
    return State.begin(fixed, budget, policy, counter, prices=prices, secrecy=secrecy), window


def _check_types(settings: ConversationSettings) -> None:
    """Refuse values that would fail, or would be ignored, only when they are used."""
    check_unicode(settings.model, "model", hint="name a model, such as gpt-4o-mini, or leave it out")
    if isinstance(settings.system, str):
        check_unicode(settings.system, "system")
    if isinstance(settings.tools, str | bytes) or not isinstance(settings.tools, Collection):
        raise ConfigError("tools must be a list of tool definitions", hint="leave it out for no tools")
    if settings.policy is not None:
        check_policy(settings.policy)
    if settings.max_output is not None:
        check_whole(settings.max_output, "max_output")
    check_whole(settings.thinking_budget, "thinking_budget")
    check_whole(settings.limit, "limit")
    if settings.counter is not None:
        hint = "give an object with `source`, `text` and `message`, or leave it out"
        check_members(settings.counter, "counter", "source", "text", "message", hint=hint)
    if not isinstance(settings.sensitive, str):  # one pattern needs no list
        check_texts(settings.sensitive, "sensitive", hint="give a list of regular expressions")
    check_summariser(settings.summariser)
    check_timeout(settings.summariser_timeout_s, "summariser_timeout_s")
    check_spend(settings.max_spend)
    if settings.on_event is not None:
        check_listener(settings.on_event, "on_event")


def check_policy(policy: object) -> None:
    """
    Raises:
        ConfigError: the value is not a policy.
    """
    hint = "give a `refold.Policy`, such as one of `refold.presets`; a name is given as `preset`"
    check_kind(policy, Policy, "policy", hint=hint)
    assert isinstance(policy, Policy)
    check_topic_change(policy)


def check_topic_change(policy: Policy) -> None:
    """
    Raises:
        MissingExtra: the policy has a trigger by a change of topic, and the extra that makes vectors is not installed.
        ConfigError: it has two different ones.
    """
    found = {one for rule in policy.triggers.values() for one in topic_changes(rule)}
    if not found:
        return
    if len(found) > 1:
        raise ConfigError(
            "a policy has two different triggers by a change of topic",
            hint="give all of them the same numbers",
        )
    from refold.embeddings import load_static

    load_static()


def budget_for(settings: ConversationSettings) -> Budget:
    """Return the budget of a window, by the settings and the catalogue of models."""
    return _budget(settings, _window_size(settings, policy_for(settings)))


def policy_for(settings: ConversationSettings) -> Policy:
    """Return the policy of the settings, with the stages and triggers of plugins.

    Raises:
        ConfigError: there is no preset of this name.
    """
    return active().extended(settings.policy or preset_named(settings.preset))


def preset_named(name: str) -> Policy:
    """Return a preset by its name.

    Raises:
        ConfigError: there is no preset of this name.
    """
    known = active().presets
    if name not in known:
        raise ConfigError(f"there is no preset {name!r}", hint=f"choose from: {', '.join(known)}")
    return known[name]


def with_tool_rules(policy: Policy, rules: Mapping[str, ToolRule]) -> Policy:
    """Return the policy with rules for the results of more tools, where it prunes them."""

    def changed(stage: AnyStage) -> AnyStage:
        return structs.replace(stage, rules={**stage.rules, **rules}) if isinstance(stage, Prune) else stage

    return structs.replace(policy, stages=tuple(map(changed, policy.stages))) if rules else policy


def dialect_named(name: str) -> Dialect:
    """Return a format by its name.

    Raises:
        ConfigError: there is no format of this name.
    """
    found = next((dialect for key, dialect in DIALECTS.items() if key == name), None)
    if found is None:
        raise ConfigError(f"there is no format {name!r}", hint=f"choose from: {', '.join(DIALECTS)}")
    return found


def read_prompt(prompt: SystemPrompt, dialect: Dialect) -> tuple[Message, ...]:
    """Read a system prompt: a text, blocks of text as Anthropic takes them, or system messages of the other formats."""
    match prompt:
        case None | "" | () | []:
            return ()
        case str():
            return (system(prompt),)
        case Sequence() if dialect.name == "anthropic":
            return (decode_system(as_json([*prompt])),)
        case Sequence() if all(isinstance(one, str) or _is_instruction(one) for one in prompt):
            return tuple(
                system(one) if isinstance(one, str) else read_message(one, dialect) for one in prompt
            )
    raise ConfigError(
        "the system prompt is no text",
        hint="give a text or system messages; blocks are for the format 'anthropic'",
    )


def _is_instruction(value: object) -> bool:
    role = value.get("role") if isinstance(value, Mapping) else getattr(value, "role", "")
    return role in ("system", "developer")


def _budget(settings: ConversationSettings, window: WindowSize) -> Budget:
    output = settings.max_output
    return Budget(
        window=window.tokens,
        limit=settings.limit,
        max_output=usual_output(window.tokens, settings.model) if output is None else output,
        thinking=settings.thinking_budget,
        max_input=window.max_input,
        is_output_stated=settings.max_output is not None,
        source=window.source,
    )


def usual_output(window: int, model: str = "") -> int:
    """Return the tokens of a window that are kept free for a reply, if nothing states its length."""
    found = find_model(model)
    able = found.max_output if found and found.max_output else USUAL_OUTPUT
    return min(able, USUAL_OUTPUT, window // OUTPUT_PART)


def _window_size(settings: ConversationSettings, policy: Policy) -> WindowSize:
    """Return the window of the model. A policy may take it from the output if nothing else states it."""
    is_given = settings.window is not None or settings.reported_window
    if not is_given and policy.window_outputs and settings.max_output:
        found = WindowSize(policy.window_outputs * settings.max_output, "output")
    elif not is_given and settings.used_window is not None:
        found = settings.used_window
    else:
        found = window_for(
            settings.model,
            override=settings.window,
            upstream_report=settings.reported_window,
            url=settings.url,
        )
    if not settings.held:
        return found
    most = max(1, found.max_input - settings.held) if found.max_input else 0
    return structs.replace(found, tokens=max(1, found.tokens - settings.held), max_input=most)


def dollars_for(model: str, usage: Usage) -> float:
    """Return the cost of a model's usage; 0 if its prices are not known."""
    prices = prices_of(model)
    return call_cost(usage, prices) if prices else 0.0


def prices_of(name: str) -> Prices | None:
    """Return the prices of a model's tokens; None if they are not known."""
    model = find_model(name)
    if model is None or model.input_price is None:
        return None
    return Prices(
        model.input_price, model.output_price or 0.0, model.cache_read_price, model.cache_write_price
    )


# Models that write summaries


@asynccontextmanager
async def open_summariser(
    settings: ConversationSettings,
    own: Provider,
    *,
    windows: Mapping[str, int] | None = None,
    cache: SummaryCache | None = None,
    environ: Mapping[str, str] = os.environ,
) -> AsyncIterator[Summariser | None]:
    """Open the summariser that the settings ask for, until the block ends; None if no model has to write.

        settings = ConversationSettings(model="gpt-4o", summarisers=(Provider("openai", "gpt-4o-mini"),))
        async with open_summariser(settings, Provider("openai")) as summariser:
            chat = Conversation("gpt-4o", summariser=summariser)

    Args:
        settings: the settings of the conversation.
        own: the conversation's provider. It is used for a summariser without a provider's name, its model for
            one without a model, and both if no summariser is named.
        windows: the window sizes of models that are not in the catalogue, by name.
        cache: a cache of summaries.
        environ: the variables that hold the keys.

    Raises:
        ConfigError: a setting is missing or cannot work, such as a variable that holds no key.
    """
    if not writes_with_model(settings):
        yield None
        return
    providers = providers_for(settings, own)
    if (function := plugin_summariser(providers)) is not None:
        yield FunctionSummariser(function, DIALECTS["chat"], counter_for(settings.model).text)
        return
    async with AsyncExitStack() as stack:

        async def opened(provider: Provider) -> SummaryWriter:
            upstream = await stack.enter_async_context(open_upstream(provider, environ=environ))
            return writer_for(upstream, settings, url=complete(provider).base_url, windows=windows)

        chain = [await opened(provider) for provider in providers]
        native = None
        if is_native(settings.summarisers):
            at_home = structs.replace(own, model=own.model or settings.model)
            native = chain[0] if providers[0] == at_home else await opened(at_home)
        yield ModelSummariser(chain, cache=cache, native=native)


PLUGIN = "plugin"
"""Stands for a provider in the name of a summariser of a plugin: `plugin:NAME`."""


NATIVE = "native"
"""Stands for a model in the list of those that write summaries: the conversation's own provider compacts."""
COMPACTING: dict[str, str] = {"anthropic": "anthropic", "responses": "openai"}
"""The providers of the formats that have compactions on request."""


def is_native(providers: Sequence[Provider]) -> bool:
    """Whether the conversation's own provider shall compact before any model is asked for a summary."""
    return any(one.name == NATIVE for one in providers)


def native_provider(spec: str, settings: ConversationSettings, *, key_env: str = "") -> Provider | None:
    """Return the conversation's own provider if `spec` is `native` or `native@URL`, for a server at another address;
    None for any other word.

    Raises:
        ConfigError: the conversation's format has no compactions, or it names no model.
    """
    word, at, rest = spec.partition("@http")
    if word != NATIVE:
        return None
    name = COMPACTING.get(settings.format)
    if name is None:
        raise ConfigError(
            f"a conversation in the format {settings.format!r} cannot be compacted by its provider",
            hint=f"the formats with compactions are: {', '.join(COMPACTING)}; name a model instead",
        )
    if not settings.model:
        raise ConfigError("its provider can compact a conversation only for a model", hint="give the model")
    url = f"http{rest}" if at else ""
    if name == "openai" and url and urlsplit(url).path in ("", "/"):
        url = f"{url.rstrip('/')}/v1"  # Anthropic's clients leave it out of their base URL, and so may users here
    return Provider(name, settings.model, dialect_named(settings.format).name, url, key_env)


def plugin_summariser(providers: Sequence[Provider]) -> SummaryFunction | None:
    """Return the summariser of a plugin, if the first provider names one; None otherwise.

    Raises:
        ConfigError: no plugin has one of this name.
    """
    first = providers[0] if providers else None
    return active().summariser(first.model) if first and first.name == PLUGIN else None


def summariser_named(
    name: str, settings: ConversationSettings, *, cache: Callable[[], SummaryCache | None] = lambda: None
) -> NamedSummariser | SummaryFunction:
    """Return a model or a summariser of a plugin by its name.

    Raises:
        ConfigError: there is no such provider or summariser, or a key is missing.
    """
    kind, _, rest = name.partition(":")
    return active().summariser(rest) if kind == PLUGIN else NamedSummariser(name, settings, cache=cache)


class NamedSummariser:
    """A model by its name, such as `openai:gpt-4o-mini` or `my-model@http://localhost:8000/v1`, or `native` for
    compactions by the conversation's own provider. Its
    connection is opened for the first summary, and closed by `close`. `cache` is called then: the store of an
    engine is not open before.

    Raises:
        ConfigError: there is no such provider, or its key is missing.
    """

    def __init__(
        self,
        name: str,
        settings: ConversationSettings,
        *,
        cache: Callable[[], SummaryCache | None] = lambda: None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        own = native_provider(name, settings)
        provider = own or provider_of(name)
        # A missing key is found now, and not when the window is full.
        ProviderKey(complete(provider), environ)
        self.model = name
        self._connection = _Connection(provider, settings, cache, environ, is_native=own is not None)
        self._last: ModelSummariser | None = None

    @property
    def questions(self) -> Sequence[PaidQuestion]:
        """The answered questions of the last task."""
        return self._last.questions if self._last else ()

    @property
    def failure(self) -> str:
        """Why the model did not answer the last task; empty if it did."""
        return self._last.failure if self._last else ""

    async def write(self, task: SummaryTask) -> Summary | None:
        self._last = copy(await self._connection.summariser())
        return await self._last.write(task)

    async def close(self) -> None:
        await self._connection.close()


class _Connection:
    """The connection of a named summariser; copies of the summariser share it."""

    def __init__(
        self,
        provider: Provider,
        settings: ConversationSettings,
        cache: Callable[[], SummaryCache | None],
        environ: Mapping[str, str],
        *,
        is_native: bool = False,
    ) -> None:
        self._is_native = is_native
        self._provider, self._settings, self._cache, self._environ = provider, settings, cache, environ
        self._lock, self._stack = asyncio.Lock(), AsyncExitStack()
        self._opened: ModelSummariser | None = None

    async def summariser(self) -> ModelSummariser:
        async with self._lock:
            if self._opened is None:
                upstream = open_upstream(self._provider, environ=self._environ)
                asked = await self._stack.enter_async_context(upstream)
                writer = writer_for(asked, self._settings, url=complete(self._provider).base_url)
                native = writer if self._is_native else None
                self._opened = ModelSummariser([writer], cache=self._cache(), native=native)
            return self._opened

    async def close(self) -> None:
        async with self._lock:
            self._opened = None
            await self._stack.aclose()


class NamedEmbedder:
    """A model of a provider that gives vectors. Its connection is opened for the first text, and closed by `close`.

    Raises:
        ConfigError: the provider is incomplete, gives no vectors, or its key is missing.
    """

    def __init__(self, provider: Provider, environ: Mapping[str, str] = os.environ) -> None:
        self._provider, self._environ = complete(provider), environ
        ProviderKey(self._provider, environ)  # a missing key is found now
        self.name = f"{self._provider.name}:{self._provider.model}"
        self.least = -1.0  # not measured for arbitrary models
        self._lock, self._stack = asyncio.Lock(), AsyncExitStack()
        self._opened: Embedder | None = None

    async def embed(self, texts: Sequence[str]) -> Sequence[bytes | Sequence[float]]:
        async with self._lock:
            if self._opened is None:
                opening = open_embedder(self._provider, environ=self._environ)
                self._opened = await self._stack.enter_async_context(opening)
        return await self._opened.embed(texts)

    async def close(self) -> None:
        async with self._lock:
            self._opened = None
            await self._stack.aclose()


def named_embedder(name: str, environ: Mapping[str, str] = os.environ) -> Embedder | None:
    """Return an embedder by its name: `auto`, `static`, `onnx`, `off`, or a model such as `openai:text-embedding-3-small` or
    `my-model@http://localhost:8000/v1`.

    Raises:
        ConfigError: there is no such provider, or its key is missing.
        MissingExtra: the extra of the named one is not installed.
    """
    if name in {"auto", "static", "onnx", "off"}:
        from refold.embeddings import installed

        return installed(cast("LocalEmbedder", name))
    return NamedEmbedder(provider_of(name), environ)


def summariser_for(
    settings: ConversationSettings,
    own: Upstream,
    others: Sequence[Upstream] = (),
    *,
    cache: SummaryCache | None = None,
) -> ModelSummariser | None:
    """Like `open_summariser`, with upstreams that are already open: `others` in their order, or the
    conversation's own.
    """
    if not writes_with_model(settings):
        return None
    return ModelSummariser([writer_for(upstream, settings) for upstream in others or (own,)], cache=cache)


def writes_with_model(settings: ConversationSettings) -> bool:
    """Whether the policy summarises at all, and with a model."""
    policy = policy_for(settings)
    return policy.enabled and policy.cut is not None and policy.recipe.strategy != "extractive"


def providers_for(settings: ConversationSettings, own: Provider) -> tuple[Provider, ...]:
    """Return the providers to ask, in this order. Missing fields are filled in from the conversation's own
    provider.
    """
    own = structs.replace(own, model=own.model or settings.model)
    named = [one for one in settings.summarisers if one.name != NATIVE]
    return tuple(_with_defaults(provider, own) for provider in named) or (own,)


def writer_for(
    upstream: Upstream,
    settings: ConversationSettings,
    *,
    url: str = "",
    windows: Mapping[str, int] | None = None,
    owner: str = "",
    upstream_name: str = "",
) -> SummaryWriter:
    """Return a model with its window and its tokenizer. The conversation's own model has the conversation's
    window. Request filters of plugins are told the owner. `url` is the address of its server, `upstream_name` the gateway's
    name of it.
    """
    name = upstream.model
    is_own = name == settings.model
    window = window_for(name, override=settings.window if is_own else None, url=url, overrides=windows)
    if is_own and settings.window is None and settings.used_window is not None:
        window = settings.used_window
    # Its question and its answer are taken together, so an input limit is taken for both: this is safe.
    size = window.max_input or window.tokens
    return SummaryWriter(
        filtered(upstream, owner), size, counter_for(name).text, server_of(url), upstream_name
    )


def filtered(upstream: Upstream, owner: str = "") -> Upstream:
    """Return the upstream behind the request filters of plugins, if there are any."""
    from refold.plugins.filters import FilteredUpstream

    return FilteredUpstream(upstream, active(), owner) if active().has_request_filters else upstream


def with_block(values: Mapping[str, object], settings: ConversationSettings) -> ConversationSettings:
    """Return the settings with everything that a `summarization` block sets; see docs/summaries.md.

    Raises:
        ConfigError: a key is unknown, or its value cannot be used; the message names it.
    """
    block = read_block(values)
    if block.provider and block.provider not in KNOWN:
        raise ConfigError(
            f"summarization.provider cannot be used: {block.provider!r} has no known address",
            hint=f"leave it out and give a Provider with a base_url in `summarisers`, or one of: {', '.join(KNOWN)}",
        )
    return structs.replace(
        settings, policy=policy_of_block(block), summarisers=providers_with_block(block, settings.summarisers)
    )


def providers_with_block(block: PresetBlock, others: tuple[Provider, ...]) -> tuple[Provider, ...]:
    """Return the provider that a block names. A block that names none keeps the given ones, and adds its
    fields to their parameters.
    """
    own = Provider(block.provider or "", block.model or "", parameters=block.fields)
    if own.name or own.model or not others:
        return (own,) if own != Provider("") else ()
    return tuple(
        structs.replace(other, parameters={**other.parameters, **own.parameters}) for other in others
    )


def _with_defaults(provider: Provider, own: Provider) -> Provider:
    if provider.name:
        return structs.replace(provider, model=provider.model or own.model)
    parameters = {**own.parameters, **provider.parameters}
    return structs.replace(own, model=provider.model or own.model, parameters=parameters)
