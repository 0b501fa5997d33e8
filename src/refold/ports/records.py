"""The records of a store: branches, messages, sessions, compactions, summaries, calls, keys, and the batch that is committed.

All of them are frozen values. A writer has seen a branch at a `Head` and commits a `Batch` to it.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from refold.model.summary import Summary
from refold.model.tokens import Usage

SessionKind: TypeAlias = Literal["root", "compaction", "new", "resume"]
Carries: TypeAlias = Literal["none", "summary", "full"]
CallKind: TypeAlias = Literal["reply", "summary"]
CompactionKind: TypeAlias = Literal["summarise", "reduce", "arrival"]
CompactionState: TypeAlias = Literal[
    "planned", "running", "summarised", "installed", "failed", "superseded", "undone"
]


class Head(Struct, frozen=True, kw_only=True):
    """A branch and where it is now; `place` says what a writer has seen."""

    owner: str
    conversation: str
    branch: str
    base: str = ""
    """The branch it was forked from; the first `base_seq` messages are that one's."""
    base_seq: int = 0
    base_number: int = 0
    """The newest change of the base when it was forked: what was done to the base later is not the fork's."""
    next_seq: int = 0
    """The number of the next message: how many there are."""
    epoch: int = 0
    """Raised whenever a session begins or what is shown changes."""
    revision: int = 0
    """Raised whenever the notes or the model are written."""
    session: str = ""
    """The open session."""
    format: str = "chat"
    model: str = ""
    notes: bytes = b""
    """What the engine needs to go on after a restart, apart from what is shown; small, and its own business."""

    @property
    def place(self) -> tuple[str, int, int, int]:
        """Two heads of a branch with the same place have seen the same; the session tells a conversation from one that was
        deleted and begun anew under its name.
        """
        return self.session, self.next_seq, self.epoch, self.revision


class StoredMessage(Struct, frozen=True, kw_only=True):
    """One message. Its bytes never change."""

    seq: int
    role: str
    format: str
    body: bytes
    """The message as JSON of its format; empty where nothing that was said may be kept."""
    is_emptied: bool = False
    """Whether the body was stored with content and is empty now: the store is damaged."""
    is_findable: bool = True
    """Whether search finds it by its words; this is not given back."""
    shown: bytes | None = None
    """The message as it was shown when it arrived, where that was shorter."""
    tokens: int = 0
    key: str = ""
    """What the client calls this message: one that comes again with the same key is the same message."""
    at: float = 0.0


class Session(Struct, frozen=True, kw_only=True):
    """A range of one branch: the messages numbered `first` up to, not including, `last`, or all since where it is open."""

    id: str
    branch: str
    first: int
    last: int | None = None
    kind: SessionKind = "root"
    parent: str = ""
    carries: Carries = "none"
    state: Literal["live", "undone"] = "live"
    summary: str = ""
    """The id of the summary that was written when it was closed; its child begins with it."""
    target: str = ""
    """The session that a resumed one goes on with."""
    tokens: int = 0
    """What its messages took, once it is closed."""
    at: float = 0.0
    closed_at: float | None = None


class Compaction(Struct, frozen=True, kw_only=True):
    """One change to what is shown of a branch, from the plan for it to its end."""

    id: str
    branch: str
    number: int = 0
    """Its place among the changes of its branch, given when it is installed."""
    kind: CompactionKind
    state: CompactionState = "installed"
    base: str = ""
    """The session that was open."""
    session: str = ""
    """The session that it opened."""
    cut: int = 0
    """The number of the first message that its summary does not cover; for an arrival, the number of the message."""
    size: int = 0
    """How many messages the branch had."""
    reason: str = ""
    moment: str = ""
    recipe: str = ""
    before: int = 0
    after: int = 0
    edits: bytes = b""
    """What was changed, as JSON."""
    shown: bytes = b""
    """How the branch is shown from then on, for the engine to read again; empty for an arrival."""
    holder: str = ""
    until: float = 0.0
    """Who is at work on it, and until when nobody else may be."""
    attempts: int = 0
    error: str = ""
    at: float = 0.0


class StoredSummary(Struct, frozen=True, kw_only=True):
    """A summary with the id of the compaction it was written for."""

    id: str
    summary: Summary
    carry: bytes = b""
    """What the next summary may choose from: the engine's own business."""
    at: float = 0.0


class Embedding(Struct, frozen=True, kw_only=True):
    """What a closed session was about: its summary as a vector."""

    session: str
    summary: str
    """The one that was embedded; where the session has another by now, or is open again, the vector is not kept."""
    name: str
    """The embedder's: only vectors of one name are compared."""
    vector: bytes
    """32-bit floats, little-endian, of length one; empty where there was nothing to embed."""
    at: float = 0.0


class Call(Struct, frozen=True, kw_only=True):
    """One request to a provider."""

    id: str
    branch: str
    session: str
    usage: Usage
    size: int = 0
    """How many messages the branch had."""
    kind: CallKind = "reply"
    model: str = ""
    receipt: bytes = b""
    """What was done to the request, as JSON."""
    dollars: float = 0.0
    at: float = 0.0
    reply: bytes = b""
    """What was answered, as JSON, where the client keeps the history and may send something else in its place; it is not given
    back with the call."""


class ClientKey(Struct, frozen=True, kw_only=True):
    """A key with which a client uses the gateway, as it is kept: without the key."""

    owner: str
    id: str
    """The public part of the key; no two owners have the same."""
    digest: bytes
    """Of the whole key."""
    name: str = ""
    """What it is for, in the owner's words."""
    at: float = 0.0
    revoked_at: float | None = None
    admin: bool = False
    """Whether its bearer may see the operations' settings as well: where the store is, upstreams, files."""


class InstalledCompaction(Struct, frozen=True):
    """A compaction that takes effect. One that summarises closes the open session at the cut with what was written, and the
    next one begins there.
    """

    compaction: Compaction
    written: StoredSummary | None = None
    opens: Session | None = None
    summarises: str = ""
    """The id of a closed session whose summary `written` replaces."""


class Inherited(Struct, frozen=True):
    """What a fork takes over as its own: the change that it is shown by, and numbers of messages that are shown as they came
    though they were shortened when they arrived.
    """

    shown: InstalledCompaction | None = None
    raw: tuple[int, ...] = ()


class Batch(Struct, frozen=True, kw_only=True):
    """All that is new about a branch, in one transaction: messages first, then changes in their order, then the rest."""

    at: float
    messages: tuple[StoredMessage, ...] = ()
    """Numbered from the head's `next_seq` on, without a gap."""
    changes: tuple[InstalledCompaction, ...] = ()
    opens: Session | None = None
    """A session that the user asked for: the open one is closed before its first message."""
    undoes: str = ""
    """The id of an installed compaction to take back: its session is undone, with every change made in it, and the range
    before it is open again."""
    calls: tuple[Call, ...] = ()
    embeddings: tuple[Embedding, ...] = ()
    """Of sessions that the changes close."""
    chains: tuple[bytes, ...] = ()
    """The hash of the history up to each of the messages; empty where nobody asks by it."""
    claims: bytes = b""
    """A hash out of `chains` that no other branch of the same format may hold. Where one does, the whole batch is refused with
    `HeldElsewhere`: the conversation went on there."""
    blobs: tuple[bytes, ...] = ()
    """What the conversation comes in with besides messages. Each is kept once, and asked for by its sha256."""
    notes: bytes | None = None
    model: str | None = None
    title: str = ""
    """What the conversation is called from now on, where it has no title."""

    @property
    def revises(self) -> bool:
        """Does it write over what another may have written?"""
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
    """What all calls took together."""
    dollars: float = 0.0
    tokens: int = 0
    limit: int = 0
    reason: str = ""
    """How full the newest branch was when it was last written to, of how much, and why it has to be compacted, if it has: an
    engine knows, a store does not."""
    at: float = 0.0
    updated_at: float = 0.0
    """When something was last kept, to the second; a clock that is set back does not take it back."""

    @property
    def ratio(self) -> float:
        return self.tokens / self.limit if self.limit else 0.0


class Idle(Struct, frozen=True):
    """How many conversations of an owner nothing happened in since some moment."""

    conversations: int = 0
    """All that the owner has."""
    last_used: float = 0.0
    """When something was last kept in any of them; 0 where there is none."""
    idle: int = 0
    oldest: float = 0.0
    """When the first of the idle ones was last used; 0 where there is none."""
    newest: float = 0.0
    """When the last of them was."""


class Outline(Struct, frozen=True):
    """The branches of a conversation and what was done about them, without what was said, as it all was at one moment."""

    heads: tuple[Head, ...] = ()
    """In the order in which they were begun: a base before what was forked from it."""
    sessions: tuple[Session, ...] = ()
    """Oldest first, undone ones too."""
    changes: tuple[Compaction, ...] = ()
    """Branch by branch, oldest first, without `shown`."""


class HistoryPlace(Struct, frozen=True):
    """Where a history was seen before: a branch that begins with it, by the hash of its first `size` messages."""

    hash: bytes
    conversation: str
    branch: str
    size: int
    length: int
    """How many messages the branch has."""
    format: str = "chat"


class SearchHit(Struct, frozen=True, kw_only=True):
    """A message that search found; the higher the score the better."""

    conversation: str
    branch: str
    seq: int
    score: float
