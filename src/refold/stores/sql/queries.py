"""Named queries and migrations, the transactions that run them, and the driver that runs a transaction.

A transaction is a generator: it yields `(name of a query, parameters)` and is sent the rows. With a list of parameters the query
runs once for each, and the rows come together in that order. A driver runs the generator from beginning to end inside one database
transaction, commits when it returns and rolls back when anything is raised. So every transaction is written once, for both
databases and without I/O. The driver turns violated constraints into errors: a row that exists already is a `Conflict`, a row whose
conversation or branch does not exist is `NotFound`.

The queries are in `sql/shared.sql` where both databases agree, otherwise in `sqlite/queries.sql` and `postgres/queries.sql`. A query
begins with `-- name: add_blob` and a comment of one sentence; parameters are written `:name`. Migrations are found under
`migrations/<name>` and are run unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Literal, ParamSpec, Protocol, TypeAlias, TypeVar

from refold.model.errors import StoreError

T = TypeVar("T")
P = ParamSpec("P")

SqlDialect: TypeAlias = Literal["sqlite", "postgres"]
QueryParameters: TypeAlias = Mapping[str, object]
TableRow: TypeAlias = tuple[Any, ...]
QueryStep: TypeAlias = tuple[str, QueryParameters | Sequence[QueryParameters]]
Transaction: TypeAlias = Generator[QueryStep, list[TableRow], T]

EVERYTHING = 1 << 62
"""Above every count of rows and every message number; it fits the integers of both databases."""


class Driver(Protocol):
    """One database. A transaction is given as the function that begins it, so that a driver can begin it again."""

    @property
    def dialect(self) -> SqlDialect: ...

    async def read(self, begin: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs) -> T: ...

    async def read_at_once(self, begin: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """All statements read one snapshot of the database, regardless of concurrent writes."""
        ...

    async def look_up(self, begin: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Read a few rows by their keys; a request waits for it."""
        ...

    async def write(self, begin: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs) -> T: ...

    async def close(self) -> None: ...


_NAME_LINE = re.compile(r"^-- name: ([a-z_]+)$", re.MULTILINE)
_REINSTALL = "install Refold again"
_TOKEN = re.compile(r"'[^']*+'?|--[^\n]*|::|:([a-z_]+)|%")
"""Literals, comments and casts are left alone (a quote within a literal, `''`, ends one and begins another); a parameter or a percent sign is spelt as the driver wants it."""


@cache
def load(dialect: SqlDialect) -> dict[str, str]:
    """Every query of a database, and every migration, by name.

    Raises:
        StoreError: two queries have one name, or a query has none; the installation is damaged.
    """
    scripts = {f"migrations/{name}": text for name, text in migrations(dialect).items()}
    return queries(dialect) | scripts


def queries(dialect: SqlDialect) -> dict[str, str]:
    """The queries of a database by name, spelt for its driver."""
    package = files("refold.stores")
    sources = (package.joinpath("sql", "shared.sql"), package.joinpath(dialect, "queries.sql"))
    named = [pair for path in sources for pair in read_queries(path.read_text(encoding="utf-8"), path.name)]
    found = dict(named)
    if len(found) < len(named):
        names = [name for name, _ in named]
        doubled = sorted({name for name in names if names.count(name) > 1})
        raise StoreError(f"two queries for {dialect} have one name: {', '.join(doubled)}", hint=_REINSTALL)
    return {name: _spell(text, dialect) for name, text in found.items()}


def read_queries(text: str, source: str) -> list[tuple[str, str]]:
    """The queries of a file in their order, each with its name and its comments.

    Raises:
        StoreError: there is SQL before the first name, or a name without SQL.
    """
    start, *pieces = _NAME_LINE.split(text)
    named = [(name, f"{query.strip()}\n") for name, query in zip(pieces[::2], pieces[1::2], strict=True)]
    if _without_comments(start):
        raise StoreError(f"a query of {source} has no name", hint=_REINSTALL)
    for name, query in named:
        if not _without_comments(query):
            raise StoreError(f"the query {name} of {source} is empty", hint=_REINSTALL)
    return named


def migrations(dialect: SqlDialect) -> dict[str, str]:
    """The migrations of a database in the order in which they are applied."""
    folder = files("refold.stores").joinpath(dialect, "migrations")
    paths = sorted(
        (path for path in folder.iterdir() if path.name.endswith(".sql")), key=lambda path: path.name
    )
    return {path.name.removesuffix(".sql"): path.read_text(encoding="utf-8") for path in paths}


def _without_comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("--")).strip()


def _spell(statement: str, dialect: SqlDialect) -> str:
    """A statement with its parameters as the driver of the database wants them."""
    return statement if dialect == "sqlite" else _TOKEN.sub(_spell_token, statement)


def _spell_token(token: re.Match[str]) -> str:
    if token[1]:
        return f"%({token[1]})s"
    return token[0].replace("%", "%%")


# Migrations: numbered files, applied once, in order; each is recorded by name in the transaction that applies it. A recorded name that
# this program does not know was written by a newer program, and then nothing is changed.

Tables: TypeAlias = Literal["upgraded", "checked", "any"]
"""The tables that a store is opened with: upgraded if they are of an earlier version, refused then, or taken as they are."""

UPGRADE_HINT = "back it up, stop the programs that use it, and run: refold db upgrade"
"""Commands add the store that they were given."""


def missing_migrations(dialect: SqlDialect, applied: Sequence[str]) -> list[str]:
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


def applied_migrations() -> Transaction[list[str]]:
    """The migrations that a database has, in order."""
    found = yield "list_migrations", {}
    return [row[0] for row in found]


def has_current_tables(dialect: SqlDialect) -> Transaction[bool]:
    """Whether a database has every migration: then nothing has to be locked or written to open it."""
    is_there = yield "has_migrations", {}
    return bool(is_there[0][0]) and not missing_migrations(dialect, (yield from applied_migrations()))


def fault_of_tables(dialect: SqlDialect) -> Transaction[str]:
    """Why a program of this version cannot use the tables; empty if it can. Migrations of a newer program do not count: they
    are made so that the programs in use go on until they are replaced.
    """
    is_there = yield "has_migrations", {}
    lacks = set(migrations(dialect)) - set((yield from applied_migrations()) if is_there[0][0] else ())
    return "the store lacks tables of this version" if lacks else ""


def check_tables(dialect: SqlDialect) -> Transaction[None]:
    """
    Raises:
        StoreError: the database lacks a migration, or was upgraded by a newer program.
    """
    if not (yield from has_current_tables(dialect)):
        raise StoreError(
            "the store has no tables, or those of an earlier version, and this command changes nothing",
            hint=UPGRADE_HINT,
        )


def upgrade_tables(dialect: SqlDialect) -> Transaction[list[str]]:
    """Apply the missing migrations, and return their names."""
    yield "begin_migrating", {}
    names = missing_migrations(dialect, (yield from applied_migrations()))
    for name in names:
        yield f"migrations/{name}", {}
        yield "add_migration", {"name": name}
    return names
