from __future__ import annotations

import pytest

from refold.model.errors import RateLimited, UpstreamError
from refold.upstreams import Provider, Retries
from refold.upstreams.http import FailedAttempt, with_retries
from tests.upstreams.questions import Waits


class Tries:
    """Tries that fail as often as they are told to, each after giving some items."""

    def __init__(self, *setbacks: FailedAttempt, given: int = 0) -> None:
        self.setbacks, self.given, self.count, self.closed = [*setbacks], given, 0, 0

    async def __call__(self):
        self.count += 1
        try:
            for number in range(self.given):
                yield number
            if self.setbacks:
                raise self.setbacks.pop(0)
            yield "reply"
        finally:
            self.closed += 1


def busy(wait_s: float | None = None, *, again: bool = True) -> FailedAttempt:
    return FailedAttempt(RateLimited("busy"), again=again, wait_s=wait_s)


async def run(attempt: Tries, waits: Waits, *, total_s: float = 600, **retries) -> list[object]:
    provider = Provider("x", "m", retries=Retries(**retries))
    return [item async for item in with_retries(attempt, provider, waits.pace(), waits.now + total_s)]


async def test_waits_double_up_to_the_longest_and_are_drawn_from_zero_up():
    waits = Waits(drawn=1.0)
    assert await run(Tries(*[busy()] * 6), waits, tries=7) == ["reply"]
    assert waits.waited == [0.5, 1, 2, 4, 8, 8]
    none = Waits(drawn=0.0)
    await run(Tries(busy()), none)
    assert none.waited == [0.0]


async def test_a_provider_that_says_how_long_is_believed():
    waits = Waits(drawn=1.0)
    await run(Tries(busy(7), busy(0)), waits)
    assert waits.waited == [7, 1.0]


@pytest.mark.parametrize("asked_s, total_s", [(61, 600), (30, 20)])
async def test_nobody_waits_longer_than_the_question_may_take(asked_s, total_s):
    waits, tries = Waits(), Tries(busy(asked_s))
    with pytest.raises(RateLimited):
        await run(tries, waits, total_s=total_s)
    assert (waits.waited, tries.count) == ([], 1)


async def test_the_time_for_all_tries_is_bounded():
    waits, tries = Waits(), Tries(*[busy(10)] * 99)
    with pytest.raises(RateLimited):
        await run(tries, waits, tries=99, total_s=35)
    assert tries.count == 4


@pytest.mark.parametrize("number", [1, 3])
async def test_tries_are_bounded(number):
    tries = Tries(*[busy()] * 9)
    with pytest.raises(RateLimited):
        await run(tries, Waits(), tries=number)
    assert (tries.count, tries.closed) == (number, number)


async def test_what_cannot_help_is_not_tried():
    tries = Tries(busy(again=False))
    with pytest.raises(UpstreamError):
        await run(tries, Waits())
    assert tries.count == 1


async def test_after_one_item_there_is_no_second_try():
    tries = Tries(busy(), given=1)
    with pytest.raises(RateLimited):
        await run(tries, Waits())
    assert tries.count == 1


async def test_stopping_early_closes_the_try():
    tries = Tries(given=3)
    items = with_retries(tries, Provider("x", "m"), Waits().pace(), 2000)
    assert await anext(items) == 0
    await items.aclose()
    assert tries.closed == 1
