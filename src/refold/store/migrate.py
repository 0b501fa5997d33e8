"""Bring a database to the schema of this program.

One idea: migrations are numbered files, applied once, in order, each noted by name in the same transaction. A name that this
program does not know was written by a newer one: then nothing is touched.
"""

from __future__ import annotations

from collections.abc import Sequence

from refold.model.errors import StoreError
from refold.store.queries import migrations
from refold.store.transactions import Dialect, Transaction


def missing(dialect: Dialect, applied: Sequence[str]) -> list[str]:
    """The migrations that a database lacks, in order.

    Raises:
        StoreError: the database has some that this program does not know.
    """
    known = list(migrations(dialect))
    if unknown := sorted(set(applied) - set(known)):
        raise StoreError(
            f"The database was upgraded by a newer Refold ({unknown[-1]}); nothing was changed.",
            hint="upgrade Refold, or open a backup that was made before",
        )
    return [name for name in known if name not in applied]


def applied() -> Transaction[list[str]]:
    """The migrations that a database has, in order."""
    found = yield "list_migrations", {}
    return [row[0] for row in found]


def is_current(dialect: Dialect) -> Transaction[bool]:
    """Whether a database has every migration: then nothing has to be locked or written to open it."""
    is_there = yield "has_migrations", {}
    return bool(is_there[0][0]) and not missing(dialect, (yield from applied()))


def upgrade(dialect: Dialect) -> Transaction[list[str]]:
    """Apply what is missing; the names of what was applied."""
    yield "begin_migrating", {}
    names = missing(dialect, (yield from applied()))
    for name in names:
        yield f"migrations/{name}", {}
        yield "add_migration", {"name": name}
    return names
