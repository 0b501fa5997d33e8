"""The page of a gateway on a real port, in a thread of its own, and the system's Chromium before it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any, TypeVar

import pytest

from refold.config import flag_layer, resolve
from refold.gateway.admin import Admin
from refold.gateway.app import Gateway
from refold.gateway.auth import Rules, mint
from refold.gateway.server import build
from refold.gateway.upstreams import Target, Targets
from refold.ports.store import Store
from refold.stores.memory import MemoryStore
from tests.dashboard.example_store import fill
from tests.gateway.served_gateway import serving

T = TypeVar("T")


class ServedPage:
    """A gateway that is served in another thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, gateway: Gateway, port: int) -> None:
        self._loop, self.gateway, self.store, self.port = loop, gateway, gateway.store, port
        self.url = f"http://127.0.0.1:{port}"

    def run(self, act: Callable[[], Awaitable[T]]) -> T:
        """Do something in the gateway's own event loop."""

        async def wait() -> T:
            return await act()

        return asyncio.run_coroutine_threadsafe(wait(), self._loop).result(30)

    def make_key(self, owner: str, *, admin: bool = False) -> str:
        text, row = mint(owner, at=time.time(), admin=admin)
        self.run(lambda: self.store.add_key(row))
        return text


@contextmanager
def serve(store: Store, **flags: Any) -> Iterator[ServedPage]:
    loop, ready, found = asyncio.new_event_loop(), threading.Event(), list[Any]()
    given = {"compaction.window": "12000", "summariser.enabled": False} | {
        name.replace("_", ".", 1): value for name, value in flags.items()
    }

    async def main() -> None:
        target = Target(name="scripted", url="http://127.0.0.1:9/v1", formats=("chat",), is_private=True)
        gateway = Gateway(store, resolve([flag_layer(given)]), Targets([target]))
        stop = asyncio.Event()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(gateway.close)
            port = await stack.enter_async_context(serving(build(gateway, Admin(gateway, "test"), Rules())))
            stack.callback(gateway.events.close)
            found.append((ServedPage(loop, gateway, port), stop))
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),), daemon=True)
    thread.start()
    assert ready.wait(30)
    page, stop = found[0]
    try:
        yield page
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()


@contextmanager
def serve_example(share: float = 0.35) -> Iterator[ServedPage]:
    """The page of a gateway with the conversations of the example."""
    store = MemoryStore()
    with serve(store) as served:
        served.run(lambda: fill(store, time.time(), share=share))
        yield served


@pytest.fixture(scope="module")
def page() -> Iterator[ServedPage]:
    """The page without keys. Tests of a module share it: a test that changes something changes a conversation of its own."""
    with serve_example() as served:
        yield served
