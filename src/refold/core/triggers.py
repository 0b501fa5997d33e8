"""Does a trigger fire?

One idea: a trigger looks at numbers that were measured before, and answers with the reason it fired or with nothing. A
number that is not known never fires anything.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from refold.core.budget import exact
from refold.model.trigger import (
    Age,
    AllOf,
    AnyOf,
    Compare,
    MessageCount,
    MessagesToRefine,
    Moment,
    OverBudget,
    RemainingTokens,
    ReportedOverflow,
    TokenRatio,
    ToolTokens,
    Trigger,
)


class Facts(Struct, frozen=True):
    """What triggers look at. `None` means not known."""

    tokens: int
    limit: int
    room: int = 0
    window: int = 0
    max_output: int = 0
    messages: int = 0
    to_refine: int | None = None
    tool_tokens: int | None = None
    idle_s: float | None = None
    reported: int | None = None


def due(rules: Mapping[Moment, Trigger], moment: Moment, facts: Facts) -> str:
    """The reason to act at this moment; empty where there is none."""
    trigger = rules.get(moment)
    return fires(trigger, facts) if trigger is not None else ""


def fires(trigger: Trigger, facts: Facts) -> str:
    """The reason a trigger fires; empty where it does not."""
    match trigger:
        case AnyOf():
            return next((reason for one in trigger.triggers if (reason := fires(one, facts))), "")
        case AllOf():
            reasons = [fires(one, facts) for one in trigger.triggers]
            return " and ".join(reasons) if reasons and all(reasons) else ""
        case MessageCount():
            return _passes(facts.messages, trigger.compare, trigger.messages, "messages")
        case MessagesToRefine():
            return _passes(facts.to_refine, trigger.compare, trigger.messages, "messages to refine")
        case ToolTokens():
            return _passes(facts.tool_tokens, trigger.compare, trigger.tokens, "tokens of tool results")
        case Age():
            return _passes(facts.idle_s, ">=", trigger.seconds, "seconds without a call")
        case _:
            return _by_size(trigger, facts)


def _by_size(trigger: TokenRatio | RemainingTokens | OverBudget | ReportedOverflow, facts: Facts) -> str:
    match trigger:
        case TokenRatio():
            return _ratio(trigger, facts)
        case RemainingTokens():
            left = facts.limit - facts.tokens
            is_low = facts.limit > 0 and left <= trigger.tokens
            return f"{left:,} tokens left <= {trigger.tokens:,}" if is_low else ""
        case OverBudget():
            return _over_budget(trigger, facts)
        case ReportedOverflow():
            return _passes(facts.reported, ">", facts.window, "reported tokens") if facts.window else ""


def _ratio(trigger: TokenRatio, facts: Facts) -> str:
    whole = facts.limit if trigger.of == "limit" else facts.room
    threshold = exact(trigger.share) * whole
    passed = facts.tokens > threshold or (trigger.compare == ">=" and facts.tokens == threshold)
    if whole <= 0 or not passed:
        return ""
    return f"{facts.tokens:,} tokens {trigger.compare} {trigger.share * 100:g} % of {whole:,}"


def _over_budget(trigger: OverBudget, facts: Facts) -> str:
    needed = facts.tokens + facts.max_output
    if facts.window <= 0 or needed <= exact(trigger.share) * facts.window:
        return ""
    share = "" if trigger.share == 1 else f"{trigger.share * 100:g} % of "
    return f"{needed:,} tokens with output > {share}{facts.window:,}"


def _passes(value: float | None, compare: Compare, threshold: float, what: str) -> str:
    if value is None or value < threshold or (compare == ">" and value == threshold):
        return ""
    return f"{value:,} {what} {compare} {threshold:,}"


def message_limit(rules: Mapping[Moment, Trigger]) -> int | None:
    """The number of messages at which a policy acts, whatever they take; None where it does not count them."""
    counts = (count for trigger in rules.values() if (count := _messages(trigger)) is not None)
    return min(counts, default=None)


def _messages(trigger: Trigger) -> int | None:
    match trigger:
        case MessageCount():
            return trigger.messages
        case AnyOf():
            return min(
                (count for one in trigger.triggers if (count := _messages(one)) is not None), default=None
            )
        case _:
            return None
