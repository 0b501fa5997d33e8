"""Finds the cut: the index of the first message that stays.

Each rule of a policy is one way to compute that index; 0 means that nothing is cut. The rules are those of
the systems that Refold unites. `pair_safe` moves a cut to an index at which no reply is separated from its
tool results.
"""

from __future__ import annotations

from bisect import bisect_left

from msgspec import Struct, structs

from refold.core.fold import FoldedBranch
from refold.core.policy import (
    ByMessage,
    Cut,
    Exchanges,
    LastMessages,
    LastTurns,
    Moment,
    Policy,
    TurnBoundaryBefore,
    UserBoundaryAfter,
)
from refold.core.view import View, safe_boundary
from refold.model.tokens import Budget, Share, Tokens, exact, share_of, tokens_of


def by_message(view: View, keep_tokens: int) -> int:
    """Cut after the newest message with which the tail would exceed `keep_tokens`. At least one message leaves."""
    return max(view.suffix_within(keep_tokens), min(1, len(view)))


def user_boundary_after(view: View, keep_tokens: int, *, force: bool = False) -> int:
    """Cut at the first turn that starts at or after the point at which the tail reaches `keep_tokens`.

    If no turn starts there, the cut is inside a turn. With `force`, all but the last two messages are cut
    if nothing would be cut otherwise.
    """
    cut = 0
    reached = _reached(view, keep_tokens)
    if reached >= 0:
        at = bisect_left(view.turn_starts, reached)
        cut = view.turn_starts[at] if at < len(view.turn_starts) else reached
    if cut == 0 and force and len(view) > 2:
        return len(view) - 2
    return cut


def turn_boundary_before(view: View, keep_messages: int) -> int:
    """Cut at the nearest turn boundary before the last `keep_messages` messages."""
    return safe_boundary(view.turn_starts, len(view), len(view) - keep_messages)


def last_turns(view: View, turns: int, *, max_tokens: int | None = None) -> int:
    """Keep the last `turns` turns; 0 keeps nothing.

    With `max_tokens`, keep as many of them as fit, and always the newest.
    """
    starts = view.turn_starts
    if turns <= 0 or not starts:
        return len(view)
    cut = starts[max(0, len(starts) - turns)]
    if max_tokens is None:
        return cut
    fitting = bisect_left(starts, max(cut, view.suffix_within(max_tokens)))
    return starts[min(fitting, len(starts) - 1)]


def pair_safe(view: View, cut: int) -> int:
    """The nearest index at or before `cut` at which no call is open and no reply is split."""
    cut = min(cut, len(view))
    while cut > 0 and not is_pair_safe(view, cut):
        cut -= 1
    return cut


def pair_safe_from(view: View, cut: int) -> int:
    """The nearest index at or after `cut` at which no reply is split, but at the latest the one before the last exchange."""
    last = pair_safe(view, len(view) - 1)
    while cut < last and not is_pair_safe(view, cut):
        cut += 1
    return min(cut, last)


def is_pair_safe(view: View, cut: int) -> bool:
    """True if the view can be cut here without repair. A call without a result only binds the rest of its own turn."""
    if cut <= 0 or cut >= len(view):
        return cut <= 0 or not view.progress.open_calls
    role = view[cut].message.role
    if role == "system" and view.dialect.system_follows_user:
        return False  # it belongs to the message that it follows
    if role == "user":
        return not view.is_spanned(cut)
    splits_reply = view.dialect.spreads_calls and role == view[cut - 1].message.role == "assistant"
    return role != "tool" and not splits_reply and not view.progress_at(cut).open_calls


class SplitTurn(Struct, frozen=True):
    """A turn that a cut goes through: its first part is the messages `start` to `cut` (exclusive)."""

    start: int
    cut: int


MIN_SPLIT_PREFIX = 5
"""A shorter first part is not worth a summary of its own."""


def split_turn(view: View, cut: int, *, min_prefix: int = MIN_SPLIT_PREFIX) -> SplitTurn | None:
    """The turn that the cut splits, if its first part is long enough to be summarised separately."""
    if cut <= 0 or cut >= len(view) or view[cut].message.role == "user":
        return None
    at = bisect_left(view.turn_starts, cut) - 1
    if at < 0 or cut - view.turn_starts[at] < min_prefix:
        return None
    return SplitTurn(view.turn_starts[at], cut)


def _reached(view: View, keep_tokens: int) -> int:
    """The newest index from which the tail holds at least `keep_tokens`; -1 if all messages together hold less."""
    total = view.tokens_before(len(view))
    if not len(view) or total < keep_tokens:
        return -1
    indices = range(len(view))
    return bisect_left(indices, True, key=lambda index: total - view.tokens_before(index) < keep_tokens) - 1


# Cut of a policy: its rule for the moment, and the limits that hold for every rule

HALF = Exchanges(Share(0.5, "effective"))
"""The newer half: kept if the window is full and the policy's rule would cut nothing."""
ALL_TURNS = 2**31
MOST_TOKENS = 0.5
"""Share of the room. A larger number of tokens was meant for a larger window, and would leave no room to continue."""


def cut_at(
    folded: FoldedBranch,
    policy: Policy,
    budget: Budget,
    effective: int,
    moment: Moment,
    *,
    is_full: bool,
    keep: int | None = None,
) -> int:
    """The policy's cut; 0 if nothing can leave. `effective` is the part of the window that the instructions leave."""
    view, rule = folded.shown, _rule(policy, moment, keep)
    if rule is None:
        return 0
    most = effective
    if moment == "overflow":
        most = min(effective, tokens_of(policy.recovery.keep, budget, effective=effective))
    if moment == "manual" and not is_full and _is_all_kept(rule, view, budget, effective, keep):
        return 0
    force = moment in ("overflow", "manual")
    wanted = wanted_cut(rule, view, budget, effective, most, force=force)
    wanted = min(pair_safe(view, wanted), pair_safe(view, len(view) - 1))
    before_turn = pair_safe(view, folded.active)
    if wanted > folded.active and _is_turn_whole(folded, policy, effective):
        wanted = before_turn
    if wanted == 0 and moment == "manual":
        wanted = before_turn
    if wanted == 0 and is_full:
        wanted = pair_safe(view, wanted_cut(HALF, view, budget, effective, effective))
    return wanted


def wanted_cut(
    rule: Cut, view: View, budget: Budget, effective: int, most: int, *, force: bool = False
) -> int:
    """The cut of the rule alone. At most `most` tokens are kept."""
    match rule:
        case ByMessage():
            return by_message(view, _keep(rule.keep, budget, effective, most))
        case UserBoundaryAfter():
            return user_boundary_after(view, _keep(rule.keep, budget, effective, most), force=force)
        case TurnBoundaryBefore():
            return turn_boundary_before(view, rule.keep_messages)
        case LastTurns():
            return last_turns(view, rule.turns, max_tokens=_keep(rule.keep, budget, effective, most))
        case LastMessages():
            return max(0, len(view) - rule.messages)
        case Exchanges():
            at = pair_safe_from(view, view.suffix_within(_keep(rule.keep, budget, effective, most)))
            return at if force else min(at, _before_last_reply(view, share_of(rule.last_reply, most)))


def _before_last_reply(view: View, most: int) -> int:
    """The index before the newest reply, if it and the messages after it take at most `most` tokens; otherwise
    the end.
    """
    replies = (at for at in range(len(view) - 1, -1, -1) if view[at].message.role == "assistant")
    at = pair_safe(view, next(replies, 0))
    return at if view.tokens_between(at, len(view)).tokens <= most else len(view)


def _rule(policy: Policy, moment: Moment, keep: int | None) -> Cut | None:
    """The rule for this moment. `keep` replaces the rule's own number of tokens."""
    rule = policy.manual if moment == "manual" and policy.manual else policy.cut
    if keep is None or rule is None:
        return rule
    if isinstance(rule, TurnBoundaryBefore | LastMessages):
        return UserBoundaryAfter(Tokens(keep))
    if isinstance(rule, LastTurns):
        return LastTurns(ALL_TURNS, Tokens(keep))  # as many turns as fit, and not the rule's number
    return structs.replace(rule, keep=Tokens(keep))


def _is_all_kept(rule: Cut, view: View, budget: Budget, effective: int, keep: int | None) -> bool:
    """True if the number of tokens that a request names holds all messages, or that of a cut by message does:
    then a single message would leave.
    """
    if keep is not None:
        return view.tokens.tokens <= keep
    if not isinstance(rule, ByMessage) or not isinstance(rule.keep, Tokens):
        return False
    return view.tokens.tokens <= _keep(rule.keep, budget, effective, effective)


def _is_turn_whole(folded: FoldedBranch, policy: Policy, effective: int) -> bool:
    """True if the active turn stays in one piece: it is small and still in progress."""
    view = folded.shown
    turn = view.tokens_between(folded.active, len(view)).tokens
    return not folded.is_turn_over and turn <= int(exact(policy.whole_turn.fraction) * effective)


def _keep(size: Tokens | Share, budget: Budget, effective: int, most: int) -> int:
    if isinstance(size, Tokens):
        most = min(most, int(exact(MOST_TOKENS) * effective))
    return min(tokens_of(size, budget, effective=effective), most)
