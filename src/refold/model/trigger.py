"""Triggers: the conditions on which a policy acts, as data.

The five seed systems differ in whether a threshold must be reached or exceeded. So the comparison is part
of the trigger, and the case of equality is part of its contract.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

from msgspec import Struct

from refold.model.errors import ConfigError

Moment: TypeAlias = Literal["turn_start", "before_call", "after_call", "overflow", "manual"]
Compare: TypeAlias = Literal[">", ">="]


def _check(name: str, value: float, least: int = 0) -> None:
    if not least <= value < math.inf:
        raise ConfigError(f"{name} cannot be {value}", hint=f"give a number of at least {least}")


def _check_share(name: str, value: float) -> None:
    if not 0 < value <= 1:
        raise ConfigError(f"{name} cannot be {value}", hint="give a fraction between 0 and 1, such as 0.8")


class TokenRatio(Struct, frozen=True, tag="token_ratio"):
    """The window is fuller than a share of the limit, or of the room: the limit without output and reserve."""

    share: float
    compare: Compare = ">="
    of: Literal["limit", "room"] = "limit"

    def __post_init__(self) -> None:
        _check_share("token_ratio", self.share)


class RemainingTokens(Struct, frozen=True, tag="remaining_tokens"):
    """At most so many tokens are left."""

    tokens: int

    def __post_init__(self) -> None:
        _check("remaining_tokens", self.tokens)


class MessageCount(Struct, frozen=True, tag="message_count"):
    messages: int
    compare: Compare = ">"

    def __post_init__(self) -> None:
        _check("message_count", self.messages)


class MessagesToRefine(Struct, frozen=True, tag="messages_to_refine"):
    """So many messages did not fit and wait to be summarised."""

    messages: int = 1
    compare: Compare = ">="

    def __post_init__(self) -> None:
        _check("messages_to_refine", self.messages, least=1)


class ToolTokens(Struct, frozen=True, tag="tool_tokens"):
    """Tool results after the prune boundary take more than so many tokens."""

    tokens: int
    compare: Compare = ">"

    def __post_init__(self) -> None:
        _check("tool_tokens", self.tokens)


class Age(Struct, frozen=True, tag="age"):
    """So many seconds have passed since the last call: the provider's cache has expired anyway."""

    seconds: float

    def __post_init__(self) -> None:
        _check("age", self.seconds)


class OverBudget(Struct, frozen=True, tag="over_budget"):
    """Content and output together exceed the window, or a share of it."""

    share: float = 1.0

    def __post_init__(self) -> None:
        _check_share("over_budget", self.share)


class ReportedOverflow(Struct, frozen=True, tag="reported_overflow"):
    """The provider reported more input than the window holds: it has truncated the input silently."""


class AnyOf(Struct, frozen=True, tag="any_of"):
    triggers: tuple[Trigger, ...]


class AllOf(Struct, frozen=True, tag="all_of"):
    triggers: tuple[Trigger, ...]


Trigger: TypeAlias = (
    TokenRatio
    | RemainingTokens
    | MessageCount
    | MessagesToRefine
    | ToolTokens
    | Age
    | OverBudget
    | ReportedOverflow
    | AnyOf
    | AllOf
)
