"""One request in every protocol, by plain HTTP: for tests that look at bytes instead of what a client makes of them."""

from __future__ import annotations

import json
from io import BytesIO
from typing import NamedTuple

import aiohttp

HEADERS = {"content-type": "application/json", "anthropic-version": "2023-06-01", "x-api-key": "k"}
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "anthropic": "/v1/messages"}
PROTOCOLS = tuple(PATHS)


class WordCounter:
    """A token is a word, and nothing else costs anything: what a test says is what is counted."""

    source = "counted"

    def text(self, text: str) -> int:
        return len(text.split())

    def message(self, message) -> int:
        results = (part.text for result in message.results for part in result.parts)
        texts = (getattr(part, "text", "") for part in message.parts if part not in message.results)
        return sum(map(self.text, (*texts, *results)))


class DemoAnswer(NamedTuple):
    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def json(self):
        return json.loads(self.content)

    @property
    def events(self) -> list[dict]:
        """The data of a stream's events that are JSON."""
        lines = self.content.decode().splitlines()
        return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def body_of(protocol: str, text: str = "hi", **fields) -> dict:
    """A request that says one thing."""
    said = text if protocol == "responses" else [{"role": "user", "content": text}]
    key = "input" if protocol == "responses" else "messages"
    most = {"max_tokens": 64} if protocol == "anthropic" else {}
    return {"model": "m", key: said, **most, **fields}


async def post(server, path: str, body: object, headers: dict[str, str] | None = None) -> DemoAnswer:
    data = BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
    async with (
        aiohttp.ClientSession() as session,
        session.post(server.url + path, data=data, headers=HEADERS if headers is None else headers) as answer,
    ):
        lower = {name.lower(): value for name, value in answer.headers.items()}
        return DemoAnswer(answer.status, lower, await answer.read())


async def ask(server, protocol: str, text: str = "hi", **fields) -> DemoAnswer:
    return await post(server, PATHS[protocol], body_of(protocol, text, **fields))
