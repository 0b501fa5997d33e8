"""A make-believe working tree with tools, and the transcript of an agent that uses them.

The tools are real where it matters: a file that was edited reads back edited, and a diff is a diff. So the transcript
stays coherent however long it gets. Only the output of programs is written by hand.
"""

from __future__ import annotations

import difflib
import json
import random
import re
from dataclasses import dataclass, field
from typing import Any

ID_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


@dataclass(frozen=True)
class Use:
    """One use of a tool with what it gave back."""

    name: str
    arguments: dict[str, Any]
    output: str


class Workshop:
    def __init__(self, files: dict[str, str], rng: random.Random) -> None:
        self.before = dict(files)
        self.files = dict(files)
        self.rng = rng

    def list_files(self) -> Use:
        rows = [f"{len(text.encode()):>7}  {path}" for path, text in sorted(self.files.items())]
        return Use("list_files", {}, "\n".join(rows))

    def read(self, path: str, first: int = 1, last: int = 0) -> Use:
        arguments = {"path": path, "first_line": first, "last_line": last} if last else {"path": path}
        if path not in self.files:
            return Use("read_file", arguments, f"error: {path} does not exist")
        lines = self.files[path].splitlines()[first - 1 : last or None]
        text = "\n".join(f"{number:>5}  {line}" for number, line in enumerate(lines, first))
        return Use("read_file", arguments, text)

    def search(self, pattern: str) -> Use:
        hits = [
            f"{path}:{number}: {line.strip()}"
            for path, text in sorted(self.files.items())
            for number, line in enumerate(text.splitlines(), 1)
            if re.search(pattern, line)
        ]
        return Use("search", {"pattern": pattern}, "\n".join(hits) or "no matches")

    def edit(self, path: str, old: str, new: str) -> Use:
        found = self.files[path].count(old)
        arguments = {"path": path, "old": old, "new": new}
        if found != 1:
            return Use(
                "edit_file",
                arguments,
                f"error: the old text was found {found} times in {path}; nothing changed",
            )
        self.files[path] = self.files[path].replace(old, new)
        return Use("edit_file", arguments, f"edited {path}")

    def append(self, path: str, text: str) -> Use:
        self.files[path] += text
        return Use(
            "append_to_file",
            {"path": path, "text": text},
            f"appended {len(text.splitlines())} lines to {path}",
        )

    def run(self, command: str, output: str) -> Use:
        return Use("run", {"command": command}, output)

    def diff(self, *options: str) -> Use:
        command = " ".join(["git diff", *options])
        parts = [
            "".join(_diff(path, self.before.get(path, ""), text)) for path, text in sorted(self.files.items())
        ]
        return Use("run", {"command": command}, "".join(parts) + "[exit code 0]")

    def pytest(self, *failures: tuple[str, str], command: str = "pytest") -> Use:
        """The log of the tests as they stand; each failure is a node id and its traceback."""
        nodes = [node for path in sorted(self.files) for node in _test_nodes(path, self.files[path])]
        failed = dict(failures)
        lines = [
            "============================= test session starts ==============================",
            "platform linux -- Python 3.11.9, pytest-8.3.3, pluggy-1.5.0",
            "rootdir: /workspace/ferrytime",
            "configfile: pyproject.toml",
            f"collected {len(nodes)} items",
            "",
        ]
        lines += _verdicts(nodes, set(failed), is_verbose="-v" in command)
        for node, traceback in failed.items():
            lines += ["", f"____ {node} ____", "", traceback.strip("\n")]
        verdict = f"{len(failed)} failed, " if failed else ""
        seconds = self.rng.uniform(0.8, 2.4)
        lines += [
            "",
            f"===== {verdict}{len(nodes) - len(failed)} passed in {seconds:.2f}s =====",
            f"[exit code {bool(failed):d}]",
        ]
        return Use("run", {"command": command}, "\n".join(lines))


@dataclass
class Transcript:
    rng: random.Random
    messages: list[dict[str, Any]] = field(default_factory=list)

    def system(self, text: str) -> None:
        self.messages.append({"role": "system", "content": text})

    def user(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text.strip()})

    def answer(self, text: str) -> None:
        self.messages.append({"role": "assistant", "content": text.strip()})

    def step(self, text: str, *uses: Use) -> None:
        """One reply that uses tools, all at once, and their results."""
        ids = ["call_" + "".join(self.rng.choices(ID_LETTERS, k=24)) for _ in uses]
        calls = [
            {
                "id": name,
                "type": "function",
                "function": {"name": use.name, "arguments": json.dumps(use.arguments, ensure_ascii=False)},
            }
            for name, use in zip(ids, uses, strict=True)
        ]
        self.messages.append({"role": "assistant", "content": text or None, "tool_calls": calls})
        for name, use in zip(ids, uses, strict=True):
            self.messages.append({"role": "tool", "tool_call_id": name, "content": use.output})


def _diff(path: str, before: str, after: str) -> list[str]:
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    return list(difflib.unified_diff(old, new, f"a/{path}", f"b/{path}"))


def _test_nodes(path: str, text: str) -> list[str]:
    """The tests in a file, with `range(...)` parameters spelled out."""
    nodes: list[str] = []
    values: list[str] = []
    for line in text.splitlines():
        if found := re.match(r'@pytest.mark.parametrize\("\w+", range\((.*)\)\)', line):
            values = [str(value) for value in range(*map(int, found[1].split(",")))]
        elif found := re.match(r"def (test_\w+)", line):
            nodes += [f"{path}::{found[1]}[{value}]" for value in values] or [f"{path}::{found[1]}"]
            values = []
    return nodes


def _verdicts(nodes: list[str], failed: set[str], *, is_verbose: bool) -> list[str]:
    """One line for each test, or one row of dots for each file."""
    if is_verbose:
        return [f"{node} {'FAILED' if node in failed else 'PASSED'}" for node in nodes]
    rows: dict[str, str] = {}
    for node in nodes:
        path = node.partition("::")[0]
        rows[path] = rows.get(path, "") + ("F" if node in failed else ".")
    return [f"{path} {dots}" for path, dots in rows.items()]
