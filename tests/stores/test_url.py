"""A URL names a store, and one that names none is refused in words, without repeating what may be a secret."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from refold.model.errors import ConfigError, MissingExtra, RefoldError, StoreError
from refold.stores.memory import MemoryStore
from refold.stores.url import default_path, open_store
from tests.contract.talks import begin

HOME = Path("/home/anna")


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:a.db",
        "sqlite:/a.db",
        "sqlite:///a.db?mode=ro",
        "sqlite:///:memory:",
        "sqlite://:memory:",
        "sqlite://a%00b",
        "mysql://root:secret@host/db",
        "postgresql:secret",
        "postgresql//anna:secret@host/db",
        "host=localhost password=secret",
        "memory:secret",
        "memory",
        "postgres",
        ":memory:",
        "C:\\secret.db",
        ":",
        "http://secret",
    ],
)
async def test_a_wrong_url_is_refused_with_a_hint_and_without_its_words(url):
    with pytest.raises(ConfigError) as refused:
        await open_store(url)

    assert refused.value.hint
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("platform", "environ", "expected"),
    [
        ("linux", {}, "/home/anna/.local/share/refold/refold.db"),
        ("linux", {"XDG_DATA_HOME": "/data"}, "/data/refold/refold.db"),
        ("linux", {"XDG_DATA_HOME": "data"}, "/home/anna/.local/share/refold/refold.db"),
        ("darwin", {"XDG_DATA_HOME": "/data"}, "/home/anna/Library/Application Support/refold/refold.db"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/refold/refold.db"),
        ("win32", {}, "/home/anna/AppData/Local/refold/refold.db"),
    ],
)
def test_the_default_is_where_the_platform_keeps_data(platform, environ, expected):
    assert default_path(environ, platform, HOME) == Path(expected)


async def test_a_store_in_memory_forgets():
    store = await open_store("memory:")

    assert isinstance(store, MemoryStore)
    await store.close()


@pytest.mark.parametrize("url", ["", "sqlite:", "sqlite://", "sqlite:///"])
async def test_without_a_path_the_file_is_in_the_data_folder(monkeypatch, tmp_path, url):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "not" / "there"))
    store = await open_store(url)
    await begin(store)
    await store.close()

    folder = tmp_path / "not" / "there" / "refold"
    assert (folder / "refold.db").stat().st_mode & 0o777 == 0o600, "nobody else may read it"
    assert folder.stat().st_mode & 0o777 == 0o700


async def test_a_data_folder_that_cannot_be_made_is_said(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    with pytest.raises(StoreError) as refused:
        await open_store()

    assert "sqlite:///" in refused.value.hint


@pytest.mark.parametrize(
    ("url", "module", "extra"), [("sqlite:", "apsw", "sqlite"), ("postgresql://x", "psycopg", "postgres")]
)
async def test_what_is_not_installed_is_named(monkeypatch, tmp_path, url, module, extra):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    for name in [
        name for name in sys.modules if name.split(".")[0] == module or name.startswith("refold.stores.")
    ]:
        package, _, child = name.rpartition(".")
        if child and hasattr(sys.modules.get(package), child):  # a new import sets it, too
            monkeypatch.setattr(sys.modules[package], child, sys.modules[name])
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra) as missing:
        await open_store(url)

    assert missing.value.extra == extra


async def test_a_server_that_is_not_there_is_said_without_its_password():
    with pytest.raises(RefoldError) as refused:
        await open_store("postgresql://anna:secret@127.0.0.1:9/talks")

    assert refused.value.hint
    assert "secret" not in str(refused.value)
