"""What a policy keeps: the index of the first message that stays, by its rule and by the rules that hold for all.

One idea: a policy says what it would like to keep. Whatever it says, no reply is torn apart, the last exchange stays, and the
active turn is cut into only where it is too large to stay whole.
"""

from __future__ import annotations

from msgspec import structs

from refold.core import cut as cuts
from refold.core.budget import exact, tokens_of
from refold.core.fold import Folded
from refold.core.policy import (
    ByMessage,
    Cut,
    Exchanges,
    LastMessages,
    LastTurns,
    Policy,
    TurnBoundaryBefore,
    UserBoundaryAfter,
)
from refold.core.view import View
from refold.model.budget import Budget, Share, Tokens
from refold.model.trigger import Moment

HALF = Exchanges(Share(0.5, "effective"))
"""What stays where a rule would cut nothing and there is no room: the newer half."""
MOST_TOKENS = 0.5
"""Of the room: a number of tokens that is more than this was meant for a larger window, and would leave no room to go on."""


def cut_at(
    folded: Folded,
    policy: Policy,
    budget: Budget,
    effective: int,
    moment: Moment,
    *,
    is_full: bool,
    keep: int | None = None,
) -> int:
    """Where to cut; 0 where nothing can go. `effective` is what the instructions leave of the window."""
    view, rule = folded.shown, _rule(policy, moment, keep)
    if rule is None:
        return 0
    most = effective
    if moment == "overflow":
        most = min(effective, tokens_of(policy.recovery.keep, budget, effective=effective))
    is_all_kept = moment == "manual" and keep is not None and view.tokens.tokens <= keep
    force = moment in ("overflow", "manual") and not is_all_kept
    wanted = wanted_cut(rule, view, budget, effective, most, force=force)
    wanted = min(cuts.pair_safe(view, wanted), cuts.pair_safe(view, len(view) - 1))
    before_turn = cuts.pair_safe(view, folded.active)
    if wanted > folded.active and _is_turn_whole(folded, policy, effective):
        wanted = before_turn
    if wanted == 0 and moment == "manual" and not is_all_kept:
        wanted = before_turn
    if wanted == 0 and is_full:
        wanted = cuts.pair_safe(view, wanted_cut(HALF, view, budget, effective, effective))
    return wanted


def wanted_cut(
    rule: Cut, view: View, budget: Budget, effective: int, most: int, *, force: bool = False
) -> int:
    """Where the rule alone would cut. No more than `most` tokens are kept."""
    match rule:
        case ByMessage():
            return cuts.by_message(view, _keep(rule.keep, budget, effective, most))
        case UserBoundaryAfter():
            return cuts.user_boundary_after(view, _keep(rule.keep, budget, effective, most), force=force)
        case TurnBoundaryBefore():
            return cuts.turn_boundary_before(view, rule.keep_messages)
        case LastTurns():
            return cuts.last_turns(view, rule.turns, max_tokens=_keep(rule.keep, budget, effective, most))
        case LastMessages():
            return max(0, len(view) - rule.messages)
        case Exchanges():
            return cuts.pair_safe_from(view, view.suffix_within(_keep(rule.keep, budget, effective, most)))


def _rule(policy: Policy, moment: Moment, keep: int | None) -> Cut | None:
    """The rule for this moment; with a number of tokens to keep, that number instead of its own."""
    rule = policy.manual if moment == "manual" and policy.manual else policy.cut
    if keep is None or rule is None:
        return rule
    if isinstance(rule, TurnBoundaryBefore | LastMessages):
        return UserBoundaryAfter(Tokens(keep))
    return structs.replace(rule, keep=Tokens(keep))


def _is_turn_whole(folded: Folded, policy: Policy, effective: int) -> bool:
    """Does the active turn stay as it is? It does while it is small, and not once it is over."""
    view = folded.shown
    turn = view.tokens_between(folded.active, len(view)).tokens
    return not folded.is_turn_over and turn <= int(exact(policy.whole_turn.fraction) * effective)


def _keep(size: Tokens | Share, budget: Budget, effective: int, most: int) -> int:
    if isinstance(size, Tokens):
        most = min(most, int(exact(MOST_TOKENS) * effective))
    return min(tokens_of(size, budget, effective=effective), most)
