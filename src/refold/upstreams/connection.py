"""The way to a provider: requests out, bytes back, and never a wait without an end.

One idea: every wait has two limits, the one of its own kind and what is left of the time for the whole question. Whatever
goes wrong on the way leaves here as one `Setback`.

Redirects are not followed: a key goes to the host it was given for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from io import BytesIO

import aiohttp

from refold.model.dialect import Dialect
from refold.upstreams.key import Key
from refold.upstreams.provider import Provider
from refold.upstreams.reach import lost
from refold.upstreams.retry import Pace

ANTHROPIC_VERSION = "2023-06-01"
LINGER_S = 0.05
"""How long the end of a connection is waited for after the end of a stream, so that the connection can serve again."""
_PATHS = {"chat": "/chat/completions", "responses": "/responses", "anthropic": "/v1/messages"}


class Connection:
    def __init__(
        self,
        provider: Provider,
        dialect: Dialect,
        session: aiohttp.ClientSession,
        key: Key,
        pace: Pace,
        path: str = "",
    ) -> None:
        """`path` is where something else than a reply is asked for."""
        self._provider, self._session, self._key, self._pace = provider, session, key, pace
        own = {name.lower(): value for name, value in provider.headers.items()}
        fixed = {"content-type": "application/json", "user-agent": "refold"}
        if dialect.name == "anthropic":
            fixed["anthropic-version"] = ANTHROPIC_VERSION
        self._headers, self._own = fixed, own
        path = path or _PATHS[dialect.name]
        # Anthropic's own addresses end before the version, those of its imitators often after it.
        self._url = provider.base_url.removesuffix("/v1" if path.startswith("/v1/") else "") + path

    def __repr__(self) -> str:
        return f"<connection to {self._provider.name}>"

    @asynccontextmanager
    async def post(
        self, body: bytes, accept: str, until: float, *, under: str = ""
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The provider's answer. A key that it refuses is renewed once, where there is a command that prints it.

        `under` is added to the address: providers count a request under the address that would answer it.
        """
        url, key = self._url + under, await self._key.headers()
        response = await self._send(url, body, {"accept": accept, **key}, until)
        try:
            if response.status == 401 and await self._key.renew(key):
                response.close()
                renewed = {"accept": accept, **await self._key.headers()}
                response = await self._send(url, body, renewed, until)
            yield response
        finally:
            response.close()

    async def _send(
        self, url: str, body: bytes, headers: dict[str, str], until: float
    ) -> aiohttp.ClientResponse:
        async with self._waiting(self._provider.timeouts.first_byte_s, until):
            return await self._session.post(
                url,
                data=BytesIO(body),
                headers={**self._headers, **headers, **self._own},
                allow_redirects=False,
                proxy=self._provider.proxy or None,
            )

    async def chunks(self, response: aiohttp.ClientResponse, until: float) -> AsyncGenerator[bytes, None]:
        limit_s = self._provider.timeouts.first_byte_s
        while True:
            async with self._waiting(limit_s, until):
                chunk = await response.content.readany()
            if not chunk:
                return
            yield chunk
            limit_s = self._provider.timeouts.between_s

    async def body(self, response: aiohttp.ClientResponse, until: float, limit: int) -> bytes:
        """The whole body, or one byte more than `limit` of it."""
        body = bytearray()
        async with aclosing(self.chunks(response, until)) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) > limit:
                    break
        return bytes(body[: limit + 1])

    async def linger(self, response: aiohttp.ClientResponse) -> None:
        with suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(LINGER_S):
                while await response.content.readany():
                    pass

    @asynccontextmanager
    async def _waiting(self, limit_s: float, until: float) -> AsyncIterator[None]:
        left_s = until - self._pace.clock()
        try:
            async with asyncio.timeout(min(limit_s, left_s)):
                yield
        except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is an OSError
            raise lost(self._provider, error, limit_s if limit_s <= left_s else None) from None
