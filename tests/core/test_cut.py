import pytest

from refold.core.cut import (
    SplitTurn,
    by_message,
    is_pair_safe,
    last_turns,
    pair_safe,
    split_turn,
    turn_boundary_before,
    user_boundary_after,
)
from refold.core.view import View
from refold.model.dialect import CHAT, RESPONSES
from refold.model.message import ToolCall, assistant, user
from tests.core.conversations import TextCounter, view_of


@pytest.mark.parametrize(
    "keep, cut",
    [(0, 6), (9, 6), (10, 5), (11, 5), (30, 3), (59, 1), (60, 1), (1000, 1)],
)
def test_by_message_compacts_from_the_message_that_passes_the_budget_and_at_least_one(keep, cut):
    assert by_message(view_of("u a u a u a"), keep) == cut


def test_by_message_of_nothing_is_nothing():
    assert by_message(view_of(""), 100) == 0


@pytest.mark.feature("O4")
class TestUserBoundaryAfter:
    def test_the_kept_tail_starts_at_the_user_message_at_or_after_the_point(self):
        # 25 tokens are reached inside the second turn; the third starts after that point.
        assert user_boundary_after(view_of("u a u a u a"), 25) == 4
        assert user_boundary_after(view_of("u a u a u a"), 20) == 4
        assert user_boundary_after(view_of("u a u a u a"), 21) == 4
        assert user_boundary_after(view_of("u a u a u a"), 40) == 2

    def test_without_a_boundary_after_the_point_it_cuts_inside_the_turn(self):
        assert user_boundary_after(view_of("u a:x t:x a:y t:y a"), 20) == 4

    @pytest.mark.parametrize(
        "script, keep, cut", [("", 0, 0), ("u", 0, 0), ("u a", 0, 1), ("u a", 10**9, 0), ("u a u a", 0, 3)]
    )
    def test_extremes(self, script, keep, cut):
        assert user_boundary_after(view_of(script), keep) == cut

    @pytest.mark.parametrize("script, cut", [("u", 0), ("u a", 0), ("u a u", 1), ("u a u a u a", 4)])
    def test_force_keeps_the_last_two(self, script, cut):
        assert user_boundary_after(view_of(script), 10**9, force=True) == cut

    def test_tool_arguments_count(self):
        big_write = assistant("", ToolCall("x", "write", '{"text": "%s"}' % ("w" * 500)))
        view = View.of([user("go"), user("more"), big_write], CHAT, TextCounter())
        assert user_boundary_after(view, 400) == 2


@pytest.mark.parametrize(
    "script, keep, cut", [("u a u a u a", 4, 2), ("u a u a u a", 3, 2), ("u a", 4, 0), ("u a:x t:x a", 1, 0)]
)
def test_turn_boundary_before(script, keep, cut):
    assert turn_boundary_before(view_of(script), keep) == cut


@pytest.mark.parametrize(
    "script, turns, cut",
    [
        ("u a u a u a", 2, 2),
        ("u a u a u a", 1, 4),
        ("u a u a u a", 9, 0),
        ("u a u a", 0, 4),
        ("u a u a", -1, 4),
        ("a a", 2, 2),
        ("u a u a:x t:x", 1, 2),
    ],
)
def test_last_turns(script, turns, cut):
    assert last_turns(view_of(script), turns) == cut


def test_last_turns_under_a_token_cap_keep_the_newest_in_any_case():
    view = view_of("u a u a u a")
    assert last_turns(view, 3, max_tokens=40) == 2
    assert last_turns(view, 3, max_tokens=39) == 4
    assert last_turns(view, 3, max_tokens=1) == 4
    assert last_turns(view, 1, max_tokens=10**6) == 4


@pytest.mark.parametrize(
    "script, wanted, cut",
    [
        ("u a:x,y t:x t:y a", 3, 1),  # between the results of a batch
        ("u a:x,y t:x t:y a", 2, 1),  # between the calls and their results
        ("u a:x,y t:x t:y a", 4, 4),
        ("u a:x t:x a:y t:y a", 4, 3),
        ("u a u a", 3, 3),
        ("u a:x", 2, 1),  # a call still waiting for its result stays whole
    ],
)
def test_a_pair_safe_cut_never_tears_a_batch_apart(script, wanted, cut):
    assert pair_safe(view_of(script), wanted) == cut


def test_a_reply_spread_over_items_stays_whole():
    view = view_of("u r c:x c:y t:x t:y a u", RESPONSES)
    assert [pair_safe(view, cut) for cut in range(9)] == [0, 1, 1, 1, 1, 1, 6, 7, 8]
    assert not is_pair_safe(view, 3)


def test_a_result_that_comes_after_another_question_stays_with_its_call():
    view = view_of("u a u c:x u t:x a u a", RESPONSES)
    assert [pair_safe(view, cut) for cut in range(10)] == [0, 1, 2, 3, 3, 3, 6, 7, 8, 9]
    assert is_pair_safe(view.prefix(5), 4)


def test_a_call_that_nobody_answers_does_not_bind_later_turns():
    view = view_of("u c:x u a u a", RESPONSES)
    assert pair_safe(view, 4) == 4


@pytest.mark.feature("O4")
class TestSplitTurn:
    def test_five_messages_are_a_split_turn_and_four_are_not(self):
        view = view_of("u a u a:x t:x a:y t:y a:z t:z a")
        assert split_turn(view, 7) == SplitTurn(2, 7)
        assert split_turn(view, 6) is None

    def test_a_cut_at_a_user_message_is_clean(self):
        assert split_turn(view_of("u a a a a a u a"), 6) is None

    def test_without_a_user_message_before_the_cut_there_is_no_turn_to_split(self):
        assert split_turn(view_of("a a a a a a a"), 6) is None

    @pytest.mark.parametrize("cut", [0, 8])
    def test_the_ends_split_nothing(self, cut):
        assert split_turn(view_of("u a a a a a a a"), cut) is None
