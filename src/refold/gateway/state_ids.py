"""Ids of what a provider keeps (responses, files, batches, ...), as they stand in JSON: in requests and in answers.

`references_in` finds the ids that a request names, wherever a provider would look them up; text, schemas, metadata and the
arguments of tools are not looked into, since no provider does. `ids_in_answer` finds the ids that an answer hands out, and only
where the provider itself writes them: an id that a model or a client wrote into an answer is not handed out by it.

Pure: bytes in, ids out. Who owns an id is the business of `provider_state`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, TypeAlias

from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder

from refold.model.errors import BodyTooLarge, WireError
from refold.wire.json_codec import NULL
from refold.wire.sse import SseParser

Kind: TypeAlias = Literal[
    "response", "item", "conversation", "completion", "audio", "file", "batch_input", "batch", "message_batch",
    "vector_store", "container", "prompt", "voice", "skill", "cache",
]  # fmt: skip
"""What an id stands for. A `batch_input` is a file that is to be run as a batch; the last four are never made through the gateway."""
Collected: TypeAlias = Literal[
    "response", "completion", "conversation", "file", "batch", "message_batch", "vector_store", "container"
]  # fmt: skip
"""Kinds that have a path of their own."""
Source: TypeAlias = Collected | Literal["message"]
"""What an answer is: a reply in one of the three formats, or the description of something that was made."""

MAX_REFERENCES = 10_000
"""Of one request: each is looked up in the store. A long session that names its items by reference has some thousand."""


class StateId(NamedTuple):
    kind: Kind
    id: str


_NAMES: dict[str, Kind] = {
    "previous_response_id": "response",
    "conversation": "conversation",
    "file_id": "file",
    "file_ids": "file",
    "input_file_id": "batch_input",
    "vector_store_id": "vector_store",
    "vector_store_ids": "vector_store",
    "container": "container",
    "container_id": "container",
    "prompt": "prompt",
    "audio": "audio",
    "voice": "voice",
    "skill_id": "skill",
    "cached_content": "cache",
    "cachedcontent": "cache",
}
"""Fields of requests that hold an id, a list of ids, or an object with one. Some servers do not tell capitals apart in names."""
_OBJECTS_ONLY = frozenset(("prompt", "audio", "voice"))
"""Among them those whose text is no id."""
_LISTS_OF_ITEMS = frozenset(("input", "items"))
"""Fields that hold the items of a Responses conversation."""
_LOOKED_UP = ("reasoning", "image_generation_call", "web_search_call", "file_search_call")
"""Types of items that a provider completes from what it keeps, where the request has no more of them than the id."""
_OWN_CONTENT = ("encrypted_content", "content", "result", "results")
"""Fields of such an item that say it all: nothing has to be looked up then."""
_FREE = frozenset(("metadata", "parameters", "input_schema", "schema", "annotations", "citations", "results"))
"""Fields whose content is the client's own, or was said before: nothing in them is looked up."""
_TOOL_USES = frozenset(("tool_use", "server_tool_use", "mcp_tool_use"))

_MARKS = tuple(f'"{name}"'.encode() for name in _NAMES)
_ITEM_MARKS = tuple(f'"{name}"'.encode() for name in _LISTS_OF_ITEMS)
_ODD_LETTERS = re.compile(rb"\\u00[2-7]|\\u017f|\\u212a|\xc5\xbf|\xe2\x84\xaa", re.IGNORECASE)
"""A letter of ASCII that is written as an escape, and the two others that count as `s` and `k` where capitals do not count: a name
may be spelt with them."""
_TOLD_ONCE = frozenset(("id", "type", "role"))
"""Fields of an item that may not come in two spellings."""
_IS_ID = re.compile(r"[!-~]{1,200}").fullmatch


def is_id(text: object) -> bool:
    """Can it be the id of something? What no provider gives out is not looked for either."""
    return isinstance(text, str) and _IS_ID(text) is not None


def _may_refer(body: bytes, *, is_anthropic: bool) -> bool:
    """Could the JSON name an id at all? Quick, and never a false no for UTF-8."""
    lower, marks = body.lower(), _MARKS if is_anthropic else (*_MARKS, *_ITEM_MARKS)
    return any(mark in lower for mark in marks) or _ODD_LETTERS.search(body) is not None


def references_in(body: bytes, *, is_anthropic: bool = False) -> set[StateId]:
    """The ids that the JSON of a request names. In `is_anthropic` ones `input` is what a tool is called with, and no list of items.

    Raises:
        WireError: it may name some and cannot be read, or two programs could read it in two ways.
    """
    if not _may_refer(body, is_anthropic=is_anthropic):
        return set()
    found: set[StateId] = set()
    for one in _walk(_loads(body), is_anthropic=is_anthropic):
        found.add(one)
        if len(found) > MAX_REFERENCES:
            raise WireError(
                f"the body refers to more than {MAX_REFERENCES:,} things that the provider keeps",
                hint="send them in several requests",
            )
    return found


def is_json(body: bytes) -> bool:
    """Is it JSON at all? Some servers take forms and other notations, in which names stand without quotes."""
    try:
        _ANY.decode(body)
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def references_in_lines(body: bytes) -> set[StateId] | None:
    """The ids that the requests in a file for a batch name, one request to a line; None where that cannot be said.

    Takes the whole form that carries the file: lines around the file that could name nothing are passed over.
    """
    if b"\0" in body or b"content-transfer-encoding" in body.lower():
        return None
    found: set[StateId] = set()
    try:
        for line in body.split(b"\n"):
            found |= references_in(line.strip())
    except WireError:
        return None
    return found if len(found) <= MAX_REFERENCES else None


def _loads(body: bytes) -> Any:
    """
    Raises:
        WireError: it is no JSON, or has a field twice: readers differ in which one counts.
    """
    try:
        return json.loads(body.decode(), object_pairs_hook=_fields)
    except (ValueError, RecursionError):
        raise _ambiguous() from None


def _ambiguous() -> WireError:
    return WireError(
        "the body may name something that the provider keeps, and cannot be read as JSON in one way only",
        hint="send it as plain JSON in UTF-8, with every field once",
    )


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError
    return found


def _walk(root: Any, *, is_anthropic: bool) -> Iterator[StateId]:
    waiting: list[tuple[str, Any]] = [("", root)]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, list):
            waiting += [(name, one) for one in value if isinstance(one, dict | list)]
            continue
        if not isinstance(value, dict):
            continue
        told = _folded(value)
        kind = told.get("type")
        if name in _LISTS_OF_ITEMS and not is_anthropic:
            yield from _item(told)
        is_tool_use = is_anthropic and bool(name) and kind in _TOOL_USES
        for spelling, inner in value.items():
            field = spelling.casefold()
            if field in _FREE or (is_tool_use and field == "input"):
                continue
            if field in _NAMES and not (field == "skill_id" and kind == "anthropic"):
                yield from _named(field, inner)
            waiting.append((field, inner))


def _folded(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields by their names in small letters."""
    found: dict[str, Any] = {}
    for spelling, value in fields.items():
        name = spelling.casefold()
        if name in found and name in _TOLD_ONCE:
            raise _ambiguous()
        found[name] = value
    return found


def _named(field: str, value: Any) -> Iterator[StateId]:
    kind = _NAMES[field]
    if isinstance(value, dict):
        value = _folded(value).get("id")
    elif field in _OBJECTS_ONLY:
        return
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, str) and one:
            yield StateId(kind, one)


def _item(item: dict[str, Any]) -> Iterator[StateId]:
    """An item that is only named, or that a provider completes. Without a type it is a reference, unless somebody says it."""
    kind, name = item.get("type"), item.get("id")
    is_reference = kind == "item_reference" or (kind is None and item.get("role") is None)
    is_looked_up = kind in _LOOKED_UP and not any(item.get(field) for field in _OWN_CONTENT)
    if isinstance(name, str) and name and (is_reference or is_looked_up):
        yield StateId("item", name)


class _Id(Struct, gc=False):
    id: str | None = None


class _Item(Struct, gc=False):
    id: str | None = None
    type: str | None = None
    container_id: str | None = None


class _Response(Struct, gc=False):
    id: str | None = None
    output: list[_Item] | None = None


class _ResponsesAnswer(_Response, gc=False):
    """A response, or an event of its stream."""

    response: _Response | None = None
    item: _Item | None = None


class _Said(Struct, gc=False):
    audio: _Id | None = None


class _Choice(Struct, gc=False):
    message: _Said | None = None
    delta: _Said | None = None


class _ChatAnswer(Struct, gc=False):
    """A completion, or a chunk of its stream."""

    id: str | None = None
    choices: list[_Choice] | None = None


class _Block(Struct, gc=False):
    type: str | None = None
    content: Raw = NULL


class _Delta(Struct, gc=False):
    container: _Id | None = None


class _Message(Struct, gc=False):
    container: _Id | None = None
    content: list[_Block] | None = None


class _MessagesAnswer(_Message, gc=False):
    """A message, or an event of its stream."""

    message: _Message | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None


class _File(Struct, gc=False):
    file_id: str | None = None


class _Executed(Struct, gc=False):
    content: list[_File] | None = None


class _Description(Struct, gc=False):
    id: str | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None


_ANY = Decoder()
_RESPONSES, _CHAT = Decoder(_ResponsesAnswer), Decoder(_ChatAnswer)
_MESSAGES, _EXECUTED, _MADE = Decoder(_MessagesAnswer), Decoder(_Executed), Decoder(_Description)
_EXECUTIONS = frozenset(("code_execution_tool_result", "bash_code_execution_tool_result"))
"""Blocks in which Anthropic names the files that a program left behind. No client and no model writes them."""


def ids_in_answer(source: Source, data: bytes, *, is_stored: bool = True) -> list[StateId]:
    """The ids that an answer hands out; of one that the provider does not store, those that can be used all the same."""
    try:
        match source:
            case "response":
                found = _ids_in_response(_RESPONSES.decode(data), is_stored=is_stored)
            case "completion":
                found = _ids_in_completion(_CHAT.decode(data), is_stored=is_stored)
            case "message":
                found = _ids_in_message(_MESSAGES.decode(data))
            case _:
                made = _MADE.decode(data)
                files = (made.output_file_id, made.error_file_id) if source == "batch" else ()
                found = iter([(source, made.id), *(("file", one) for one in files)])
        return [StateId(kind, name) for kind, name in found if name is not None and is_id(name)]
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return []


def ids_in_events(source: Source, events: bytes, *, is_stored: bool = True) -> list[StateId]:
    """Likewise for whole events of a stream."""
    if b'"id"' not in events and b'"file_id"' not in events:
        return []  # pieces of text
    try:
        told = SseParser().feed(events)
    except BodyTooLarge:
        return []
    return [one for event in told for one in ids_in_answer(source, event.data, is_stored=is_stored)]


_Found: TypeAlias = Iterator[tuple[Kind, str | None]]


def _ids_in_response(answer: _ResponsesAnswer, *, is_stored: bool) -> _Found:
    for response in (answer, answer.response or answer):
        if is_stored:
            yield "response", response.id
        for item in response.output or ():
            yield from _ids_in_item(item, is_stored=is_stored)
    if answer.item is not None:
        yield from _ids_in_item(answer.item, is_stored=is_stored)


def _ids_in_item(item: _Item, *, is_stored: bool) -> _Found:
    if is_stored or item.type in _LOOKED_UP:
        yield "item", item.id
    yield "container", item.container_id


def _ids_in_completion(answer: _ChatAnswer, *, is_stored: bool) -> _Found:
    if is_stored:
        yield "completion", answer.id
    for choice in answer.choices or ():
        for said in (choice.message, choice.delta):
            if said is not None and said.audio is not None:
                yield "audio", said.audio.id


def _ids_in_message(answer: _MessagesAnswer) -> _Found:
    message = answer.message or answer
    for holder in (answer, message, answer.delta):
        if holder is not None and holder.container is not None:
            yield "container", holder.container.id
    blocks = [*(message.content or ()), *([answer.content_block] if answer.content_block else [])]
    for block in blocks:
        if block.type in _EXECUTIONS:
            for file in _EXECUTED.decode(block.content).content or ():
                yield "file", file.file_id
