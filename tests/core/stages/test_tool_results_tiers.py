from msgspec import structs

from refold.core.stages.tool_results import Tiers
from tests.core.stages.shown_messages import lines, results_of, room_for, show_all, work

BIG = lines(100)


def _apply(messages, tokens, *, pinned=(), **settings):
    return Tiers(**settings).apply(show_all(messages), room_for(tokens, pinned=pinned))


def test_old_results_are_cut_at_line_ends_and_name_their_handle():
    result = _apply(work(BIG, BIG, BIG), 2_000)
    first, *_ = results_of(result.shown)
    assert len(first) <= 300
    assert "[… the rest is in #m2]" in first
    assert {line for line in first.splitlines() if "…" not in line} <= set(BIG.splitlines())
    assert result.edits[0].reason == "tool output that was read"


def test_the_room_that_is_left_keeps_the_newest_results_whole():
    texts = results_of(_apply(work(*[BIG] * 4), 9_500, keep=1.0).shown)
    assert [text == BIG for text in texts] == [False, False, True, True]


def test_a_result_that_is_larger_than_the_room_left_does_not_stop_older_ones():
    small = lines(10)
    texts = results_of(_apply(work(small, lines(1_000), small), 1_200, keep=1.0).shown)
    assert [text == small for text in texts] == [True, False, True]


def test_calls_and_replies_stay_as_they_are():
    messages = work(BIG, BIG, answer=BIG)
    shown = _apply(messages, 1_500).shown.messages
    assert [one for one in shown if one.role != "tool"] == [one for one in messages if one.role != "tool"]


def test_results_that_the_model_has_not_read_stay_whole():
    messages = [*work(BIG, BIG), *work(BIG, answer="")]
    assert results_of(_apply(messages, 10).shown)[-1] == BIG


def test_pinned_results_stay_whole():
    assert results_of(_apply(work(BIG, BIG), 10, pinned=(2,)).shown)[0] == BIG


def test_results_of_the_active_turn_are_cut_as_well():
    shown = show_all(work(BIG, BIG), protected=0)
    assert len(results_of(Tiers().apply(shown, room_for(10)).shown)[0]) < len(BIG)


def test_nothing_is_cut_that_fits_its_share():
    assert _apply(work(BIG), 100_000).reason == "the tool results that were read fit or are short"


def test_a_huge_result_that_would_leave_the_window_empty_keeps_more_of_both_ends():
    room, huge = structs.replace(room_for(5_000), target=4_000), lines(150)
    [cut] = results_of(Tiers().apply(show_all(work(huge)), room).shown)
    assert 1_000 < len(cut) <= 2_000
    assert cut.startswith("line 0.")
    assert cut.endswith(huge.splitlines(keepends=True)[-1])
    assert {line for line in cut.splitlines() if "…" not in line} <= set(huge.splitlines())


def test_a_large_result_beside_others_is_cut_to_a_few_lines():
    room, huge = structs.replace(room_for(5_000), target=4_000), lines(150)
    first, *_ = results_of(Tiers().apply(show_all(work(huge, *[lines(7)] * 9)), room).shown)
    assert len(first) <= 300
