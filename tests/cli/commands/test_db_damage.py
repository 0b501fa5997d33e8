"""`refold db check` on a file that cannot even be opened."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def cut_short(kept, store):
    """The program, and a store of which only the first part is there."""
    whole = store.read_bytes()
    store.write_bytes(whole[: len(whole) // 3])
    return kept


def test_a_file_that_is_cut_short_is_a_fault_and_a_backup_is_what_helps(cut_short, store):
    told = cut_short("db", "check")

    assert told.code == 1
    assert told.out == f"the database is damaged: {store}\n"
    assert told.err.startswith("1 fault\nhint: ")
    assert "backup" in told.err
    assert "refold db check" not in told.err


def test_a_program_is_told_of_it_in_a_document(cut_short, store):
    told = cut_short("db", "check", "--json")

    assert told.code == 1
    assert json.loads(told.out) == {"faults": [f"the database is damaged: {store}"]}


def test_a_header_that_is_not_what_it_was_is_a_fault_too(kept, store):
    whole = store.read_bytes()
    store.write_bytes(whole[:16] + b"garbage " * 4 + whole[48:])

    assert kept("db", "check").code == 1


def test_what_is_no_store_of_ours_is_still_refused(refold, store):
    store.write_text("a shopping list, and no database")
    told = refold("db", "check")

    assert (told.code, told.out) == (2, "")
    assert "is not an SQLite database" in told.err
