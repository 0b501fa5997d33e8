"""Statements are found by name, say what they are for, never forget the owner, and are spelt as each driver wants them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import refold.store
from refold.store.queries import _spell, load, migrations, statements

STORE = Path(refold.store.__file__).parent
FILES = sorted((STORE / "sql").glob("*.sql"))
OF_NOBODY = {"list_migrations", "has_migrations", "add_migration", "begin_migrating", "settle_connection"}
OF_NOBODY |= {"note_deletion", "last_deletion", "forget_deletions"}
"""Statements about the database itself."""
OF_ANYBODY = {
    "find_key_owner": "the owner is the answer",
    "has_keys": "it tells of no owner's rows",
    "has_unindexed": "likewise",
    "list_unindexed": "one index holds the words of all, each with a mark of its owner",
    "note_indexed": "likewise",
}


def body_of(path: Path) -> str:
    return re.sub("--[^\n]*", "", path.read_text())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_statement_says_in_a_sentence_what_it_is_for(path):
    first, *rest = path.read_text().splitlines()

    assert re.fullmatch(r"-- [A-Z].*[.?]", first)
    assert rest, "there is a statement after it"
    assert not rest[-1].endswith(";"), "the driver ends it"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_statement_names_the_owner(path):
    if path.name.split(".")[0] in OF_NOBODY | OF_ANYBODY.keys():
        return
    assert "owner" in path.read_text()
    if re.search(r"\b(WHERE|VALUES)\b", body_of(path)) and "words" not in body_of(path):
        assert ":owner" in body_of(path)


def test_every_statement_is_asked_for_and_everything_asked_for_is_there():
    asked = set()
    for path in STORE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                asked.add(node.value)
    names = {path.name.split(".")[0] for path in FILES}

    assert names <= asked
    for node in yielded_names():
        assert node in names, node


def yielded_names() -> set[str]:
    found = set()
    for path in STORE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Yield) and isinstance(node.value, ast.Tuple):
                name = node.value.elts[0]
                found |= {part.value for part in ast.walk(name) if isinstance(part, ast.Constant)}
    return {name for name in found if isinstance(name, str) and not name.startswith("migrations/")}


def test_both_databases_have_the_statements_that_transactions_share():
    only = {
        dialect: {path.name.split(".")[0] for path in FILES if path.name.endswith(f".{dialect}.sql")}
        for dialect in ("sqlite", "postgres")
    }
    shared = set(statements("sqlite")) & set(statements("postgres"))

    # What one database alone has is asked for by its own driver.
    for dialect, alone in (
        ("sqlite", only["sqlite"] - only["postgres"]),
        ("postgres", only["postgres"] - only["sqlite"]),
    ):
        drivers = "".join(path.read_text() for path in STORE.glob(f"{dialect}*.py"))
        assert all(f'"{name}"' in drivers for name in alone), alone
    assert yielded_names() - shared <= only["sqlite"] ^ only["postgres"]


@pytest.mark.parametrize(
    ("written", "spelt"),
    [
        ("a = :owner", "a = %(owner)s"),
        ("a = :x_y AND b > :z", "a = %(x_y)s AND b > %(z)s"),
        ("a % 2", "a %% 2"),
        ("a LIKE '100%'", "a LIKE '100%%'"),
        ("':not' = 'it''s :x'", "':not' = 'it''s :x'"),
        (":a::bigint", "%(a)s::bigint"),
        ("-- it is 5 o'clock: go\na = :b", "-- it is 5 o'clock: go\na = %(b)s"),
    ],
)
def test_parameters_are_spelt_for_postgres_and_nothing_else_is_touched(written, spelt):
    assert _spell(written, "postgres") == spelt
    assert _spell(written, "sqlite") == written


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_migrations_come_in_order_and_as_they_stand(dialect):
    found = migrations(dialect)

    assert list(found) == sorted(found)
    assert all(re.fullmatch(r"\d{4}_[a-z_]+", name) for name in found)
    assert [int(name[:4]) for name in found] == list(range(1, len(found) + 1))
    for name, script in found.items():
        assert (
            load(dialect)[f"migrations/{name}"]
            == script
            == (STORE / "migrations" / dialect / f"{name}.sql").read_text()
        )
