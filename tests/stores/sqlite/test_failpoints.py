"""Wherever a program is killed, what is found afterwards is as before the step or as after it, and never between."""

from __future__ import annotations

import ast
import asyncio
import os
import signal
from pathlib import Path

import pytest

import refold.stores
from refold.stores.sql.commit import FAILPOINTS
from refold.stores.sqlite.store import SqliteStore
from tests.contract.talks import ANNA, ranges, read
from tests.program import command

ROOT = Path(__file__).parents[3]


async def play(path: Path, failpoint: str) -> tuple[int, list[str]]:
    """How a program ended that was told to fail somewhere, and what it could say before."""
    program = await asyncio.create_subprocess_exec(
        *command("tests.stores.sqlite.failing_program"),
        str(path),
        cwd=ROOT,
        env=os.environ | {"REFOLD_FAILPOINT": failpoint},
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await program.communicate()
    return program.returncode, said.decode().split()


def test_every_place_is_named_and_every_name_is_a_place():
    found = [
        node.args[0].value
        for path in Path(refold.stores.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "reach"
    ]

    assert sorted(found) == sorted(FAILPOINTS)


@pytest.mark.feature("L1")
@pytest.mark.parametrize("name", FAILPOINTS)
async def test_a_killed_program_leaves_whole_steps(tmp_path, name):
    # The first commit that appends is the second write of its kind: a place in a commit is passed once before. A place
    # of writes in the event loop is also passed when the branch is created.
    twice = {"commit.after_lock", "commit.after_messages", "commit.before_commit"}
    times = 3 if name == "here.before_commit" else 2 if name in twice else 1
    ended, said = await play(tmp_path / "a.db", f"{name}:kill:{times}")
    assert ended == -signal.SIGKILL
    store = await SqliteStore.open(tmp_path / "a.db")
    head = await store.head(ANNA, "talk")
    texts, work = await read(store, head), await store.compaction(ANNA, "work")

    assert await store.check() == []
    if name in {"commit.after_commit", "append.before_commit", "here.before_commit"}:
        assert (texts, work) == (list("abc"), None), "the last thing committed is there, acknowledged or not"
    elif name.startswith("commit."):
        assert said == ["begun", "said", "on", "claimed", "replied"]
        assert (texts, work.state, head.epoch) == (list("abcd"), "summarised", 0)
        assert await ranges(store, head) == [(0, None)]
        assert await store.embeddings(ANNA, [head.session]) == []
    else:
        step, place = name.split(".")
        is_done = place == "after_commit"
        expected = {"claim": ("planned", "running"), "reply": ("running", "summarised")}[step][is_done]
        assert work.state == expected
        is_kept = step == "reply" and is_done
        assert len(await store.written(ANNA, ["work"])) == len(await store.calls(ANNA, "talk")) == is_kept
    await store.close()


async def test_a_program_that_fails_in_the_middle_goes_on(tmp_path):
    ended, said = await play(tmp_path / "a.db", "commit.after_closing:raise")

    assert (ended, said) == (0, ["begun", "said", "on", "claimed", "replied", "reached", "5"])
    store = await SqliteStore.open(tmp_path / "a.db")
    head = await store.head(ANNA, "talk")
    assert await read(store, head) == list("abcdz")
    assert await ranges(store, head) == [(0, None)]
    await store.close()


async def test_without_a_word_nothing_fails(tmp_path):
    ended, said = await play(tmp_path / "a.db", "")

    assert (ended, said) == (0, ["begun", "said", "on", "claimed", "replied", "installed"])
    store = await SqliteStore.open(tmp_path / "a.db")
    head = await store.head(ANNA, "talk")
    assert await read(store, head) == list("abcde")
    assert await ranges(store, head) == [(0, 3), (3, None)]
    (closed, _) = await store.sessions(ANNA, "talk")
    assert (closed.summary, len(await store.embeddings(ANNA, [closed.id]))) == ("work", 1)
    await store.close()
