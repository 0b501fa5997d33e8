"""A provider on this machine that does what a script says: a real server, real HTTP, the real bodies.

One idea: a script is a function from what was received to what is answered, so a test says in a few lines how the provider
behaves, and looks afterwards at everything that it was sent.

    with Provider(lambda received: chat_reply("Hello.")) as provider:
        client = openai.OpenAI(base_url=provider.url, api_key="none")
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import TracebackType
from typing import Any, NamedTuple, Self


class Received(NamedTuple):
    """One request as it arrived."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def fields(self) -> dict[str, Any]:
        return json.loads(self.body)


class Answer(NamedTuple):
    """What goes back: JSON, or bytes as they are."""

    status: int
    body: object
    headers: Mapping[str, str] = {}

    @property
    def data(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


Script = Callable[[Received], Answer]


class Provider:
    """Answers by a script until the block is left. `received` and `answered` hold everything that went through."""

    def __init__(self, script: Script) -> None:
        self.received: list[Received] = []
        self.answered: list[Answer] = []
        self._script = script
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._thread = Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        """The base URL that clients are given."""
        host, port = self._server.server_address[:2]
        return f"http://{host}:{port}/v1"

    def answer(self, received: Received) -> Answer:
        self.received.append(received)
        self.answered.append(answer := self._script(received))
        return answer

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def chat_reply(text: str | None, calls: Sequence[tuple[str, str, object]] = (), **usage: int) -> Answer:
    """A reply of Chat Completions. A call is its id, its name and its arguments; usage is `prompt` and `completion`."""
    prompt, completion = usage.get("prompt", 10), usage.get("completion", 5)
    tool_calls = [
        {"id": key, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for key, name, arguments in calls
    ]
    message = {"role": "assistant", "content": text, "refusal": None, "annotations": []}
    choice = {
        "index": 0,
        "message": {**message, "tool_calls": tool_calls} if calls else message,
        "logprobs": None,
        "finish_reason": "tool_calls" if calls else "stop",
    }
    return Answer(
        200,
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1_760_000_000,
            "model": "scripted",
            "choices": [choice],
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": completion,
                "total_tokens": prompt + completion,
                "prompt_tokens_details": {"cached_tokens": usage.get("cached", 0), "audio_tokens": 0},
                "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
            },
        },
    )


def chat_overflow(limit: int, prompt: int) -> Answer:
    """OpenAI's refusal of a request that is too long, word for word."""
    message = (
        f"This model's maximum context length is {limit} tokens. However, your messages resulted in {prompt} tokens. "
        "Please reduce the length of the messages."
    )
    error = {
        "message": message,
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }
    return Answer(400, {"error": error})


def _handler(provider: Provider) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = (
            -1
        )  # headers and body in one packet: otherwise every answer waits 40 ms for an acknowledgement

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            answer = provider.answer(Received(self.path, dict(self.headers.items()), body))
            self.send_response(answer.status)
            for name, value in {"Content-Type": "application/json", **answer.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.data)))
            self.end_headers()
            self.wfile.write(answer.data)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # its name in the base class
            """Tests are silent."""

    return Handler
