"""Orders for workers, with plugins in use."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager

import msgspec

import refold
from refold.ports.records import SessionOrder, SummaryOrder
from tests.plugins.plugin_setup import plugin, using


class EncodingQueue:
    """Encodes and decodes each order, as a queue in a database does."""

    def __init__(self) -> None:
        self.orders: list[SummaryOrder | SessionOrder] = []
        self.has_both = asyncio.Event()

    def _put(self, order: SummaryOrder | SessionOrder) -> None:
        self.orders.append(msgspec.convert(msgspec.to_builtins(order), type(order)))
        if len({type(one) for one in self.orders}) == 2:
            self.has_both.set()

    async def order_summary(self, order: SummaryOrder) -> None:
        self._put(order)

    async def order_session(self, order: SessionOrder) -> None:
        self._put(order)

    async def is_queued(self, compaction: str) -> bool:
        return False

    @contextmanager
    def watch(self, compaction: str):
        yield asyncio.Event()


async def never_asked(messages, *, previous, max_tokens):
    raise AssertionError("a worker writes the summaries")


async def test_orders_leave_out_the_code_of_plugins():
    using(plugin(stages=[lambda shown, room: None], triggers={"before_call": lambda facts: ""}))
    queue = EncodingQueue()
    async with refold.Conversation("gpt-4o", window=4_000, summariser=never_asked) as chat:
        chat.queue = queue
        assert chat.state.frame.policy.runs_plugins
        for turn in range(12):
            await chat.add({"role": "user", "content": f"question {turn} " + "word " * 150})
            await chat.context()
            await chat.add({"role": "assistant", "content": f"answer {turn} " + "word " * 150})
        await chat.start_session()
        async with asyncio.timeout(10):
            await queue.has_both.wait()
        assert chat.state.frame.policy.runs_plugins
    assert not any(order.policy.runs_plugins for order in queue.orders)
