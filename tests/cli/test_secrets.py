"""No command shows a secret of the settings: not where they are listed, not where they are refused, not where a store is missing."""

from __future__ import annotations

import json
import logging
import os
import re

import pytest

from refold.config.tree import all_keys
from refold.model.errors import ConfigError

PLANTED = re.compile("pl[a4]nt|nted", re.IGNORECASE)
"""Every secret of these tests is `planted`, or `pl` and `nted` with a character between that somebody forgot to escape."""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder of a project, and a user without any file."""
    for name in [name for name in os.environ if name.startswith("REFOLD_")]:
        monkeypatch.delenv(name)
    for kind in ("CONFIG", "DATA"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind.lower()))
    folder = tmp_path / "project"
    (folder / ".git").mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(autouse=True)
def without_port(monkeypatch):
    """`refold serve` may write its log, and does not get as far as a port."""
    for name in ("", "refold"):
        logger = logging.getLogger(name)
        monkeypatch.setattr(logger, "handlers", [*logger.handlers])
        monkeypatch.setattr(logger, "level", logger.level)

    def refuse(*_: object) -> None:
        raise ConfigError("it would have started")

    monkeypatch.setattr("refold.gateway.server.listen", refuse)


def seen(*results) -> str:
    """All that was printed."""
    text = "".join(result.out + result.err for result in results)
    assert not [words for words in ("Traceback", "no such command", "would have started") if words in text]
    return text


def shown(refold) -> str:
    return seen(refold("config", "show", "--origin"), refold("config", "show", "--json"))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("memory:", "memory:"),
        ("sqlite:////var/lib/refold.db", "sqlite:////var/lib/refold.db"),
        ("sqlite:////var/lib/refold.db?key=planted", "sqlite:////var/lib/refold.db?***"),
        ("sqlite://me:planted@host/refold.db", "sqlite://***"),
        ("postgresql://host/db", "postgresql://host/db"),
        ("postgresql://me:planted@host/db", "postgresql://***@host/db"),
        ("postgresql://planted@host/db", "postgresql://***@host/db"),
        ("postgresql://me:pl@nted@host:5432/db", "postgresql://***@host:5432/db"),
        ("postgresql://me:pl%40nted@host/db", "postgresql://***@host/db"),
        ("postgresql://me:pl/nted@host/db", "postgresql://***"),
        ("postgresql://me:12/pl@nted@host/db", "postgresql://***"),
        ("postgresql://me:pl?nted@host/db", "postgresql://***"),
        ("postgresql://me:12?planted@host/db", "postgresql://***"),
        ("postgresql://me:pl#nted@host/db", "postgresql://***"),
        ("postgresql://me:pl nted@host/db", "postgresql://***@host/db"),
        ("postgresql://me:planted/db", "postgresql://***"),
        ("postgresql://me%3Aplanted%40host/db", "postgresql://***"),
        ("postgresql:///db?user=me&password=planted", "postgresql:///db?***"),
        ("postgresql:///host=h password=planted", "postgresql:///***"),
        ("postgresql://host/db;password=planted", "postgresql://host/***"),
        ("postgresql:host=h password=planted", "postgresql:***"),
        ("postgresql://me:planted@[2001:db8::1]:5432/db", "postgresql://***@[2001:db8::1]:5432/db"),
        ("postgresql://me:planted@h1:5432,h2/db", "postgresql://***@h1:5432,h2/db"),
        ("postgresql://me:planted@%2Fvar%2Frun/db#planted", "postgresql://***@%2Fvar%2Frun/db#***"),
    ],
)
def test_a_url_is_shown_without_what_may_be_secret_in_it(refold, place, monkeypatch, url, expected):
    monkeypatch.setenv("REFOLD_STORE_URL", url)

    assert json.loads(refold("config", "show", "--json").out)["settings"]["store"]["url"] == expected
    assert not PLANTED.search(shown(refold))


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("UPSTREAMS_BOX_URL", "https://host:8443/v1?key=planted#planted", "https://host:8443/v1?***"),
        ("UPSTREAMS_BOX_URL", "https://[::1]/v1;planted=1", "https://[::1]/***"),
        ("UPSTREAMS_BOX_KEY_COMMAND", "vault read planted", "vault ***"),
        ("UPSTREAMS_BOX_KEY_COMMAND", "PLANTED=1 vault", "***"),
        ("UPSTREAMS_BOX_HEADERS", "X-Title=planted", {"X-Title": "***"}),
        ("UPSTREAMS_BOX_KEY_ENV", "gsk_planted", "***"),
        ("UPSTREAMS_BOX_KEY_ENV", "BOX_KEY", "BOX_KEY"),
        ("COMPACTION_SENSITIVE", '["planted", "(?i)planted .*"]', ["***", "***"]),
        (
            "SUMMARISER_MODELS",
            '["openai:gpt-4o-mini", "qwen3@https://host/v1?key=planted"]',
            ["openai:gpt-4o-mini", "qwen3@https://host/v1?***"],
        ),
        ("SUMMARISER_MODELS", '["openai:sk-planted"]', ["***"]),
    ],
)
def test_other_settings_are_shown_without_their_secrets(
    refold, place, monkeypatch, variable, value, expected
):
    monkeypatch.setenv("REFOLD_UPSTREAMS", "box=https://host/v1")
    monkeypatch.setenv(f"REFOLD_{variable}", value)
    tree = json.loads(refold("config", "show", "--json").out)["settings"]
    section, _, field = variable.lower().partition("_")
    table = tree["upstreams"]["box"] if section == "upstreams" else tree[section]

    assert table[field.removeprefix("box_")] == expected
    assert not PLANTED.search(shown(refold))


@pytest.mark.parametrize("url", ["sqlite://me:planted@x/y.db", "sqlite://me:planted@x", "planted", "pl/nted"])
@pytest.mark.parametrize(
    "args", [("conversations",), ("doctor",), ("db", "check"), ("keys", "create"), ("serve", "--port", "0")]
)
def test_a_secret_in_the_place_of_a_file_is_not_named_as_its_path(refold, place, monkeypatch, url, args):
    monkeypatch.setenv("REFOLD_STORE_URL", url)
    result = refold(*args)

    assert result.code == 2
    assert not PLANTED.search(seen(result))
    assert list(place.iterdir()) == [place / ".git"], "no file of this name was made"
    assert not PLANTED.search(shown(refold))


def test_a_word_that_is_the_name_of_a_file_is_a_store(refold, place):
    assert refold("db", "upgrade", "--store", "./chats").code == 0
    assert refold("conversations", "--store", "chats").code == 0


@pytest.mark.parametrize("command", ["compact", "context", "check"])
def test_an_address_in_the_place_of_a_model_is_not_shown(refold, place, command):
    transcript = b'[{"role": "user", "content": "hello"}]'
    result = refold(command, "-", "--model", "m@https://me:planted@host/v1", stdin=transcript)
    assert result.code == 2
    assert "--model takes the name of a model" in result.err
    named = b'{"model": "m@https://me:planted@host/v1", "messages": %b}' % transcript
    printed = [refold(command, "-", stdin=named).err, refold(command, "-", "--json", stdin=named).err]
    assert not PLANTED.search(result.out + result.err + "".join(printed))


WRONG = [
    '[store]\nurl = "host=h user=me password=planted"',
    '[store]\nurl = "me:planted@host/db"',
    '[store]\nurl = "mysql://me:planted@host/db"',
    '[store]\nurl = ["postgresql://me:planted@host/db"]',
    '[store]\n"postgresql://me:planted@host/db" = 1',
    '["postgresql://me:pl.a.planted@host"]\nurl = 1',
    '[upstreams.box]\nurl = "https://me:planted@host/v1"',
    '[upstreams.box]\nurl = "ftp://host/?planted"',
    '[upstreams.box]\nurl = "planted"',
    '[upstreams.box]\nurl = "https://host:planted/v1"',
    '[upstreams.box]\nurl = { planted = "planted" }',
    '[upstreams."https://me:planted@host/v1"]\nformats = ["chat"]',
    '[upstreams."https://me:planted@host/v1"]\nulr = "chat"',
    '[upstreams."https://me:planted@host/v1"]\n[upstreams."https://me:planted@host/v1"]',
    '[upstreams.openai]\nkey_command = ["vault", "planted"]',
    '[upstreams.openai]\nkey_command = "vault planted"\nkey_env = "BOX"',
    '[upstreams.openai]\nkey_env = "sk-planted"',
    '[upstreams.openai]\napi_key = "sk-planted"',
    '[upstreams.openai]\nheaders = { Authorization = "Bearer planted" }',
    '[upstreams.openai]\nheaders = "X-Title: planted"',
    '[upstreams.openai]\nheaders = { X-Title = "planted\\n" }',
    '[upstreams.openai]\nheaders = { X-Title = ["planted"] }',
    '[upstreams.openai]\nheaders = { "X Title" = "planted" }',
    '[compaction]\nsensitive = "planted"',
    '[compaction]\nsensitive = ["(?P<planted>a)(?P<planted>b)"]',
    '[compaction]\nsensitive = ["[z-a]planted", "("]',
    '[summariser]\nmodels = ["https://me:planted@host/v1"]',
    '[summariser]\nmodels = ["qwen3@https://me:planted@host/v1"]',
    '[summariser]\nmodels = ["me:planted@host"]',
    "[store]\nurl = postgresql://me:planted@host/db",
    '[store]\nurl = "postgresql://me:planted@host/db',
]


@pytest.mark.parametrize("text", WRONG)
def test_a_value_that_is_refused_is_not_repeated(refold, place, tmp_path, text):
    """Whatever is wrong with it, and whoever reads the settings."""
    file = tmp_path / "config" / "refold" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(f"{text}\n")
    told = [
        refold("config", "check"),
        refold("config", "check", "--json"),
        refold("config", "check", str(file)),
        refold("config", "show"),
        refold("serve", "--port", "0"),
    ]

    refused = [
        one for one in told if "mysql" not in text or one is not told[3]
    ]  # a plugin may bring that kind of store
    assert all(result.code for result in refused)
    assert not PLANTED.search(seen(*told, refold("conversations"), refold("doctor")))


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("STORE_URL", "host=h password=planted"),
        ("STORE", "me:planted@host/db"),
        ("UPSTREAMS", "me:planted@host?key=planted"),
        ("UPSTREAMS", "me:planted@host,me:planted@host"),
        ("UPSTREAMS", "https://me:planted@host/v1"),
        ("UPSTREAMS_BOX_URL", "planted"),
        ("UPSTREAMS_OPENAI_KEY_ENV", "sk-planted"),
        ("UPSTREAMS_OPENAI_KEY_ENV", "gsk_planted"),
        ("UPSTREAMS_OPENAI_HEADERS", "planted"),
        ("UPSTREAMS_OPENAI_FORMATS", "planted"),
        ("COMPACTION_SENSITIVE", "(planted"),
        ("SUMMARISER_MODELS", "planted@host"),
        ("SERVER_PORT", "planted"),
        ("COMPACTION_LIMIT", "planted"),
    ],
)
def test_a_variable_or_a_flag_that_is_refused_is_not_repeated(refold, place, monkeypatch, variable, value):
    flags = {key.variable.replace("<NAME>", "OPENAI"): key.flag for key in all_keys()}
    flag = flags.get(f"REFOLD_{variable}")
    given = refold("serve", "--port", "0", flag, value) if flag and "OPENAI" not in variable else None
    monkeypatch.setenv(f"REFOLD_{variable}", value)
    told = [refold("config", "check"), refold("config", "show"), refold("serve", "--port", "0")]

    assert told[2].code == 2
    assert not PLANTED.search(seen(*told, *([given] if given else [])))


COMMANDS = [
    *(("conversations",), ("sessions", "tides"), ("show", "tides"), ("search", "tides"), ("doctor",)),
    *(("recall", "tides", "#m1"), ("undo", "tides"), ("diff", "tides"), ("delete", "tides", "--yes")),
    *(("keys", "create"), ("keys", "list"), ("keys", "revoke", "abc"), ("expire", "--older-than", "9d")),
    *(("db", "upgrade"), ("db", "check"), ("db", "export", "x.jsonl"), ("db", "vacuum"), ("new", "tides")),
    ("serve", "--upstream", "openai", "--server-log-level", "debug"),
    ("serve", "--upstream", "openai", "--server-log", "json", "--server-log-level", "debug"),
]


URLS = [
    "postgresql://me:planted@127.0.0.1:1/db",
    "postgresql://me@127.0.0.1:1/db?password=planted",
    "postgresql://me:pl@nted@127.0.0.1:1/db",
    "postgresql://me:pl/nted@127.0.0.1:1/db",
    "postgresql://me:%zzplanted@127.0.0.1:1/db",
    "host=127.0.0.1 port=1 password=planted",
    "me:planted@127.0.0.1:1/db",
]


@pytest.mark.parametrize(
    ("args", "url"),
    [*((args, URLS[2]) for args in COMMANDS), *((args, url) for args in COMMANDS[-2:] for url in URLS)],
)
def test_a_store_that_cannot_be_reached_is_told_without_its_password(refold, place, args, url):
    told = refold(*args, "--store", url)

    assert told.code == 2
    assert "error: " in told.err
    assert not PLANTED.search(seen(told))


@pytest.mark.parametrize(
    "args",
    [
        ("doctor", "postgresql://me:planted@host/db"),
        ("keys", "list", "postgresql://me:pl nted@host/db"),
        ("show", "postgresql://me:planted@host/db"),
        ("conversations", "host=h password=planted", "more"),
        ("compact", "tides", "--summariser", "https://me:planted@host/v1"),
        ("compact", "tides", "--summariser", "qwen3@https://me:planted@host/v1"),
    ],
)
def test_an_address_in_the_wrong_place_is_not_repeated(refold, place, args):
    assert refold("keys", "create").code == 0  # a store that is there
    told = refold(*args)

    assert told.code == 2
    assert not PLANTED.search(seen(told))


def test_a_host_that_cannot_be_reached_is_named_to_the_operator(refold, place):
    told = refold("conversations", "--store", "postgresql://me:planted@127.0.0.1:1/tides")

    assert "tides on 127.0.0.1" in told.err
    assert told.err.startswith("error: the database cannot be reached: ")
