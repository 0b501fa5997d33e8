"""Policies: the settings in which compaction systems differ, as data.

The five seed systems and Refold's own preset are one engine with different settings. A policy states the
triggers, the stages, the cut, and the form of the summary. It contains no logic.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct, structs

from refold.core.plugin_points import PluginStage, PluginTrigger
from refold.core.prompts import Recipe
from refold.core.stages import AnyStage
from refold.core.tool_use import COMMON_TOOLS, ToolKinds
from refold.model.errors import ConfigError
from refold.model.summary import Scope
from refold.model.tokens import Share, Tokens
from refold.model.window import Ttl

# Triggers: the conditions on which a policy acts, as data. The five seed systems differ in whether
# a threshold must be reached or exceeded. So the comparison is part of the trigger, and the case of
# equality is part of its contract.

Moment: TypeAlias = Literal["turn_start", "before_call", "after_call", "overflow", "manual"]
Compare: TypeAlias = Literal[">", ">="]


def _check(name: str, value: float, least: int = 0) -> None:
    if not least <= value < math.inf:
        raise ConfigError(f"{name} cannot be {value}", hint=f"give a number of at least {least}")


def _check_share(name: str, value: float) -> None:
    if not 0 < value <= 1:
        raise ConfigError(f"{name} cannot be {value}", hint="give a fraction between 0 and 1, such as 0.8")


class TokenRatio(Struct, frozen=True, forbid_unknown_fields=True, tag="token_ratio"):
    """The window is fuller than a share of the limit, or of the room: the limit without output and reserve."""

    share: float
    compare: Compare = ">="
    of: Literal["limit", "room"] = "limit"

    def __post_init__(self) -> None:
        _check_share("token_ratio", self.share)


class RemainingTokens(Struct, frozen=True, forbid_unknown_fields=True, tag="remaining_tokens"):
    """At most so many tokens are left."""

    tokens: int

    def __post_init__(self) -> None:
        _check("remaining_tokens", self.tokens)


class MessageCount(Struct, frozen=True, forbid_unknown_fields=True, tag="message_count"):
    messages: int
    compare: Compare = ">"

    def __post_init__(self) -> None:
        _check("message_count", self.messages)


class MessagesToRefine(Struct, frozen=True, forbid_unknown_fields=True, tag="messages_to_refine"):
    """So many messages did not fit and wait to be summarised."""

    messages: int = 1
    compare: Compare = ">="

    def __post_init__(self) -> None:
        _check("messages_to_refine", self.messages, least=1)


class ToolTokens(Struct, frozen=True, forbid_unknown_fields=True, tag="tool_tokens"):
    """Tool results after the prune boundary take more than so many tokens."""

    tokens: int
    compare: Compare = ">"

    def __post_init__(self) -> None:
        _check("tool_tokens", self.tokens)


class Age(Struct, frozen=True, forbid_unknown_fields=True, tag="age"):
    """So many seconds have passed since the last call: the provider's cache has expired anyway."""

    seconds: float

    def __post_init__(self) -> None:
        _check("age", self.seconds)


class OverBudget(Struct, frozen=True, forbid_unknown_fields=True, tag="over_budget"):
    """Content and output together exceed the window, or a share of it."""

    share: float = 1.0

    def __post_init__(self) -> None:
        _check_share("over_budget", self.share)


class ReportedOverflow(Struct, frozen=True, forbid_unknown_fields=True, tag="reported_overflow"):
    """The provider reported more input than the window holds: it has truncated the input silently."""


class TopicChange(Struct, frozen=True, forbid_unknown_fields=True, tag="topic_change"):
    """The conversation has moved to another topic, by the vectors of its turns. Needs the extra `search`.

    The defaults were chosen on recordings with marked changes (docs/presets.md#a-change-of-topic): a change that is
    reported is almost always one, and about a third of them is not noticed.
    """

    distance: float = 0.5
    """From here on the last turns are about something else: 0 for turns as like the topic as its own, 1 for unrelated ones."""
    hysteresis: float = 0.2
    """After a turn that is away, only one that is nearer than `distance` by this much returns to the topic."""
    turns: int = 4
    """Turns that must be away, one after another: a shorter digression is none."""
    min_turns: int = 6
    """Turns that the topic before must have had: fewer show no topic."""

    def __post_init__(self) -> None:
        _check_share("distance", self.distance)
        if not 0 <= self.hysteresis < self.distance:
            raise ConfigError(
                f"hysteresis cannot be {self.hysteresis}", hint="give a number from 0 up to the distance"
            )
        _check("turns", self.turns, least=1)
        _check("min_turns", self.min_turns, least=2)

    @property
    def near(self) -> float:
        """The distance up to which a turn returns to the topic before."""
        return self.distance - self.hysteresis


class AnyOf(Struct, frozen=True, forbid_unknown_fields=True, tag="any_of"):
    triggers: tuple[Trigger, ...]

    def __post_init__(self) -> None:
        _check_some("any_of", self.triggers)


class AllOf(Struct, frozen=True, forbid_unknown_fields=True, tag="all_of"):
    triggers: tuple[Trigger, ...]

    def __post_init__(self) -> None:
        _check_some("all_of", self.triggers)  # all of none would fire at every message


def _check_some(name: str, triggers: Sequence[Trigger]) -> None:
    if not triggers:
        raise ConfigError(f"{name} has no triggers", hint=f"give {name} one trigger or more, or leave it out")


Trigger: TypeAlias = (
    TokenRatio
    | RemainingTokens
    | MessageCount
    | MessagesToRefine
    | ToolTokens
    | Age
    | OverBudget
    | ReportedOverflow
    | TopicChange
    | AnyOf
    | AllOf
)


def topic_changes(trigger: Trigger) -> Iterator[TopicChange]:
    """Yield each trigger by a change of topic inside of a trigger."""
    if isinstance(trigger, TopicChange):
        yield trigger
    elif isinstance(trigger, AnyOf | AllOf):
        for one in trigger.triggers:
            yield from topic_changes(one)


Measure: TypeAlias = Literal["hybrid", "reported", "calibrated", "characters"]
"""The measure for triggers. `hybrid`: the last report and a count of the messages since. `reported`: the last
report alone. `calibrated`: our own count, corrected by the ratio of earlier reports. `characters`: a flat
estimate by characters. Without any report, our own count is used."""
Placement: TypeAlias = Literal["user", "assistant", "system"]
OnFailure: TypeAlias = Literal["keep", "mechanical", "digest", "digest_if_full"]
"""If no model could write the summary: `keep` leaves the history as it is, `mechanical` uses a mechanical
summary, `digest` a digest in the messages' own words, `digest_if_full` does so only if the history does not
fit."""
OnSwitch: TypeAlias = Literal["wait", "go_on", "bridge"]
"""`wait` waits for the model. `go_on` sends the full history while it fits; at the wall it waits, unless the
policy has hard stages. `bridge` sends a digest now, which the model's summary replaces later."""
Fallback: TypeAlias = Literal["digest", "mechanical"]
SummaryInput: TypeAlias = Literal["span", "previous", "all"]
"""Input of a summary: the messages that leave, those and the previous summary, or every original so far."""


class ByMessage(Struct, frozen=True, tag="by_message"):
    """Keep the newest messages that fit. Replies that are split by the cut are repaired."""

    keep: Tokens | Share


class UserBoundaryAfter(Struct, frozen=True, tag="user_boundary_after"):
    """Keep from the first turn start after the point that leaves this size. A turn that is too large is split."""

    keep: Tokens | Share


class TurnBoundaryBefore(Struct, frozen=True, tag="turn_boundary_before"):
    """Keep at least so many messages, and whole turns."""

    keep_messages: int


class LastTurns(Struct, frozen=True, tag="last_turns"):
    """Keep so many turns, or as many of them as fit."""

    turns: int
    keep: Tokens | Share = Share(1.0)


class LastMessages(Struct, frozen=True, tag="last_messages"):
    """Keep so many messages, and the replies that they belong to."""

    messages: int


class Exchanges(Struct, frozen=True, tag="exchanges"):
    """Keep the newest replies with their results that fit, and always the last one."""

    keep: Tokens | Share
    last_reply: float = 0.0
    """Share of the room up to which the newest reply stays whole with all after it, where `keep` is less: the
    next reply mostly continues, corrects or repeats it."""


Cut: TypeAlias = ByMessage | UserBoundaryAfter | TurnBoundaryBefore | LastTurns | LastMessages | Exchanges


class Texts(Struct, frozen=True):
    """The frame text around a summary."""

    opening: str = ""
    """Text before the summary. `{handles}` becomes the handles of the covered messages, `{recall}` the text
    of `recall` or nothing."""
    closing: str = ""
    fence: str = ""
    """The tag around the summary."""
    dropped: str = "No longer shown: {handles}"
    """The note about messages dropped without a summary; `{count}` and `{handles}` are filled in."""
    recall: str = "; recall opens a handle"
    """Included only for a model that has the recall tool."""


class Recovery(Struct, frozen=True):
    """Recovery after a provider refused the input as too long."""

    keep: Share = Share(0.2, "effective")
    """Size of the messages that stay unchanged."""
    attempts: int = 2
    """The first smaller window should fit, and the second covers a wrong limit; more attempts would only cost money."""


class Policy(Struct, frozen=True, kw_only=True):
    """When a conversation is compacted, and how. Presets are policies; `msgspec.structs.replace` makes another one:

        policy = structs.replace(refold.presets.REFOLD, reserve=Share(0.05))
        refold.Conversation("gpt-4o", policy=policy)

    `refold.policies` has the parts that a policy is made of.
    """

    name: str
    triggers: dict[Moment, Trigger]
    """Triggers of a summary. Moments without an entry are not checked."""
    cut: Cut | None
    """The rule for the messages that a summary leaves unchanged. None: nothing is summarised, and messages
    that do not fit are dropped."""
    manual: Cut | None = None
    """The cut of a compaction on request, if it differs."""
    measure: Measure = "hybrid"
    reserve: Share = Share(0.0)
    """Least reserve that is never filled."""
    arrival: tuple[AnyStage, ...] = ()
    """Stages applied once to each message as it arrives. They never change the bytes of earlier messages."""
    stages: tuple[AnyStage, ...] = ()
    """Stages applied before messages are summarised, in this order."""
    reduce_at: dict[Moment, Trigger] = {}
    """Triggers that run the stages although no summary is due."""
    hard: tuple[AnyStage, ...] = ()
    """Stages tried first if a call waits and the window does not fit: then there is no time for a summary."""
    emergency: tuple[AnyStage, ...] = ()
    """Stages applied without a summary if the window is too small for everything else, in this order."""
    plugin_stages: tuple[PluginStage, ...] = ()
    """Stages of plugins, applied after `stages`."""
    plugin_triggers: tuple[PluginTrigger, ...] = ()
    """Triggers of plugins: a summary is due if one of them fires."""
    target: Tokens | Share = Share(0.8)
    """If the stages alone reach this size, nothing is summarised."""
    whole_turn: Share = Share(0.5)
    """An active turn that takes at most this share of the room is not split."""
    prepares: bool = False
    """Compact as messages arrive, not in the request for a context, so that no request waits for it."""
    summary_share: Share = Share(0.25)
    """Share of the room that a summary may take."""
    least_summary: float = 0.45
    """Share of the room that a summary may take beyond the target, if the kept messages leave that much: a large
    tool result that is kept now leaves with the next compaction, so the summary need not be small because of it."""
    ancestors: Share = Share(0.03)
    """Share of the window for the lines about older summaries, if each summary covers its own messages only."""
    soft: float | None = None
    """Share of the fold point at which a summary is requested; None requests it at the fold point."""
    on_switch: OnSwitch = "wait"
    """At the fold point, if a model writes the summaries and none is ready."""
    summarises_at_wall: bool = True
    """Whether a window that does not fit is summarised although no trigger fired; False only drops messages."""
    window_outputs: int = 0
    """If nothing states the window: the window is so many times the output. 0 takes the usual default."""
    fallback: Fallback = "digest"
    """The text of a summary if no model is configured."""
    deferred: bool = False
    """A trigger that fires after a call takes effect at the next request, which adds a message."""
    goes_on: bool = False
    """If the assistant spoke last and the format refuses such a request, the user says `continue`. The gateway
    leaves that to its clients, which may want the last reply to be continued."""
    by_price: bool = False
    """Compact earlier if, by the model's prices, carrying the context along costs more than writing it again."""
    source: SummaryInput = "span"
    scope: Scope = "own"
    placement: Placement = "user"
    on_failure: OnFailure = "keep"
    recipe: Recipe = Recipe()
    """Settings for a model that writes the summary: strategy, prompts, length, temperature."""
    recovery: Recovery = Recovery()
    resume: Tokens | Share = Share(0.7, "limit")
    """Most tokens, instructions included, of an earlier session that is resumed with all its messages. A larger
    one is resumed by its summary, so that there is room to go on."""
    cache: Ttl | None = "5m"
    """Lifetime of the prompt cache at a provider with breakpoints; None sets no breakpoints. An hour costs more to write."""
    texts: Texts = Texts()
    file_tools: ToolKinds = COMMON_TOOLS
    """The tools that read files and the tools that change them: `COMMON_TOOLS.with_names(reads=("load_doc",))`
    adds one."""
    enabled: bool = True
    """False turns off all compaction, including recovery from overflow."""

    @property
    def topic_change(self) -> TopicChange | None:
        """The policy's trigger by a change of topic; None if it has none."""
        return next((one for rule in self.triggers.values() for one in topic_changes(rule)), None)

    @property
    def runs_plugins(self) -> bool:
        """Whether a plan calls code of plugins."""
        return bool(self.plugin_stages or self.plugin_triggers)

    @property
    def only_if_full(self) -> Policy:
        """The policy that changes nothing in a request that fits."""
        return structs.replace(
            self, triggers={}, reduce_at={}, arrival=(), plugin_triggers=(), soft=None, by_price=False
        )

    @property
    def without_plugins(self) -> Policy:
        """The policy as another process gets it: code of plugins cannot be sent, and each process adds that of its own."""
        return structs.replace(self, plugin_stages=(), plugin_triggers=()) if self.runs_plugins else self
