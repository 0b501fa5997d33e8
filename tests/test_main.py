"""The `refold` script, with and without the extra `cli`."""

from __future__ import annotations

import subprocess
import sys

WITHOUT_TYPER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"typer", "click", "rich"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
from refold.__main__ import main
main()
"""


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, timeout=60, check=False)


def test_with_the_extra_the_command_line_answers():
    result = run("-m", "refold", "--help")

    assert result.returncode == 0, result.stderr
    assert "context" in result.stdout
    assert "check" in result.stdout


def test_without_the_extra_it_says_which_one_to_add():
    result = run("-c", WITHOUT_TYPER)

    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        "error: the command line needs the extra 'cli'",
        f"hint: install it with: {sys.executable} -m pip install 'refold[cli]'",
    ]


def test_a_broken_installation_is_not_taken_for_a_missing_extra():
    result = run("-c", WITHOUT_TYPER.replace('{"typer", "click", "rich"}', '{"msgspec"}'), "models")

    assert result.returncode == 1
    assert "ModuleNotFoundError: No module named 'msgspec'" in result.stderr
