import pytest

from refold.core.measure import (
    Anchor,
    FixedCost,
    Meter,
    anchor,
    backfill,
    count_fixed,
    forget_size,
    holds,
    measure,
    record_call,
)
from refold.core.view import View
from refold.model.dialect import CHAT
from refold.model.message import system
from refold.model.tokens import Budget, Share, TokenCount, Usage
from refold.model.window import FixedFields, Tool
from tests.core.conversations import FlatCounter, talk, view_of

COST = FixedCost(TokenCount(counted=100), TokenCount(counted=50))


@pytest.mark.feature("P1")
def test_regions_are_disjoint_and_add_up():
    view = view_of("u a:x t:x a u a:y t:y a:z t:z")
    budget = Budget(window=1000, max_output=200, reserve=Share(0.05))
    sizes = measure(view, COST, budget, summary=TokenCount(counted=30))
    assert sizes.history.tokens == 30  # u a a of the first turn
    assert sizes.tool_results.tokens == 10  # its result
    assert sizes.tail.tokens == 40  # the second turn up to its last reply
    assert sizes.input.tokens == 10  # the result that the next call brings
    assert sizes.messages.tokens == view.tokens.tokens + 30
    assert sizes.instructions.tokens == 150
    assert sizes.content.tokens == 270
    assert sizes.reserve == 250
    assert sizes.free == 1000 - 250 - 270


def test_a_new_user_message_is_the_input_and_the_rest_is_history():
    sizes = measure(view_of("u a u"), FixedCost(), Budget(window=100))
    assert (sizes.history.tokens, sizes.tail.tokens, sizes.input.tokens) == (20, 0, 10)


def test_several_new_messages_are_all_input():
    sizes = measure(view_of("u a u u"), FixedCost(), Budget(window=100))
    assert (sizes.history.tokens, sizes.tail.tokens, sizes.input.tokens) == (20, 0, 20)


def test_an_empty_conversation_has_only_instructions():
    sizes = measure(View(CHAT, FlatCounter()), COST, Budget(window=1000))
    assert sizes.content == TokenCount(counted=150)
    assert sizes.free == 850


def test_an_overfull_window_has_negative_room():
    assert measure(view_of("u a u"), FixedCost(), Budget(window=25)).free == -5


def test_fixed_costs():
    tools = (Tool("look", "Looks.", '{"a":1}'), Tool("web"))
    cost = count_fixed(FixedFields(CHAT, (system("be kind"),), tools), FlatCounter())
    assert cost.system.tokens == 10
    assert cost.tools.tokens == (8 + 4 + 6 + 7) + (8 + 3)


class TestAnchor:
    @pytest.mark.parametrize("usage", [None, Usage(), Usage(output=70)])
    def test_a_missing_or_empty_report_is_not_a_size_of_zero(self, usage):
        assert anchor(usage, view_of("u a u"), counted=100) is None

    @pytest.mark.parametrize("prompt, usable", [(49, False), (50, True), (500, True), (501, False)])
    def test_an_implausible_report_is_not_trusted(self, prompt, usable):
        assert (anchor(Usage(input=prompt), view_of("u a u"), counted=100) is not None) is usable

    def test_cached_input_counts(self):
        view = view_of("u")
        usage = Usage(input=2, cache_read=90, cache_write=8)
        assert anchor(usage, view, counted=100) == Anchor(100, 1, view.chain)

    def test_a_report_of_a_history_that_was_undone_or_forked_is_no_size(self):
        long = view_of("u a u a u a u a")
        last = anchor(Usage(input=100_000), long, counted=90_000)
        assert holds(last, long)
        assert holds(last, long.extend(talk("u a")))
        assert not holds(last, long.prefix(2))
        assert not holds(last, long.prefix(2).extend(talk("u u u u u u u")))


class TestMeter:
    def test_the_context_size_and_the_bill_are_kept_apart(self):
        meter = record_call(Meter(), Usage(input=10_000, output=2_000), view_of("u"), counted=10_000)
        meter = record_call(meter, Usage(input=14_000, output=3_000), view_of("u"), counted=10_000)
        meter = record_call(meter, Usage(input=19_000, output=1_000), view_of("u"), counted=10_000)
        assert meter.anchor == Anchor(19_000, 1, view_of("u").chain)
        assert meter.billed == Usage(input=43_000, output=6_000)
        assert meter.calls == 3

    def test_a_call_of_several_turns_is_as_large_as_the_last_and_costs_them_all(self):
        usage = Usage(input=90_000, output=3_000, last_prompt=40_000)
        meter = record_call(Meter(), usage, view_of("u"), counted=35_000)
        assert meter.anchor == Anchor(40_000, 1, view_of("u").chain)
        assert (meter.billed + usage).prompt == 180_000
        assert backfill(usage, Usage(input=44_000), [1]) == (1_000,)

    def test_a_compaction_voids_the_size_and_not_the_bill(self):
        meter = forget_size(record_call(Meter(), Usage(input=900, output=5), view_of("u"), counted=900))
        assert meter.anchor is None
        assert meter.billed.output == 5

    def test_a_report_that_is_no_measurement_is_still_billed(self):
        meter = record_call(Meter(), Usage(input=900), view_of("u"), counted=900)
        meter = record_call(meter, Usage(input=6), view_of("u"), counted=380_000)
        assert meter.anchor == Anchor(900, 1, view_of("u").chain)
        assert meter.billed.input == 906


class TestBackfill:
    def test_growth_is_shared_out_by_our_counts(self):
        before, after = Usage(input=100, output=50, reasoning=20), Usage(cache_read=100, input=130)
        assert backfill(before, after, [30, 10]) == (75, 25)

    def test_shares_add_up_to_the_growth(self):
        assert sum(backfill(Usage(), Usage(input=100), [1, 1, 1])) == 100

    def test_equal_shares_where_nothing_was_counted(self):
        assert backfill(Usage(), Usage(input=10), [0, 0]) == (5, 5)

    def test_no_growth_says_nothing(self):
        assert backfill(Usage(input=100), Usage(input=100), [3, 4]) == (0, 0)
        assert backfill(Usage(), Usage(input=5), []) == ()


def test_a_count_shows_its_terms_and_is_never_subtracted_from_another_kind():
    mixed = TokenCount(reported=12_000, estimated=300)
    assert str(mixed) == "12,300 (12,000 reported + 300 estimated)"
    assert mixed.source == "estimated"
    assert TokenCount(counted=50).minus(TokenCount(counted=20)) == 30
    with pytest.raises(ValueError, match="means nothing"):
        mixed.minus(TokenCount(reported=10))


def test_measuring_again_after_one_more_message_changes_only_what_is_new():
    view = view_of("u a")
    before = measure(view, COST, Budget(window=1000))
    after = measure(view.extend(talk("u")), COST, Budget(window=1000))
    assert after.content.minus(before.content) == 10
