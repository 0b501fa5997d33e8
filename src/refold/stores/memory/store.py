"""The store in memory, which ends with the program.

Every method reads and changes an owner's tables without awaiting, so tasks never interleave inside it; only the words of a long text
are split in a thread, before that. Each owner has separate tables, so no query can reach the data of another owner. This store is the
reference for the databases: one contract suite runs over all stores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from msgspec import structs

from refold.model.errors import Conflict, NotFound
from refold.model.summary import Summary
from refold.ports.records import (
    Batch,
    Call,
    CallKind,
    CallTotals,
    ClientKey,
    Compaction,
    CompactionKind,
    CompactionState,
    Embedding,
    Head,
    HistoryPlace,
    Idle,
    Inherited,
    Listed,
    Outline,
    SearchHit,
    Session,
    StoredMessage,
    StoredSummary,
)
from refold.stores.memory.tables import (
    EVERYTHING,
    HAS_ENDED,
    ConversationRow,
    OwnerTables,
    PendingCommit,
    search,
    searched,
)
from refold.stores.search import Nearest
from refold.text_work import run_text_work

T = TypeVar("T")


class MemoryStore:
    """A store in memory; its data is lost when it is closed."""

    def __init__(self) -> None:
        self._owners: dict[str, OwnerTables] = {}

    def _tables(self, owner: str) -> OwnerTables:
        """The owner's tables, or empty ones."""
        return self._owners.get(owner) or OwnerTables()

    @classmethod
    def with_conversation(cls, head: Head, session: Session) -> MemoryStore:
        """A store with one conversation that has no messages yet."""
        store = cls()
        store._begin(head, session)
        return store

    async def create(self, head: Head, session: Session, *, title: str = "", at: float = 0.0) -> Head:
        return self._begin(head, session, title=title, at=at)

    def _begin(self, head: Head, session: Session, *, title: str = "", at: float = 0.0) -> Head:
        tables = self._owners.setdefault(head.owner, OwnerTables())
        if head.branch in tables.heads:
            return tables.head(head.conversation, head.branch)
        if session.id in tables.sessions:
            raise Conflict("a session of this name is there already")
        begun = ConversationRow(id=head.conversation, title=title, at=at, updated_at=at)
        tables.conversations.setdefault(head.conversation, begun)
        return tables.begin(structs.replace(head, base="", base_seq=0), session)

    async def fork(
        self,
        base: Head,
        at_seq: int,
        head: Head,
        session: Session,
        inherited: Inherited | None = None,
    ) -> Head:
        tables = self._tables(base.owner)
        trunk = tables.head(base.conversation, base.branch)
        if not 0 <= at_seq <= trunk.next_seq:
            raise NotFound("the branch has no such message to fork at")
        if head.branch in tables.heads or session.id in tables.sessions:
            raise Conflict("a branch or a session of this name is there already")
        fresh = structs.replace(
            head, owner=base.owner, conversation=base.conversation, base=base.branch, base_seq=at_seq
        )
        tables.pins |= {
            (head.branch, seq) for branch, seq in tables.pins if branch == base.branch and seq < at_seq
        }
        past = tables.last_number(base.branch) if inherited is None else head.base_number
        begun = tables.begin(fresh, session, past)
        tables.inherit(begun, inherited or tables.shown_by(trunk, begun))
        return begun

    async def head(self, owner: str, conversation: str, branch: str = "") -> Head | None:
        if branch:
            found = self._tables(owner).heads.get(branch)
            return found if found is not None and found.conversation == conversation else None
        return self._tables(owner).latest_head(conversation)

    async def outline(self, owner: str, conversation: str) -> Outline:
        tables = self._tables(owner)
        heads = {one.branch: one for one in tables.heads.values() if one.conversation == conversation}
        sessions = [one for one in tables.sessions.values() if one.branch in heads]
        changes = [one for head in heads for one in tables.compactions.values() if one.branch == head]
        return Outline(
            tuple(heads.values()), tuple(sessions), tuple(structs.replace(one, shown=b"") for one in changes)
        )

    async def commit(self, seen: Head, batch: Batch) -> Head:
        size = sum(len(message.body) for message in batch.messages)
        texts = await run_text_work(size, searched, batch.messages)
        pending = PendingCommit(self._tables(seen.owner), seen)
        pending.take(batch)
        return pending.apply(texts, batch.at, batch.title)

    async def messages(
        self, head: Head, first: int = 0, last: int | None = None, limit: int | None = None
    ) -> list[StoredMessage]:
        ends = EVERYTHING if last is None else last
        return self._tables(head.owner).message_range(head, first, ends)[:limit]

    async def pick(self, head: Head, seqs: Sequence[int]) -> list[StoredMessage]:
        tables = self._tables(head.owner)
        found = [tables.message_range(head, seq, seq + 1) for seq in sorted(set(seqs))]
        return [message for one in found for message in one]

    async def blob(self, head: Head, digest: bytes) -> bytes | None:
        return self._tables(head.owner).blobs.get((head.conversation, digest))

    async def find_key(self, head: Head, key: str) -> int | None:
        return self._tables(head.owner).key_of(head, key)

    async def sessions(self, owner: str, conversation: str = "", limit: int = 1_000) -> list[Session]:
        tables = self._tables(owner)
        return _newest(
            limit,
            tables.sessions.values(),
            lambda row: conversation in {"", tables.heads[row.branch].conversation},
        )

    async def session(self, owner: str, which: str) -> Session | None:
        return self._tables(owner).sessions.get(which)

    async def find_sessions(self, owner: str, prefix: str, limit: int = 10) -> list[tuple[str, Session]]:
        tables = self._tables(owner)
        rows = [row for row in tables.sessions.values() if row.id.startswith(prefix) and row.state == "live"]
        rows.sort(key=lambda row: row.id)
        return [(tables.heads[row.branch].conversation, row) for row in rows[:limit]]

    async def holding(self, owner: str, places: Sequence[tuple[str, int]]) -> list[Session]:
        tables = self._tables(owner)
        return [row for branch, seq in places for row in tables.sessions.values() if _holds(row, branch, seq)]

    async def compactions(self, owner: str, branch: str, limit: int = 1_000) -> list[Compaction]:
        rows = self._tables(owner).compactions.values()
        return [
            structs.replace(row, shown=b"") for row in _newest(limit, rows, lambda row: row.branch == branch)
        ]

    async def compaction(self, owner: str, which: str) -> Compaction | None:
        return self._tables(owner).compactions.get(which)

    async def last_change(
        self, owner: str, session: str, kinds: Sequence[CompactionKind] = ()
    ) -> Compaction | None:
        rows = [
            row
            for row in self._tables(owner).compactions.values()
            if row.state == "installed" and (row.session or row.base) == session
            if not kinds or row.kind in kinds
        ]
        return max(rows, key=lambda row: row.number, default=None)

    async def count_summarised(self, owner: str, branch: str) -> int:
        rows = self._tables(owner).compactions.values()
        return sum(
            row.branch == branch and row.state == "installed" and row.kind == "summarise" for row in rows
        )

    async def latest(
        self, head: Head, size: int | None = None, *, before: int | None = None
    ) -> Compaction | None:
        return self._tables(head.owner).latest(
            head, EVERYTHING if size is None else size, EVERYTHING if before is None else before
        )

    async def raw_arrivals(self, head: Head, first: int) -> list[int]:
        return [seq for seq in self._tables(head.owner).raw(head) if seq >= first]

    async def written(self, owner: str, ids: Sequence[str]) -> list[StoredSummary]:
        known = self._tables(owner).summaries
        return [known[which] for which in ids if which in known]

    async def summary(self, head: Head, number: int) -> StoredSummary | None:
        return self._tables(head.owner).summary(head, number)

    async def attach_summary(
        self,
        owner: str,
        session: str,
        written: StoredSummary,
        embedding: Embedding | None = None,
        *,
        replaces: str = "",
    ) -> bool:
        tables = self._tables(owner)
        row = tables.sessions.get(session)
        if row is None or row.last is None or row.summary != replaces:
            return False
        tables.summaries.setdefault(written.id, written)
        tables.sessions[session] = structs.replace(row, summary=written.id)
        vectors = tables.embeddings.get(session, {})
        vectors |= {name: structs.replace(one, summary=written.id) for name, one in vectors.items()}
        tables.embed([embedding] if embedding else [])
        return True

    async def embed(self, owner: str, embeddings: Sequence[Embedding]) -> int:
        return self._tables(owner).embed(embeddings)

    async def embeddings(self, owner: str, sessions: Sequence[str]) -> list[Embedding]:
        known = self._tables(owner).embeddings
        return [one for which in sessions for _, one in sorted(known.get(which, {}).items())]

    async def unembedded(self, owner: str, name: str, limit: int = 100) -> list[Session]:
        tables = self._tables(owner)
        closed = [row for row in tables.sessions.values() if row.state == "live" and row.last is not None]
        lacking = [row for row in closed if row.summary and name not in tables.embeddings.get(row.id, {})]
        return lacking[::-1][:limit]

    async def nearest(
        self,
        owner: str,
        name: str,
        vector: bytes,
        *,
        conversation: str = "",
        limit: int = 20,
        least: float = -1.0,
    ) -> list[tuple[str, Session]]:
        tables, found = self._tables(owner), Nearest[tuple[str, Session]](vector, limit, least)
        kept = [(row, tables.embeddings.get(row.id, {}).get(name)) for row in tables.sessions.values()]
        named = [(tables.heads[row.branch].conversation, row, one.vector) for row, one in kept if one]
        found.take(((place, row), one) for place, row, one in named if conversation in {"", place})
        return found.best

    async def calls(self, owner: str, conversation: str, limit: int = 1_000) -> list[Call]:
        tables = self._tables(owner)
        return _newest(
            limit, tables.calls.values(), lambda row: tables.heads[row.branch].conversation == conversation
        )

    async def reply_to(self, owner: str, call: str) -> bytes:
        return self._tables(owner).replies.get(call, b"")

    async def places(self, owner: str, hashes: Sequence[bytes]) -> list[HistoryPlace]:
        return self._tables(owner).places(hashes)

    async def call_totals(self, owner: str, since: float = 0.0) -> list[CallTotals]:
        found: dict[tuple[str, CallKind], CallTotals] = {}
        for call in self._tables(owner).calls.values():
            if call.at >= since:
                key = call.model, call.kind
                found[key] = found.get(key, CallTotals(*key)).with_call(call)
        return [found[key] for key in sorted(found)]

    async def spent(self, owner: str, conversation: str, kind: CallKind) -> float:
        calls = await self.calls(owner, conversation, EVERYTHING)
        return sum((call.dollars for call in calls if call.kind == kind), 0.0)

    async def conversations(self, owner: str, *, limit: int = 50, words: str = "") -> list[Listed]:
        tables, wanted = self._tables(owner), words.casefold().split()
        found = [
            begun
            for begun in reversed(tables.conversations.values())
            if all(word in f"{begun.id}\n{begun.title}".casefold() for word in wanted)
        ]
        found.sort(key=lambda begun: begun.updated_at, reverse=True)
        return [tables.list_up(begun) for begun in found[:limit]]

    async def search(
        self, owner: str, query: str, *, conversation: str = "", branch: Head | None = None, limit: int = 20
    ) -> list[SearchHit]:
        tables = self._tables(owner)
        ends = {link: end for link, _, end in tables.line(branch)} or dict.fromkeys(tables.heads, EVERYTHING)
        heads = [tables.heads[link] for link in ends if link in tables.heads]
        places = [head for head in heads if conversation in {"", head.conversation}]
        held = {head: tables.texts[head.branch][: ends[head.branch] - head.base_seq] for head in places}
        size = sum(len(text) for texts in held.values() for text in texts)
        return await run_text_work(size, search, held, query, limit)

    async def plan(self, owner: str, compaction: Compaction) -> Compaction:
        tables = self._tables(owner)
        if compaction.id not in tables.compactions and compaction.branch not in tables.heads:
            raise NotFound("there is no such branch")
        planned = structs.replace(compaction, state="planned", number=0)
        return tables.compactions.setdefault(compaction.id, planned)

    async def claim(
        self,
        owner: str,
        which: str,
        holder: str,
        *,
        now: float,
        until: float,
    ) -> Compaction | None:
        tables = self._tables(owner)
        row = tables.compactions.get(which)
        if row is None or row.state in HAS_ENDED or (row.holder and row.until > now):
            return None
        state: CompactionState = "summarised" if row.state == "summarised" else "running"
        row = structs.replace(row, state=state, holder=holder, until=until, attempts=row.attempts + 1)
        tables.compactions[which] = row
        return row

    async def beat(self, owner: str, which: str, holder: str, until: float) -> bool:
        tables = self._tables(owner)
        row = _held(tables, which, holder)
        if row is None:
            return False
        tables.compactions[which] = structs.replace(row, until=until)
        return True

    async def reply(
        self, owner: str, which: str, holder: str, written: StoredSummary, call: Call | None
    ) -> bool:
        tables = self._tables(owner)
        if call is not None and call.branch in tables.heads:
            tables.calls.setdefault(call.id, call)
        row = tables.compactions.get(which)
        if row is None or row.state in HAS_ENDED:
            return False
        if row.state == "summarised":
            return row.holder == holder
        tables.summaries[written.id] = written
        tables.compactions[which] = structs.replace(row, state="summarised")
        for one in tables.failed(row.branch):
            tables.compactions[one.id] = structs.replace(one, state="superseded")
        return True

    async def give_up(
        self,
        owner: str,
        which: str,
        holder: str,
        state: CompactionState,
        error: str = "",
    ) -> bool:
        tables = self._tables(owner)
        row = _held(tables, which, holder)
        if row is None:
            return False
        tables.compactions[which] = structs.replace(row, state=state, error=error, holder="", until=0.0)
        return True

    async def failures(self, owner: str, branch: str) -> tuple[int, float]:
        rows = self._tables(owner).failed(branch)
        return len(rows), max((row.at for row in rows), default=0.0)

    async def unfinished(self, owner: str, branch: str = "") -> list[Compaction]:
        rows = self._tables(owner).compactions.values()
        return [row for row in rows if row.state not in HAS_ENDED and branch in {"", row.branch}]

    async def forget_plans(self, owner: str, before: float) -> int:
        tables = self._tables(owner)
        old = [
            row.id
            for row in tables.compactions.values()
            if row.state == "planned"
            and not row.holder
            and row.at < before
            and row.id not in tables.summaries
        ]
        for which in old:
            del tables.compactions[which]
        return len(old)

    async def cached(self, owner: str, key: str) -> Summary | None:
        return self._tables(owner).cached.get(key)

    async def reserve(self, owner: str, key: str, at: float) -> None:  # noqa: ARG002
        self._owners.setdefault(owner, OwnerTables()).cached.setdefault(key, None)

    async def cache(self, owner: str, key: str, summary: Summary, at: float) -> None:  # noqa: ARG002
        if key in (room := self._tables(owner).cached):
            room[key] = summary

    async def learnt(self, owner: str, topic: str, key: str) -> bytes | None:
        return self._tables(owner).learnt.get((topic, key))

    async def all_learnt(self, owner: str, topic: str) -> list[tuple[str, bytes]]:
        known = self._tables(owner).learnt
        return sorted((key, value) for (one, key), value in known.items() if one == topic)

    async def forget(self, owner: str, topic: str, key: str) -> bool:
        return self._tables(owner).learnt.pop((topic, key), None) is not None

    async def learn(self, owner: str, topic: str, key: str, value: bytes, at: float) -> None:  # noqa: ARG002
        self._owners.setdefault(owner, OwnerTables()).learnt[topic, key] = value

    async def swap_learnt(
        self,
        owner: str,
        topic: str,
        key: str,
        seen: bytes | None,
        value: bytes,
        at: float,  # noqa: ARG002
    ) -> bool:
        if self._tables(owner).learnt.get((topic, key)) != seen:
            return False
        self._owners.setdefault(owner, OwnerTables()).learnt[topic, key] = value
        return True

    def _all_keys(self) -> Iterator[ClientKey]:
        return (key for tables in self._owners.values() for key in tables.client_keys.values())

    async def add_key(self, key: ClientKey) -> None:
        if await self.find_key_owner(key.id):
            raise Conflict("a key of this id is there already")
        self._owners.setdefault(key.owner, OwnerTables()).client_keys[key.id] = key

    async def find_key_owner(self, which: str) -> ClientKey | None:
        return next((key for key in self._all_keys() if key.id == which), None)

    async def has_keys(self) -> bool:
        return any(self._all_keys())

    async def keys(self, owner: str) -> list[ClientKey]:
        tables = self._owners.get(owner)
        return list(tables.client_keys.values()) if tables else []

    async def revoke_key(self, owner: str, which: str, at: float) -> bool:
        tables = self._owners.get(owner)
        key = tables.client_keys.get(which) if tables else None
        if tables is None or key is None or key.revoked_at is not None:
            return False
        tables.client_keys[which] = structs.replace(key, revoked_at=at)
        return True

    async def setting(self, owner: str, key: str) -> bytes | None:
        tables = self._owners.get(owner)
        return tables.settings.get(key) if tables else None

    async def put_setting(self, owner: str, key: str, value: bytes | None, at: float) -> None:  # noqa: ARG002
        if value is not None:
            self._owners.setdefault(owner, OwnerTables()).settings[key] = value
        elif owner in self._owners:
            self._owners[owner].settings.pop(key, None)

    async def damaged(self, head: Head) -> list[int]:  # noqa: ARG002 - frozen values cannot change
        return []

    async def pin(self, head: Head, seq: int, *, on: bool) -> None:
        tables = self._tables(head.owner)
        if on and head.branch not in tables.heads:
            raise NotFound("there is no such branch")
        (tables.pins.add if on else tables.pins.discard)((head.branch, seq))

    async def pins(self, head: Head) -> list[int]:
        return sorted(seq for branch, seq in self._tables(head.owner).pins if branch == head.branch)

    async def owners(self) -> list[str]:
        return sorted(self._owners)

    async def delete(self, owner: str, conversation: str = "") -> int:
        tables = self._tables(owner)
        if not conversation:
            self._owners.pop(owner, None)
            return len(tables.conversations)
        if conversation not in tables.conversations:
            return 0
        tables.delete(conversation)
        return 1

    async def expire(
        self, owner: str, before: float, keep: Sequence[str] = (), limit: int | None = None
    ) -> int:
        tables = self._tables(owner)
        old = tables.idle_since(before, keep)[:limit]
        for one in old:
            tables.delete(one.id)
        return len(old)

    async def idle(self, owner: str, before: float, keep: Sequence[str] = ()) -> Idle:
        tables = self._tables(owner)
        old = [one.updated_at for one in tables.idle_since(before, keep)]
        last_used = max((one.updated_at for one in tables.conversations.values()), default=0.0)
        ends = (old[0], old[-1]) if old else (0.0, 0.0)
        return Idle(len(tables.conversations), last_used, len(old), *ends)

    async def close(self) -> None:
        self._owners.clear()


def _held(tables: OwnerTables, which: str, holder: str) -> Compaction | None:
    """A compaction that has not ended, if this holder has its lease."""
    row = tables.compactions.get(which)
    return row if row and row.holder == holder and row.state not in HAS_ENDED else None


def _holds(row: Session, branch: str, seq: int) -> bool:
    is_within = row.first <= seq and (row.last is None or seq < row.last)
    return row.branch == branch and row.state == "live" and is_within


def _newest(limit: int, rows: Iterable[T], wanted: Callable[[T], bool] = lambda _: True) -> list[T]:
    """The last rows, oldest first."""
    found = [row for row in rows if wanted(row)]
    return found[max(len(found) - limit, 0) :]
