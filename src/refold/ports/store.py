"""Where conversations are kept, as the engine sees it.

One idea: a branch changes by one kind of step only. A `Batch` says all that is new, messages and what was done about them, and
`commit` takes it whole or not at all, provided that the branch is still where the writer saw it. So there is no order of calls
in which something said could fall between two ranges, and whoever comes second loads again instead of overwriting.

Messages are append-only. Sessions partition a branch by ranges of message numbers; a message belongs to the range that holds
its number, and no row is moved for it. Everything belongs to an owner, and every question names one. Times are seconds since
the epoch, given by the caller, for display and leases only: order comes from numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

from msgspec import Struct

from refold.model.summary import Summary
from refold.model.tokens import Usage

SessionKind: TypeAlias = Literal["root", "compaction", "new", "resume"]
Carries: TypeAlias = Literal["none", "summary", "full"]
CompactionKind: TypeAlias = Literal["summarise", "reduce", "arrival"]
CompactionState: TypeAlias = Literal[
    "planned", "running", "summarised", "installed", "failed", "superseded", "undone"
]


class Head(Struct, frozen=True, kw_only=True):
    """A branch and where it is now. `next_seq` and `epoch` together say what a writer has seen."""

    owner: str
    conversation: str
    branch: str
    base: str = ""
    """The branch it was forked from; the first `base_seq` messages are that one's."""
    base_seq: int = 0
    next_seq: int = 0
    """The number of the next message: how many there are."""
    epoch: int = 0
    """Raised whenever a session begins or what is shown changes."""
    session: str = ""
    """The open session."""
    format: str = "chat"
    model: str = ""
    notes: bytes = b""
    """What the engine needs to go on after a restart, apart from what is shown; small, and its own business."""


class Stored(Struct, frozen=True, kw_only=True):
    """One message. Its bytes never change."""

    seq: int
    role: str
    format: str
    body: bytes
    """The message as JSON of its format; empty where nothing that was said may be kept."""
    text: str = ""
    """What search finds; it is not given back."""
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


class Written(Struct, frozen=True, kw_only=True):
    """A summary with the id of the compaction it was written for."""

    id: str
    summary: Summary
    carry: bytes = b""
    """What the next summary may choose from: the engine's own business."""
    at: float = 0.0


class Call(Struct, frozen=True, kw_only=True):
    """One request to a provider."""

    id: str
    branch: str
    session: str
    usage: Usage
    size: int = 0
    """How many messages the branch had."""
    kind: Literal["reply", "summary"] = "reply"
    model: str = ""
    receipt: bytes = b""
    """What was done to the request, as JSON."""
    dollars: float = 0.0
    at: float = 0.0


class Change(Struct, frozen=True):
    """A compaction that takes effect: with its summary the open session is closed at the cut, and the next one begins there."""

    compaction: Compaction
    written: Written | None = None
    opens: Session | None = None


class Batch(Struct, frozen=True, kw_only=True):
    """All that is new about a branch, in one transaction: messages first, then changes in their order, then the rest."""

    at: float
    messages: tuple[Stored, ...] = ()
    """Numbered from the head's `next_seq` on, without a gap."""
    changes: tuple[Change, ...] = ()
    opens: Session | None = None
    """A session that the user asked for: the open one is closed before its first message."""
    undoes: str = ""
    """The id of an installed compaction to take back: its session is undone and the range before it open again."""
    calls: tuple[Call, ...] = ()
    notes: bytes | None = None
    model: str | None = None


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
    at: float = 0.0
    updated_at: float = 0.0


class Hit(Struct, frozen=True, kw_only=True):
    """A message that search found; the higher the score the better."""

    conversation: str
    branch: str
    seq: int
    score: float


class Store(Protocol):
    """One place for many conversations. Safe to use from several tasks at once."""

    async def create(self, head: Head, session: Session, *, title: str = "", at: float = 0.0) -> Head:
        """Begin a conversation, or give back the branch that is there already under this name."""
        ...

    async def fork(self, base: Head, at_seq: int, head: Head, session: Session) -> Head:
        """A branch that shares the first `at_seq` messages of another by reference."""
        ...

    async def head(self, owner: str, conversation: str, branch: str = "") -> Head | None:
        """A branch; without a name the one that was begun or forked last."""
        ...

    async def commit(self, seen: Head, batch: Batch) -> Head:
        """Take a batch in, whole.

        Raises:
            Conflict: the branch is no longer where the writer saw it, or another session has followed the same parent.
            NotFound: there is no such branch.
        """
        ...

    async def messages(
        self, head: Head, first: int = 0, last: int | None = None, limit: int | None = None
    ) -> list[Stored]:
        """Messages by number, those shared with the base included, oldest first."""
        ...

    async def pick(self, head: Head, seqs: Sequence[int]) -> list[Stored]:
        """Single messages, in the order of their numbers."""
        ...

    async def find_key(self, head: Head, key: str) -> int | None:
        """The number of the message that came with this key."""
        ...

    async def sessions(self, owner: str, conversation: str = "", limit: int = 1_000) -> list[Session]:
        """Sessions, undone ones too, oldest first; without a conversation the owner's latest."""
        ...

    async def session(self, owner: str, which: str) -> Session | None: ...

    async def compactions(self, owner: str, branch: str, limit: int = 1_000) -> list[Compaction]:
        """The changes of a branch, oldest first, without `shown`."""
        ...

    async def compaction(self, owner: str, which: str) -> Compaction | None: ...

    async def latest(self, head: Head, size: int | None = None) -> Compaction | None:
        """The newest installed change, arrivals aside, that was made when the branch had no more than `size` messages;
        one of the base where the branch has none of its own and the base had it before the fork.
        """
        ...

    async def raw_arrivals(self, head: Head, first: int) -> list[int]:
        """Numbers from `first` on of messages whose shortening on arrival was taken back."""
        ...

    async def written(self, owner: str, ids: Sequence[str]) -> list[Written]:
        """Summaries by id, in the order asked for, those that are not there left out."""
        ...

    async def summaries(self, owner: str, branch: str, limit: int = 1_000) -> list[Written]:
        """The summaries of a branch's installed compactions, oldest first, `carry` left out."""
        ...

    async def attach_summary(self, owner: str, session: str, written: Written) -> bool:
        """Give a closed session the summary that was written for it later; False where it has one."""
        ...

    async def calls(self, owner: str, conversation: str, limit: int = 1_000) -> list[Call]:
        """The newest calls, oldest first."""
        ...

    async def conversations(self, owner: str, *, limit: int = 50, words: str = "") -> list[Listed]:
        """The owner's conversations, the latest first; `words` may stand in the id or the title."""
        ...

    async def search(self, owner: str, query: str, *, conversation: str = "", limit: int = 20) -> list[Hit]:
        """Messages that hold the words, best first."""
        ...

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

    async def reply(self, owner: str, which: str, holder: str, written: Written, call: Call | None) -> bool:
        """Keep what a model wrote, before anything is done with it; False where the claim is lost and another was first."""
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

    async def unfinished(self, owner: str) -> list[Compaction]:
        """Compactions that are planned, running, or summarised and not yet installed, oldest first."""
        ...

    async def cached(self, owner: str, key: str) -> Summary | None:
        """A summary that was paid for already, by the hash of all it was made with."""
        ...

    async def cache(self, owner: str, key: str, summary: Summary, at: float) -> None: ...

    async def learnt(self, owner: str, topic: str, key: str) -> bytes | None:
        """What was learnt about a model: `topic` is "calibration" or "limit"."""
        ...

    async def learn(self, owner: str, topic: str, key: str, value: bytes, at: float) -> None: ...

    async def damaged(self, head: Head) -> list[int]:
        """Numbers of the branch's own messages whose bytes are no longer those that were stored."""
        ...

    async def pin(self, head: Head, seq: int, *, on: bool) -> None: ...

    async def pins(self, head: Head) -> list[int]: ...

    async def owners(self) -> list[str]: ...

    async def delete(self, owner: str, conversation: str = "") -> int:
        """Really delete a conversation, or all that an owner has: messages, summaries, caches. How many conversations."""
        ...

    async def expire(self, owner: str, before: float) -> int:
        """Delete the conversations that nothing happened in since then."""
        ...

    async def close(self) -> None: ...
