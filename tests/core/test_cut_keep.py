import pytest
from msgspec import structs

from refold.core.cut import cut_at, wanted_cut
from refold.core.fold import FoldedBranch
from refold.core.policy import (
    ByMessage,
    Exchanges,
    LastMessages,
    LastTurns,
    Policy,
    Recovery,
    TurnBoundaryBefore,
    UserBoundaryAfter,
)
from refold.core.view import View
from refold.model.dialect import CHAT
from refold.model.tokens import Budget, Share, Tokens
from tests.core.conversations import FlatCounter, show, talk

BUDGET = Budget(window=1_000)
RULES = {
    "by message": ByMessage(Tokens(30)),
    "user boundary": UserBoundaryAfter(Tokens(30)),
    "turn boundary": TurnBoundaryBefore(3),
    "last turns": LastTurns(1),
    "last messages": LastMessages(2),
    "exchanges": Exchanges(Tokens(30)),
}
every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)


def folded(script: str) -> FoldedBranch:
    """A conversation in which every message takes 10 tokens."""
    return FoldedBranch.of(View(CHAT, FlatCounter(10))).extend(talk(script))


def kept(
    script: str, rule, *, moment="after_call", effective=1_000, is_full=False, keep=None, **policy
) -> str:
    """What a policy with this rule leaves of a conversation."""
    shown = folded(script)
    rules = Policy(name="mine", triggers={}, cut=rule, **policy)
    at = cut_at(shown, rules, BUDGET, effective, moment, is_full=is_full, keep=keep)
    return show(shown.shown.messages(at))


@pytest.mark.parametrize(
    "rule, left",
    [
        (ByMessage(Tokens(30)), "a:y t:y a"),
        (UserBoundaryAfter(Tokens(30)), "a:y t:y a"),
        (UserBoundaryAfter(Tokens(60)), "u a:x t:x a:y t:y a"),
        (TurnBoundaryBefore(3), "u a:x t:x a:y t:y a"),
        (TurnBoundaryBefore(7), "u a u a:x t:x a:y t:y a"),
        (LastTurns(1), "u a:x t:x a:y t:y a"),
        (LastTurns(2), "u a u a:x t:x a:y t:y a"),
        (LastMessages(1), "a"),
        (Exchanges(Tokens(30)), "a:y t:y a"),
        (Exchanges(Share(0.03, "effective")), "a:y t:y a"),
    ],
)
def test_every_rule_keeps_what_it_says(rule, left):
    assert kept("u a u a u a:x t:x a:y t:y a", rule) == left


@pytest.mark.parametrize("rule", [ByMessage(Tokens(20)), LastMessages(2), Exchanges(Tokens(40))])
def test_no_reply_is_torn_apart(rule):
    assert kept("u a u a:x,y t:x t:y a", rule) == "a:x,y t:x t:y a"


@pytest.mark.parametrize("tokens, left", [(30, "a"), (9, "a"), (0, "a"), (50, "u a:x,y t:x t:y a")])
def test_an_exchange_that_does_not_fit_goes_whole(tokens, left):
    assert kept("u a u a:x,y t:x t:y a", Exchanges(Tokens(tokens))) == left


@pytest.mark.parametrize("tokens", [0, 20, 30])
def test_the_last_exchange_stays_in_any_case(tokens):
    assert kept("u a u a:x,y t:x t:y", Exchanges(Tokens(tokens)), effective=60) == "a:x,y t:x t:y"


@pytest.mark.parametrize("effective, left", [(1_000, "a:x t:x a u"), (47, "a u"), (21, "u")])
def test_the_newest_reply_stays_up_to_its_share_of_the_room(effective, left):
    rule = Exchanges(Tokens(40 if effective == 1_000 else 10), last_reply=0.9)
    assert kept("u a u a:x t:x a u", rule, effective=effective) == left


def test_the_newest_reply_stays_with_the_results_of_its_calls():
    assert (
        kept("u a u a:x,y t:x t:y u", Exchanges(Tokens(10), last_reply=0.9), effective=50)
        == "a:x,y t:x t:y u"
    )


@every_rule
@pytest.mark.parametrize("script", ["", "u", "u a", "a"])
def test_where_there_is_hardly_anything_to_cut(rule, script):
    """Acceptance case B17: nothing is lost of no message and of one, and at least one stays of two."""
    for effective in (0, 1_000):
        assert kept(script, rule, effective=effective) in (script, script[-1:])


@pytest.mark.parametrize("size", [Tokens(0), Tokens(10**9)])
@pytest.mark.parametrize("rule", [ByMessage, UserBoundaryAfter, Exchanges])
def test_keeping_nothing_keeps_the_last_message_and_keeping_everything_goes_as_far_as_the_rule_lets_it(
    rule, size
):
    """Acceptance case B17."""
    left = kept("u a u a u a", rule(size))
    if size.tokens == 0:
        assert left == "a"
    else:
        assert left in ("u a u a u a", "a u a u a")


class TestTheActiveTurn:
    def test_it_stays_whole_while_it_takes_no_more_than_its_share(self):
        script = "u a u a:x t:x a:y t:y"
        assert kept(script, ByMessage(Tokens(20)), moment="before_call", effective=100) == "u a:x t:x a:y t:y"
        assert kept(script, ByMessage(Tokens(20)), moment="before_call", effective=99) == "a:y t:y"

    def test_a_policy_says_how_large_that_is(self):
        script, share = "u a u a:x t:x a:y t:y", Share(0.1)
        left = kept(script, ByMessage(Tokens(20)), moment="before_call", effective=400, whole_turn=share)
        assert left == "a:y t:y"

    def test_a_turn_that_is_over_is_like_any_other(self):
        assert kept("u a u a:x t:x a", ByMessage(Tokens(10)), effective=1_000) == "a"


class TestNothingCut:
    def test_a_full_window_keeps_its_newer_half_instead(self):
        script = "u a:x t:x a:y t:y a:z t:z"
        assert kept(script, TurnBoundaryBefore(4), moment="before_call", effective=60) == script
        assert (
            kept(script, TurnBoundaryBefore(4), moment="before_call", effective=40, is_full=True) == "a:z t:z"
        )

    def test_what_was_asked_for_is_done_up_to_the_active_turn(self):
        assert kept("u a u", LastTurns(2), moment="manual") == "u"
        assert kept("u a u", LastTurns(2), moment="before_call") == "u a u"

    def test_a_policy_without_a_cut_cuts_nothing(self):
        assert kept("u a u a u", None, moment="manual", is_full=True) == "u a u a u"


class TestHowMuch:
    @pytest.mark.parametrize("effective, messages", [(1_000, 5), (100, 5), (99, 4), (40, 2)])
    def test_a_number_of_tokens_never_takes_more_than_half_of_the_room(self, effective, messages):
        script = " ".join(["u"] * 20)
        left = kept(script, ByMessage(Tokens(50)), effective=effective, whole_turn=Share(0.0))
        assert len(left.split()) == messages

    def test_a_compaction_that_was_asked_for_may_keep_another_amount(self):
        script = " ".join(["u a"] * 10)
        manual = UserBoundaryAfter(Tokens(80))
        assert len(kept(script, ByMessage(Tokens(20)), manual=manual).split()) == 2
        assert len(kept(script, ByMessage(Tokens(20)), manual=manual, moment="manual").split()) == 8
        assert len(kept(script, ByMessage(Tokens(20)), manual=manual, moment="manual", keep=40).split()) == 4

    @every_rule
    def test_a_number_that_was_asked_for_goes_before_the_rule(self, rule):
        script = " ".join(["u a"] * 10)
        assert len(kept(script, rule, moment="manual", keep=40).split()) <= 4

    @pytest.mark.parametrize("share, messages", [(Share(0.2), 20), (Share(0.2, "effective"), 10)])
    def test_after_an_overflow_no_more_is_kept_than_the_recovery_allows(self, share, messages):
        script = " ".join(["u a"] * 40)
        recovery = Recovery(keep=share)
        rule = Exchanges(Share(0.9, "effective"))
        assert (
            len(kept(script, rule, moment="overflow", effective=500, recovery=recovery).split()) == messages
        )

    def test_a_rule_that_keeps_less_anyway_keeps_as_much_after_an_overflow(self):
        script = " ".join(["u a"] * 40)
        rule, recovery = Exchanges(Share(0.1, "effective")), Recovery(keep=Share(0.2, "effective"))
        for moment in ("before_call", "overflow"):
            assert len(kept(script, rule, moment=moment, recovery=recovery).split()) == 10


def test_what_a_rule_wants_does_not_depend_on_the_moment():
    view = folded("u a u a u a").shown
    rule = structs.replace(RULES["by message"], keep=Tokens(25))
    assert wanted_cut(rule, view, BUDGET, 1_000, 1_000) == 4
    assert wanted_cut(rule, view, BUDGET, 1_000, 15) == 5
