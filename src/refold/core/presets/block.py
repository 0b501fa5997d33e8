"""Reads the configuration block of the system that `librechat` is named after, as a policy.

A user who migrates brings a block of settings along, and it means the same here. Every key is known, every
value is checked, and an error names the key; a typing error never falls back to a default silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct, structs

from refold.core.policy import AllOf, MessagesToRefine, Policy, RemainingTokens, TokenRatio, Trigger
from refold.core.presets.librechat import LIBRECHAT, WITHOUT_SUMMARIES
from refold.core.prompts import Recipe
from refold.core.stages import Trim
from refold.model.budget import Share
from refold.model.errors import ConfigError

Fraction: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Count: TypeAlias = Annotated[int, Meta(ge=0)]
Words: TypeAlias = Annotated[str, Meta(min_length=1)]
Length: TypeAlias = Annotated[int, Meta(ge=1)]
PLACE = "summarization"
"""Name of the block in its configuration file."""
T = TypeVar("T")


class ByTokenRatio(Struct, frozen=True, tag_field="type", tag="token_ratio", forbid_unknown_fields=True):
    value: Annotated[float, Meta(gt=0, le=1)]


class ByRemainingTokens(
    Struct, frozen=True, tag_field="type", tag="remaining_tokens", forbid_unknown_fields=True
):
    value: Count


class ByMessagesToRefine(
    Struct, frozen=True, tag_field="type", tag="messages_to_refine", forbid_unknown_fields=True
):
    value: Length


When: TypeAlias = ByTokenRatio | ByRemainingTokens | ByMessagesToRefine


class SoftTrim(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    max_chars: Count = 4_000
    head_chars: Count = 1_500
    tail_chars: Count = 1_500


class HardClear(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    enabled: bool = True
    placeholder: str = Trim().text


class ContextPruning(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Pruning by position, for a policy without summaries."""

    enabled: bool = False
    keep_last_assistants: Annotated[int, Meta(ge=0, le=10)] = 3
    soft_trim_ratio: Fraction = 0.3
    hard_clear_ratio: Fraction = 0.5
    min_prunable_tool_chars: Count = 50_000
    soft_trim: SoftTrim = SoftTrim()
    hard_clear: HardClear = HardClear()

    @property
    def stage(self) -> Trim:
        soft, hard = self.soft_trim, self.hard_clear
        return Trim(
            self.keep_last_assistants,
            self.soft_trim_ratio,
            self.hard_clear_ratio,
            self.min_prunable_tool_chars,
            soft.max_chars,
            soft.head_chars,
            soft.tail_chars,
            hard.enabled,
            hard.placeholder,
        )


class Parameters(Struct, frozen=True, rename="camel"):
    """The parameters that are not fields of the model request."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = LIBRECHAT.recipe.temperature
    max_summary_tokens: Length = LIBRECHAT.recipe.max_tokens


class PresetBlock(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    enabled: bool = True
    """False: nothing is summarised, and old tool output is reduced instead."""
    provider: str | None = None
    model: str | None = None
    """The model that writes the summaries; if unset, the conversation's own."""
    parameters: dict[str, object] = {}
    """Fields of the request to that model, except those of `Parameters`."""
    prompt: Words | None = None
    update_prompt: Words | None = None
    trigger: When | None = None
    reserve_ratio: Annotated[float, Meta(gt=0, lt=1)] = 0.05
    max_summary_tokens: Length | None = None
    context_pruning: ContextPruning = ContextPruning()

    @property
    def fields(self) -> dict[str, object]:
        """The parameters that go into the request unchanged."""
        ours = structs.fields(Parameters)
        names = {field.encode_name for field in ours}
        return {key: value for key, value in self.parameters.items() if key not in names}

    @property
    def ours(self) -> Parameters:
        return _converted(self.parameters, Parameters, f"{PLACE}.parameters")


def read_block(values: Mapping[str, object]) -> PresetBlock:
    """Read and check a block.

    Raises:
        ConfigError: a key is unknown or has an invalid value; the message names it.
    """
    block = _converted(values, PresetBlock, PLACE)
    _ = block.ours  # check the parameters as well
    return block


def policy_of(block: PresetBlock) -> Policy:
    """The policy that a block describes."""
    base = LIBRECHAT if block.enabled else WITHOUT_SUMMARIES
    policy = structs.replace(base, reserve=Share(block.reserve_ratio), recipe=_recipe(block))
    if block.enabled:
        return structs.replace(policy, triggers={"before_call": _trigger(block.trigger)})
    pruning = block.context_pruning
    return structs.replace(policy, stages=(*policy.stages, pruning.stage)) if pruning.enabled else policy


def _recipe(block: PresetBlock) -> Recipe:
    """The recipe of a block. The block's own length takes precedence over the one among the parameters."""
    prompts, ours = LIBRECHAT.recipe.prompts, block.ours
    if block.prompt is not None:
        prompts = structs.replace(prompts, fresh=block.prompt, update="")
    if block.update_prompt is not None:
        prompts = structs.replace(prompts, update=block.update_prompt)
    length = block.max_summary_tokens or ours.max_summary_tokens
    return structs.replace(LIBRECHAT.recipe, prompts=prompts, max_tokens=length, temperature=ours.temperature)


def _trigger(when: When | None) -> Trigger:
    """The trigger of a block. Each one requires messages that leave, because a summary of nothing is useless."""
    left = MessagesToRefine(1)
    match when:
        case None:
            return left
        case ByTokenRatio():
            return AllOf((left, TokenRatio(when.value, ">=")))
        case ByRemainingTokens():
            return AllOf((left, RemainingTokens(when.value)))
        case ByMessagesToRefine():
            return MessagesToRefine(when.value)


def _converted(values: object, kind: type[T], place: str) -> T:
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        what, _, inner = str(error).partition(" - at `$")
        keys = ", ".join(field.encode_name for field in structs.fields(kind))  # type: ignore[arg-type]
        raise ConfigError(
            f"{place}{inner.rstrip('`')} cannot be used: {what}", hint=f"{place} has the keys {keys}"
        ) from None
