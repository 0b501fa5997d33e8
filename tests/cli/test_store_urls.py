"""Store URLs on the command line, in variables and in settings files, those of earlier versions among them."""

from __future__ import annotations

import os
import tomllib

import pytest

OLD = "sqlite://chats.db"
NEW = "sqlite:///chats.db"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The folder of a project, and a user without any file."""
    for name in [name for name in os.environ if name.startswith("REFOLD_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "project"
    (folder / ".git").mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def user_file(place, tmp_path):
    path = tmp_path / "config" / "refold" / "config.toml"
    path.parent.mkdir(parents=True)
    return path


@pytest.mark.parametrize(
    ("url", "path"),
    [
        (NEW, "project/chats.db"),
        ("sqlite:///{root}/chats.db", "chats.db"),
        ("chats.db", "project/chats.db"),
        ("./chats.db", "project/chats.db"),
        ("{root}/chats.db", "chats.db"),
        ("~/chats.db", "chats.db"),
    ],
)
@pytest.mark.parametrize("door", ["flag", "REFOLD_STORE", "REFOLD_STORE_URL", "file"])
def test_every_door_takes_urls_and_paths(refold, place, user_file, tmp_path, monkeypatch, door, url, path):
    url = url.format(root=tmp_path)
    if door == "file":
        user_file.write_text(f'[store]\nurl = "{url}"\n')
    elif door != "flag":
        monkeypatch.setenv(door, url)
    made = refold("db", "upgrade", *(["--store", url] if door == "flag" else []))

    assert (made.code, "warning" in made.err) == (0, False)
    assert (tmp_path / path).is_file()


@pytest.mark.parametrize("is_there", [True, False], ids=["the file is there", "its first folder is there"])
@pytest.mark.parametrize("command", [("db", "upgrade"), ("conversations",), ("keys", "list")], ids=" ".join)
def test_an_absolute_url_of_an_earlier_version_is_refused(refold, place, tmp_path, command, is_there):
    path = tmp_path / "chats.db"
    if is_there:
        assert refold("db", "upgrade", "--store", str(path)).code == 0
    code, out, err = refold(*command, "--store", f"sqlite://{path}")

    assert (code, out) == (2, "")
    assert err.startswith(f"error: the store URL sqlite://{path} is a relative path")
    assert f"hint: write sqlite:///{path} for the absolute path, or sqlite:///.{path} for the relative" in err
    assert path.exists() is is_there
    assert {one.name for one in place.iterdir()} == {".git"}


@pytest.mark.parametrize("door", ["--store", "REFOLD_STORE", "REFOLD_STORE_URL"])
def test_a_relative_url_of_an_earlier_version_works_with_one_warning(refold, place, monkeypatch, door):
    told = f"warning: the store URL {OLD} has the old form of a relative path: write {NEW}\n"
    if door != "--store":
        monkeypatch.setenv(door, OLD)
    for command in (("db", "upgrade"), ("conversations", "--json")):
        result = refold(*command, *([door, OLD] if door == "--store" else []))

        assert result.code == 0
        assert result.err.count("warning") == 1
        assert told in result.err
    assert (place / "chats.db").is_file()


def test_a_store_that_is_not_there_is_named_by_its_whole_path(refold, place):
    told = refold("conversations", "--store", NEW)

    assert told.code == 2
    assert str(place / "chats.db") in told.err


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("chats.db", "chats.db"),
        ("data/chats.sqlite3", "data/chats.sqlite3"),
        ("/var/lib/chats", "/var/lib/chats"),
        ("~/chats", "~/chats"),
        ("./chats", "./chats"),
        ("sk-planted", "***"),
        ("/me:planted@host/chats.db", "***"),
    ],
)
def test_a_path_is_shown_where_it_looks_like_one(refold, place, monkeypatch, url, shown):
    monkeypatch.setenv("REFOLD_STORE_URL", url)
    told = refold("config", "show").out

    assert tomllib.loads(told)["store"]["url"] == shown


@pytest.mark.parametrize(
    "url", ["memory", "postgresql//me:planted@host", "host=h password=planted", "c:\\planted"]
)
def test_what_is_neither_url_nor_path_is_a_fault_of_the_settings(refold, user_file, url):
    user_file.write_text(f"[store]\nurl = '{url}'\n")
    code, out, err = refold("config", "check")

    assert code == 1
    assert "store.url" in out
    assert "planted" not in out + err
