"""Policies: everything in which systems of compaction differ, as data.

One idea: five systems and our own are the same engine with other settings. A policy says when to look, what to reduce,
where to cut, what to keep, and how a summary is shown; it decides nothing itself.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from refold.core.stages import AnyStage
from refold.model.budget import Share, Tokens
from refold.model.summary import Scope
from refold.model.trigger import Moment, Trigger

Measure: TypeAlias = Literal["hybrid", "reported", "counted"]
Placement: TypeAlias = Literal["user", "assistant", "system"]
OnFailure: TypeAlias = Literal["keep", "mechanical"]


class ByMessage(Struct, frozen=True, tag="by_message"):
    """Keep the newest messages that fit; replies torn apart are mended."""

    keep: Tokens | Share


class UserBoundaryAfter(Struct, frozen=True, tag="user_boundary_after"):
    """Keep from the first turn after the point that leaves so much; a turn too large for that is split."""

    keep: Tokens | Share


class TurnBoundaryBefore(Struct, frozen=True, tag="turn_boundary_before"):
    """Keep at least so many messages, and whole turns."""

    keep_messages: int


class LastTurns(Struct, frozen=True, tag="last_turns"):
    """Keep so many turns, or as many of them as fit."""

    turns: int
    keep: Tokens | Share = Share(1.0)


class LastMessages(Struct, frozen=True, tag="last_messages"):
    """Keep so many messages, and the replies they belong to."""

    messages: int


class Exchanges(Struct, frozen=True, tag="exchanges"):
    """Keep the newest replies with their results that fit, and the last one in any case."""

    keep: Tokens | Share


Cut: TypeAlias = ByMessage | UserBoundaryAfter | TurnBoundaryBefore | LastTurns | LastMessages | Exchanges


class Texts(Struct, frozen=True):
    """The words around a summary, which say what it is."""

    opening: str = ""
    closing: str = ""


class Policy(Struct, frozen=True, kw_only=True):
    name: str
    triggers: dict[Moment, Trigger]
    """When to act. Moments that are not named are not looked at."""
    cut: Cut
    measure: Measure = "hybrid"
    arrival: tuple[AnyStage, ...] = ()
    """What is done to a message once, as it arrives: it never changes the bytes of what was there before."""
    stages: tuple[AnyStage, ...] = ()
    """What is tried before messages are summarised, in this order."""
    emergency: tuple[AnyStage, ...] = ()
    """What is done without any summary when the window is too small for everything else, in this order."""
    target: Tokens | Share = Share(0.8)
    """Where stages alone bring the window below this, nothing is summarised."""
    whole_turn: Share = Share(0.5)
    """An active turn that takes no more of the room than this is never cut into."""
    prepares: bool = False
    """Compact as messages arrive, not when a context is asked for: nobody waits then."""
    summary_share: Share = Share(0.25)
    """How much of the room a summary may take."""
    scope: Scope = "own"
    placement: Placement = "user"
    on_failure: OnFailure = "keep"
    overflow_keep: Share = Share(0.2)
    """How much is kept when a provider has said that the input is too long."""
    texts: Texts = Texts()
    enabled: bool = True
    """Off means no compaction at all, recovery from overflow included."""
