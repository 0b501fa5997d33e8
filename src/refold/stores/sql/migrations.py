"""Migrations: bring a database to the schema of this program.

They are numbered files, applied once, in order; each is recorded by name in the transaction that applies it. A recorded name that
this program does not know was written by a newer program, and then nothing is changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from refold.model.errors import StoreError
from refold.stores.sql.queries import SqlDialect, Transaction, migrations

Tables: TypeAlias = Literal["upgraded", "checked", "any"]
"""The tables that a store is opened with: upgraded if they are of an earlier version, refused then, or taken as they are."""

UPGRADE_HINT = "back it up, stop the programs that use it, and run: refold db upgrade"
"""Commands add the store that they were given."""


def missing(dialect: SqlDialect, applied: Sequence[str]) -> list[str]:
    """The migrations that a database lacks, in order.

    Raises:
        StoreError: the database has migrations that this program does not know.
    """
    known = list(migrations(dialect))
    if unknown := sorted(set(applied) - set(known)):
        raise StoreError(
            f"the database was upgraded by a newer Refold ({unknown[-1]}); nothing was changed",
            hint="upgrade Refold, or open a backup that was made before",
        )
    return [name for name in known if name not in applied]


def applied() -> Transaction[list[str]]:
    """The migrations that a database has, in order."""
    found = yield "list_migrations", {}
    return [row[0] for row in found]


def is_current(dialect: SqlDialect) -> Transaction[bool]:
    """Whether a database has every migration: then nothing has to be locked or written to open it."""
    is_there = yield "has_migrations", {}
    return bool(is_there[0][0]) and not missing(dialect, (yield from applied()))


def fault(dialect: SqlDialect) -> Transaction[str]:
    """Why a program of this version cannot use the tables; empty if it can. Migrations of a newer program do not count: they
    are made so that the programs in use go on until they are replaced.
    """
    is_there = yield "has_migrations", {}
    lacks = set(migrations(dialect)) - set((yield from applied()) if is_there[0][0] else ())
    return "the store lacks tables of this version" if lacks else ""


def check_current(dialect: SqlDialect) -> Transaction[None]:
    """
    Raises:
        StoreError: the database lacks a migration, or was upgraded by a newer program.
    """
    if not (yield from is_current(dialect)):
        raise StoreError(
            "the store has no tables, or those of an earlier version, and this command changes nothing",
            hint=UPGRADE_HINT,
        )


def upgrade(dialect: SqlDialect) -> Transaction[list[str]]:
    """Apply the missing migrations, and return their names."""
    yield "begin_migrating", {}
    names = missing(dialect, (yield from applied()))
    for name in names:
        yield f"migrations/{name}", {}
        yield "add_migration", {"name": name}
    return names
