"""Evaluates triggers, and gives the reason for a compaction. `TopicTrack` recognises a change of topic.

A trigger compares numbers that were measured before, and returns the reason that it fired or an empty
string. A number that is unknown fires nothing.

The price is a trigger too. Providers bill cached input at a fraction of the price, and changed input at a
premium. A compaction changes the prefix, so the whole remaining window is written to the cache again. So
compactions should be rare and deep. But a large window is read again by every call, so they should not be as
rare as possible. The best size follows from the prices.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import ceil, sqrt

from msgspec import Struct, structs

from refold.core.budget import (
    Frame,
    NewTopic,
    Now,
    Wall,
    fits,
    limit_for,
    lowered_output,
    size_of,
    wall_at,
)
from refold.core.fold import FoldedBranch
from refold.core.policy import (
    Age,
    AllOf,
    AnyOf,
    Compare,
    MessageCount,
    MessagesToRefine,
    Moment,
    OverBudget,
    Policy,
    RemainingTokens,
    ReportedOverflow,
    TokenRatio,
    ToolTokens,
    TopicChange,
    Trigger,
)
from refold.model.tokens import Prices, exact, input_limit, limit_of

REACHABLE = Fraction(95, 100)
"""Share of the wall: a trigger at a share of the window fires there at the latest."""
LEAST_GROWTH = 0.5
"""Share of the room between a compacted window and a full one. Compacting earlier saves little and loses much context."""


class TriggerFacts(Struct, frozen=True):
    """The numbers that triggers compare. `None` means unknown."""

    tokens: int
    limit: int
    room: int = 0
    """The wall: most tokens of input."""
    window: int = 0
    max_output: int = 0
    messages: int = 0
    to_refine: int | None = None
    tool_tokens: int | None = None
    idle_s: float | None = None
    reported: int | None = None
    topic: NewTopic | None = None
    """A change of topic after which no summary was made yet."""


def due(rules: Mapping[Moment, Trigger], moment: Moment, facts: TriggerFacts) -> str:
    """The reason to act at this moment; empty if there is none."""
    trigger = rules.get(moment)
    return fires(trigger, facts) if trigger is not None else ""


def fires(trigger: Trigger, facts: TriggerFacts) -> str:
    """The reason that a trigger fires; empty if it does not."""
    match trigger:
        case AnyOf():
            return next((reason for one in trigger.triggers if (reason := fires(one, facts))), "")
        case AllOf():
            reasons = [fires(one, facts) for one in trigger.triggers]
            return " and ".join(reasons) if reasons and all(reasons) else ""
        case MessageCount():
            return _compare_reason(facts.messages, trigger.compare, trigger.messages, "messages")
        case MessagesToRefine():
            return _compare_reason(facts.to_refine, trigger.compare, trigger.messages, "messages to refine")
        case ToolTokens():
            return _compare_reason(
                facts.tool_tokens, trigger.compare, trigger.tokens, "tokens of tool results"
            )
        case Age():
            return _compare_reason(facts.idle_s, ">=", trigger.seconds, WITHOUT_CALL)
        case TopicChange():
            found = facts.topic
            return f"{OTHER_TOPIC} #m{found.first}, at a distance of {found.distance:g}" if found else ""
        case _:
            return _by_size(trigger, facts)


def _by_size(
    trigger: TokenRatio | RemainingTokens | OverBudget | ReportedOverflow, facts: TriggerFacts
) -> str:
    match trigger:
        case TokenRatio():
            return _ratio(trigger, facts)
        case RemainingTokens():
            left = facts.room - facts.tokens
            is_low = facts.room > 0 and left <= trigger.tokens
            return f"{left:,} tokens left <= {trigger.tokens:,}" if is_low else ""
        case OverBudget():
            return _over_budget(trigger, facts)
        case ReportedOverflow():
            return (
                _compare_reason(facts.reported, ">", facts.window, "reported tokens") if facts.window else ""
            )


def _ratio(trigger: TokenRatio, facts: TriggerFacts) -> str:
    whole = facts.limit if trigger.of == "limit" else facts.room
    threshold = _threshold(trigger, facts)
    if threshold is None:
        return ""
    passed = facts.tokens > threshold or (trigger.compare == ">=" and facts.tokens == threshold)
    if not passed:
        return ""
    if threshold < exact(trigger.share) * whole:
        return f"{facts.tokens:,} tokens {trigger.compare} 95 % of {facts.room:,}, most that fits"
    return f"{facts.tokens:,} tokens {trigger.compare} {trigger.share * 100:g} % of {whole:,}"


def _over_budget(trigger: OverBudget, facts: TriggerFacts) -> str:
    needed, threshold = facts.tokens + facts.max_output, _threshold(trigger, facts)
    if threshold is None or facts.tokens <= threshold:
        return ""
    share = "" if trigger.share == 1 else f"{trigger.share * 100:g} % of "
    return f"{needed:,} tokens with output > {share}{facts.window:,}"


def _threshold(trigger: Trigger, facts: TriggerFacts) -> Fraction | None:
    """The size at which a trigger fires, in the provider's tokens; None if it does not depend on the size.

    A share that lies above the wall, or just below it, is taken as 95 % of the wall: otherwise the window
    would be full before the trigger could fire.
    """
    match trigger:
        case TokenRatio():
            whole = facts.limit if trigger.of == "limit" else facts.room
            share = exact(trigger.share) * whole
            return (share if trigger.of == "room" else _reachable(share, facts)) if whole > 0 else None
        case OverBudget():
            share = exact(trigger.share) * facts.window - facts.max_output
            return (share if trigger.share == 1 else _reachable(share, facts)) if facts.window > 0 else None
        case RemainingTokens():
            return Fraction(facts.room - trigger.tokens) if facts.room > 0 else None
        case AnyOf():
            found = [one for part in trigger.triggers if (one := _threshold(part, facts)) is not None]
            return min(found, default=None)
        case AllOf():
            found = [one for part in trigger.triggers if (one := _threshold(part, facts)) is not None]
            return max(found, default=None)
        case _:
            return None


def _compare_reason(value: float | None, compare: Compare, threshold: float, what: str) -> str:
    if value is None or value < threshold or (compare == ">" and value == threshold):
        return ""
    return f"{value:,} {what} {compare} {threshold:,}"


def _reachable(threshold: Fraction, facts: TriggerFacts) -> Fraction:
    return min(threshold, REACHABLE * facts.room) if facts.room > 0 else threshold


def topic_start(folded: FoldedBranch, frame: Frame, now: Now) -> int | None:
    """The number of the first message of a new topic, if that is a reason to act at this moment; None if it is not."""
    rule = frame.policy.triggers.get(now.moment)
    if now.topic is None or rule is None:
        return None
    facts = _facts(folded, frame, now)
    is_reason = facts.topic is not None and _is_fired_by_topic(rule, facts)
    return now.topic.first if is_reason else None


def _is_fired_by_topic(trigger: Trigger, facts: TriggerFacts) -> bool:
    match trigger:
        case AnyOf():
            return any(_is_fired_by_topic(one, facts) for one in trigger.triggers)
        case AllOf():
            is_part = any(_is_fired_by_topic(one, facts) for one in trigger.triggers)
            return is_part and bool(fires(trigger, facts))
        case _:
            return isinstance(trigger, TopicChange)


def fold_count(rules: Mapping[Moment, Trigger]) -> int | None:
    """The number of messages at which a policy compacts, regardless of their size; None if it does not count messages."""
    counts = (count for trigger in rules.values() if (count := _messages(trigger)) is not None)
    return min(counts, default=None)


def _messages(trigger: Trigger) -> int | None:
    match trigger:
        case MessageCount():
            return trigger.messages + (trigger.compare == ">")
        case AnyOf():
            return min(
                (count for one in trigger.triggers if (count := _messages(one)) is not None), default=None
            )
        case _:
            return None


# Reasons for a compaction

ASKED_FOR = "asked for"
WITHOUT_CALL, OTHER_TOPIC = "seconds without a call", "another topic since"


def is_for_room(reason: str) -> bool:
    """Whether a compaction with this reason was made for want of room: not one that was asked for, nor for a rest or a new topic."""
    return not reason.startswith(ASKED_FOR) and WITHOUT_CALL not in reason and OTHER_TOPIC not in reason


MAX_IN_VAIN = 3
"""After so many compactions in a row without gain, only a window that does not fit is compacted again."""


def has_rule(policy: Policy, moment: Moment) -> bool:
    """Whether the policy has a rule for this moment. Without one, nothing is due then, except that a window
    must fit before a call.
    """
    if moment in policy.triggers or moment in policy.reduce_at:
        return True
    return bool(policy.plugin_triggers) and any(one.moment == moment for one in policy.plugin_triggers)


def reason_to_act(folded: FoldedBranch, frame: Frame, now: Now) -> str:
    """The reason to compact at this moment; empty if there is none."""
    if now.moment == "manual":
        return ASKED_FOR
    if now.moment == "overflow":
        return f"the provider refused the input as too long; {limit_for(frame, now):,} tokens are tried next"
    if overfull := _overfull(folded, frame, now):
        return now.flag or overfull
    if now.in_vain >= MAX_IN_VAIN or folded.size in (folded.settled, folded.declined):
        return ""
    return _wanted(folded, frame, now)


def is_wanted(folded: FoldedBranch, frame: Frame, now: Now) -> bool:
    """Whether a person, a refusal or the policy's own rules ask for a summary, and not only the wall."""
    return now.moment in ("manual", "overflow") or bool(_wanted(folded, frame, now))


def is_triggered(folded: FoldedBranch, frame: Frame, now: Now) -> bool:
    """Whether a trigger of the policy fires at this moment."""
    return bool(_triggered(folded, frame, now))


def reason_to_reduce(folded: FoldedBranch, frame: Frame, now: Now) -> str:
    """The reason to run the stages; empty if there is none."""
    rules = frame.policy.reduce_at
    return due(rules, now.moment, _facts(folded, frame, now)) if now.moment in rules else ""


def pressure(folded: FoldedBranch, frame: Frame, now: Now) -> str:
    """The reason that the context should be compacted, even if that failed or was undone before; empty if there is none.

    Work for the stages on single tool results does not count: stages run whenever they have work.
    """
    if not frame.policy.enabled:
        return ""
    return _overfull(folded, frame, now) or _wanted(folded, frame, now)


def _overfull(folded: FoldedBranch, frame: Frame, now: Now) -> str:
    if now.moment != "before_call" or fits(folded, frame, now):
        return ""
    output = lowered_output(frame, now)
    lowered = f" with the output lowered to {output:,}" if output < frame.budget.max_output else ""
    limit = input_limit(frame.budget, output)
    if now.limit is not None:
        limit = min(limit, int(now.limit * now.ratio))
    return f"{_reported(size_of(folded, frame), now):,} tokens do not fit into {limit:,}{lowered}"


def _reported(tokens: int, now: Now) -> int:
    """Tokens of our count as the provider would count them: a reason speaks in its tokens, as the window does."""
    return ceil(tokens * now.ratio)


def _wanted(folded: FoldedBranch, frame: Frame, now: Now) -> str:
    """The reason by the policy's flag, its triggers or the prices."""
    return now.flag or _triggered(folded, frame, now) or _by_price(folded, frame, now)


def _triggered(folded: FoldedBranch, frame: Frame, now: Now) -> str:
    """The reason by the trigger of this moment, or by one of a plugin, if the policy has one."""
    policy, rules = frame.policy, frame.policy.triggers
    own = (
        [one for one in policy.plugin_triggers if one.moment == now.moment] if policy.plugin_triggers else []
    )
    if now.moment not in rules and not own:
        return ""
    facts = _facts(folded, frame, now)
    return due(rules, now.moment, facts) or next(filter(None, (one.fires(facts) for one in own)), "")


def fold_point(folded: FoldedBranch, frame: Frame, now: Now) -> int:
    """The smallest size, in our count, at which the policy would compact: by a trigger, the wall or the prices."""
    if now.largest_output > frame.budget.max_output:
        budget = structs.replace(frame.budget, max_output=now.largest_output)
        frame = structs.replace(frame, budget=budget)
    wall = wall_at(frame, now)
    if not frame.policy.triggers:
        return min((wall.limit, *_price_point(folded, frame, wall)))
    facts, size = _facts(folded, frame, now), size_of(folded, frame)
    # Triggers compare the provider's tokens, so their thresholds are converted to ours.
    ratio = Fraction(facts.tokens, size) if facts.tokens > 0 and size > 0 else exact(now.ratio)
    rules = frame.policy.triggers.values()
    found = [one for rule in rules if (one := _threshold(rule, facts)) is not None]
    points = [max(0, int(one / ratio)) for one in found]
    return min((wall.limit, *points, *_price_point(folded, frame, wall)))


def _facts(folded: FoldedBranch, frame: Frame, now: Now) -> TriggerFacts:
    shown, budget, output = folded.shown, frame.budget, lowered_output(frame, now)
    room = limit_for(frame, now) - frame.instructions - folded.lead.tokens
    unpruned = bisect_left(range(len(shown)), folded.pruned, key=folded.number)
    return TriggerFacts(
        tokens=now.size if now.size is not None else round(size_of(folded, frame) * now.ratio),
        limit=limit_of(budget),
        room=input_limit(budget, output),
        window=budget.window,
        max_output=output,
        messages=len(shown),
        to_refine=_messages_to_refine(folded, max(0, room)),
        tool_tokens=shown.result_tokens_between(unpruned, len(shown)).tokens,
        idle_s=now.idle_s,
        reported=now.reported,
        topic=_open_change(folded, now),
    )


def _open_change(folded: FoldedBranch, now: Now) -> NewTopic | None:
    """The change of topic, unless a summary was made or undone since: a change is a reason only once."""
    is_done = now.topic is None or max(folded.settled, folded.declined) > now.topic.at
    return None if is_done else now.topic


def _messages_to_refine(folded: FoldedBranch, room: int) -> int:
    """Messages that do not fit, with those that were dropped before and that no summary describes yet."""
    leaving, last = folded.shown.suffix_within(room), folded.summaries[-1] if folded.summaries else None
    return leaving + (last.last - last.told_until if leaving and last else 0)


def _by_price(folded: FoldedBranch, frame: Frame, now: Now) -> str:
    """The reason if compacting now is cheaper than carrying the whole context along."""
    if now.moment != "before_call" or not frame.policy.by_price:
        return ""
    size, wall = size_of(folded, frame), wall_at(frame, now)
    if size <= min(wall.target, wall.limit):
        return ""  # as small as a compaction would make it
    for best in _price_point(folded, frame, wall):
        if size > best:
            shown, least = _reported(size, now), int(best * now.ratio)
            return f"{shown:,} tokens cost more to carry along than to fold, from {least:,}"
    return ""


def _price_point(folded: FoldedBranch, frame: Frame, wall: Wall) -> tuple[int, ...]:
    """The size at which the prices say that compacting is cheaper than carrying the context along. It is not
    below the size that a compaction aims at. Empty if they say nothing.
    """
    if frame.prices is None or not frame.policy.by_price:
        return ()
    growth = folded.whole / max(1, folded.replies)
    level = min(wall.target, wall.limit)
    return (fold_at(wall.limit, level=level, growth=growth, prices=frame.prices),)


def fold_at(limit: int, *, level: int, growth: float, prices: Prices) -> int:
    """The window size at which compacting to `level` tokens is cheapest; at most `limit`.

    With `growth` tokens more in every call, there are (size - level) / growth calls between two
    compactions. Each of them reads half of the growth on average; each compaction writes `level` again.
    The sum is smallest if both are equal.
    """
    extra, read = max(0.0, prices.write - prices.read), prices.read
    if read <= 0:
        return limit
    best = level + sqrt(2 * extra / read * level * max(0.0, growth))
    least = level + LEAST_GROWTH * (limit - level)
    return int(min(limit, max(best, least)))


def rewrite_pays(now: int, then: int, *, calls: float, prices: Prices) -> bool:
    """Whether replacing a window of `now` tokens by one of `then` tokens saves more in the next `calls` calls
    than writing it to the cache again costs.
    """
    extra = max(0.0, prices.write - prices.read)
    return (now - then) * prices.read * max(0.0, calls) > then * extra


def with_digests(reason: str, digested: int) -> str:
    """The compaction's reason, with a remark if texts were too long for the summariser and it got plain digests of them."""
    if not digested:
        return reason
    texts = "one text was" if digested == 1 else f"{digested:,} texts were"
    return f"{reason}; {texts} too long for the summariser, which was given a plain digest of {'it' if digested == 1 else 'each'}"


# Changes of topic, recognised by the vectors of a conversation's turns
#
# The distance of some turns to a topic is one less the mean cosine between them and the topic's turns, divided by the mean cosine of
# the topic's turns with each other. So it is 0 for turns that are as like the topic as its own, and about 1 for unrelated ones, for
# short texts as for long ones, whose cosines differ much.
#
# A turn that is far from the topic may be the first of a new one; the turns after it must stay away, and the question after them too.
# A turn that comes near again ends a digression: the topic goes on. A recognised change begins the next topic, so it is not
# recognised a second time. numpy is needed; it comes with the extra that makes the vectors.

TURN_TEXT, QUESTION_TEXT = 700, 300
"""Characters of a turn and of the question that begins the next one, from which vectors are made: enough to show the subject, and less than
a millisecond for both."""
LEAST_LIKENESS = 0.02
"""Mean cosine of turns that have no topic in common."""


class FarTurn(Struct, frozen=True):
    """A turn that is far from the topic: the number of its first message, and its vector."""

    first: int
    vector: bytes


class TopicTrack(Struct, frozen=True):
    """The topic of a conversation, as far as its messages were read."""

    read: int = 0
    """The number of the next message to read."""
    turn: int = -1
    """The number of the first message of the turn in progress; below 0 if there is none."""
    topic: bytes = b""
    """The sum of the vectors of the topic's turns."""
    turns: int = 0
    """How many turns that are."""
    away: tuple[FarTurn, ...] = ()
    """The turns since, if they are far from the topic."""
    change: NewTopic | None = None
    """The last change of topic that was recognised."""

    def end_turn(self, vector: bytes, rule: TopicChange) -> TopicTrack:
        """Return the track with one more turn, which began at `turn`. A turn without a vector says nothing about the topic."""
        if not vector:
            return structs.replace(self, turn=-1)
        far = FarTurn(self.turn, vector)
        ended = structs.replace(self, turn=-1)
        if self.away:
            if self._distance([vector]) > rule.near:
                return structs.replace(ended, away=(*self.away, far))
        elif self.turns >= rule.min_turns and self._distance([vector]) >= rule.distance:
            return structs.replace(ended, away=(far,))
        vectors = [one.vector for one in self.away] + [vector]
        return structs.replace(
            ended, topic=_sum([self.topic, *vectors]), turns=self.turns + len(vectors), away=()
        )

    def ask(self, number: int, vector: bytes, rule: TopicChange) -> TopicTrack:
        """Return the track with the question that begins a turn. The topic has changed if enough turns before were far from it, all
        together too, and the question does not return to it.
        """
        asked = structs.replace(self, turn=number)
        vectors = [one.vector for one in self.away]
        if len(vectors) < rule.turns or (vector and self._distance([vector]) < rule.distance):
            return asked
        distance = self._distance(vectors)
        if distance < rule.distance:
            return asked
        change = NewTopic(self.away[0].first, number, round(distance, 2))
        return structs.replace(asked, topic=_sum(vectors), turns=len(vectors), away=(), change=change)

    def _distance(self, vectors: Sequence[bytes]) -> float:
        import numpy as np

        topic, others, size = (
            np.frombuffer(self.topic, "<f4"),
            np.frombuffer(_sum(vectors), "<f4"),
            self.turns,
        )
        # The vectors have length one: the square of their sum is the sum of the cosines of all pairs.
        within = (float(topic @ topic) - size) / (size * (size - 1))
        between = float(topic @ others) / (size * len(vectors))
        return 1 - between / max(within, LEAST_LIKENESS)


def _sum(vectors: Sequence[bytes]) -> bytes:
    import numpy as np

    found = [np.frombuffer(one, "<f4") for one in vectors if one]
    return bytes(np.sum(found, axis=0, dtype="<f4").tobytes())
