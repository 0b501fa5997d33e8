"""Conversations in memory, for as long as the program runs.

One idea: every method reads and changes a shelf in one step without a pause, so no two tasks ever meet inside of it (the words of a
long text are made out before that, in a thread), and every owner has a shelf of their own, so that no question can reach what is another's. It is the reference for the databases: one suite runs over all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from msgspec import structs

from refold.model.errors import Conflict, NotFound
from refold.model.summary import Summary
from refold.ports.store import (
    Batch,
    Call,
    CallKind,
    Compaction,
    CompactionKind,
    CompactionState,
    Embedding,
    Head,
    Hit,
    Idle,
    Inherited,
    Listed,
    Outline,
    Place,
    Session,
    Stored,
    Written,
)
from refold.store.memory_embeddings import MemoryEmbeddings
from refold.store.memory_keys import MemoryKeys
from refold.store.scan import search
from refold.store.shelf import EVERYTHING, HAS_ENDED, Begun, Draft, Shelf, searched
from refold.text_work import run_text_work

T = TypeVar("T")


class MemoryStore(MemoryEmbeddings, MemoryKeys):
    """A store that forgets everything when it is closed."""

    def __init__(self) -> None:
        self._shelves: dict[str, Shelf] = {}

    @classmethod
    def with_conversation(cls, head: Head, session: Session) -> MemoryStore:
        """A store with one conversation that has no messages yet."""
        store = cls()
        store._begin(head, session)
        return store

    async def create(self, head: Head, session: Session, *, title: str = "", at: float = 0.0) -> Head:
        return self._begin(head, session, title=title, at=at)

    def _begin(self, head: Head, session: Session, *, title: str = "", at: float = 0.0) -> Head:
        shelf = self._shelves.setdefault(head.owner, Shelf())
        if head.branch in shelf.heads:
            return shelf.head(head.conversation, head.branch)
        if session.id in shelf.sessions:
            raise Conflict("A session of this name is there already.")
        begun = Begun(id=head.conversation, title=title, at=at, updated_at=at)
        shelf.conversations.setdefault(head.conversation, begun)
        return shelf.begin(structs.replace(head, base="", base_seq=0), session)

    async def fork(
        self,
        base: Head,
        at_seq: int,
        head: Head,
        session: Session,
        inherited: Inherited | None = None,
    ) -> Head:
        shelf = self._shelf(base.owner)
        trunk = shelf.head(base.conversation, base.branch)
        if not 0 <= at_seq <= trunk.next_seq:
            raise NotFound("The branch has no such message to fork at.")
        if head.branch in shelf.heads or session.id in shelf.sessions:
            raise Conflict("A branch or a session of this name is there already.")
        fresh = structs.replace(
            head, owner=base.owner, conversation=base.conversation, base=base.branch, base_seq=at_seq
        )
        shelf.pins |= {
            (head.branch, seq) for branch, seq in shelf.pins if branch == base.branch and seq < at_seq
        }
        past = shelf.last_number(base.branch) if inherited is None else head.base_number
        begun = shelf.begin(fresh, session, past)
        shelf.inherit(begun, inherited or shelf.shown_by(trunk, begun))
        return begun

    async def head(self, owner: str, conversation: str, branch: str = "") -> Head | None:
        if branch:
            found = self._shelf(owner).heads.get(branch)
            return found if found is not None and found.conversation == conversation else None
        heads = [head for head in self._shelf(owner).heads.values() if head.conversation == conversation]
        return next((head for head in reversed(heads) if branch in {"", head.branch}), None)

    async def outline(self, owner: str, conversation: str) -> Outline:
        shelf = self._shelf(owner)
        heads = {one.branch: one for one in shelf.heads.values() if one.conversation == conversation}
        sessions = [one for one in shelf.sessions.values() if one.branch in heads]
        changes = [one for head in heads for one in shelf.compactions.values() if one.branch == head]
        return Outline(
            tuple(heads.values()), tuple(sessions), tuple(structs.replace(one, shown=b"") for one in changes)
        )

    async def commit(self, seen: Head, batch: Batch) -> Head:
        size = sum(len(message.body) for message in batch.messages)
        texts = await run_text_work(size, searched, batch.messages)
        draft = Draft(self._shelf(seen.owner), seen)
        draft.take(batch)
        return draft.lay_down(texts, batch.at, batch.title)

    async def messages(
        self, head: Head, first: int = 0, last: int | None = None, limit: int | None = None
    ) -> list[Stored]:
        ends = EVERYTHING if last is None else last
        return self._shelf(head.owner).message_range(head, first, ends)[:limit]

    async def pick(self, head: Head, seqs: Sequence[int]) -> list[Stored]:
        shelf = self._shelf(head.owner)
        found = [shelf.message_range(head, seq, seq + 1) for seq in sorted(set(seqs))]
        return [message for one in found for message in one]

    async def blob(self, head: Head, digest: bytes) -> bytes | None:
        return self._shelf(head.owner).blobs.get((head.conversation, digest))

    async def find_key(self, head: Head, key: str) -> int | None:
        return self._shelf(head.owner).key_of(head, key)

    async def sessions(self, owner: str, conversation: str = "", limit: int = 1_000) -> list[Session]:
        shelf = self._shelf(owner)
        return _newest(
            limit,
            shelf.sessions.values(),
            lambda row: conversation in {"", shelf.heads[row.branch].conversation},
        )

    async def session(self, owner: str, which: str) -> Session | None:
        return self._shelf(owner).sessions.get(which)

    async def find_sessions(self, owner: str, prefix: str, limit: int = 10) -> list[tuple[str, Session]]:
        shelf = self._shelf(owner)
        rows = [row for row in shelf.sessions.values() if row.id.startswith(prefix) and row.state == "live"]
        rows.sort(key=lambda row: row.id)
        return [(shelf.heads[row.branch].conversation, row) for row in rows[:limit]]

    async def holding(self, owner: str, places: Sequence[tuple[str, int]]) -> list[Session]:
        shelf = self._shelf(owner)
        return [row for branch, seq in places for row in shelf.sessions.values() if _holds(row, branch, seq)]

    async def compactions(self, owner: str, branch: str, limit: int = 1_000) -> list[Compaction]:
        rows = self._shelf(owner).compactions.values()
        return [
            structs.replace(row, shown=b"") for row in _newest(limit, rows, lambda row: row.branch == branch)
        ]

    async def compaction(self, owner: str, which: str) -> Compaction | None:
        return self._shelf(owner).compactions.get(which)

    async def last_change(
        self, owner: str, session: str, kinds: Sequence[CompactionKind] = ()
    ) -> Compaction | None:
        rows = [
            row
            for row in self._shelf(owner).compactions.values()
            if row.state == "installed" and (row.session or row.base) == session
            if not kinds or row.kind in kinds
        ]
        return max(rows, key=lambda row: row.number, default=None)

    async def count_summarised(self, owner: str, branch: str) -> int:
        rows = self._shelf(owner).compactions.values()
        return sum(
            row.branch == branch and row.state == "installed" and row.kind == "summarise" for row in rows
        )

    async def latest(self, head: Head, size: int | None = None) -> Compaction | None:
        return self._shelf(head.owner).latest(head, EVERYTHING if size is None else size)

    async def raw_arrivals(self, head: Head, first: int) -> list[int]:
        return [seq for seq in self._shelf(head.owner).raw(head) if seq >= first]

    async def written(self, owner: str, ids: Sequence[str]) -> list[Written]:
        known = self._shelf(owner).summaries
        return [known[which] for which in ids if which in known]

    async def summary(self, head: Head, number: int) -> Written | None:
        return self._shelf(head.owner).summary(head, number)

    async def attach_summary(
        self,
        owner: str,
        session: str,
        written: Written,
        embedding: Embedding | None = None,
        *,
        replaces: str = "",
    ) -> bool:
        shelf = self._shelf(owner)
        row = shelf.sessions.get(session)
        if row is None or row.last is None or row.summary != replaces:
            return False
        shelf.summaries.setdefault(written.id, written)
        shelf.sessions[session] = structs.replace(row, summary=written.id)
        vectors = shelf.embeddings.get(session, {})
        vectors |= {name: structs.replace(one, summary=written.id) for name, one in vectors.items()}
        shelf.embed([embedding] if embedding else [])
        return True

    async def calls(self, owner: str, conversation: str, limit: int = 1_000) -> list[Call]:
        shelf = self._shelf(owner)
        return _newest(
            limit, shelf.calls.values(), lambda row: shelf.heads[row.branch].conversation == conversation
        )

    async def reply_to(self, owner: str, call: str) -> bytes:
        return self._shelf(owner).replies.get(call, b"")

    async def places(self, owner: str, hashes: Sequence[bytes]) -> list[Place]:
        return self._shelf(owner).places(hashes)

    async def spent(self, owner: str, conversation: str, kind: CallKind) -> float:
        calls = await self.calls(owner, conversation, EVERYTHING)
        return sum((call.dollars for call in calls if call.kind == kind), 0.0)

    async def conversations(self, owner: str, *, limit: int = 50, words: str = "") -> list[Listed]:
        shelf, wanted = self._shelf(owner), words.casefold().split()
        found = [
            begun
            for begun in reversed(shelf.conversations.values())
            if all(word in f"{begun.id}\n{begun.title}".casefold() for word in wanted)
        ]
        found.sort(key=lambda begun: begun.updated_at, reverse=True)
        return [shelf.list_up(begun) for begun in found[:limit]]

    async def search(
        self, owner: str, query: str, *, conversation: str = "", branch: Head | None = None, limit: int = 20
    ) -> list[Hit]:
        shelf = self._shelf(owner)
        ends = {link: end for link, _, end in shelf.line(branch)} or dict.fromkeys(shelf.heads, EVERYTHING)
        heads = [shelf.heads[link] for link in ends if link in shelf.heads]
        places = [head for head in heads if conversation in {"", head.conversation}]
        held = {head: shelf.texts[head.branch][: ends[head.branch] - head.base_seq] for head in places}
        size = sum(len(text) for texts in held.values() for text in texts)
        return await run_text_work(size, search, held, query, limit)

    async def plan(self, owner: str, compaction: Compaction) -> Compaction:
        shelf = self._shelf(owner)
        if compaction.id not in shelf.compactions and compaction.branch not in shelf.heads:
            raise NotFound("There is no such branch.")
        planned = structs.replace(compaction, state="planned", number=0)
        return shelf.compactions.setdefault(compaction.id, planned)

    async def claim(
        self,
        owner: str,
        which: str,
        holder: str,
        *,
        now: float,
        until: float,
    ) -> Compaction | None:
        shelf = self._shelf(owner)
        row = shelf.compactions.get(which)
        if row is None or row.state in HAS_ENDED or (row.holder and row.until > now):
            return None
        state: CompactionState = "summarised" if row.state == "summarised" else "running"
        row = structs.replace(row, state=state, holder=holder, until=until, attempts=row.attempts + 1)
        shelf.compactions[which] = row
        return row

    async def beat(self, owner: str, which: str, holder: str, until: float) -> bool:
        shelf = self._shelf(owner)
        row = _held(shelf, which, holder)
        if row is None:
            return False
        shelf.compactions[which] = structs.replace(row, until=until)
        return True

    async def reply(self, owner: str, which: str, holder: str, written: Written, call: Call | None) -> bool:
        shelf = self._shelf(owner)
        if call is not None and call.branch in shelf.heads:
            shelf.calls.setdefault(call.id, call)
        row = shelf.compactions.get(which)
        if row is None or row.state in HAS_ENDED:
            return False
        if row.state == "summarised":
            return row.holder == holder
        shelf.summaries[written.id] = written
        shelf.compactions[which] = structs.replace(row, state="summarised")
        for one in shelf.failed(row.branch):
            shelf.compactions[one.id] = structs.replace(one, state="superseded")
        return True

    async def give_up(
        self,
        owner: str,
        which: str,
        holder: str,
        state: CompactionState,
        error: str = "",
    ) -> bool:
        shelf = self._shelf(owner)
        row = _held(shelf, which, holder)
        if row is None:
            return False
        shelf.compactions[which] = structs.replace(row, state=state, error=error, holder="", until=0.0)
        return True

    async def failures(self, owner: str, branch: str) -> tuple[int, float]:
        rows = self._shelf(owner).failed(branch)
        return len(rows), max((row.at for row in rows), default=0.0)

    async def unfinished(self, owner: str, branch: str = "") -> list[Compaction]:
        rows = self._shelf(owner).compactions.values()
        return [row for row in rows if row.state not in HAS_ENDED and branch in {"", row.branch}]

    async def forget_plans(self, owner: str, before: float) -> int:
        shelf = self._shelf(owner)
        old = [
            row.id
            for row in shelf.compactions.values()
            if row.state == "planned" and not row.holder and row.at < before and row.id not in shelf.summaries
        ]
        for which in old:
            del shelf.compactions[which]
        return len(old)

    async def cached(self, owner: str, key: str) -> Summary | None:
        return self._shelf(owner).cached.get(key)

    async def reserve(self, owner: str, key: str, at: float) -> None:  # noqa: ARG002
        self._shelves.setdefault(owner, Shelf()).cached.setdefault(key, None)

    async def cache(self, owner: str, key: str, summary: Summary, at: float) -> None:  # noqa: ARG002
        if key in (room := self._shelf(owner).cached):
            room[key] = summary

    async def learnt(self, owner: str, topic: str, key: str) -> bytes | None:
        return self._shelf(owner).learnt.get((topic, key))

    async def learn(self, owner: str, topic: str, key: str, value: bytes, at: float) -> None:  # noqa: ARG002
        self._shelves.setdefault(owner, Shelf()).learnt[topic, key] = value

    async def swap_learnt(
        self,
        owner: str,
        topic: str,
        key: str,
        seen: bytes | None,
        value: bytes,
        at: float,  # noqa: ARG002
    ) -> bool:
        if self._shelf(owner).learnt.get((topic, key)) != seen:
            return False
        self._shelves.setdefault(owner, Shelf()).learnt[topic, key] = value
        return True

    async def damaged(self, head: Head) -> list[int]:  # noqa: ARG002 - frozen values cannot change
        return []

    async def pin(self, head: Head, seq: int, *, on: bool) -> None:
        shelf = self._shelf(head.owner)
        if on and head.branch not in shelf.heads:
            raise NotFound("There is no such branch.")
        (shelf.pins.add if on else shelf.pins.discard)((head.branch, seq))

    async def pins(self, head: Head) -> list[int]:
        return sorted(seq for branch, seq in self._shelf(head.owner).pins if branch == head.branch)

    async def owners(self) -> list[str]:
        return sorted(self._shelves)

    async def delete(self, owner: str, conversation: str = "") -> int:
        shelf = self._shelf(owner)
        if not conversation:
            self._shelves.pop(owner, None)
            return len(shelf.conversations)
        if conversation not in shelf.conversations:
            return 0
        shelf.delete(conversation)
        return 1

    async def expire(
        self, owner: str, before: float, keep: Sequence[str] = (), limit: int | None = None
    ) -> int:
        shelf = self._shelf(owner)
        old = shelf.idle_since(before, keep)[:limit]
        for one in old:
            shelf.delete(one.id)
        return len(old)

    async def idle(self, owner: str, before: float, keep: Sequence[str] = ()) -> Idle:
        shelf = self._shelf(owner)
        old = [one.updated_at for one in shelf.idle_since(before, keep)]
        last_used = max((one.updated_at for one in shelf.conversations.values()), default=0.0)
        ends = (old[0], old[-1]) if old else (0.0, 0.0)
        return Idle(len(shelf.conversations), last_used, len(old), *ends)

    async def close(self) -> None:
        self._shelves.clear()


def _held(shelf: Shelf, which: str, holder: str) -> Compaction | None:
    """A compaction that has not come to its end and that the holder is at work on."""
    row = shelf.compactions.get(which)
    return row if row and row.holder == holder and row.state not in HAS_ENDED else None


def _holds(row: Session, branch: str, seq: int) -> bool:
    is_within = row.first <= seq and (row.last is None or seq < row.last)
    return row.branch == branch and row.state == "live" and is_within


def _newest(limit: int, rows: Iterable[T], wanted: Callable[[T], bool] = lambda _: True) -> list[T]:
    """The last rows, oldest first."""
    found = [row for row in rows if wanted(row)]
    return found[max(len(found) - limit, 0) :]
