"""The real program: processes, pipes, a terminal, and every kind of file that is not a conversation."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = str(Path(sysconfig.get_path("scripts")) / "refold")
EXAMPLE = "examples/coding-agent.json"
SECRET = b"xylophone"
ENV = {**os.environ, "COLUMNS": "80", "TERM": "xterm-256color"}
for name in ("NO_COLOR", "FORCE_COLOR"):
    ENV.pop(name, None)


def run(*args: str, stdin: bytes = b"", **env: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [SCRIPT, *args],
        input=stdin,
        cwd=ROOT,
        env={**ENV, **env},
        capture_output=True,
        timeout=60,
        check=False,
    )


def run_in_terminal(*args: str, **env: str) -> tuple[int, str]:
    """Run in a pseudo-terminal; what a person would see, escape sequences included."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [SCRIPT, *args], cwd=ROOT, env={**ENV, **env}, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    seen = b""
    try:
        while chunk := os.read(ours, 65536):
            seen += chunk
    except OSError:  # Linux says EIO when the other side is closed
        pass
    os.close(ours)
    return process.wait(timeout=60), seen.decode()


def chat(*messages: bytes) -> bytes:
    return b'{"messages": [' + b", ".join(messages) + b"]}"


USER = b'{"role": "user", "content": "' + SECRET + b'"}'


def test_the_window_of_a_transcript_in_a_pipe():
    result = run("context", EXAMPLE)

    assert (result.returncode, result.stderr) == (0, b"")
    lines = result.stdout.decode().splitlines()
    assert lines[0] == "examples/coding-agent.json  chat, 135 messages, 10 turns"
    assert lines[3].startswith("S T H ")
    assert max(map(len, lines)) <= 80
    assert b"\x1b" not in result.stdout


def test_a_terminal_gets_colours_and_the_same_words():
    code, seen = run_in_terminal("context", EXAMPLE)

    assert code == 0
    assert "\x1b[30;48;5;179mR R R" in seen
    plain = re.sub(r"\x1b\[[0-9;]*m", "", seen)
    assert [line.rstrip() for line in plain.splitlines()] == run(
        "context", EXAMPLE
    ).stdout.decode().splitlines()


def test_a_terminal_without_colour_gets_none():
    _, seen = run_in_terminal("context", EXAMPLE, NO_COLOR="1")

    assert not re.search(r"\x1b\[[0-9;]*[34][0-9]", seen)


def test_a_reader_that_stops_reading_is_no_error():
    ours, theirs = os.pipe()
    os.close(ours)
    result = subprocess.run(
        [SCRIPT, "context", EXAMPLE],
        cwd=ROOT,
        env=ENV,
        stdout=theirs,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    os.close(theirs)

    assert result.stderr == b""
    assert result.returncode == 141


def test_help_is_instant_and_loads_nothing_heavy():
    """Of `refold --help`, and so of the help of every command: the modules of all commands are loaded for both."""
    code = (
        "import sys; from refold.cli.main import run; run(['--help']); print(*sys.modules, file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = result.stderr.split()

    heavy = {"aiohttp", "asyncio", "pydantic", "rich", "splintr", "starlette"}
    assert not heavy & {name.partition(".")[0] for name in loaded}
    packages = {name.split(".")[1] for name in loaded if name.startswith("refold.")}
    assert packages <= {"cli", "config", "model"}


@pytest.mark.slow
def test_help_takes_no_longer_than_it_may():
    def timed() -> float:
        start = time.perf_counter()
        run("--help")
        return time.perf_counter() - start

    assert min(timed() for _ in range(5)) <= 0.35


BAD = {
    "empty": (b"", "the transcript is empty"),
    "malformed": (b'{"messages": [', ""),
    "text": (SECRET, ""),
    "number": (b"42", ""),
    "no messages": (b'{"model": "gpt-4o"}', "messages: is missing"),
    "empty list": (b"[]", "messages: "),
    "empty messages": (b'{"messages": []}', "messages: "),
    "messages of a wrong type": (b'{"messages": "' + SECRET + b'"}', "messages: "),
    "message of a wrong type": (chat(USER, b"7"), "messages[1]: "),
    "content of a wrong type": (chat(b'{"role": "user", "content": 7}'), "messages[0].content: "),
    "part of a wrong type": (
        chat(b'{"role": "user", "content": [{"type": "text", "text": 7}]}'),
        "messages[0].content[0]",
    ),
    "null content": (chat(b'{"role": "user", "content": null}'), "messages[0].content: "),
    "unknown role": (chat(USER, b'{"role": "' + SECRET + b'", "content": ""}'), "messages[1].role: "),
    "missing id": (chat(USER, b'{"role": "tool", "content": "x"}'), "messages[1].tool_call_id: "),
    "missing id in a line": (USER + b"\n" + b'{"role": "tool", "content": "x"}', "line 2, tool_call_id: "),
    "wrong max_tokens": (b'{"max_tokens": "many", "messages": [' + USER + b"]}", "max_tokens: "),
    "wrong model": (b'{"model": 4, "messages": [' + USER + b"]}", "model: "),
    "invalid UTF-8": (chat(b'{"role": "user", "content": "\xff"}'), "not valid UTF-8 (byte 43)"),
    "lone surrogate": (chat(b'{"role": "user", "content": "\\ud800 and more"}'), ""),
    "100,000 deep": (
        chat(USER[:-1] + b', "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        "nested too deeply",
    ),
    "100,000 deep, unclosed": (b"[" * 100_000, "nested too deeply"),
}


@pytest.mark.parametrize("command", ["context", "check"])
@pytest.mark.parametrize(("data", "place"), BAD.values(), ids=BAD)
def test_what_is_no_conversation_is_one_clear_error(in_process, command, data, place):
    code, out, err = in_process(command, "-", stdin=data)

    assert (code, out) == (2, "")
    first, *rest = err.splitlines()
    assert first.startswith("error: stdin: ")
    assert place in first
    assert all(line.startswith("hint: ") for line in rest)
    assert len(rest) <= 1
    assert SECRET.decode() not in err


@pytest.fixture
def in_process(capsys, monkeypatch):
    """The same program without the cost of a process: there are many bad inputs."""
    import io

    from refold.cli.main import run as call

    def invoke(*args: str, stdin: bytes) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        return (call(args), *capsys.readouterr())

    return invoke


def test_the_worst_input_is_no_crash_in_a_process_either():
    result = run("context", "-", stdin=BAD["100,000 deep"][0])

    assert (result.returncode, result.stdout) == (2, b"")
    assert result.stderr.startswith(b"error: stdin: ")
    assert b"Traceback" not in result.stderr


def test_100_levels_are_fine(in_process):
    data = chat(USER[:-1] + b', "x": ' + b"[" * 100 + b"]" * 100 + b"}")

    assert in_process("context", "-", stdin=data)[0] == 0


def test_a_body_over_the_limit_is_refused_and_the_limit_can_be_raised(in_process):
    data = chat(USER)

    code, out, err = in_process("check", "-", "--max-body-bytes", str(len(data) - 1), stdin=data)
    assert (code, out) == (2, "")
    assert err.startswith("error: stdin has more than ")
    assert in_process("check", "-", "--max-body-bytes", str(len(data)), stdin=data)[0] == 0
