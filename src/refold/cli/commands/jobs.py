"""`refold jobs`: the background jobs of a cluster, and a second try for those that failed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import structs

from refold.cli import output
from refold.cli.options import JsonOption, StoreUrl
from refold.cli.output import align, plain, plural, when
from refold.model.errors import ConfigError

if TYPE_CHECKING:
    from refold.ports.records import QueuedJob, QueueState
    from refold.ports.store import Store
    from refold.stores.postgres.job_queue import JobQueue


def declare(app: typer.Typer) -> None:
    app.command(epilog="Example: refold jobs --retry 17")(jobs)


def jobs(
    *,
    retry: Annotated[
        int | None,
        typer.Option("--retry", metavar="JOB", help="Run a failed job again.", show_default=False),
    ] = None,
    retry_all: Annotated[bool, typer.Option("--retry-all", help="Run every failed job again.")] = False,
    store: StoreUrl = "",
    as_json: JsonOption = False,
) -> int:
    """List the background jobs that wait, run or have failed, or run failed ones again.

    A job that succeeded leaves the list. One that failed is tried again later, and listed as failed after its last try, for a week.
    The store is that of the gateways and workers, in PostgreSQL.
    """
    from refold.cli.store_access import with_store
    from refold.stores.url import kind_of

    if kind_of(store) != "postgresql":
        raise ConfigError(
            "only a store in PostgreSQL has jobs",
            hint="give it with --store postgresql://... or REFOLD_STORE_URL",
        )

    async def act(opened: Store) -> int:
        from refold.stores.postgres.job_queue import JobQueue

        queue = JobQueue(store)
        await queue.open()
        try:
            if retry is not None or retry_all:
                return await _retry(queue, retry, as_json=as_json)
            return await _list(queue, opened, as_json=as_json)
        finally:
            await queue.close()

    return with_store(store, act)


async def _retry(queue: JobQueue, which: int | None, *, as_json: bool) -> int:
    wanted = [which] if which is not None else [one.id for one in await queue.jobs("failed")]
    for one in wanted:
        await queue.retry(one)
    if as_json:
        output.write_json({"retried": wanted})
    else:
        output.note(f"{plural(len(wanted), 'job')} queued again" if wanted else "no job has failed")
    return 0


async def _list(queue: JobQueue, opened: Store, *, as_json: bool) -> int:
    found, state = await queue.jobs("todo", "doing", "failed"), await queue.state()
    reasons = {one.id: await _reason(opened, one) for one in found if one.status == "failed"}
    if as_json:
        rows = [{**structs.asdict(one), "error": reasons.get(one.id, "")} for one in found]
        output.write_json({**structs.asdict(state), "jobs": rows})
        return 0
    if found:
        output.write(_table(found))
        failed = [(one.id, plain(reasons[one.id])) for one in found if reasons.get(one.id)]
        output.write("".join(f"job {job} failed: {reason}\n" for job, reason in failed))
    output.note(_sums(state))
    return 0


async def _reason(opened: Store, one: QueuedJob) -> str:
    """Why no model wrote the summary of a failed job, as its compaction's row has it."""
    row = await opened.compaction(one.owner, one.compaction) if one.compaction else None
    return row.error if row else ""


def _table(found: Sequence[QueuedJob]) -> str:
    rows = [
        (
            str(one.id),
            one.kind,
            STATES.get(one.status, one.status),
            str(one.attempts),
            when(one.next_at or one.at),
            plain(one.conversation),
        )
        for one in found
    ]
    head = ("job", "kind", "state", "tries", "since or next", "conversation")
    return align(head, rows, frozenset({"job", "tries"}), cuts=("conversation",))


STATES = {"todo": "waiting", "doing": "running"}


def _sums(state: QueueState) -> str:
    sums = f"{state.waiting} waiting, {state.running} running, {state.failed} failed; {plural(state.workers, 'worker')}"
    return sums if state.workers or not state.waiting else f"{sums}: start `refold worker`"
