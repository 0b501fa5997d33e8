"""The parts of a policy, for variants and policies of your own: triggers, cuts, stages, sizes and texts.

    keep_books = structs.replace(presets.LIS, stages=(policies.Prune(rules={"read_book": "summarise"}),))

A `refold.Policy` is a value that names them; the policies that exist are in `refold.presets`. This module has
no code of its own: it is the public place of types that are defined in `refold.core` and `refold.model`.
"""

from __future__ import annotations

from refold.core.plugin_points import PluginStage, PluginTrigger
from refold.core.policy import (
    Age,
    AllOf,
    AnyOf,
    ByMessage,
    Cut,
    Exchanges,
    LastMessages,
    LastTurns,
    MessageCount,
    MessagesToRefine,
    OverBudget,
    Policy,
    Recovery,
    RemainingTokens,
    ReportedOverflow,
    Texts,
    TokenRatio,
    ToolTokens,
    TopicChange,
    Trigger,
    TurnBoundaryBefore,
    UserBoundaryAfter,
)
from refold.core.prompts import Recipe
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
from refold.core.tool_use import ToolKinds
from refold.model.tokens import Share, Tokens

__all__ = [
    "Age",
    "AllOf",
    "AnyOf",
    "AnyStage",
    "ByMessage",
    "Cut",
    "DescribeMedia",
    "DropHalf",
    "DropReasoning",
    "Exchanges",
    "Fade",
    "Fit",
    "LastMessages",
    "LastTurns",
    "Mask",
    "MessageCount",
    "MessagesToRefine",
    "OverBudget",
    "PluginStage",
    "PluginTrigger",
    "Policy",
    "Prune",
    "Recipe",
    "Recovery",
    "RemainingTokens",
    "ReportedOverflow",
    "Select",
    "Share",
    "Squeeze",
    "Supersede",
    "Texts",
    "Tiers",
    "TokenRatio",
    "Tokens",
    "ToolKinds",
    "ToolTokens",
    "TopicChange",
    "Trigger",
    "Trim",
    "TurnBoundaryBefore",
    "UserBoundaryAfter",
]
