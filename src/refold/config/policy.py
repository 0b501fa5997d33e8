"""The policy that settings describe: a preset, and the settings that change it.

A setting that the preset cannot use is refused by name, with the presets that can; it is never ignored
silently. Some settings apply to every preset; the others belong to the preset that was chosen with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, get_args

from msgspec import ValidationError, convert, structs

from refold.config.tree import CompactionSettings, Settings, SummariserSettings
from refold.core.policy import (
    AllOf,
    AnyOf,
    ByMessage,
    Exchanges,
    Fallback,
    LastMessages,
    LastTurns,
    MessageCount,
    Moment,
    OverBudget,
    Policy,
    TokenRatio,
    ToolTokens,
    Trigger,
    TurnBoundaryBefore,
    UserBoundaryAfter,
)
from refold.core.presets import PRESETS, VARIANTS, PresetBlock, policy_of_block, read_block, takes_block
from refold.core.prompts import Recipe, Strategy
from refold.core.stages import AnyStage, Prune
from refold.core.tool_use import ToolKinds
from refold.core.triggers import fold_count
from refold.engine.settings import check_topic_change
from refold.model.errors import ConfigError, SettingError
from refold.model.tokens import Share, Tokens
from refold.plugins.registry import active

PolicyChange: TypeAlias = Callable[[Policy, Any], Policy | None]
"""Returns the policy with a new value; None if the policy cannot use it."""


FALLBACKS: dict[str, Fallback] = {"extractive": "digest", "truncate": "mechanical"}
"""The strategies that ask no model, with the texts that they write."""


def policy_of(settings: Settings, *, preset: str = "") -> Policy:
    """Return the policy for conversations; with `preset`, for a request that asks for another one.

    Another preset gets only the settings that apply to every preset: the others were meant for the configured
    one.

    Raises:
        SettingError: there is no such preset, or it cannot use one of the settings, which `key` names.
        MissingExtra: a trigger needs an extra that is not installed.
    """
    chosen = settings.compaction
    name = preset or chosen.preset
    is_configured = name == chosen.preset
    policy = _variant(name, chosen.variant) if is_configured and chosen.variant else _preset(name)
    policy = _with_common_settings(policy, settings)
    if is_configured:
        policy = _with_preset_settings(policy, chosen)
    check_topic_change(policy)
    if policy.placement == "system" and not chosen.allow_system_summary:
        raise SettingError(
            "compaction.allow_system_summary",
            f"the preset {name!r} puts its summary into the system prompt, which is not allowed",
            hint="allow it with --compaction-allow-system-summary or compaction.allow_system_summary = true in "
            "refold.toml, or choose another preset",
        )
    return policy


def _preset(name: str) -> Policy:
    known = active().presets
    if name not in known:
        raise SettingError(
            "compaction.preset", "there is no such preset", hint=f"choose from: {', '.join(known)}"
        )
    return known[name]


def _variant(name: str, variant: str) -> Policy:
    known = VARIANTS.get(_preset(name).name, {})
    if variant not in known:
        hint = f"choose from: {', '.join(known)}" if known else f"these have some: {', '.join(VARIANTS)}"
        raise SettingError("compaction.variant", f"the preset {name!r} has no such variant", hint=hint)
    return known[variant]


def block_of(settings: Settings) -> PresetBlock | None:
    """Return the settings block for the preset that takes one; None if there is none.

    Raises:
        SettingError: a key of the block is not known, or has a value that cannot be used.
    """
    values = settings.compaction.summarization
    return _read_block(values) if values else None


def _with_block(policy: Policy, values: dict[str, object]) -> Policy | None:
    return policy_of_block(_read_block(values), policy) if takes_block(policy) else None


def _read_block(values: dict[str, object]) -> PresetBlock:
    try:
        return read_block(values)
    except ConfigError as error:
        raise SettingError("compaction.summarization", error.message, hint=error.hint) from None


def _with_common_settings(policy: Policy, settings: Settings) -> Policy:
    """Apply the settings that every preset takes."""
    chosen, ttl = settings.compaction, settings.cache.ttl
    return structs.replace(
        policy,
        enabled=chosen.enabled,
        fallback=FALLBACKS.get(settings.summariser.strategy or "", policy.fallback),
        resume=policy.resume if chosen.resume_budget is None else _of_limit(chosen.resume_budget),
        cache=None if ttl == "off" else ttl,
        recovery=structs.replace(policy.recovery, attempts=chosen.recoveries),
        recipe=_recipe(policy.recipe, settings),
        triggers=_with_extra(policy.triggers, chosen.extra_triggers),
        file_tools=_file_tools(policy.file_tools, chosen),
    )


def _with_extra(rules: dict[Moment, Trigger], extra: Mapping[Any, object]) -> dict[Moment, Trigger]:
    """The rules of a preset, and beside each the one of the settings: a summary is due if either fires."""
    found, place = dict(rules), "compaction.extra_triggers"
    for moment, value in extra.items():
        try:
            rule = convert(value, Trigger)
        except ValidationError as error:
            kinds = ", ".join(sorted(f'"{kind.__struct_config__.tag}"' for kind in get_args(Trigger)))
            hint = f'write {moment} = {{ type = "age", seconds = 3600 }}; the types are {kinds}'
            raise SettingError(place, f"{moment} has no trigger that is known: {error}", hint=hint) from None
        except ConfigError as error:
            raise SettingError(place, error.message, hint=error.hint) from None
        found[moment] = AnyOf((found[moment], rule)) if moment in found else rule
    return found


def _of_limit(size: Tokens | Share) -> Tokens | Share:
    return Share(size.fraction, "limit") if isinstance(size, Share) else size


def _file_tools(tools: ToolKinds, chosen: CompactionSettings) -> ToolKinds:
    if both := set(chosen.read_tools) & set(chosen.write_tools):
        raise SettingError(
            "compaction.write_tools",
            f"compaction.read_tools names {min(both)!r} too",
            hint="a tool that reads and changes a file belongs to write_tools",
        )
    return tools.with_names(reads=chosen.read_tools, writes=chosen.write_tools)


def _recipe(recipe: Recipe, settings: Settings) -> Recipe:
    chosen, writer = settings.compaction, settings.summariser
    prompts = recipe.prompts
    if chosen.prompt is not None:
        prompts = structs.replace(prompts, fresh=chosen.prompt, update="")
    if chosen.update_prompt is not None:
        prompts = structs.replace(prompts, update=chosen.update_prompt)
    return structs.replace(
        recipe,
        prompts=prompts,
        strategy=_strategy(recipe, writer),
        max_tokens=recipe.max_tokens if writer.max_tokens is None else writer.max_tokens,
        temperature=None if writer.temperature == "off" else writer.temperature,
    )


def _strategy(recipe: Recipe, writer: SummariserSettings) -> Strategy:
    if not writer.enabled or writer.strategy == "truncate":
        return "extractive"
    return writer.strategy or recipe.strategy


def _with_preset_settings(policy: Policy, chosen: CompactionSettings) -> Policy:
    """Apply the settings that only some presets take."""
    for field, change in CHANGES.items():
        value = getattr(chosen, field)
        if value is None or value == {}:
            continue
        changed = change(policy, value)
        if changed is None:
            raise _refusal(field, policy.name, value)
        policy = changed
    return policy


def _refusal(field: str, name: str, value: Any) -> SettingError:
    able = [other for other, policy in PRESETS.items() if CHANGES[field](policy, value) is not None]
    more = "; compaction.limit makes any of them compact sooner" if field == "trigger" else ""
    return SettingError(
        f"compaction.{field}",
        f"the preset {name!r} does not use it",
        hint=f"leave it out, or choose a preset that does: {', '.join(able)}{more}",
    )


def _with_trigger(policy: Policy, share: Share) -> Policy | None:
    """Compact at another share."""
    found = [one for rule in policy.triggers.values() if (one := _share_of(rule)) is not None]
    if not found:
        return None
    rules = {moment: _at_share(rule, share.fraction) for moment, rule in policy.triggers.items()}
    return structs.replace(policy, triggers=rules)


def _share_of(trigger: Trigger) -> float | None:
    match trigger:
        case TokenRatio() | OverBudget():
            return trigger.share
        case AnyOf() | AllOf():
            return next((one for part in trigger.triggers if (one := _share_of(part)) is not None), None)
        case _:
            return None


def _at_share(trigger: Trigger, share: float) -> Trigger:
    match trigger:
        case TokenRatio() | OverBudget():
            return structs.replace(trigger, share=share)
        case AnyOf() | AllOf():
            return structs.replace(trigger, triggers=tuple(_at_share(one, share) for one in trigger.triggers))
        case _:
            return trigger


def _with_keep(policy: Policy, keep: Tokens | Share) -> Policy | None:
    """Keep another amount; a share is taken of the same whole as the preset's own."""
    cut = policy.cut
    if not isinstance(cut, ByMessage | UserBoundaryAfter | LastTurns | Exchanges):
        return None
    if isinstance(keep, Share) and isinstance(cut.keep, Share):
        keep = Share(keep.fraction, cut.keep.of)
    return structs.replace(policy, cut=structs.replace(cut, keep=keep))


def _with_max_messages(policy: Policy, messages: int) -> Policy | None:
    """Compact at another number of messages."""
    if fold_count(policy.triggers) is None:
        return None
    rules = {moment: _at_messages(rule, messages) for moment, rule in policy.triggers.items()}
    return structs.replace(policy, triggers=rules)


def _at_messages(trigger: Trigger, messages: int) -> Trigger:
    match trigger:
        case MessageCount():
            return structs.replace(trigger, messages=messages)
        case AnyOf() | AllOf():
            parts = tuple(_at_messages(one, messages) for one in trigger.triggers)
            return structs.replace(trigger, triggers=parts)
        case _:
            return trigger


def _with_keep_messages(policy: Policy, messages: int) -> Policy | None:
    match policy.cut:
        case TurnBoundaryBefore():
            return structs.replace(policy, cut=TurnBoundaryBefore(messages))
        case LastMessages():
            return structs.replace(policy, cut=LastMessages(messages))
        case _:
            return None


def _with_prune(policy: Policy, field: str, value: Any) -> Policy | None:
    if not any(isinstance(stage, Prune) for stage in policy.stages):
        return None

    def changed(stage: AnyStage) -> AnyStage:
        return structs.replace(stage, **{field: value}) if isinstance(stage, Prune) else stage

    return structs.replace(policy, stages=tuple(map(changed, policy.stages)))


def _with_threshold(policy: Policy, tokens: int) -> Policy | None:
    """Set the threshold of the stage, and of the trigger that runs it."""
    pruning = _with_prune(policy, "threshold", tokens)
    if pruning is None:
        return None
    rules = {
        moment: structs.replace(rule, tokens=tokens) if isinstance(rule, ToolTokens) else rule
        for moment, rule in policy.reduce_at.items()
    }
    return structs.replace(pruning, reduce_at=rules)


CHANGES: dict[str, PolicyChange] = {
    "trigger": _with_trigger,
    "keep_recent": _with_keep,
    "max_messages": _with_max_messages,
    "keep_messages": _with_keep_messages,
    "tool_prune_threshold": _with_threshold,
    "tool_keep_threshold": lambda policy, tokens: _with_prune(policy, "keep", tokens),
    "tool_policy": lambda policy, value: _with_prune(policy, "policy", value),
    "tools": lambda policy, rules: _with_prune(policy, "rules", rules),
    "summarization": _with_block,
}
