"""From a question to the body of a request, in the format of a provider.

One idea: a question is written like a client's request, by the same codecs. Messages that came in this format leave byte for
byte, so that a cache at the provider's hits; those of another are translated, and what is left without its pair is repaired.
"""

from __future__ import annotations

from msgspec import Raw

from refold.core.assemble import BRIDGE, needs_bridge
from refold.core.pairs import repair
from refold.model.dialect import Dialect
from refold.model.message import Message, system, user
from refold.ports.upstream import Ask
from refold.upstreams.provider import Provider
from refold.wire.json_codec import write
from refold.wire.request import Request, encode_request
from refold.wire.translate import translate_messages, translate_tools


def request_body(
    ask: Ask, provider: Provider, dialect: Dialect, *, stream: bool, without: frozenset[str] = frozenset()
) -> bytes:
    """The body that asks. `without` names parameters that the model has refused.

    Raises:
        WireError: a message cannot be written in this format.
    """
    fields = {**_fields(ask, provider, dialect, stream=stream), **provider.parameters}
    raws = {key: _raw(value) for key, value in fields.items() if value is not None and key not in without}
    request = Request(dialect, (), fields=raws)
    return encode_request(request, _messages(ask, dialect), system=_system(ask, dialect))


def count_body(ask: Ask, provider: Provider, dialect: Dialect) -> bytes:
    """The body that has a request counted: what would be read, and nothing about the answer.

    Raises:
        WireError: a message cannot be written in this format.
    """
    tools = translate_tools(ask.tools, dialect) if ask.tools else None
    fields = {"model": _raw(provider.model), **({"tools": _raw(tools)} if tools else {})}
    return encode_request(
        Request(dialect, (), fields=fields), _messages(ask, dialect), system=_system(ask, dialect)
    )


def _fields(ask: Ask, provider: Provider, dialect: Dialect, *, stream: bool) -> dict[str, object]:
    fields: dict[str, object] = {"model": provider.model, _limit_field(provider, dialect): ask.max_output}
    if ask.temperature is not None:
        fields["temperature"] = ask.temperature
    if ask.tools:
        fields["tools"] = translate_tools(ask.tools, dialect) or None
    if ask.is_cached and dialect.max_breakpoints:
        fields["cache_control"] = {"type": "ephemeral"}  # the others look without being told
    if dialect.name == "responses":
        fields["store"] = False  # a provider is not asked to keep what it is sent
    if stream:
        fields["stream"] = True
        if dialect.name == "chat":
            fields["stream_options"] = {"include_usage": True}
    return fields


def _limit_field(provider: Provider, dialect: Dialect) -> str:
    if dialect.name == "chat":
        return provider.output_field
    return "max_tokens" if dialect.name == "anthropic" else "max_output_tokens"


def _raw(value: object) -> Raw:
    return write(value)  # type: ignore[arg-type]  # parameters are JSON: they come from a configuration


def _messages(ask: Ask, dialect: Dialect) -> tuple[Message, ...]:
    translated = translate_messages(ask.messages, dialect)
    sound = repair(translated, dialect, as_request=True).messages
    is_bridged = dialect.starts_with_user and sound and needs_bridge(sound[0], dialect)
    return (user(BRIDGE), *sound) if is_bridged else sound


def _system(ask: Ask, dialect: Dialect) -> tuple[Message, ...]:
    if isinstance(ask.system, str):
        return (system(ask.system),) if ask.system else ()
    prompts = translate_messages(ask.system, dialect)
    if dialect.name != "anthropic" or len(prompts) < 2:
        return prompts
    return (Message("system", tuple(part for prompt in prompts for part in prompt.bare().parts)),)
