"""`refold config`, as people use it."""

from __future__ import annotations

import json
import os
import re

import pytest

from refold.config.formats import commented
from refold.config.tree import KEYS
from tests.cli.test_main import options_in, sections


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder of a project, and a user without any file."""
    for name in [name for name in os.environ if name.startswith("REFOLD_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = tmp_path / "project"
    (folder / ".git").mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.feature("X1")
def test_init_writes_a_commented_file(refold, place):
    path = place / "refold.toml"
    assert refold("config", "init") == (0, f"{path}\n", "")
    assert path.read_text() == commented()
    assert refold("config", "check").code == 0
    assert {one.name for one in place.iterdir()} == {".git", "refold.toml"}


def test_init_writes_over_nothing_unless_it_is_forced(refold, place):
    path = place / "refold.toml"
    path.write_text("[server]\nport = 1\n")
    code, out, err = refold("config", "init")
    assert (code, out) == (2, "")
    assert "is there already" in err
    assert "hint: --force" in err
    assert path.read_text() == "[server]\nport = 1\n"
    assert refold("config", "init", "--force").code == 0
    assert path.read_text() == commented()


def test_init_for_the_user(refold, place, tmp_path):
    path = tmp_path / "config" / "refold" / "config.toml"
    assert refold("config", "init", "--user").out == f"{path}\n"
    assert path.read_text() == commented()
    assert not (place / "refold.toml").exists()


def test_a_place_that_cannot_be_written_is_told(refold, place, monkeypatch):
    (place / "file").touch()
    monkeypatch.setenv("REFOLD_CONFIG", str(place / "file" / "config.toml"))
    code, _, err = refold("config", "init", "--user")
    assert code == 2
    assert "cannot be written" in err


@pytest.mark.feature("X1")
def test_show_says_where_each_setting_comes_from(refold, place, tmp_path, monkeypatch):
    mine = tmp_path / "config" / "refold" / "config.toml"
    mine.parent.mkdir(parents=True)
    mine.write_text('[server]\nport = 1\nlog = "json"\n[cache]\nttl = "1h"\n')
    (place / "refold.toml").write_text('[server]\nport = 2\n[cache]\nttl = "off"\n')
    monkeypatch.setenv("REFOLD_CACHE_TTL", "5m")
    code, out, err = refold("config", "show", "--origin")
    assert (code, err) == (0, "")
    assert f"port = 2  # the project file {place / 'refold.toml'}\n" in out
    assert f'log = "json"  # the user file {mine}\n' in out
    assert 'ttl = "5m"  # the variable REFOLD_CACHE_TTL\n' in out
    told = json.loads(refold("config", "show", "--json").out)
    assert told["settings"]["server"]["port"] == 2
    assert told["origins"]["server.port"] == {"source": "project", "place": str(place / "refold.toml")}
    assert set(told["origins"]) == set(KEYS)


def test_show_without_more_tells_no_origins(refold, place):
    out = refold("config", "show").out
    assert "#" not in out
    assert re.findall(r"^\[(\w+)\]$", out, re.MULTILINE) == [
        *("server", "store", "compaction", "cache", "summariser", "notify", "plugins", "cluster")
    ]


def test_show_refuses_what_cannot_be_used(refold, place):
    (place / "refold.toml").write_text("[server]\nport = 70000\n")
    code, out, err = refold("config", "show")
    assert (code, out) == (2, "")
    assert (
        err
        == f"error: {place / 'refold.toml'}, line 2: server.port: it is out of range\nhint: it takes 0 to 65,535\n"
    )


BROKEN = """\
[server]
port = 70000

[compaction]
trigger = 80

[upstreams.openai]
api_key = "sk-canary"
"""


@pytest.mark.feature("X1")
def test_check_lists_everything_that_is_wrong(refold, place):
    path = place / "refold.toml"
    path.write_text(BROKEN)
    code, out, err = refold("config", "check")
    assert code == 1
    assert re.findall(r"line (\d+): ([\w.]+): ", out) == [
        ("2", "server.port"),
        ("5", "compaction.trigger"),
        ("8", "upstreams.openai.api_key"),
    ]
    assert out.count("  hint: ") == 3
    assert err == f"3 faults in {path}\n"
    assert "canary" not in out + err
    faults = json.loads(refold("config", "check", "--json").out)["faults"]
    assert [fault["key"] for fault in faults] == [
        "server.port",
        "compaction.trigger",
        "upstreams.openai.api_key",
    ]


def test_check_reads_a_file_by_its_name(refold, place, tmp_path, monkeypatch):
    monkeypatch.setenv("REFOLD_SERVER_PORT", "nonsense")
    file = tmp_path / "other.toml"
    file.write_text('[cache]\nttl = "1h"\n')
    assert refold("config", "check", str(file)) == (0, "", f"no faults in {file}\n")
    code, out, err = refold("config", "check")
    assert (code, err) == (1, "1 fault in the environment\n")
    assert out.startswith("REFOLD_SERVER_PORT: server.port: ")


def test_check_names_the_places_of_faults_and_not_those_that_are_right(refold, place, monkeypatch):
    path = place / "refold.toml"
    path.write_text('[cache]\nttl = "1h"\n')
    assert refold("config", "check").err == f"no faults in {path} and the environment\n"

    monkeypatch.setenv("REFOLD_NOTIFY_MARKER", "maybe")
    code, out, err = refold("config", "check")
    assert (code, err) == (1, "1 fault in the environment\n")
    assert out == "REFOLD_NOTIFY_MARKER: notify.marker: it is text\n  hint: it takes true or false\n"

    path.write_text("[cache]\nttl = 3\n[notify]\nmarker = [1]\n")
    code, out, err = refold("config", "check")
    assert (code, err) == (1, f"3 faults in the environment and {path}\n")
    assert "another type" not in out


@pytest.mark.parametrize(
    "url", ["ftp://nowhere/chats", "chats", "sqlite://me:secret@host/db", "sqlite:///tmp/new.db"]
)
def test_check_finds_a_store_that_a_command_would_refuse(refold, place, url, monkeypatch):
    """A scheme that does not exist, a word, a password, and a path that earlier versions read from the root."""
    path = place / "refold.toml"
    path.write_text(f'[store]\nurl = "{url}"\n')

    code, out, err = refold("config", "check")
    refused = refold("doctor", "--store", url)

    assert (code, err) == (1, f"1 fault in {path}\n")
    assert refused.code == 2
    told = refused.err.splitlines()[0].removeprefix("error: ")
    assert out.startswith(f"{path}, line 2: store.url")
    assert told in out
    assert "secret" not in out
    path.unlink()
    monkeypatch.setenv("REFOLD_STORE", url)
    code, out, err = refold("config", "check")
    assert (code, err) == (1, "1 fault in the environment\n")


@pytest.mark.parametrize(
    "url", ["memory:", "sqlite:///./chats.db", "sqlite://chats.db", "postgresql://me:secret@host/db"]
)
def test_check_takes_a_store_that_a_command_takes(refold, place, url):
    (place / "refold.toml").write_text(f'[store]\nurl = "{url}"\n')

    assert refold("config", "check").code == 0


@pytest.mark.parametrize("text", [None, "a = = 3"])
def test_check_of_a_file_that_cannot_be_read(refold, place, text):
    if text:
        (place / "refold.toml").write_text(text)
    code, out, err = refold("config", "check", "refold.toml")
    assert (code, out) == (2, "")
    assert err.startswith("error: refold.toml")


def test_schema_is_one_document(refold, place):
    code, out, err = refold("config", "schema")
    assert (code, err) == (0, "")
    assert json.loads(out)["properties"]["server"]["properties"]["port"]["default"] == 7336


@pytest.mark.parametrize("command", ["init", "show", "schema", "check"])
def test_every_command_is_documented_and_explains_itself(refold, command):
    told = sections("config")
    out = refold("config", command, "--help").out
    assert f"`config {command}" in told
    assert f"Example: refold config {command}" in out
    assert not [option for option in options_in(out) if option not in told]


def test_commands_use_the_store_of_the_gateway(refold, place, tmp_path, monkeypatch):
    mine, theirs, other = (f"sqlite:///{tmp_path / name}" for name in ("mine.db", "theirs.db", "other.db"))
    (tmp_path / "config" / "refold").mkdir(parents=True)
    (tmp_path / "config" / "refold" / "config.toml").write_text(f'[store]\nurl = "{mine}"\n')
    made = json.loads(refold("keys", "create", "laptop", "--json").out)
    assert refold("keys", "list", "--json", "--store", mine).out.count(made["id"]) == 1
    assert refold("keys", "list").err == ""

    path = place / "refold.toml"
    path.write_text(f'[store]\nurl = "{theirs}"\n[no-section]\nkey = 1\n')
    assert refold("db", "upgrade").err.startswith(f"the store is the one that {path} names\n")
    assert (tmp_path / "theirs.db").exists()
    monkeypatch.setenv("REFOLD_STORE_URL", mine)
    assert made["id"] in refold("keys", "list", "--json").out
    monkeypatch.setenv("REFOLD_STORE", other)
    assert refold("db", "upgrade").code == 0
    assert (tmp_path / "other.db").exists()


def test_a_settings_file_that_cannot_be_read_is_named(refold, place):
    (place / "refold.toml").write_text("[store\n")
    refused = refold("conversations")

    assert refused.code == 2
    assert str(place / "refold.toml") in refused.err
