"""A secret in every place of the settings that may hold one: no door shows any of them, to admins either.

The places come from the declarations of the settings, so a new setting is tried as soon as it is there.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from refold.cli.main import run
from refold.config.formats import toml
from refold.config.layers import file_layer
from refold.config.tree import (
    ADDRESS,
    BLOCK,
    COMMAND,
    HEADERS,
    MODELS,
    PATTERNS,
    VARIABLE,
    SettingKey,
    SettingMask,
    all_keys,
)
from refold.gateway.auth import mint
from refold.gateway.log import JsonFormatter, TextFormatter
from refold.testing import ScriptedUpstream
from tests.contract.postgres import get_server, make_database
from tests.gateway.conftest import served
from tests.program import command

PATIENCE_S = 60
WRONG: tuple[Any, ...] = ("planted", ["planted"], [["planted"]], {"planted": "planted"}, {"a": ["planted"]})
"""Values of every form; most settings refuse most of them."""


class Planted:
    """The settings in a file, and every secret in them."""

    def __init__(self, folder: Path, store: str, upstream: str) -> None:
        self._numbers, self.words = count(), list[str]()
        self.environ: dict[str, str] = {}
        tables: dict[str, dict[str, Any]] = {
            "upstreams.scripted": {"url": f"{upstream}/v1", "models": ["scripted"]}
        }
        tables["compaction"] = {"preset": "librechat"}  # it alone takes a block
        for key in all_keys():
            if key.mask.hides:
                name = f"{key.section}.box-{next(self._numbers)}" if key.is_upstream else key.section
                table = tables.setdefault(name, {})
                # Each has an upstream of its own: some of its settings exclude each other.
                if key.is_upstream and key.field != "url":
                    table["url"] = self._value(ADDRESS)
                is_store = key.name == "store.url"
                table[key.field] = self._store(store) if is_store else self._value(key.mask)
        self.path = folder / "config.toml"
        self.path.write_text(
            "\n".join(
                f"[{name}]\n" + "".join(f"{field} = {toml(value)}\n" for field, value in table.items())
                for name, table in tables.items()
            )
        )

    def word(self) -> str:
        self.words.append(f"plantednumber{next(self._numbers)}end")
        return self.words[-1]

    def _store(self, url: str) -> str:
        """The address of a real database; its server lets everybody in, whatever their password is."""
        return f"{url.replace(':@/', f':{self.word()}@/', 1)}&sslpassword={self.word()}"

    def _value(self, mask: SettingMask) -> Any:
        samples = {
            ADDRESS: lambda: f"https://models.example/v1?token={self.word()}#{self.word()}",
            COMMAND: lambda: f"printf {self.word()}",
            HEADERS: lambda: {"X-Team": self.word(), "X-Other": self.word()},
            MODELS: lambda: ["openai:gpt-4o-mini", f"m@https://writer.example/v1?key={self.word()}"],
            BLOCK: lambda: {"parameters": {"api_key": self.word()}},
            PATTERNS: lambda: [f"(?i){self.word()}", self.word()],
            VARIABLE: self._variable,
        }
        return samples[mask]()

    def _variable(self) -> str:
        """A key that stands where the name of a variable belongs; and, because all is to start, a variable of that name."""
        name = f"gsk_{self.word()}"
        self.environ[name] = self.word()
        return name

    def assert_hidden(self, shown: str) -> None:
        assert not [word for word in self.words if word in shown]


@pytest.fixture
def planted(tmp_path, monkeypatch, pytestconfig) -> Planted:
    with ScriptedUpstream(otherwise="Fine.") as upstream:
        store = make_database(get_server(pytestconfig), "every_setting")
        made = Planted(tmp_path, store, upstream.url)
        for name in [name for name in os.environ if name.startswith(("REFOLD_", "OPENAI_"))]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("REFOLD_CONFIG", str(made.path))
        monkeypatch.setenv("OPENAI_API_KEY", "sk-plantednumber0end")
        for name, value in made.environ.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(tmp_path)
        yield made


def test_every_setting_that_may_hold_a_secret_is_tried(planted):
    text = planted.path.read_text()

    assert len(planted.words) >= 10
    assert not [word for word in planted.words if word not in text + str(planted.environ)]
    assert not [key.name for key in all_keys() if key.mask.hides and f"{key.field} = " not in text]


def test_commands_that_show_and_check_settings(planted, capsys):
    codes = [
        run(["config", *args])
        for args in (("show",), ("show", "--origin"), ("show", "--json"), ("check",), ("check", "--json"))
    ]
    shown = "".join(capsys.readouterr())

    assert codes == [0] * 5
    assert "models.example" in shown
    assert "printf ***" in shown
    planted.assert_hidden(shown)


@pytest.mark.parametrize("value", WRONG, ids=str)
@pytest.mark.parametrize("key", [key for key in all_keys() if key.mask.hides], ids=lambda key: key.name)
def test_values_that_are_refused(tmp_path, capsys, monkeypatch, key: SettingKey, value):
    """Written into a file, or into a variable as text."""
    table = "upstreams.box" if key.is_upstream else key.section
    file = tmp_path / "mine.toml"
    file.write_text(f"[{table}]\n{key.field} = {toml(value)}\n")
    monkeypatch.setenv("REFOLD_CONFIG", str(file))
    for args in (("check", str(file)), ("check", "--json"), ("show", "--origin"), ("show", "--json")):
        run(["config", *args])
    monkeypatch.delenv("REFOLD_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    monkeypatch.setenv(key.variable.replace("<NAME>", "BOX"), str(value))
    run(["config", "check"])
    run(["config", "show"])
    shown = "".join(capsys.readouterr())

    for name in (
        "headers = { planted",
        '"planted": "***"',
        "unknown field `planted`",
    ):  # names of fields are shown
        shown = shown.replace(name, "")
    assert "planted" not in shown


async def ask(gate, method: str, path: str, body: object, key: str) -> str:
    headers = {"x-refold-key": key} if key else {}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.request(method, f"{gate.url}{path}", json=body) as response,
    ):
        return f"{response.status} {response.raw_headers} {await response.text()}"


@pytest.mark.parametrize("who", ["this machine", "an admin", "anybody"])
async def test_answers_of_the_gateway_and_its_log(planted, who):
    logs = [StringIO(), StringIO()]
    handlers = [logging.StreamHandler(one) for one in logs]
    root, level = logging.getLogger(), logging.getLogger().level
    for handler, form in zip(handlers, (TextFormatter(), JsonFormatter()), strict=True):
        handler.setFormatter(form)
        root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    layers = [file_layer(planted.path, "user")]
    try:
        async with ScriptedUpstream(otherwise="Fine.") as upstream, served(upstream, layers=layers) as gate:
            key = ""
            if who != "this machine":
                key, kept = mint("anna", at=1.0, admin=who == "an admin")
                await gate.store.add_key(kept)
            seen = [
                await ask(gate, "GET", "/refold/config", None, key),
                await ask(gate, "POST", "/refold/config", {"cache": {"ttl": "1h"}}, key),
                await ask(gate, "GET", "/refold/status", None, key),
                await ask(gate, "POST", "/v1/chat/completions", {"model": "m", "messages": []}, key),
                *[
                    await ask(gate, "POST", "/refold/config", {name: value}, key)
                    for one in all_keys()
                    for name in [one.name.replace("NAME", "box")]
                    for value in WRONG
                    if one.mask.hides
                ],
            ]
    finally:
        root.setLevel(level)
        for handler in handlers:
            root.removeHandler(handler)

    assert ("models.example" in seen[0]) == (who != "anybody")
    assert seen[0].startswith("200")
    planted.assert_hidden("".join(seen))
    assert not [one for one in seen if "planted" in one]
    planted.assert_hidden("".join(log.getvalue() for log in logs))


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_notice_and_the_log_of_a_gateway_that_starts(planted, form):
    argv = [*command(), "serve", "--port", "0"]
    flags = ["--server-log", form, "--server-log-level", "debug"]
    pipe = subprocess.PIPE
    process = subprocess.Popen([*argv, *flags], stdout=pipe, stderr=pipe, text=True)
    try:
        url = process.stdout.readline().strip()
        said = {"model": "scripted", "messages": [{"role": "user", "content": "Hello."}]}
        asked = subprocess.run(
            [sys.executable, "-c", ASKING, url, json.dumps(said)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.communicate()

    assert asked.returncode == 0, asked.stderr
    assert "models.example" in err
    assert "writer.example" in err
    assert "models.example" in asked.stdout
    assert "Fine." in asked.stdout
    planted.assert_hidden(url + out + err + asked.stdout)


ASKING = """
import sys, urllib.request
url, said = sys.argv[1:]
print(urllib.request.urlopen(f"{url}/refold/config", timeout=30).read().decode())
call = urllib.request.Request(f"{url}/v1/chat/completions", said.encode(), {"content-type": "application/json"})
print(urllib.request.urlopen(call, timeout=30).read().decode())
"""


def test_a_gateway_that_cannot_start(planted, capsys):
    """Its store is gone: the address in the file leads nowhere, and so does what the driver says about it."""
    text = planted.path.read_text()
    planted.path.write_text(text.replace("?host=", "?port=1&host="))
    for form in ("text", "json"):
        argv = [*command(), "serve", "--port", "0", "--server-log", form]
        ended = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=False)

        assert ended.returncode == 2
        assert "the database cannot be reached" in ended.stderr
        planted.assert_hidden(ended.stdout + ended.stderr)
    assert run(["conversations"]) == 2
    planted.assert_hidden("".join(capsys.readouterr()))
