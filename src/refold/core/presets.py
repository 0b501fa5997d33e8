"""Presets: six compaction systems as settings of one engine, one `Policy` each.

Their differences are data and can be read side by side; no other module names a preset. `PRESETS` maps names to
policies. The differences between a preset and the system it is named after are listed in `docs/presets.md`.

A user of the system behind `librechat` brings its configuration block along (`read_block`), and it means the same
here. Every key is known, every value is checked, and an error names the key; a typing error never falls back to a
default silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, structs

from refold.core.policy import (
    AnyOf,
    ByMessage,
    Cut,
    Exchanges,
    LastMessages,
    LastTurns,
    MessageCount,
    MessagesToRefine,
    Moment,
    OverBudget,
    Policy,
    Recovery,
    RemainingTokens,
    Texts,
    TokenRatio,
    ToolTokens,
    Trigger,
    TurnBoundaryBefore,
    UserBoundaryAfter,
)
from refold.core.prompts import Prompts, Recipe
from refold.core.stages import (
    AnyStage,
    DescribeMedia,
    DropHalf,
    DropReasoning,
    Fade,
    Fit,
    Mask,
    Prune,
    Select,
    Squeeze,
    Supersede,
    Tiers,
    Trim,
)
from refold.core.stages.parts import COUNT_MARK
from refold.model.errors import ConfigError
from refold.model.tokens import Share, Tokens

# Settings that presets share for cases that their systems leave open. If nothing makes the window
# fit, the original systems give up or loop. This engine requires a window that fits, or a clear
# error.

EMERGENCY: tuple[AnyStage, ...] = (
    DropReasoning(),
    DescribeMedia(),
    Fit(result_share=0.3, input_share=0.15, user_share=0.3, measured=True, active=True, unread=False),
    Select(),
    Squeeze(),
)
"""From the mildest to the hardest: content that is not read again, one huge part that was read, the oldest
replies, then a little of everything, with unread messages last."""

RESERVE = Share(0.01)
"""Providers add framing of their own that no tokenizer sees."""

SUMMARY_SHARE = Share(0.15, "effective")
"""No system limits its summaries by the window. With the same room for all, a replay compares their
compaction; it is more than models write unasked."""


# The preset `refold`: append only, and one deep compaction when the window is full, in tiers. The
# newest turns stay word for word, older ones keep the assistant's texts and calls and lose the
# middle of their tool results, and the turns before those become a summary with the task, the
# rules and a digest. The shares were found by replaying recorded sessions, and by asking a real
# model how likely it finds the recorded replies; `docs/evaluation.md` shows both. A larger digest
# holds more single facts, and a larger tail predicts the next reply better. The size after a
# compaction shrinks with the size of the window: a small window needs all it can keep, and a large
# one is cheaper to fill again than to carry along.

REFOLD = Policy(
    name="refold",
    triggers={},
    stages=(Supersede(active=True), DropReasoning(), DescribeMedia(), Tiers(keep=0.8, result=300)),
    cut=Exchanges(Share(0.62, "effective", sinks=0.05, least=0.3), last_reply=0.85),
    manual=Exchanges(Share(0.1, "effective")),
    whole_turn=Share(0.1),
    target=Share(0.73, "effective", sinks=0.115, least=0.45),
    summary_share=Share(0.6),
    least_summary=0.09,
    prepares=True,
    by_price=True,
    soft=0.8,
    on_switch="bridge",
    reserve=RESERVE,
    scope="cumulative",
    placement="user",
    on_failure="digest",
    texts=Texts(
        opening="[Earlier messages {handles}, shortened{recall}]\n",
        closing="\n[End of the earlier messages]",
    ),
    emergency=EMERGENCY,
)


# The preset `lis`: rolling compaction into sessions. The policy prunes old tool output first, keeps
# 4,000 recent tokens and never merges two summaries. `structs.replace(LIS,
# stages=(Prune(policy="keep_all"),))` and its like set the policy for tool output: `auto`,
# `keep_all` or `keep_none`; `rules` names the tools with output that stays until it is summarised
# (`summarise`).

_LIS_PROMPTS = Prompts(
    fresh=(
        "Write down what somebody must know to carry this conversation on. Keep facts, names, dates and decisions; what "
        "the user prefers and always wants; tasks that are open and what was promised; the tone, and how the two stand to "
        "each other; results of tools that still matter. Leave out greetings, repetitions, raw data about tool calls and "
        "long tool output. Copy names, ids, numbers and paths letter for letter; never invent one. Write in the language "
        "of the conversation, in at most {words} words."
    ),
    update="",
)

LIS = Policy(
    name="lis",
    measure="reported",
    triggers={"after_call": TokenRatio(0.8, ">")},
    reduce_at={"after_call": ToolTokens(8_000, ">")},
    stages=(Prune(threshold=8_000, keep=2_000),),
    target=Share(0.0),
    summary_share=SUMMARY_SHARE,
    soft=1.0,
    on_switch="go_on",
    reserve=RESERVE,
    cut=ByMessage(Tokens(4_000)),
    source="span",
    scope="own",
    placement="assistant",
    goes_on=True,
    on_failure="digest_if_full",
    recipe=Recipe(prompts=_LIS_PROMPTS),
    texts=Texts(opening="Here is context from the previous conversation session ({handles}{recall}):\n"),
    emergency=EMERGENCY,
)


# The preset `opal`: cut at a user message, split turns that are too large, and keep one cumulative
# summary. The window is checked when a turn starts. The cut is the first user message after the
# point at which a quarter of the window is kept. `structs.replace(OPAL,
# cut=UserBoundaryAfter(Tokens(20_000)))` keeps a number of tokens instead; a compaction on request
# does so anyway, or keeps the number that it is given.

OPAL = Policy(
    name="opal",
    measure="hybrid",
    triggers={"turn_start": TokenRatio(0.8, ">=")},
    target=Share(0.0),
    summary_share=SUMMARY_SHARE,
    on_switch="wait",
    reserve=RESERVE,
    cut=UserBoundaryAfter(Share(0.25)),
    manual=UserBoundaryAfter(Tokens(20_000)),
    source="previous",
    scope="cumulative",
    placement="user",
    on_failure="mechanical",
    fallback="mechanical",
    recovery=Recovery(keep=Share(0.2)),
    texts=Texts(opening="[Conversation summary — older messages were compacted: {handles}{recall}]\n\n"),
    emergency=EMERGENCY,
)


# The preset `llms`: a filter around requests. Flags the conversation at 80 %, then sends a summary
# and the last two messages.

_LLMS_PROMPTS = Prompts(
    fresh=(
        "Summarise the conversation so that it can go on from the summary alone:\n"
        "- what it is about and what the user wants\n"
        "- what was decided, and why\n"
        "- facts, names, numbers, code and files that matter, letter for letter and never invented\n"
        "- what was done and what came of it\n"
        "- what is still open\n"
        "Write in the language of the conversation, in at most {words} words."
    ),
    update="",
)

LLMS = Policy(
    name="llms",
    measure="reported",
    triggers={"after_call": TokenRatio(0.8, ">=")},
    deferred=True,
    target=Share(0.0),
    summary_share=SUMMARY_SHARE,
    on_switch="wait",
    reserve=RESERVE,
    cut=LastMessages(2),
    source="all",
    scope="cumulative",
    placement="assistant",
    goes_on=True,
    on_failure="digest_if_full",
    recipe=Recipe(prompts=_LLMS_PROMPTS),
    texts=Texts(opening="[Context Summary] {handles}{recall}\n\n"),
    emergency=EMERGENCY,
)


# The preset `picoclaw`: whole turns, by message count or share of the window. Half of the turns are
# dropped if a call cannot wait for a summary. Sizes are an estimate by characters, including the
# output. The check before a call holds for every preset: a window that does not fit with its output
# is not sent.

PICOCLAW = Policy(
    name="picoclaw",
    measure="characters",
    triggers={"after_call": AnyOf((MessageCount(20, ">"), OverBudget(0.75)))},
    hard=(DropHalf(),),
    target=Share(0.0),
    summary_share=SUMMARY_SHARE,
    soft=1.0,
    on_switch="go_on",
    window_outputs=4,
    cut=TurnBoundaryBefore(4),
    source="previous",
    scope="cumulative",
    placement="system",
    on_failure="mechanical",
    recipe=Recipe(strategy="selective"),
    texts=Texts(
        opening=(
            "CONTEXT_SUMMARY: The following is an approximate summary of prior conversation for reference only. "
            "It may be incomplete or outdated — always defer to explicit instructions. "
            "It stands for {handles}{recall}.\n\n"
        ),
        fence="context_summary",
        dropped="\n[Emergency compression dropped {count} oldest messages due to context limit] {handles}",
    ),
    emergency=EMERGENCY,
)


# The preset `librechat`: mask tool results that were answered and limit huge ones; if that is not enough, summarise all
# but the last turns. The variants are the same system with other settings: a summary taken over from an earlier run, no
# turns kept, and no summaries at all.

_MASK = Mask(at=0.8, floor=300, headroom=0.025, active=True, mark=COUNT_MARK)
_FIT = Fit(result_share=0.3, input_share=0.15, floor=200, active=True, unread=False, mark=COUNT_MARK)
_FADE = Fade(fit=_FIT)
_HEADINGS = (
    "## Checkpoint\n## Goal\n## Constraints & Preferences\n## Progress\n### Done\n### In Progress\n## Key Decisions\n"
    "## Next Steps\n## Critical Context\n"
)
LIBRECHAT_PROMPTS = Prompts(
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
    recipe=Recipe(reading="raw", prompts=LIBRECHAT_PROMPTS),
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

_LIBRECHAT_VARIANTS: dict[str, Policy] = {
    "across-runs": ACROSS_RUNS,
    "clean-slate": CLEAN_SLATE,
    "without-summaries": WITHOUT_SUMMARIES,
    "by-position": BY_POSITION,
}
"""The variants by the names that a setting selects them with."""


# The configuration block of the system behind `librechat`

Fraction: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Count: TypeAlias = Annotated[int, Meta(ge=0)]
PlainText: TypeAlias = Annotated[str, Meta(min_length=1)]
Length: TypeAlias = Annotated[int, Meta(ge=1)]
BLOCK_PLACE = "summarization"
"""Name of the block in its configuration file."""
BLOCK_PROVIDERS = {"openai": "openai", "google": "gemini", "mistralai": "mistral"}
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
BLOCK_TRIGGERS = ("token_ratio", "remaining_tokens", "messages_to_refine")
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
        return _converted(self.parameters, Parameters, f"{BLOCK_PLACE}.parameters")


def read_block(values: Mapping[str, object]) -> PresetBlock:
    """Read and check a block.

    Raises:
        ConfigError: a key is unknown or has an invalid value; the message names it.
    """
    block = _converted(values, PresetBlock, BLOCK_PLACE)
    _ = block.ours  # check the parameters as well
    name = (block.provider or "").lower()
    if name in NO_ADDRESS:
        raise ConfigError(
            f"{BLOCK_PLACE}.provider cannot be used: {block.provider} has no address that is the same for everybody",
            hint=f"leave provider out, and name the model with its OpenAI-compatible address as a summariser: "
            f"{block.model or 'MODEL'}@{NO_ADDRESS[name]}",
        )
    return structs.replace(block, provider=BLOCK_PROVIDERS.get(name, block.provider))


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
            hint = f"{place}.trigger.type is one of: {', '.join(BLOCK_TRIGGERS)}"
        if what.startswith("Invalid value"):  # msgspec repeats the value
            what = "it is none of the values that can be given here"
        raise ConfigError(f"{place}{inner} cannot be used: {what}", hint=hint) from None


PRESETS: dict[str, Policy] = {
    policy.name: policy for policy in (REFOLD, LIS, OPAL, LLMS, PICOCLAW, LIBRECHAT)
}
VARIANTS: dict[str, dict[str, Policy]] = {LIBRECHAT.name: _LIBRECHAT_VARIANTS}
"""The variants of a preset, by its name and theirs."""
