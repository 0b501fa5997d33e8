"""The protocols of a store, as the engine sees it.

A branch changes only by `Conversations.commit`. A `Batch` holds the new messages with all changes that belong to them. It is
committed as a whole or not at all, and only if the branch has not changed since the writer read it (compare-and-swap). So no order
of calls can leave a message outside of the session ranges, and a second writer reads again instead of overwriting.

Messages are append-only. Sessions divide a branch into ranges of message numbers; a message belongs to the range that contains its
number, and no row is ever moved. Every row has an owner, and every query names one. Times are seconds since the epoch,
given by the caller, for display and leases only: order comes from numbers.

`Store` is the union of the protocols; code that needs a part of it asks for that part. `Notifies` and `SummaryQueue` are for several
processes on one store. The records are in `refold.ports.records`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from refold.model.summary import Summary
from refold.ports.records import (
    Batch,
    BranchNews,
    Call,
    CallKind,
    CallSum,
    ClientKey,
    CommandEntry,
    Compaction,
    CompactionKind,
    CompactionState,
    CompactionSum,
    Embedding,
    FailingBranch,
    Head,
    HistoryPlace,
    Idle,
    InheritedState,
    LatestHead,
    Listed,
    Outline,
    QueuedEntry,
    SearchHit,
    Session,
    SessionHit,
    SessionOrder,
    StoredMessage,
    StoredSummary,
    StoreNotice,
    SummaryOrder,
    TurnBlock,
    TurnCodes,
    TurnGap,
)


class Conversations(Protocol):
    """Conversations, their branches and messages. `commit` is the only way to change a branch."""

    async def create(self, head: Head, session: Session, *, title: str = "", at: float = 0.0) -> Head:
        """Create a conversation with its first branch. If a branch of this name exists, return that one."""
        ...

    async def fork(
        self,
        base: Head,
        at_seq: int,
        head: Head,
        session: Session,
        inherited: InheritedState | None = None,
    ) -> Head:
        """Create a branch that shares the first `at_seq` messages of another by reference.

        The pins of these messages and the change that shows them are copied, so later changes of the base do not affect the
        fork. `inherited` gives them instead when an archive restores a fork: then they are those of the time of the fork, and
        so is `base_number`.
        """
        ...

    async def head(self, owner: str, conversation: str, branch: str = "") -> Head | None:
        """The head of a branch; without a branch id, of the one that was used last: that has the newest message, or was
        forked after it. Of several at the same time it is the one that was begun last.
        """
        ...

    async def news(self, seen: Head) -> BranchNews | None:
        """What other writers have added to a branch since its head was as `seen`; None if the branch is not there any more."""
        ...

    async def outline(self, owner: str, conversation: str, changes: int | None = None) -> Outline:
        """All branches of a conversation with their sessions and changes, read in one transaction; empty if there is none.
        With `changes`, only so many changes of each branch, the newest.
        """
        ...

    async def commit(self, seen: Head, batch: Batch) -> Head:
        """Commit a batch as a whole.

        Raises:
            Conflict: the branch has changed since the writer read it, or another session has followed the same parent.
            NotFound: there is no such branch, or it was deleted and created again under its name; or the batch takes a
                message from the queue that is not there any more.
        """
        ...

    async def messages(
        self, head: Head, first: int = 0, last: int | None = None, limit: int | None = None
    ) -> list[StoredMessage]:
        """Messages in the order of their numbers, including those shared with the base."""
        ...

    async def pick(self, head: Head, seqs: Sequence[int]) -> list[StoredMessage]:
        """The messages with these numbers, in the order of their numbers."""
        ...

    async def blob(self, head: Head, digest: bytes) -> bytes | None:
        """A blob of the conversation (its instructions, for example), by its SHA-256, also if its bytes have changed since."""
        ...

    async def find_key(self, head: Head, key: str) -> int | None:
        """The number of the message that the client sent with this key."""
        ...

    async def pins(self, head: Head) -> list[int]:
        """The numbers of the pinned messages, in their order."""
        ...

    async def places(self, owner: str, hashes: Sequence[bytes]) -> list[HistoryPlace]:
        """The positions in the owner's branches at which histories with these hashes end.

        Positions at the end of a branch come first, then those of the newest branches. The number of results is limited.
        """
        ...

    async def conversations(self, owner: str, *, limit: int = 50, words: str = "") -> list[Listed]:
        """The owner's conversations, newest first; with `words`, those that have them in their id or title."""
        ...

    async def latest_heads(
        self, owner: str, *, limit: int = 50, words: str = "", before: tuple[float, int] | None = None
    ) -> list[LatestHead]:
        """A page of the owner's conversations, newest first, each with the branch that was used last; `before` is the
        `place` of the last one of the page before. `words` as for `conversations`. One query, however many there are.
        """
        ...

    async def tokens_since(self, owner: str, places: Sequence[tuple[str, int]]) -> dict[str, int]:
        """The tokens of the messages of each branch from a number on, by branch."""
        ...

    async def search(
        self, owner: str, query: str, *, conversation: str = "", branch: Head | None = None, limit: int = 20
    ) -> list[SearchHit]:
        """Messages that match a query of `refold.core.search.query`, best match first; each message once.

        With `conversation`, only messages of that conversation; with `branch`, only messages of that branch, including those
        it shares with its base.
        """
        ...

    async def search_sessions(
        self, owner: str, query: str, *, conversation: str = "", limit: int = 20
    ) -> list[SessionHit]:
        """Live sessions with messages that match a query, best first."""
        ...

    async def damaged(self, head: Head) -> list[int]:
        """Numbers of the branch's own messages with a wrong checksum: their bytes have changed since they were stored."""
        ...

    async def damaged_values(self, head: Head) -> list[str]:
        """Names of the other values of a branch with a wrong checksum: its notes, replies, summaries, records of compactions,
        shortened messages, and with the first branch the conversation's system prompts. Values that were stored by a version
        without checksums are not checked.
        """
        ...


class SessionRows(Protocol):
    """The sessions of branches. `Conversations.commit` opens, closes and undoes them."""

    async def sessions(self, owner: str, conversation: str = "", limit: int = 1_000) -> list[Session]:
        """Sessions of a conversation, including undone ones, oldest first; without a conversation, the owner's latest."""
        ...

    async def session(self, owner: str, which: str) -> Session | None: ...

    async def find_sessions(self, owner: str, prefix: str, limit: int = 10) -> list[tuple[str, Session]]:
        """Live sessions with an id that begins with `prefix`, each with its conversation."""
        ...

    async def holding(self, owner: str, places: Sequence[tuple[str, int]]) -> list[Session]:
        """The live session of each message, given by branch and number, in the same order; a session may occur twice."""
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
        """Attach a summary and its vector to a session that was closed before.

        Returns False if the session has a summary already, other than the one that this `replaces`. A replaced summary stays
        in the store, and its vector stays until there is a new one.
        """
        ...


class CompactionRows(Protocol):
    """Compactions of branches, and the summaries they installed. `Conversations.commit` writes them."""

    async def compactions(self, owner: str, branch: str, limit: int = 1_000) -> list[Compaction]:
        """The latest changes of a branch, oldest first, without `shown`."""
        ...

    async def compaction(self, owner: str, which: str) -> Compaction | None: ...

    async def last_change(
        self, owner: str, session: str, kinds: Sequence[CompactionKind] = ()
    ) -> Compaction | None:
        """The newest change in effect that was made in a session or opened it; with `kinds`, only of these kinds."""
        ...

    async def count_summarised(self, owner: str, branch: str) -> int:
        """The number of summarising changes of a branch that are in effect."""
        ...

    async def latest(
        self, head: Head, size: int | None = None, *, before: int | None = None
    ) -> Compaction | None:
        """The newest installed change, except arrivals, from a time when the branch had at most `size` messages.

        If the branch has none of its own, the newest one that its base had before the fork. With `before`, changes of
        the branch from that number on are left out.
        """
        ...

    async def raw_arrivals(self, head: Head, first: int) -> list[int]:
        """Numbers, from `first` on, of messages that were shortened on arrival and are shown in full again."""
        ...

    async def written(self, owner: str, ids: Sequence[str]) -> list[StoredSummary]:
        """Summaries by id, in the order of `ids`; ids that do not exist are left out."""
        ...

    async def summary(self, head: Head, number: int) -> StoredSummary | None:
        """The summary with this number in a branch.

        It may belong to the base, if it was made before the fork. An undone summary is returned only if there is no other
        with this number.
        """
        ...


class CallRows(Protocol):
    """Calls to providers and their replies. `Conversations.commit` and `SummaryJobRows.reply` write them."""

    async def calls(self, owner: str, conversation: str, limit: int = 1_000) -> list[Call]:
        """The newest calls, oldest first."""
        ...

    async def calls_before(self, owner: str, conversation: str, call: str) -> int:
        """The number of calls of a conversation that were stored before one of them."""
        ...

    async def reply_to(self, owner: str, call: str) -> bytes:
        """The reply to a call; empty if it was not stored."""
        ...

    async def newest_replies(self, owner: str, places: Sequence[tuple[str, str, int]]) -> dict[str, bytes]:
        """The replies to the newest calls of some branches, each given as conversation, branch and number of messages: of the
        last 100 calls of the conversation, the newest for a reply that was made with so many messages. By branch; a
        branch without one is left out.
        """
        ...

    async def conversation_calls(self, owner: str, since: float = 0.0) -> list[CallSum]:
        """The calls since a time, added up by conversation, kind, model, upstream and `is_estimated`, in this order."""
        ...

    async def spent(self, owner: str, conversation: str, kind: CallKind) -> float:
        """The cost in dollars of all calls of a kind."""
        ...

    async def spent_each(self, owner: str, conversations: Sequence[str], kind: CallKind) -> dict[str, float]:
        """The cost in dollars of all calls of a kind, by conversation; one without a call is left out."""
        ...


class DayRows(Protocol):
    """Calls and compactions added up by day. The transaction that stores a call or ends a compaction adds to the sums. They stay
    when a conversation is deleted, and go with their owner.
    """

    async def call_days(self, owner: str, first: int = 0) -> list[CallSum]:
        """The sums from a day on, in the order of day, kind, model, upstream and `is_estimated`. Calls that are not counted yet,
        because an earlier version has stored them, are added in as long as their conversation is there.
        """
        ...

    async def compaction_days(self, owner: str, first: int = 0) -> list[CompactionSum]:
        """The sums from a day on, in the order of day, kind, reason, author and outcome, without those that are not counted."""
        ...

    async def uncounted(self, owner: str) -> tuple[int, int]:
        """The number of calls and of compactions that are not counted, because an earlier version has stored them."""
        ...

    async def backfill(self, owner: str, limit: int) -> tuple[int, int]:
        """Count some of them: `limit` of each at most. Returns how many calls and how many compactions; (0, 0) when all are."""
        ...


class QueueRows(Protocol):
    """The queue of a branch, the commands that were run on it, and the lease of the program that answers on it.

    `Conversations.commit` takes messages out of the queue. Queued entries are invisible to every other query.
    """

    async def enqueue(self, head: Head, entry: QueuedEntry) -> None:
        """Store an entry at the end of the queue. An id that is there already is not stored again.

        Raises:
            NotFound: there is no such branch.
        """
        ...

    async def queued(self, owner: str, branch: str) -> list[QueuedEntry]:
        """The queue of a branch, in the order of arrival."""
        ...

    async def begin_command(self, owner: str, which: str) -> bool:
        """Note that a queued command is about to run. False if it has left the queue."""
        ...

    async def keep_command(self, owner: str, entry: CommandEntry) -> None:
        """Store a command with its reply, and take it out of the queue if it is there.

        Raises:
            NotFound: there is no such branch.
        """
        ...

    async def commands(self, owner: str, branch: str) -> list[CommandEntry]:
        """The commands that were run on a branch, oldest first."""
        ...

    async def lease(
        self, owner: str, branch: str, holder: str, *, now: float, until: float, ended: str = ""
    ) -> str | None:
        """Take the lease of a branch if it is free, expired or the holder's own, which extends it (heartbeat). `ended` is
        a holder of which it is known that its process has ended: its lease is free as well.

        Returns the holder before: an empty text if the lease was free, another name if that program crashed, and None if
        another holder has it.

        Raises:
            NotFound: there is no such branch.
        """
        ...

    async def lease_holder(self, owner: str, branch: str) -> str:
        """The program that has the lease of a branch, or had it when it crashed; an empty text if it is free."""
        ...

    async def release(self, owner: str, branch: str, holder: str) -> None:
        """Give the lease back, if the holder has it."""
        ...


class SummaryJobRows(Protocol):
    """Summary jobs: compactions that wait for a model, each worked on under a lease."""

    async def plan(self, owner: str, compaction: Compaction) -> Compaction:
        """Store a job before work on it begins. If it exists, return the stored one."""
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
        """Take the lease of a job that is planned, or whose lease has expired. None if another holder has it, or it has ended."""
        ...

    async def beat(self, owner: str, which: str, holder: str, until: float) -> bool:
        """Extend the lease (heartbeat); False if it is lost."""
        ...

    async def reply(self, owner: str, which: str, holder: str, written: StoredSummary, *calls: Call) -> bool:
        """Store the summary that a model wrote, before it is used, and reset the branch's count of failures. `calls` are
        the questions that it took.

        Returns False if the lease is lost and another holder has stored a summary first.
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
        """End a job without a result (`failed`, `superseded`), or return it to the queue (`planned`)."""
        ...

    async def failures(self, owner: str, branch: str) -> tuple[int, float]:
        """The number of jobs of a branch that failed since the last summary by a model, and the time of the newest one's plan."""
        ...

    async def failing(self, owner: str) -> list[FailingBranch]:
        """The branches with jobs that failed since the last summary by a model, the latest failure first."""
        ...

    async def unfinished(self, owner: str, branch: str = "") -> list[Compaction]:
        """Jobs that are planned, running, or summarised and not yet installed, oldest first; with `branch`, only its own."""
        ...

    async def forget_plans(self, owner: str, before: float) -> int:
        """Delete jobs that were planned before a time and are not running, and return their number. A job that is still needed
        is planned again.
        """
        ...


class SummaryCacheRows(Protocol):
    """The cache of summaries that were paid for, by the hash of their input."""

    async def cached(self, owner: str, key: str) -> Summary | None:
        """The summary under this key, if there is one."""
        ...

    async def reserve(self, owner: str, key: str, at: float) -> None:
        """Reserve a key before a model is asked. Every deletion of the owner's data removes the reservation."""
        ...

    async def cache(self, owner: str, key: str, summary: Summary, at: float) -> None:
        """Store a summary if its key is still reserved: a summary of deleted messages must not be stored."""
        ...


class Embeddings(Protocol):
    """Vectors of closed sessions and of messages, and the search by them."""

    async def embed(self, owner: str, embeddings: Sequence[Embedding]) -> int:
        """Store vectors of closed sessions, and return their number. A vector of a summary that the session no longer has is
        not stored.
        """
        ...

    async def embeddings(self, owner: str, sessions: Sequence[str]) -> list[Embedding]:
        """The vectors of sessions, in the order of `sessions`; several of one session in the order of their names."""
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
        """The closed sessions with the nearest vectors of this name, best first, each with its conversation. `least` is the
        smallest cosine of a result.
        """
        ...

    async def turn_gaps(self, owner: str, name: str, limit: int = 100) -> list[TurnGap]:
        """Branches with messages that an embedder has not seen, in no certain order."""
        ...

    async def turn_messages(self, owner: str, gap: TurnGap) -> list[StoredMessage]:
        """The messages of a gap that may be found, of people and models, without times and tokens."""
        ...

    async def put_turns(self, owner: str, block: TurnBlock) -> bool:
        """Store the vectors of a run of messages, which begins where the gap of the branch does. False if it begins elsewhere, because
        another program has stored vectors in the meantime, or if the branch is gone: so runs neither overlap nor leave a hole.
        """
        ...

    async def turn_codes(
        self, owner: str, name: str, *, conversation: str = "", after: int = 0, limit: int = 1_000
    ) -> list[TurnCodes]:
        """A page of blocks without their vectors, by id."""
        ...

    async def turn_vectors(
        self, owner: str, places: Sequence[tuple[int, int]], size: int
    ) -> dict[tuple[int, int], bytes]:
        """Vectors of `size` bytes by the id of their block and their position in it; deleted ones are left out."""
        ...


class LearntValues(Protocol):
    """Values that Refold has learnt at run time and needs after a restart."""

    async def learnt(self, owner: str, topic: str, key: str) -> bytes | None:
        """A learnt value by its topic: about a model ("calibration", "window"), the clock of the store ("retention"), an object
        stored at a provider ("provider_file" and so on), the origin of a provider's compaction ("compaction"), the place of messages that a client does not see
        ("recall_" with a format and the hash of a first message), a browser that is signed in ("browser"), or the secret of the page's forms ("page_secret").
        """
        ...

    async def all_learnt(self, owner: str, topic: str) -> list[tuple[str, bytes]]:
        """All learnt values of a topic, each with its key, in the order of the keys."""
        ...

    async def learn(self, owner: str, topic: str, key: str, value: bytes, at: float) -> None: ...

    async def forget(self, owner: str, topic: str, key: str) -> bool:
        """Delete a learnt value. False if there was none."""
        ...

    async def forget_oldest(self, owner: str, topic: str, kept: int) -> int:
        """Delete the oldest learnt values of a topic, so that `kept` are left, or a few more of the same time. Returns their number."""
        ...

    async def swap_learnt(
        self, owner: str, topic: str, key: str, seen: bytes | None, value: bytes, at: float
    ) -> bool:
        """Compare-and-swap: store a value only if the current one is `seen` (None: there is none). False if it is not."""
        ...


class ClientKeys(Protocol):
    """The keys of the gateway's clients."""

    async def add_key(self, key: ClientKey) -> None:
        """Store a client's key.

        Raises:
            Conflict: a key with this id exists.
        """
        ...

    async def find_key_owner(self, which: str) -> ClientKey | None:
        """A key by its id, revoked or not. This is the only query for an owner's rows that names no owner, because it finds
        the owner.
        """
        ...

    async def has_keys(self) -> bool:
        """True if a key exists, of any owner; revoked keys count."""
        ...

    async def keys(self, owner: str) -> list[ClientKey]:
        """The owner's keys, including revoked ones, oldest first."""
        ...

    async def revoke_key(self, owner: str, which: str, at: float) -> bool:
        """Revoke a key for good; False if the owner has no such key, or it is revoked already."""
        ...


class SettingRows(Protocol):
    """Settings that an owner has changed over HTTP."""

    async def setting(self, owner: str, key: str) -> bytes | None:
        """The value of one setting; None if the owner has not changed it."""
        ...

    async def put_setting(self, owner: str, key: str, value: bytes | None, at: float) -> None:
        """Store the value of a setting; None deletes it."""
        ...


class Owners(Protocol):
    """The owners, and the deletion of their data: by name, or after a time without use."""

    async def owners(self) -> list[str]: ...

    async def delete(self, owner: str, conversation: str = "") -> int:
        """Delete a conversation, or all data of an owner: messages, summaries, caches, keys, settings. Returns the number of
        deleted conversations.
        """
        ...

    async def expire(
        self, owner: str, before: float, keep: Sequence[str] = (), limit: int | None = None
    ) -> int:
        """Delete the conversations that were last used before a time, except those in `keep`, and return their number.

        With `limit`, the ones that were unused longest are deleted; of two with the same time, the one that was created first.
        """
        ...

    async def idle(self, owner: str, before: float, keep: Sequence[str] = ()) -> Idle:
        """The number of conversations, and the number that `expire` would delete."""
        ...


class Store(
    Conversations,
    SessionRows,
    CompactionRows,
    CallRows,
    DayRows,
    QueueRows,
    SummaryJobRows,
    SummaryCacheRows,
    Embeddings,
    LearntValues,
    ClientKeys,
    SettingRows,
    Owners,
    Protocol,
):
    """A store of conversations. Several tasks may use one at the same time."""

    async def fault(self) -> str:
        """Why it cannot serve a program of this version although it can be reached: its tables are missing, its file
        was removed or is locked. Empty if it can.
        """
        ...

    async def close(self) -> None: ...


@runtime_checkable
class Notifies(Protocol):
    """A store that tells its processes of changes."""

    def notices(self) -> AsyncIterator[StoreNotice]:
        """Yield changes as they are committed, until the caller stops; a lost connection is made again."""
        ...


class SummaryQueue(Protocol):
    """Has summaries written by other processes. The compaction's row in the store, with its lease, decides who asks a model; a queue
    only brings the order to a worker.
    """

    async def order_summary(self, order: SummaryOrder) -> None:
        """Queue an order. One that is queued already is not queued again."""
        ...

    async def order_session(self, order: SessionOrder) -> None:
        """Queue the summary of a closed session."""
        ...

    async def is_queued(self, compaction: str) -> bool:
        """Whether a worker has the order of this compaction, or will get it."""
        ...

    def watch(self, compaction: str) -> AbstractContextManager[asyncio.Event]:
        """Within the block, the event is set whenever this process is told that a compaction has ended."""
        ...
