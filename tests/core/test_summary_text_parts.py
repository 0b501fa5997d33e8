"""The parts of a summary: checks, ledger, sections, and messages shortened with their handles."""

import json

import pytest

from refold.core.digest.extract import VisibleText, digest
from refold.core.digest.facts import Facts, index_message
from refold.core.digest.ledger import merge
from refold.core.digest.shorten import shorten
from refold.core.summary_checks import check_summary, passes
from refold.core.summary_text import KeptText, mechanical, sections
from refold.model.message import Message, ToolCall, assistant, tool, user
from refold.replay import ReferenceCounter
from tests.core.digest.ledgers import ledger_of
from tests.engine.conversations import agent_turn

COUNTER = ReferenceCounter()


def call(name: str, **arguments: str) -> Message:
    return assistant("", ToolCall("x", name, json.dumps(arguments)))


def indexed(messages) -> Facts:
    facts = Facts()
    for seq, message in enumerate(messages):
        facts = index_message(facts, message, seq)
    return facts


@pytest.mark.parametrize(
    "text, tokens, failed",
    [
        ("It was decided to use PostgreSQL.", 9, set()),
        ("", 0, {"says_something", "keeps_facts"}),
        ("## Goal\n\n## Progress\n", 5, {"says_something", "keeps_facts"}),
        ("PostgreSQL, at length", 100, {"is_smaller"}),
        ("## Goal\nPostgreSQL\n## Goal\nagain", 9, {"headings_once"}),
        ("It was decided to use a database.", 9, {"keeps_facts"}),
    ],
)
def test_every_way_a_summary_fails_has_a_name(text, tokens, failed):
    verdicts = check_summary(text, tokens=tokens, source_tokens=100, must_keep=["PostgreSQL"])
    assert {verdict.check for verdict in verdicts if not verdict.passed} == failed
    assert passes(verdicts) is not failed or not failed
    assert all(verdict.reason for verdict in verdicts if not verdict.passed)


def test_files_add_up_over_cycles_and_a_modified_one_is_no_longer_read():
    one = ledger_of([call("read_file", path="a.py"), call("read_file", path="b.py"), call("read_file")])
    two = merge(one, ledger_of([call("edit_file", path="a.py"), user("read_file path=z.py")]))
    three = merge(two, ledger_of([call("write_file", path="c.py"), call("read_file", path="a.py")]))
    assert (three.read, three.modified) == (("b.py",), ("a.py", "c.py"))


def test_rules_are_kept_as_the_user_wrote_them():
    ledger = ledger_of([user("Hello. Never touch the API. It is sunny."), assistant("You must never sleep.")])
    assert ledger.rules == ("Never touch the API.",)


def test_sections_stay_in_their_room_and_say_nothing_twice():
    ledger = ledger_of(
        [user("Never touch the API."), *(call("read_file", path=f"src/{n}.py") for n in range(99))]
    )
    text = sections(ledger, 2_000)
    assert len(text) < 2_000
    assert "- Never touch the API." in text
    assert "Never touch" not in sections(ledger, 2_000, beside=KeptText("Never touch the API."))


def test_the_mechanical_summary_keeps_the_previous_one_and_repeats_no_list():
    first = mechanical(
        [user("a"), assistant("b")], ledger_of([call("read_file", path="a.py")]), previous="Earlier: x."
    )
    assert first.startswith("[Compacted messages: 1 user, 1 assistant]")
    second = mechanical([user("c")], ledger_of([call("edit_file", path="a.py")]), previous=first)
    assert "Earlier: x." in second
    assert (second.count("a.py"), second.count("Compacted messages")) == (1, 1)


def test_a_digest_stays_in_its_budget_and_is_the_same_every_time():
    messages = [message for number in range(20) for message in agent_turn(number)]
    facts = indexed(messages)
    made = [digest(facts, first=0, last=60, budget=300, window=2_000, counter=COUNTER) for _ in range(2)]
    assert made[0] == made[1]
    assert 0 < COUNTER.text(made[0].text) <= 300


def test_what_is_in_sight_is_not_quoted():
    facts = indexed([user("the ticket is OPS-48213"), user("the release is v7f3a9c")])
    shown = VisibleText(texts=("the ticket is OPS-48213",))
    text = digest(facts, first=0, last=2, budget=200, window=500, counter=COUNTER, sight=shown).text
    assert "v7f3a9c" in text
    assert "OPS-48213" not in text


@pytest.mark.parametrize(
    "message",
    [
        tool("x", "\n".join(f"line {number} of the log" for number in range(400))),
        user("多语言文本 " * 800),
        assistant("", ToolCall("x", "write", json.dumps({"path": "a.py", "text": "word " * 900}))),
    ],
    ids=["result", "cjk", "arguments"],
)
def test_a_huge_message_is_shortened_with_its_handle_and_stays_what_it_was(message):
    facts = indexed([message])
    short = shorten(facts, message, 0, limit=200, window=4_000, counter=COUNTER)
    assert COUNTER.message(short) <= 260
    said = short.text + "".join(result.text for result in short.results)
    said += "".join(call.arguments for call in short.calls)
    assert "#m0" in said
    assert [call.name for call in short.calls] == [call.name for call in message.calls]
    assert all(isinstance(json.loads(call.arguments), dict) for call in short.calls)
    assert shorten(facts, user("small"), 0, limit=200, window=4_000, counter=COUNTER) == user("small")
