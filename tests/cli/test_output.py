from __future__ import annotations

import io
import json
import os
import subprocess
import sys

import pytest
from rich.text import Text

from refold.cli.output import (
    BUSY_BYTES,
    CLOSED_PIPE,
    MAX_SHOWN,
    busy,
    plain,
    show,
    tell,
    warn,
    write,
    write_bytes,
    write_json,
)
from refold.model.errors import ConfigError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def environment(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    return monkeypatch


def shown_on(stream, environment):
    environment.setattr(sys, "stdout", stream)
    show(Text("word " * 30, style="red"))
    return stream.getvalue()


def test_a_terminal_gets_colour_and_lines_that_fit(environment):
    text = shown_on(Terminal(), environment)

    assert "\x1b[31m" in text
    assert len(text.splitlines()) == 2


def test_a_terminal_that_wants_no_colour_gets_none(environment):
    environment.setenv("NO_COLOR", "1")

    assert "\x1b[31m" not in shown_on(Terminal(), environment)


def test_a_pipe_gets_plain_lines_left_whole(environment):
    assert shown_on(io.StringIO(), environment) == ("word " * 30).rstrip() + "\n"


def test_json_is_one_document_in_ascii(capsys):
    write_json({"model": "modèle", "sizes": (1, 2)})

    out = capsys.readouterr().out
    assert out.isascii()
    assert json.loads(out) == {"model": "modèle", "sizes": [1, 2]}


each_way = pytest.mark.parametrize("put", [lambda: write("text\n"), lambda: write_bytes(b"text\n")])


def test_a_body_is_written_as_it_is_after_what_came_before(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)

    write("before ")
    write_bytes("modèle".encode())

    assert stream.buffer.getvalue() == "before modèle".encode()


def test_what_is_told_beside_the_data_looks_alike(environment, capsys):
    tell(Text("word " * 30, style="red"))
    assert capsys.readouterr() == ("", ("word " * 30).rstrip() + "\n")

    environment.setattr(sys, "stderr", stream := Terminal())
    tell(Text("word", style="red"))
    assert stream.getvalue() == "\x1b[31mword\x1b[0m\n"


def test_an_encoding_without_the_letter_is_no_reason_to_fail(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)

    write("modèle\n")

    assert stream.buffer.getvalue() == b"mod?le\n"


@each_way
def test_a_reader_that_went_away_ends_the_program_quietly(monkeypatch, capfd, put):
    receiving, sending = os.pipe()
    os.close(receiving)
    with os.fdopen(sending, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with pytest.raises(SystemExit) as ended:
            put()

    assert ended.value.code == CLOSED_PIPE
    assert capfd.readouterr() == ("", "")


@each_way
def test_a_full_disk_is_an_error_with_its_reason(monkeypatch, put):
    with open("/dev/full", "w") as stream:  # noqa: PTH123 - a device
        monkeypatch.setattr(sys, "stdout", stream)
        with pytest.raises(ConfigError, match="the output cannot be written: No space left"):
            put()


def test_a_warning_goes_to_stderr_and_says_what_to_do(capsys):
    warn("")
    warn("the window of '\x1b[2J' is unknown")

    out, err = capsys.readouterr()
    assert out == ""
    assert err == "warning: the window of '�[2J' is unknown\nhint: give the window with --window\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("gpt-4o", "gpt-4o"),
        ("модель", "модель"),
        ("a\x1b[31m\r\nb", "a�[31m��b"),
        ("\u202ereversed", "�reversed"),
        ("x" * 999, "x" * MAX_SHOWN + "..."),
    ],
)
def test_names_from_files_are_harmless(text, shown):
    assert plain(text) == shown


@pytest.mark.parametrize(
    ("stream", "size", "speaks"),
    [
        (Terminal(), BUSY_BYTES + 1, True),
        (Terminal(), BUSY_BYTES, False),
        (io.StringIO(), BUSY_BYTES + 1, False),
    ],
)
def test_only_a_terminal_sees_that_a_large_file_takes_a_while(environment, stream, size, speaks):
    environment.setattr(sys, "stderr", stream)

    with busy("measuring", size):
        pass

    assert ("measuring 5 MB" in stream.getvalue()) is speaks


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such shell")
@pytest.mark.parametrize("command", ["models", "models --json"])
def test_a_closed_stdout_is_told_in_a_line_and_a_closed_stderr_is_nobodys_loss(command):
    def run(streams: str) -> subprocess.CompletedProcess[str]:
        line = f"exec '{sys.executable}' -m refold {command} {streams}"
        return subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)

    ended = run(">&-")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("error: stdout is closed, so nothing can be written\nhint: ")
    assert (run("2>&-").returncode, run(">&- 2>&-").returncode) == (0, 2)
