"""The worker: runs the background jobs of a cluster in a process of its own.

It has the settings, the upstreams and the store of a gateway, and no port for clients. A summary is written by the same code as
in a gateway, with the operator's keys: a client's own key never leaves the gateway that it came to. A worker that is told to stop
finishes its jobs within `cluster.grace_s`, and gives the others back at once, with their leases.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import procrastinate
from msgspec import structs
from procrastinate import exceptions

from refold.config.tree import ClusterSettings
from refold.engine.summary_jobs import PAUSE_S, JobResult
from refold.gateway.app import Gateway
from refold.gateway.upstreams import Credentials, Target
from refold.model.dialect import DIALECTS
from refold.model.errors import ConfigError, Damaged, NotFound, RefoldError, StoreError
from refold.ports.records import Head, SessionOrder, SummaryOrder
from refold.stores.postgres.job_queue import QUEUE, SESSION, SUMMARY, SWEEP, JobQueue

HOUR_S = 3_600.0
"""Interval of cleaning up."""
BACKFILL_BATCH = 1_000
"""Rows of one transaction: other writers wait for some tens of milliseconds."""
MODEL_TRIES, STORE_TRIES = 3, 10
"""How many times a job is run: after three failures of the model the cause is in the job; a store that is down comes back."""
MAX_WAIT_S = 300.0
POLL_S = 2.0
"""How often a worker looks for jobs, if it is not told of them: those that are due after a pause, or queued while its connection
was lost."""
AGAIN_S = 1.0
"""Pause before a worker that lost the database begins again."""
UNKNOWN_UPSTREAM = "the worker does not know the upstream of the conversation"
SAME_UPSTREAMS = "give workers the upstreams of the gateways; then `refold jobs --retry-all`"
HOLDER = "a worker without the upstream"
"""The holder of a lease that is given up at once."""

_log = logging.getLogger("refold.worker")


class JobFailed(Exception):
    """No summary could be written. The text is a reason in our words, never content."""


class JobHeld(Exception):
    """Another process holds the lease of the job."""

    def __init__(self, wait_s: float) -> None:
        super().__init__("another process is at work on it")
        self.wait_s = wait_s


class JobRetries(procrastinate.BaseRetryStrategy):
    """When a job is run again: at once after the worker was stopped, after the lease if another process holds it, else later
    and later. None: it has failed, and `refold jobs` lists it.
    """

    def get_retry_decision(
        self, *, exception: BaseException, job: procrastinate.jobs.Job
    ) -> procrastinate.RetryDecision | None:
        wait_s = retry_after_s(exception, job.attempts)
        if wait_s is None:
            return None
        return procrastinate.RetryDecision(retry_at=datetime.now(UTC) + timedelta(seconds=wait_s))


def retry_after_s(error: BaseException, attempts: int) -> float | None:
    """Seconds until a job that ended with an error is run again, after so many earlier attempts; None for never."""
    if isinstance(error, asyncio.CancelledError | exceptions.JobAborted):
        return 0.0
    if isinstance(error, JobHeld):
        return error.wait_s
    if isinstance(error, JobFailed):
        # The engine rests for a while after a failure, and would not ask a model before.
        return (PAUSE_S + 1) * 2**attempts if attempts + 1 < MODEL_TRIES else None
    if isinstance(error, Damaged | ConfigError):
        return None
    return min(2.0**attempts, MAX_WAIT_S) if attempts + 1 < STORE_TRIES else None


class Worker:
    """Runs the jobs of a queue with the settings and upstreams of a gateway."""

    def __init__(self, gateway: Gateway, queue: JobQueue, settings: ClusterSettings) -> None:
        self._gateway, self._queue, self._settings = gateway, queue, settings
        tasks: dict[str, Callable[..., Awaitable[None]]] = {
            SUMMARY: self._write_summary,
            SESSION: self._conclude_session,
            SWEEP: self._sweep,
        }
        for name, task in tasks.items():
            queue.app.task(name=name, queue=QUEUE, retry=JobRetries())(task)

    async def run(self, stopping: asyncio.Event, ready: Callable[[], None] = lambda: None) -> None:
        """Run jobs until told to stop. A lost connection to the database does not end it."""
        beside = [asyncio.create_task(self._recover()), asyncio.create_task(self._plan_sweeps())]
        stopped = asyncio.create_task(stopping.wait())
        ready()
        try:
            while not stopping.is_set():
                running = asyncio.create_task(self._run_jobs())
                await asyncio.wait({running, stopped}, return_when=asyncio.FIRST_COMPLETED)
                if stopping.is_set():
                    running.cancel()  # it finishes its jobs, or gives them back
                    await asyncio.wait({running})
                    break
                if not running.cancelled() and (error := running.exception()) is not None:
                    _log.warning("the worker lost the database and connects again: %s", type(error).__name__)
                with suppress(TimeoutError):
                    await asyncio.wait_for(stopping.wait(), AGAIN_S)
        finally:
            for task in (*beside, stopped):
                task.cancel()

    async def _run_jobs(self) -> None:
        lease_s = self._settings.lease_s
        await self._queue.app.run_worker_async(
            queues=[QUEUE],
            concurrency=self._settings.concurrency,
            install_signal_handlers=False,
            delete_jobs="successful",
            fetch_job_polling_interval=min(POLL_S, lease_s / 3),
            update_heartbeat_interval=lease_s / 3,
            stalled_worker_timeout=lease_s,
            shutdown_graceful_timeout=self._settings.grace_s,
        )

    async def _recover(self) -> None:
        """Queue the jobs of crashed workers again, several times per lease."""
        while True:
            await asyncio.sleep(self._settings.lease_s / 3 * random.uniform(0.8, 1.2))  # noqa: S311
            try:
                if count := await self._queue.recover():
                    _log.warning("%d jobs of workers that gave no sign are queued again", count)
            except StoreError as error:
                _log.warning("stalled jobs could not be looked for: %s", type(error).__name__)

    async def _plan_sweeps(self) -> None:
        """Queue the clean-up of every owner, at the start and every hour. Several workers queue it once."""
        while True:
            try:
                await self._queue.forget_old()
                for owner in await self._gateway.store.owners():
                    await self._queue.order_sweep(owner)
            except StoreError as error:
                _log.warning("cleaning up could not be planned: %s", type(error).__name__)
            await asyncio.sleep(HOUR_S)

    # The jobs

    async def _sweep(self, order: str) -> None:
        """Delete expired content, end work of crashed processes, embed sessions, and complete the sums by day."""
        engine = (await self._gateway.host(order)).engine
        await engine.sweep()
        while any(await engine.store.backfill(order, BACKFILL_BATCH)):
            pass

    async def _write_summary(self, order: dict[str, Any]) -> None:
        await self._fulfil(msgspec.convert(order, SummaryOrder))

    async def _conclude_session(self, order: dict[str, Any]) -> None:
        await self._fulfil(msgspec.convert(order, SessionOrder))

    async def _fulfil(self, order: SummaryOrder | SessionOrder) -> None:
        began = time.monotonic()
        head = await self._gateway.store.head(order.owner, order.conversation, order.branch)
        if head is None:
            return  # it was deleted meanwhile
        try:
            result = await self._write(order, head)
        except NotFound:
            return
        except RefoldError as error:
            _log.warning("a job could not be done: %s", "; ".join(str(error).splitlines()))
            raise
        if result.has_failed:
            raise JobFailed(result.error or "no model wrote a summary")
        if result.summary is None and (held_s := await self._held_for(order)) > 0:
            raise JobHeld(held_s)
        what = "wrote" if result.is_asked else "found" if result.summary else "left out"
        _log.info("%s the summary of a session in %.1f s", what, time.monotonic() - began)

    async def _write(self, order: SummaryOrder | SessionOrder, head: Head) -> JobResult:
        gateway = self._gateway
        if order.upstream and order.upstream not in gateway.targets:
            await self._refuse(order, UNKNOWN_UPSTREAM)
            raise ConfigError(f"{UNKNOWN_UPSTREAM}: {order.upstream!r}", hint=SAME_UPSTREAMS)
        host, target = await gateway.host(order.owner), self._target(order, head)
        terms = host.terms(
            order.model, head.format, window=order.budget.window, url=target.url, alternates=target.alternates
        )
        terms = structs.replace(terms, policy=order.policy, max_output=order.budget.max_output)
        author = gateway.authors.author(host, terms, target, Credentials((), "", None))
        if author is None:
            _log.warning("no model writes summaries here: the settings of the worker and the gateway differ")
            return JobResult()
        talk = await host.open_branch(head, terms, target.name)
        try:
            talk.summariser = author
            return await talk.fulfil(order)
        finally:
            await talk.close()

    def _target(self, order: SummaryOrder | SessionOrder, head: Head) -> Target:
        targets = self._gateway.targets
        wire = DIALECTS[head.format].name  # type: ignore[index]
        return targets.choose(order.model, wire, order.upstream)[0]

    async def _refuse(self, order: SummaryOrder | SessionOrder, reason: str) -> None:
        """Mark a summary as failed, so that nobody goes on waiting for it, and `refold jobs` says why."""
        if isinstance(order, SummaryOrder):
            owner, store, now = order.owner, self._gateway.store, self._gateway.now()
            if await store.claim(owner, order.id, HOLDER, now=now, until=now + self._settings.lease_s):
                await store.give_up(owner, order.id, HOLDER, "failed", reason)

    async def _held_for(self, order: SummaryOrder | SessionOrder) -> float:
        """Seconds for which another process holds the lease of a job about the same session; 0 if none does."""
        now = self._gateway.now()
        known = await self._gateway.store.unfinished(order.owner, order.branch)
        held = [one.until - now for one in known if one.base == order.session and one.state == "running"]
        return max((min(one, 2 * self._settings.lease_s) for one in held), default=0.0)
