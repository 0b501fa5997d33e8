"""Store URLs on the command line, in variables and in settings files, those of earlier versions among them."""

from __future__ import annotations

import json
import os
import stat
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


FILES = {
    "a table": '# mine\n[store]  # here\nurl = "sqlite://chats.db"  # not sqlite://chats.db\nkeep_days = 90\n',
    "a dotted key": "store.url = 'sqlite://chats.db'\n",
    "an inline table": 'store = { url = "sqlite://chats.db", content = true }\n',
    "after a comment": '# url = "sqlite://chats.db"\n[store]\n# "sqlite://chats.db" is here\nurl = "sqlite://chats.db"\n',
    "in several lines": '[store]\nurl = """\nsqlite://chats.db"""\n',
    "with other line ends": '[store]\r\n# mine\r\nurl = "sqlite://chats.db"\r\n\r\n[server]\r\nport = 1\r\n',
    "with a byte order mark": '\ufeff[store]\nurl = "sqlite://chats.db"',
}


@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
def test_a_settings_file_is_rewritten_once_and_only_in_its_url(refold, user_file, text):
    user_file.write_bytes(text.encode())
    user_file.chmod(0o640)
    first, second = refold("db", "upgrade"), refold("db", "upgrade")

    now = user_file.read_bytes().decode()
    assert first.err.count(f"{user_file}: store.url {OLD} is written {NEW} now; the file was changed\n") == 1
    assert "store.url" not in second.err
    assert "warning" not in first.err + second.err
    assert tomllib.loads(now.removeprefix("\ufeff"))["store"]["url"] == NEW
    assert len(now) == len(text) + 1
    assert [line for line in text.splitlines() if OLD not in line] == [
        line for line in now.splitlines() if NEW not in line and OLD not in line
    ]
    assert now.count(OLD) == text.count(OLD) - 1
    assert stat.S_IMODE(user_file.stat().st_mode) == 0o640
    assert [one.name for one in user_file.parent.iterdir()] == ["config.toml"]


def test_the_file_of_a_project_is_rewritten_too(refold, place):
    file = place / "refold.toml"
    file.write_text(f'[store]\nurl = "{OLD}"\n')

    assert "the file was changed" in refold("db", "upgrade").err
    assert file.read_text() == f'[store]\nurl = "{NEW}"\n'


def test_a_link_to_a_settings_file_stays_a_link(refold, user_file, tmp_path):
    real = tmp_path / "dotfiles.toml"
    real.write_text(f'[store]\nurl = "{OLD}"\n')
    user_file.symlink_to(real)

    assert refold("db", "upgrade").code == 0
    assert user_file.is_symlink()
    assert NEW in real.read_text()


def test_an_absolute_url_in_a_file_is_rewritten_where_its_store_is_there(refold, user_file, tmp_path):
    path = tmp_path / "chats.db"
    assert refold("import", "-", "--as", "tides", "--store", str(path), stdin=b'[{"role":"user","content":"Hi."}]').code == 0  # fmt: skip
    user_file.write_text(f'[store]\nurl = "sqlite://{path}"\n')
    code, out, err = refold("conversations", "--json")

    assert code == 0
    assert [one["id"] for one in json.loads(out)["conversations"]] == ["tides"]
    assert f"store.url sqlite://{path} is written sqlite:///{path} now; the file was changed\n" in err
    assert user_file.read_text() == f'[store]\nurl = "sqlite:///{path}"\n'
    assert "store.url" not in refold("conversations").err


@pytest.mark.parametrize("content", [None, b"", b"SQLite format 3\0" + bytes(84)], ids=["none", "empty", "other"])  # fmt: skip
def test_an_absolute_url_in_a_file_is_refused_where_no_store_is_there(refold, user_file, tmp_path, content):
    path = tmp_path / "chats.db"
    if content is not None:
        path.write_bytes(content)
    text = f'[store]\nurl = "sqlite://{path}"\n'
    user_file.write_text(text)
    refused = refold("conversations")

    assert refused.code == 2
    assert f"write sqlite:///{path} for the absolute path" in refused.err
    assert user_file.read_text() == text


def test_a_relative_url_in_a_file_that_is_right_stays(refold, place, user_file):
    folder = place.parts[1]
    (place / folder).mkdir()
    user_file.write_text(f'[store]\nurl = "sqlite://{folder}/chats.db"\n')

    assert refold("db", "upgrade").code == 0
    assert user_file.read_text() == f'[store]\nurl = "sqlite:///./{folder}/chats.db"\n'
    assert (place / folder / "chats.db").is_file()


def test_a_settings_file_that_cannot_be_written_holds_all_the_same(refold, place, user_file):
    user_file.write_text(f'[store]\nurl = "{OLD}"\n')
    user_file.parent.chmod(0o500)
    try:
        if os.access(user_file.parent, os.W_OK):
            pytest.skip("nothing is read-only for root")
        made = refold("db", "upgrade")
    finally:
        user_file.parent.chmod(0o700)

    assert made.code == 0
    assert "the file could not be changed: Permission denied" in made.err
    assert (place / "chats.db").is_file()


def test_a_url_with_escapes_of_toml_is_left_to_the_user(refold, place, user_file):
    text = '[store]\nurl = "sqlite://ch\\u0061ts.db"\n'
    user_file.write_text(text)
    made = refold("db", "upgrade")

    assert made.code == 0
    assert f"store.url {OLD} is written {NEW} now; please change it" in made.err
    assert user_file.read_text() == text
    assert (place / "chats.db").is_file()


@pytest.mark.parametrize("command", [("config", "show"), ("config", "check")], ids=" ".join)
def test_commands_about_settings_change_no_file(refold, user_file, command):
    text = f'[store]\nurl = "{OLD}"\n'
    user_file.write_text(text)

    assert refold(*command).code == 0
    assert user_file.read_text() == text


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
