"""The store over a database.

One idea: every method is one transaction of the modules beside this one, handed to the driver. What the databases have in common
is all but everything; a driver is the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

from refold.model.summary import Summary
from refold.ports.store import (
    Batch,
    Call,
    CallKind,
    ClientKey,
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
from refold.store import (
    beginning,
    chaining,
    committing,
    embedding,
    keeping,
    listing,
    purging,
    reading,
    rows,
    working,
)
from refold.store.failpoints import reach
from refold.store.transactions import Driver, Parameters
from refold.text_work import run_text_work


def committed(head: Head) -> Head:
    """Where a branch is, once that is on the disk."""
    reach("commit.after_commit")
    return head


def text_size(batch: Batch) -> int:
    """Bytes that have to be read for the index of words."""
    return sum(len(message.body) for message in batch.messages)


def _spelt(seen: Head, batch: Batch) -> dict[int, Parameters]:
    return {message.seq: rows.with_words(seen, message) for message in batch.messages}


class SqlStore:
    """Conversations in a database."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._read, self._write = driver.read, driver.write

    async def create(self, head: Head, session: Session, *, title: str = "", at: float = 0.0) -> Head:
        return await self._write(beginning.create, head, session, title, at)

    async def fork(
        self,
        base: Head,
        at_seq: int,
        head: Head,
        session: Session,
        inherited: Inherited | None = None,
    ) -> Head:
        return await self._write(beginning.fork, base, at_seq, head, session, inherited)

    async def head(self, owner: str, conversation: str, branch: str = "") -> Head | None:
        return await self._read(beginning.head, owner, conversation, branch)

    async def outline(self, owner: str, conversation: str) -> Outline:
        return await self._driver.read_at_once(reading.outline, owner, conversation)

    async def commit(self, seen: Head, batch: Batch) -> Head:
        spelt = await run_text_work(text_size(batch), _spelt, seen, batch)
        return committed(await self._write(committing.commit, seen, batch, lambda _, one: spelt[one.seq]))

    async def messages(
        self, head: Head, first: int = 0, last: int | None = None, limit: int | None = None
    ) -> list[Stored]:
        return await self._read(reading.messages, head, first, last, limit)

    async def pick(self, head: Head, seqs: Sequence[int]) -> list[Stored]:
        return await self._read(reading.pick, head, seqs)

    async def blob(self, head: Head, digest: bytes) -> bytes | None:
        return await self._read(reading.blob, head, digest)

    async def find_key(self, head: Head, key: str) -> int | None:
        return await self._read(reading.find_key, head, key)

    async def sessions(self, owner: str, conversation: str = "", limit: int = 1_000) -> list[Session]:
        return await self._read(reading.sessions, owner, conversation, limit)

    async def session(self, owner: str, which: str) -> Session | None:
        return await self._read(reading.session, owner, which)

    async def find_sessions(self, owner: str, prefix: str, limit: int = 10) -> list[tuple[str, Session]]:
        return await self._read(reading.find_sessions, owner, prefix, limit)

    async def holding(self, owner: str, places: Sequence[tuple[str, int]]) -> list[Session]:
        return await self._read(reading.holding, owner, places)

    async def compactions(self, owner: str, branch: str, limit: int = 1_000) -> list[Compaction]:
        return await self._read(reading.compactions, owner, branch, limit)

    async def compaction(self, owner: str, which: str) -> Compaction | None:
        return await self._read(reading.compaction, owner, which)

    async def last_change(
        self, owner: str, session: str, kinds: Sequence[CompactionKind] = ()
    ) -> Compaction | None:
        return await self._read(reading.last_change, owner, session, kinds)

    async def count_summarised(self, owner: str, branch: str) -> int:
        return await self._read(reading.count_summarised, owner, branch)

    async def latest(self, head: Head, size: int | None = None) -> Compaction | None:
        return await self._read(reading.latest, head, size)

    async def raw_arrivals(self, head: Head, first: int) -> list[int]:
        return await self._read(reading.raw_arrivals, head, first)

    async def written(self, owner: str, ids: Sequence[str]) -> list[Written]:
        return await self._read(reading.written, owner, ids)

    async def summary(self, head: Head, number: int) -> Written | None:
        return await self._read(reading.summary, head, number)

    async def attach_summary(
        self,
        owner: str,
        session: str,
        written: Written,
        embedding: Embedding | None = None,
        *,
        replaces: str = "",
    ) -> bool:
        return await self._write(working.attach_summary, owner, session, written, embedding, replaces)

    async def embed(self, owner: str, embeddings: Sequence[Embedding]) -> int:
        return await self._write(embedding.embed, owner, embeddings)

    async def embeddings(self, owner: str, sessions: Sequence[str]) -> list[Embedding]:
        return await self._read(embedding.embeddings, owner, sessions)

    async def unembedded(self, owner: str, name: str, limit: int = 100) -> list[Session]:
        return await self._read(embedding.unembedded, owner, name, limit)

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
        return await self._read(embedding.nearest, owner, name, vector, conversation, limit, least)

    async def calls(self, owner: str, conversation: str, limit: int = 1_000) -> list[Call]:
        return await self._read(reading.calls, owner, conversation, limit)

    async def reply_to(self, owner: str, call: str) -> bytes:
        return await self._read(chaining.reply_to, owner, call)

    async def places(self, owner: str, hashes: Sequence[bytes]) -> list[Place]:
        return await self._read(chaining.places, owner, hashes)

    async def spent(self, owner: str, conversation: str, kind: CallKind) -> float:
        return await self._read(reading.spent, owner, conversation, kind)

    async def conversations(self, owner: str, *, limit: int = 50, words: str = "") -> list[Listed]:
        return await self._read(listing.conversations, owner, limit, words)

    async def search(
        self, owner: str, query: str, *, conversation: str = "", branch: Head | None = None, limit: int = 20
    ) -> list[Hit]:
        dialect = self._driver.dialect
        return await self._read(listing.search, dialect, owner, query, conversation, limit, branch)

    async def plan(self, owner: str, compaction: Compaction) -> Compaction:
        return await self._write(working.plan, owner, compaction)

    async def claim(
        self, owner: str, which: str, holder: str, *, now: float, until: float
    ) -> Compaction | None:
        claimed = await self._write(working.claim, owner, which, holder, now, until)
        reach("claim.after_commit")
        return claimed

    async def beat(self, owner: str, which: str, holder: str, until: float) -> bool:
        return await self._write(working.beat, owner, which, holder, until)

    async def reply(self, owner: str, which: str, holder: str, written: Written, call: Call | None) -> bool:
        kept = await self._write(working.reply, owner, which, holder, written, call)
        reach("reply.after_commit")
        return kept

    async def give_up(
        self, owner: str, which: str, holder: str, state: CompactionState, error: str = ""
    ) -> bool:
        return await self._write(working.give_up, owner, which, holder, state, error)

    async def failures(self, owner: str, branch: str) -> tuple[int, float]:
        return await self._read(working.failures, owner, branch)

    async def unfinished(self, owner: str, branch: str = "") -> list[Compaction]:
        return await self._read(working.unfinished, owner, branch)

    async def forget_plans(self, owner: str, before: float) -> int:
        return await self._write(working.forget_plans, owner, before)

    async def cached(self, owner: str, key: str) -> Summary | None:
        return await self._read(working.cached, owner, key)

    async def reserve(self, owner: str, key: str, at: float) -> None:
        await self._write(working.reserve, owner, key, at)

    async def cache(self, owner: str, key: str, summary: Summary, at: float) -> None:
        await self._write(working.cache, owner, key, summary, at)

    async def learnt(self, owner: str, topic: str, key: str) -> bytes | None:
        return await self._read(keeping.learnt, owner, topic, key)

    async def learn(self, owner: str, topic: str, key: str, value: bytes, at: float) -> None:
        await self._write(keeping.learn, owner, topic, key, value, at)

    async def swap_learnt(
        self, owner: str, topic: str, key: str, seen: bytes | None, value: bytes, at: float
    ) -> bool:
        return await self._write(keeping.swap_learnt, owner, topic, key, seen, value, at)

    async def add_key(self, key: ClientKey) -> None:
        await self._write(keeping.add_key, key)

    async def find_key_owner(self, which: str) -> ClientKey | None:
        return await self._read(keeping.find_key_owner, which)

    async def has_keys(self) -> bool:
        return await self._read(keeping.has_keys)

    async def keys(self, owner: str) -> list[ClientKey]:
        return await self._read(keeping.keys, owner)

    async def revoke_key(self, owner: str, which: str, at: float) -> bool:
        return await self._write(keeping.revoke_key, owner, which, at)

    async def setting(self, owner: str, key: str) -> bytes | None:
        return await self._read(keeping.setting, owner, key)

    async def put_setting(self, owner: str, key: str, value: bytes | None, at: float) -> None:
        await self._write(keeping.put_setting, owner, key, value, at)

    async def damaged(self, head: Head) -> list[int]:
        return await self._read(reading.damaged, head)

    async def pin(self, head: Head, seq: int, *, on: bool) -> None:
        await self._write(keeping.pin, head, seq, on)

    async def pins(self, head: Head) -> list[int]:
        return await self._read(keeping.pins, head)

    async def owners(self) -> list[str]:
        return await self._read(listing.owners)

    async def delete(self, owner: str, conversation: str = "") -> int:
        return await self._write(purging.delete, owner, conversation)

    async def expire(
        self, owner: str, before: float, keep: Sequence[str] = (), limit: int | None = None
    ) -> int:
        return await self._write(purging.expire, owner, before, keep, limit)

    async def idle(self, owner: str, before: float, keep: Sequence[str] = ()) -> Idle:
        return await self._read(purging.idle, owner, before, keep)

    async def close(self) -> None:
        await self._driver.close()
