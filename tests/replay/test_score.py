from __future__ import annotations

import json
from itertools import count, pairwise

import pytest

from refold.model.dialect import CHAT
from refold.model.message import Message, ToolCall, assistant, system, tool, user
from refold.replay.candidate import DropOldest, NoLimit
from refold.replay.facts import ReferenceCounter
from refold.replay.recordings import CountedRecording, Recording
from refold.replay.score import Ratio, score
from tests.replay.candidates import Diary, Refuses, Talkative

WINDOW = 450
FILLER = "Nothing of note in this long paragraph of plain words. " * 30
PROMPT = (system("You help at the harbour office."),)
TALK = (
    user("Order W2378156 ships from the northern harbour. Never call the customer."),
    assistant("Understood."),
    user(FILLER),
    assistant("I read it all."),
    user(FILLER),
    assistant("The order W2378156 ships from there."),
)


def script(messages=TALK, system=PROMPT):
    return CountedRecording(Recording("r", "s", CHAT, system, messages), ReferenceCounter())


def play(candidate, window, messages=TALK, clock=lambda: 0.0, **options):
    return score(script(messages), candidate, window, clock=clock, **options)


def test_what_was_said_long_ago_and_used_again_is_a_demand():
    assert script().tokens > 800
    kept, lost = play(NoLimit(), WINDOW), play(DropOldest(), WINDOW)

    assert kept.bands == {"near": Ratio(), "mid": Ratio(), "far": Ratio(1, 1)}
    assert kept.bound == Ratio(1, 1)
    assert lost.old == Ratio(0, 1)
    assert (kept.calls, kept.valid, kept.fits, lost.fits) == (3, 3, 1, 3)


def test_age_is_measured_in_windows():
    assert play(NoLimit(), 4_000).bands["near"] == Ratio(1, 1)
    assert play(NoLimit(), 1_000).bands["mid"] == Ratio(1, 1)


CODE = "    total = sum(item.price for item in basket)"
EDIT = ToolCall("c2", "edit", json.dumps({"path": "bill.py", "new": f"{CODE}\n    return total"}))
EDITING = (
    user("Show the file."),
    assistant("", ToolCall("c1", "show", "{}")),
    tool("c1", f"  11→def bill(basket):\n  12→{CODE}\nThe basket knows nothing about discounts."),
    assistant("I see."),
    user(FILLER),
    assistant("I read it all."),
    user(FILLER),
    assistant("As the basket knows nothing about discounts, I edit it.", EDIT),
)


@pytest.mark.feature("N6")
def test_lines_and_phrases_that_a_reply_repeats_are_looked_for_in_its_context():
    kept, lost = play(NoLimit(), WINDOW, EDITING), play(DropOldest(), WINDOW, EDITING)

    assert (kept.lines.old, lost.lines.old) == (Ratio(1, 1), Ratio(0, 1))
    assert kept.lines.near == Ratio()
    phrases = kept.phrases.old.whole
    assert (kept.phrases.old, lost.phrases.old) == (Ratio(phrases, phrases), Ratio(0, phrases))
    assert phrases >= 2  # of the sentence, and of the line
    assert play(NoLimit(), 8_000, EDITING).lines.near == Ratio(1, 1)


def test_a_line_inside_a_longer_one_is_kept_and_half_of_one_is_not():
    class Quotes(DropOldest):
        def __init__(self, quotation):
            self.quotation = quotation

        def context(self):
            return (*self.system, user(self.quotation), *self.body[-1:])

    whole, half = f"In bill.py stood: {CODE.strip()}; see there.", f"In bill.py stood: {CODE.strip()[:-8]}"
    assert play(Quotes(whole), WINDOW, EDITING).lines.old == Ratio(1, 1)
    assert play(Quotes(half), WINDOW, EDITING).lines.old == Ratio(0, 1)


def test_what_the_system_prompt_says_is_no_repeated_line():
    said = (system(f"Always begin with\n{CODE}"),)
    found = score(script(EDITING, said), NoLimit(), WINDOW, clock=lambda: 0.0)

    assert found.lines.old == Ratio()


def test_rules_count_letter_for_letter_on_every_call():
    assert play(NoLimit(), WINDOW).rules == Ratio(3, 3)
    assert play(DropOldest(), WINDOW).rules == Ratio(1, 3)


def test_what_the_candidate_invents_is_made_up_and_its_handles_are_not():
    assert play(NoLimit(), WINDOW).made_up == Ratio(0, 0)
    diary = play(Diary(), WINDOW)
    assert diary.made_up.part == diary.made_up.whole == 2


def test_recall_may_bring_back_what_is_missing_but_no_more_than_it_may():
    lost = (user("Order W2378156 ships."), assistant("Yes."), user(FILLER * 12), assistant("W2378156 it is."))

    assert play(DropOldest(), WINDOW).recalled is None
    assert play(Diary(), WINDOW).recalled == 1
    assert play(Talkative(), WINDOW).recalled == 1
    early = (user(FILLER * 12), assistant("Yes."), *lost[:2], lost[2], lost[3])
    assert play(Talkative(), WINDOW, early).recalled == 0


def test_the_query_never_holds_what_it_is_asked_for():
    asked = []

    class Listens(DropOldest):
        def recall(self, query, max_tokens):
            asked.append((query, max_tokens))
            return ""

    call = ToolCall("c1", "find_order", '{"number": "W2378156", "mode": "fast"}')
    play(Listens(), WINDOW, (*TALK[:5], assistant("I look up W2378156 now.", call)))

    ((query, max_tokens),) = asked
    assert "W2378156" not in query
    assert max_tokens == 1_000
    for word in ("look up", "find_order", "number", "mode", "plain words"):
        assert word in query


def test_a_refusal_is_neither_valid_nor_fitting_and_loses_everything():
    refused = play(Refuses(), WINDOW)

    assert (refused.calls, refused.valid, refused.fits) == (3, 1, 1)
    assert refused.problems == {"refused": 2}
    assert refused.old == Ratio(0, 1)


def test_a_context_that_does_not_extend_the_last_is_a_rewrite():
    assert play(NoLimit(), WINDOW).rewrites == 0
    dropped = play(DropOldest(), WINDOW)
    assert dropped.rewrites == 2
    assert dropped.compactions <= dropped.rewrites


def test_calls_of_the_candidate_s_own_are_on_the_bill_of_every_provider():
    class Silent(Diary):
        def model_calls(self):
            return []

    paid, unpaid = play(Diary(), WINDOW).bills, play(Silent(), WINDOW).bills

    for name, price in (("anthropic", 1_200 * 3e-6 + 80 * 15e-6), ("openai", 1_200 * 1.25e-6 + 80 * 10e-6)):
        difference = paid[name].dollars - unpaid[name].dollars
        assert difference > 0
        assert difference / price == pytest.approx(round(difference / price))


def test_time_comes_from_the_clock_that_was_given():
    ticks = count()

    timed = play(NoLimit(), WINDOW, clock=lambda: float(next(ticks)))

    assert timed.prepare_ms == (1_000.0,) * 3
    assert timed.add_ms == (1_000.0,) * 3


def test_two_replies_in_a_row_are_a_fault_of_the_recording():
    doubled = (user("hi"), assistant("one"), assistant("two"))

    assert play(NoLimit(), WINDOW, doubled).problems == {}


def test_a_broken_context_is_named():
    class Forgets(NoLimit):
        def context(self) -> tuple[Message, ...]:
            return self.system + tuple(self.body[-1:])

    call = assistant("", ToolCall("c1", "go"))
    messages = (user("hi"), call, tool("c1", "done"), assistant("There."))

    broken = play(Forgets(), WINDOW, messages)

    assert (broken.calls, broken.valid) == (2, 1)
    assert broken.problems == {"orphan_result": 1, "starts_without_user": 1}


def test_every_context_is_told_by_its_size_and_what_was_said_since():
    sent = play(NoLimit(), WINDOW).sent

    assert len(sent) == 3
    for before, one in pairwise(sent):
        assert one.tokens == before.tokens + one.added
        assert one.bill.cached_tokens in (0, before.bill.prompt_tokens)
        assert not one.is_rewritten
        assert one.changes == ()
