"""A conversation in a store: read again by another process it says the same to the byte, and goes on the same way."""

from itertools import count

import pytest

from refold.core.presets import PRESETS
from refold.engine.actions import Outcome
from refold.engine.journal import Journal
from refold.model.dialect import DIALECTS
from refold.model.message import system, user
from refold.model.summary import Summary
from refold.model.tokens import Budget
from refold.model.window import FixedFields
from refold.ports import records
from refold.ports.records import Compaction, Head, Session, StoredSummary
from refold.replay import ReferenceCounter
from refold.stores.memory import MemoryStore
from refold.wire.request import encode_message
from tests.engine.action_player import Played
from tests.engine.conversations import agent_turn

COUNTER = ReferenceCounter()


def memory(preset="refold", window=4_000, dialect="chat"):
    rules = (system("Be brief."),) if dialect != "anthropic" else ()
    return Played(FixedFields(DIALECTS[dialect], rules), Budget(window=window), PRESETS[preset], COUNTER)


async def begun(store=None, dialect="chat", name="c"):
    store, ids = store or MemoryStore(), count()
    head = Head(owner="o", conversation=name, branch=f"{name}-b", format=dialect, session=f"{name}-s")
    session = Session(id=head.session, branch=head.branch, first=0)
    seen = await store.create(head, session)
    return Journal(store, seen, session, clock=lambda: 0.0, new_id=lambda: f"id{next(ids)}")


async def save(journal, talk):
    """Commit all that was done since the last time."""
    draft = journal.draft(Outcome(state=talk.state, changes=tuple(talk.changes)))
    if draft is not None:
        await journal.commit_draft(draft)
        talk.state = draft.state
    talk.changes.clear()


async def opened(journal, talk):
    """Another process: nothing but the store is shared."""
    ids = count(1_000_000)
    other = Journal(
        journal.store, journal.head, journal.session, clock=lambda: 0.0, new_id=lambda: f"id{next(ids)}"
    )
    fresh = Played(talk.frame.fixed, talk.frame.budget, talk.frame.policy, COUNTER)
    fresh.state = await other.load(fresh.state)
    return other, fresh


def sent(talk):
    window, dialect = talk.context(), talk.frame.fixed.dialect
    return [
        bytes(encode_message(each, dialect)) for each in (*window.system, *window.summaries, *window.messages)
    ]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_another_process_sends_the_same_bytes_at_any_time(preset, dialect):
    journal, talk = await begun(dialect=dialect), memory(preset, dialect=dialect)
    for number in range(30):
        for message in agent_turn(number, size=2_000 if number % 7 == 3 else 300):
            talk.add(message)
        talk.add(user("and now?"))
        before = sent(talk)
        await save(journal, talk)
        _, fresh = await opened(journal, talk)
        assert sent(fresh) == before
        assert fresh.folded.size == talk.folded.size
        assert fresh.folded.ledger == talk.folded.ledger
        assert fresh.folded.whole == talk.folded.whole
        assert fresh.recall("#m0") if fresh.folded.origin == 0 else fresh.folded.origin > 0
    assert talk.folded.summaries


async def test_two_changes_of_one_batch_have_ids_of_their_own():
    """What was undone is put back as one batch, and two of its changes may be the same work."""
    journal = await begun()
    made = Compaction(id="one", branch="c-b", kind="reduce", base="c-s", cut=4, recipe="opal")
    change = records.InstalledCompaction(
        made, StoredSummary(id="one", summary=Summary("x", 0, 4, 1, "digest", "own"), at=0.0)
    )
    again = await journal.renamed(change, change)
    third = await journal.renamed(change, change, again)
    ids = [one.compaction.id for one in (change, again, third)]
    assert len({*ids}) == 3
    assert [one.written.id for one in (change, again, third)] == ids
