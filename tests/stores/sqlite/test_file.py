"""Whatever is wrong with a path is said with a hint before anything is written, and what was there stays as it was."""

from __future__ import annotations

import os
from pathlib import Path

import apsw
import pytest

from refold.model.errors import StoreError
from refold.stores.sqlite import file
from refold.stores.sqlite.file import check_version, network_filesystem, patiently
from refold.stores.sqlite.store import SqliteStore
from tests.contract.talks import ANNA, begin, read, say


async def refusal(path: Path) -> str:
    """What opening says; it must not leave anything open."""
    with pytest.raises(StoreError) as refused:
        await SqliteStore.open(path)
    assert refused.value.hint
    return str(refused.value)


async def test_a_folder_that_is_not_there(tmp_path):
    assert "mkdir" in await refusal(tmp_path / "none" / "a.db")
    assert not (tmp_path / "none").exists()


async def test_a_folder_in_place_of_a_file(tmp_path):
    assert "folder" in await refusal(tmp_path)


@pytest.mark.skipif(
    not Path("/sys").is_dir(), reason="the one folder that not even root can write to is Linux's"
)
async def test_a_folder_that_cannot_be_written():
    assert "writable" in await refusal(Path("/sys/refold.db"))


async def test_a_file_that_is_no_database(tmp_path):
    path = tmp_path / "letter.txt"
    path.write_bytes(b"Dear Anna, " * 500)
    before = path.read_bytes()

    assert "not an SQLite database" in await refusal(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


async def test_a_database_of_another_program(tmp_path):
    path = tmp_path / "places.db"
    other = apsw.Connection(str(path))
    other.execute("CREATE TABLE migration (name TEXT); CREATE TABLE message (body)")
    other.close()
    before = path.read_bytes()

    assert "another program" in await refusal(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


async def test_an_empty_file_is_begun(tmp_path):
    (tmp_path / "a.db").touch()
    store = await SqliteStore.open(tmp_path / "a.db")
    await say(store, await begin(store), "storm")
    await store.close()


async def fill(path: Path) -> None:
    store = await SqliteStore.open(path)
    head = await begin(store)
    for number in range(40):
        head = await say(store, head, f"{number} " + "words " * 200)
    await store.close()


async def test_a_file_with_nothing_but_its_beginning(tmp_path):
    path = tmp_path / "a.db"
    await fill(path)
    path.write_bytes(path.read_bytes()[:150] + b"\xff" * 8_000)
    before = path.read_bytes()

    said = await refusal(path)
    assert "damaged" in said or "not an SQLite database" in said
    assert path.read_bytes() == before


async def test_a_damaged_file_says_so_when_the_damage_is_met(tmp_path):
    path = tmp_path / "a.db"
    await fill(path)
    whole = bytearray(path.read_bytes())
    for page in range(0, len(whole), 4_096):
        if b"words words words" in whole[page : page + 4_096]:
            whole[page : page + 4_096] = os.urandom(4_096)
    path.write_bytes(whole)
    store = await SqliteStore.open(path)

    with pytest.raises(StoreError) as met:
        await read(store, await store.head(ANNA, "talk"))
    assert "damaged" in str(met.value)
    assert "backup" in met.value.hint
    assert await store.check()
    await store.close()


async def test_a_refused_file_can_be_opened_once_it_is_put_right(tmp_path):
    path = tmp_path / "a.db"
    path.write_bytes(b"nonsense")
    await refusal(path)
    path.unlink()
    store = await SqliteStore.open(path)

    assert await store.owners() == []
    await store.close()


async def test_a_network_filesystem_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(file, "network_filesystem", lambda _: "nfs4")

    assert "nfs4" in await refusal(tmp_path / "a.db")
    assert not list(tmp_path.iterdir())


MOUNTS = """\
22 28 0:20 / /proc rw,relatime shared:12 - proc proc rw
28 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
31 28 0:30 / /home rw,relatime - nfs4 server:/home rw
32 31 0:31 / /home/anna/local rw,relatime - ext4 /dev/vdb rw
33 28 0:32 / /mnt/my\\040share rw,relatime - cifs //server/share rw
34 28 0:33 / /mnt/far rw,relatime - fuse.sshfs host: rw
35 28 0:34 / /mnt/twice rw,relatime - ext4 /dev/vdc rw
36 28 0:35 / /mnt/twice rw,relatime - 9p share rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/data/a.db", ""),
        ("/home/anna/a.db", "nfs4"),
        ("/home/anna/local/a.db", ""),
        ("/homely/a.db", ""),
        ("/mnt/my share/a.db", "cifs"),
        ("/mnt/far/deep/down/a.db", "fuse.sshfs"),
        ("/mnt/twice/a.db", "9p"),
    ],
)
def test_the_mount_that_holds_a_path_tells_where_it_is(path, kind):
    assert network_filesystem(Path(path), MOUNTS) == kind


def test_a_system_that_does_not_tell_refuses_nothing():
    assert network_filesystem(Path("/data/a.db"), "") == ""


@pytest.mark.parametrize("version", ["3.40.1", "3.51.2", "3.7.17"])
def test_a_library_that_damages_files_is_refused(version):
    with pytest.raises(StoreError) as refused:
        check_version(version)

    assert version in str(refused.value)
    assert "apsw" in refused.value.hint


@pytest.mark.parametrize("version", ["3.51.3", "3.54.1", "4.0.0"])
def test_a_library_that_does_not_is_taken(version):
    check_version(version)


def test_a_writer_waits_for_its_turn_and_not_for_ever():
    times = iter([0.0, 1.0, 59.0, 61.0])
    wait = patiently(lambda: 60.0, lambda: next(times))

    assert [wait(0), wait(1), wait(2)] == [True, True, False]


async def test_nobody_else_may_read_the_file_and_every_commit_goes_to_the_disk(tmp_path):
    store = await SqliteStore.open(tmp_path / "a.db")
    await begin(store)
    settings = store._file._writer.connection.pragma

    assert settings("journal_mode") == "wal"
    assert settings("synchronous") == 2, "FULL"
    assert settings("foreign_keys") == 1
    assert settings("trusted_schema") == 0
    assert settings("secure_delete") == 1
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"a.db": 0o600, "a.db-wal": 0o600, "a.db-shm": 0o600}
    await store.close()
