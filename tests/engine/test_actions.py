import pytest
from msgspec import structs

from refold.core.extractive_summary import summarise
from refold.core.plan import plan
from refold.core.presets import PRESETS
from refold.core.verify import verify_window
from refold.engine import actions
from refold.model.dialect import DIALECTS
from refold.model.errors import BudgetError, DoesNotFit, InvalidWindow, NotFound
from refold.model.message import Message, Text, ToolResult, assistant, tool, user
from refold.model.summary import Summary
from refold.model.tokens import Prices, Share
from tests.engine.conversations import agent_turn, give_up, memory, size_of

every_preset = pytest.mark.parametrize("preset", PRESETS)


@every_preset
def test_below_the_thresholds_everything_is_sent_as_it_came(preset):
    talk = memory(preset, window=100_000)
    messages = [*agent_turn(0), user("and now?")]
    talk.add(*messages)
    window = talk.context()
    assert window.messages == tuple(messages)
    assert all(sent is given for sent, given in zip(window.messages, messages, strict=True))
    assert (window.summaries, talk.receipts) == ((), ())


@every_preset
@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_a_long_conversation_always_fits_and_is_always_valid(preset, dialect):
    talk = memory(preset, window=3_000, dialect=dialect)
    for number in range(40):
        question, *rest = agent_turn(number)
        talk.add(question)
        for message in rest:
            if message.role == "assistant":
                window = talk.context()
                assert size_of(window) <= 3_000
                assert verify_window(window) == ()
                assert window.messages[-1] is talk.folded.branch[-1].message
            talk.add(message)
    assert talk.receipts
    assert all(receipt.reason for receipt in talk.receipts)


@every_preset
def test_nothing_that_was_added_is_ever_lost(preset):
    talk = memory(preset, window=3_000)
    said = [message for number in range(30) for message in agent_turn(number)]
    for message in said:
        talk.add(message)
    talk.context() if said[-1].role != "assistant" else talk.compact()
    assert talk.folded.branch.messages() == tuple(said)
    assert [talk.recall(f"#m{number}") for number in range(len(said))] == said


def test_a_handle_of_a_part_brings_back_the_part():
    talk = memory()
    talk.add(user("go"), *agent_turn(0)[1:])
    assert talk.recall("#m1.1").name == "read_file"
    assert isinstance(talk.recall("#m2.1"), ToolResult)
    for handle in ("#m99", "#m1.9", "#mx", "#m1.x", "nonsense", ""):
        with pytest.raises(NotFound):
            talk.recall(handle)


@every_preset
def test_two_contexts_in_a_row_share_their_prefix_unless_a_receipt_says_why(preset):
    talk = memory(preset, window=4_000)
    before, receipts = (), 0
    for number in range(30):
        question, *rest = agent_turn(number)
        talk.add(question)
        for message in rest:
            if message.role == "assistant":
                window = talk.context()
                sent = (*window.summaries, *window.messages)
                if len(talk.receipts) == receipts:
                    assert sent[: len(before)] == before
                before, receipts = sent, len(talk.receipts)
            talk.add(message)


@every_preset
def test_compact_then_undo_gives_the_same_context_as_before(preset):
    talk = memory(preset, window=100_000)
    for number in range(30):
        talk.add(*agent_turn(number))
    talk.add(user("and now?"))
    before, done = talk.context(), len(talk.receipts)
    after = talk.compact()
    assert size_of(after) < size_of(before)
    assert talk.undo()
    assert talk.context() == before
    assert [talk.undo() for _ in range(done + 1)] == [True] * done + [False]


def test_undo_keeps_what_was_said_since():
    talk = memory("opal", window=100_000)
    for number in range(8):
        talk.add(*agent_turn(number))
    talk.add(user("before"))
    talk.compact()
    talk.add(assistant("since"), user("and now?"))
    talk.undo()
    assert [message.text for message in talk.context().messages[-3:]] == ["before", "since", "and now?"]


def test_without_a_summary_the_history_stays_while_it_fits():
    talk = memory("lis", window=4_000, summarise=give_up)
    for number in range(9):
        talk.add(*agent_turn(number))
    talk.add(user("and now?"))
    window = talk.context()
    assert len(window.messages) == 37
    assert window.summaries == ()


def test_without_a_summary_an_overfull_window_still_becomes_one_that_fits():
    talk = memory("opal", window=3_000, summarise=give_up)
    for number in range(20):
        talk.add(*agent_turn(number))
    talk.add(user("and now?"))
    assert size_of(talk.context()) <= 3_000


def test_where_a_summariser_gives_up_a_digest_stands_for_the_replies_of_a_long_turn():
    talk = memory("refold", window=3_000, summarise=give_up)
    talk.add(user("fix every file"))
    for number in range(60):
        _, reply, result, _ = agent_turn(number)
        talk.add(reply, result)
        assert size_of(talk.context()) <= 3_000
    assert {summary.kind for summary in talk.folded.summaries} == {"extractive"}


@every_preset
@pytest.mark.parametrize("window", [1, 10, 25, 50])
def test_a_tiny_window_ends_in_a_clear_error(preset, window):
    question = user("a question that is far longer than fifty characters can ever hold, whatever one does")
    with pytest.raises((BudgetError, DoesNotFit)):
        ask(preset, window, question)


def test_the_problem_of_an_outcome_refers_to_nothing_of_the_action():
    talk = memory(window=50)
    talk.add(user("a question that is far longer than fifty characters can ever hold, whatever one does"))
    problem = actions.context(talk.state).problem
    assert isinstance(problem, DoesNotFit)
    assert problem.__traceback__ is None


def ask(preset, window, question):
    talk = memory(preset, window=window)
    talk.add(question)
    return talk.context()


@every_preset
def test_one_huge_message_is_cut_and_keeps_its_handle(preset):
    talk = memory(preset, window=3_000)
    talk.add(user("look " * 2_000))
    window = talk.context()
    assert size_of(window) <= 3_000
    assert "#m0" in window.messages[-1].text
    huge = memory(preset, window=3_000)
    question, call, _, _ = agent_turn(0)
    huge.add(question, call, tool("call-0", "log line\n" * 3_000))
    window = huge.context()
    assert size_of(window) <= 3_000
    assert "#m2" in window.messages[-1].results[0].text


def test_messages_that_no_provider_would_take_are_mended_and_kept():
    talk = memory(window=10_000)
    talk.add(user("go"), tool("nobody", "asked"), user("and now?"))
    assert talk.context().messages == (user("go"), user("and now?"))
    assert [(edit.stage, edit.handle, edit.after) for edit in talk.receipts[-1].edits] == [("mend", "#m1", 0)]
    assert talk.recall("#m1") == tool("nobody", "asked")
    assert talk.context().messages == (user("go"), user("and now?"))
    assert len(talk.receipts) == 1


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_a_call_that_waits_is_left_out_of_a_request_and_shown_again_with_its_result(dialect):
    talk = memory(window=10_000, dialect=dialect)
    question, call, result, _ = agent_turn(0)
    talk.add(question, call)
    assert talk.context().messages == (question,)
    assert [(edit.stage, edit.handle) for edit in talk.receipts[-1].edits] == [("mend", "#m1")]
    talk.add(result)
    assert talk.context().messages == (question, call, result)


def test_what_no_repair_can_save_is_refused():
    talk = memory(window=10_000)
    with pytest.raises(InvalidWindow, match="nothing to answer"):
        talk.context()


class TestAhead:
    """A summary that was asked for before it is needed."""

    def soft(self):
        policy = structs.replace(PRESETS["opal"], soft=0.5)
        return memory(policy, window=10_000, summarise=give_up)

    @pytest.mark.feature("N4")
    def test_a_summary_written_ahead_is_used_when_the_window_is_full(self):
        talk = self.soft()
        while talk.ahead() is None:
            talk.add(*agent_turn(len(talk.folded.branch)))
        request = talk.ahead()
        talk.prepare(Summary("the story so far", request.first, request.last, 16, "model", "cumulative"))
        assert talk.ahead() is None
        while not talk.receipts:
            talk.add(*agent_turn(len(talk.folded.branch)), user("and now?"))
            window = talk.context()
            if not talk.receipts:
                talk.add(assistant("well"))
        assert "the story so far" in window.summaries[0].text
        assert window.messages == talk.folded.branch.messages(request.last)

    def test_one_that_is_not_enough_any_more_is_not_used(self):
        talk = self.soft()
        while talk.ahead() is None:
            talk.add(*agent_turn(len(talk.folded.branch)))
        request = talk.ahead()
        talk.prepare(Summary("the story so far", request.first, request.last, 16, "model", "cumulative"))
        talk.add(user("look " * 2_500))
        window = talk.context()
        assert size_of(window) <= 10_000
        assert "the story so far" not in "".join(message.text for message in window.summaries)


def test_compactions_that_gain_nothing_are_not_tried_for_ever():
    tries = []

    def useless(request, folded, frame):
        tries.append(request)
        return Summary("x" * 9_000, request.first, request.last, 9_000, "model", "cumulative")

    talk = memory("llms", window=10_000, summarise=useless)
    for number in range(26):
        talk.add(*agent_turn(number))
        talk.add(user("and?"))
        talk.context()
        talk.add(assistant("well"))
    assert 0 < len(tries) <= 4
    assert not any(receipt.summary for receipt in talk.receipts)


def test_what_was_undone_is_not_done_again_at_once():
    policy = structs.replace(PRESETS["refold"], target=Share(0.4, "effective"))
    talk = memory(policy, window=40_000, summarise=summarise)
    talk.frame = structs.replace(talk.frame, prices=Prices(3.0, 15.0, 1.5, 3.75))
    number = 0
    while not any(receipt.summary for receipt in talk.receipts):
        talk.add(*agent_turn(number)[:3])
        talk.context()
        if any(receipt.summary for receipt in talk.receipts):
            break
        talk.add(agent_turn(number)[3])
        number += 1
    folded = size_of(talk.context())
    assert talk.undo()
    assert size_of(talk.context()) > folded
    assert size_of(talk.compact()) < folded * 1.5


def test_cache_marks_are_edits_of_the_call():
    talk = memory("refold", window=10_000, dialect=DIALECTS["anthropic"])
    talk.add(user("go"))
    talk.context()
    assert [edit.stage for edit in talk.window_edits] == ["cache"]
    off = memory(
        structs.replace(PRESETS["refold"], enabled=False), window=10_000, dialect=DIALECTS["anthropic"]
    )
    off.add(user("go"))
    off.context()
    assert off.window_edits == ()


def test_instructions_given_on_the_way_stay():
    talk = memory("refold", window=4_000, summarise=summarise)
    talk.add(*agent_turn(0), Message("developer", (Text("From now on answer in French."),)))
    for number in range(1, 30):
        talk.add(*agent_turn(number))
    talk.add(user("and now?"))
    window = talk.context()
    assert any(receipt.summary for receipt in talk.receipts)
    assert "From now on answer in French." in [message.text for message in window.messages]


def test_a_summary_that_had_to_be_cut_can_be_opened_by_its_handle():
    answers = iter(["story line of old\n" * 60, None, None, None, None, None])

    def once(request, folded, frame):
        text = next(answers)
        return text and Summary(text, request.first, request.last, len(text), "model", "cumulative")

    talk = memory("opal", window=3_000, summarise=once)
    said = ""
    for number in range(40):
        talk.add(*agent_turn(number)[:1])
        said = "".join(message.text for message in talk.context().summaries)
        if "[… #s0 …]" in said:
            break
        talk.add(*agent_turn(number)[1:])
    assert "[… #s0 …]" in said
    assert talk.recall("#s0").own_text == "story line of old\n" * 60


def test_a_request_that_brings_messages_is_planned_once(monkeypatch):
    talk, planned = memory("refold", window=100_000), []
    terms = actions.RequestTerms(talk.state.frame.fixed, talk.state.given, talk.state.frame.policy)
    talk.take(actions.take_request(talk.state, [user("hello")], terms))

    def note(folded, frame, now):
        planned.append(now.moment)
        return plan(folded, frame, now)

    monkeypatch.setattr(actions, "plan", note)
    talk.take(actions.take_request(talk.state, [assistant("yes?"), user("and now?")], terms))
    assert planned == ["before_call"]
