"""The client of the demo: OpenAI's own, or a plain HTTP client if that is not installed.

Neither depends on Refold. Both take the fields of a Chat Completions request and return the message of the reply, its headers and,
if there is no message, the provider's error.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any, TypeAlias

import aiohttp
import msgspec
from msgspec import Struct


class Answered(Struct, frozen=True):
    message: dict[str, Any] | None
    headers: Mapping[str, str]
    problem: str = ""


Ask: TypeAlias = Callable[[dict[str, Any]], Awaitable[Answered]]


@asynccontextmanager
async def client_for(address: str) -> AsyncIterator[tuple[str, Ask]]:
    """The name of the client, and its function for a request."""
    if find_spec("openai"):
        async with _openai(address) as ask:
            yield "the OpenAI SDK", ask
    else:
        async with _plain(address) as ask:
            yield "a plain HTTP client", ask


@asynccontextmanager
async def _openai(address: str) -> AsyncIterator[Ask]:
    from openai import APIStatusError, AsyncOpenAI

    async with AsyncOpenAI(base_url=f"{address}/v1", api_key="demo", max_retries=0) as client:

        async def ask(fields: dict[str, Any]) -> Answered:
            try:
                raw = await client.chat.completions.with_raw_response.create(**fields)
            except APIStatusError as error:
                return Answered(
                    None, error.response.headers, f"{error.status_code} {error.code or error.type}"
                )
            message = raw.parse().choices[0].message
            return Answered(message.model_dump(exclude_none=True), raw.headers)

        yield ask


@asynccontextmanager
async def _plain(address: str) -> AsyncIterator[Ask]:
    async with aiohttp.ClientSession() as session:

        async def ask(fields: dict[str, Any]) -> Answered:
            body = {name: value for name, value in fields.items() if name != "extra_headers"}
            headers = {
                "authorization": "Bearer demo",
                "content-type": "application/json",
                **fields["extra_headers"],
            }
            async with session.post(
                f"{address}/v1/chat/completions", data=msgspec.json.encode(body), headers=headers
            ) as got:
                found = msgspec.json.decode(await got.read())
            told = {name.lower(): value for name, value in got.headers.items()}
            if got.status != 200:
                return Answered(
                    None, told, f"{got.status} {found['error']['code'] or found['error']['type']}"
                )
            message = found["choices"][0]["message"]
            return Answered({name: one for name, one in message.items() if one is not None}, told)

        yield ask
