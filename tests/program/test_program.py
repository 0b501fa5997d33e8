"""A start through the server is a start: the same words, the same end, the same signals."""

from __future__ import annotations

import array
import os
import select
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from tests.program import command

PATIENCE_S = 60
SERVE = ("serve", "--port", "0", "--store", "memory:", "--upstream", "http://127.0.0.1:9/v1")


@pytest.mark.parametrize("args", [("--version",), ("conversations",), ("nonsense",)])
def test_it_says_what_the_program_says_and_ends_with_its_code(tmp_path, args):
    environ = {**os.environ, "REFOLD_STORE": "sqlite:///none.db"}
    first, second = (
        subprocess.run(
            [*start, *args], cwd=tmp_path, env=environ, capture_output=True, timeout=PATIENCE_S, check=False
        )
        for start in (command(), [sys.executable, "-m", "refold"])
    )

    assert (first.returncode, first.stdout, first.stderr) == (second.returncode, second.stdout, second.stderr)
    assert first.stdout or first.stderr


SCRIPT = """
import sys
from beside import NAME
print(NAME, __name__, sys.argv[1:], sys.stdin.read())
sys.exit(3)
"""


def test_a_script_is_run_as_python_runs_it(tmp_path):
    (tmp_path / "beside.py").write_text("NAME = 'a module beside it'")
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    first, second = (
        subprocess.run(
            [*start, "a", "b"], input=b"said", capture_output=True, timeout=PATIENCE_S, check=False
        )
        for start in (command(str(path), ("json",)), [sys.executable, str(path)])
    )

    assert (first.returncode, first.stdout, first.stderr) == (second.returncode, second.stdout, second.stderr)
    assert first.returncode == 3


@pytest.fixture
def gateway():
    with subprocess.Popen([*command(), *SERVE], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout
        url = process.stdout.readline().decode().strip()
        with urllib.request.urlopen(f"{url}/healthz", timeout=PATIENCE_S) as answer:
            assert answer.status == 200
        yield process


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_it(gateway, how):
    gateway.send_signal(how)

    assert gateway.wait(PATIENCE_S) == 0


def test_whoever_is_killed_leaves_nothing_behind(gateway):
    gateway.kill()

    assert gateway.wait(PATIENCE_S) == -signal.SIGKILL
    assert gateway.stdout.read() == b"", "nobody has it open any more"


def test_whoever_is_killed_before_the_copy_runs_leaves_nothing_behind(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(f"import time; time.sleep({2 * PATIENCE_S})")
    *_, address, name = command(str(path), ("json",))
    ours, theirs = os.pipe()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.connect(b"\0" + address.encode())
        words = "\0".join((str(tmp_path), "1", name, "A=b")).encode()
        streams = array.array("i", [theirs] * 3)
        asking.sendmsg([words], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
    os.close(theirs)

    with os.fdopen(ours, "rb") as said:
        assert select.select([said], [], [], PATIENCE_S)[0], "it goes on"
        assert said.read() == b""
