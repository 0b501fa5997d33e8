import msgspec
import pytest

from refold.core.policy import (
    Age,
    AllOf,
    AnyOf,
    MessageCount,
    MessagesToRefine,
    OverBudget,
    RemainingTokens,
    ReportedOverflow,
    TokenRatio,
    ToolTokens,
    Trigger,
)
from refold.core.triggers import TriggerFacts, due, fires, fold_at
from refold.model.errors import ConfigError
from refold.model.tokens import Prices, growing_cost

CACHED = Prices(3.0, 15.0, 0.3, 3.75)
"""A read at a tenth of the input, a write at a quarter more."""


def facts(**known) -> TriggerFacts:
    return TriggerFacts(**{"tokens": 0, "limit": 100, "window": 100, **known})


@pytest.mark.parametrize(
    "trigger, below, at, above",
    [
        # Equality as each seed has it: some thresholds are reached, others must be passed.
        (TokenRatio(0.8, ">"), facts(tokens=79), None, facts(tokens=81)),
        (TokenRatio(0.8, ">="), facts(tokens=79), facts(tokens=80), facts(tokens=81)),
        (TokenRatio(0.75, ">"), facts(tokens=74), None, facts(tokens=76)),
        (
            TokenRatio(0.8, of="room"),
            facts(tokens=79, room=99),
            facts(tokens=72, room=90),
            facts(tokens=80, room=90),
        ),
        (OverBudget(0.75), facts(tokens=54, max_output=20), None, facts(tokens=56, max_output=20)),
        (
            RemainingTokens(10),
            facts(tokens=79, room=90),
            facts(tokens=80, room=90),
            facts(tokens=81, room=90),
        ),
        (MessageCount(20), facts(messages=19), None, facts(messages=21)),
        (MessagesToRefine(2), facts(to_refine=1), facts(to_refine=2), facts(to_refine=3)),
        (ToolTokens(8_000), facts(tool_tokens=7_999), None, facts(tool_tokens=8_001)),
        (Age(300), facts(idle_s=299.9), facts(idle_s=300), facts(idle_s=301)),
        (OverBudget(), facts(tokens=79, max_output=20), None, facts(tokens=81, max_output=20)),
        (ReportedOverflow(), facts(reported=99), None, facts(reported=101)),
    ],
)
def test_thresholds(trigger, below, at, above):
    assert not fires(trigger, below)
    assert fires(trigger, above)
    if at is not None:
        assert fires(trigger, at)


@pytest.mark.parametrize(
    "trigger, at",
    [
        (TokenRatio(0.8, ">"), facts(tokens=80)),
        (TokenRatio(0.55, ">"), facts(tokens=55)),
        (MessageCount(20), facts(messages=20)),
        (ToolTokens(8_000), facts(tool_tokens=8_000)),
        (OverBudget(), facts(tokens=80, max_output=20)),
        (OverBudget(0.55), facts(tokens=35, max_output=20)),
        (ReportedOverflow(), facts(reported=100)),
    ],
)
def test_equality_does_not_pass_a_threshold(trigger, at):
    assert not fires(trigger, at)


@pytest.mark.parametrize("share", [0.07, 0.29, 0.55, 0.57, 0.58])
def test_equality_holds_for_shares_that_binary_fractions_miss(share):
    assert fires(TokenRatio(share), facts(tokens=round(share * 100)))


@pytest.mark.parametrize("trigger", [MessagesToRefine(1), ToolTokens(0, ">="), Age(0), ReportedOverflow()])
def test_what_is_not_known_fires_nothing(trigger):
    assert not fires(trigger, facts())


def test_an_unknown_limit_fires_nothing():
    assert not fires(TokenRatio(0.8), TriggerFacts(tokens=10**6, limit=0))
    assert not fires(OverBudget(), TriggerFacts(tokens=10**6, limit=0))
    assert not fires(RemainingTokens(10), TriggerFacts(tokens=10**6, limit=0))


def test_any_of_and_all_of():
    full, many = TokenRatio(0.75, ">"), MessageCount(20)
    assert fires(AnyOf((full, many)), facts(messages=21)) == "21 messages > 20"
    assert not fires(AllOf((full, many)), facts(messages=21))
    both = fires(AllOf((full, many)), facts(messages=21, tokens=76))
    assert both == "76 tokens > 75 % of 100 and 21 messages > 20"
    assert fires(AllOf((AnyOf((many, full)), full)), facts(tokens=99))


@pytest.mark.parametrize("make", [AnyOf, AllOf])
def test_triggers_without_any_are_refused(make):
    with pytest.raises(ConfigError):
        make(())


def test_a_policy_looks_only_at_its_moments():
    rules = {"after_call": TokenRatio(0.8), "overflow": ReportedOverflow()}
    assert due(rules, "after_call", facts(tokens=90)) == "90 tokens >= 80 % of 100"
    assert due(rules, "turn_start", facts(tokens=90)) == ""


@pytest.mark.parametrize("share", [80, 0, -1, 1.01])
def test_a_ratio_out_of_range_is_refused(share):
    for make in (TokenRatio, OverBudget):
        with pytest.raises(ConfigError):
            make(share)


@pytest.mark.parametrize(
    "make",
    [
        lambda: RemainingTokens(-1),
        lambda: MessageCount(-1),
        lambda: MessagesToRefine(0),
        lambda: ToolTokens(-1),
        lambda: Age(-1),
        lambda: Age(float("nan")),
    ],
)
def test_a_threshold_out_of_range_is_refused(make):
    with pytest.raises(ConfigError, match="give a number"):
        make()


def test_triggers_are_data():
    rule = AnyOf((TokenRatio(0.8), AllOf((MessageCount(3), Age(60)))))
    assert msgspec.json.decode(msgspec.json.encode(rule), type=Trigger) == rule


def cost_per_call(size: int, level: int, growth: int, prices: Prices) -> float:
    """What a call costs on average when every fold at `size` leaves `level`: told call by call."""
    total, calls, sent, cached = 0.0, 0, level, 0
    for _ in range(20_000):
        total += growing_cost(cached, sent, 0, prices)
        calls, cached, sent = calls + 1, sent, sent + growth
        if sent > size:
            sent, cached = level, 0
    return total / calls


@pytest.mark.feature("N5")
def test_the_best_moment_is_cheaper_than_sooner_and_later():
    level, limit, growth = 100_000, 200_000, 2_000
    best = fold_at(limit, level=level, growth=growth, prices=CACHED)
    assert level + (limit - level) // 2 < best < limit
    at_best = cost_per_call(best, level, growth, CACHED)
    assert at_best < cost_per_call(limit, level, growth, CACHED)
    assert at_best < cost_per_call(level + 20_000, level, growth, CACHED)


@pytest.mark.feature("N5")
def test_dear_reads_fold_sooner_and_free_ones_never():
    assert fold_at(200_000, level=50_000, growth=2_000, prices=Prices(3.0, cache_read=0.0)) == 200_000
    cheap = fold_at(
        1_000_000, level=500_000, growth=20_000, prices=Prices(3.0, cache_read=0.03, cache_write=3.75)
    )
    dear = fold_at(
        1_000_000, level=500_000, growth=20_000, prices=Prices(3.0, cache_read=1.5, cache_write=3.75)
    )
    assert dear < cheap
    assert dear >= 750_000  # half of the room between the two is used in any case


@pytest.mark.feature("N5")
def test_a_small_window_is_used_to_the_full():
    assert fold_at(8_000, level=5_000, growth=400, prices=CACHED) == 8_000
