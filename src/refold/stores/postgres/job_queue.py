"""The queue of background jobs: Procrastinate in the same PostgreSQL, in a schema of its own.

A gateway defers jobs here and a worker (`refold.gateway.worker`) runs them. One branch has one job at a time (`lock`), and one
compaction is queued once (`queueing_lock`). A job may run more than once: the compaction's row in the store, with its lease,
decides whether a model is asked. A job that succeeded leaves the table; one that failed for good stays until it is retried or
`KEEP_HOURS` are over.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import msgspec
import psycopg
from psycopg import AsyncConnection
from psycopg_pool import PoolTimeout

from refold.model.errors import MissingExtra, NotFound
from refold.ports.records import QueuedJob, QueueState, SessionOrder, SummaryOrder
from refold.stores.postgres.store import Patience, PostgresDriver, lost, store_error

try:
    import procrastinate
    from procrastinate import exceptions, schema
except ImportError:
    raise MissingExtra("cluster", "the queue of jobs") from None

SCHEMA = "refold_jobs"
SUMMARY, SESSION, SWEEP = "refold.summary", "refold.session", "refold.sweep"
"""The names of the tasks: what a row in the table says."""
QUEUE = "refold"
AWAITED, AHEAD, CLOSED, CLEANING = 100, 50, 20, 0
"""Priorities: a summary that a caller waits for, one that is written ahead of time, one of a closed session, and cleaning up."""
CONNECTIONS = 4
KEEP_HOURS = 168
"""Hours that a failed job is kept: a week, so that somebody sees it."""
_MIGRATING = 7_235_420
_RECOVERING = 7_235_421
"""Numbers of advisory locks."""

_log = logging.getLogger("refold")


class JobQueue:
    """The jobs of one database. Procrastinate's own log is silent: it would repeat the arguments of every job."""

    def __init__(self, url: str, *, connections: int = CONNECTIONS, lease_s: float = 60.0) -> None:
        """
        Raises:
            ConfigError: the URL cannot be read.
        """
        self._driver = PostgresDriver(url, Patience())
        self.lease_s = lease_s
        connector = procrastinate.PsycopgConnector(
            conninfo=self._driver.conninfo,
            min_size=0,
            max_size=connections,
            timeout=10.0,
            configure=_settle,
        )
        self.app = procrastinate.App(connector=connector)
        self._watched: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        logging.getLogger("procrastinate").setLevel(logging.CRITICAL)

    async def open(self) -> None:
        """Create or upgrade the tables, and connect.

        Raises:
            StoreError: the server cannot be reached, or its user may not create a schema.
        """
        async with self._connection() as connection:
            await _upgrade(connection)
        await self.app.open_async()

    async def close(self) -> None:
        await self.app.close_async()

    # Deferring

    async def order_summary(self, order: SummaryOrder) -> None:
        await self._defer(
            SUMMARY,
            priority=AWAITED if order.is_awaited else AHEAD,
            lock=f"{order.owner}/{order.branch}",
            queueing_lock=order.id,
            order=order,
        )

    async def order_session(self, order: SessionOrder) -> None:
        await self._defer(
            SESSION,
            priority=CLOSED,
            lock=f"{order.owner}/{order.branch}",
            queueing_lock=f"session-{order.session}",
            order=order,
        )

    async def order_sweep(self, owner: str) -> None:
        """Queue the clean-up of an owner: expired content, vectors, and sums that are missing."""
        await self._defer(
            SWEEP, priority=CLEANING, queueing_lock=f"sweep-{owner}", lock=f"sweep-{owner}", order=owner
        )

    async def _defer(
        self,
        task: str,
        *,
        priority: int,
        queueing_lock: str,
        lock: str,
        order: SummaryOrder | SessionOrder | str,
    ) -> None:
        deferrer = self.app.configure_task(
            task, queue=QUEUE, priority=priority, lock=lock, queueing_lock=queueing_lock
        )
        async with self._mapped():
            # An order that waits already will do; one that runs is found by the row of its compaction.
            with suppress(exceptions.AlreadyEnqueued):
                await deferrer.defer_async(order=msgspec.to_builtins(order))

    async def is_queued(self, compaction: str) -> bool:
        async with self._mapped():
            found = await self.app.job_manager.list_jobs_async(queueing_lock=compaction)
        return any(one.status in ("todo", "doing") for one in found)

    @contextmanager
    def watch(self, compaction: str) -> Iterator[asyncio.Event]:
        changed = asyncio.Event()
        self._watched[compaction].add(changed)
        try:
            yield changed
        finally:
            self._watched[compaction].discard(changed)
            if not self._watched[compaction]:
                del self._watched[compaction]

    def tell(self, compaction: str = "") -> None:
        """Wake those who watch a compaction, or everybody."""
        for which in [compaction] if compaction else list(self._watched):
            for changed in self._watched.get(which, ()):
                changed.set()

    # For operators

    async def jobs(self, *statuses: str) -> list[QueuedJob]:
        """Return the jobs in these states, oldest first; all without any."""
        async with self._connection() as connection:
            cursor = await connection.execute(_LIST, {"statuses": list(statuses) or None})
            return [_job(row) for row in await cursor.fetchall()]

    async def retry(self, which: int) -> QueuedJob:
        """Queue a failed job again.

        Raises:
            NotFound: there is no failed job of this number.
        """
        found = next((one for one in await self.jobs("failed") if one.id == which), None)
        if found is None:
            raise NotFound(f"no job {which} has failed", hint="`refold jobs` lists those that have")
        async with self._mapped():
            # The same order may have been queued again meanwhile: the failed one is then not needed.
            try:
                await self.app.job_manager.retry_job_by_id_async(which, datetime.now(UTC))
            except exceptions.UniqueViolation:
                await self.forget(which)
        return found

    async def forget(self, which: int) -> None:
        """Delete a failed job."""
        async with self._connection() as connection:
            await connection.execute(
                "DELETE FROM procrastinate_jobs WHERE id = %s AND status = 'failed'", [which]
            )

    async def state(self) -> QueueState:
        async with self._connection() as connection:
            cursor = await connection.execute(_STATE, {"lease_s": self.lease_s})
            row = await cursor.fetchone()
            assert row is not None
            return QueueState(waiting=row[0], running=row[1], failed=row[2], workers=row[3])

    # For workers

    async def recover(self) -> int:
        """Queue the jobs again whose workers give no sign, and return how many. One process does it at a time: another one
        must not take a job back that was given to a third meanwhile.
        """
        recovered = 0
        async with self._connection() as connection, connection.transaction():
            cursor = await connection.execute("SELECT pg_try_advisory_xact_lock(%s)", [_RECOVERING])
            if not ((await cursor.fetchone()) or (False,))[0]:
                return 0
            async with self._mapped():
                manager = self.app.job_manager
                for job in await manager.get_stalled_jobs(seconds_since_heartbeat=self.lease_s):
                    try:
                        await manager.retry_job(job)
                    except exceptions.UniqueViolation:  # the same order waits already
                        await manager.finish_job(job, procrastinate.jobs.Status.SUCCEEDED, delete_job=True)
                    recovered += 1
        return recovered

    async def forget_old(self) -> None:
        """Delete jobs that ended long ago."""
        async with self._mapped():
            await self.app.job_manager.delete_old_jobs(
                KEEP_HOURS, include_failed=True, include_cancelled=True, include_aborted=True
            )

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AsyncConnection[Any]]:
        connection = await self._driver.connect()
        async with connection:
            try:
                await _settle(connection)
                yield connection
            except psycopg.Error as error:
                raise store_error(error, self._driver.place) from None

    @asynccontextmanager
    async def _mapped(self) -> AsyncIterator[None]:
        """Turn the errors of Procrastinate into those of a store. A unique violation is for the caller."""
        try:
            yield
        except exceptions.UniqueViolation:
            raise
        except exceptions.ConnectorException as error:
            cause = error.__cause__
            if isinstance(cause, PoolTimeout) or not isinstance(cause, psycopg.Error):
                raise lost(self._driver.place) from None
            raise store_error(cause, self._driver.place) from None
        except PoolTimeout:
            raise lost(self._driver.place) from None


async def _settle(connection: AsyncConnection[Any]) -> None:
    """Let a connection see the tables of the queue, and nothing else."""
    await connection.execute(f"SET search_path TO {SCHEMA}")
    if not connection.autocommit:
        await connection.commit()


async def _upgrade(connection: AsyncConnection[Any]) -> None:
    """Create the tables of the queue, or apply the migrations that Procrastinate has added since."""
    scripts = _migrations()
    cursor = await connection.execute("SELECT to_regclass('refold_jobs.applied') IS NOT NULL")
    if ((await cursor.fetchone()) or (False,))[0]:
        cursor = await connection.execute("SELECT name FROM applied")
        if set(scripts) <= {name for (name,) in await cursor.fetchall()}:
            return  # a user of the database may have no right to change its tables
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", [_MIGRATING])
        await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
        await connection.execute("CREATE TABLE IF NOT EXISTS applied (name text PRIMARY KEY)")
        cursor = await connection.execute("SELECT name FROM applied")
        applied = {name for (name,) in await cursor.fetchall()}
        missing = [script for name, script in scripts.items() if name not in applied]
        for script in missing if applied else [schema.SchemaManager.get_schema().encode()]:
            await connection.execute(cast("Any", script))
        for name in scripts:
            await connection.execute("INSERT INTO applied VALUES (%s) ON CONFLICT DO NOTHING", [name])


def _migrations() -> dict[str, bytes]:
    """The migrations of Procrastinate by name, in order."""
    folder = Path(schema.SchemaManager.get_migrations_path())
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.sql"))}


_LIST = """
SELECT job.id, job.task_name, job.status::text, job.args, job.attempts,
    extract(epoch FROM (SELECT max(event.at) FROM procrastinate_events AS event
        WHERE event.job_id = job.id AND event.type <> 'scheduled'))::float8,
    extract(epoch FROM job.scheduled_at)::float8
FROM procrastinate_jobs AS job
WHERE %(statuses)s::text[] IS NULL OR job.status::text = ANY(%(statuses)s::text[])
ORDER BY job.id
"""
_STATE = """
SELECT count(*) FILTER (WHERE status = 'todo'), count(*) FILTER (WHERE status = 'doing'),
    count(*) FILTER (WHERE status = 'failed'),
    (SELECT count(*) FROM procrastinate_workers WHERE last_heartbeat > now() - make_interval(secs => %(lease_s)s))
FROM procrastinate_jobs
"""


def _job(row: Sequence[Any]) -> QueuedJob:
    # A row that another program has put there may hold anything: it is listed without names.
    order = row[3].get("order") if isinstance(row[3], dict) else None
    order = {"owner": order} if isinstance(order, str) else order if isinstance(order, dict) else {}
    owner, conversation, branch, compaction = (
        found if isinstance(found := order.get(name), str) else ""
        for name in ("owner", "conversation", "branch", "id")
    )
    return QueuedJob(
        id=row[0],
        kind=row[1].removeprefix("refold."),
        status=row[2],
        owner=owner,
        conversation=conversation,
        branch=branch,
        compaction=compaction,
        attempts=row[4],
        at=row[5] or 0.0,
        next_at=(row[6] or 0.0) if row[2] == "todo" else 0.0,
    )
