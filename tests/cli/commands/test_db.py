"""`refold db`: the store as a whole."""

from __future__ import annotations

import gzip
import json
import sys

import apsw
import pytest

from tests.cli.commands.test_doctor import DAMAGES, damage
from tests.contract.postgres import get_server, make_database


def lines_of(refold, url: str) -> list[str]:
    return refold("db", "export", "-", "--store", url).out.splitlines()


def test_a_store_moves_to_another_whole(kept, store, tmp_path):
    kept("compact", "shifts", "--window", "12000")
    kept("undo", "shifts")
    kept("compact", "shifts", "--window", "14000")
    kept("import", "examples/support-chat.anthropic.json", "--as", "theirs", "--owner", "eve")
    archive, other = tmp_path / "all.jsonl.gz", f"sqlite:///{tmp_path / 'other.db'}"
    assert kept("db", "export", str(archive)).err == "exported 3 conversations\n"
    assert kept("db", "import", str(archive), "--store", other).err == "imported 3 conversations\n"

    assert lines_of(kept, other) == lines_of(kept, f"sqlite:///{store}")
    assert kept("doctor", "--store", other).code == 0
    assert kept("search", "half an hour gap", "--store", other).out == kept("search", "half an hour gap").out
    assert kept("diff", "shifts", "--store", other).out == kept("diff", "shifts").out
    assert kept("undo", "shifts", "--store", other).code == 0
    assert "theirs" in kept("conversations", "--owner", "eve", "--store", other).out


def test_only_one_owner_s(kept, tmp_path):
    kept("import", "examples/support-chat.anthropic.json", "--as", "theirs", "--owner", "eve")
    path = tmp_path / "eve.jsonl"
    exported = kept("db", "export", str(path), "--owner", "eve", "--json")

    assert json.loads(exported.out) == {"exported": 1, "path": str(path), "left_out": []}
    assert b"ferry" not in path.read_bytes()
    assert path.stat().st_mode & 0o077 == 0


def test_what_is_there_already_stays_as_it_is(kept, tmp_path):
    path = tmp_path / "all.jsonl"
    kept("db", "export", str(path))
    kept("delete", "ferry")
    again = kept("db", "import", str(path))

    assert again.code == 1
    assert again.err == "'shifts' is there already and stays as it is\nimported 1 conversation\n"
    assert kept("doctor").code == 0


def test_an_archive_that_is_cut_short_leaves_nothing_half_done(kept, tmp_path):
    path, other = tmp_path / "all.jsonl", f"sqlite:///{tmp_path / 'other.db'}"
    kept("db", "export", str(path))
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:-60]))
    told = kept("db", "import", str(path), "--store", other)

    assert told.code == 2
    assert "the archive is cut short" in told.err
    assert names(kept, other) == ["ferry"]


def names(refold, url: str) -> list[str]:
    return [line.split()[0] for line in refold("conversations", "--store", url).out.splitlines()[1:]]


def test_what_is_damaged_is_left_out_of_an_export_and_what_is_not_whole_of_an_import(kept, store, tmp_path):
    path, other = tmp_path / "all.jsonl", f"sqlite:///{tmp_path / 'other.db'}"
    kept("compact", "shifts", "--window", "12000")
    damage(store, DAMAGES["I-10"])
    exported = kept("db", "export", str(path))
    assert (exported.code, exported.err) == (
        1,
        "'shifts' was left out: a stored summary cannot be read\nexported 1 conversation\n",
    )
    told = kept("db", "import", str(path), "--store", other)

    assert (told.code, told.err) == (
        1,
        "'shifts' was left out: the archive does not fit together\nimported 1 conversation\n",
    )
    assert names(kept, other) == ["ferry"]
    again = json.loads(kept("db", "import", str(path), "--store", other, "--json").out)
    assert again == {"imported": 0, "skipped": ["ferry"], "left_out": ["shifts"]}


def test_a_message_that_was_changed_is_left_out_of_an_export_and_never_gets_a_new_digest(
    kept, store, tmp_path
):
    path, other = tmp_path / "all.jsonl", f"sqlite:///{tmp_path / 'other.db'}"
    damage(store, "UPDATE message SET body = CAST(replace(CAST(body AS TEXT), 'At noon', 'At nine') AS BLOB)")
    exported = kept("db", "export", str(path))

    assert (exported.code, exported.err) == (
        1,
        "'ferry' was left out: the bytes of message 1 have changed\nexported 1 conversation\n",
    )
    assert b"At nine" not in path.read_bytes()
    assert kept("db", "import", str(path), "--store", other).code == 1
    assert names(kept, other) == ["shifts"]
    assert kept("doctor", "--store", other).code == 0


@pytest.mark.parametrize(
    "part, instead, told",
    [
        ('"body":"{', '"body":"x{', "message 0 cannot be read"),
        ('"format":"chat"', '"format":"klingon"', "message 0 is in a format that is not known"),
        ('"tokens":', '"tokens":18446744073709551616', "line 4 of the archive cannot be read"),
    ],
    ids=["body", "format", "number"],
)
def test_what_could_not_be_read_again_is_left_out_of_an_import(kept, tmp_path, part, instead, told):
    path, other = tmp_path / "all.jsonl", f"sqlite:///{tmp_path / 'other.db'}"
    kept("db", "export", str(path))
    lines = path.read_text().splitlines(keepends=True)
    assert '"role":"user"' in lines[3]
    assert part in lines[3]
    lines[3] = lines[3].replace(part, instead, 1)
    path.write_text("".join(lines))
    imported = kept("db", "import", str(path), "--store", other)

    assert (imported.code, imported.err) == (
        1,
        f"'ferry' was left out: {told}\nimported 1 conversation\n",
    )
    assert names(kept, other) == ["shifts"]
    assert kept("doctor", "--store", other).code == 0


def test_on_a_terminal_each_conversation_is_counted_once(kept, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    told = kept("db", "export", str(tmp_path / "all.jsonl")).err

    assert told.count("exported 1 conversations\x1b[K") == told.count("exported 2 conversations\x1b[K") == 1
    assert told.count("\r") == 3


def test_what_is_no_archive_is_refused(kept, tmp_path):
    path = tmp_path / "no.jsonl"
    for content, words in (
        (b"", "this is no archive"),
        (b"{}\n", "line 1 of the archive"),
        (b"\xff\n", "line 1"),
    ):
        path.write_bytes(content)
        told = kept("db", "import", str(path))
        assert told.code == 2
        assert words in told.err
    assert kept("db", "import", "nosuch.jsonl").code == 2
    (tmp_path / "no.gz").write_bytes(gzip.compress(b"x")[:5])
    assert kept("db", "import", str(tmp_path / "no.gz")).code == 2


def test_a_backup_is_a_store(kept, tmp_path):
    copy = tmp_path / "copy.db"
    assert kept("db", "backup", str(copy)).code == 0

    assert kept("conversations", "--store", f"sqlite:///{copy}").out == kept("conversations").out
    refused = kept("db", "backup", str(copy))
    assert refused.code == 2
    assert "there is a file of this name already" in refused.err


def test_an_export_never_replaces_a_file(kept, tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("mine")

    assert kept("db", "export", str(path)).code == 2
    assert path.read_text() == "mine"
    assert kept("db", "export", str(tmp_path / "nosuch" / "x")).code == 2


def test_the_file_is_checked(kept, store):
    assert kept("db", "check").err == "no faults\n"
    damage(store, DAMAGES["I-4"])
    checked = kept("db", "check")

    assert checked.code == 1
    assert "is not what it was when it came" in checked.out
    assert json.loads(kept("db", "check", "--json").out)["faults"]


def test_a_store_of_a_newer_version_is_left_alone(kept, store):
    assert kept("db", "upgrade").code == 0
    connection = apsw.Connection(str(store))
    connection.execute("INSERT INTO migration (name) VALUES ('9999_later')")
    connection.close()
    told = kept("db", "upgrade")

    assert told.code == 2
    assert "newer Refold" in told.err


def test_a_file_is_written_anew_without_what_was_deleted(kept, store):
    kept("delete", "shifts")
    done = json.loads(kept("db", "vacuum", "--json").out)

    assert done["bytes_after"] <= done["bytes_before"]
    assert done["bytes_after"] == store.stat().st_size
    assert kept("db", "vacuum").err.startswith("the file was written anew: ")
    assert kept("db", "check").code == 0


@pytest.mark.parametrize("command", [["check"], ["backup", "copy.db"], ["vacuum"]], ids=lambda one: one[0])
def test_a_server_does_for_itself_what_a_file_needs_done(refold, pytestconfig, command):
    url = make_database(get_server(pytestconfig), "served")
    assert refold("db", "upgrade", "--store", url).code == 0
    refused = refold("db", *command, "--store", url)

    assert refused.code == 2
    assert "by its server" in refused.err
    assert "hint: " in refused.err
