"""The page about the presets says what the presets do: its table is worked out again from the policies themselves."""

from pathlib import Path

import pytest

from refold.core.policy import (
    AnyOf,
    LastMessages,
    LastTurns,
    MessageCount,
    MessagesToRefine,
    OverBudget,
    Policy,
    TokenRatio,
    ToolTokens,
    TurnBoundaryBefore,
)
from refold.core.presets import PRESETS
from refold.model.tokens import Share, Tokens

PAGE = (Path(__file__).parents[2] / "docs" / "presets.md").read_text(encoding="utf-8")
ORDER = ("lis", "opal", "llms", "picoclaw", "librechat", "refold")
SETTINGS = {
    "prune": ("threshold", "keep"),
    "mask": ("at", "floor", "headroom"),
    "fit": ("result_share", "input_share", "user_share"),
}
"""What a stage is told apart by in the table."""


def size(value) -> str:
    if isinstance(value, Tokens):
        return f"{value.tokens:,} tokens"
    whole = {"window": "the window", "limit": "the limit", "effective": "the room"}[value.of]
    return f"{value.fraction * 100:g} % of {whole}"


def when(trigger) -> str:
    match trigger:
        case AnyOf():
            return " or ".join(map(when, trigger.triggers))
        case TokenRatio():
            return f"{trigger.compare} {trigger.share * 100:g} % of the {trigger.of}"
        case OverBudget():
            return f"> {trigger.share * 100:g} % with output"
        case MessageCount():
            return f"{trigger.compare} {trigger.messages} messages"
        case ToolTokens():
            return f"{trigger.compare} {trigger.tokens:,} tokens of tool results"
        case MessagesToRefine():
            return "anything does not fit"
    raise ValueError(trigger)


def moments(rules) -> str:
    said = [f"{moment.replace('_', ' ')}: {when(trigger)}" for moment, trigger in rules.items()]
    return "; ".join(said) or "–"


def stages(every) -> str:
    return ", ".join(map(stage, every)) or "–"


def stage(one) -> str:
    tag = type(one).__struct_config__.tag
    told = " ".join(f"{getattr(one, field):,}" for field in SETTINGS.get(tag, ()))
    return f"{tag} {told}".strip()


def cut(rule) -> str:
    if rule is None:
        return "–"
    match rule:
        case LastTurns():
            return f"{rule.turns} turns, up to {size(rule.keep)}"
        case LastMessages():
            return f"{rule.messages} messages"
        case TurnBoundaryBefore():
            return f"{rule.keep_messages} messages and whole turns"
    name = type(rule).__struct_config__.tag.replace("_", " ")
    reply = f", the newest reply up to {rule.last_reply:.0%}" if getattr(rule, "last_reply", 0) else ""
    return f"{size(rule.keep)}, {name}{reply.replace('%', ' %')}"


ROWS = {
    "measure": lambda policy: policy.measure,
    "summarises": lambda policy: moments(policy.triggers),
    "at the next request": lambda policy: yes(policy.deferred),
    "as messages arrive": lambda policy: yes(policy.prepares),
    "stages alone": lambda policy: moments(policy.reduce_at),
    "stages": lambda policy: stages(policy.stages),
    "on arrival": lambda policy: stages(policy.arrival),
    "where a call waits": lambda policy: stages(policy.hard),
    "keeps": lambda policy: cut(policy.cut),
    "keeps when asked": lambda policy: cut(policy.manual),
    "keeps after an overflow": lambda policy: size(policy.recovery.keep),
    "recoveries": lambda policy: str(policy.recovery.attempts),
    "active turn whole up to": lambda policy: size(of_the_room(policy.whole_turn)),
    "reserve": lambda policy: size(policy.reserve) if policy.reserve.fraction else "–",
    "summary up to": lambda policy: size(of_the_room(policy.summary_share)),
    "made from": lambda policy: policy.source,
    "scope": lambda policy: policy.scope,
    "placed as": lambda policy: policy.placement,
    "without a summary": lambda policy: policy.on_failure.replace("_", " "),
    "without a model": lambda policy: policy.fallback,
    "asks a model from": lambda policy: f"{(policy.soft or 1) * 100:g} % of the fold point",
    "if none is ready": lambda policy: policy.on_switch.replace("_", " "),
    "a model writes": lambda policy: policy.recipe.strategy,
    "a model reads": lambda policy: policy.recipe.reading,
    "updates with": lambda policy: (
        "a prompt of its own" if policy.recipe.prompts.update else "the same prompt"
    ),
}


def of_the_room(share: Share) -> Share:
    """These two are always of the room."""
    return Share(share.fraction, "effective")


def yes(value: bool) -> str:
    return "yes" if value else "–"


def table() -> list[list[str]]:
    """The first table of the page, cell by cell."""
    lines = PAGE.split("| axis |", 1)[1].splitlines()[2:]
    rows = [line for line in lines[: lines.index("")] if line.startswith("|")]
    return [[cell.strip().strip("`") for cell in row.strip("|").split("|")] for row in rows]


def test_the_table_has_every_axis_of_every_preset():
    assert set(ORDER) == set(PRESETS)
    header = next(line for line in PAGE.splitlines() if line.startswith("| axis |"))
    assert [cell.strip().strip("`") for cell in header.strip("|").split("|")][1:] == list(ORDER)
    assert [row[0] for row in table()] == list(ROWS)


@pytest.mark.parametrize("axis", ROWS)
def test_the_table_says_what_the_presets_do(axis):
    shown = next(row[1:] for row in table() if row[0] == axis)
    assert shown == [ROWS[axis](PRESETS[name]) for name in ORDER]


@pytest.mark.parametrize("name", PRESETS)
def test_the_words_around_a_summary_are_shown(name):
    policy: Policy = PRESETS[name]
    for words in (policy.texts.opening, policy.texts.closing):
        assert words.strip() in " ".join(PAGE.split())
