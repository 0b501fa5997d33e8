"""Run transactions on an SQLite connection.

One idea: bringing a commit to the disk takes longer than all the rest, and takes no longer for many. So transactions that
wait at the same time run one after the other, each behind a savepoint of its own, and share one commit. One that fails takes
back its own work only; where SQLite takes back everything, as it does when the disk is full, each is run again by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import apsw

from refold.store.lane import Told, attempt
from refold.store.queries import load
from refold.store.transactions import Row, Step, T, Transaction

Handle: TypeAlias = apsw.Connection | apsw.Cursor
"""What statements are given to. A cursor that is kept saves making one for every statement."""
Job: TypeAlias = Callable[[apsw.Cursor], Any]
"""What is done inside of a transaction."""


def run(handle: Handle, transaction: Transaction[T]) -> T:
    """Give a transaction the rows it asks for, to its end."""
    try:
        step = next(transaction)
        while True:
            step = transaction.send(_ask(handle, step))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def run_at_once(connection: apsw.Connection, transaction: Transaction[T]) -> T:
    """Likewise, with the file as it is at one moment."""
    connection.execute("BEGIN")
    try:
        return run(connection, transaction)
    finally:
        connection.execute("ROLLBACK")


def commit(cursor: apsw.Cursor, job: Callable[[apsw.Cursor], T]) -> T:
    """Do a job; what came of it is on the disk."""
    cursor.execute("BEGIN IMMEDIATE")
    try:
        result = job(cursor)
        cursor.execute("COMMIT")
    except BaseException:
        roll_back(cursor.connection)  # the cursor itself may be in the middle of a script
        raise
    return result


def roll_back(connection: apsw.Connection) -> None:
    # A full disk makes SQLite roll back by itself, and then there is nothing left to roll back.
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def commit_all(cursor: apsw.Cursor, jobs: Sequence[Job]) -> list[Told]:
    """Do jobs in their order, each whole or not at all; what is told here is on the disk."""
    if len(jobs) > 1:
        together = attempt(partial(commit, cursor, partial(_do_all, jobs=jobs)))
        if together.error is None:
            return list(together.result)
        if isinstance(together.error, apsw.BusyError):
            return [together] * len(jobs)
    return [attempt(partial(commit, cursor, job)) for job in jobs]


def _do_all(cursor: apsw.Cursor, jobs: Sequence[Job]) -> list[Told]:
    return [_do_apart(cursor, job) for job in jobs]


def _do_apart(cursor: apsw.Cursor, job: Job) -> Told:
    """Do one of several; what it did is taken back if it fails."""
    cursor.execute("SAVEPOINT apart")
    told = attempt(partial(job, cursor))
    if told.error is not None:
        # Raises where everything was rolled back already: then there is no savepoint to go back to.
        cursor.execute("ROLLBACK TO apart")
    cursor.execute("RELEASE apart")
    return told


def _ask(handle: Handle, step: Step) -> list[Row]:
    name, parameters = step
    statement = load("sqlite")[name]
    if isinstance(parameters, dict):  # several times as quick as to ask for a mapping
        return handle.execute(statement, parameters).fetchall()
    return [row for each in parameters for row in handle.execute(statement, each)]
