"""`refold.wrap`: the calls of an OpenAI or Anthropic client, made to fit.

The client stays the same object. Its methods that ask a model (`create`, `parse` and `stream` of Chat Completions, Responses and
Messages) take the same arguments and return the same replies; between the two, the history of the call goes through a conversation of
an engine. No SDK is imported: a client is recognised by its parts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

from refold.integrations.histories import HistoryTable, PreparedCall, split_prompt
from refold.model.errors import ConfigError
from refold.sync import Conversation, Engine

Client = TypeVar("Client")
Arguments = dict[str, Any]

METHODS = ("create", "parse", "stream")
ARGUMENT, HEADER = "refold_conversation", "x-refold-conversation"
"""The name of a call's conversation: an argument of its own, or the header of the gateway in `extra_headers`."""
_PLACES = {
    "chat.completions": "chat",
    "responses": "responses",
    "messages": "anthropic",
    "beta.messages": "anthropic",
}
_OUTPUTS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_STORED = ("previous_response_id", "conversation", "prompt")
"""Arguments of Responses that name a history at the provider: such a call is passed on as it is."""
_is_inside: ContextVar[bool] = ContextVar("refold_is_inside", default=False)
"""Some helpers of the SDKs call other wrapped methods: only the outer call is taken."""


class WrappedCalls:
    """The conversations behind a wrapped client, as its attribute `refold`."""

    def __init__(self, engine: Engine | None, conversation: str) -> None:
        self._tables: dict[str, HistoryTable] = {}
        self._chat = HistoryTable(engine)
        self.engine, self._default = self._chat.engine, conversation

    def table(self, format: str) -> HistoryTable:  # noqa: A002  # the word users know
        """Return the histories in one of the three formats."""
        if format == "chat":
            return self._chat
        return self._tables.setdefault(format, HistoryTable(self.engine, format=format))

    def conversation(
        self,
        messages: Sequence[object] = (),
        *,
        name: str = "",
        format: str = "chat",  # noqa: A002
    ) -> Conversation | None:
        """Return the conversation of a name, or the one that these messages belong to; None if there is none."""
        rest = split_prompt(messages)[1]
        return self.table(format).conversation(rest, name=name or self._default)

    def recall(
        self,
        arguments: str | Mapping[str, object],
        messages: Sequence[object] = (),
        *,
        name: str = "",
        format: str = "chat",  # noqa: A002  # the word users know
    ) -> str:
        """Return the answer to a model's call of `refold.recall_tool`, in the conversation of a name or of these messages."""
        rest = split_prompt(messages)[1]
        return self.table(format).recall(arguments, rest, name=name or self._default)

    def prepare(
        self,
        format: str,  # noqa: A002  # the word users know
        given: Arguments,
        *,
        owner: str = "",
    ) -> tuple[PreparedCall | None, Arguments]:
        """Return the call with the arguments to send; no call where it is to be passed on as it is. `owner` is that of
        `HistoryTable.prepare`.
        """
        name, sent = self._named(given)
        key = "input" if format == "responses" else "messages"
        history = sent.get(key)
        if isinstance(history, str):
            history = [{"role": "user", "content": history}]
        if not isinstance(history, list | tuple) or (
            format == "responses" and any(_is_given(sent.get(field)) for field in _STORED)
        ):
            return None, sent
        prompt: Any
        prompt, rest = ([], [*history]) if format == "anthropic" else split_prompt(history)
        if format == "anthropic" and _is_given(system := sent.get("system")):
            prompt = system
        if format == "responses" and _is_given(instructions := sent.get("instructions")):
            prompt = [instructions, *prompt]
        tools = sent.get("tools")
        call = self.table(format).prepare(
            rest,
            name=name,
            owner=owner,
            system=prompt or None,
            tools=[*tools] if isinstance(tools, list | tuple) else (),
            model=str(sent.get("model") or ""),
            max_output=next((sent[field] for field in _OUTPUTS if isinstance(sent.get(field), int)), None),
        )
        return call, sent

    def _named(self, given: Arguments) -> tuple[str, Arguments]:
        sent = {**given}
        name = sent.pop(ARGUMENT, "") or self._default
        headers = sent.get("extra_headers")
        if isinstance(headers, Mapping):
            lower = {str(key).lower(): value for key, value in headers.items()}
            if HEADER in lower:
                name = str(lower[HEADER])
                sent["extra_headers"] = {
                    key: value for key, value in headers.items() if str(key).lower() != HEADER
                }
        return name, sent

    def close(self) -> None:
        """Close the engine, if it was made by `wrap`."""
        self._chat.close()


def wrap(client: Client, engine: Engine | None = None, *, conversation: str = "") -> Client:
    """Let every call of an OpenAI or Anthropic client go through a conversation, and return the same client.

        client = refold.wrap(openai.OpenAI(), refold.sync.Engine("sqlite:///chats.db"))
        reply = client.chat.completions.create(model="gpt-4o-mini", messages=messages)

    Send the whole history every time, as before: what does not fit is compacted, and the list of the caller is not changed. A call is
    matched with its conversation by its messages, or by a name: `refold_conversation="support-42"`, or the header
    `X-Refold-Conversation` in `extra_headers`. A request that the provider refuses as too long is sent again, smaller. The attribute
    `refold` of the client has the conversations, and answers calls of `refold.recall_tool`.

    Args:
        client: a client, sync or async.
        engine: keeps the conversations, with the window and the other settings; by default in memory.
        conversation: the name of the conversation of all calls that name no other.

    Raises:
        ConfigError: this is no such client, or it is wrapped already.
    """
    found = [(place, part) for place in _PLACES if (part := _part(client, place)) is not None]
    if not found:
        raise ConfigError(
            f"{type(client).__name__} is no client of OpenAI or Anthropic",
            hint="give OpenAI(), AsyncOpenAI(), Anthropic() or AsyncAnthropic()",
        )
    if isinstance(getattr(client, "refold", None), WrappedCalls):
        raise ConfigError("this client is wrapped already", hint="wrap each client once")
    calls = WrappedCalls(engine, conversation)
    is_async = hasattr(type(client), "__aenter__")
    for place, part in found:
        for method in METHODS:
            if callable(original := getattr(part, method, None)):
                setattr(part, method, _wrapped(original, calls, _PLACES[place], method, is_async=is_async))
    client.refold = calls  # type: ignore[attr-defined]
    return client


def _part(client: object, place: str) -> Any:
    found: Any = client
    if place == "beta.messages" and not hasattr(client, "messages"):
        return None  # OpenAI's client has another `beta`, which takes a second to import
    for name in place.split("."):
        found = getattr(found, name, None)
    return found if callable(getattr(found, "create", None)) else None


def _wrapped(
    original: Callable[..., Any],
    calls: WrappedCalls,
    wire: str,
    method: str,
    *,
    is_async: bool,
) -> Callable[..., Any]:
    def create(**given: Any) -> Any:
        if _is_inside.get():
            return original(**given)
        call, sent = calls.prepare(wire, given)
        return observed(send_until_it_fits(lambda: original(**merged_arguments(call, sent)), call), call)

    async def create_async(**given: Any) -> Any:
        if _is_inside.get():
            return await original(**given)
        call, sent = await asyncio.to_thread(calls.prepare, wire, given)
        reply = await _send_async(lambda: original(**merged_arguments(call, sent)), call)
        return await asyncio.to_thread(observed, reply, call)

    def stream(**given: Any) -> Any:
        return _StreamManager(original, calls, wire, given)

    def stream_async(**given: Any) -> Any:
        return _AsyncStreamManager(original, calls, wire, given)

    if method == "stream":
        return stream_async if is_async else stream
    return create_async if is_async else create


def merged_arguments(call: PreparedCall | None, sent: Arguments) -> Arguments:
    """Return the arguments with the request of the call."""
    if call is None:
        return sent
    merged = {**sent, **{key: value for key, value in call.fields.items() if key != "tools"}}
    most = call.max_output
    lowered = {
        field: most
        for field in _OUTPUTS
        if most and isinstance(asked := sent.get(field), int) and asked > most
    }
    return {**merged, **lowered}


def send_until_it_fits(act: Callable[[], Any], call: PreparedCall | None) -> Any:
    """Send a request, and a smaller one as long as the provider refuses it as too long."""
    while True:
        token = _is_inside.set(True)
        try:
            reply = act()
        except Exception as error:
            if call is None or not call.recover(error):
                raise
            continue
        finally:
            _is_inside.reset(token)
        return reply


async def _send_async(act: Callable[[], Any], call: PreparedCall | None) -> Any:
    while True:
        token = _is_inside.set(True)
        try:
            reply = await act()
        except Exception as error:
            if call is None or not await asyncio.to_thread(call.recover, error):
                raise
            continue
        finally:
            _is_inside.reset(token)
        return reply


def observed(reply: Any, call: PreparedCall | None, *, is_async: bool = False) -> Any:
    """Record the usage of a reply, or return a stream that does at its end; `is_async` for one that could be read either way."""
    if call is None or call.conversation is None:
        return reply
    if (usage := reported_usage(reply)) is not None:
        call.record(usage)
    elif hasattr(reply, "__next__") and not is_async:
        return _ObservedStream(reply, call)
    elif hasattr(reply, "__anext__"):
        return _ObservedAsyncStream(reply, call)
    return reply


def reported_usage(value: object) -> Any:
    """Return the usage in a reply or in an event of a stream; None if there is none."""
    if isinstance(value, Mapping):
        return value.get("usage")
    for name in ("", "message", "response"):
        part = getattr(value, name, None) if name else value
        usage = getattr(part, "usage", None)
        if usage is not None and not callable(usage):
            return usage
    return None


class _Bill:
    """The usage of a stream. Anthropic reports the input at the beginning and the output at the end."""

    def __init__(self) -> None:
        self.usage: dict[str, Any] = {}

    def note(self, event: object) -> None:
        usage = reported_usage(event)
        dump = getattr(usage, "model_dump", None)
        fields = dump(mode="json", exclude_none=True) if dump else usage
        if isinstance(fields, Mapping):
            self.usage.update(fields)


class _ObservedStream:
    """A stream of an SDK that records its usage at its end."""

    def __init__(self, stream: Any, call: PreparedCall) -> None:
        self._stream, self._call, self._bill = stream, call, _Bill()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            event = next(self._stream)
        except StopIteration:
            self._call.record(self._bill.usage or None)
            raise
        self._bill.note(event)
        return event

    def __enter__(self) -> Any:
        self._stream.__enter__()
        return self

    def __exit__(self, *error: object) -> Any:
        return self._stream.__exit__(*error)


class _ObservedAsyncStream:
    """The same for an async client."""

    def __init__(self, stream: Any, call: PreparedCall) -> None:
        self._stream, self._call, self._bill = stream, call, _Bill()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        try:
            event = await anext(self._stream)
        except StopAsyncIteration:
            await asyncio.to_thread(self._call.record, self._bill.usage or None)
            raise
        self._bill.note(event)
        return event

    async def __aenter__(self) -> Any:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> Any:
        return await self._stream.__aexit__(*error)


def _snapshot_usage(stream: object) -> Any:
    """Return the usage that a stream helper has put together; None before its end."""
    for name in ("current_message_snapshot", "current_completion_snapshot"):
        try:
            return getattr(getattr(stream, name), "usage", None)
        except (AttributeError, AssertionError):  # another helper, or nothing was received yet
            continue
    # The helper of Responses has no public snapshot, and `get_final_response` would read on. None in another version of the SDK.
    done = getattr(getattr(stream, "_state", None), "_completed_response", None)
    return getattr(done, "usage", None)


class _StreamManager:
    """What `stream(...)` of a client returns: the request is made when it is entered."""

    def __init__(
        self, original: Callable[..., Any], calls: WrappedCalls, wire: str, given: Arguments
    ) -> None:
        self._original, self._calls, self._wire, self._given = original, calls, wire, given
        self._call: PreparedCall | None = None
        self._manager: Any = None
        self._stream: Any = None

    def __enter__(self) -> Any:
        self._call, sent = self._calls.prepare(self._wire, self._given)

        def enter() -> Any:
            self._manager = self._original(**merged_arguments(self._call, sent))
            return self._manager.__enter__()

        self._stream = send_until_it_fits(enter, self._call)
        return self._stream

    def __exit__(self, *error: object) -> Any:
        if self._call is not None:
            self._call.record(_snapshot_usage(self._stream))
        return self._manager.__exit__(*error)


class _AsyncStreamManager(_StreamManager):
    """The same for an async client."""

    async def __aenter__(self) -> Any:
        self._call, sent = await asyncio.to_thread(self._calls.prepare, self._wire, self._given)

        async def enter() -> Any:
            self._manager = self._original(**merged_arguments(self._call, sent))
            return await self._manager.__aenter__()

        self._stream = await _send_async(enter, self._call)
        return self._stream

    async def __aexit__(self, *error: object) -> Any:
        if self._call is not None:
            await asyncio.to_thread(self._call.record, _snapshot_usage(self._stream))
        return await self._manager.__aexit__(*error)


def _is_given(value: object) -> bool:
    """Whether an argument was given: the SDKs have objects of their own for those that were not."""
    return isinstance(value, str | list | tuple | Mapping) and bool(value)
