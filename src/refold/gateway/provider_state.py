"""Who may reach what a provider keeps: responses, conversations, stored completions, files, batches and the like.

A provider tells its customers apart by their keys. Where several owners of this gateway share one key, it cannot: whoever knows an id
reaches what it stands for. So the gateway keeps a row for every id that such a call hands out, under the owner who made the call, and
writes it before the id leaves. A later call that names an id, in its path or in its body, is passed on only for the owner of the row, and
only to the upstream that made it; for anybody else there is no such thing.

The check applies to calls of clients that identify themselves with a key of Refold's, and that leave with another provider key than the
client's own. What it does not know is off: a path that is neither stateless nor below an id of a known kind, and a body that could be
read in two ways. `allow` of an upstream opens more. A row that could not be written locks its id for everybody.
"""

from __future__ import annotations

import json
import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import DecodeError, Raw, Struct, structs
from msgspec.json import Decoder

from refold.gateway.upstreams import Credentials, Target, may_hold_secret
from refold.model.errors import BodyTooLarge, NotFound, WireError
from refold.ports.store import LearntValues
from refold.text_work import run_text_work
from refold.wire.json_codec import NULL
from refold.wire.sse import SseParser

# Ids of what a provider keeps (responses, files, batches, ...), as they stand in JSON: in requests
# and in answers. `references_in` finds the ids that a request names, wherever a provider would look
# them up; text, schemas, metadata and the arguments of tools are not looked into, since no provider
# does. `ids_in_answer` finds the ids that an answer hands out, and only where the provider itself
# writes them: an id that a model or a client wrote into an answer is not handed out by it. Pure:
# bytes in, ids out. Who owns an id is the business of `provider_state`.

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


MOST_ROWS = 16_384
"""Rows that are remembered: of the ids that are named again and again while a session goes on."""
FILES = "/v1/files"

_REPLIES: dict[str, Source] = {
    "/v1/responses": "response",
    "/v1/chat/completions": "completion",
    "/v1/messages": "message",
}
_STATELESS = frozenset(
    f"/v1/{path}"
    for path in (
        "responses/input_tokens", "responses/compact", "messages/count_tokens", "completions", "complete",
        "fim/completions", "embeddings", "moderations", "chat/moderations", "classifications", "chat/classifications",
        "classify", "score", "rerank", "re-rank", "pooling", "ocr", "tokenize", "detokenize", "audio/speech",
        "audio/transcriptions", "audio/translations", "images/generations", "images/edits", "images/variations",
    )
)  # fmt: skip
"""Calls (POST) that leave nothing behind at the provider, besides those above."""
_COLLECTIONS: tuple[tuple[str, Collected], ...] = (
    ("/v1/responses/", "response"),
    ("/v1/chat/completions/", "completion"),
    ("/v1/conversations/", "conversation"),
    ("/v1/files/", "file"),
    ("/v1/batches/", "batch"),
    ("/v1/messages/batches/", "message_batch"),
    ("/v1/vector_stores/", "vector_store"),
    ("/v1/containers/", "container"),
)
"""Where what is made is found again, by its id. A POST to the path before the id makes one; a GET there lists them all."""
_FORMS = re.compile(r"/v1/(?:files|audio/[a-z]++|images/[a-z]++|containers/[^/]++/files)").fullmatch
"""Paths that take forms with files in them."""
_FORM_NAME_CODED = re.compile(rb"name\s{0,8}\*").search
"""The name of a field in a form that is written in another way than plainly."""
_PLAIN_PATH = re.compile(r"/v1(?:/[A-Za-z0-9._~@:+=,-]++)++").fullmatch
"""A path that every server reads in the same way."""
_MODEL_PATH = re.compile(
    r"/v1/models(?:/[A-Za-z0-9._~@:+=,-]++(?:(?:/|%2[Ff]|%3[Aa])[A-Za-z0-9._~@:+=,-]++)*+)?+"
).fullmatch
"""Names of models have slashes and colons in them."""
_CHARSET = re.compile(r"charset\s*+=\s*+[\"']?([\w-]*+)").findall
_ESCAPE = re.compile(rb"\\u00([2-7][0-9A-Fa-f])")
_KNOWN_CHARSETS = frozenset(("utf-8", "utf8", "us-ascii", "ascii"))

_log = logging.getLogger("refold.gateway")


class StateRow(Struct, frozen=True, omit_defaults=True):
    """What is known about an id that was handed out to an owner."""

    upstream: str = ""
    """Who made it with a key that is not the client's own; empty where it was the client's own, and the provider's to guard."""
    conversation: str = ""
    """Of a response: the conversation and the branch that it continues, the call that it answers, and how many messages the branch
    had then. Empty where it was only passed on."""
    branch: str = ""
    call: str = ""
    size: int = 0
    root: str = ""
    """Likewise: the response after which the branch begins, where what came before never went through here or is not stored."""
    held: int = 0
    """What that takes, in tokens."""
    is_checked: bool = False
    """Of a file: do the requests in it name only what is the owner's? Then it may be run as a batch."""


class StateCall(Struct, frozen=True):
    """What a call does with state: which id its path names, and what its answer describes."""

    opens: StateId | None = None
    makes: Source | None = None


def read_call(method: str, path: str) -> StateCall | None:
    """What a call is, by its path as it is forwarded; None where it lists what there is, or reaches what nobody keeps track of."""
    if method in ("GET", "HEAD") and _MODEL_PATH(path):
        return StateCall()
    if not _PLAIN_PATH(path) or not {".", ".."}.isdisjoint(path.split("/")):
        return None
    if method == "POST" and path in _REPLIES:
        return StateCall(makes=_REPLIES[path])
    if method == "POST" and path in _STATELESS:
        return StateCall()
    for prefix, kind in _COLLECTIONS:
        if path == prefix[:-1] and method == "POST":
            return StateCall(makes=kind)
        if path.startswith(prefix) and method in ("GET", "HEAD", "POST", "DELETE", "PATCH", "PUT"):
            name = path.removeprefix(prefix).partition("/")[0]
            return StateCall(StateId(kind, name), kind if kind in ("response", "batch") else None)
    return None


class StateRequest(Struct, frozen=True):
    """A call, as far as it has to do with state."""

    owner: str
    has_key: bool
    """Did the client identify itself with a key of Refold's? Then there may be other owners."""
    method: str
    path: str
    """As it is forwarded, without the query."""
    body: bytes
    content_types: tuple[str, ...] = ()


class ProviderState:
    """The rows of all owners, and what follows from them for a call."""

    def __init__(self, store: LearntValues, clock: Callable[[], float]) -> None:
        self._store, self._clock = store, clock
        self._rows: OrderedDict[tuple[str, StateId], StateRow] = OrderedDict()

    async def find(self, owner: str, which: StateId) -> StateRow | None:
        """What is known about an id of the owner's; None where it was never handed out to the owner.

        Raises:
            StoreError: that cannot be said now.
        """
        if not is_id(which.id):
            return None
        if (owner, which) not in self._rows:
            found = await self._store.learnt(owner, _topic(which.kind), which.id)
            if found is None:
                return None
            self._remember(owner, which, msgspec.msgpack.decode(found, type=StateRow))
        self._rows.move_to_end((owner, which))
        return self._rows[owner, which]

    async def keep(self, owner: str, which: StateId, kept: StateRow) -> None:
        """Note that an id was handed out to an owner.

        Raises:
            StoreError: it was not noted, or nobody knows.
        """
        row = msgspec.msgpack.encode(kept)
        await self._store.learn(owner, _topic(which.kind), which.id, row, self._clock())
        self._remember(owner, which, kept)

    def _remember(self, owner: str, which: StateId, kept: StateRow) -> None:
        self._rows[owner, which] = kept
        if len(self._rows) > MOST_ROWS:
            self._rows.popitem(last=False)

    async def admit(
        self, asked: StateRequest, targets: Sequence[Target], credentials: Credentials
    ) -> Sequence[Target]:
        """The upstreams, of those that were chosen, to which a call may go.

        Raises:
            NotFound: what it names is not the owner's, or it leads to what nobody keeps track of.
            WireError: its body could be read in two ways.
            StoreError: whose it is cannot be said now.
        """
        if not asked.has_key:
            return targets
        shared = [one for one in targets if not (_is_clients(one, credentials) or _is_allowed(one, asked))]
        if not shared:
            return targets
        others = [one for one in targets if one not in shared]
        try:
            places = await self._places(asked, shared[0])
        except (NotFound, WireError):
            if targets[0] not in others:
                raise
            return others  # the client's own key goes first: only the fallbacks are out of question
        left = [one for one in targets if one in others or not places or places == {one.name}]
        if not left:
            raise _not_yours()
        return left

    async def _places(self, asked: StateRequest, target: Target) -> set[str]:
        """The upstreams that made what a call names; none where it names nothing."""
        call = read_call(asked.method, asked.path)
        if call is None:
            raise _is_off(target)
        named = await _references(asked)
        if call.opens is not None:
            named.add(call.opens)
        places: set[str] = set()
        for which in named:
            kept = await self.find(asked.owner, _row_of(which))
            if kept is None or not kept.upstream:
                raise _not_yours(which.kind)
            if which.kind == "batch_input" and not kept.is_checked:
                raise NotFound(
                    "This file cannot be run as a batch here.",
                    hint="its requests name what the provider keeps and is not yours, or could not be read: upload it again",
                )
            places.add(kept.upstream)
        return places

    async def is_checked_file(self, asked: StateRequest, upstream: str) -> bool:
        """Of a file that is being uploaded: could it be run as a batch, without reaching what is another owner's?"""
        body = asked.body
        named = await run_text_work(len(body), references_in_lines, body)
        if named is None:
            return False
        rows = [await self.find(asked.owner, _row_of(one)) for one in named]
        return all(row is not None and row.upstream == upstream for row in rows)


class StateHandout:
    """The ids that the answer to one call hands out, each noted once, before it leaves."""

    def __init__(
        self,
        state: ProviderState,
        asked: StateRequest,
        call: StateCall | None,
        credentials: Credentials,
        fields: Mapping[str, Raw] | None,
    ) -> None:
        self._state, self._asked, self._call, self._credentials = state, asked, call, credentials
        self._noted = {call.opens} if call and call.opens else set[StateId]()
        store = bytes((fields or {}).get("store", NULL))
        self.is_stored = store == b"true" if call and call.makes == "completion" else store != b"false"
        """Does the provider store the reply? Completions by request only, responses unless it is told not to."""
        self.answers: StateRow | None = None
        """What a response answers, where its conversation is kept here."""

    def source_at(self, target: Target) -> Source | None:
        """How the answer of an upstream reads; None where no id in it has to be noted."""
        makes = self._call.makes if self._call else None
        if self._credentials.go_to(target):
            return "response" if makes == "response" and self.answers and self.is_stored else None
        body = self._asked.body
        if makes == "completion" and not (self.is_stored or b'"audio"' in body):
            return None
        if makes == "message" and b"code_execution" not in body and b'"container"' not in body:
            return None
        return makes

    async def note(self, found: Iterable[StateId], target: Target) -> None:
        """Note whose the ids are. Where that fails the answer goes on all the same, and nobody reaches what they stand for."""
        is_clients = self._credentials.go_to(target)
        for which in found:
            if which in self._noted or (is_clients and which.kind != "response"):
                continue
            self._noted.add(which)
            try:
                await self._note(which, "" if is_clients else target.name)
            except Exception as error:  # noqa: BLE001  # the answer is the client's, whatever failed here
                _log.warning("the owner of an id could not be kept: %s", type(error).__name__)

    def has_noted(self, which: StateId) -> bool:
        """Did the answer hand this id out? Also where the store did not take it."""
        return which in self._noted

    async def answered_late(self, answers: StateRow) -> None:
        """Note what the responses that left answer, where their conversation was stored only now.

        Raises:
            StoreError: it was not noted, or nobody knows.
        """
        for which in [one for one in self._noted if one.kind == "response"]:
            known = await self._state.find(self._asked.owner, which)
            row = structs.replace(answers, upstream=known.upstream if known else "")
            if known != row:
                await self._state.keep(self._asked.owner, which, row)

    async def _note(self, which: StateId, upstream: str) -> None:
        state, asked = self._state, self._asked
        if upstream and _is_named_by_client(which, asked, self._credentials.request_id):
            return
        if self._call and self._call.opens and await state.find(asked.owner, which):
            return  # it was described before
        kept = self.answers if which.kind == "response" and self.answers else StateRow()
        is_upload = which.kind == "file" and asked.path == FILES
        is_checked = is_upload and await state.is_checked_file(asked, upstream)
        await state.keep(asked.owner, which, structs.replace(kept, upstream=upstream, is_checked=is_checked))


def _is_named_by_client(which: StateId, asked: StateRequest, request_id: str) -> bool:
    """Did the request itself say the id? Some servers let clients choose; what a client chose may be another's already."""
    if request_id and which.id.endswith(request_id):
        return True
    body, name = asked.body, which.id.encode()
    return name in body or (b"\\u00" in body and name in _ESCAPE.sub(_letter, body))


def _letter(found: re.Match[bytes]) -> bytes:
    return bytes([int(found[1], 16)])


def _topic(kind: Kind) -> str:
    return f"provider_{kind}"


def _row_of(which: StateId) -> StateId:
    return StateId("file", which.id) if which.kind == "batch_input" else which


def _is_clients(target: Target, credentials: Credentials) -> bool:
    """Does a call go out with the client's own key, and with no other credential? One may stand in the headers of the settings."""
    return credentials.go_to(target) and not any(map(may_hold_secret, target.headers))


def _is_allowed(target: Target, asked: StateRequest) -> bool:
    return target.allows(asked.method, asked.path if _PLAIN_PATH(asked.path) else "")


async def _references(asked: StateRequest) -> set[StateId]:
    """
    Raises:
        WireError: the body cannot be looked through.
    """
    body, kinds = asked.body, [one.lower() for one in asked.content_types]
    if not body:
        return set()
    is_form = bool(kinds) and all(one.startswith("multipart/form-data") for one in kinds)
    if is_form and body.startswith(b"--") and _FORMS(asked.path):
        if asked.path != FILES and _names_file(body):
            raise _unreadable("a form")
        return set()
    if b"\0" in body or any(one not in _KNOWN_CHARSETS for kind in kinds for one in _CHARSET(kind)):
        raise _unreadable("a body that is not in UTF-8")
    return await run_text_work(len(body), _references_in_json, body, asked.path)


def _references_in_json(body: bytes, path: str) -> set[StateId]:
    if not is_json(body):
        raise _unreadable("a body that is no JSON")
    return references_in(body, is_anthropic=path.startswith("/v1/messages"))


def _names_file(form: bytes) -> bool:
    """Does a form name a file that the provider keeps, instead of bringing it?"""
    lower = form.lower()
    return b"file_id" in lower or _FORM_NAME_CODED(lower) is not None


def _unreadable(what: str) -> WireError:
    return WireError(
        f"{what} cannot be looked through for what the provider keeps",
        hint="behind the operator's key, send JSON in UTF-8 or bring the file itself",
    )


def _not_yours(kind: Kind | None = None) -> NotFound:
    what = _WORDS.get(kind, kind) if kind else "thing"
    return NotFound(
        f"There is no such {what} of yours at this upstream.",
        hint="behind the operator's key you reach what you made through this gateway, and nothing else; "
        "with a provider key of your own, whatever is yours there",
    )


_WORDS: dict[Kind, str] = {
    "batch_input": "file",
    "message_batch": "batch",
    "vector_store": "vector store",
    "completion": "stored completion",
    "cache": "cached content",
}


def _is_off(target: Target) -> NotFound:
    return NotFound(
        "This path is off behind the operator's key, which several clients share.",
        hint=f"the operator can open it with `allow` of the upstream {target.name}; or bring a provider key of your own",
    )
