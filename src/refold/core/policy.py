"""Policies: everything in which systems of compaction differ, as data.

One idea: five systems and our own are the same engine with other settings. A policy says when to look, what to reduce,
where to cut, what to keep, and how a summary is shown; it decides nothing itself.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from refold.core.prompts import Recipe
from refold.core.stages import AnyStage
from refold.model.budget import Share, Tokens
from refold.model.summary import Scope
from refold.model.trigger import Moment, Trigger
from refold.model.window import Ttl

Measure: TypeAlias = Literal["hybrid", "reported", "calibrated", "characters"]
"""What triggers look at: the last report and what came since; the last report alone; our own count, by the ratio that reports
have shown; a flat estimate by characters. Where nothing has been reported, our own count."""
Placement: TypeAlias = Literal["user", "assistant", "system"]
OnFailure: TypeAlias = Literal["keep", "mechanical", "mechanical_if_full", "digest"]
"""What becomes of a plan whose summary no model could write: the history stays as it is, a mechanical summary takes its
place, or that only where there is no room for the history, or a digest of the messages' own words does."""
Source: TypeAlias = Literal["span", "previous", "all"]
"""What a summary is made from: the messages that leave, those and the summary before, or every original so far."""


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
    """Before the summary; `{handles}` names what it stands for, and `{recall}` becomes `recall` or nothing."""
    closing: str = ""
    fence: str = ""
    """The tag that the summary stands in."""
    dropped: str = "No longer shown: {handles}"
    """The note about messages that went without a summary; `{count}` and `{handles}` are filled in."""
    recall: str = "; recall opens a handle"
    """Said only to a model that has the recall tool."""


class Recovery(Struct, frozen=True):
    """What to do when a provider says that the input is too long."""

    keep: Share = Share(0.2, "effective")
    """How much stays word for word."""
    attempts: int = 2
    """The first smaller window should do; a second covers a wrong limit; more would only burn money."""


class Policy(Struct, frozen=True, kw_only=True):
    name: str
    triggers: dict[Moment, Trigger]
    """When to summarise. Moments that are not named are not looked at."""
    cut: Cut | None
    """What a summary leaves as it is; None never summarises, and what does not fit is dropped."""
    manual: Cut | None = None
    """The same for a compaction that was asked for, where that differs."""
    measure: Measure = "hybrid"
    reserve: Share = Share(0.0)
    """Headroom that is never filled, where the budget leaves less."""
    arrival: tuple[AnyStage, ...] = ()
    """What is done to a message once, as it arrives: it never changes the bytes of what was there before."""
    stages: tuple[AnyStage, ...] = ()
    """What is tried before messages are summarised, in this order."""
    reduce_at: dict[Moment, Trigger] = {}
    """When the stages run, though nothing has to be summarised yet."""
    hard: tuple[AnyStage, ...] = ()
    """What is tried first where a call waits and the window does not fit: nobody waits for a summary then."""
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
    ancestors: Share = Share(0.03)
    """How much of the window lines about older summaries may take, where each stands for its own messages only."""
    soft: Share | None = None
    """How full the window is when a summary is asked for ahead of time; None asks when it is needed."""
    deferred: bool = False
    """What fires after a call is acted on at the next request, which brings a message of its own."""
    by_price: bool = False
    """Fold sooner where carrying so much along costs more than writing it anew, by the model's prices."""
    source: Source = "span"
    scope: Scope = "own"
    placement: Placement = "user"
    on_failure: OnFailure = "keep"
    recipe: Recipe = Recipe()
    """How a model writes summaries, where one does: strategy, prompts, length, temperature."""
    recovery: Recovery = Recovery()
    cache: Ttl | None = "5m"
    """How long a provider that takes breakpoints keeps what stands before them; None sets none. An hour costs more to write."""
    texts: Texts = Texts()
    enabled: bool = True
    """Off means no compaction at all, recovery from overflow included."""
