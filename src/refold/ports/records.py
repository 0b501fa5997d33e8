"""The records of a store: branches, messages, sessions, compactions, summaries, calls, keys, the batch that is committed, and the
orders for workers.

All of them are frozen values. A writer reads the `Head` of a branch and commits a `Batch` to it.
`read_stored` and the functions beside it are the only way from the stored bytes of a message to a `Message`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, TypeAlias, overload

import msgspec
from msgspec import Raw, Struct, structs

from refold.core.policy import Policy
from refold.model.dialect import DIALECTS
from refold.model.errors import Damaged, WireError
from refold.model.message import Message
from refold.model.summary import Summary
from refold.model.tokens import Budget, Usage
from refold.wire.request import decode_message

SessionKind: TypeAlias = Literal["root", "compaction", "new", "resume"]
Carries: TypeAlias = Literal["none", "summary", "full"]
CallKind: TypeAlias = Literal["reply", "summary"]
CompactionKind: TypeAlias = Literal["summarise", "reduce", "arrival"]
CompactionState: TypeAlias = Literal[
    "planned", "running", "summarised", "installed", "failed", "superseded", "undone"
]


class Head(Struct, frozen=True, kw_only=True):
    """A branch and its current position. A commit compares `place` with the stored one."""

    owner: str
    conversation: str
    branch: str
    base: str = ""
    """The branch it was forked from; it shares the first `base_seq` messages of that branch."""
    base_seq: int = 0
    base_number: int = 0
    """Number of the newest change of the base at the time of the fork: later changes of the base do not affect the fork."""
    next_seq: int = 0
    """The number of the next message, and so the count of messages."""
    epoch: int = 0
    """Incremented when a session begins or the shown messages change."""
    revision: int = 0
    """Incremented when the notes or the model are written."""
    session: str = ""
    """The open session."""
    format: str = "chat"
    model: str = ""
    notes: bytes = b""
    """State of the engine besides the shown messages, for a restart. Small; only the engine reads it."""

    @property
    def place(self) -> tuple[str, int, int, int]:
        """Two heads of a branch with the same place describe the same content. The session id distinguishes a conversation
        from one that was deleted and created again under its name.
        """
        return self.session, self.next_seq, self.epoch, self.revision


class StoredMessage(Struct, frozen=True, kw_only=True):
    """One message. Its bytes never change."""

    seq: int
    role: str
    format: str
    body: bytes
    """The message as JSON of its format; empty if content is not stored."""
    damage: str = ""
    """What has happened to the body since it was stored, by its checksum; empty if nothing has."""
    is_findable: bool = True
    """Whether search finds it by its words. Write-only: a read message has the default."""
    shown: bytes | None = None
    """The message as it was shown on arrival, if it was shortened."""
    tokens: int = 0
    key: str = ""
    """The client's idempotency key: a message that is sent again with the same key is the same message."""
    at: float = 0.0


class Session(Struct, frozen=True, kw_only=True):
    """A range of one branch: the messages from number `first` up to, not including, `last`. An open session has no `last`."""

    id: str
    branch: str
    first: int
    last: int | None = None
    kind: SessionKind = "root"
    parent: str = ""
    carries: Carries = "none"
    state: Literal["live", "undone"] = "live"
    summary: str = ""
    """The id of the summary that was written when it was closed; the next session begins with this summary."""
    target: str = ""
    """For a resumed session, the session that it continues."""
    tokens: int = 0
    """Tokens of its messages, set when it is closed."""
    at: float = 0.0
    closed_at: float | None = None

    def holds(self, seq: int) -> bool:
        """Whether a message of its branch is in its range."""
        return self.first <= seq and (self.last is None or seq < self.last)


class Compaction(Struct, frozen=True, kw_only=True):
    """One change to the shown messages of a branch, from its plan to its end."""

    id: str
    branch: str
    number: int = 0
    """Its number among the changes of its branch, assigned when it is installed."""
    kind: CompactionKind
    state: CompactionState = "installed"
    base: str = ""
    """The session that was open at that time."""
    session: str = ""
    """The session that it opened."""
    cut: int = 0
    """The number of the first message that its summary does not cover; for an arrival, the number of the message."""
    size: int = 0
    """The number of messages in the branch at that time."""
    reason: str = ""
    moment: str = ""
    """When it was made: a moment of the policy, such as `before_call`, `manual` or `overflow`; `new` or `resume` with a session,
    `summary` for a summary job that is not installed. Empty for an arrival, and in rows of earlier versions."""
    recipe: str = ""
    before: int = 0
    after: int = 0
    edits: bytes = b""
    """The edits, as JSON."""
    shown: bytes = b""
    """The snapshot of the shown messages after the change, for the engine; empty for an arrival."""
    holder: str = ""
    until: float = 0.0
    """The lease: its holder, and its end."""
    attempts: int = 0
    error: str = ""
    at: float = 0.0


class StoredSummary(Struct, frozen=True, kw_only=True):
    """A summary with the id of the compaction it was written for."""

    id: str
    summary: Summary
    carry: bytes = b""
    """Facts for the next digest; only the engine reads them."""
    at: float = 0.0


class Embedding(Struct, frozen=True, kw_only=True):
    """The vector of a closed session, made from its summary."""

    session: str
    summary: str
    """The id of the summary that was embedded. If the session has another summary, or is open again, the vector is not stored."""
    name: str
    """The name of the embedder. Only vectors of one embedder are compared."""
    vector: bytes
    """32-bit floats, little-endian, of length one; empty if the summary had no words to embed."""
    at: float = 0.0


class TurnGap(Struct, frozen=True):
    """Messages of a branch that an embedder has not seen: from number `first` up to, not including, `last`."""

    conversation: str
    branch: str
    first: int
    last: int


class TurnBlock(Struct, frozen=True, kw_only=True):
    """The vectors of a run of messages of one branch. Those that must not be found, and tool results, have none."""

    branch: str
    name: str
    """The name of the embedder."""
    first: int
    last: int
    seqs: tuple[int, ...]
    codes: bytes
    """The signs of each vector, as bits: few bytes, so that the nearest of a million can be looked for in memory."""
    vectors: bytes
    """All vectors, one after another, as signed bytes; see `refold.core.search.rank`."""


class TurnCodes(Struct, frozen=True):
    """A stored `TurnBlock` without the vectors themselves."""

    id: int
    conversation: str
    branch: str
    seqs: tuple[int, ...]
    codes: bytes


class Call(Struct, frozen=True, kw_only=True):
    """One request to a provider."""

    id: str
    branch: str
    session: str
    usage: Usage
    size: int = 0
    """The number of messages in the branch at that time."""
    kind: CallKind = "reply"
    model: str = ""
    receipt: bytes = b""
    """The changes to the request, as JSON."""
    dollars: float = 0.0
    at: float = 0.0
    unsent: int = 0
    """Tokens that this call did not send, because summaries and shortened messages stood for them; by the provider's count."""
    saved: float = 0.0
    """Dollars that the call would have cost more with all of them. Negative if the provider's cache had to be written anew."""
    is_estimated: bool = False
    """Whether the usage is an estimate, because the provider reported none."""
    upstream: str = ""
    """The upstream that answered; empty if not known."""
    recoveries: int = 0
    """How often the request was made smaller, or repaired, because the provider refused it, and sent again."""
    added_ms: float | None = None
    """Milliseconds between the client's request and the first one to the upstream, and for smaller ones; None if not measured."""
    reply: bytes = b""
    """The reply, as JSON, if the client keeps the history and may send another message in its place. Write-only:
    `CallRows.reply_to` reads it."""


DAY_S = 86_400
"""Seconds of a day: days are counted from the epoch, in UTC."""


class Delivery(Struct, frozen=True):
    """How a call came to its answer; the fields are those of `Call`."""

    upstream: str = ""
    recoveries: int = 0
    added_ms: float | None = None


NOT_KNOWN = Delivery()
"""The delivery of a call that another program has made."""


class CallSum(Struct, frozen=True, kw_only=True):
    """Calls of one kind to one model at one upstream, added up: those of a day, or those of a conversation.

    Calls with an estimated usage have sums of their own, so that measured figures are never mixed with estimates.
    """

    day: int = 0
    """The number of the day since the epoch, in UTC; 0 for the sum of a conversation."""
    conversation: str = ""
    """Empty for the sum of a day."""
    kind: CallKind
    model: str
    upstream: str = ""
    is_estimated: bool = False
    calls: int = 0
    usage: Usage = Usage()
    dollars: float = 0.0
    unsent: int = 0
    saved: float = 0.0
    recoveries: int = 0
    added_ms: float = 0.0
    timed: int = 0
    """The number of calls whose added time was measured: `added_ms` is the sum of these."""

    def plus(self, call: Call) -> CallSum:
        return structs.replace(
            self,
            calls=self.calls + 1,
            usage=self.usage + call.usage,
            dollars=self.dollars + call.dollars,
            unsent=self.unsent + call.unsent,
            saved=self.saved + call.saved,
            recoveries=self.recoveries + call.recoveries,
            added_ms=self.added_ms + (call.added_ms or 0.0),
            timed=self.timed + (call.added_ms is not None),
        )


CountedOutcome: TypeAlias = Literal["installed", "undone", "failed", "superseded"]
"""Installed: it took effect. Undone: it was taken back later, so it is counted twice. Failed: no model wrote its summary.
Superseded: it was not needed any more."""


class CompactionSum(Struct, frozen=True, kw_only=True):
    """Compactions of a day with the same kind, reason, author and outcome, added up."""

    day: int
    """The day on which the compaction was made, or its summary planned; also for one that was undone later."""
    kind: CompactionKind
    reason: str
    """`Compaction.moment`; empty for rows of versions that did not store it."""
    author: str
    """The author of its summary: `model`, `digest`, `mechanical`, `native`; empty if it wrote none."""
    outcome: CountedOutcome
    count: int = 0
    before: int = 0
    after: int = 0
    """Tokens of the messages and summaries before and after, added up."""


def day_of(at: float) -> int:
    return int(at // DAY_S)


def counted(row: Compaction, author: str, outcome: CountedOutcome) -> CompactionSum | None:
    """One compaction as a sum; None for the copy that a fork has of a change of its base."""
    if row.reason == _FORK_REASON:
        return None
    reason = row.moment or ("arrival" if row.kind == "arrival" else "")
    return CompactionSum(
        day=day_of(row.at), kind=row.kind, reason=reason, author=author, outcome=outcome,
        count=1, before=row.before, after=row.after,
    )  # fmt: skip


class ClientKey(Struct, frozen=True, kw_only=True):
    """The stored form of a gateway client's key, with its digest instead of the key."""

    owner: str
    id: str
    """The public part of the key, unique over all owners."""
    digest: bytes
    """The digest of the whole key."""
    name: str = ""
    """The owner's description of its use."""
    at: float = 0.0
    revoked_at: float | None = None
    admin: bool = False
    """Whether it also shows the operator's settings: the location of the store, upstreams, files."""


class InstalledCompaction(Struct, frozen=True):
    """A compaction that takes effect. If it summarises, it closes the open session at the cut with the summary, and the next
    session begins there.
    """

    compaction: Compaction
    written: StoredSummary | None = None
    opens: Session | None = None
    summarises: str = ""
    """The id of a closed session whose summary `written` replaces."""


class InheritedState(Struct, frozen=True):
    """The state that a fork copies from its base: the change in effect, and the numbers of messages that were shortened on
    arrival and are shown in full again.
    """

    shown: InstalledCompaction | None = None
    raw: tuple[int, ...] = ()


class QueuedEntry(Struct, frozen=True, kw_only=True):
    """A message or a command that waits until the reply in progress has ended. It has no number yet, and no query for
    messages finds it.
    """

    id: str
    branch: str
    kind: Literal["message", "command"] = "message"
    body: bytes
    """The message as JSON of the branch's format, or the text of the command."""
    is_begun: bool = False
    """Whether a program has begun to run the command: after a crash it may have run."""
    at: float = 0.0


class CommandEntry(Struct, frozen=True, kw_only=True):
    """A command that was run, with its reply. It stands in the history, and is no message: no model is sent it."""

    id: str
    branch: str
    session: str
    """The session that was open when the command began."""
    size: int
    """The number of messages in the branch at that time."""
    text: str
    reply: str
    at: float = 0.0


NEWEST_BLOBS = 16
"""Blobs of a conversation that are kept although no branch uses them: a program that has just read the notes of a branch, to
fork it, still finds its blob while others go on."""


class LearntValue(Struct, frozen=True):
    """A value that a call has taught, see `refold.ports.store.LearntValues`."""

    topic: str
    key: str
    value: bytes


class NewMessages(Sequence[StoredMessage]):
    """The new messages of a large batch. The bytes of a message are mostly a view of the request that it came in, and are copied when
    it is read: all copies together would take as much memory as the request once more.
    """

    __slots__ = ("_bodies", "_decoded", "_read", "rows")

    def __init__(
        self,
        rows: Sequence[StoredMessage],
        bodies: Sequence[Raw],
        decoded: Sequence[Message] = (),
        read: Callable[[Raw], bytes] = bytes,
    ) -> None:
        """`rows` are the messages without their bytes, `bodies` their bytes, and `decoded` what was decoded from these."""
        self.rows, self._bodies, self._decoded, self._read = rows, bodies, decoded, read

    def uncopied(self) -> NewMessages:
        """The same messages with views in place of bytes: for a store that copies the bytes itself, and keeps no message."""
        return NewMessages(self.rows, self._bodies, self._decoded, memoryview)  # type: ignore[arg-type]

    def decoded(self, seq: int) -> Message | None:
        """The message with this number, if its bytes are those that it was decoded from."""
        at = seq - self.rows[0].seq
        message = self._decoded[at] if at < len(self._decoded) else None
        origin = message and message.origin
        return message if origin and not origin.edited and origin.raw is self._bodies[at] else None

    @property
    def size(self) -> int:
        """Bytes of all messages."""
        return sum(map(len, self._bodies))

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, at: int) -> StoredMessage: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[StoredMessage]: ...
    def __getitem__(self, at: int | slice) -> StoredMessage | Sequence[StoredMessage]:
        if isinstance(at, slice):
            return NewMessages(self.rows[at], self._bodies[at], self._decoded[at], self._read)
        return structs.replace(self.rows[at], body=self._read(self._bodies[at]))

    def __iter__(self) -> Iterator[StoredMessage]:
        for row, body in zip(self.rows, self._bodies, strict=True):
            yield structs.replace(row, body=self._read(body))


class Batch(Struct, frozen=True, kw_only=True):
    """Everything that one transaction adds to a branch: messages first, then the undo, then changes in their order, then the rest."""

    at: float
    messages: Sequence[StoredMessage] = ()
    """Numbered from the head's `next_seq` on, without a gap. Those of a large batch may be made anew whenever they are read: a store
    reads a few of them at a time, or keeps the ones that it has read."""
    changes: tuple[InstalledCompaction, ...] = ()
    opens: Session | None = None
    """A session that the user requested: the open one is closed before its first message."""
    undoes: str = ""
    """The id of an installed compaction to undo: its session is undone with every change made in it, and the range before it
    is open again."""
    calls: tuple[Call, ...] = ()
    embeddings: tuple[Embedding, ...] = ()
    """Vectors of the sessions that the changes close."""
    chains: tuple[bytes, ...] = ()
    """The hash of the history up to each of the messages; empty if histories are not looked up by hash."""
    takes: tuple[str, ...] = ()
    """Ids of queued messages that these messages are: they leave the queue. If one has left it already, another program has
    stored it, and the whole batch is refused with `NotFound`."""
    claims: bytes = b""
    """A hash of `chains` that no other branch of the same format may have. If one has it, the conversation was continued there,
    and the whole batch is refused with `HeldElsewhere`."""
    blobs: tuple[bytes, ...] = ()
    """Content of the conversation besides messages, such as instructions. Each is stored once, under its SHA-256, in place of bytes
    that have changed there. A commit with blobs deletes those that no branch of the conversation has the SHA-256 of in its notes,
    apart from the newest `NEWEST_BLOBS`."""
    notes: bytes | None = None
    model: str | None = None
    title: str = ""
    """The title of the conversation, if it has none yet."""
    pins: tuple[int, ...] = ()
    """Numbers of messages that are pinned from now on."""
    unpins: tuple[int, ...] = ()
    """Numbers of messages that are pinned no longer."""
    learnt: tuple[LearntValue, ...] = ()
    """Values about the model that the calls have taught. They replace those that the owner has."""

    @property
    def text_size(self) -> int:
        """Bytes of the messages."""
        new = self.messages
        return new.size if isinstance(new, NewMessages) else sum(len(message.body) for message in new)

    @property
    def revises(self) -> bool:
        """True if it overwrites values that another writer may have written."""
        return self.notes is not None or self.model is not None


class Listed(Struct, frozen=True, kw_only=True):
    """A conversation in a list."""

    id: str
    branch: str
    title: str = ""
    model: str = ""
    format: str = "chat"
    messages: int = 0
    compactions: int = 0
    sessions: int = 0
    branches: int = 1
    usage: Usage = Usage()
    """The usage of all calls together."""
    dollars: float = 0.0
    estimated: int = 0
    """Calls whose usage is an estimate, because the provider reported none."""
    tokens: int = 0
    limit: int = 0
    reason: str = ""
    """The fill level of the newest branch at its last commit: its tokens, its limit, and the reason for a compaction if one is
    due. The engine writes them; a store cannot compute them."""
    summary: str = ""
    """The author of the summary in the window of that branch, and the reason if it is not a model."""
    window: int = 0
    window_source: str = ""
    """The model's window at that time, and the source of that figure."""
    arithmetic: str = ""
    """How the limit follows from the window, as a sum."""
    off: bool = False
    """Whether it is switched off, so that no compaction is due. The engine writes it."""
    at: float = 0.0
    updated_at: float = 0.0
    """Time of the last commit, to the second. It never decreases, even if the clock is set back."""

    @property
    def ratio(self) -> float:
        return self.tokens / self.limit if self.limit else 0.0


class LatestHead(Struct, frozen=True, kw_only=True):
    """A conversation with the branch that was used last, in a list that is read page by page."""

    ordinal: int
    """The order in which conversations began. `updated_at` and this number are the place in the list."""
    title: str = ""
    at: float = 0.0
    updated_at: float = 0.0
    branches: int = 1
    compactions: int = 0
    """Summarising changes of all branches that are in effect, each once: a fork's copy of the change that it begins with is
    not counted."""
    head: Head

    @property
    def place(self) -> tuple[float, int]:
        return self.updated_at, self.ordinal


class FailingBranch(Struct, frozen=True):
    """A branch whose last summaries by a model have failed."""

    conversation: str
    branch: str
    failures: int
    at: float
    """When the newest of them was planned."""


class Idle(Struct, frozen=True):
    """The number of an owner's conversations that were not used since a given time."""

    conversations: int = 0
    """The number of all conversations of the owner."""
    last_used: float = 0.0
    """Time of the last commit in any of them; 0 if there is none."""
    idle: int = 0
    oldest: float = 0.0
    """Last use of the idle conversation that was unused longest; 0 if there is none."""
    newest: float = 0.0
    """Last use of the idle conversation that was used most recently."""


class BranchNews(Struct, frozen=True):
    """What a branch has got since a writer saw it, read in one transaction."""

    head: Head
    messages: tuple[StoredMessage, ...] = ()
    """The new messages; empty if its session or its epoch is another one, because then a reader needs more than these."""
    has_pins: bool = False
    has_unfinished: bool = False
    """Whether a summary job of the branch has not come to an end."""


class Outline(Struct, frozen=True):
    """The branches of a conversation with their sessions and changes, without messages, read in one transaction."""

    heads: tuple[Head, ...] = ()
    """In the order of their creation: a base comes before its forks."""
    sessions: tuple[Session, ...] = ()
    """Oldest first, including undone ones."""
    changes: tuple[Compaction, ...] = ()
    """Branch by branch, oldest first, without `shown`."""


class HistoryPlace(Struct, frozen=True):
    """A known history: a branch that begins with it, found by the hash of its first `size` messages."""

    hash: bytes
    conversation: str
    branch: str
    size: int
    length: int
    """The number of messages in the branch."""
    format: str = "chat"


class SearchHit(Struct, frozen=True, kw_only=True):
    """A message that a search found. A higher score is a better match."""

    conversation: str
    branch: str
    seq: int
    score: float
    is_whole: bool = False
    """Whether it has all of several words itself."""


class SessionHit(Struct, frozen=True, kw_only=True):
    """A session that a search found. A higher score is a better match."""

    conversation: str
    session: Session
    score: float


# Read stored messages: the one way from the bytes of a store to a `Message`. Engine, search,
# doctor, archive, command line and the index of words all read here. A stored message that cannot
# be read is therefore the same error everywhere: `Damaged`, which names the conversation and the
# message, and is never taken for a fault of the caller.


def read_stored(stored: StoredMessage, head: Head) -> Message | None:
    """A stored message of a branch; None where no content was stored.

    Raises:
        Damaged: it cannot be read, or the form in which it was shown on arrival cannot.
    """
    both = read_with_shown(stored, head)
    return None if both is None else both[0]


def read_with_shown(stored: StoredMessage, head: Head) -> tuple[Message, Message] | None:
    """A stored message, and the same as it was shown on arrival; None where no content was stored.

    Raises:
        Damaged: one of them cannot be read.
    """
    if stored.format not in DIALECTS:
        raise _damaged("is in a format that is not known", stored, head)
    if stored.format != head.format:
        raise _damaged("is not in the format of its conversation", stored, head)
    try:
        shown = read_body(stored.shown, stored.format) if stored.shown is not None else None
        message = read_body(stored.body, stored.format) if stored.body else None
    except Damaged:
        raise _damaged("cannot be read", stored, head) from None
    if stored.damage:
        raise _damaged(stored.damage, stored, head)
    if message is None:
        return None
    return message, message if shown is None else shown


def read_body(body: bytes | Raw, wire_format: str) -> Message:
    """The message in the bytes of a store, where nothing else is known about it.

    Raises:
        Damaged: it cannot be read, or its format is not known.
    """
    dialect = DIALECTS.get(wire_format)  # type: ignore[call-overload]
    if dialect is None:
        raise Damaged("a stored message is in a format that is not known")
    try:
        return decode_message(body, dialect)
    except WireError:
        raise Damaged("a stored message cannot be read") from None


def _damaged(what: str, stored: StoredMessage, head: Head) -> Damaged:
    return Damaged(f"message {stored.seq} {what}", conversation=head.conversation, seq=stored.seq)


class _Reply(Struct):
    messages: list[Raw] = []
    is_whole: bool = False
    recalled: list[Raw] = []


_REPLY = msgspec.json.Decoder(_Reply)


def read_reply(stored: bytes) -> list[Raw] | None:
    """The messages of a reply that was stored with its call, as JSON of its format; None if it is not complete."""
    try:
        found = _REPLY.decode(stored)
    except msgspec.DecodeError:
        return None
    return found.messages if found.is_whole else None


def read_recalled(stored: bytes) -> list[Raw]:
    """The results that the gateway has added to a stored reply, for calls of its recall tool that stand beside calls of
    the client's tools: messages of the reply's format.
    """
    try:
        return _REPLY.decode(stored).recalled
    except msgspec.DecodeError:
        return []


# The compactions that a fork copies from its base
#
# A fork shares the messages of its base, which never change. It copies the compaction in effect, so that a
# later compaction or undo on the base does not affect the fork.

_FORK_REASON = "a fork begins"


def copied_compaction(shown: Compaction, written: StoredSummary | None, head: Head) -> InstalledCompaction:
    """The change in effect on the base, as the one that opened the first session of a fork."""
    name = f"fork-{head.branch}"
    change = structs.replace(
        shown, id=name, branch=head.branch, number=0, kind="reduce", session=head.session, reason=_FORK_REASON,
        holder="", until=0.0, attempts=0, error="",
    )  # fmt: skip
    return InstalledCompaction(change, structs.replace(written, id=name) if written else None)


def copied_raw_arrivals(raw: Iterable[int], head: Head) -> list[Compaction]:
    """For messages of the base that are shown in full again after they were shortened on arrival: the same changes for a fork."""
    return [
        Compaction(
            id=f"fork-{head.branch}-{seq}", branch=head.branch, kind="arrival", state="undone",
            base=head.session, cut=seq, size=seq + 1, reason=_FORK_REASON,
        )
        for seq in sorted({seq for seq in raw if seq < head.base_seq})
    ]  # fmt: skip


# Jobs that other processes run. An order names messages by their numbers and holds no text of a conversation: the worker reads the
# text from the store.

JobStatus: TypeAlias = Literal["todo", "doing", "succeeded", "failed", "cancelled", "aborted"]


class SummaryOrder(Struct, frozen=True, kw_only=True):
    """A summary that a worker is asked to write: the branch, the compaction's id, and the numbers of its messages."""

    owner: str
    conversation: str
    branch: str
    session: str
    """The session that the messages belong to."""
    id: str
    """The compaction's id: the summary is stored under it."""
    recipe: str
    size: int
    """Messages of the branch when the summary was ordered."""
    first: int
    last: int
    items: tuple[int, ...]
    kept: tuple[int, ...]
    max_tokens: int
    turn_from: int | None = None
    apart: tuple[int, ...] = ()
    since: int = 0
    model: str
    budget: Budget
    policy: Policy
    has_sent: bool = False
    """Whether a window was sent before, so that the provider may have a part of it in its cache."""
    is_awaited: bool = False
    """Whether a caller waits: the job comes before others, and a recent failure is retried at once."""
    upstream: str = ""
    """The upstream of the conversation."""


class SessionOrder(Struct, frozen=True, kw_only=True):
    """A closed session that a worker is asked to summarise and to embed."""

    owner: str
    conversation: str
    branch: str
    session: str
    model: str
    budget: Budget
    policy: Policy
    upstream: str = ""


class QueuedJob(Struct, frozen=True, kw_only=True):
    """A job in the queue, for people."""

    id: int
    kind: str
    status: JobStatus
    owner: str = ""
    conversation: str = ""
    branch: str = ""
    compaction: str = ""
    attempts: int = 0
    at: float = 0.0
    """When its status changed last."""
    next_at: float = 0.0
    """When it is tried again; 0 if it is not planned for a time."""


class QueueState(Struct, frozen=True, kw_only=True):
    """The queue in numbers."""

    waiting: int = 0
    running: int = 0
    failed: int = 0
    workers: int = 0
    """Workers whose heartbeat is recent."""


class StoreNotice(Struct, frozen=True):
    """A change in the store that other processes are told of."""

    kind: Literal["setting", "compaction", "again"]
    """`again`: the connection was made, or made again, and earlier notices were not heard."""
    owner: str = ""
    id: str = ""
    """The name of the setting, or the id of the compaction."""
