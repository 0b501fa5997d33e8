"""What is shown outlives the process: written down and read again, it is the same to the byte."""

import msgspec
import pytest

from refold.core.extractive_summary import summarise
from refold.core.fold import FoldedBranch
from refold.core.presets import PRESETS
from refold.core.view import View
from refold.engine import journal
from refold.engine.journal import Original
from refold.model.errors import StoreError
from refold.model.message import user
from refold.wire.request import decode_message, encode_message
from tests.engine.conversations import agent_turn, memory


def talk_of(preset, turns):
    talk = memory(preset)
    for number in range(turns):
        talk.add(*agent_turn(number, size=300))
    talk.add(user("and now?"))
    talk.context()
    return talk


def written(talk):
    dialect = talk.frame.fixed.dialect
    return journal.write_snapshot(talk.folded, lambda message, _=None: encode_message(message, dialect))


def read(talk, kept, first=None, pinned=frozenset()):
    folded, dialect = talk.folded, talk.frame.fixed.dialect
    first = journal.origin_of(kept) if first is None else first
    messages = [folded.original(number).message for number in range(first, folded.size)]
    held = [Original(number, message, message) for number, message in enumerate(messages, first)]
    empty = View(dialect, folded.shown.counter)
    return journal.read_snapshot(
        kept, held, FoldedBranch.of(empty), lambda raw: decode_message(raw, dialect), pinned
    )


@pytest.mark.parametrize("turns", [1, 6, 25])
@pytest.mark.parametrize("preset", PRESETS)
def test_what_was_shown_is_shown_again(preset, turns):
    talk = talk_of(preset, turns)
    before = talk.context()
    folded = read(talk, written(talk), pinned=frozenset({3}))
    assert (folded.size, folded.whole, folded.replies) == (
        talk.folded.size,
        talk.folded.whole,
        talk.folded.replies,
    )
    assert folded.ledger == talk.folded.ledger
    assert folded.pinned == {3}
    talk.restore(folded)
    after = talk.context()
    assert [message.bare() for message in after.messages] == [message.bare() for message in before.messages]
    assert after.summaries == before.summaries


def test_only_what_came_after_the_last_summary_is_needed():
    talk = talk_of("opal", 40)
    origin = journal.origin_of(written(talk))
    assert origin == talk.folded.summaries[-1].last
    assert len(read(talk, written(talk)).branch) == talk.folded.size - origin


def test_messages_that_do_not_follow_it_are_refused():
    talk = talk_of("opal", 40)
    with pytest.raises(StoreError, match="the snapshot needs messages"):
        read(talk, written(talk), first=0)


@pytest.mark.parametrize("kept", [b"", b"\xff", msgspec.msgpack.encode({"version": 1})])
def test_what_cannot_be_read_is_said_clearly(kept):
    with pytest.raises(StoreError, match="cannot be read"):
        journal.origin_of(kept)


def test_what_a_later_version_wrote_is_not_guessed_at():
    state = msgspec.msgpack.decode(written(talk_of("opal", 1)))
    with pytest.raises(StoreError, match="another version"):
        journal.origin_of(msgspec.msgpack.encode({**state, "version": 99}))


LONG = "Rename every helper in src/f1.py. " * 4_000


def test_a_long_task_is_not_stored_once_more():
    talk = memory("refold", window=10**6)
    talk.add(user(LONG), *agent_turn(1)[1:])
    kept = written(talk)
    assert len(kept) < len(LONG) / 10
    assert read(talk, kept).task == talk.folded.task
    assert [one.message.text for one in read(talk, kept).task] == [LONG]


def test_a_long_task_whose_original_is_not_loaded_is_stored():
    talk = memory("opal", window=10**6)
    talk.add(user(LONG))
    talk.frame = memory("opal").frame
    for number in range(40):
        talk.add(*agent_turn(number, size=300))
    talk.context()
    kept = written(talk)
    assert journal.origin_of(kept) > 0
    assert [one.message.text for one in read(talk, kept).task] == [LONG, talk.folded.task[1].message.text]


def history(preset, *, at_once):
    """A conversation far below every threshold, whose window then gets much smaller."""
    talk = memory(preset, window=10**6, summarise=summarise)
    add = talk.add_at_once if at_once else talk.add
    add(*(message for number in range(40) for message in agent_turn(number)))
    talk.frame = memory(preset).frame
    return talk


@pytest.mark.parametrize("preset", ["refold", "opal"])
def test_of_a_history_that_came_at_once_nothing_is_lost_before_it_is_read(preset):
    heard, told = history(preset, at_once=False), history(preset, at_once=True)
    told.restore(read(told, written(told)))
    assert told.folded.facts.shared.waiting
    window, other = heard.compact(), told.compact()
    assert window.summaries
    assert (other.summaries, other.messages) == (window.summaries, window.messages)
    assert told.search("src/f7.py") == heard.search("src/f7.py") != ""
    again = read(told, written(told))
    assert [piece.text for piece in again.facts.log.pieces] == [
        piece.text for piece in read(heard, written(heard)).facts.log.pieces
    ]
