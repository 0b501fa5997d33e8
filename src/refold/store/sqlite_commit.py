"""Run transactions on an SQLite connection.

One idea: bringing a commit to the disk takes longer than all the rest, and takes no longer for many. So transactions that
wait at the same time run one after the other, each behind a savepoint of its own, and share one commit. One that fails takes
back its own work only; where SQLite takes back everything, as it does when the disk is full, each is run again by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import apsw

from refold.store.lane import Told, attempt
from refold.store.queries import load
from refold.store.transactions import Row, Step, T, Transaction


def run(connection: apsw.Connection, transaction: Transaction[T]) -> T:
    """Give a transaction the rows it asks for, to its end."""
    try:
        step = next(transaction)
        while True:
            step = transaction.send(_ask(connection, step))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def run_at_once(connection: apsw.Connection, transaction: Transaction[T]) -> T:
    """Likewise, with the file as it is at one moment."""
    connection.execute("BEGIN")
    try:
        return run(connection, transaction)
    finally:
        connection.execute("ROLLBACK")


def commit_one(connection: apsw.Connection, begin: Callable[[], Transaction[Any]]) -> Told:
    """Run a transaction; what is told here is on the disk."""
    return attempt(partial(_commit_one, connection, begin))


def commit_all(connection: apsw.Connection, begins: Sequence[Callable[[], Transaction[Any]]]) -> list[Told]:
    """Run transactions in their order, each whole or not at all; what is told here is on the disk."""
    if len(begins) == 1:
        return [commit_one(connection, begins[0])]
    locked = attempt(partial(connection.execute, "BEGIN IMMEDIATE"))
    if locked.error is not None:
        return [locked] * len(begins)
    together = attempt(partial(_finish_together, connection, begins))
    if together.error is None:
        return list(together.result)
    return [commit_one(connection, begin) for begin in begins]


def _commit_one(connection: apsw.Connection, begin: Callable[[], Transaction[T]]) -> T:
    connection.execute("BEGIN IMMEDIATE")
    return _finish(connection, begin)


def _finish(connection: apsw.Connection, begin: Callable[[], Transaction[T]]) -> T:
    try:
        result = run(connection, begin())
        connection.execute("COMMIT")
    except BaseException:
        _roll_back(connection)
        raise
    return result


def _finish_together(
    connection: apsw.Connection, begins: Sequence[Callable[[], Transaction[Any]]]
) -> list[Told]:
    try:
        told = [_run_apart(connection, begin) for begin in begins]
        connection.execute("COMMIT")
    except BaseException:
        _roll_back(connection)
        raise
    return told


def _run_apart(connection: apsw.Connection, begin: Callable[[], Transaction[Any]]) -> Told:
    """Run one of several; what it did is taken back if it fails."""
    connection.execute("SAVEPOINT apart")
    told = attempt(lambda: run(connection, begin()))
    if told.error is not None:
        # Raises where everything was rolled back already: then there is no savepoint to go back to.
        connection.execute("ROLLBACK TO apart")
    connection.execute("RELEASE apart")
    return told


def _roll_back(connection: apsw.Connection) -> None:
    # A full disk makes SQLite roll back by itself, and then there is nothing left to roll back.
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _ask(connection: apsw.Connection, step: Step) -> list[Row]:
    name, parameters = step
    statement = load("sqlite")[name]
    if isinstance(parameters, dict):  # several times as quick as to ask for a mapping
        return connection.execute(statement, parameters).fetchall()
    return [row for each in parameters for row in connection.execute(statement, each)]
