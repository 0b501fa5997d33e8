"""Is all that was acknowledged there, once, in order and within reach? Asked from outside, after something was killed or cut.

The rules of the engine's own doctor are checked along with it; what a doctor cannot know is what was promised: that is in the
logs of the programs that were killed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct, json

from refold.engine.doctor import examine
from refold.engine.engine import Engine
from refold.model.errors import NotFound
from refold.ports.records import Head, Session
from refold.ports.store import Store
from tests.durability.notes import OWNER

RECALLED = 40
"""The newest messages of a conversation that are recalled by their handles after each kill; all of them are at the end."""


class Line(Struct):
    """A line of the log."""

    kind: str
    conversation: str
    ids: tuple[str, ...] = ()
    act: str = ""


class Log:
    """What was about to be said in each conversation, batch by batch, and what was acknowledged."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self.lines = list(lines)
        self.acts = Counter(line.act for line in self.lines if line.kind == "done")

    @classmethod
    def read(cls, path: Path) -> Log:
        return cls(json.decode(line, type=Line) for line in _whole_lines(path))

    @property
    def conversations(self) -> list[str]:
        return list(dict.fromkeys(line.conversation for line in self.lines if line.conversation))

    def intended(self, conversation: str) -> list[tuple[str, ...]]:
        return self._of(conversation, "intent")

    def said(self, conversation: str) -> list[str]:
        return [name for ids in self._of(conversation, "said") for name in ids]

    def _of(self, conversation: str, kind: str) -> list[tuple[str, ...]]:
        return [one.ids for one in self.lines if (one.kind, one.conversation) == (kind, conversation)]


class Asked(Struct):
    """A line of the author's ledger: they were asked, or stopped before they could answer."""

    id: str
    run: int
    is_stopped: bool = False


def read_ledger(path: Path) -> list[Asked]:
    return [json.decode(line, type=Asked) for line in _whole_lines(path)]


def _whole_lines(path: Path) -> list[bytes]:
    text = path.read_bytes() if path.exists() else b""
    return text[: text.rfind(b"\n") + 1].splitlines()


async def faults_of(
    engine: Engine, logs: Sequence[Log], names: Iterable[str], *, recalled: int | None = RECALLED
) -> list[str]:
    """What is wrong with these conversations, each log being that of one writer at a time; empty where nothing is."""
    found = []
    for name in names:
        found += [f"{name}: {fault}" for fault in await _faults(engine, logs, name, recalled)]
    stuck = [one for one in await engine.store.unfinished(OWNER) if one.state == "running"]
    return found + [f"{one.branch}: stuck: the compaction {one.id}" for one in stuck]


async def _faults(engine: Engine, logs: Sequence[Log], name: str, recalled: int | None) -> list[str]:
    store, said = engine.store, [one for log in logs for one in log.said(name)]
    head = await store.head(OWNER, name)
    if head is None:
        return ["lost: the whole conversation"] if said else []
    kept = [name_of(one.body) for one in await store.messages(head)]
    found = [f"{one.rule}: {one.what}" for one in await examine(store, OWNER, name, engine.clock())]
    for log in logs:
        found += compare(kept, log.intended(name), log.said(name))
    intended = {one for log in logs for ids in log.intended(name) for one in ids}
    found += [f"nobody said: {one}" for one in kept if one not in intended]
    found += await _ranges(store, head, len(kept))
    return found + await _recalled(engine, name, kept, recalled)


def compare(kept: Sequence[str], intended: Sequence[tuple[str, ...]], said: Sequence[str]) -> list[str]:
    """What is kept against what one writer was to say and what was acknowledged."""
    counted, order = Counter(kept), [name for ids in intended for name in ids]
    found = [f"lost: {name}" for name in said if name not in counted]
    found += [f"duplicated: {name}" for name in order if counted[name] > 1]
    own = set(order)
    if [name for name in kept if name in own] != [name for name in order if name in counted]:
        found.append("out of order")
    torn = [ids for ids in intended if 0 < sum(name in counted for name in ids) < len(ids)]
    return found + [f"torn: {ids}" for ids in torn]


async def _ranges(store: Store, head: Head, size: int) -> list[str]:
    """Every message is in one live session of the branch, and there is one branch."""
    sessions = await store.sessions(OWNER, head.conversation, limit=10**9)
    live = [one for one in sessions if one.state == "live"]
    held = [len(_holding(live, seq)) for seq in range(size)]
    found = [f"in {times} sessions: {seq}" for seq, times in enumerate(held) if times != 1]
    branches = {one.branch for one in sessions}
    return found + ([f"forked: {len(branches)} branches"] if len(branches) > 1 else [])


def _holding(sessions: Sequence[Session], seq: int) -> list[Session]:
    return [one for one in sessions if one.first <= seq and (one.last is None or seq < one.last)]


async def _recalled(engine: Engine, name: str, kept: Sequence[str], recalled: int | None) -> list[str]:
    """Everything is brought back by its handle, by a program that has just opened the conversation."""
    talk, found = await engine.conversation(name), []
    for seq in range(len(kept))[-recalled if recalled else 0 :]:
        try:
            message = await talk.recall(f"#m{seq}")
        except NotFound:
            message = ""
        if not str(message["content"] if isinstance(message, dict) else message).startswith(kept[seq]):
            found.append(f"unreachable: {kept[seq]} as #m{seq}")
    return found


def name_of(body: bytes) -> str:
    """The name that a message was given before it was said."""
    return str(json.decode(body)["content"]).partition(" ")[0]
