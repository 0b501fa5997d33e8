"""A holder's name tells whether its process has ended, and never takes a running one for dead."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from refold.chat.holder import has_ended, name_holder

linux = pytest.mark.skipif(sys.platform != "linux", reason="a name tells nothing elsewhere")


def name_of_another() -> tuple[str, subprocess.Popen[str]]:
    code = "from refold.chat.holder import name_holder\nprint(name_holder('x'), flush=True)\ninput()"
    other = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    return other.stdout.readline().strip(), other


def test_a_process_that_runs_has_not_ended():
    name, other = name_of_another()
    assert not has_ended(name)
    assert not has_ended(name_holder("a"))
    other.kill()
    other.communicate()


@linux
def test_a_process_that_was_killed_has_ended_even_if_nobody_has_waited_for_it():
    name, other = name_of_another()
    other.kill()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    assert has_ended(name), "a zombie"
    other.communicate()
    assert has_ended(name)


@linux
def test_another_process_with_the_same_id_is_not_taken_for_it():
    machine, process, start, suffix = name_holder("a").split(".")
    assert has_ended(f"{machine}.{process}.{int(start) + 1}.{suffix}")


@pytest.mark.parametrize(
    "name", ["", "dead", "1-2", "..a.b", "a.b.c.d", f"{'0' * 16}.999999.1.x", "a.1.2.3.4"]
)
def test_a_name_of_another_machine_or_version_tells_nothing(name):
    assert not has_ended(name)
