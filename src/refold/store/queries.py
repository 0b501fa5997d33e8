"""The statements of the stores, by name.

One idea: SQL lives in files that a reader can open, one statement each, its first line saying in a sentence what it is for.
`sql/name.sql` serves both databases; where they must differ there is `name.sqlite.sql` and `name.postgres.sql`. Parameters
are written `:name`. Migrations are found under `migrations/<name>` and are run as they stand.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from refold.store.transactions import Dialect

_TOKEN = re.compile(r"'[^']*+'?|--[^\n]*|::|:([a-z_]+)|%")
"""Literals, comments and casts are left alone (a quote within a literal, `''`, ends one and begins another); a parameter or a percent sign is spelt as the driver wants it."""


@cache
def load(dialect: Dialect) -> dict[str, str]:
    """Every statement of a database, and every migration, by name."""
    scripts = {f"migrations/{name}": text for name, text in migrations(dialect).items()}
    return statements(dialect) | scripts


def statements(dialect: Dialect) -> dict[str, str]:
    found = {}
    for path in _sql_files("sql"):
        name, *only = path.name.removesuffix(".sql").split(".")
        if only in ([], [dialect]):
            found[name] = _spell(path.read_text(encoding="utf-8"), dialect)
    return found


def migrations(dialect: Dialect) -> dict[str, str]:
    """The migrations of a database in the order in which they are applied."""
    paths = sorted(_sql_files("migrations", dialect), key=lambda path: path.name)
    return {path.name.removesuffix(".sql"): path.read_text(encoding="utf-8") for path in paths}


def _sql_files(*folder: str) -> list[Traversable]:
    return [path for path in files(__package__).joinpath(*folder).iterdir() if path.name.endswith(".sql")]


def _spell(statement: str, dialect: Dialect) -> str:
    """A statement with its parameters as the driver of the database wants them."""
    return statement if dialect == "sqlite" else _TOKEN.sub(_spell_token, statement)


def _spell_token(token: re.Match[str]) -> str:
    if token[1]:
        return f"%({token[1]})s"
    return token[0].replace("%", "%%")
