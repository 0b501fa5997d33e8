from __future__ import annotations

import io
import shutil
import sys
from typing import NamedTuple

import pytest

from refold.cli.main import run


class Result(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def refold(capsys, monkeypatch):
    """The program in this process, in a pipe of 80 columns without colour."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def call(*args: str, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = run(args)
        return Result(code, *capsys.readouterr())

    return call


EXAMPLE = "examples/coding-agent.json"


@pytest.fixture
def store(tmp_path, monkeypatch):
    """The path of a store that is not there yet, and that commands use unless they are told of another."""
    path = tmp_path / "chats.db"
    monkeypatch.setenv("REFOLD_STORE", f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def kept_file(tmp_path_factory):
    """A store with one long conversation, `shifts`, and one short one, `ferry`; made once, for copies."""
    folder = tmp_path_factory.mktemp("kept")
    short, url = folder / "ferry.jsonl", f"sqlite:///{folder / 'chats.db'}"
    short.write_text(
        '{"role": "user", "content": "When does the ferry leave?"}\n{"role": "assistant", "content": "At noon."}\n'
    )
    assert run(["import", EXAMPLE, "--as", "shifts", "--store", url]) == 0
    assert run(["import", str(short), "--as", "ferry", "--title", "Timetable", "--store", url]) == 0
    return folder / "chats.db"


@pytest.fixture
def kept(kept_file, refold, store):
    """A copy of that store, and the program."""
    shutil.copy(kept_file, store)
    return refold
