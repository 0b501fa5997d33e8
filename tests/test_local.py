"""The process of the local model, with a stand-in for xllamacpp: how it is started, what it is told, how it ends."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

from refold.cli.main import run as run_command
from refold.local import serve_local
from refold.model.errors import ConfigError, MissingExtra

STAND_IN = """
import json, os, socket, sys
from types import SimpleNamespace as Values

class CommonParams(Values):
    def __init__(self):
        super().__init__(model=Values(path=""), cpuparams=Values(), cpuparams_batch=Values(), cors_origins="*")

class Server:
    listening_address = "http://127.0.0.1:12345"

    def __init__(self, told):
        if open(told.model.path).read() != "GGUF":
            raise ValueError("what is this?")
        print("a line of a log", flush=True)
        if port := os.environ.get("WATCHED_AT"):
            self.line = socket.create_connection(("127.0.0.1", int(port)))
        told = dict(vars(told), threads=told.cpuparams.n_threads, pid=os.getpid(), args=sys.argv)
        path = told.pop("model").path
        seen = {name: value for name, value in told.items() if not isinstance(value, Values)}
        with open(f"{path}.seen", "w") as file:
            json.dump({**seen, "environ": dict(os.environ)}, file)
"""


@pytest.fixture
def weights(tmp_path, monkeypatch):
    (tmp_path / "xllamacpp.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delitem(sys.modules, "xllamacpp", raising=False)
    file = tmp_path / "tiny.gguf"
    file.write_text("GGUF")
    return file


def seen(weights) -> dict:
    return json.loads(weights.with_name("tiny.gguf.seen").read_text())


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_it_serves_with_a_key_of_its_own_until_the_block_ends(weights):
    with serve_local(weights, window=4_096) as served:
        assert (served.base_url, served.model, served.window) == ("http://127.0.0.1:12345/v1", "tiny", 4_096)
        told = seen(weights)
        assert is_running(told["pid"])
    assert not is_running(told["pid"])

    assert (told["api_keys"], told["port"], told["threads"]) == ([served.key], 0, 1)
    assert (told["n_ctx"], told["endpoint_slots"], told["cors_origins"]) == (4_096, False, "")
    with serve_local(weights) as other:
        assert other.key != served.key


def test_nobody_else_sees_the_key(weights):
    with serve_local(weights) as served:
        told = seen(weights)

    assert len(served.key) >= 32
    assert served.key not in repr(served)
    assert served.key not in json.dumps([told["args"], told["environ"]])
    assert served.headers == {"authorization": f"Bearer {served.key}"}


def test_it_ends_with_whoever_started_it(weights, monkeypatch):
    code = (
        "import os, pathlib, sys, refold.local as local\n"
        "with local.serve_local(pathlib.Path(sys.argv[1])):\n"
        "    os._exit(0)  # without a goodbye\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as door:
        door.settimeout(30)
        monkeypatch.setenv("WATCHED_AT", str(door.getsockname()[1]))
        subprocess.run([sys.executable, "-c", code, str(weights)], timeout=30, check=True)
        line, _ = door.accept()
        with line:
            line.settimeout(30)
            assert line.recv(1) == b""  # the server held it open


def test_a_file_that_is_no_model_is_told(weights):
    weights.write_text("a poem")

    with pytest.raises(ConfigError, match="did not start"), serve_local(weights):
        pass


def test_missing_weights_name_the_command_that_fetches_them(weights):
    weights.unlink()

    with pytest.raises(ConfigError, match="are missing") as caught, serve_local(weights):
        pass

    assert "refold local install" in caught.value.hint


def test_without_the_extra_its_name_is_told(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "xllamacpp", None)

    with pytest.raises(MissingExtra, match="'local'"), serve_local(tmp_path / "tiny.gguf"):
        pass


@pytest.mark.parametrize("has_extra", [True, False])
@pytest.mark.parametrize("has_weights", [True, False])
def test_the_steps_to_the_local_model_are_those_that_are_missing(
    monkeypatch, tmp_path, capsys, has_extra, has_weights
):
    file = tmp_path / "tiny.gguf"
    if has_weights:
        file.touch()
    monkeypatch.setattr("refold.local.weights_path", lambda: file)
    monkeypatch.setattr("refold.local.find_spec", lambda _: object() if has_extra else None)
    monkeypatch.setattr("refold.cli.commands.local.find_spec", lambda _: object() if has_extra else None)

    assert run_command(["local", "status"]) == (0 if has_extra and has_weights else 1)

    told = capsys.readouterr().err
    assert ("pip install 'refold[local]'" in told) is not has_extra
    assert ("hint: run: refold local install" in told) is not has_weights
