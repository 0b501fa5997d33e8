"""A chat that is killed at any moment loses no message, answers none twice, and runs no tool twice that must not.

python -m tests.durability.test_chat_kills KILLS [URL]     runs a campaign and prints its figures
"""

from __future__ import annotations

import asyncio
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec import Struct, json

from refold.chat.tools import INTERRUPTED
from refold.model.message import Message
from refold.ports.records import read_stored
from refold.testing import Received, Say, ScriptedUpstream, Slow, call, say
from tests.contract.postgres import get_server, make_database
from tests.durability.chat_worker import engine_for, open_chat
from tests.durability.worker import Notebook
from tests.program import command

ROOT = Path(__file__).parents[2]
MARK = re.compile(r"<(\d+\.\d+)>")


class ChatFigures(Struct):
    """What came of a campaign."""

    kills: int = 0
    messages: int = 0
    replies: int = 0
    fired: int = 0
    interrupted: int = 0
    queued: int = 0
    """Entries that a killed program left in the queue."""
    faults: list[str] = []


def answer(received: Received) -> Say | Slow:
    last = received.messages[-1]
    if last.role == "user" and last.text.startswith("fire"):
        number = last.text.removeprefix("fire ")
        return say("Aye.", call("fire", {"number": number}), call("look", {"number": number}))
    return Slow(say(f"So it is: {received.text}. " + "The tide comes and goes. " * 4), between_s=0.004)


async def look_at_queue(url: str, figures: ChatFigures) -> None:
    """What waits in the queue is not among the messages."""
    async with engine_for(url) as engine:
        head = await engine.store.head(engine.owner, "talk")
        if head is None:
            return
        waiting = await engine.store.queued(engine.owner, head.branch)
        figures.queued += len(waiting)
        bodies = [one.body.decode() for one in await engine.store.messages(head)]
        texts = {mark for body in bodies if '"user"' in body for mark in MARK.findall(body)}
        early = texts & {mark for one in waiting for mark in MARK.findall(one.body.decode())}
        figures.faults += [f"{mark}: queued and visible" for mark in early]


async def settle(url: str, provider: str, ledger: Path, figures: ChatFigures) -> list[Message]:
    """Open the chat for the last time, wait until everything is answered, and return the messages."""
    async with engine_for(url) as engine:
        talk = await engine.conversation("talk")
        async with open_chat(talk, provider, Notebook(ledger), random.Random(1)) as chat:
            async with asyncio.timeout(120):
                async for _ in chat.send("tell <9999.0>"):
                    pass
        stored = [
            read_stored(one, talk.journal.head) for one in await engine.store.messages(talk.journal.head)
        ]
        left = await engine.store.queued(engine.owner, talk.branch)
        figures.faults += [f"{one.id}: stuck in the queue" for one in left]
        figures.faults += [f"{one.rule}: {one.message}" for one in await engine.examine("talk")]
    return [one for one in stored if one is not None]


def check(messages: list[Message], log: Path, ledger: Path, figures: ChatFigures) -> None:
    """Compare the stored messages with what was acknowledged, and with what the tools noted."""
    typed = [mark for one in messages if one.role == "user" for mark in MARK.findall(one.text)]
    wanted = [mark for line in log.read_bytes().splitlines() for mark in MARK.findall(line.decode())]
    figures.faults += [f"{mark}: lost" for mark in wanted if mark not in set(typed)]
    figures.faults += [f"{mark}: stored {times} times" for mark, times in Counter(typed).items() if times > 1]
    places = {mark: place for place, mark in enumerate(typed)}
    order = [places[mark] for mark in wanted if mark in places]
    figures.faults += ["messages are not in the order of their arrival"] if order != sorted(order) else []
    for one, after in pairwise(messages):
        if one.role == "assistant" and not one.calls and after.role == "assistant":
            figures.faults.append("a second reply after a reply")
    calls = Counter(one.id for message in messages for one in message.calls)
    results = Counter(one.call_id for message in messages for one in message.results)
    figures.faults += [
        f"{which}: a call without exactly one result" for which in calls if results[which] != 1
    ]
    figures.faults += [f"{which}: a result without a call" for which in results if which not in calls]
    lines = [json.decode(line) for line in ledger.read_bytes().splitlines()] if ledger.exists() else []
    asked = Counter(
        json.decode(one.arguments)["number"]
        for message in messages
        for one in message.calls
        if one.name == "fire"
    )
    for number, times in Counter(number for _, number in lines).items():
        if times > asked[number]:
            figures.faults.append(f"{number}: fired {times} times for {asked[number]} calls")
    if messages[-1].role != "assistant":
        figures.faults.append("the last message has no reply")
    figures.messages, figures.fired = len(typed), len(lines)
    figures.replies = sum(one.role == "assistant" and not one.calls for one in messages)
    texts = [result.text for message in messages for result in message.results]
    figures.interrupted = texts.count(INTERRUPTED)


def run_and_kill(words: tuple[object, ...], log: Path, after_s: float) -> bool:
    """Run a program until it has typed something, and kill it a moment later. Returns whether it was still running."""
    size, ends = log.stat().st_size, time.monotonic() + 60
    argv = [*command("tests.durability.chat_worker"), *map(str, words)]
    worker = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE)
    while log.stat().st_size == size and worker.poll() is None and time.monotonic() < ends:
        time.sleep(0.01)
    time.sleep(after_s)
    is_running = worker.poll() is None
    worker.kill()
    worker.communicate()  # until nobody has its stdout, which a copy has as long as it lives
    return is_running


def campaign(folder: Path, url: str, kills: int, seed: int) -> ChatFigures:
    figures, chance = ChatFigures(), random.Random(seed)
    log, ledger = folder / "log", folder / "ledger"
    log.touch()
    with ScriptedUpstream(otherwise=answer, window=None) as server:
        for run in range(kills):
            words = (url, server.url, log, ledger, run, chance.randrange(1 << 30))
            if not run_and_kill(words, log, chance.random() * 1.5):
                figures.faults.append(f"run {run}: the program ended by itself")
            figures.kills += 1
            asyncio.run(look_at_queue(url, figures))
        check(asyncio.run(settle(url, server.url, ledger, figures)), log, ledger, figures)
    return figures


def judge(figures: ChatFigures, kills: int, capsys: pytest.CaptureFixture[str], label: str) -> None:
    with capsys.disabled():
        sys.stdout.write(f"\n{label}: {figures}\n")
    assert figures.faults == []
    assert figures.kills == kills
    assert figures.messages
    assert figures.replies


def test_a_chat_is_killed_now_and_then(tmp_path, capsys):
    judge(campaign(tmp_path, f"sqlite:///{tmp_path}/talks.db", 5, seed=20_261_117), 5, capsys, "SQLite")


@pytest.mark.slow
def test_a_chat_is_killed_again_and_again_with_sqlite(tmp_path, capsys):
    seed = random.SystemRandom().randrange(1 << 30)
    figures = campaign(tmp_path, f"sqlite:///{tmp_path}/talks.db", 200, seed=seed)
    judge(figures, 200, capsys, f"SQLite, seed {seed}")


@pytest.mark.slow
def test_a_chat_is_killed_again_and_again_with_postgres(tmp_path, capsys, pytestconfig):
    seed = random.SystemRandom().randrange(1 << 30)
    url = make_database(get_server(pytestconfig), "killed_chat")
    judge(campaign(tmp_path, url, 40, seed=seed), 40, capsys, f"PostgreSQL, seed {seed}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        url = sys.argv[2] if len(sys.argv) > 2 else f"sqlite:///{name}/talks.db"
        figures = campaign(Path(name), url, int(sys.argv[1]), random.SystemRandom().randrange(1 << 30))
        sys.stdout.write(f"{figures}\n")
