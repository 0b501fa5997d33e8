"""The filters of plugins: request filters in their order over a request that is ready to be sent, response filters over an answer.

The gateway and the extension of llms.py run the same chain after their compaction. What a filter returns is checked like a window of our own:
as many messages in the same order, each with its role, its calls and its results, no content in the place of another, no broken rule that
was not broken before, hardly more bytes, and no more output than there is room for. Every change is an `Edit`. A request that no filter changes keeps its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, cast

import msgspec
from msgspec import Raw, Struct, structs

from refold.core.budget import NO_SEQ
from refold.core.plugin_points import (
    UnusableAnswer,
    check_places,
    checked_message,
    map_texts,
    one_line,
    stage_name,
)
from refold.core.stage import Edit
from refold.core.verify import is_refused, verify
from refold.model.dialect import DIALECTS, Dialect
from refold.model.errors import PluginError, PluginRefused, WireError
from refold.model.message import Message, Part, Text, ToolCall, system
from refold.plugins.plugin import FilterRequest, FilterResponse, RequestChange
from refold.plugins.registry import Plugins
from refold.ports.models import Ask, Upstream
from refold.text_work import run_text_work
from refold.wire.json_codec import FIELDS, read_list
from refold.wire.reply import Reply
from refold.wire.request import OUTPUT_FIELDS, decode_messages, request_of

MAX_MORE_BYTES = 4_096
"""Bytes by which one filter may make a request longer: room for a sentence in a system prompt, and not for a flood."""
MAX_DEPTH = 100
MAX_TEXT = 300
FIXED_FIELDS = frozenset(("model", "stream", "stream_options", "previous_response_id", "conversation"))
"""Fields that decide where a request goes and how its answer is read. No filter changes them."""


class ChangedMessage(Struct, frozen=True):
    """A message that a filter changed: its index in the list of the request, before and after."""

    plugin: str
    index: int
    before: Message
    after: Message
    reason: str


class FilteredRequest(Struct, frozen=True):
    """A request after the filters."""

    body: bytes
    changed: tuple[ChangedMessage, ...] = ()
    fields: tuple[tuple[str, str], ...] = ()
    """Changed fields, each with the plugin that changed it."""
    notes: tuple[str, ...] = ()
    """What the filters did, for a header: `name: 2 messages`."""

    def edits(self, numbers: Mapping[int, int], count: Any) -> tuple[Edit, ...]:
        """The changes as edits. `numbers` has the numbers of the messages in the branch, by index; `count` counts tokens."""
        found = [
            Edit(
                stage_name(one.plugin),
                numbers.get(one.index, NO_SEQ),
                count(one.before),
                count(one.after),
                one.reason or "changed by a plugin",
                f"#m{numbers[one.index]}" if one.index in numbers else "",
            )
            for one in self.changed
        ]
        return (
            *found,
            *(Edit(stage_name(name), NO_SEQ, 0, 0, f"field {field}") for field, name in self.fields),
        )


class _Prepared(Struct, frozen=True):
    fields: dict[str, Any]
    messages: list[dict[str, Any]]


async def filter_request(
    plugins: Plugins,
    body: bytes,
    dialect: Dialect,
    *,
    model: str = "",
    conversation: str = "",
    owner: str = "",
    is_summary: bool = False,
    max_output: int | None = None,
) -> FilteredRequest:
    """Run the request filters over a body, one after the other. `max_output` is the most output that the window has room for
    beside the request; None if that is not known.

    Raises:
        PluginRefused: a filter refuses the request.
        PluginError: a filter that fails closed has failed.
    """
    done = FilteredRequest(body)
    for one in plugins:
        function = one.plugin.on_request
        if function is None:
            continue
        size = len(done.body)
        try:
            read = await run_text_work(size, _read, done.body, dialect)
        except (WireError, msgspec.DecodeError, UnusableAnswer):
            one.guard.fault("request", "unusable", "the request has no list of messages that could be read")
            continue
        request = FilterRequest(
            dialect.name, model, read.messages, read.fields, conversation, owner, is_summary
        )
        answer = await one.guard.call("request", partial(function, request), _checked_answer)
        if answer is None:
            continue
        if answer.refusal:
            one.guard.take_back("request")
            one.guard.note("request", "refused")
            raise _refusal(one.plugin.name, answer.refusal)
        try:
            done = await run_text_work(size, _applied, done, answer, dialect, one.plugin.name, max_output)
        except UnusableAnswer as error:
            one.guard.take_back("request")
            one.guard.fault("request", "unusable", str(error))
        except Exception as error:  # noqa: BLE001  # values of others may break any reading of them
            one.guard.take_back("request")
            one.guard.fault("request", "unusable", f"its answer cannot be read ({type(error).__name__})")
    return done


async def filter_response(plugins: Plugins, response: FilterResponse) -> None:
    """Run the response filters over an answer.

    Raises:
        PluginRefused: a filter refuses the answer.
        PluginError: a filter that fails closed has failed.
    """
    for one in plugins:
        function = one.plugin.on_response
        if function is None:
            continue
        copy = structs.replace(response, messages=msgspec.json.decode(msgspec.json.encode(response.messages)))
        refusal = await one.guard.call("response", partial(function, copy), _checked_refusal)
        if refusal:
            one.guard.take_back("response")
            one.guard.note("response", "refused")
            raise _refusal(one.plugin.name, refusal)


def _refusal(plugin: str, text: str) -> PluginRefused:
    return PluginRefused(f"refused by the plugin {plugin}: {one_line(text, MAX_TEXT)}")


def _checked_answer(answer: object) -> RequestChange | None:
    """The changes, of the types that they declare; None if there are none."""
    if answer is None:
        return None
    if not isinstance(answer, RequestChange):
        raise UnusableAnswer("a request filter returns None or a RequestChange")
    texts: tuple[object, ...] = answer.refusal, answer.reason
    if not all(isinstance(one, str) for one in texts):
        raise UnusableAnswer("a refusal and a reason are texts")
    tables: tuple[object, ...] = answer.messages, answer.fields
    if not all(isinstance(one, Mapping) for one in tables):
        raise UnusableAnswer("the changes map indices to messages, and names to values")
    return answer if answer.refusal or len(answer.messages) or len(answer.fields) else None


def _checked_refusal(answer: object) -> str:
    if answer is None or isinstance(answer, str):
        return answer or ""
    raise UnusableAnswer("a response filter returns None or a text")


def _read(body: bytes, dialect: Dialect) -> _Prepared:
    """The request as JSON values of its own."""
    fields = msgspec.json.decode(body)
    if not isinstance(fields, dict):
        raise UnusableAnswer("the request is no object")
    messages = fields.pop(dialect.messages_key, None)
    if isinstance(messages, str):  # the format `responses` takes a text for one message of the user
        messages = [{"role": "user", "content": messages}]
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        raise UnusableAnswer("the request has no list of messages")
    return _Prepared(fields, messages)


def _applied(
    done: FilteredRequest, answer: RequestChange, dialect: Dialect, plugin: str, max_output: int | None
) -> FilteredRequest:
    """The request with the changes of a filter.

    Raises:
        UnusableAnswer: one of them cannot be used; then none is.
    """
    _size([*answer.messages.values(), *answer.fields.values()], len(done.body) + MAX_MORE_BYTES)
    fields = cast("dict[str, Any]", FIELDS.decode(done.body))
    items, changed = _changed_items(_items(fields[dialect.messages_key]), answer, dialect, plugin)
    names = _set_fields(fields, answer.fields, dialect)
    if not changed and not names:
        return done
    if names:
        _check_fields(done.body, fields, names, dialect, max_output)
    if changed:
        fields[dialect.messages_key] = items
    body = msgspec.json.encode(fields)
    if len(body) > len(done.body) + MAX_MORE_BYTES:
        raise UnusableAnswer("the request is much longer than before")
    parts = [f"{len(changed)} messages" if len(changed) != 1 else "1 message"] if changed else []
    parts += [", ".join(names)] if names else []
    return FilteredRequest(
        body,
        (*done.changed, *changed),
        (*done.fields, *((name, plugin) for name in names)),
        (*done.notes, f"{plugin}: {' and '.join(parts)}"),
    )


def _changed_items(
    before: list[Raw], answer: RequestChange, dialect: Dialect, plugin: str
) -> tuple[list[Raw], list[ChangedMessage]]:
    """The list of messages with those of a filter, checked, and what has changed."""
    after, changed = list(before), list[ChangedMessage]()
    for index, value in answer.messages.items():
        if type(index) is not int or not 0 <= index < len(before):
            raise UnusableAnswer("it names a message that the request does not have")
        after[index] = Raw(msgspec.json.encode(value))
    old, new = _messages(before, dialect), _messages(after, dialect)
    if len(old) != len(new):
        raise UnusableAnswer("a message has become several, or none")
    reason = one_line(answer.reason, MAX_TEXT)
    for index in sorted(answer.messages):
        if old[index].bare() == new[index].bare():
            after[index] = before[index]
            continue
        checked_message(old[index], new[index], growth=MAX_MORE_BYTES)
        changed.append(ChangedMessage(plugin, index, old[index], new[index], reason))
    check_places([(one.index, one.before, one.after) for one in changed])
    if {*_broken(new, dialect)} - {*_broken(old, dialect)}:
        raise UnusableAnswer("its messages break a rule of the format")
    return after, changed


def _set_fields(fields: dict[str, Any], wanted: Mapping[str, Any], dialect: Dialect) -> list[str]:
    """Set fields, and return the names of those that differ now."""
    names = list[str]()
    for name, value in wanted.items():
        if type(name) is not str or name == dialect.messages_key or name in FIXED_FIELDS:
            raise UnusableAnswer("it sets a field that no filter may set")
        if value is None:
            known = fields.pop(name, None) is not None
        else:
            raw = Raw(msgspec.json.encode(value))
            known = name not in fields or msgspec.json.decode(fields[name]) != value
            fields[name] = raw
        names += [name] if known else []
    return names


def _check_fields(
    before: bytes, fields: dict[str, Any], names: list[str], dialect: Dialect, max_output: int | None
) -> None:
    """
    Raises:
        UnusableAnswer: the fields are none of a request of this format, or ask for more output than there is room for.
    """
    was_readable = _is_request(FIELDS.decode(before), dialect, before)
    if was_readable and not _is_request(fields, dialect, b""):
        raise UnusableAnswer("a field has a value that its format does not allow")
    for name in names:
        if name not in OUTPUT_FIELDS:
            continue
        if name not in fields:
            if dialect.name == "anthropic":
                raise UnusableAnswer(f"every request of this format states {name}")
            continue
        output = msgspec.json.decode(fields[name])
        if type(output) is not int or output < 1:
            raise UnusableAnswer(f"{name} is no number of tokens")
        if max_output is not None and output > max_output:
            raise UnusableAnswer(f"{name} is more output than the window has room for")


def _is_request(fields: dict[str, Any], dialect: Dialect, body: bytes) -> bool:
    try:
        request_of(fields, dialect, body)
    except WireError:
        return False
    return True


def _items(array: Raw) -> list[Raw]:
    if bytes(memoryview(array)[:1]) == b'"':
        return [Raw(msgspec.json.encode({"role": "user", "content": msgspec.json.decode(array)}))]
    return read_list(array)


def _messages(items: list[Raw], dialect: Dialect) -> tuple[Message, ...]:
    return decode_messages(msgspec.json.encode(items), dialect)


def _broken(messages: tuple[Message, ...], dialect: Dialect) -> Iterator[tuple[str, int | None]]:
    for found in verify(messages, dialect, continues=True):
        if is_refused(found, dialect):
            yield found.rule, found.index


def _size(value: object, limit: int, depth: int = 0) -> int:
    """Characters of a value, counted before anything is made of it: it may be of any size.

    Raises:
        UnusableAnswer: it is larger than the limit, too deep, or no JSON.
    """
    if depth > MAX_DEPTH:
        raise UnusableAnswer("a value is nested too deeply")
    size = 2
    for inner in _inner(value):
        size += _size(inner, limit - size, depth + 1)
    if isinstance(value, str):
        size = len(value)
    if size > limit:
        raise UnusableAnswer("the request is much longer than before")
    return size


def _inner(value: object) -> Iterator[object]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise UnusableAnswer("a value is no JSON")
            yield from (key, inner)
    elif isinstance(value, list | tuple):
        yield from value
    elif (isinstance(value, int) and value.bit_length() > 64) or (
        value is not None and not isinstance(value, str | bool | int | float)
    ):
        raise UnusableAnswer("a value is no JSON")


# Requests for summaries, which have no wire format here


class FilteredUpstream:
    """A model that writes summaries, behind the request filters: what they keep from a provider is not sent for a summary either."""

    def __init__(self, upstream: Upstream, plugins: Plugins, owner: str = "") -> None:
        self._upstream, self._plugins, self._owner = upstream, plugins, owner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._upstream, name)

    @property
    def model(self) -> str:
        return self._upstream.model

    async def ask(self, ask: Ask) -> Reply:
        """Return the model's reply.

        Raises:
            UpstreamError: there is none.
            PluginError: a filter ends the request.
        """
        return await self._upstream.ask(await filter_ask(self._plugins, ask, self.model, self._owner))


async def filter_ask(plugins: Plugins, ask: Ask, model: str, owner: str = "") -> Ask:
    """The question after the request filters. It names no conversation: those of an owner share a summariser.

    Raises:
        PluginError: a filter ends the request.
    """
    prompt = (system(ask.system),) if isinstance(ask.system, str) else ask.system
    messages = (*prompt, *ask.messages)
    body = msgspec.json.encode({"model": model, "messages": [_spelled(one) for one in messages]})
    done = await filter_request(plugins, body, DIALECTS["chat"], model=model, owner=owner, is_summary=True)
    if not done.changed:
        return ask
    changed = list(messages)
    for one in done.changed:
        texts = [part.text for part in one.after.parts if isinstance(part, Text)]
        if len(texts) != len(one.before.parts):
            raise PluginError(
                f"the plugin {one.plugin} changed more than the texts of a request for a summary"
            )
        changed[one.index] = _with_texts(changed[one.index], texts)
    first, rest = tuple(changed[: len(prompt)]), tuple(changed[len(prompt) :])
    return structs.replace(ask, messages=rest, system=first[0].text if isinstance(ask.system, str) else first)


def _spelled(message: Message) -> dict[str, Any]:
    role = message.role if message.role in ("system", "assistant") else "user"
    return {"role": role, "content": [{"type": "text", "text": text or " "} for text in _texts_of(message)]}


def _texts_of(message: Message) -> list[str]:
    found = list[str]()

    def note(text: str) -> str:
        found.append(text)
        return text

    _mapped(message, note)
    return found


def _with_texts(message: Message, texts: list[str]) -> Message:
    following = iter(texts)
    return _mapped(message, lambda _: next(following))


def _mapped(message: Message, change: Callable[[str], str]) -> Message:
    """The message with its texts changed, in their order: what was said, results and arguments."""
    parts = list[Part]()
    for part in message.parts:
        if isinstance(part, ToolCall):
            parts.append(structs.replace(part, arguments=change(part.arguments)))
        else:
            parts += map_texts(Message(message.role, (part,)), change).parts
    return message.with_parts(tuple(parts))
