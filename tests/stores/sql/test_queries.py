"""Queries are found by name, say what they are for, never forget the owner, and are spelt as each driver wants them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import refold.stores
from refold.model.errors import StoreError
from refold.stores.sql import queries as module
from refold.stores.sql.queries import _spell, load, migrations, queries, read_queries

STORES = Path(refold.stores.__file__).parent
FILES = {
    "shared": STORES / "sql" / "shared.sql",
    "sqlite": STORES / "sqlite" / "queries.sql",
    "postgres": STORES / "postgres" / "queries.sql",
}
QUERIES = {
    f"{place}-{name}": (name, query)
    for place, path in FILES.items()
    for name, query in read_queries(path.read_text(), path.name)
}
OF_NOBODY = {"list_migrations", "has_migrations", "add_migration", "begin_migrating", "settle_connection"}
OF_NOBODY |= {"note_deletion", "last_deletion", "forget_deletions"}
"""Queries about the database itself."""
OF_ANYBODY = {
    "find_key_owner": "the owner is the answer",
    "has_keys": "it tells of no owner's rows",
    "get_unindexed_body": "likewise",
    "has_unindexed": "likewise",
    "list_unindexed": "one index holds the words of all, each with a mark of its owner",
    "note_indexed": "likewise",
    "note_parts": "likewise",
    "get_word_end": "likewise",
}


def names_in(place: str) -> set[str]:
    return {name for key, (name, _) in QUERIES.items() if key.startswith(f"{place}-")}


def test_there_are_three_files_of_queries_beside_the_migrations():
    found = {path for path in STORES.rglob("*.sql") if path.parent.name != "migrations"}

    assert found == set(FILES.values())


@pytest.mark.parametrize("key", QUERIES)
def test_every_query_says_in_a_sentence_what_it_is_for(key):
    first, *rest = QUERIES[key][1].splitlines()

    assert re.fullmatch(r"-- [A-Z].*[.?]", first)
    assert rest, "there is a query after it"
    assert not rest[-1].endswith(";"), "the driver ends it"


@pytest.mark.parametrize("key", QUERIES)
def test_every_query_names_the_owner(key):
    name, query = QUERIES[key]
    bare = re.sub("--[^\n]*", "", query)
    if name in OF_NOBODY | OF_ANYBODY.keys():
        return
    assert "owner" in query
    if re.search(r"\b(WHERE|VALUES)\b", bare) and "words" not in bare:
        assert ":owner" in bare


def test_every_query_is_used_and_every_query_that_is_used_is_there():
    used = set()
    for path in STORES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                used.add(node.value)
    names = {name for name, _ in QUERIES.values()}

    assert names <= used
    for name in yielded_names():
        assert name in names, name


def yielded_names() -> set[str]:
    found = set()
    for path in STORES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Yield) and isinstance(node.value, ast.Tuple):
                name = node.value.elts[0]
                found |= {part.value for part in ast.walk(name) if isinstance(part, ast.Constant)}
    return {name for name in found if isinstance(name, str) and not name.startswith("migrations/")}


def test_both_databases_have_the_queries_that_transactions_share():
    sqlite, postgres = names_in("sqlite"), names_in("postgres")

    # A query that one database alone has is used by its own package.
    for dialect, alone in (("sqlite", sqlite - postgres), ("postgres", postgres - sqlite)):
        package = "".join(path.read_text() for path in (STORES / dialect).glob("*.py"))
        assert all(f'"{name}"' in package for name in alone), alone
    shared = set(queries("sqlite")) & set(queries("postgres"))
    assert yielded_names() - shared <= sqlite ^ postgres


def test_a_file_is_read_query_by_query_with_its_comments():
    text = "-- What this file is.\n\n-- name: one\n-- First.\nSELECT 1\n\n-- name: two\n-- Second.\n-- More.\nSELECT 2\n"

    assert read_queries(text, "a.sql") == [
        ("one", "-- First.\nSELECT 1\n"),
        ("two", "-- Second.\n-- More.\nSELECT 2\n"),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SELECT 1\n-- name: one\nSELECT 1\n", "a query of a.sql has no name"),
        (
            "-- name: one\n-- Nothing but a comment.\n-- name: two\nSELECT 2\n",
            "the query one of a.sql is empty",
        ),
        ("-- name: one\nSELECT 1\n-- name: two\n", "the query two of a.sql is empty"),
    ],
)
def test_a_query_without_a_name_and_a_name_without_a_query_are_refused(text, said):
    with pytest.raises(StoreError, match=said):
        read_queries(text, "a.sql")


def test_two_queries_of_one_name_are_refused_by_name(monkeypatch):
    twice = [("add_blob", "SELECT 1"), ("get_blob", "SELECT 2")]
    monkeypatch.setattr(module, "read_queries", lambda text, source: twice)
    with pytest.raises(StoreError, match="two queries for sqlite have one name: add_blob, get_blob"):
        queries("sqlite")


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
            == (STORES / dialect / "migrations" / f"{name}.sql").read_text()
        )
