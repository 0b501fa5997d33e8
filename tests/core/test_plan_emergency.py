import pytest

from refold.core.assemble import lead_of
from refold.core.fold import FoldedBranch
from refold.core.plan import squeeze_in
from refold.core.policy import LastMessages, Policy, Texts
from refold.core.stage import Room
from refold.core.stages import DropHalf, Fit
from refold.core.view import View
from refold.model.dialect import CHAT
from refold.model.message import assistant, user
from refold.model.summary import Summary
from tests.engine.conversations import COUNTER, agent_turn

POLICY = Policy(
    name="mine", triggers={}, cut=LastMessages(2), texts=Texts("Before: "), emergency=(DropHalf(),)
)


def room(tokens: int) -> Room:
    return Room(tokens, 0, COUNTER, CHAT)


def turns(count: int) -> FoldedBranch:
    messages = [message for number in range(count) for message in agent_turn(number)]
    return FoldedBranch.of(View(CHAT, COUNTER)).extend([*messages, user("and now?")])


@pytest.mark.feature("P7")
def test_what_was_dropped_is_named_in_front_and_the_task_with_it():
    folded = turns(6)
    found, edits = squeeze_in(folded, POLICY, POLICY.emergency, room(folded.tokens * 2 // 3))
    said = found.lead.messages[0].text
    assert said.startswith("Before: Task #m0: question 0 ")
    assert "No longer shown: #m0 to #m11" in said
    assert found.shown.messages() == folded.shown.messages(12)
    assert found.tokens <= folded.tokens * 2 // 3
    assert {edit.seq for edit in edits} == set(range(12))


@pytest.mark.feature("P7", "C15")
def test_the_summary_so_far_survives_and_is_cut_only_where_it_must_be():
    text = "\n".join(f"fact {number} about the matter" for number in range(20))
    folded = turns(6)
    before = Summary(text, 0, 3, len(text))
    lead = lead_of((before,), POLICY, CHAT, COUNTER, 0)
    folded = folded.lead_by((before,), lead)
    kept, _ = squeeze_in(folded, POLICY, POLICY.emergency, room(len(text) * 3))
    assert text in kept.lead.messages[0].text
    cut, _ = squeeze_in(folded, POLICY, (DropHalf(), DropHalf()), room(1_100))
    said = cut.lead.messages[0].text
    assert said.startswith(f"Before: Task #m0: question 0 {'q' * 20}\nfact 0 about the matter\n")
    assert "[… #s0 …]" in said
    assert cut.tokens <= 1_100


def test_cutting_alone_needs_no_note():
    folded = FoldedBranch.of(View(CHAT, COUNTER)).extend(
        [user("look " * 400), assistant("well"), user("next")]
    )
    stages = (Fit(user_share=0.3, measured=True, active=True),)
    found, edits = squeeze_in(folded, POLICY, stages, room(1_000))
    assert found.lead.messages == ()
    assert [edit.handle for edit in edits] == ["#m0"]
    assert found.tokens <= 1_000
