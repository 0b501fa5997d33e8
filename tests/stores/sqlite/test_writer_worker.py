"""Jobs are done in the order in which they came, by threads that survive what goes wrong in them."""

from __future__ import annotations

import asyncio
import threading

import pytest

from refold.stores.sqlite.writer import JobOutcome, WorkerPool, WorkersStopped, attempt


def one_by_one(connection, jobs):
    return [attempt(lambda job=job: job(connection)) for job in jobs]


@pytest.fixture
def made():
    """A pool of one thread, the connections it made, and those it left."""
    opened, left = [], []

    def connect():
        opened.append(object())
        return opened[-1]

    pool = WorkerPool(connect, left.append, one_by_one, threads=1, most=1)
    yield pool, opened, left
    pool.close()


async def test_jobs_are_done_in_their_order(made):
    pool, opened, _ = made
    done = []
    await asyncio.gather(*(pool.submit(lambda _, number=number: done.append(number)) for number in range(50)))

    assert done == list(range(50))
    assert len(opened) == 1, "one connection serves them all"


async def test_an_error_reaches_whoever_asked_and_nobody_else(made):
    pool, opened, _ = made
    results = await asyncio.gather(
        pool.submit(lambda _: 1),
        pool.submit(lambda _: 1 / 0),
        pool.submit(lambda _: 3),
        return_exceptions=True,
    )

    assert results[0] == 1
    assert isinstance(results[1], ZeroDivisionError)
    assert results[2] == 3
    assert len(opened) == 1


async def test_what_waits_is_taken_together_up_to_a_limit():
    taken, go = [], threading.Event()

    def work(_, jobs):
        taken.append(list(jobs))
        go.wait()
        return [JobOutcome(job * 2) for job in jobs]

    pool = WorkerPool(object, lambda _: None, work, threads=1, most=4)
    visits = [asyncio.create_task(pool.submit(number)) for number in range(7)]
    await asyncio.sleep(0)
    go.set()

    assert await asyncio.gather(*visits) == [0, 2, 4, 6, 8, 10, 12]
    assert [job for jobs in taken for job in jobs] == list(range(7))
    assert max(map(len, taken)) <= 4
    assert len(taken) < 7
    pool.close()


async def test_a_job_that_nobody_waits_for_is_left_out_before_its_turn(made):
    pool, _, _ = made
    go, done = threading.Event(), []
    first = asyncio.create_task(pool.submit(lambda _: go.wait()))
    second = asyncio.create_task(pool.submit(lambda _: done.append("second")))
    third = asyncio.create_task(pool.submit(lambda _: done.append("third")))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.sleep(0)
    go.set()
    await asyncio.gather(first, third)

    assert done == ["third"]


async def test_a_connection_that_fails_is_tried_again_by_the_next(made):
    pool, _, _ = made
    refusals = [OSError("no"), None]

    def connect():
        if error := refusals.pop(0):
            raise error
        return "connection"

    pool = WorkerPool(connect, lambda _: None, one_by_one, threads=1, most=1)
    with pytest.raises(OSError, match="no"):
        await pool.submit(lambda connection: connection)

    assert await pool.submit(lambda connection: connection) == "connection"
    pool.close()


async def test_closing_finishes_what_was_asked_for(made):
    pool, opened, left = made
    done = []
    visits = [
        asyncio.create_task(pool.submit(lambda _, number=number: done.append(number))) for number in range(20)
    ]
    await asyncio.sleep(0)
    await asyncio.to_thread(pool.close)
    await asyncio.gather(*visits)

    assert done == list(range(20))
    assert left == opened


def test_an_event_loop_that_ended_meanwhile_is_no_trouble():
    go = threading.Event()
    pool = WorkerPool(object, lambda _: None, one_by_one, threads=1, most=1)

    async def leave() -> None:
        task = asyncio.create_task(pool.submit(lambda _: go.wait()))
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(leave())
    go.set()

    assert asyncio.run(pool.submit(lambda _: "still there")) == "still there"
    pool.close()


async def test_who_comes_after_the_end_is_told_so_and_does_not_wait(made):
    pool, _, _ = made
    await pool.submit(lambda _: 1)
    assert pool.is_free
    pool.close()

    assert not pool.is_free
    with pytest.raises(WorkersStopped):
        await pool.submit(lambda _: 2)
