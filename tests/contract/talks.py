"""Short ways to say what happens to a stored conversation."""

from __future__ import annotations

from array import array
from typing import Literal

from msgspec import json

from refold.core.search.rank import pack
from refold.model.summary import Summary
from refold.model.tokens import Usage
from refold.ports.records import (
    Batch,
    Call,
    CommandEntry,
    Compaction,
    Embedding,
    Head,
    InstalledCompaction,
    QueuedEntry,
    Session,
    StoredMessage,
    StoredSummary,
    TurnBlock,
)
from refold.ports.store import Store

ANNA = "anna"
BORIS = "boris"


def new_head(conversation: str = "talk", owner: str = ANNA, branch: str = "") -> Head:
    return Head(
        owner=owner, conversation=conversation, branch=branch or f"{conversation}/main", model="gpt-5-mini"
    )


def first_session(head: Head, first: int = 0) -> Session:
    return Session(id=f"{head.branch}/s0", branch=head.branch, first=first, at=1.0)


async def summaries_of(store: Store, head: Head) -> list[StoredSummary]:
    """The summaries of the changes in effect on a branch, oldest first."""
    changes = await store.compactions(head.owner, head.branch)
    return await store.written(head.owner, [one.id for one in changes if one.state == "installed"])


async def begin(
    store: Store, conversation: str = "talk", owner: str = ANNA, *, title: str = "", at: float = 1.0
) -> Head:
    head = new_head(conversation, owner)
    return await store.create(head, first_session(head), title=title, at=at)


def message(seq: int, text: str, *, role: str = "user", key: str = "", tokens: int = 0) -> StoredMessage:
    body = json.encode({"role": role, "content": text})
    return StoredMessage(
        seq=seq,
        role=role,
        format="chat",
        body=body,
        key=key,
        tokens=tokens or len(text),
        at=float(seq),
    )


def messages(head: Head, *texts: str) -> tuple[StoredMessage, ...]:
    return tuple(message(head.next_seq + place, text) for place, text in enumerate(texts))


async def say(store: Store, head: Head, *texts: str, at: float = 2.0) -> Head:
    return await store.commit(head, Batch(at=at, messages=messages(head, *texts)))


def queued(which: str, text: str, *, kind: Literal["message", "command"] = "message") -> QueuedEntry:
    body = json.encode({"role": "user", "content": text}) if kind == "message" else text.encode()
    return QueuedEntry(id=which, branch="", kind=kind, body=body, at=3.0)


def command(head: Head, which: str, text: str, reply: str = "Done.") -> CommandEntry:
    return CommandEntry(
        id=which, branch=head.branch, session=head.session, size=head.next_seq, text=text, reply=reply, at=4.0
    )


async def read(store: Store, head: Head) -> list[str]:
    return [json.decode(one.body)["content"] for one in await store.messages(head)]


def summary(text: str = "They spoke about boats.", first: int = 0, last: int = 1) -> Summary:
    return Summary(text, first, last, tokens=len(text))


def written(which: str, text: str = "They spoke about boats.") -> StoredSummary:
    return StoredSummary(id=which, summary=summary(text), carry=b"[1,2]", at=3.0)


def embedding(session: str, summary: str, *numbers: float, name: str = "tiny") -> Embedding:
    return Embedding(
        session=session, summary=summary, name=name, vector=array("f", numbers).tobytes(), at=3.0
    )


def next_session(head: Head, first: int, name: str = "", **more: object) -> Session:
    return Session(id=name or f"{head.branch}/s{head.epoch + 1}", branch=head.branch, first=first, **more)  # type: ignore[arg-type]


def fold(head: Head, cut: int, name: str = "", *, size: int | None = None) -> InstalledCompaction:
    """A compaction that summarises everything before a message."""
    name = name or f"{head.branch}/c{head.epoch}"
    child = next_session(head, cut, f"{name}/s", kind="compaction", parent=head.session)
    compaction = Compaction(
        id=name,
        branch=head.branch,
        kind="summarise",
        base=head.session,
        session=child.id,
        cut=cut,
        size=head.next_seq if size is None else size,
        reason="above-trigger",
        recipe="r1",
        before=1_000,
        after=100,
        edits=b"[]",
        shown=b'{"shown":1}',
        at=3.0,
    )
    return InstalledCompaction(compaction, written(name), child)


def reduce(head: Head, name: str = "", *, size: int | None = None) -> InstalledCompaction:
    """A change that hides something and opens no session."""
    name = name or f"{head.branch}/r{head.epoch}"
    return InstalledCompaction(
        Compaction(
            id=name,
            branch=head.branch,
            kind="reduce",
            base=head.session,
            size=head.next_seq if size is None else size,
            shown=b'{"shown":2}',
            at=3.0,
        )
    )


def arrival(head: Head, seq: int, name: str = "") -> InstalledCompaction:
    """A message that was shortened when it arrived."""
    name = name or f"{head.branch}/a{seq}"
    return InstalledCompaction(
        Compaction(
            id=name, branch=head.branch, kind="arrival", base=head.session, cut=seq, size=head.next_seq
        )
    )


async def compact(store: Store, head: Head, cut: int, name: str = "") -> Head:
    return await store.commit(head, Batch(at=3.0, changes=(fold(head, cut, name),)))


def planned(head: Head, name: str = "work") -> Compaction:
    return Compaction(
        id=name, branch=head.branch, kind="summarise", base=head.session, cut=1, size=head.next_seq
    )


def call(head: Head, name: str, **usage: int) -> Call:
    return Call(
        id=name,
        branch=head.branch,
        session=head.session,
        usage=Usage(**usage),
        size=head.next_seq,
        model="gpt-5-mini",
        receipt=b"{}",
        dollars=0.5,
        at=4.0,
    )


async def ranges(store: Store, head: Head) -> list[tuple[int, int | None]]:
    """The live sessions of a branch as ranges of numbers."""
    sessions = await store.sessions(head.owner, head.conversation)
    live = [session for session in sessions if session.state == "live" and session.branch == head.branch]
    return sorted(
        ((session.first, session.last) for session in live), key=lambda one: (one[0], one[1] is None)
    )


def block(head: Head, first: int, last: int, *numbers: tuple[float, ...], name: str = "tiny") -> TurnBlock:
    """The vectors of messages from number `first` on."""
    codes, vectors = pack([array("f", one).tobytes() for one in numbers])
    seqs = tuple(range(first, first + len(numbers)))
    return TurnBlock(
        branch=head.branch, name=name, first=first, last=last, seqs=seqs, codes=codes, vectors=vectors
    )
