"""Whatever is done to a context is told: once, with before and after, and with the reason."""

from __future__ import annotations

import logging

import msgspec
import pytest

from refold import sync
from refold.core.presets import PRESETS
from refold.core.stages import Prune
from refold.engine.events import (
    NO_SUMMARY,
    NOTHING,
    CompactionEnd,
    Event,
    EventQueue,
    Pruned,
    Recovered,
    Undone,
    sized,
)
from refold.model.errors import DoesNotFit, RecoverySpent
from refold.model.message import Message, ToolCall, assistant, tool, user
from refold.model.summary import Summary
from tests.core.preset_player import ask, changed, chat, estimated, work
from tests.engine.conversations import agent_turn, give_up
from tests.engine.listener import Heard, heard_from
from tests.policies import ARRIVING

TOO_LONG = {"error": {"code": "context_length_exceeded", "message": "too long"}}
MOMENTS = {
    "refold": "before_call",
    "lis": "after_call",
    "opal": "turn_start",
    "llms": "before_call",
    "picoclaw": "after_call",
    "librechat": "before_call",
}
every_preset = pytest.mark.parametrize("preset", PRESETS)


def play(talk, turns: int = 24) -> None:
    """Turns with a tool, each asked for as a client does."""
    for number in range(turns):
        said, call, result, answer = agent_turn(number, size=900)
        talk.add(said)
        talk.context()
        talk.add(call, result)
        talk.context()
        talk.add(answer)


@pytest.mark.feature("O3")
@every_preset
def test_every_preset_tells_when_it_compacts(preset):
    talk = estimated(preset, window=4_000)
    heard = heard_from(talk)
    play(talk)

    heard.check()
    ends = heard.only(CompactionEnd)
    assert ends
    assert {(end.path, end.moment, end.outcome, end.author) for end in ends} == {
        ("automatic", MOMENTS[preset], "installed", "model")
    }
    assert all(end.after.tokens < end.before.tokens and end.covered for end in ends)
    assert all(end.after.regions.summary for end in ends)
    assert len(ends) == sum(receipt.decision == "summarise" for receipt in talk.receipts)


@pytest.mark.feature("O3")
@every_preset
def test_every_change_is_told_once_and_no_word_of_what_was_said(preset):
    talk = estimated(preset, window=4_000)
    heard = heard_from(talk)
    play(talk)

    installed = [end for end in heard.only(CompactionEnd) if end.outcome == "installed"]
    assert len(installed) + len(heard.only(Pruned)) == len(talk.receipts)
    said = msgspec.json.encode(list(heard)).decode()
    assert not [
        word for word in ("question", "answer", "file_", "line of code", "What happened") if word in said
    ]


@pytest.mark.feature("O3")
@every_preset
def test_asked_for_or_refused_it_is_told_as_well(preset):
    talk = estimated(preset, window=20_000)
    heard = heard_from(talk)
    for _ in range(8):
        ask(talk, "x" * 4_000)
    talk.add(user("and now?"))
    heard.clear()
    talk.compact()
    assert (heard.end.path, heard.end.moment, heard.end.outcome) == ("manual", "manual", "installed")

    play(talk, 8)
    talk.add(user("and then?"))
    talk.context()
    heard.clear()
    talk.recover(400, TOO_LONG)
    end = heard.end
    assert (end.path, end.moment, end.outcome) == ("overflow", "overflow", "installed")
    assert "refused" in end.reason
    assert end.after.tokens < end.before.tokens


@pytest.mark.feature("O3")
def test_a_refusal_that_was_got_over_is_told_when_the_provider_has_answered():
    talk = estimated("opal", window=20_000)
    heard = heard_from(talk)
    play(talk, 8)
    talk.add(user("and now?"))
    talk.context()
    for _ in range(2):
        talk.recover(400, TOO_LONG)
    assert not heard.only(Recovered)
    talk.add(assistant("at last"))

    (recovered,) = heard.only(Recovered)
    assert (recovered.attempts, recovered.stated) == (2, None)
    assert recovered.size == heard.only(CompactionEnd)[-1].after
    with pytest.raises(RecoverySpent):
        talk.recover(400, {"error": {"message": "nonsense"}})
    heard.check()
    assert len(heard.only(CompactionEnd)) == 2


@pytest.mark.feature("O3")
def test_where_no_summary_can_be_had_it_is_skipped():
    talk = estimated("llms", window=4_000, summarise=give_up)
    heard = heard_from(talk)
    while not heard:
        ask(talk, "x" * 400)

    end = heard.end
    assert (end.outcome, end.problem, end.author) == ("skipped", NO_SUMMARY, "")
    assert end.after == end.before
    assert not talk.receipts


def test_stages_that_did_something_on_the_way_are_told_apart():
    policy = changed("llms", stages=(Prune(threshold=100, keep=0),), on_failure="history")
    talk = estimated(policy, window=4_000, summarise=give_up)
    heard = heard_from(talk)
    while not heard:
        work(talk, "line of code\n" * 50)

    heard.check()
    _, end, pruned, *_ = heard
    assert isinstance(end, CompactionEnd)
    assert isinstance(pruned, Pruned)
    assert (end.outcome, end.after) == ("skipped", pruned.after)
    assert [one.stage for one in pruned.reductions] == ["prune"]


def test_a_summary_that_gains_nothing_is_skipped_with_its_reason():
    def long(request, folded, frame):
        return Summary("word " * 9_000, request.first, request.last, 9_000, "model", frame.policy.scope)

    talk = estimated("opal", window=4_000, summarise=long)
    heard = heard_from(talk)
    while not heard:
        ask(talk, "x" * 400)

    assert heard.end.outcome == "skipped"
    assert heard.end.problem.startswith("the summary was not used: ")


def test_where_there_is_nothing_to_take_out_that_is_told():
    talk = estimated("opal")
    heard = heard_from(talk)
    talk.add(user("hello"))
    talk.compact()

    assert (heard.end.path, heard.end.outcome, heard.end.problem) == ("manual", "skipped", NOTHING)


def test_what_cannot_fit_is_told_as_failed():
    talk = chat("opal", window=50)
    heard = heard_from(talk)
    talk.add(user("a question that is far longer than fifty characters can ever hold, whatever one does"))
    with pytest.raises(DoesNotFit) as caught:
        talk.context()

    assert heard.kinds == ["compaction_start", "compaction_end"] * (len(heard) // 2)
    assert heard.only(CompactionEnd)[-1].problem == caught.value.message
    assert {end.outcome for end in heard.only(CompactionEnd)} == {"failed"}


@pytest.mark.feature("O3")
def test_messages_that_are_dropped_without_a_summary_are_a_compaction():
    talk = estimated("picoclaw", window=10_000, max_output=400)
    said = talk.folded.extend([user("q" * 5_984), assistant("r" * 384)] * 6)  # before anybody looked
    talk.set(folded=said)
    heard = heard_from(talk)
    talk.add(user("and now?"))
    talk.context()

    end = heard.end
    assert (end.path, end.moment, end.outcome, end.author) == (
        *("automatic", "before_call", "installed"),
        "mechanical",  # the note that says which messages were dropped
    )
    assert [one.stage for one in end.reductions] == ["drop_half"]
    assert end.after.tokens < end.before.tokens


@pytest.mark.feature("O3", "L15")
def test_pruned_tool_output_is_told_with_how_many_results():
    talk = estimated("lis", window=200_000)
    heard = heard_from(talk)
    while not heard:
        work(talk, "line of code\n" * 800)

    (pruned,) = heard
    (reduction,) = pruned.reductions
    assert isinstance(pruned, Pruned)
    assert (pruned.path, pruned.moment, reduction.stage) == ("automatic", "after_call", "prune")
    assert reduction.messages == reduction.results == len(talk.receipts[-1].edits)
    assert pruned.before.tokens - pruned.after.tokens == reduction.before - reduction.after
    assert pruned.before.regions.tool_results > pruned.after.regions.tool_results
    assert "tokens of tool results" in pruned.reason


@pytest.mark.feature("O3")
def test_what_is_cut_as_it_arrives_is_told():
    talk = estimated(ARRIVING, window=8_000)
    heard = heard_from(talk)
    call = ToolCall("call-1", "read_file", "{}")
    talk.add(user("look"), Message("assistant", (call,)), tool("call-1", "line of code\n" * 2_000))

    (pruned,) = heard
    assert isinstance(pruned, Pruned)
    (reduction,) = pruned.reductions
    assert (pruned.path, reduction.results, pruned.reason) == ("arrival", 1, "larger than its share")
    assert pruned.after.tokens == talk.measurement.content.tokens
    assert pruned.before.tokens - pruned.after.tokens == reduction.before - reduction.after > 0


def test_what_had_to_be_mended_is_told():
    talk = estimated("opal")
    heard = heard_from(talk)
    talk.add(user("look"), assistant("I did"), tool("call-9", "a result without its call"), user("and now?"))
    talk.context()

    (pruned,) = heard
    assert [one.stage for one in pruned.reductions] == ["mend"]
    assert pruned.before.tokens > pruned.after.tokens


def test_a_call_that_waits_is_left_out_of_a_request_and_that_is_told_once():
    talk = estimated("opal")
    heard = heard_from(talk)
    talk.add(user("look"), Message("assistant", (ToolCall("call-1", "read_file", "{}"),)), user("never mind"))
    talk.context()
    told = len(heard)
    talk.context()

    assert told == len(heard) >= 1
    assert heard.kinds[-1] == "pruned"


@pytest.mark.feature("O3")
def test_what_is_taken_back_is_told():
    talk = estimated("opal", window=20_000)
    heard = heard_from(talk)
    play(talk, 8)
    talk.add(user("and now?"))
    talk.compact()
    compacted = heard.end
    heard.clear()
    assert talk.undo()
    assert not talk.undo()

    (undone,) = heard
    assert isinstance(undone, Undone)
    assert (undone.decision, undone.reason) == ("summarise", "asked for")
    assert (undone.before, undone.after) == (compacted.after, compacted.before)


def test_a_listener_that_fails_is_told_the_next_event_too(caplog):
    heard = Heard()

    def listen(event: Event) -> None:
        heard(event)
        raise ValueError("secret words")

    talk = estimated("opal", window=4_000)
    play(talk)
    queue = EventQueue(listen)
    with caplog.at_level(logging.WARNING, "refold"):
        queue.put(talk.events)
        queue.deliver()

    assert heard.kinds == [event.kind for event in talk.events] != []
    assert "a listener failed on compaction_start: ValueError" in caplog.text
    assert "secret words" not in caplog.text


def test_a_sync_listener_that_calls_its_conversation_finds_the_remedy_in_the_log(caplog):
    talk = sync.Conversation(window=2_000, max_output=100, on_event=lambda _: talk.status())
    with caplog.at_level(logging.WARNING, "refold"):
        for number in range(40):
            talk.add(f"question {number}, " + "please look " * 20, {"role": "assistant", "content": "done"})
        talk.add("and now?")
        talk.context()

    assert (
        "a listener failed on compaction_start: ConfigError: a listener of `refold.sync` cannot wait"
        in caplog.text
    )
    assert "hint: put the event into a queue" in caplog.text


def test_a_listener_that_puts_an_event_hears_it_after_those_that_waited():
    heard, order = Heard(), []

    def listen(event: Event) -> None:
        order.append(event.kind)
        if len(order) == 1:
            queue.put([heard[-1]])
            queue.deliver()

    talk = estimated("opal", window=4_000)
    play(talk)
    heard.extend(talk.events[:2])
    queue = EventQueue(listen)
    queue.put(heard)
    queue.deliver()

    assert order == [heard[0].kind, heard[1].kind, heard[1].kind]


def test_a_size_says_where_it_comes_from_and_is_never_full_too_early():
    talk = estimated("opal", window=1_001)
    empty = sized(talk.state)
    assert (empty.source, empty.regions.history) == (talk.state.counter.source, 0)

    limit, system = talk.state.limit, empty.regions.system
    talk.add(user("x" * 4 * (limit - system - 5)))
    size = sized(talk.state)
    assert size.tokens == limit - 1
    assert size.percent == 99
    assert size.regions.system == system
