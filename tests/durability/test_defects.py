"""The tests of the tests: known defects are put into the engine and the store one at a time, and each must be found.

Most of them have lost somebody's messages somewhere. What finds them is the checker that runs after every kill and for every
user who asks the doctor, or the suite that all stores have to pass.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from hashlib import sha256

import apsw
import pytest
from msgspec import structs

from refold.core import cut
from refold.engine import engine, journal
from refold.engine.conversation import Conversation
from refold.engine.state import State
from refold.engine.status import Status, status_of
from refold.engine.summary_jobs import LeasedJobs, SummaryJobs
from refold.engine.summary_source import SummarySource
from refold.model.errors import RefoldError
from refold.ports.records import Batch, Head
from refold.stores.memory import MemoryStore
from refold.stores.sql import commit, rows
from refold.stores.sql.queries import Transaction, load
from refold.stores.sql.store import SqlStore
from refold.stores.sqlite.store import SqliteStore
from refold.stores.sqlite.writer import Job, JobOutcome, attempt
from tests.contract import (
    test_store_commit,
    test_store_compactions,
    test_store_owners,
    test_store_sessions,
    test_store_work,
)
from tests.contract.talks import summaries_of
from tests.durability import test_arrivals, test_stale, test_unknown_outcome
from tests.durability.life import Life, PowerFailure
from tests.engine import test_summary_jobs as test_durable_work
from tests.stores.sqlite import test_together

Inject = Callable[[pytest.MonkeyPatch, SqliteStore], None]
Contract = Callable[[SqliteStore], Awaitable[None]]


@pytest.fixture
async def sqlite(tmp_path):
    made = await SqliteStore.open(tmp_path / "life.db")
    yield made
    await made.close()


def changed(name: str, old: str, new: str) -> Inject:
    """Another text in one statement."""

    def inject(patch: pytest.MonkeyPatch, store: SqliteStore) -> None:
        statement = load("sqlite")[name]
        assert old in statement
        patch.setitem(load("sqlite"), name, statement.replace(old, new))

    return inject


def script(text: str) -> Inject:
    """Another schema."""
    return lambda patch, store: store._file._writer.connection.execute(text) and None


def numbers_from_a_sequence(patch: pytest.MonkeyPatch, store: SqliteStore) -> None:
    """The number of a message is that of its row in the table, whoever else's rows are there."""
    script("DROP TRIGGER message_follows")(patch, store)
    number = "0 * :seq + (SELECT count(*) FROM message)"
    for name in ("add_message", "append_message"):
        changed(name, "(ordinal << 32) + :seq", f"(ordinal << 32) + {number}")(patch, store)


def switch_in_two_commits(patch: pytest.MonkeyPatch, store: SqliteStore) -> None:
    """The session is closed, and the power fails before the next one is opened."""
    commit = SqliteStore.commit

    def close(head: Head, first: int) -> Transaction[None]:
        closing = {"owner": head.owner, "id": head.session, "last": first, "at": 0.0, "summary": ""}
        yield "close_session", closing

    async def torn(self: SqliteStore, seen: Head, batch: Batch) -> Head:
        opened = [change.opens for change in batch.changes if change.opens]
        if not opened:
            return await commit(self, seen, batch)
        await self._write(close, seen, opened[0].first)
        raise PowerFailure

    patch.setattr(SqliteStore, "commit", torn)


def tail_from_a_snapshot(patch: pytest.MonkeyPatch, store: SqliteStore) -> None:
    """What was said since the last change is not read again."""
    patch.setattr(journal, "append_originals", lambda folded, originals: folded)


async def _trusting(self: Conversation, **_: object) -> State:
    """Look where the branch is, and believe that the state is there too."""
    self._journal.head = await self._journal.current_head() or self._journal.head
    return self._jobs.with_prepared(self._state)


def state_is_not_loaded_again(patch: pytest.MonkeyPatch, store: SqliteStore) -> None:
    patch.setattr(Conversation, "_current", _trusting)


def reply_is_not_stored_before_use(patch: pytest.MonkeyPatch, store: SqliteStore) -> None:
    async def careless(*_: object) -> bool:
        return True

    patch.setattr(SqlStore, "reply", careless)


def cut_in_the_middle_of_a_pair(patch: pytest.MonkeyPatch, store: SqliteStore) -> None:
    patch.setattr(cut, "pair_safe", lambda view, at: min(at, len(view)))


def message_changed_in_place(patch: pytest.MonkeyPatch, store: SqliteStore) -> None:
    """Redacted after the fact, say."""
    append = commit._append

    def appended(head: Head, *given: object) -> Transaction[None]:
        yield from append(head, *given)  # type: ignore[arg-type]
        yield "redact", {"owner": head.owner}

    connection = store._file._writer.connection
    connection.execute("DROP TRIGGER message_never_changes")
    text = "UPDATE message SET body = CAST(replace(CAST(body AS TEXT), 'question', 'QUESTION') AS BLOB) WHERE seq = 0 AND :owner <> ''"
    patch.setitem(load("sqlite"), "redact", text)
    patch.setattr(commit, "_append", appended)


def summary_of_another_session(patch: pytest.MonkeyPatch, store: SqliteStore) -> None:
    """What is found for a piece of work is what was written for the first session."""
    found = LeasedJobs._stored_summary

    async def anything(self: LeasedJobs, planned):
        own, seen = await found(self, planned), self.journal.head
        first, *_ = await summaries_of(self.journal.store, seen) or [None]
        return structs.replace(own, text=first.summary.text) if own and first else own

    patch.setattr(LeasedJobs, "_stored_summary", anything)


def summary_covers_something_else(patch: pytest.MonkeyPatch, store: SqliteStore) -> None:
    of_summary = rows.of_summary

    def shifted(owner, branch, written):
        summary = structs.replace(written.summary, last=written.summary.last - 1)
        return of_summary(owner, branch, structs.replace(written, summary=summary))

    patch.setattr(rows, "of_summary", shifted)


def two_beginnings_of_one_name(patch: pytest.MonkeyPatch, store: SqliteStore) -> None:
    patch.setattr(engine, "sha256", lambda name: sha256(name + os.urandom(8)))


def half_a_batch(patch: pytest.MonkeyPatch, store: SqliteStore) -> None:
    append = commit._append
    patch.setattr(commit, "_append", lambda head, messages, *rest: append(head, messages[:3], *rest))


def told_before_the_commit(patch: pytest.MonkeyPatch, store: SqliteStore) -> None:
    """Whoever waits is told when the statements have run; they go to the disk with the next ones."""

    def early(connection: apsw.Connection, jobs: Sequence[Job]) -> list[JobOutcome]:
        if connection.in_transaction:
            connection.execute("COMMIT")
        connection.execute("BEGIN IMMEDIATE")
        return [attempt(partial(job, connection.cursor())) for job in jobs]

    patch.setattr(store._file._writer.workers, "_work", early)


def nobody_sweeps(patch: pytest.MonkeyPatch, store: SqliteStore) -> None:
    async def nothing(*_: object) -> int:
        return 0

    patch.setattr(engine, "sweep", nothing)


FOUND_IN_LIFE: dict[str, Inject] = {
    "numbers from a sequence": numbers_from_a_sequence,
    "the switch in two commits": switch_in_two_commits,
    "the tail from a snapshot": tail_from_a_snapshot,
    "the state is not loaded again": state_is_not_loaded_again,
    "an undo that does not open the range again": changed("reopen_session", "last = NULL, ", ""),
    "an undo that leaves the session in the line": changed("undo_session", "state = 'undone', ", ""),
    "the next session begins one message late": changed("add_session", ":first,", ":first + 1,"),
    "a reply that is not stored before use": reply_is_not_stored_before_use,
    "a cut in the middle of a pair": cut_in_the_middle_of_a_pair,
    "a message changed in place": message_changed_in_place,
    "the summary of another session": summary_of_another_session,
    "a summary that covers something else": summary_covers_something_else,
    "two beginnings of one name": two_beginnings_of_one_name,
    "half a batch": half_a_batch,
    "nobody sweeps": nobody_sweeps,
}

FOUND_BY_CONTRACT: dict[str, tuple[Inject, Contract]] = {
    "no unique live child": (
        script("DROP INDEX session_one_continuation"),
        test_store_sessions.test_a_session_has_one_live_compaction_after_it,
    ),
    "compare-and-swap without the epoch": (
        changed("swap_branch", " AND epoch = :seen_epoch", ""),
        test_store_commit.test_a_writer_who_did_not_see_the_last_change_is_refused,
    ),
    "an append without the epoch": (
        changed("append_message", " AND epoch = :seen_epoch", " AND epoch >= 0 * :seen_epoch"),
        test_store_commit.test_a_writer_who_did_not_see_the_last_change_is_refused,
    ),
    "several messages without the epoch": (
        changed("advance_branch", " AND epoch = :seen_epoch", ""),
        test_store_commit.test_a_writer_who_did_not_see_the_last_change_is_refused,
    ),
    "compare-and-swap without the number": (
        changed(
            "swap_branch", "AND :seen_seq = (SELECT next_seq FROM head", "AND 0 <= (SELECT next_seq FROM head"
        ),
        test_stale.test_a_change_by_a_writer_who_missed_a_message_is_refused,
    ),
    "a claim without an end": (
        changed("claim_compaction", "(holder = '' OR until <= :now)", "holder = ''"),
        test_store_work.test_work_that_somebody_left_is_taken_over_when_its_time_is_up,
    ),
    "a claim for everybody": (
        changed("claim_compaction", " AND (holder = '' OR until <= :now)", ""),
        test_store_work.test_work_is_begun_by_one,
    ),
    "a compaction installed twice": (
        changed("install_compaction", "compaction.number = 0 AND ", ""),
        test_store_compactions.test_the_same_compaction_is_installed_once,
    ),
    "told before the commit": (
        told_before_the_commit,
        test_together.test_whoever_is_told_of_success_finds_it_on_the_disk,
    ),
    "no owner in a question": (
        changed("get_session", "owner = :owner AND ", ""),
        test_store_owners.test_owners_with_the_same_names_for_everything_never_meet,
    ),
}


async def test_nothing_is_found_where_nothing_is_wrong(sqlite):
    assert await Life(sqlite).live() == []


@pytest.mark.parametrize("defect", FOUND_IN_LIFE)
async def test_the_checker_finds(sqlite, monkeypatch, defect):
    FOUND_IN_LIFE[defect](monkeypatch, sqlite)
    found = await Life(sqlite).live()
    monkeypatch.undo()
    assert found, defect
    assert not any("the tables of this program" in one for one in found), (
        "the defect is not one: its SQL is wrong"
    )


@pytest.mark.parametrize("defect", FOUND_BY_CONTRACT)
async def test_the_contract_finds(sqlite, monkeypatch, defect):
    inject, contract = FOUND_BY_CONTRACT[defect]
    inject(monkeypatch, sqlite)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        await contract(sqlite)
    monkeypatch.undo()


@pytest.mark.parametrize("defect", FOUND_BY_CONTRACT)
async def test_the_contract_holds_without(sqlite, defect):
    await FOUND_BY_CONTRACT[defect][1](sqlite)


async def _put_into_the_state(talk: Conversation, jobs: SummaryJobs, state: State) -> SummarySource:
    """The originals are put into the state of before they were read, and what arrived meanwhile is gone from it."""
    folded = await jobs._journal.with_originals(state, state.folded)
    talk._state = structs.replace(state, folded=folded)
    return SummarySource.of(talk._state)


async def _status_without_waiting(self: Conversation) -> Status:
    """The state is loaded while somebody else acts on it."""
    return await status_of(self._journal, await self._current(), self._jobs)


async def _forget_what_is_unsettled(self: Conversation) -> None:
    """The state that a commit of unknown outcome may have stored is dropped."""
    self._unsettled = None


async def test_a_message_in_the_middle_of_reading_finds_a_state_put_back(monkeypatch):
    begin = Conversation._set_up

    def begun(self: Conversation, *given, **settings) -> None:
        begin(self, *given, **settings)
        self._jobs._source = partial(_put_into_the_state, self, self._jobs)

    monkeypatch.setattr(Conversation, "_set_up", begun)
    with pytest.raises((AssertionError, RefoldError)):
        await test_durable_work.test_what_arrives_while_everything_ever_said_is_read_stays()


async def test_the_overlap_of_everything_finds_reading_without_waiting(monkeypatch):
    monkeypatch.setattr(Conversation, "status", _status_without_waiting)
    with pytest.raises((AssertionError, RefoldError)):
        await test_arrivals.test_nothing_is_lost_whatever_goes_on_at_the_same_time("refold")


@pytest.mark.parametrize("act", test_unknown_outcome.ACTS)
async def test_an_unknown_outcome_without_content_finds_a_state_that_is_dropped(monkeypatch, act):
    monkeypatch.setattr(Conversation, "_settle", _forget_what_is_unsettled)
    with pytest.raises((AssertionError, RefoldError)):
        await test_unknown_outcome.test_what_was_stored_counts_once(
            MemoryStore(), monkeypatch, act, keeps_content=False
        )
