"""The preset `librechat`: mask and limit tool results under pressure, then summarise all but the last turns.

The policy masks results that were answered and limits huge ones. If that is not enough, it summarises. The
variants are the same system with other settings: a summary taken over from an earlier run, no turns kept,
and no summaries at all.

A user who migrates from that system brings its configuration block along, and it means the same here. Every
key is known, every value is checked, and an error names the key; a typing error never falls back to a default
silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, structs

from refold.core.policy import (
    Cut,
    LastTurns,
    MessagesToRefine,
    Moment,
    Policy,
    RemainingTokens,
    Texts,
    TokenRatio,
    ToolTokens,
    Trigger,
)
from refold.core.presets.policies import EMERGENCY, SUMMARY_SHARE
from refold.core.prompts import Prompts, Recipe
from refold.core.stages import Fade, Fit, Mask, Trim
from refold.core.stages.parts import COUNT_MARK
from refold.model.errors import ConfigError
from refold.model.tokens import Share, Tokens

_MASK = Mask(at=0.8, floor=300, headroom=0.025, active=True, mark=COUNT_MARK)
_FIT = Fit(result_share=0.3, input_share=0.15, floor=200, active=True, unread=False, mark=COUNT_MARK)
_FADE = Fade(fit=_FIT)
_HEADINGS = (
    "## Checkpoint\n## Goal\n## Constraints & Preferences\n## Progress\n### Done\n### In Progress\n## Key Decisions\n"
    "## Next Steps\n## Critical Context\n"
)
PROMPTS = Prompts(
    fresh=(
        "Stop here for a moment. I want you to write me a checkpoint of all our work, from which you can carry on when "
        f"you see nothing else. Use these headings and leave out those that would be empty:\n{_HEADINGS}"
        "Trust what you have done and do not check it again. Text that is cut short was cut for display only; it is no "
        "fault of yours. Copy my rules, and paths, names, ids, numbers and errors, letter for letter, and never make one "
        "up. Give me the checkpoint and nothing else, in the language we speak, in at most {words} words. Call no tools."
    ),
    update=(
        "Stop here once more. I want you to bring your last checkpoint up to date with what has happened since: the same "
        "headings, each once, and no longer than before. Say less about what is old, move what is finished to Done, and "
        "drop only what no longer holds. Copy my rules, and paths, names, ids, numbers and errors, letter for letter, and "
        "never make one up. Give me the checkpoint and nothing else, in at most {words} words. Call no tools."
    ),
)
"""Written in the user's voice, as an instruction to the assistant: a model that is asked this way stops
working and writes."""

LIBRECHAT = Policy(
    name="librechat",
    measure="calibrated",
    reserve=Share(0.05),
    triggers={"before_call": MessagesToRefine(1, ">=")},
    reduce_at={"before_call": TokenRatio(0.8, ">=", of="room")},
    stages=(_MASK, _FIT),
    target=Share(1.0),
    summary_share=SUMMARY_SHARE,
    on_switch="wait",
    cut=LastTurns(2, keep=Share(0.5, "effective")),
    source="all",
    scope="cumulative",
    placement="user",
    on_failure="mechanical",
    recipe=Recipe(reading="raw", prompts=PROMPTS),
    texts=Texts(
        opening="[Earlier messages {handles}{recall}]\n",
        fence="summary",
        closing=(
            "\n\nThis is your own checkpoint of the work so far. Pick up where you left off. Do not repeat prior tasks: "
            "what it calls done is done."
        ),
    ),
    emergency=(_FADE, *EMERGENCY),
)

ACROSS_RUNS = structs.replace(
    LIBRECHAT,
    placement="system",
    texts=Texts(opening="## Conversation Summary ({handles}{recall})\n\n", fence="summary"),
)
"""For a summary taken over from an earlier run: it stands in the system prompt, and still counts as a summary."""

CLEAN_SLATE = structs.replace(LIBRECHAT, cut=LastTurns(0))
"""No turn is kept besides the active one."""


def without_summaries(policy: Policy, trim: Trim | None = None) -> Policy:
    """The policy without summaries: results fade as the window fills, and messages that still do not fit are
    dropped, with a note. `trim` prunes by position as well, as soon as a result is old enough.
    """
    stages = (structs.replace(_MASK, headroom=0.0), _FADE, *((trim,) if trim else ()))
    reduce_at: dict[Moment, Trigger] = {"before_call": ToolTokens(0)} if trim else policy.reduce_at
    return structs.replace(
        policy, triggers={}, reduce_at=reduce_at, stages=stages, cut=None, emergency=EMERGENCY
    )


WITHOUT_SUMMARIES = without_summaries(LIBRECHAT)

BY_POSITION = without_summaries(LIBRECHAT, Trim())
"""Nothing is summarised, and old results are trimmed by their position."""

VARIANTS: dict[str, Policy] = {
    "across-runs": ACROSS_RUNS,
    "clean-slate": CLEAN_SLATE,
    "without-summaries": WITHOUT_SUMMARIES,
    "by-position": BY_POSITION,
}
"""The variants by the names that a setting selects them with."""


# The configuration block

Fraction: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Count: TypeAlias = Annotated[int, Meta(ge=0)]
PlainText: TypeAlias = Annotated[str, Meta(min_length=1)]
Length: TypeAlias = Annotated[int, Meta(ge=1)]
PLACE = "summarization"
"""Name of the block in its configuration file."""
PROVIDERS = {"openai": "openai", "google": "gemini", "mistralai": "mistral"}
"""Names of providers in the block that are other names here, in small letters."""
NO_ADDRESS = {
    "azureopenai": "https://RESOURCE.openai.azure.com/openai/v1",
    "bedrock": "https://bedrock-runtime.REGION.amazonaws.com/openai/v1",
    "vertexai": "https://LOCATION-aiplatform.googleapis.com/v1/projects/PROJECT/locations/LOCATION/endpoints/openapi",
}
"""Providers without one address for all of their customers, with the form of their OpenAI-compatible address."""
T = TypeVar("T")


class ByTokenRatio(Struct, frozen=True, tag_field="type", tag="token_ratio", forbid_unknown_fields=True):
    value: Fraction


class ByRemainingTokens(
    Struct, frozen=True, tag_field="type", tag="remaining_tokens", forbid_unknown_fields=True
):
    value: Count


class ByMessagesToRefine(
    Struct, frozen=True, tag_field="type", tag="messages_to_refine", forbid_unknown_fields=True
):
    value: Length


When: TypeAlias = ByTokenRatio | ByRemainingTokens | ByMessagesToRefine
TRIGGERS = ("token_ratio", "remaining_tokens", "messages_to_refine")
"""The values of `type` in a trigger."""


class RetainRecent(Struct, frozen=True, forbid_unknown_fields=True):
    """The turns that stay word for word."""

    turns: Count = 2
    tokens: Length | None = None
    """Most tokens of these turns; None for half of the room."""


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

    temperature: Annotated[float, Meta(ge=0, le=2)] | UnsetType | None = UNSET
    max_summary_tokens: Length | None = None


class PresetBlock(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    enabled: bool = True
    """False: nothing is summarised, and old tool output is reduced instead."""
    provider: str | None = None
    model: str | None = None
    """The model that writes the summaries; if unset, the conversation's own."""
    parameters: dict[str, object] = {}
    """Fields of the request to that model, except those of `Parameters`."""
    prompt: PlainText | None = None
    update_prompt: PlainText | None = None
    trigger: When | None = None
    reserve_ratio: Annotated[float, Meta(ge=0, lt=1)] | None = None
    max_summary_tokens: Length | None = None
    retain_recent: RetainRecent | None = None
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
    name = (block.provider or "").lower()
    if name in NO_ADDRESS:
        raise ConfigError(
            f"{PLACE}.provider cannot be used: {block.provider} has no address that is the same for everybody",
            hint=f"leave provider out, and name the model with its OpenAI-compatible address as a summariser: "
            f"{block.model or 'MODEL'}@{NO_ADDRESS[name]}",
        )
    return structs.replace(block, provider=PROVIDERS.get(name, block.provider))


def takes_block(policy: Policy) -> bool:
    """Whether a policy is the preset that blocks belong to, or a variant of it."""
    return policy.name == LIBRECHAT.name


def policy_of_block(block: PresetBlock, base: Policy = LIBRECHAT) -> Policy:
    """The policy that a block describes: `base` with everything that the block sets."""
    policy = structs.replace(base, recipe=_recipe(block, base.recipe))
    if block.reserve_ratio is not None:
        policy = structs.replace(policy, reserve=Share(block.reserve_ratio))
    if not block.enabled:
        return without_summaries(
            policy, block.context_pruning.stage if block.context_pruning.enabled else None
        )
    if block.retain_recent is not None:
        policy = structs.replace(policy, cut=_cut(block.retain_recent, policy.cut))
    if block.trigger is None:
        return policy
    return structs.replace(
        policy, triggers={"before_call": _trigger(block.trigger)}, summarises_at_wall=False
    )


def _recipe(block: PresetBlock, base: Recipe) -> Recipe:
    """The recipe of a block. The block's own length takes precedence over the one among the parameters."""
    prompts, ours = base.prompts, block.ours
    if block.prompt is not None:
        prompts = structs.replace(prompts, fresh=block.prompt, update="")
    if block.update_prompt is not None:
        prompts = structs.replace(prompts, update=block.update_prompt)
    length = block.max_summary_tokens or ours.max_summary_tokens or base.max_tokens
    temperature = base.temperature if ours.temperature is UNSET else ours.temperature
    return structs.replace(base, prompts=prompts, max_tokens=length, temperature=temperature)


def _cut(recent: RetainRecent, base: Cut | None) -> LastTurns:
    keep = base.keep if isinstance(base, LastTurns) else Share(1.0)
    return LastTurns(recent.turns, keep if recent.tokens is None else Tokens(recent.tokens))


def _trigger(when: When) -> Trigger:
    """The trigger of a block. A ratio of 0 is always reached, so the summary waits for a message that does not fit."""
    match when:
        case ByTokenRatio():
            return TokenRatio(when.value, ">=", of="room") if when.value else MessagesToRefine(1)
        case ByRemainingTokens():
            return RemainingTokens(when.value)
        case ByMessagesToRefine():
            return MessagesToRefine(when.value)


def _converted(values: object, kind: type[T], place: str) -> T:
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        what, _, inner = str(error).partition(" - at `$")
        inner = inner.rstrip("`")
        keys = ", ".join(field.encode_name for field in structs.fields(kind))  # type: ignore[arg-type]
        hint = f"{place} has the keys {keys}"
        if inner == ".trigger.type" or "field `type`" in what:
            hint = f"{place}.trigger.type is one of: {', '.join(TRIGGERS)}"
        if what.startswith("Invalid value"):  # msgspec repeats the value
            what = "it is none of the values that can be given here"
        raise ConfigError(f"{place}{inner} cannot be used: {what}", hint=hint) from None
