"""The protocols of a store, as the engine sees it.

A branch changes only by `Conversations.commit`. A `Batch` holds everything new, messages and what was done about them; it is taken
whole or not at all, and only if the branch is still where the writer saw it. So no order of calls can leave a message outside of the
session ranges, and a second writer reads again instead of overwriting.

Messages are append-only. Sessions partition a branch by ranges of message numbers; a message belongs to the range that holds its
number, and no row is moved for it. Everything belongs to an owner, and every query names one. Times are seconds since the epoch,
given by the caller, for display and leases only: order comes from numbers.

`Store` is the union of the protocols; code that needs a part of it asks for that part. The records are in `refold.ports.records`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from refold.model.summary import Summary
from refold.ports.records import (
    Batch,
    Call,
    CallKind,
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


class Conversations(Protocol):
    """Conversations, their branches and messages, and the one way to change them."""

    async def create(self, head: Head, session: Session, *, title: str = "", at: float = 0.0) -> Head:
        """Begin a conversation, or give back the branch that is there already under this name."""
        ...

    async def fork(
        self,
        base: Head,
        at_seq: int,
        head: Head,
        session: Session,
        inherited: Inherited | None = None,
    ) -> Head:
        """A branch that shares the first `at_seq` messages of another by reference, and has the pins of these and how they are
        shown as its own: what becomes of the base later does not change it.

        How they are shown is as the base shows them now, unless it is given: then the fork was made before, and `base_number`
        is as it was then too.
        """
        ...

    async def head(self, owner: str, conversation: str, branch: str = "") -> Head | None:
        """A branch; without a name the one that was begun or forked last."""
        ...

    async def outline(self, owner: str, conversation: str) -> Outline:
        """All branches of a conversation and what was done about them, read at once; empty where there is none."""
        ...

    async def commit(self, seen: Head, batch: Batch) -> Head:
        """Take a batch in, whole.

        Raises:
            Conflict: the branch is no longer where the writer saw it, or another session has followed the same parent.
            NotFound: there is no such branch, or it is another one of the same name.
        """
        ...

    async def messages(
        self, head: Head, first: int = 0, last: int | None = None, limit: int | None = None
    ) -> list[StoredMessage]:
        """Messages by number, those shared with the base included, oldest first."""
        ...

    async def pick(self, head: Head, seqs: Sequence[int]) -> list[StoredMessage]:
        """Single messages, in the order of their numbers."""
        ...

    async def blob(self, head: Head, digest: bytes) -> bytes | None:
        """What the conversation of a branch came in with, by its sha256."""
        ...

    async def find_key(self, head: Head, key: str) -> int | None:
        """The number of the message that came with this key."""
        ...

    async def pin(self, head: Head, seq: int, *, on: bool) -> None: ...

    async def pins(self, head: Head) -> list[int]: ...

    async def places(self, owner: str, hashes: Sequence[bytes]) -> list[HistoryPlace]:
        """Where histories with these hashes end, in the owner's branches: first where a branch ends there too, then the newest
        branch first. Not all of them where they are many.
        """
        ...

    async def conversations(self, owner: str, *, limit: int = 50, words: str = "") -> list[Listed]:
        """The owner's conversations, the latest first; `words` may stand in the id or the title."""
        ...

    async def search(
        self, owner: str, query: str, *, conversation: str = "", branch: Head | None = None, limit: int = 20
    ) -> list[SearchHit]:
        """Messages that hold the words, best first; of one conversation where it is named, and where a branch is given only
        those that it has, its own and those that it shares.
        """
        ...

    async def damaged(self, head: Head) -> list[int]:
        """Numbers of the branch's own messages whose bytes are no longer those that were stored."""
        ...


class SessionRows(Protocol):
    """The sessions of branches. They are begun, closed and undone by `Conversations.commit`."""

    async def sessions(self, owner: str, conversation: str = "", limit: int = 1_000) -> list[Session]:
        """Sessions, undone ones too, oldest first; without a conversation the owner's latest."""
        ...

    async def session(self, owner: str, which: str) -> Session | None: ...

    async def find_sessions(self, owner: str, prefix: str, limit: int = 10) -> list[tuple[str, Session]]:
        """Live sessions whose id begins so, each with its conversation."""
        ...

    async def holding(self, owner: str, places: Sequence[tuple[str, int]]) -> list[Session]:
        """The live sessions that hold messages, given by branch and number, in that order; a session may come twice."""
        ...

    async def attach_summary(
        self,
        owner: str,
        session: str,
        written: StoredSummary,
        embedding: Embedding | None = None,
        *,
        replaces: str = "",
    ) -> bool:
        """Give a closed session the summary that was written for it later, and its vector; False where it has one, other than
        the one that this `replaces`. That one is kept, and so is its vector until there is another.
        """
        ...


class CompactionRows(Protocol):
    """Compactions that were made on a branch, and the summaries they installed. `Conversations.commit` writes them."""

    async def compactions(self, owner: str, branch: str, limit: int = 1_000) -> list[Compaction]:
        """The latest changes of a branch, oldest first, without `shown`."""
        ...

    async def compaction(self, owner: str, which: str) -> Compaction | None: ...

    async def last_change(
        self, owner: str, session: str, kinds: Sequence[CompactionKind] = ()
    ) -> Compaction | None:
        """The newest change in effect that was made in a session or opened it; of some kinds where they are named."""
        ...

    async def count_summarised(self, owner: str, branch: str) -> int:
        """How many changes of a branch are in effect that summarised it."""
        ...

    async def latest(
        self, head: Head, size: int | None = None, *, before: int | None = None
    ) -> Compaction | None:
        """The newest installed change, arrivals aside, that was made when the branch had no more than `size` messages;
        one of the base where the branch has none of its own and the base had it before the fork. With `before`, the
        changes of the branch from that number on are left out.
        """
        ...

    async def raw_arrivals(self, head: Head, first: int) -> list[int]:
        """Numbers from `first` on of messages whose shortening on arrival was taken back."""
        ...

    async def written(self, owner: str, ids: Sequence[str]) -> list[StoredSummary]:
        """Summaries by id, in the order asked for, those that are not there left out."""
        ...

    async def summary(self, head: Head, number: int) -> StoredSummary | None:
        """What a branch calls by this number: of the base where it was made there before the fork, and one that was taken back
        where there is no other.
        """
        ...


class CallRows(Protocol):
    """Calls to providers and their replies. `Conversations.commit` and `SummaryJobRows.reply` write them."""

    async def calls(self, owner: str, conversation: str, limit: int = 1_000) -> list[Call]:
        """The newest calls, oldest first."""
        ...

    async def reply_to(self, owner: str, call: str) -> bytes:
        """What was answered to a call; nothing where it was not kept."""
        ...

    async def spent(self, owner: str, conversation: str, kind: CallKind) -> float:
        """Dollars that all calls of a kind took."""
        ...


class SummaryJobRows(Protocol):
    """Summary jobs: compactions that wait for a model, each worked on under a lease."""

    async def plan(self, owner: str, compaction: Compaction) -> Compaction:
        """Write a compaction down before work on it begins; one that is there already is given back as it is."""
        ...

    async def claim(
        self,
        owner: str,
        which: str,
        holder: str,
        *,
        now: float,
        until: float,
    ) -> Compaction | None:
        """Begin work on what is planned, or on what somebody left; None where it is in hand or has ended."""
        ...

    async def beat(self, owner: str, which: str, holder: str, until: float) -> bool:
        """Keep a claim; False where it is lost."""
        ...

    async def reply(
        self, owner: str, which: str, holder: str, written: StoredSummary, call: Call | None
    ) -> bool:
        """Keep what a model wrote, before anything is done with it; False where the claim is lost and another was first. What
        failed before it on the same branch is past then.
        """
        ...

    async def give_up(
        self,
        owner: str,
        which: str,
        holder: str,
        state: CompactionState,
        error: str = "",
    ) -> bool:
        """End a compaction that comes to nothing (`failed`, `superseded`), or put it back (`planned`)."""
        ...

    async def failures(self, owner: str, branch: str) -> tuple[int, float]:
        """How many compactions of a branch have failed since a model last wrote one, and when the newest of them was planned."""
        ...

    async def unfinished(self, owner: str, branch: str = "") -> list[Compaction]:
        """Compactions that are planned, running, or summarised and not yet installed, oldest first; of one branch where it
        is named.
        """
        ...

    async def forget_plans(self, owner: str, before: float) -> int:
        """Delete what was planned before then and nobody is at work on: whoever needs it plans it again. How many."""
        ...


class SummaryCacheRows(Protocol):
    """Summaries that were paid for, by the hash of all that they were made from."""

    async def cached(self, owner: str, key: str) -> Summary | None:
        """A summary that was paid for already, by the hash of all it was made with."""
        ...

    async def reserve(self, owner: str, key: str, at: float) -> None:
        """Make room for a summary before it is asked for; whoever deletes something of the owner's takes it away again."""
        ...

    async def cache(self, owner: str, key: str, summary: Summary, at: float) -> None:
        """Keep a summary, if there is room for it: what was made of something that is deleted by now is not kept."""
        ...


class Embeddings(Protocol):
    """Vectors of closed sessions, and the search by them."""

    async def embed(self, owner: str, embeddings: Sequence[Embedding]) -> int:
        """Keep vectors of closed sessions that have the summary that was embedded. How many of them do."""
        ...

    async def embeddings(self, owner: str, sessions: Sequence[str]) -> list[Embedding]:
        """The vectors of sessions, in the order asked for, those of one by name."""
        ...

    async def unembedded(self, owner: str, name: str, limit: int = 100) -> list[Session]:
        """Closed sessions with a summary and no vector of this name, newest first."""
        ...

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
        """The closed sessions whose vectors of this name are nearest to one, best first, each with its conversation; none that
        is farther than `least` (a cosine).
        """
        ...


class LearntValues(Protocol):
    """Values that Refold has found out and wants to have after a restart."""

    async def learnt(self, owner: str, topic: str, key: str) -> bytes | None:
        """What was learnt: about a model (`topic` is "calibration" or "limit"), the time ("retention"), an id of a provider's
        ("provider_file" and so on), or who made a compaction of a provider's ("compaction").
        """
        ...

    async def learn(self, owner: str, topic: str, key: str, value: bytes, at: float) -> None: ...

    async def swap_learnt(
        self, owner: str, topic: str, key: str, seen: bytes | None, value: bytes, at: float
    ) -> bool:
        """Likewise, in place of what was `seen` (None for nothing); False, and nothing is changed, where it is another by now."""
        ...


class ClientKeys(Protocol):
    """Keys with which clients use the gateway."""

    async def add_key(self, key: ClientKey) -> None:
        """Keep a key of a client.

        Raises:
            Conflict: there is one of this id.
        """
        ...

    async def find_key_owner(self, which: str) -> ClientKey | None:
        """A key by its id, revoked or not. The one question about an owner's rows that names no owner: it finds the owner."""
        ...

    async def has_keys(self) -> bool:
        """Was a key ever made, for anybody? One that was revoked counts."""
        ...

    async def keys(self, owner: str) -> list[ClientKey]:
        """The owner's keys, revoked ones too, oldest first."""
        ...

    async def revoke_key(self, owner: str, which: str, at: float) -> bool:
        """End a key for good; False where the owner has none of this id, or it was revoked before."""
        ...


class SettingRows(Protocol):
    """Settings that an owner has changed over HTTP."""

    async def setting(self, owner: str, key: str) -> bytes | None:
        """What an owner has set over HTTP."""
        ...

    async def put_setting(self, owner: str, key: str, value: bytes | None, at: float) -> None:
        """Set it, or with None forget it."""
        ...


class Owners(Protocol):
    """Owners and the deletion of their data: by name, or after a time without use."""

    async def owners(self) -> list[str]: ...

    async def delete(self, owner: str, conversation: str = "") -> int:
        """Really delete a conversation, or all that an owner has: messages, summaries, caches, keys, settings. How many
        conversations.
        """
        ...

    async def expire(
        self, owner: str, before: float, keep: Sequence[str] = (), limit: int | None = None
    ) -> int:
        """Delete the conversations that nothing happened in since then, apart from those to keep: all, or the `limit` oldest,
        and of two that were last used at one moment the one that was begun first. How many.
        """
        ...

    async def idle(self, owner: str, before: float, keep: Sequence[str] = ()) -> Idle:
        """How many conversations there are, and how many of them `expire` would delete."""
        ...


class Store(
    Conversations,
    SessionRows,
    CompactionRows,
    CallRows,
    SummaryJobRows,
    SummaryCacheRows,
    Embeddings,
    LearntValues,
    ClientKeys,
    SettingRows,
    Owners,
    Protocol,
):
    """One place for many conversations. Safe to use from several tasks at once."""

    async def close(self) -> None: ...
