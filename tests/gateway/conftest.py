"""A gateway on a real port before a scripted provider, and the official SDKs as its clients."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from io import BytesIO
from itertools import count
from typing import Any

import aiohttp
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from refold.config import Layer, flag_layer, resolve
from refold.gateway.admin import Admin
from refold.gateway.app import Gateway
from refold.gateway.auth import Rules
from refold.gateway.server import build
from refold.gateway.telemetry import PrometheusMetrics, Telemetry
from refold.gateway.upstreams import Target, Targets
from refold.ports.store import Store
from refold.stores.memory import MemoryStore
from refold.testing import ScriptedUpstream
from tests.gateway.served_gateway import serving

ALL = ("chat", "responses", "anthropic")


class ServedModel:
    """A gateway that is being served, and what it serves."""

    def __init__(self, gateway: Gateway, port: int, upstream: ScriptedUpstream) -> None:
        self.gateway, self.store, self.upstream = gateway, gateway.store, upstream
        self.url = f"http://127.0.0.1:{port}"

    def openai(self, **settings: Any) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key="client-key", max_retries=0, **settings)

    def anthropic(self, **settings: Any) -> AsyncAnthropic:
        return AsyncAnthropic(base_url=self.url, api_key="client-key", max_retries=0, **settings)

    async def post(self, path: str, body: bytes, **headers: str) -> tuple[int, dict[str, str], bytes]:
        """One request by hand."""
        sent = {"content-type": "application/json"}
        if path.startswith("/v1/messages"):
            sent["anthropic-version"] = "2023-06-01"
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                f"{self.url}{path}", data=BytesIO(body), headers=sent, allow_redirects=False
            ) as response,
        ):
            told = {name.lower(): value for name, value in response.headers.items()}
            return response.status, told, await response.read()


def target_for(upstream: ScriptedUpstream, **more: Any) -> Target:
    settings = {"formats": ALL, "is_private": True, "name": "scripted", "url": upstream.url, **more}
    return Target(**settings)


@asynccontextmanager
async def served(
    upstream: ScriptedUpstream,
    *,
    store: Store | None = None,
    targets: list[Target] | None = None,
    window: int | None = None,
    id_prefix: str = "id",
    metrics: PrometheusMetrics | None = None,
    telemetry: Telemetry | None = None,
    layers: Sequence[Layer] = (),
    clock: Callable[[], float] = time.time,
    **flags: object,
) -> AsyncIterator[ServedModel]:
    """A gateway before a scripted provider; `flags` are settings, such as `compaction_preset`, and so are `layers`."""
    ids, given = count(1), {name.replace("_", ".", 1): value for name, value in flags.items()}
    resolved = resolve([*layers, flag_layer(given)])
    kept = store or MemoryStore()
    chosen = Targets(targets or [target_for(upstream, window=window)])
    gateway = Gateway(
        kept,
        resolved,
        chosen,
        new_id=lambda: f"{id_prefix}-{next(ids):04}",
        clock=clock,
        metrics=metrics,
        telemetry=telemetry,
    )
    app = build(gateway, Admin(gateway, "test"), Rules())
    async with AsyncExitStack() as stack:
        stack.push_async_callback(gateway.close)
        port = await stack.enter_async_context(serving(app))
        yield ServedModel(gateway, port, upstream)


@pytest.fixture(autouse=True)
def stores_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a store did not take is tried again without a pause that is meant for people's stores."""
    monkeypatch.setattr("refold.gateway.exchange.FIRST_PAUSE_S", 0.01)


@pytest.fixture
async def upstream() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(otherwise="Fine.") as server:
        yield server


@pytest.fixture
async def gate(upstream: ScriptedUpstream) -> AsyncIterator[ServedModel]:
    """One without a summariser: what is asked is what the test asks."""
    async with served(upstream, window=8_000, summariser_enabled=False) as one:
        yield one
