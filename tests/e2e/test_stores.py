"""The real program and a real file: one conversation from its import to its end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from refold import Engine
from refold.cli.main import run
from refold.wire import decode_transcript
from tests.program import command

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "coding-agent.json"
USAGE = {"prompt_tokens": 34_000, "completion_tokens": 12, "total_tokens": 34_012}


CHANGING = {"import", "compact", "undo", "db", "delete"}


@pytest.fixture
def refold(tmp_path, monkeypatch, capsys):
    """The program. What changes the store is a process of its own; what only reads it runs in this one, which is much faster."""
    monkeypatch.chdir(ROOT)
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    for name, value in {"REFOLD_STORE": url, "COLUMNS": "80", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)

    def call(*args: str, code: int = 0) -> str:
        if args[0] in CHANGING:
            done = subprocess.run(
                [*command(), *args], input="", capture_output=True, text=True, timeout=60, check=False
            )
            ended, out, err = done.returncode, done.stdout, done.stderr
        else:
            ended, (out, err) = run(args), capsys.readouterr()
        assert ended == code, err
        assert "Traceback" not in err
        return out

    return call


def call_once(path: Path) -> dict[str, object]:
    """A program makes one call; what it sent."""

    async def work() -> dict[str, object]:
        async with Engine(f"sqlite:///{path}") as engine:
            talk = await engine.conversation("shifts")
            sent = await talk.context()
            await talk.record(USAGE)
            return sent

    return asyncio.run(work())


def damage(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("DROP TRIGGER message_never_changes")
    connection.execute(
        "UPDATE message SET body = CAST(replace(body, 'clocks', 'o''clock') AS BLOB) WHERE seq = 0"
    )
    connection.close()


@pytest.mark.feature("N10")
def test_a_conversation_from_import_to_deletion(refold, tmp_path):
    store = tmp_path / "chats.db"
    refold("import", str(EXAMPLE), "--as", "shifts")
    assert "shifts" in refold("conversations")
    assert len(json.loads(refold("sessions", "shifts", "--json"))["sessions"]) == 1

    hit = json.loads(refold("search", "half an hour gap", "--json"))["found"][0]
    assert "half an hour" in refold("recall", "shifts", hit["handle"])
    sent = call_once(store)
    assert json.loads(refold("show", "shifts", "--as-sent", "1", "--json"))["request"] == sent

    exported = refold("export", "shifts")
    rehearsal = json.loads(refold("compact", "shifts", "--window", "12000", "--dry-run", "--json"))
    assert rehearsal["after"] < rehearsal["before"]
    assert len(json.loads(refold("sessions", "shifts", "--json"))["sessions"]) == 1
    done = json.loads(refold("compact", "shifts", "--window", "12000", "--json"))
    assert done["changes"] == rehearsal["changes"]
    assert json.loads(refold("diff", "shifts", "--json"))["changes"] == done["changes"]
    assert "+ summary" in refold("diff", "shifts")
    assert json.loads(refold("show", "shifts", "--as-sent", "1", "--json"))["request"] == sent
    assert refold("export", "shifts") == exported
    refold("undo", "shifts")
    refold("undo", "shifts", code=1)

    before, after = decode_transcript(EXAMPLE.read_bytes()), decode_transcript(exported.encode())
    assert [m.origin.raw for m in after.messages] == [m.origin.raw for m in before.messages]
    assert refold("doctor") == "no findings in 1 conversation\n"
    refold("db", "backup", str(tmp_path / "copy.db"))
    damage(store)
    found = refold("doctor", code=1)
    assert "I-4: the bytes of message 0 have changed\n  rule: a message never changes\n" in found

    refold("delete", "shifts")
    left = b"".join(path.read_bytes() for path in tmp_path.glob("chats.db*"))
    assert b"harbour office" not in left
    assert refold("conversations") == ""
    assert refold("export", "shifts", "--store", f"sqlite:///{tmp_path / 'copy.db'}") == exported


def test_an_interrupted_import_leaves_nothing_half_done(refold, tmp_path):
    """Ctrl-C in the middle of reading: the conversation is there whole, or not at all."""
    env = {**os.environ, "REFOLD_STORE": f"sqlite:///{tmp_path / 'chats.db'}"}
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(EXAMPLE)], cwd=ROOT, env=env, stderr=subprocess.PIPE
    )
    _, err = process.communicate(timeout=60)

    assert process.returncode == 130, err
    assert b"Traceback" not in err
    listed = json.loads(refold("conversations", "--json"))["conversations"]
    assert sum(one["messages"] for one in listed) in (0, 134)
    refold("doctor")


# A shell starts what it runs in the background with interrupts ignored, and the tests may be run so.
INTERRUPTED = f"""
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from refold.stores.sql import commit
from refold.cli.main import run
reached = []
def reach(name):
    if name == "commit.after_messages" and not reached:
        reached.append(name)
        os.kill(os.getpid(), {int(signal.SIGINT)})
commit.reach = reach
sys.exit(run(["import", sys.argv[1], "--as", "shifts"]))
"""
