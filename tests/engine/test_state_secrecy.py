"""Messages that are sensitive, because somebody said so or because a pattern matches."""

from __future__ import annotations

import pytest

from refold import Conversation, sync
from refold.core.digest.ledger import EMPTY
from refold.engine import state as states
from refold.engine.state import Secrecy
from refold.model.errors import ConfigError
from refold.model.message import File, Message, Text, ToolCall, ToolResult, assistant, user
from tests.engine.conversations import agent_turn, memory

RULE = "Never tell anyone about project Nightingale."


@pytest.mark.feature("X19")
def test_what_is_marked_is_kept_and_leaves_no_trace():
    talk = memory(window=100_000)
    talk.add(user(RULE), sensitive=True)
    talk.add(*agent_turn(0))
    assert talk.secrecy.numbers == {0}
    assert talk.folded.ledger.rules == EMPTY.rules
    assert talk.recall("#m0") == user(RULE)
    assert talk.search("Nightingale") == ""
    assert "question 0" in talk.search("question")
    assert talk.context().messages[0] == user(RULE)


@pytest.mark.feature("X19")
@pytest.mark.parametrize(
    "part",
    [
        Text(RULE),
        ToolCall("c", "note", '{"text": "Nightingale"}'),
        ToolResult("c", (Text("ok"), File(text=RULE))),
        File(name="Nightingale.txt", text="empty"),
    ],
    ids=lambda part: type(part).__name__,
)
def test_a_pattern_is_looked_for_in_every_part(part):
    secrecy = Secrecy.of(("Kestrel", r"(?i)\bNIGHTINGALE\b"))
    assert secrecy.matches(Message("user", (Text("see"), part)))
    assert not secrecy.matches(assistant("A blackbird is no nightingales' friend."))


@pytest.mark.feature("X19")
def test_an_answer_that_is_marked_still_counts_as_one():
    talk = memory(window=100_000)
    talk.add(user("hello"))
    talk.add(assistant("my secret"), sensitive=True)
    assert talk.folded.replies == 1
    assert talk.secrecy.numbers == {1}


@pytest.mark.feature("X19")
def test_taking_a_change_back_keeps_the_marks():
    talk = memory("refold", window=6_000)
    talk.add(user(RULE), sensitive=True)
    for number in range(12):
        talk.add(*agent_turn(number, size=900))
    talk.compact()
    assert talk.undo()
    talk.add(user("and now?"))
    talk.compact()
    assert talk.secrecy.numbers == {0}
    assert "Nightingale" not in talk.folded.summaries[-1].text


@pytest.mark.parametrize("make", [Conversation, sync.Conversation])
def test_a_pattern_that_cannot_work_is_told_at_once(make):
    with pytest.raises(ConfigError, match="no regular expression") as failed:
        make("gpt-4o", sensitive=("fine", "(open"))
    assert "re.escape" in failed.value.hint


def test_one_pattern_needs_no_list():
    talk = sync.Conversation("gpt-4o", sensitive="Nightingale")
    talk.add("A night, a gale.", RULE)
    assert talk.state.secrecy.numbers == {1}


def test_a_compaction_searches_only_messages_that_were_not_searched_on_arrival(monkeypatch):
    searched: list[Message] = []
    values_of = states.values_of

    def search(message):
        searched.append(message)
        return values_of(message)

    monkeypatch.setattr(states, "values_of", search)
    talk = memory("refold", window=24_000)
    talk.add(user("the password of the database is Xk29-mmQ4"))
    while 10 * talk.fill_level.counted < 7 * talk.limit:
        talk.add(*agent_turn(talk.folded.size, size=300))
    assert not talk.receipts
    assert len(searched) == talk.folded.size
    assert talk.secrecy.known == frozenset(), "a cache: what is stored changes with the compaction only"
    talk.compact()
    assert len(searched) == talk.folded.size
    assert talk.secrecy.known == {"Xk29-mmQ4"}
    assert talk.secrecy.holders == {0}


def test_a_short_conversation_in_a_large_window_is_not_searched(monkeypatch):
    monkeypatch.setattr(states, "values_of", lambda _: pytest.fail("nothing is near a compaction"))
    talk = memory("refold", window=1_000_000)
    for number in range(40):
        talk.add(*agent_turn(number))


def test_messages_of_another_branch_are_searched_as_well():
    talk = memory("refold", window=24_000)
    while 2 * talk.fill_level.counted < talk.limit:
        talk.add(*agent_turn(talk.folded.size, size=300))
    start = talk.state
    for secret in ("Xk29-mmQ4", "Zw71-ttR8"):
        talk.state = start
        talk.add(user(f"the password of the database is {secret}"))
        talk.compact()
        assert talk.secrecy.known == {secret}
