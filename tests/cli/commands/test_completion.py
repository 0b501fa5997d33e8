"""The completion scripts, in the shells that they are for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from refold.cli.main import run

BASH = """
source "$1"
COMP_WORDS=(refold "${@:2}") COMP_CWORD=$(($# - 1))
"$(complete -p refold | sed 's/.*-F \\([^ ]*\\).*/\\1/')" refold
printf '%s\\n' "${COMPREPLY[@]}"
"""
ZSH = """
autoload -Uz compinit && compinit -u -D
source "$1"
_arguments() { print -l -- "$@" }
_describe() { print -l -- ${(P)@[-1]} }
words=(refold "${@:2}") CURRENT=$#
_refold_completion
"""
FISH = 'source $argv[1]; complete --do-complete "refold $argv[2..]"'


def shell(name: str) -> str:
    return shutil.which(name) or pytest.skip(f"there is no {name} here")


def complete(tmp_path, capsys, name: str, argv: list[str], *typed: str) -> list[str]:
    assert run(["completion", name]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out, encoding="utf-8")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [*argv, str(script), *typed], capture_output=True, text=True, timeout=60, check=True,
        env={**os.environ, "PATH": path, "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_bash_completes_commands_and_options(tmp_path, capsys):
    argv = [shell("bash"), "--norc", "-c", BASH, "bash"]

    assert complete(tmp_path, capsys, "bash", argv, "conv") == ["conversations"]
    assert complete(tmp_path, capsys, "bash", argv, "db", "ba") == ["backfill", "backup"]
    assert "--upstream" in complete(tmp_path, capsys, "bash", argv, "serve", "--up")


def test_zsh_completes_commands(tmp_path, capsys):
    argv = [shell("zsh"), "--no-rcs", "-c", ZSH, "zsh"]

    assert "conversations" in "".join(complete(tmp_path, capsys, "zsh", argv, "conv"))


def test_fish_completes_commands(tmp_path, capsys):
    argv = [shell("fish"), "--no-config", "-c", FISH]

    found = complete(tmp_path, capsys, "fish", argv, "conv")
    assert [line.partition("\t")[0] for line in found] == ["conversations"]


def test_another_shell_is_refused(capsys):
    assert run(["completion", "tcsh"]) == 2
    assert "hint: choose one of bash, zsh, fish" in capsys.readouterr().err
