"""A provider that keeps state, for one account: whoever has the account's key reaches all of it, as at a real one.

Ids are counted and easy to guess. It notes every request with the bytes of its path, and hands out whatever it was given before.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from aiohttp import web


class Asked(NamedTuple):
    method: str
    path: str
    """As it came, with its query."""
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def key(self) -> str:
        return self.headers.get("x-api-key") or self.headers.get("authorization", "").removeprefix("Bearer ")


class KeepingProvider:
    def __init__(self, model: str = "keeper") -> None:
        self.url, self.model = "", model
        self.asked: list[Asked] = []
        self.kept: dict[str, Any] = {}
        """Everything that was made, by its id."""
        self.status = 200
        """What everything is answered with, unless it is 200."""
        self.pause: asyncio.Event | None = None
        """Streams wait for it after their first event."""
        self.edit: Callable[[dict[str, Any]], dict[str, Any]] = lambda made: made
        """Changes what is answered."""
        self._count = 0

    @property
    def last(self) -> Asked:
        return self.asked[-1]

    def make(self, prefix: str, **what: Any) -> dict[str, Any]:
        self._count += 1
        made = {"id": f"{prefix}{self._count}", **what}
        self.kept[made["id"]] = made
        return made

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        asked = Asked(request.method, request.raw_path, headers, body)
        self.asked.append(asked)
        if self.status != 200:
            return web.json_response({"error": {"message": "Refused."}}, status=self.status)
        steps = [step for step in request.path.removeprefix("/v1/").split("/") if step]
        answer = self._answer(request.method, steps, asked)
        if answer is None:
            return web.json_response({"error": {"message": "Not found."}}, status=404)
        if isinstance(answer, bytes):
            return web.Response(body=answer)
        wants_stream = body.startswith(b"{") and json.loads(body).get("stream")
        if (wants_stream or request.query.get("stream")) and "id" in answer:
            return await self._stream(request, "/".join(steps[:2]), answer)
        return web.json_response(self.edit(answer))

    def _answer(self, method: str, steps: list[str], asked: Asked) -> Any:  # noqa: C901, PLR0912  # one row for each call of the API
        match method, steps:
            case "GET", ["models", *_]:
                return {"object": "list", "data": [{"id": self.model, "object": "model"}]}
            case "POST", ["responses"]:
                return self._respond(asked.json)
            case "POST", ["responses", "input_tokens"] | ["messages", "count_tokens"]:
                return {"input_tokens": 7}
            case "POST", ["chat", "completions"]:
                said = {"role": "assistant", "content": "Fine."}
                choice = {"index": 0, "message": said, "finish_reason": "stop"}
                return self.make("chatcmpl_", object="chat.completion", model="m", choices=[choice])
            case "POST", ["messages"]:
                said = [{"type": "text", "text": "Fine."}]
                return self.make("msg_", type="message", role="assistant", model="m", content=said,
                                 stop_reason="end_turn", usage={"input_tokens": 1, "output_tokens": 1})  # fmt: skip
            case "POST", ["files"]:
                return self.make("file_", object="file", content=asked.body.decode("latin-1"))
            case "POST", ["batches"] | ["messages", "batches"]:
                out = self.make("file_", object="file", content="results")
                return self.make("batch_", object="batch", output_file_id=out["id"], error_file_id=None)
            case "POST", [("conversations" | "vector_stores" | "containers") as collection]:
                return self.make(f"{collection[:4]}_", object=collection)
            case "POST", [_] | ["audio" | "images" | "organization", _]:
                return {"object": "done"}
            case "GET", [_] | ["chat", "completions"] | ["messages", "batches"] | ["organization", *_]:
                return {"object": "list", "data": [*self.kept.values()]}
            case _:
                named = next((self.kept[step] for step in steps if step in self.kept), None)
                if named is not None and steps[-1] in ("content", "results"):
                    return str(named.get("content", "results")).encode()
                if named is not None and method == "DELETE":
                    return self.kept.pop(named["id"])
                return named

    def _respond(self, body: dict[str, Any]) -> dict[str, Any] | None:
        """A response that says all that it was reminded of."""
        text = json.dumps(body)
        reminded = [json.dumps(one) for name, one in self.kept.items() if re.search(rf'"{name}"', text)]
        self._count += 1
        content = [{"type": "output_text", "text": f"Remembered: {reminded} {text}", "annotations": []}]
        item = {"id": f"item_{self._count}", "type": "message", "role": "assistant", "status": "completed",
                "content": content}  # fmt: skip
        self.kept[item["id"]] = item
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        return self.make(
            "resp_", object="response", model="m", status="completed", output=[item], usage=usage
        )

    async def _stream(self, request: web.Request, place: str, whole: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for number, event in enumerate(_events(place, self.edit(whole))):
            name = f"event: {event['type']}\n" if "type" in event else ""
            await response.write(f"{name}data: {json.dumps(event)}\n\n".encode())
            if number == 0 and self.pause is not None:
                await self.pause.wait()
        return response


def _events(place: str, whole: dict[str, Any]) -> list[dict[str, Any]]:
    if place == "chat/completions":
        chunk = {"id": whole["id"], "object": "chat.completion.chunk", "model": "m"}
        said = whole["choices"][0]["message"]
        return [
            {**chunk, "choices": [{"index": 0, "delta": said, "finish_reason": None}]},
            {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        ]
    if place == "messages":
        opened = {**whole, "content": [], "stop_reason": None}
        blocks = [
            {"type": f"content_block_{part}", "index": index, **({"content_block": block} if part == "start" else {})}
            for index, block in enumerate(whole["content"])
            for part in ("start", "stop")
        ]  # fmt: skip
        delta = {"stop_reason": "end_turn", "container": whole.get("container")}
        ended = {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 1}}
        return [{"type": "message_start", "message": opened}, *blocks, ended, {"type": "message_stop"}]
    opened = {**whole, "output": [], "status": "in_progress"}
    told = [{"type": "response.created", "response": opened}]
    for index, item in enumerate(whole["output"]):
        told += [
            {"type": f"response.output_item.{word}", "output_index": index, "item": item}
            for word in ("added", "done")
        ]
    return [*told, {"type": "response.completed", "response": whole}]


@asynccontextmanager
async def keeping(model: str = "keeper") -> AsyncIterator[KeepingProvider]:
    """One that is being served."""
    provider = KeepingProvider(model)
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_route("*", "/{rest:.*}", provider.handle)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.05)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port, *_ = runner.addresses[0]
    provider.url = f"http://{host}:{port}"
    try:
        yield provider
    finally:
        await runner.cleanup()
