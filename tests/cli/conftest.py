from __future__ import annotations

import io
import sys
from typing import NamedTuple

import pytest

from refold.cli.app import run


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
