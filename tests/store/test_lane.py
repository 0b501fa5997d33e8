"""Jobs are done in the order in which they came, by threads that survive what goes wrong in them."""

from __future__ import annotations

import asyncio
import threading

import pytest

from refold.store.lane import Ended, Lane, Told, attempt


def one_by_one(connection, jobs):
    return [attempt(lambda job=job: job(connection)) for job in jobs]


@pytest.fixture
def made():
    """A lane of one thread, the connections it made, and those it left."""
    opened, left = [], []

    def connect():
        opened.append(object())
        return opened[-1]

    lane = Lane(connect, left.append, one_by_one, threads=1, most=1)
    yield lane, opened, left
    lane.close()


async def test_jobs_are_done_in_their_order(made):
    lane, opened, _ = made
    done = []
    await asyncio.gather(*(lane.visit(lambda _, number=number: done.append(number)) for number in range(50)))

    assert done == list(range(50))
    assert len(opened) == 1, "one connection serves them all"


async def test_an_error_reaches_whoever_asked_and_nobody_else(made):
    lane, opened, _ = made
    results = await asyncio.gather(
        lane.visit(lambda _: 1), lane.visit(lambda _: 1 / 0), lane.visit(lambda _: 3), return_exceptions=True
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
        return [Told(job * 2) for job in jobs]

    lane = Lane(object, lambda _: None, work, threads=1, most=4)
    visits = [asyncio.create_task(lane.visit(number)) for number in range(7)]
    await asyncio.sleep(0)
    go.set()

    assert await asyncio.gather(*visits) == [0, 2, 4, 6, 8, 10, 12]
    assert [job for jobs in taken for job in jobs] == list(range(7))
    assert max(map(len, taken)) <= 4
    assert len(taken) < 7
    lane.close()


async def test_a_job_that_nobody_waits_for_is_left_out_before_its_turn(made):
    lane, _, _ = made
    go, done = threading.Event(), []
    first = asyncio.create_task(lane.visit(lambda _: go.wait()))
    second = asyncio.create_task(lane.visit(lambda _: done.append("second")))
    third = asyncio.create_task(lane.visit(lambda _: done.append("third")))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.sleep(0)
    go.set()
    await asyncio.gather(first, third)

    assert done == ["third"]


async def test_a_connection_that_fails_is_tried_again_by_the_next(made):
    lane, _, _ = made
    refusals = [OSError("no"), None]

    def connect():
        if error := refusals.pop(0):
            raise error
        return "connection"

    lane = Lane(connect, lambda _: None, one_by_one, threads=1, most=1)
    with pytest.raises(OSError, match="no"):
        await lane.visit(lambda connection: connection)

    assert await lane.visit(lambda connection: connection) == "connection"
    lane.close()


async def test_closing_finishes_what_was_asked_for(made):
    lane, opened, left = made
    done = []
    visits = [
        asyncio.create_task(lane.visit(lambda _, number=number: done.append(number))) for number in range(20)
    ]
    await asyncio.sleep(0)
    await asyncio.to_thread(lane.close)
    await asyncio.gather(*visits)

    assert done == list(range(20))
    assert left == opened


def test_an_event_loop_that_ended_meanwhile_is_no_trouble():
    go = threading.Event()
    lane = Lane(object, lambda _: None, one_by_one, threads=1, most=1)

    async def leave() -> None:
        task = asyncio.create_task(lane.visit(lambda _: go.wait()))
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(leave())
    go.set()

    assert asyncio.run(lane.visit(lambda _: "still there")) == "still there"
    lane.close()


async def test_who_comes_after_the_end_is_told_so_and_does_not_wait(made):
    lane, _, _ = made
    await lane.visit(lambda _: 1)
    assert lane.is_free
    lane.close()

    assert not lane.is_free
    with pytest.raises(Ended):
        await lane.visit(lambda _: 2)
