"""The queue of jobs on a real PostgreSQL."""

from __future__ import annotations

import asyncio
import json

import psycopg
import pytest

pytest.importorskip("procrastinate", reason="jobs need the extra `cluster`")

from refold.cli.main import run as run_command
from refold.core.presets import PRESETS
from refold.model.tokens import Budget
from refold.ports.records import SessionOrder, SummaryOrder
from refold.stores.postgres.job_queue import JobQueue
from tests.contract.postgres import get_server, make_database


@pytest.fixture
async def queue(pytestconfig):
    made = JobQueue(make_database(get_server(pytestconfig), "jobs"), lease_s=1.0)
    await made.open()
    yield made
    await made.close()


def order(**other: object) -> SummaryOrder:
    fields = {"owner": "o", "conversation": "talk", "branch": "b", "session": "s", "id": "c", "recipe": "r"}
    sizes = {"size": 9, "first": 0, "last": 5, "items": (0, 1), "kept": (5,), "max_tokens": 100}
    return SummaryOrder(
        **{**fields, **sizes, "model": "m", "budget": Budget(4_000), "policy": PRESETS["refold"], **other}
    )


async def test_a_compaction_is_queued_once_and_one_that_is_awaited_comes_first(queue):
    await queue.order_summary(order())
    await queue.order_summary(order())
    await queue.order_summary(order(id="d", branch="other", is_awaited=True))
    await queue.order_session(
        SessionOrder(
            owner="o", conversation="talk", branch="b", session="s", model="m",
            budget=Budget(4_000), policy=PRESETS["lis"],
        )
    )  # fmt: skip
    found = await queue.jobs()
    assert [(one.kind, one.compaction) for one in found] == [
        ("summary", "c"),
        ("summary", "d"),
        ("session", ""),
    ]
    assert await queue.is_queued("c")
    assert not await queue.is_queued("x")
    first = await queue.app.job_manager.fetch_job(None, await queue.app.job_manager.register_worker())
    assert first.queueing_lock == "d"
    assert (await queue.state()).running == 1


async def test_a_branch_has_one_job_at_a_time_and_that_of_a_dead_worker_is_queued_again(queue):
    await queue.order_summary(order())
    await queue.order_summary(order(id="d"))
    manager = queue.app.job_manager
    worker = await manager.register_worker()
    assert (await manager.fetch_job(None, worker)).queueing_lock == "c"
    assert await manager.fetch_job(None, worker) is None  # the other one is about the same branch
    assert await queue.recover() == 0  # its heartbeat is recent
    await manager.unregister_worker(worker)
    assert await queue.recover() == 1
    assert (await queue.state()).waiting == 2


async def test_refold_jobs_lists_a_row_that_is_no_order(queue, pytestconfig, capsys):
    """Another program has written into the queue, or a later version has."""
    url = get_server(pytestconfig).get_uri("jobs")
    await queue.order_summary(order())
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute("SET search_path = refold_jobs, public")
        for args in ('{"order": 7}', '{"order": ["o"]}', '{"order": {"owner": 1, "conversation": {}}}', "{}"):
            add = "INSERT INTO procrastinate_jobs (task_name, queue_name, args) VALUES ('refold.summary', 'refold', %s)"
            await connection.execute(add, (args,))

    assert await asyncio.to_thread(run_command, ["jobs", "--store", url, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["jobs"]
    assert [one["conversation"] for one in found] == ["talk", "", "", "", ""]


async def test_the_tables_are_made_once_and_opened_by_anybody(queue, pytestconfig):
    other = JobQueue(get_server(pytestconfig).get_uri("jobs"))
    await asyncio.gather(other.open(), queue.open())
    await other.order_sweep("o")
    assert [one.owner for one in await queue.jobs("todo")] == ["o"]
    await other.close()
