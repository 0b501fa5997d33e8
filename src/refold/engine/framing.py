"""What stays the same from call to call, worked out once."""

from __future__ import annotations

from msgspec import structs

from refold.core.assemble import BRIDGE
from refold.core.budget import limit_of, tokens_of
from refold.core.cost import Prices
from refold.core.frame import Frame
from refold.core.measure import count_fixed
from refold.core.output_room import check_room, output_room
from refold.core.policy import Policy
from refold.model.budget import Budget, Tokens
from refold.model.message import user
from refold.model.tokens import TokenCounter
from refold.model.window import Fixed


def frame_for(
    fixed: Fixed, budget: Budget, policy: Policy, counter: TokenCounter, prices: Prices | None
) -> Frame:
    """
    Raises:
        BudgetError: instructions and reserve leave no room for a conversation.
    """
    cost = count_fixed(fixed, counter)
    budget = _with_less_reserve(budget, cost.total.tokens, lowers=policy.enabled)
    if tokens_of(policy.reserve, budget) > tokens_of(budget.reserve, budget):
        budget = structs.replace(budget, reserve=policy.reserve)
    check_room(budget, instructions=cost.total.tokens, lowers=policy.enabled)
    return Frame(fixed, cost, budget, policy, prices, counter.message(user(BRIDGE)))


def _with_less_reserve(budget: Budget, instructions: int, *, lowers: bool) -> Budget:
    """The budget with half of what instructions and output leave as its reserve, where it would be more: messages need room, too."""
    output = output_room(budget, instructions).lowered if lowers else budget.max_output
    most = max(0, limit_of(budget) - output - instructions) // 2
    return (
        structs.replace(budget, reserve=Tokens(most)) if tokens_of(budget.reserve, budget) > most else budget
    )
