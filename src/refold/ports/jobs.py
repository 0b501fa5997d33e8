"""Jobs that other processes run: what a worker is told of a summary, and the queue that the engine sees.

An order names messages by their numbers and holds no text of a conversation: the worker reads the text from the store. The
compaction's row in the store, with its lease, decides who asks a model; a queue only brings the order to a worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from msgspec import Struct

from refold.core.policy import Policy
from refold.model.tokens import Budget

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


class SummaryQueue(Protocol):
    """Has summaries written by other processes."""

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


@runtime_checkable
class Notifies(Protocol):
    """A store that tells its processes of changes."""

    def notices(self) -> AsyncIterator[StoreNotice]:
        """Yield changes as they are committed, until the caller stops; a lost connection is made again."""
        ...
