"""Clients of the three official SDKs that keep a history of their own, and a model that recalls when it is asked."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol, Self

from refold.model.message import Message
from refold.model.message import ToolCall as Called
from refold.testing import Received, Say, call, say
from tests.gateway.conftest import ServedModel

MODEL = "gpt-5"
LOOK = {"type": "object", "properties": {"path": {"type": "string"}}}


class Client(Protocol):
    """A chat by one SDK. `ask` returns the text and the calls of the reply; the history has both afterwards."""

    history: list[Any]
    usage: Any

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...

    async def ask(self, text: str) -> tuple[str, list[Called]]: ...

    async def answer(self, results: dict[str, str]) -> tuple[str, list[Called]]: ...


class _Kept:
    """The SDK of a client: one for every request or, inside of `async with`, one for all of them."""

    gate: ServedModel
    kept: Any = None

    def _open(self) -> Any:
        return self.gate.openai()

    async def __aenter__(self) -> Self:
        self.kept = self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kept.close()

    @asynccontextmanager
    async def _sdk(self) -> AsyncIterator[Any]:
        if self.kept is not None:
            yield self.kept
            return
        async with self._open() as sdk:
            yield sdk


class ChatClient(_Kept):
    def __init__(self, gate: ServedModel, *, stream: bool, tools: tuple[str, ...] = (), **more: Any) -> None:
        self.gate, self.stream, self.history = gate, stream, list[Any]()
        own = [{"type": "function", "function": {"name": name, "parameters": LOOK}} for name in tools]
        self.fields = {"model": MODEL, **({"tools": own} if own else {}), **more}
        self.usage: Any = None

    async def ask(self, text: str) -> tuple[str, list[Called]]:
        self.history.append({"role": "user", "content": text})
        return await self._send()

    async def answer(self, results: dict[str, str]) -> tuple[str, list[Called]]:
        self.history += [
            {"role": "tool", "tool_call_id": one, "content": text} for one, text in results.items()
        ]
        return await self._send()

    async def _send(self) -> tuple[str, list[Called]]:
        async with self._sdk() as sdk:
            whole = await self._whole(sdk.chat.completions)
        self.usage, message = whole.usage, whole.choices[0].message
        sent = message.model_dump(exclude_none=True)
        for one in sent.get("tool_calls", ()):
            one["function"].pop("parsed_arguments", None)
        self.history.append({key: sent[key] for key in ("role", "content", "tool_calls") if key in sent})
        calls = [
            Called(one.id, one.function.name, one.function.arguments) for one in message.tool_calls or ()
        ]
        assert whole.choices[0].finish_reason == ("tool_calls" if calls else "stop")
        return message.content or "", calls

    async def _whole(self, chat: Any) -> Any:
        if self.stream:
            options = {"include_usage": True}
            async with chat.stream(messages=self.history, stream_options=options, **self.fields) as events:
                return await events.get_final_completion()
        return await chat.create(messages=self.history, **self.fields)


class ResponsesClient(_Kept):
    def __init__(self, gate: ServedModel, *, stream: bool, tools: tuple[str, ...] = (), **more: Any) -> None:
        self.gate, self.stream, self.history = gate, stream, list[Any]()
        own = [{"type": "function", "name": name, "parameters": LOOK, "strict": False} for name in tools]
        self.fields = {"model": MODEL, **({"tools": own} if own else {}), **more}
        self.usage: Any = None
        self.last = ""
        """The id of the last response."""

    async def ask(self, text: str) -> tuple[str, list[Called]]:
        self.history.append({"role": "user", "content": text})
        return await self._send()

    async def answer(self, results: dict[str, str]) -> tuple[str, list[Called]]:
        self.history += [
            {"type": "function_call_output", "call_id": one, "output": text} for one, text in results.items()
        ]
        return await self._send()

    async def _send(self) -> tuple[str, list[Called]]:
        async with self._sdk() as sdk:
            whole = await self._whole(sdk.responses)
        self.usage, self.last = whole.usage, whole.id
        self.history += [_input_item(item.model_dump(exclude_none=True)) for item in whole.output]
        calls = [
            Called(one.call_id, one.name, one.arguments)
            for one in whole.output
            if one.type == "function_call"
        ]
        return whole.output_text, calls

    async def _whole(self, responses: Any) -> Any:
        if not self.stream:
            return await responses.create(input=self.history, **self.fields)
        async with responses.stream(input=self.history, **self.fields) as events:
            numbers = [event.sequence_number async for event in events]
            whole = await events.get_final_response()
        assert numbers == [*range(len(numbers))]
        return whole


def _input_item(item: dict[str, Any]) -> dict[str, Any]:
    for part in item.get("content", ()):
        part.pop("parsed", None)
    item.pop("parsed_arguments", None)
    return item


class AnthropicClient(_Kept):
    def __init__(self, gate: ServedModel, *, stream: bool, tools: tuple[str, ...] = (), **more: Any) -> None:
        self.gate, self.stream, self.history = gate, stream, list[Any]()
        own = [{"name": name, "input_schema": LOOK} for name in tools]
        self.fields = {"model": MODEL, "max_tokens": 1_000, **({"tools": own} if own else {}), **more}
        self.usage: Any = None

    def _open(self) -> Any:
        return self.gate.anthropic()

    async def ask(self, text: str) -> tuple[str, list[Called]]:
        self.history.append({"role": "user", "content": text})
        return await self._send()

    async def answer(self, results: dict[str, str]) -> tuple[str, list[Called]]:
        blocks = [
            {"type": "tool_result", "tool_use_id": one, "content": text} for one, text in results.items()
        ]
        self.history.append({"role": "user", "content": blocks})
        return await self._send()

    async def _send(self) -> tuple[str, list[Called]]:
        async with self._sdk() as sdk:
            if self.stream:
                async with sdk.messages.stream(messages=self.history, **self.fields) as events:
                    whole = await events.get_final_message()
            else:
                whole = await sdk.messages.create(messages=self.history, **self.fields)
        self.usage = whole.usage
        blocks = [block.model_dump(exclude_none=True) for block in whole.content]
        for block in blocks:
            block.pop("parsed_output", None)
        self.history.append({"role": "assistant", "content": blocks})
        calls = [
            Called(block.id, block.name, str(block.input))
            for block in whole.content
            if block.type == "tool_use"
        ]
        assert whole.stop_reason == ("tool_use" if calls else "end_turn")
        texts = [block.text for block in whole.content if block.type == "text"]
        return "\n\n".join(texts), calls


CLIENTS: dict[str, Callable[..., Client]] = {
    "chat": ChatClient,
    "responses": ResponsesClient,
    "anthropic": AnthropicClient,
}
WIRES = [*CLIENTS]

# A model that is asked for code words of earlier turns

_PLANTED = re.compile(r"the code word of harbour (\d+) is (\w+)")
_ASKED = re.compile(r"which code word has harbour (\d+)\?")


def planted(number: int) -> str:
    return f"the code word of harbour {number} is {word_of(number)}"


def word_of(number: int) -> str:
    return f"zander{number * 7919 % 1000:03}q"


def question(number: int) -> str:
    return f"which code word has harbour {number}?"


def since_user(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The messages after the last one that the user typed."""
    typed = [at for at, one in enumerate(messages) if one.role == "user" and not one.results]
    return messages[typed[-1] + 1 :] if typed else messages


def recalled_texts(received: Received) -> list[str]:
    return [
        "".join(getattr(part, "text", "") for part in result.parts)
        for message in since_user(received.messages)
        for result in message.results
    ]


def forgetful(received: Received) -> Say:
    """A model that knows nothing by heart: asked for a code word, it calls the recall tool, and says what it read."""
    asked = _ASKED.search(received.text)
    if asked is None:
        return say(f"Noted, {len(received.text)} characters.")
    found = recalled_texts(received)
    if not found:
        return say("I will look it up.", call("recall", {"what": f"code word harbour {asked[1]}"}))
    known = dict(_PLANTED.findall("\n".join(found)))
    return say(f"It is {known.get(asked[1], 'unknown')}.")
