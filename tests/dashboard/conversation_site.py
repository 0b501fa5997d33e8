"""Pages of conversations without a server between: a gateway over a store, and what its pages hold."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote, urlsplit

from refold.config import flag_layer, resolve
from refold.dashboard.app import conversation_url
from refold.engine.engine import Engine
from refold.gateway.admin import Admin
from refold.gateway.app import Gateway
from refold.gateway.auth import Rules
from refold.gateway.server import build
from refold.gateway.upstreams import Target, Targets
from refold.ports.store import Store
from tests.gateway.served_gateway import ask, scope_of

WINDOW = 6_000


class Clock:
    def __init__(self) -> None:
        self.now = 1_790_000_000.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def engine(store: Store, **settings: Any) -> Engine:
    return Engine(store, clock=Clock(), **{"model": "gpt-4o", "window": WINDOW, **settings})


class Page(HTMLParser):
    """The elements of a page with their attributes, and its text."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__()
        self.status, self.body, self.html = status, body, body.decode()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(self.html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def with_class(self, name: str) -> list[dict[str, str | None]]:
        return [attrs for _, attrs in self.tags if name in (attrs.get("class") or "").split()]


class Site:
    def __init__(self, app: Any) -> None:
        self._app = app

    async def get(self, url: str) -> Page:
        parts = urlsplit(url)
        told = await ask(self._app, scope_of(unquote(parts.path), query=parts.query))
        return Page(told.status, told.body)

    async def page(self, name: str, *rest: str, **query: object) -> Page:
        return await self.get(conversation_url(name, *rest, **query))

    async def json(self, name: str, *rest: str, **query: object) -> Any:
        path, _, asked = conversation_url(name, *rest, **query).partition("?")
        found = await self.get(f"{path}.json?{asked}")
        return json.loads(found.body)


@asynccontextmanager
async def site_of(store: Store, **flags: str) -> AsyncIterator[Site]:
    given = {"compaction.window": f"{WINDOW}", "summariser.enabled": False, **flags}
    target = Target(name="scripted", url="http://127.0.0.1:9/v1", formats=("chat",), is_private=True)
    gateway = Gateway(store, resolve([flag_layer(given)]), Targets([target]))
    try:
        yield Site(build(gateway, Admin(gateway, "test"), Rules()))
    finally:
        gateway.events.close()
        await gateway.close()
