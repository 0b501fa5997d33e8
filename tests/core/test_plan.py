"""The one pure entry: what is kept, reduced, summarised or refused, when and why.

Messages take 10 tokens each, or as many as they have characters where a test says so, and policies are made of as little as it needs.
"""

from __future__ import annotations

import msgspec
import pytest
from msgspec import structs

from refold.core.budget import Frame, Now
from refold.core.fold import FoldedBranch
from refold.core.measure import FixedCost
from refold.core.plan import Plan, SummaryRequest, ahead, give_up, plan, request_room, requests_for, resolve
from refold.core.policy import Exchanges, LastMessages, MessageCount, Policy, TokenRatio, TurnBoundaryBefore
from refold.core.stage import Edit
from refold.core.stages import DropHalf, DropReasoning, Prune, Select, Supersede, Tiers
from refold.core.summary_text import MAX_ROOM
from refold.core.view import View
from refold.model.dialect import ANTHROPIC, CHAT, Dialect
from refold.model.message import Message, Opaque, Reasoning, Text, ToolCall, assistant, system, tool, user
from refold.model.summary import Summary
from refold.model.tokens import Budget, Share, TokenCount, Tokens
from refold.model.window import FixedFields
from tests.core.conversations import FlatCounter, TextCounter, show, talk

TURN_START, BEFORE_CALL = Now("turn_start"), Now("before_call")
MANUAL, OVERFLOW = Now("manual"), Now("overflow")
FULL = TokenRatio(0.8, ">=")
PRUNE = (Prune(threshold=0, keep=0, text="{name}"),)
"""Every result but those of the active turn becomes the name of its tool."""
SOFT = {"soft": 0.875}
"""At 140 of 200 tokens: the fold point is at 160."""
THOUGHT = Reasoning("thinking about it", "signed")


def folded(
    script: str | list[Message], counter: FlatCounter | None = None, dialect: Dialect = CHAT
) -> FoldedBranch:
    messages = talk(script) if isinstance(script, str) else script
    return FoldedBranch.of(View(dialect, counter or FlatCounter(10))).extend(messages)


def frame(
    window: int = 200, *, dialect: Dialect = CHAT, instructions: int = 0, output: int = 0, **changes: object
) -> Frame:
    """A policy that summarises all but the last two messages at 80 % at the start of a turn, with some changes."""
    rules = {"triggers": {"turn_start": FULL}, "cut": LastMessages(2), "target": Share(0.5), **changes}
    cost, budget = (
        FixedCost(TokenCount(counted=instructions)),
        Budget(window=window, max_output=output),
    )
    return Frame(FixedFields(dialect), cost, budget, Policy(name="mine", **rules))


def summary_for(planned: Plan, text: str = "short", **more: object) -> Summary:
    assert planned.request is not None
    fields = {"first": planned.request.first, "last": planned.request.last, "tokens": len(text), **more}
    return Summary(text, **fields)


def seqs(items: object) -> list[int]:
    return [item.seq for item in items]


class TestKeep:
    def test_nothing_decided_nothing_changed(self):
        state = folded("u a u")
        planned = plan(state, frame(), TURN_START)

        assert planned == Plan(frame(), TURN_START, state, state, "keep", "below every threshold")
        assert planned.sent is planned.next is planned.sendable is state
        assert planned.window.messages == tuple(talk("u a u"))

    @pytest.mark.parametrize("moment", ["before_call", "after_call"])
    def test_moments_that_the_policy_does_not_name_are_not_looked_at(self, moment):
        planned = plan(folded("u a " * 10), frame(), Now(moment))
        assert (planned.decision, planned.reason) == ("keep", "below every threshold")

    @pytest.mark.parametrize("now", [TURN_START, BEFORE_CALL, MANUAL, OVERFLOW])
    def test_a_policy_that_is_switched_off_does_nothing_at_any_moment(self, now):
        state = folded("u a " * 20)
        planned = plan(
            state, frame(enabled=False, reduce_at={"turn_start": FULL}, emergency=(Select(),)), now
        )
        assert (planned.decision, planned.sent, planned.next) == ("keep", state, state)

    def test_a_due_plan_that_can_cut_nothing_and_fits_keeps_all_and_says_why_it_was_due(self):
        state = folded("u " * 18)
        planned = plan(state, frame(cut=None), TURN_START)
        assert (planned.decision, planned.reason) == ("keep", "180 tokens >= 80 % of 200")
        assert planned.request is None
        assert planned.sent is planned.next is state

    @pytest.mark.parametrize(
        ("state", "now"),
        [
            (folded("u a " * 9).settle(), TURN_START),
            (structs.replace(folded("u a " * 9), declined=18), TURN_START),
            (folded("u a " * 9), structs.replace(TURN_START, in_vain=3)),
        ],
        ids=["settled", "taken back", "in vain"],
    )
    def test_what_was_tried_in_vain_is_not_tried_again(self, state, now):
        assert plan(state, frame(), now).decision == "keep"
        assert plan(state.extend([user("more")]), frame(), Now("turn_start")).decision == "summarise"


class TestSignedThoughts:
    """A change before thoughts that are signed would make them void while their turn is at work."""

    OLD = talk("u a u a u a u a")
    AT_WORK = (
        user("and now?"),
        Message("assistant", (THOUGHT, ToolCall("x", "look"))),
        tool("x", "found"),
    )

    def planned(self, *, window: int = 130, now: Now = TURN_START, last: tuple[Message, ...] = ()) -> Plan:
        state = folded([*self.OLD, *self.AT_WORK, *last], dialect=ANTHROPIC)
        return plan(state, frame(window, dialect=ANTHROPIC, triggers={"turn_start": FULL, "before_call": FULL}), now)  # fmt: skip

    def test_it_waits_while_the_window_fits(self):
        planned = self.planned()
        assert (planned.decision, planned.request) == ("keep", None)
        assert planned.reason == "waits for the end of a turn with signed thoughts"
        assert planned.sent is planned.next

    def test_the_last_token_that_fits_still_waits(self):
        assert self.planned(window=110, now=BEFORE_CALL).decision == "keep"
        assert self.planned(window=109, now=BEFORE_CALL).decision == "summarise"

    @pytest.mark.parametrize("now", [MANUAL, OVERFLOW])
    def test_it_does_not_wait_where_somebody_asks_or_the_provider_has_refused(self, now):
        assert self.planned(now=now).decision == "summarise"

    def test_it_does_not_wait_once_the_turn_is_over(self):
        assert self.planned(last=(assistant("that is it"),)).decision == "summarise"


class TestThresholds:
    @pytest.mark.parametrize(
        ("messages", "decision", "reason"),
        [(15, "keep", "below every threshold"), (16, "summarise", "160 tokens >= 80 % of 200")],
    )
    def test_a_trigger_fires_at_its_threshold(self, messages, decision, reason):
        planned = plan(folded("u " * messages), frame(), TURN_START)
        assert (planned.decision, planned.reason) == (decision, reason)

    @pytest.mark.parametrize(("window", "decision"), [(80, "keep"), (79, "summarise")])
    def test_before_a_call_a_window_that_is_exactly_full_is_sent(self, window, decision):
        planned = plan(folded("u a u a u a u a"), frame(window), BEFORE_CALL)
        assert planned.decision == decision
        assert planned.reason == ("below every threshold" if window == 80 else "80 tokens do not fit into 79")

    @pytest.mark.parametrize(("instructions", "decision"), [(40, "keep"), (41, "summarise")])
    def test_instructions_take_room_too(self, instructions, decision):
        state = folded("u a u a u a u a")
        assert plan(state, frame(120, instructions=instructions), BEFORE_CALL).decision == decision

    @pytest.mark.parametrize(("target", "decision"), [(73, "summarise"), (74, "reduce"), (75, "reduce")])
    def test_stages_that_reach_the_target_exactly_are_enough(self, target, decision):
        """Two results of 8 characters become the four of `look`: 82 tokens are 74 after that."""
        state = folded("u a:x t:x a u a:y t:y a u", TextCounter())
        assert state.tokens == 82
        planned = plan(state, frame(95, stages=PRUNE, target=Tokens(target)), TURN_START)
        assert planned.decision == decision
        assert (planned.request is None) is (decision == "reduce")
        assert planned.sent.tokens == 74

    def test_a_target_above_what_fits_is_not_small_enough(self):
        """The stages leave 74 tokens: the target of 75 is reached, and the window of 73 is not."""
        state = folded("u a:x t:x a u a:y t:y a u", TextCounter())
        planned = plan(state, frame(73, stages=PRUNE, target=Tokens(75)), BEFORE_CALL)
        assert planned.decision == "summarise"


class TestReduce:
    STATE = folded("u a:x t:x a u a:y t:y a u a:z t:z", TextCounter())

    def test_stages_run_at_their_own_moment_and_every_edit_is_recorded(self):
        planned = plan(self.STATE, frame(stages=PRUNE, reduce_at={"before_call": TokenRatio(0.4)}), BEFORE_CALL)  # fmt: skip

        assert (planned.decision, planned.request) == ("reduce", None)
        assert planned.reason == f"{self.STATE.tokens} tokens >= 40 % of 200"
        assert planned.edits == tuple(
            Edit("prune", seq, 8, 4, "old tool output", f"#m{seq}") for seq in (2, 6)
        )
        assert planned.sent is planned.next
        assert planned.next.tokens == self.STATE.tokens - 8
        assert [planned.next.shown[at].message.results[0].text for at in (2, 6, 10)] == [
            "look",
            "look",
            "result 10",
        ]
        assert planned.next.branch is self.STATE.branch

    def test_stages_that_find_nothing_keep_the_very_same_value(self):
        state = folded("u a u a", TextCounter())
        planned = plan(state, frame(stages=PRUNE, reduce_at={"before_call": TokenRatio(0.1)}), BEFORE_CALL)
        assert (planned.decision, planned.edits) == ("keep", ())
        assert planned.sent is planned.next is state

    def test_what_is_reduced_is_not_reduced_again(self):
        rules = frame(stages=PRUNE, reduce_at={"before_call": TokenRatio(0.1)})
        once = plan(self.STATE, rules, BEFORE_CALL)
        twice = plan(once.next, rules, BEFORE_CALL)
        assert (once.decision, twice.decision, twice.edits) == ("reduce", "keep", ())
        assert twice.next is once.next

    def test_only_a_window_that_is_due_is_summarised_after_its_stages(self):
        rules = frame(110, stages=PRUNE, reduce_at={"before_call": TokenRatio(0.1)}, target=Tokens(1))
        assert plan(self.STATE, rules, BEFORE_CALL).decision == "reduce"
        due = plan(self.STATE, rules, TURN_START)
        assert (due.decision, seqs(due.edits)) == ("summarise", [2, 6])
        assert due.sent is due.next
        assert due.next.shown[2].message.results[0].text == "look"

    def test_stages_are_told_that_a_summary_is_due(self):
        """Below its threshold this stage does nothing, unless messages are about to leave."""
        patient = (Prune(threshold=1_000, keep=0, text="{name}"),)
        rules = frame(110, stages=patient, reduce_at={"before_call": TokenRatio(0.1)}, target=Tokens(1))
        assert plan(self.STATE, rules, BEFORE_CALL).edits == ()
        assert seqs(plan(self.STATE, rules, TURN_START).edits) == [2, 6]


class TestStagesThatASummaryOvertakes:
    """Stages that make single messages smaller need not run on messages that leave anyway."""

    def state(self, *thoughts: int) -> FoldedBranch:
        """Six messages of some 9 tokens; those at these places hold 17 more of thinking."""
        messages = talk("u a u a u a")
        for place in thoughts:
            messages[place] = Message("assistant", (THOUGHT, *messages[place].parts))
        return folded(messages, ThoughtCounter())

    def test_they_do_nothing_where_they_could_not_be_enough(self):
        state = self.state(1)
        planned = plan(state, frame(80, stages=(DropReasoning(),), target=Tokens(40)), TURN_START)
        assert (planned.decision, planned.edits) == ("summarise", ())
        assert planned.next is state
        assert THOUGHT in planned.request.items[1].message.parts

    def test_they_run_where_they_are_enough(self):
        planned = plan(self.state(1), frame(80, stages=(DropReasoning(),), target=Tokens(54)), TURN_START)
        assert (planned.decision, seqs(planned.edits)) == ("reduce", [1])

    def test_but_somebody_who_asks_gets_a_summary(self):
        planned = plan(self.state(1), frame(80, stages=(DropReasoning(),), target=Tokens(54)), MANUAL)
        assert (planned.decision, planned.edits) == ("summarise", ())

    def test_they_run_where_they_make_smaller_what_stays(self):
        planned = plan(
            self.state(1, 3),
            frame(90, stages=(DropReasoning(),), target=Tokens(40), cut=LastMessages(3)),
            TURN_START,
        )
        assert (planned.decision, seqs(planned.edits)) == ("summarise", [1, 3])

    def test_they_are_enough_where_a_summary_would_hardly_be_shorter_than_what_leaves(self):
        planned = plan(
            self.state(1, 3),
            frame(90, stages=(DropReasoning(),), target=Tokens(40), cut=LastMessages(4)),
            TURN_START,
        )
        assert (planned.decision, seqs(planned.edits)) == ("reduce", [1, 3])

    def test_stages_that_remember_a_boundary_run_in_any_case(self):
        state = folded("u a:x t:x a u a", TextCounter())
        planned = plan(state, frame(60, stages=PRUNE, target=Tokens(20)), TURN_START)
        assert (planned.decision, seqs(planned.edits)) == ("summarise", [2])


class ThoughtCounter(TextCounter):
    def message(self, message: Message, /) -> int:
        thoughts = sum(len(part.text) for part in message.parts if isinstance(part, Reasoning))
        return super().message(message) + thoughts


class TestHardStages:
    """Where a call waits and the window does not fit, they come before any summary."""

    STATE = folded("u a u a u a u a")

    @pytest.mark.parametrize("now", [BEFORE_CALL, structs.replace(OVERFLOW, limit=70)])
    def test_they_make_it_fit_and_a_note_names_what_is_gone(self, now):
        planned = plan(self.STATE, frame(70, hard=(DropHalf(),)), now)
        assert (planned.decision, planned.request) == ("reduce", None)
        assert show(planned.sent.shown.messages()) == "u a u a"
        assert seqs(planned.edits) == [0, 1, 2, 3]
        assert "#m0 to #m3" in planned.sent.lead.messages[0].text
        assert planned.sent is planned.next

    def test_what_other_stages_did_before_is_recorded_before(self):
        state = folded("u a:x t:x a u a u a")
        planned = plan(state, frame(70, stages=PRUNE, hard=(DropHalf(),)), BEFORE_CALL)
        assert [edit.stage for edit in planned.edits] == ["prune", *["drop_half"] * 4]

    def test_at_other_moments_a_summary_is_asked_for(self):
        planned = plan(self.STATE, frame(70, hard=(DropHalf(),)), TURN_START)
        assert (planned.decision, planned.edits) == ("summarise", ())

    def test_where_the_window_fits_a_summary_is_asked_for(self):
        rules = frame(100, hard=(DropHalf(),), triggers={"before_call": FULL})
        assert plan(self.STATE, rules, BEFORE_CALL).decision == "summarise"

    def test_where_they_are_not_enough_a_summary_is_asked_for(self):
        planned = plan(self.STATE, frame(15, hard=(DropHalf(),)), BEFORE_CALL)
        assert (planned.decision, planned.edits) == ("summarise", ())


class TestRequest:
    STATE = folded("u a u a u a u a u a")

    def request(
        self, state: FoldedBranch | None = None, now: Now = MANUAL, **changes: object
    ) -> SummaryRequest:
        planned = plan(state or self.STATE, frame(**changes), now)
        assert planned.decision == "summarise"
        assert planned.request is not None
        return planned.request

    def test_it_covers_all_but_what_the_policy_keeps(self):
        request = self.request()
        assert (request.first, request.last, request.previous) == (0, 8, ())
        assert (seqs(request.items), seqs(request.kept)) == ([*range(8)], [8, 9])
        assert request.leaving == request.items
        assert (request.turn_from, request.apart, request.since) == (None, frozenset(), 0)

    @pytest.mark.parametrize("cut", [1, 3, 7])
    def test_a_cut_that_somebody_asks_for_counts_for_more_than_the_policy(self, cut):
        request = self.request(now=structs.replace(MANUAL, cut=cut))
        assert (request.last, seqs(request.items), seqs(request.kept)) == (
            cut,
            [*range(cut)],
            [*range(cut, 10)],
        )

    def test_a_cut_after_everything_leaves_nothing(self):
        request = self.request(now=structs.replace(MANUAL, cut=99))
        assert (request.last, seqs(request.items), request.kept) == (10, [*range(10)], ())

    def test_a_cut_before_everything_is_none(self):
        assert plan(self.STATE, frame(), structs.replace(MANUAL, cut=0)).request is None

    @pytest.mark.parametrize(("keep", "last"), [(20, 8), (40, 6), (60, 4)])
    def test_so_much_is_kept_as_somebody_asks_for(self, keep, last):
        assert self.request(now=structs.replace(MANUAL, keep=keep)).last == last

    def test_somebody_who_asks_gets_a_summary_of_a_window_that_is_small_enough(self):
        planned = plan(folded("u a:x t:x a u a"), frame(stages=PRUNE), MANUAL)
        assert (planned.decision, planned.reason) == ("summarise", "asked for")

    def reads(self, count: int) -> FoldedBranch:
        """A turn that reads the same file again and again, in results of 280 characters."""
        pairs = [
            (
                assistant("", ToolCall(f"c{number}", "Read", '{"file_path": "a.py"}')),
                tool(f"c{number}", f"line {number % 10}\n" * 40),
            )
            for number in range(count)
        ]
        return folded(
            [user("go"), *(one for pair in pairs for one in pair), assistant("done")], TextCounter()
        )

    def test_somebody_who_asks_gets_only_messages_reduced_that_may_stay(self):
        state = self.reads(40)
        rules = {"stages": (Supersede(), Tiers(keep=0.5, result=100)), "manual": LastMessages(7)}
        planned = plan(state, frame(2_000, **rules), MANUAL)

        assert planned.request is not None
        assert planned.request.last == 75
        assert planned.request.items[:20] == state.items.items[:20]
        assert "[outdated" in planned.request.kept[1].message.results[0].text
        assert planned.next.items.items[75:] == planned.request.kept
        assert min(edit.seq for edit in planned.edits) > 20

    @pytest.mark.parametrize(("count", "kept"), [(4, 3), (40, 7)], ids=["all fits", "not even cut"])
    def test_results_that_stay_are_cut_where_the_history_is_too_large(self, count, kept):
        """Cut results leave room for more messages."""
        rules = {"stages": (Tiers(keep=0.9, result=100),), "manual": Exchanges(Tokens(400))}
        planned = plan(self.reads(count), frame(2_000, **rules), MANUAL)
        assert planned.request is not None
        assert (len(planned.request.kept), bool(planned.edits)) == (kept, count > 4)

    def test_the_summary_of_a_long_history_takes_no_more_than_that_of_a_full_window(self):
        long, full = (
            plan(folded("u a " * turns), frame(2_000, summary_share=Share(1.0), least_summary=0.0), MANUAL)
            for turns in (500, 101)
        )
        assert long.request is not None
        assert full.request is not None
        assert long.request.max_tokens == full.request.max_tokens == 600

    def test_a_rule_that_would_keep_all_keeps_half_where_all_does_not_fit(self):
        rules = {"cut": TurnBoundaryBefore(99), "triggers": {"before_call": FULL}}
        assert self.request(now=BEFORE_CALL, window=90, **rules).last == 6
        assert plan(self.STATE, frame(100, **rules), BEFORE_CALL).request is None

    def test_a_policy_may_keep_something_else_when_it_is_asked(self):
        assert self.request(manual=LastMessages(4)).last == 6
        assert self.request(manual=LastMessages(4), now=TURN_START, window=100).last == 8

    def test_nothing_is_asked_for_where_nothing_is_new(self):
        planned = plan(self.STATE.settle(), frame(), MANUAL)
        assert (planned.decision, planned.reason, planned.request) == ("keep", "asked for", None)

    def test_after_a_refusal_it_is_asked_for_all_the_same(self):
        planned = plan(self.STATE.settle(), frame(), structs.replace(OVERFLOW, limit=90))
        assert planned.decision == "summarise"
        assert planned.reason == "the provider refused the input as too long; 90 tokens are tried next"

    def test_an_empty_conversation_has_nothing_to_summarise(self):
        planned = plan(folded(""), frame(), MANUAL)
        assert (planned.decision, planned.request) == ("keep", None)

    def test_a_policy_without_a_cut_never_asks(self):
        assert plan(self.STATE, frame(cut=None), MANUAL).request is None

    @pytest.mark.parametrize(("scope", "first"), [("own", 8), ("cumulative", 0)])
    def test_the_next_one_begins_where_its_scope_says_and_has_the_one_before(self, scope, first):
        rules = frame(scope=scope)
        once = plan(self.STATE, rules, MANUAL)
        state = resolve(once, summary_for(once, scope=scope)).next.extend(talk("u a u a"))
        request = self.request(state, scope=scope)
        assert (request.first, request.last) == (first, 12)
        assert request.previous == state.summaries
        assert seqs(request.items) == [8, 9, 10, 11]

    def test_a_turn_that_is_split_says_where_it_began(self):
        state = folded("u a u a:x t:x a:y t:y a:z t:z")
        request = self.request(state, TURN_START, window=90, whole_turn=Share(0.1))
        assert (request.last, request.turn_from) == (7, 2)

    def test_places_are_numbers_of_originals_where_a_summary_stands_for_some(self):
        once = plan(self.STATE, frame(), MANUAL)
        state = resolve(once, summary_for(once)).next.extend(talk("u a:x t:x a:y t:y a:z t:z"))
        request = self.request(state, window=90, whole_turn=Share(0.1))
        assert (request.first, request.last, request.turn_from) == (8, 15, 10)
        assert seqs(request.kept) == [10, 15, 16]

    def test_where_nobody_has_asked_anything_no_question_stays(self):
        state = folded("a:x t:x a:y t:y a:z t:z")
        assert seqs(self.request(state, window=90).kept) == [4, 5]

    def test_the_question_that_is_being_answered_stays(self):
        state = folded("u a u a:x t:x a:y t:y a:z t:z")
        request = self.request(state, TURN_START, window=90, whole_turn=Share(0.1))
        assert seqs(request.kept) == [2, 7, 8]
        assert seqs(request.leaving) == [0, 1, 3, 4, 5, 6]

    def test_a_turn_that_is_over_has_no_such_question(self):
        state = folded("u a u a:x t:x a:y t:y a")
        assert seqs(self.request(state, TURN_START, window=90).kept) == [5, 6, 7]

    @pytest.mark.parametrize(("length", "stays"), [(15, True), (16, False)])
    def test_a_question_of_more_than_its_share_of_the_room_does_not_stay(self, length, stays):
        messages = [user("q" * length), *talk("a:x t:x a:y t:y a:z t:z")]
        state = folded(messages, TextCounter())
        request = self.request(state, whole_turn=Share(0.0), window=100)
        assert seqs(request.kept) == ([0, 5, 6] if stays else [5, 6])

    def test_the_newest_instruction_given_on_the_way_stays(self):
        messages = [*talk("u a"), system("be brief"), *talk("u a"), system("be kind"), *talk("u a u a")]
        assert seqs(self.request(folded(messages)).kept) == [5, 8, 9]

    def test_a_providers_own_compaction_stays_and_what_stood_before_it_need_not_be_covered(self):
        raw = msgspec.Raw(b'{"type":"compaction","content":"what was said"}')
        compaction = Message("assistant", (Opaque("compaction", raw=raw), Text("go on")))
        state = folded([*talk("u a"), compaction, *talk("u a u a")], dialect=ANTHROPIC)
        request = self.request(state, dialect=ANTHROPIC)
        assert seqs(request.kept) == [2, 5, 6]
        assert (request.apart, request.since) == (frozenset({1, 2}), 3)
        early = self.request(state, structs.replace(MANUAL, cut=1), dialect=ANTHROPIC)
        assert (seqs(early.items), early.last) == ([0, 1, 2], 3)

    @pytest.mark.parametrize(
        ("rules", "kept", "room"),
        [
            ({"summary_share": Share(0.25), "target": Share(0.5)}, 20, 50),
            ({"summary_share": Share(0.6), "target": Share(0.5)}, 20, 90),
            ({"summary_share": Share(0.6), "target": Share(0.8)}, 20, 120),
            ({"summary_share": Share(0.6), "target": Share(0.2)}, 20, 90),
            ({"summary_share": Share(0.01), "target": Share(0.5)}, 20, 30),
            ({"summary_share": Share(0.6), "target": Share(0.2)}, 120, 60),
            ({"summary_share": Share(0.6), "target": Share(0.2)}, 160, 30),
            ({"summary_share": Share(0.6), "target": Share(0.2)}, 180, 20),
            ({"summary_share": Share(1.0), "target": Tokens(1_000)}, 20, 180),
            ({"summary_share": Share(0.6), "target": Share(0.2)}, 195, 10),
        ],
    )
    def test_the_room_of_a_summary(self, rules, kept, room):
        """Of 200 tokens, beside messages that keep so many of them."""
        state = folded([*talk("u a u a"), assistant("k" * kept)], TextCounter())
        assert self.request(state, structs.replace(MANUAL, cut=4), **rules).max_tokens == room

    def test_instructions_leave_less_for_a_summary(self):
        state = folded([*talk("u a u a"), user("k" * 20)], TextCounter())
        rules = {"summary_share": Share(0.9), "target": Share(0.8), "instructions": 50}
        assert self.request(state, structs.replace(MANUAL, cut=4), **rules).max_tokens == 90

    def test_a_summary_that_is_itself_too_large_is_written_again(self):
        """All messages stay; only a cumulative summary can be replaced by a smaller one."""
        text = "w" * 40
        for scope, decision in (("cumulative", "summarise"), ("own", "keep")):
            rules = frame(300, scope=scope)
            large = Summary(text, 0, 8, len(text), scope=scope)
            first = plan(folded("u a u a u a u a u", TextCounter()), rules, structs.replace(MANUAL, cut=8))
            state = resolve(first, large).next.extend(talk("u"))
            small = structs.replace(rules, budget=Budget(window=state.tokens - 1))
            planned = plan(state, small, structs.replace(MANUAL, cut=0))
            assert (planned.decision == "summarise") is (decision == "summarise"), scope


class TestUnreadMessages:
    def test_a_question_that_does_not_fit_is_cut_and_the_cut_is_recorded_first(self):
        long = user(" ".join(f"word{number}" for number in range(200)))
        state = folded([*talk("u a:x t:x a"), long], TextCounter())
        planned = plan(state, frame(600, stages=PRUNE, target=Tokens(100)), BEFORE_CALL)
        assert [(edit.stage, edit.seq) for edit in planned.edits] == [("fit", 4), ("prune", 2)]
        assert planned.sendable.shown[-1].tokens < 600

    def test_it_is_recorded_where_no_stage_runs_after_it(self):
        long = user(" ".join(f"word{number}" for number in range(200)))
        planned = plan(folded([*talk("u a u a"), long], TextCounter()), frame(600), BEFORE_CALL)
        assert planned.decision == "summarise"
        assert [(edit.stage, edit.seq) for edit in planned.edits] == [("fit", 4)]

    def test_one_that_fits_is_left_alone(self):
        long = user(" ".join(f"word{number}" for number in range(50)))
        state = folded([*talk("u a:x t:x a"), long], TextCounter())
        planned = plan(state, frame(state.tokens, stages=()), MANUAL)
        assert planned.edits == ()


class TestEmergency:
    STATE = folded("u a u a u a u a")

    def test_what_cannot_be_summarised_is_made_to_fit(self):
        planned = plan(self.STATE.settle(), frame(70, emergency=(Select(),)), BEFORE_CALL)
        assert (planned.decision, planned.request, planned.refusal) == ("reduce", None, "")
        assert planned.edits
        assert planned.sent is planned.next
        assert planned.sent.tokens <= 70
        assert planned.reason == "80 tokens do not fit into 70"

    def test_where_nothing_more_can_go_it_is_refused_and_nothing_has_changed(self):
        state = self.STATE.settle()
        planned = plan(state, frame(70), BEFORE_CALL)
        assert planned.decision == "refuse"
        assert planned.refusal == "80 tokens do not fit into 70, and nothing more can be taken away"
        assert (planned.next, planned.edits) == (state, ())

    def test_a_refusal_after_an_emergency_leaves_the_branch_shown_as_it_was(self):
        state = self.STATE.settle()
        planned = plan(state, frame(25, emergency=(Select(),)), BEFORE_CALL)
        assert planned.decision == "refuse"
        assert planned.next is state
        assert planned.sent is not state


class TestResolve:
    STATE = folded("u a u a u a", TextCounter())
    """54 tokens."""

    def planned(self, window: int = 60, state: FoldedBranch | None = None, **changes: object) -> Plan:
        planned = plan(state or self.STATE, frame(window, **changes), TURN_START)
        assert planned.decision == "summarise"
        return planned

    def test_the_summary_stands_for_what_it_covers(self):
        planned = self.planned()
        done = resolve(planned, summary_for(planned))
        (summary,) = done.next.summaries

        assert (done.decision, done.reason, done.request) == ("summarise", planned.reason, None)
        assert done.sent is done.next is done.sendable
        assert show(done.next.shown.messages()) == "u a"
        assert [done.next.number(at) for at in (0, 1)] == [4, 5]
        assert summary.text == "Task #m0: question 0\nshort"
        assert (summary.first, summary.last, summary.number) == (0, 4, 0)
        assert done.next.lead.messages == (user(summary.text),)
        assert done.window.summaries == done.next.lead.messages
        assert (done.next.settled, done.next.past) == (6, (summary,))
        assert done.next.branch is self.STATE.branch

    def test_the_same_plan_and_summary_give_the_same_and_nothing_is_due_after_it(self):
        planned = self.planned()
        done = resolve(planned, summary_for(planned))
        assert resolve(planned, summary_for(planned)) == done
        again = plan(done.next, frame(), TURN_START)
        assert (again.decision, again.next) == ("keep", done.next)

    def test_one_that_was_written_ahead_covers_fewer_and_the_others_stay(self):
        planned = self.planned(70, folded("u a u a u a"))
        done = resolve(planned, summary_for(planned, last=2))
        assert done.decision == "summarise"
        assert show(done.next.shown.messages()) == "u a u a"
        assert done.next.summaries[0].last == 2

    @pytest.mark.parametrize(("scope", "count"), [("own", 2), ("cumulative", 1)])
    def test_a_cumulative_summary_replaces_those_before(self, scope, count):
        planned = self.planned(scope=scope)
        state = resolve(planned, summary_for(planned, scope=scope)).next.extend(talk("u a u a"))
        planned = self.planned(80, state, scope=scope)
        done = resolve(planned, summary_for(planned, "newer", scope=scope))
        assert len(done.next.summaries) == count
        assert [one.number for one in done.next.past] == [0, 1]
        assert done.next.summaries[-1].own_text.endswith("newer")

    @pytest.mark.parametrize(("length", "is_used"), [(15, True), (14, True), (16, False), (100, False)])
    def test_a_summary_must_make_the_window_smaller(self, length, is_used):
        """The task takes 21 characters, what stays 18, and the source 54: 15 are left."""
        planned = self.planned(cut=LastMessages(2))
        done = resolve(planned, summary_for(planned, "w" * (length - 1)))
        total = 21 + 18 + length - 1
        assert done.request is None
        if is_used:
            assert (done.decision, done.next.tokens) == ("summarise", total)
            return
        assert (done.decision, done.edits) == ("keep", ())
        assert done.reason == f"the summary was not used: it takes {total} tokens, its source 54"
        assert done.sent is done.next
        assert done.next == self.STATE.settle()

    @pytest.mark.parametrize("text", ["", " \n", "## Goal\n\n## Next steps\n"])
    def test_a_summary_that_says_nothing_is_not_used(self, text):
        state = folded("a u a u a u", TextCounter())
        planned = plan(state, frame(), structs.replace(MANUAL, cut=1))
        done = resolve(planned, summary_for(planned, text))
        assert done.decision == "keep"
        assert done.reason == "the summary was not used: it is empty or has only headings"
        assert done.next == state.settle()

    def test_what_stages_did_stays_where_the_summary_is_not_used(self):
        state = folded("u a:x t:x a u a", TextCounter())
        planned = plan(state, frame(60, stages=PRUNE, target=Tokens(20)), TURN_START)
        done = resolve(planned, summary_for(planned, "w" * 100))
        assert (done.decision, done.edits) == ("reduce", planned.edits)
        assert done.next == planned.next.settle()

    @pytest.mark.parametrize(("length", "is_whole"), [(14, True), (15, False), (40, False)])
    def test_where_the_messages_do_not_fit_even_a_large_summary_is_used_and_cut_to_fit(
        self, length, is_whole
    ):
        """The task takes 21 characters and what stays 18 of 53: 14 are left."""
        planned = plan(self.STATE, frame(53, emergency=(Select(),)), BEFORE_CALL)
        done = resolve(planned, summary_for(planned, "w" * length))
        assert (done.decision, done.reason) == ("summarise", "54 tokens do not fit into 53")
        assert done.sent is done.next
        assert done.sent.tokens <= 53
        assert ("w" * length in done.sent.lead.messages[0].text) is is_whole
        assert done.next.past[0].own_text == "w" * length

    def test_what_an_emergency_does_beside_a_summary_is_recorded(self):
        messages = [*talk("u a u a u a:x"), tool("x", "r" * 100), *talk("a u a")]
        state = folded(messages, TextCounter())
        rules = frame(90, cut=LastMessages(6), emergency=(Prune(force=True, keep=0, text="{name}"),))
        planned = plan(state, rules, BEFORE_CALL)
        assert (planned.decision, planned.edits) == ("summarise", ())
        done = resolve(planned, summary_for(planned))
        assert (done.decision, done.request) == ("summarise", None)
        assert [(edit.stage, edit.seq, edit.before, edit.after) for edit in done.edits] == [
            ("prune", 6, 100, 4)
        ]
        assert done.sent is done.next
        assert show(done.sent.shown.messages()) == "u a:x t:x a u a"

    def test_what_does_not_fit_with_its_summary_either_is_refused(self):
        messages = [*talk("u a u a u a:x"), tool("x", "r" * 100), *talk("a")]
        state = folded(messages, TextCounter())
        planned = plan(state, frame(90, cut=LastMessages(4)), BEFORE_CALL)
        done = resolve(planned, summary_for(planned))
        assert done.decision == "refuse"
        assert done.refusal == "154 tokens do not fit into 90, and nothing more can be taken away"

    def test_secrets_of_the_user_stand_in_no_summary(self):
        secret = "sk-proj-4f9a8b7c6d5e4f3a2b1c0d9e8f7a6b5c"
        messages = [user(f"my key is {secret}"), *talk("a u a u a")]
        for kind in ("model", "extractive", "mechanical"):
            planned = plan(folded(messages), frame(1_000), structs.replace(MANUAL, cut=4))
            done = resolve(planned, summary_for(planned, kind=kind))
            assert done.decision == "summarise"
            assert secret not in done.next.summaries[0].text


class TestGiveUp:
    STATE = folded("u a u a u a u a")

    def test_where_all_fits_everything_is_sent(self):
        planned = plan(self.STATE, frame(100), TURN_START)
        done = give_up(planned)
        assert (done.decision, done.request, done.reason) == ("keep", None, planned.reason)
        assert done.sent is done.next is self.STATE
        assert give_up(done) == done

    def test_what_stages_did_stays(self):
        state = folded("u a:x t:x a u a", TextCounter())
        planned = plan(state, frame(60, stages=PRUNE, target=Tokens(20)), TURN_START)
        done = give_up(planned)
        assert (done.decision, done.edits, done.next) == ("reduce", planned.edits, planned.next)

    def test_what_does_not_fit_is_made_to(self):
        planned = plan(self.STATE, frame(70, emergency=(Select(),)), BEFORE_CALL)
        done = give_up(planned)
        assert planned.decision == "summarise"
        assert (done.decision, done.request) == ("reduce", None)
        assert done.edits
        assert done.sent.tokens <= 70
        assert done.sent is done.next

    def test_or_refused(self):
        planned = plan(self.STATE, frame(70), BEFORE_CALL)
        done = give_up(planned)
        assert (done.decision, done.next) == ("refuse", self.STATE)
        assert done.refusal.startswith("80 tokens do not fit into 70")

    def test_a_plan_is_sendable_without_its_summary(self):
        planned = plan(self.STATE, frame(70, emergency=(Select(),)), BEFORE_CALL)
        given_up = give_up(planned)
        assert planned.sendable == given_up.sent
        assert planned.window == given_up.window
        assert planned.measurement == given_up.measurement
        assert planned.measurement.content.tokens <= 70

    @pytest.mark.parametrize(("messages", "output"), [(1, 90), (2, 75)])
    def test_the_measurement_has_the_output_that_is_left_to_ask_for(self, messages, output):
        """Of 100 tokens 90 are asked for; where the messages do not fit beside them, a quarter is theirs."""
        planned = plan(folded("u " * messages), frame(100, output=90), BEFORE_CALL)
        assert (planned.decision, planned.measurement.reserve) == ("keep", output)

    def test_the_measurement_says_what_summaries_take(self):
        state = folded("u a u a u a", TextCounter())
        planned = plan(state, frame(60), TURN_START)
        done = resolve(planned, summary_for(planned))
        sizes = done.measurement
        assert (sizes.summary, sizes.messages.tokens) == (TokenCount(counted=26), done.next.tokens)


class TestAhead:
    @pytest.mark.parametrize(("messages", "is_asked"), [(13, False), (14, True)])
    def test_it_is_asked_for_from_a_share_of_the_fold_point_on(self, messages, is_asked):
        request = ahead(folded("u " * messages), frame(**SOFT), BEFORE_CALL)
        assert (request is not None) is is_asked
        if request:
            assert (request.first, request.last) == (0, 12)

    @pytest.mark.parametrize(("ratio", "is_asked"), [(1.0, False), (1.9, False), (2.0, True)])
    def test_sizes_are_the_providers(self, ratio, is_asked):
        request = ahead(folded("u " * 7), frame(**SOFT), structs.replace(BEFORE_CALL, ratio=ratio))
        assert (request is not None) is is_asked

    @pytest.mark.parametrize(("messages", "is_asked"), [(9, False), (10, True)])
    def test_or_from_a_share_of_the_messages_that_the_policy_counts(self, messages, is_asked):
        rules = frame(10_000, triggers={"after_call": MessageCount(10)}, **SOFT)
        assert (ahead(folded("u " * messages), rules, BEFORE_CALL) is not None) is is_asked

    def test_instructions_fill_the_window_too(self):
        state = folded("u " * 13)
        assert ahead(state, frame(instructions=9, **SOFT), BEFORE_CALL) is None
        assert ahead(state, frame(instructions=10, **SOFT), BEFORE_CALL) is not None

    def test_not_where_the_policy_says_so_or_nothing_is_new(self):
        state = folded("u " * 19)
        assert ahead(state, frame(), BEFORE_CALL) is None
        assert ahead(state, frame(enabled=False, **SOFT), BEFORE_CALL) is None
        assert ahead(state.settle(), frame(**SOFT), BEFORE_CALL) is None
        assert ahead(state.settle().extend([user("new")]), frame(**SOFT), BEFORE_CALL) is not None

    def test_it_asks_for_what_the_plan_would_ask_for(self):
        state, rules = folded("u a " * 9), frame(**SOFT)
        assert ahead(state, rules, TURN_START) == plan(state, rules, TURN_START).request


class TestWordsOfTheUser:
    @pytest.mark.parametrize(
        ("window", "instructions", "output", "most", "room"),
        [
            (1_000, 0, 0, 100, 200),
            (1_000, 0, 0, 600, 1_000),
            (1_000, 300, 0, 600, 700),
            (1_000, 300, 100, 600, 600),
            (1_000, 1_200, 0, 600, 0),
            (1_000_000, 0, 0, 1_000_000, MAX_ROOM),
        ],
    )
    def test_their_room_is_twice_the_summary_at_most(self, window, instructions, output, most, room):
        assert request_room(frame(window, instructions=instructions, output=output), most) == room

    def test_the_task_and_the_open_question_are_lines_unless_they_are_shown(self):
        state = folded("u a u a:x t:x a:y t:y")
        items = state.items.items
        rules = frame(10_000)
        assert requests_for(state, items[5:], 5, rules, None) == (
            "Task #m0: question 0",
            "Question #m2: question 2",
        )
        assert requests_for(state, (items[2], *items[5:]), 5, rules, None) == ("Task #m0: question 0",)
        assert requests_for(state, items, 5, rules, None) == ()
