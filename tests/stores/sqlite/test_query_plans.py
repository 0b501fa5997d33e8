"""What is asked often takes the same work in a small database and in a large one: counted, and read from SQLite's plans."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import apsw
import pytest

from refold.ports.records import Batch, Head
from refold.stores.sql import commit, conversations, search, store
from refold.stores.sql.queries import load, queries
from refold.stores.sql.rows import of_message
from refold.stores.sqlite.file import register_functions
from refold.stores.sqlite.writer import run
from tests.contract.talks import ANNA, first_session, message, new_head

WHOLE_TABLES = {
    "list_owners": "all owners are asked for",
    "list_migrations": "all of them are asked for",
    "has_migrations": "a schema is a short list",
    "has_unindexed": "the first row will do",
    "has_keys": "likewise",
    "list_unindexed": "all that waits is taken up",
}
SUMMARY = '{"text": "", "first": 0, "last": 0, "tokens": 0}'
UNORDERED = {
    "sum_conversation_calls": "the calls of an owner are added up by conversation",
    "sum_days": "the sums of some days are added to those that are not counted yet",
    "find_conversations": "words in titles are looked for one by one, in the order of the list",
    "find_summary": "the few that ever had one number are sorted",
    "search_messages": "the newest of those that match are taken",
    "list_newest": "the newest of those of a time are taken, for a query without words",
    "count_matches": "the rows of the few long messages that match are put together",
    "get_latest_head": "the branches of one conversation are sorted by their last use",
    "forget_oldest_learnt": "a sweep sorts what was learnt about one topic",
    "find_chains": "the few that hold one of the hashes are sorted",
    "list_older_blobs": "the few system prompts of one conversation are sorted",
    "list_unindexed": "the few that are taken up at a time are added up",
    "list_failing": "the few branches with failed summaries are sorted",
    "list_latest_heads": "the branches of one conversation are sorted, and then one page",
    "sum_spent_each": "the summaries of one page of conversations are added up",
    "sum_tokens_since": "a few messages of one page of conversations are added up",
}


@contextmanager
def migrated() -> Iterator[apsw.Connection]:
    opened = apsw.Connection(":memory:")
    opened.pragma("foreign_keys", True)
    register_functions(opened)
    opened.execute(load("sqlite")["begin_migrating"])
    for name, script in load("sqlite").items():
        if name.startswith("migrations/"):
            opened.execute(script)
    yield opened
    opened.close()


@pytest.fixture
def connection():
    with migrated() as opened:
        yield opened


@pytest.fixture(scope="module")
def schema():
    """An empty database in which statements are only explained."""
    with migrated() as opened:
        yield opened


def plans(connection: apsw.Connection, script: str) -> list[str]:
    """What SQLite is going to do for each of the statements of a script."""
    bare = re.sub("--[^\n]*", "", script)
    found = []
    for statement in bare.split(";"):
        names = dict.fromkeys(re.findall(r":([a-z_]+)", re.sub("'[^']*'", "", statement)))
        found += [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", names)]
    return found


@pytest.mark.parametrize("name", sorted(queries("sqlite")))
def test_no_statement_reads_a_whole_table(schema, name):
    steps = plans(schema, queries("sqlite")[name])

    scans = [
        step
        for step in steps
        if step.startswith("SCAN")
        and not re.match(r"SCAN (CONSTANT ROW|spent|found|kept|link|line|word|words VIRTUAL)", step)
    ]
    assert bool(scans) == (name in WHOLE_TABLES), scans
    if name not in UNORDERED:
        assert not [step for step in steps if "TEMP B-TREE" in step], steps


def work(connection: apsw.Connection, transaction) -> int:
    """Steps of SQLite's machine that a transaction takes."""
    count = 0

    def noted() -> bool:
        nonlocal count
        count += 1
        return False

    connection.set_progress_handler(noted, 1)
    try:
        run(connection, transaction)
    finally:
        connection.set_progress_handler(None, 1)
    return count


def fill(connection: apsw.Connection, head: Head, size: int) -> Head:
    """Give a branch many messages, and a change to what is shown for every hundred of them."""
    place = {"owner": head.owner, "branch": head.branch, "size": size}
    connection.execute(
        """WITH RECURSIVE number (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM number WHERE n + 1 < :size)
        INSERT INTO message (id, role, format, tokens, is_findable, body, digest, key, at)
        SELECT (ordinal << 32) + n, 'user', 'chat', 1, 1, x'00', x'00', 'k' || n, 0
        FROM branch CROSS JOIN number WHERE owner = :owner AND id = :branch""",
        place,
    )
    connection.execute(
        """INSERT INTO compaction (
            owner, id, branch, number, kind, state, base, session, cut, size, reason, moment, recipe,
            before, after, edits, shown, holder, until, attempts, error, at
        ) SELECT :owner, :branch || seq, :branch, seq / 100 + 1, 'reduce', 'installed', :branch || '/s0', '', 0, seq, '', '', '',
            0, 0, x'', x'', '', 0, 0, '', 0
        FROM message WHERE branch = (SELECT ordinal FROM branch WHERE owner = :owner AND id = :branch) AND seq % 100 = 0""",
        place,
    )
    for table, columns, values in (
        ("summary", "number, body, carry, at", f"number, CAST('{SUMMARY}' AS BLOB), x'', 0"),
        ("pin", "seq", "size"),
    ):
        key = "id, " if table == "summary" else ""
        connection.execute(
            f"INSERT INTO {table} (owner, {key}branch, {columns}) SELECT owner, {key}branch, {values} "
            "FROM compaction WHERE branch = :branch",
            place,
        )
    return run(connection, conversations.head(head.owner, head.conversation, head.branch))


def questions(head: Head, size: int) -> dict[str, object]:
    return {
        "head": lambda: conversations.head(ANNA, head.conversation, ""),
        "named head": lambda: conversations.head(ANNA, head.conversation, head.branch),
        "last messages": lambda: conversations.messages(head, size - 20, None, None),
        "first messages": lambda: conversations.messages(head, 0, 20, None),
        "picked": lambda: conversations.pick(head, [1, size // 2, size - 1]),
        "key": lambda: conversations.find_key(head, f"k{size // 2}"),
        "latest": lambda: conversations.latest(head, None),
        "raw arrivals": lambda: conversations.raw_arrivals(head, 0),
        "last change of a session": lambda: conversations.last_change(ANNA, head.session, ["reduce"]),
        "summary by number": lambda: conversations.summary(head, 1),
        "holding": lambda: conversations.holding(ANNA, [(head.branch, size // 2)]),
        "changes": lambda: conversations.compactions(ANNA, head.branch, 2),
        "failures": lambda: store.count_failures(ANNA, head.branch),
        "search": lambda: search.search("sqlite", ANNA, "harbour nowhere", "", 20),
        "append": lambda: commit.commit(
            head, Batch(at=1.0, messages=(message(size, "a few words to find"),)), of_message
        ),
    }


def test_reading_and_appending_take_the_same_work_in_a_branch_of_any_size(connection):
    taken = {}
    for size in (200, 20_000):
        head = new_head(f"talk{size}")
        run(connection, conversations.create(head, first_session(head), at=1.0))
        head = fill(connection, head, size)
        taken[size] = {name: work(connection, ask()) for name, ask in questions(head, size).items()}

    for name, small in taken[200].items():
        assert small > 0
        assert taken[20_000][name] <= 1.05 * small + 5, name


def test_deleting_takes_the_same_work_whatever_else_is_there(connection):
    taken = []
    for others in (1, 20_000):
        large = new_head(f"large{others}")
        run(connection, conversations.create(large, first_session(large), at=1.0))
        fill(connection, large, others)
        small = new_head(f"small{others}")
        head = run(connection, conversations.create(small, first_session(small), at=1.0))
        run(
            connection,
            commit.commit(head, Batch(at=1.0, messages=(message(0, "a few words"),)), of_message),
        )
        taken.append(work(connection, conversations.delete(ANNA, small.conversation)))

    assert taken[1] <= 1.05 * taken[0] + 5


def test_one_conversation_takes_the_same_work_among_few_and_among_many(connection):
    taken = []
    for size in (5, 400):
        for number in range(size):
            head = new_head(f"talk{size}-{number}")
            run(connection, conversations.create(head, first_session(head), title="a title", at=1.0))
        questions = (
            conversations.head(ANNA, head.conversation, ""),
            conversations.sessions(ANNA, head.conversation, 100),
            conversations.sessions(ANNA, "", 3),
            conversations.calls(ANNA, head.conversation, 100),
            conversations.find_sessions(ANNA, f"{head.branch}/s0", 10),
            conversations.spent(ANNA, head.conversation, "summary"),
            search.nearest(ANNA, "tiny", b"1234", conversation=head.conversation, limit=5, least=0.0),
            conversations.unfinished(ANNA, head.branch),
            conversations.conversations(ANNA, limit=3),
        )
        taken.append([work(connection, question) for question in questions])

    for few, many in zip(*taken, strict=True):
        assert many <= 1.05 * few + 5


def test_compactions_are_listed_without_reading_how_the_branch_was_shown(connection):
    """The columns behind the snapshot are in an index: a snapshot of 100 kB is 25 pages to read otherwise."""
    head = new_head("talk")
    run(connection, conversations.create(head, first_session(head), at=1.0))
    fill(connection, head, 2_000)
    connection.execute(
        "UPDATE compaction SET shown = zeroblob(100000), at = number, error = 'e' || number WHERE branch = ?",
        (head.branch,),
    )
    before = connection.status(apsw.SQLITE_DBSTATUS_CACHE_HIT)[0]
    found = run(connection, conversations.compactions(ANNA, head.branch, 20))
    pages = connection.status(apsw.SQLITE_DBSTATUS_CACHE_HIT)[0] - before

    assert [(one.at, one.error) for one in found] == [(n, f"e{n}") for n in range(1, 21)]
    assert 0 < pages <= 2 * len(found)
