"""What a policy keeps: the index of the first message that stays, by its rule and by the rules that hold for all.

One idea: a policy says what it would like to keep. Whatever it says, no reply is torn apart, the last exchange stays, and the
active turn is cut into only where it is too large to stay whole.
"""

from __future__ import annotations

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


def cut_at(
    folded: Folded, policy: Policy, budget: Budget, effective: int, moment: Moment, *, is_full: bool
) -> int:
    """Where to cut; 0 where nothing can go. `effective` is what the instructions leave of the window."""
    view = folded.shown
    most = effective
    if moment == "overflow":
        most = int(exact(policy.recovery.keep.fraction) * effective)
    wanted = wanted_cut(policy.cut, view, budget, most, force=moment in ("overflow", "manual"))
    wanted = min(cuts.pair_safe(view, wanted), cuts.pair_safe(view, len(view) - 1))
    turn = view.tokens_between(folded.active, len(view)).tokens
    is_turn_small = turn <= int(exact(policy.whole_turn.fraction) * effective)
    before_turn = cuts.pair_safe(view, folded.active)
    if wanted > folded.active and is_turn_small:
        wanted = before_turn
    if wanted == 0 and moment == "manual":
        wanted = before_turn
    if wanted == 0 and is_full:
        wanted = cuts.pair_safe(view, wanted_cut(HALF, view, budget, effective))
    return wanted


def wanted_cut(rule: Cut, view: View, budget: Budget, most: int, *, force: bool = False) -> int:
    """Where the rule alone would cut. No more than `most` tokens are kept."""
    match rule:
        case ByMessage():
            return cuts.by_message(view, _keep(rule.keep, budget, most))
        case UserBoundaryAfter():
            return cuts.user_boundary_after(view, _keep(rule.keep, budget, most), force=force)
        case TurnBoundaryBefore():
            return cuts.turn_boundary_before(view, rule.keep_messages)
        case LastTurns():
            return cuts.last_turns(view, rule.turns, max_tokens=_keep(rule.keep, budget, most))
        case LastMessages():
            return max(0, len(view) - rule.messages)
        case Exchanges():
            return min(view.suffix_within(_keep(rule.keep, budget, most)), max(0, len(view) - 1))


def _keep(size: Tokens | Share, budget: Budget, most: int) -> int:
    return min(tokens_of(size, budget, effective=most), most)
