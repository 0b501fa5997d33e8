"""Threads may read one state at the same time."""

from __future__ import annotations

import asyncio
import sys

import refold
from refold.engine.status import preview_of


async def test_threads_may_read_one_state(request):
    interval = sys.getswitchinterval()
    request.addfinalizer(lambda: sys.setswitchinterval(interval))
    sys.setswitchinterval(1e-6)
    chat = refold.Conversation("gpt-4o", window=60_000, max_output=100)
    for number in range(60):
        words = " ".join(f"word{number}x{place}" for place in range(60))
        await chat.add(f"question {number} about order ORD-{7_000 + number} {words}")
        await chat.add({"role": "assistant", "content": f"answer {number} INV-{number}"})
    state = chat.state
    found = await asyncio.gather(*(asyncio.to_thread(preview_of, state, state.frame, 200) for _ in range(8)))
    assert len({one.after for one in found}) == 1
