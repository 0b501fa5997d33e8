"""Access control for objects that a provider stores: responses, conversations, completions, files, batches
and so on.

A provider separates its customers by their keys. If several owners of this gateway share one key, a client
that knows an id would reach the object of another owner. The gateway therefore stores a row for every id that
such a call hands out, under the owner of the call, before the id leaves. A later call that names an id, in
its path or in its body, is passed on only for the owner of the row and only to the upstream that made the
object; for other owners the object does not exist.

The check applies to clients that identify themselves with a Refold key and whose call leaves with another
provider key than the client's own. Unknown calls are refused: a path that is neither stateless nor below an
id of a known kind, and a body that can be read in two ways. The setting `allow` of an upstream opens more. If
a row cannot be written, its id stays locked for every owner.
"""

from __future__ import annotations

import json
import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import msgspec
from msgspec import DecodeError, Raw, Struct, structs
from msgspec.json import Decoder

from refold.gateway.upstreams import Credentials, Target, may_hold_secret
from refold.model.errors import BodyTooLarge, NotFound, StoreError, WireError
from refold.ports.store import LearntValues
from refold.text_work import run_text_work
from refold.wire.json_codec import NULL
from refold.wire.sse import SseParser

# Ids in JSON
#
# Pure functions from bytes to ids. `references_in` finds the ids that a request names, in every field in
# which a provider looks ids up; text, schemas, metadata and tool arguments are skipped, because providers
# skip them too. `ids_in_answer` finds the ids that an answer hands out, in fields that only the provider
# itself writes: an id that a model or a client wrote into an answer is not handed out by it.

StateKind: TypeAlias = Literal[
    "response", "item", "conversation", "completion", "audio", "file", "batch_input", "batch", "message_batch",
    "vector_store", "container", "prompt", "voice", "skill", "cache",
]  # fmt: skip
"""The kind of object behind an id. A `batch_input` is a file to be run as a batch; the last four are never
created through the gateway.
"""
Collected: TypeAlias = Literal[
    "response", "completion", "conversation", "file", "batch", "message_batch", "vector_store", "container"
]  # fmt: skip
"""Kinds with a path of their own."""
StateSource: TypeAlias = Collected | Literal["message"]
"""The kind of an answer: a reply in one of the three formats, or the description of a created object."""

MAX_REFERENCES = 10_000
"""Limit for one request: every reference is a lookup in the store. A long session that names its items by
reference has a few thousand.
"""


class StateId(NamedTuple):
    kind: StateKind
    id: str


_NAMES: dict[str, StateKind] = {
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
"""Request fields that hold an id, a list of ids, or an object with an id. Compared in lower case: some
servers ignore case in names.
"""
_OBJECTS_ONLY = frozenset(("prompt", "audio", "voice"))
"""Those of `_NAMES` in which a plain string is not an id."""
_LISTS_OF_ITEMS = frozenset(("input", "items"))
"""Fields with the items of a Responses conversation."""
_LOOKED_UP = ("reasoning", "image_generation_call", "web_search_call", "file_search_call")
"""Item types that a provider completes from its storage if the request has only their id."""
_OWN_CONTENT = ("encrypted_content", "content", "result", "results")
"""Fields that make such an item complete: with one of them, the provider looks nothing up."""
_FREE = frozenset(("metadata", "parameters", "input_schema", "schema", "annotations", "citations", "results"))
"""Fields with content of the client's own, or of earlier answers: a provider looks up nothing in them."""
_TOOL_USES = frozenset(("tool_use", "server_tool_use", "mcp_tool_use"))

_MARKS = tuple(f'"{name}"'.encode() for name in _NAMES)
_ITEM_MARKS = tuple(f'"{name}"'.encode() for name in _LISTS_OF_ITEMS)
_ODD_LETTERS = re.compile(rb"\\u00[2-7]|\\u017f|\\u212a|\xc5\xbf|\xe2\x84\xaa", re.IGNORECASE)
"""An ASCII letter written as an escape, and the two other characters that match `s` and `k` when case is
ignored: both are other spellings of a field name.
"""
_SINGLE_SPELLING = frozenset(("id", "type", "role"))
"""Fields of an item that may not occur in two spellings."""
_IS_ID = re.compile(r"[!-~]{1,200}").fullmatch


def is_id(text: object) -> bool:
    """True if the value has the form of a provider's id."""
    return isinstance(text, str) and _IS_ID(text) is not None


def _may_refer(body: bytes, *, is_anthropic: bool) -> bool:
    """True if the JSON may name an id. Fast, and never a false negative for UTF-8."""
    lower, marks = body.lower(), _MARKS if is_anthropic else (*_MARKS, *_ITEM_MARKS)
    return any(mark in lower for mark in marks) or _ODD_LETTERS.search(body) is not None


def references_in(body: bytes, *, is_anthropic: bool = False) -> set[StateId]:
    """The ids that the JSON of a request names. With `is_anthropic`, `input` holds tool arguments and not a
    list of items.

    Raises:
        WireError: the body may name ids but is not valid JSON, or two parsers could read it differently.
    """
    if not _may_refer(body, is_anthropic=is_anthropic):
        return set()
    found: set[StateId] = set()
    for one in _walk(_loads(body), is_anthropic=is_anthropic):
        found.add(one)
        if len(found) > MAX_REFERENCES:
            raise WireError(
                f"the body refers to more than {MAX_REFERENCES:,} objects that the provider stores",
                hint="send them in several requests",
            )
    return found


def is_json(body: bytes) -> bool:
    """True if the body is JSON. Some servers accept forms and other notations, in which names have no quotes."""
    try:
        _ANY.decode(body)
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def references_in_lines(body: bytes) -> set[StateId] | None:
    """The ids named by the requests in a batch file, one request per line; None if they cannot be determined.

    Takes the whole multipart form that carries the file and skips lines around the file that cannot name an
    id.
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
        WireError: the body is not JSON, or a field occurs twice: parsers differ in which one they use.
    """
    try:
        return json.loads(body.decode(), object_pairs_hook=_fields)
    except (ValueError, RecursionError):
        raise _ambiguous() from None


def _ambiguous() -> WireError:
    return WireError(
        "the body may name an object that the provider stores, and is not unambiguous JSON",
        hint="send plain JSON in UTF-8, with every field once",
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
        fields = _lower_case(value)
        kind = fields.get("type")
        if name in _LISTS_OF_ITEMS and not is_anthropic:
            yield from _references_in_item(fields)
        is_tool_use = is_anthropic and bool(name) and kind in _TOOL_USES
        for spelling, inner in value.items():
            field = spelling.casefold()
            if field in _FREE or (is_tool_use and field == "input"):
                continue
            if field in _NAMES and not (field == "skill_id" and kind == "anthropic"):
                yield from _ids_in_field(field, inner)
            waiting.append((field, inner))


def _lower_case(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields by their lower-case names."""
    found: dict[str, Any] = {}
    for spelling, value in fields.items():
        name = spelling.casefold()
        if name in found and name in _SINGLE_SPELLING:
            raise _ambiguous()
        found[name] = value
    return found


def _ids_in_field(field: str, value: Any) -> Iterator[StateId]:
    kind = _NAMES[field]
    if isinstance(value, dict):
        value = _lower_case(value).get("id")
    elif field in _OBJECTS_ONLY:
        return
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, str) and one:
            yield StateId(kind, one)


def _references_in_item(item: dict[str, Any]) -> Iterator[StateId]:
    """The id of an item that is only a reference, or that a provider completes. An item without type and role
    is a reference.
    """
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


class _ChatMessage(Struct, gc=False):
    audio: _Id | None = None


class _Choice(Struct, gc=False):
    message: _ChatMessage | None = None
    delta: _ChatMessage | None = None


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
"""Blocks in which Anthropic names the files that a program wrote. Neither clients nor models write these
blocks.
"""


def ids_in_answer(source: StateSource, data: bytes, *, is_stored: bool = True) -> list[StateId]:
    """The ids that an answer hands out. With `is_stored` false, only those that can be used although the
    provider does not store the answer.
    """
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


def ids_in_events(source: StateSource, events: bytes, *, is_stored: bool = True) -> list[StateId]:
    """As `ids_in_answer`, for complete events of a stream."""
    if b'"id"' not in events and b'"file_id"' not in events:
        return []  # a text delta
    try:
        parsed = SseParser().feed(events)
    except BodyTooLarge:
        return []
    return [one for event in parsed for one in ids_in_answer(source, event.data, is_stored=is_stored)]


_Found: TypeAlias = Iterator[tuple[StateKind, str | None]]


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
        for message in (choice.message, choice.delta):
            if message is not None and message.audio is not None:
                yield "audio", message.audio.id


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
"""Size of the cache of rows: a running session names the same ids again and again."""
MOST_STORED = 100_000
"""Rows of one kind that are stored for an owner, the newest ones: at three thousand replies a day as many as a provider stores
responses for, which is a month. A sweep deletes older ones.
"""
FILES = "/v1/files"

_REPLIES: dict[str, StateSource] = {
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
"""POST calls that store nothing at the provider, besides those of `_REPLIES`."""
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
"""Paths under which objects are found by their id. A POST to the path without an id creates one; a GET there
lists all.
"""
_FORMS = re.compile(r"/v1/(?:files|audio/[a-z]++|images/[a-z]++|containers/[^/]++/files)").fullmatch
"""Paths that accept forms with files."""
_FORM_NAME_CODED = re.compile(rb"name\s{0,8}\*").search
"""A form field whose name is encoded (RFC 5987) and therefore not readable as plain text."""
_PLAIN_PATH = re.compile(r"/v1(?:/[A-Za-z0-9._~@:+=,-]++)++").fullmatch
"""A path that every server reads in the same way."""
_MODEL_PATH = re.compile(
    r"/v1/models(?:/[A-Za-z0-9._~@:+=,-]++(?:(?:/|%2[Ff]|%3[Aa])[A-Za-z0-9._~@:+=,-]++)*+)?+"
).fullmatch
"""Model names contain slashes and colons."""
_CHARSET = re.compile(r"charset\s*+=\s*+[\"']?([\w-]*+)").findall
_ESCAPE = re.compile(rb"\\u00([2-7][0-9A-Fa-f])")
_KNOWN_CHARSETS = frozenset(("utf-8", "utf8", "us-ascii", "ascii"))

_log = logging.getLogger("refold.gateway")


class StateRow(Struct, frozen=True, omit_defaults=True):
    """The stored row of an id that was handed out to an owner."""

    upstream: str = ""
    """The upstream that made the object with a key other than the client's; empty if the client's own key was
    used, because the provider then checks access itself.
    """
    conversation: str = ""
    """For a response: its conversation and branch, the call that it answers, and the number of messages that
    the branch had then. Empty if the call was only passed on.
    """
    branch: str = ""
    call: str = ""
    size: int = 0
    root: str = ""
    """For a response: the response after which the branch begins, if earlier messages did not pass through
    this gateway or are not stored.
    """
    held: int = 0
    """Tokens of the messages up to `root`."""
    is_checked: bool = False
    """For a file: the requests in it name only objects of the owner, so that it may be run as a batch."""
    last: str = ""
    """For a response that calls the recall tool: the last response of the same reply. A client goes on from that one."""


class StateCall(Struct, frozen=True):
    """The effect of a call on stored objects: the id that its path names, and the kind of its answer."""

    opens: StateId | None = None
    makes: StateSource | None = None


def read_call(method: str, path: str) -> StateCall | None:
    """Classify a call by its path as forwarded. None for calls that list objects and for unknown paths."""
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
    """The parts of a call that the access check needs."""

    owner: str
    has_key: bool
    """True if the client identified itself with a Refold key. Then there may be several owners."""
    method: str
    path: str
    """The path as forwarded, without the query."""
    body: bytes
    content_types: tuple[str, ...] = ()


class ProviderState:
    """The rows of all owners, and the access decisions made from them."""

    def __init__(self, store: LearntValues, clock: Callable[[], float]) -> None:
        self._store, self._clock = store, clock
        self._rows: OrderedDict[tuple[str, StateId], StateRow] = OrderedDict()

    async def find(self, owner: str, which: StateId) -> StateRow | None:
        """The row of one of the owner's ids; None if the id was never handed out to this owner.

        Raises:
            StoreError: the store cannot be read now.
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
        """Store the row of an id that is handed out to an owner.

        Raises:
            StoreError: the row was not stored, or the outcome is unknown.
        """
        row = msgspec.msgpack.encode(kept)
        await self._store.learn(owner, _topic(which.kind), which.id, row, self._clock())
        self._remember(owner, which, kept)

    async def forget_oldest(self, owner: str) -> None:
        """Delete the rows above `MOST_STORED`. They stay in the cache of this process for a while.

        Raises:
            StoreError: the store does not answer.
        """
        for kind in get_args(StateKind):
            await self._store.forget_oldest(owner, _topic(kind), MOST_STORED)

    def _remember(self, owner: str, which: StateId, kept: StateRow) -> None:
        self._rows[owner, which] = kept
        if len(self._rows) > MOST_ROWS:
            self._rows.popitem(last=False)

    async def admit(
        self, asked: StateRequest, targets: Sequence[Target], credentials: Credentials
    ) -> Sequence[Target]:
        """Those of the chosen upstreams to which the call may go.

        Raises:
            NotFound: the call names an object of another owner, or its path is not known.
            WireError: two parsers could read the body differently.
            StoreError: the owner of an object cannot be determined now.
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
            return others  # the client's own key comes first: only the fallbacks are ruled out
        left = [one for one in targets if one in others or not places or places == {one.name}]
        if not left:
            raise _not_found()
        return left

    async def _places(self, asked: StateRequest, target: Target) -> set[str]:
        """The upstreams that made the objects that a call names; empty if it names none."""
        call = read_call(asked.method, asked.path)
        if call is None:
            raise _path_not_available(target)
        named = await _references(asked)
        if call.opens is not None:
            named.add(call.opens)
        places: set[str] = set()
        for which in named:
            kept = await self.find(asked.owner, _row_of(which))
            if kept is None or not kept.upstream:
                raise _not_found(which.kind)
            if which.kind == "batch_input" and not kept.is_checked:
                raise NotFound(
                    "this file cannot be run as a batch here",
                    hint="its requests name objects that are not yours, or could not be read: upload it again",
                )
            places.add(kept.upstream)
        return places

    async def is_checked_file(self, asked: StateRequest, upstream: str) -> bool:
        """True if an uploaded file could be run as a batch without reaching another owner's objects."""
        body = asked.body
        named = await run_text_work(len(body), references_in_lines, body)
        if named is None:
            return False
        rows = [await self.find(asked.owner, _row_of(one)) for one in named]
        return all(row is not None and row.upstream == upstream for row in rows)


class StateHandout:
    """Stores a row for every id in the answer to one call, once per id, before the id leaves."""

    def __init__(
        self,
        state: ProviderState,
        asked: StateRequest,
        call: StateCall | None,
        credentials: Credentials,
        fields: Mapping[str, Raw] | None,
    ) -> None:
        self._state, self._asked, self._call, self._credentials = state, asked, call, credentials
        self._fields = fields
        self._noted = {call.opens} if call and call.opens else set[StateId]()
        store = bytes((fields or {}).get("store", NULL))
        self.is_stored = store == b"true" if call and call.makes == "completion" else store != b"false"
        """True if the provider stores the reply. Completions are stored on request only, responses unless the
        request says no.
        """
        self.answers: StateRow | None = None
        """The row of the response, if its conversation is stored here."""

    def source_at(self, target: Target) -> StateSource | None:
        """The kind of the answer from an upstream; None if no id in it needs a row."""
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
        """Store the owner of the ids. If that fails the answer is sent all the same, and the ids stay locked
        for every owner.
        """
        is_clients = self._credentials.go_to(target)
        for which in found:
            if which in self._noted or (is_clients and which.kind != "response"):
                continue
            self._noted.add(which)
            try:
                await self._note(which, "" if is_clients else target.name)
            except Exception as error:  # noqa: BLE001  # no failure here may stop the client's answer
                _log.warning("the owner of an id could not be stored: %s", type(error).__name__)

    def has_noted(self, which: StateId) -> bool:
        """True if the answer handed this id out, even if the store did not accept the row."""
        return which in self._noted

    def another(self) -> StateHandout:
        """The handout of one more call for the same request."""
        return StateHandout(self._state, self._asked, self._call, self._credentials, self._fields)

    async def continue_at(self, last: StateHandout) -> None:
        """Let a request that continues a response of this call go on from the last call of the same reply."""
        response = next((one.id for one in last._noted if one.kind == "response"), "")
        if response and last.answers:
            try:
                await self.answered_late(structs.replace(last.answers, last=response))
            except StoreError as error:
                _log.warning("the last response of a reply could not be noted: %s", error.located)

    async def answered_late(self, answers: StateRow) -> None:
        """Complete the rows of responses that were already sent, after their conversation was stored late.

        Raises:
            StoreError: a row was not stored, or the outcome is unknown.
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
            return  # the row exists already
        kept = self.answers if which.kind == "response" and self.answers else StateRow()
        is_upload = which.kind == "file" and asked.path == FILES
        is_checked = is_upload and await state.is_checked_file(asked, upstream)
        await state.keep(asked.owner, which, structs.replace(kept, upstream=upstream, is_checked=is_checked))


def _is_named_by_client(which: StateId, asked: StateRequest, request_id: str) -> bool:
    """True if the request itself contains the id. Some servers let clients choose ids, and a chosen id may
    belong to another owner.
    """
    if request_id and which.id.endswith(request_id):
        return True
    body, name = asked.body, which.id.encode()
    return name in body or (b"\\u00" in body and name in _ESCAPE.sub(_letter, body))


def _letter(found: re.Match[bytes]) -> bytes:
    return bytes([int(found[1], 16)])


def _topic(kind: StateKind) -> str:
    return f"provider_{kind}"


def _row_of(which: StateId) -> StateId:
    return StateId("file", which.id) if which.kind == "batch_input" else which


def _is_clients(target: Target, credentials: Credentials) -> bool:
    """True if the call leaves with the client's own key and no other credential; the settings may add one in
    headers.
    """
    return credentials.go_to(target) and not any(map(may_hold_secret, target.headers))


def _is_allowed(target: Target, asked: StateRequest) -> bool:
    return target.allows(asked.method, asked.path if _PLAIN_PATH(asked.path) else "")


async def _references(asked: StateRequest) -> set[StateId]:
    """
    Raises:
        WireError: the body cannot be searched for ids.
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
    """True if a form names a file that the provider stores, instead of carrying the file."""
    lower = form.lower()
    return b"file_id" in lower or _FORM_NAME_CODED(lower) is not None


def _unreadable(what: str) -> WireError:
    return WireError(
        f"{what} cannot be searched for ids of objects that the provider stores",
        hint="with the operator's key, send JSON in UTF-8, or send the file itself",
    )


def _not_found(kind: StateKind | None = None) -> NotFound:
    what = _KIND_WORDS.get(kind, kind) if kind else "thing"
    return NotFound(
        f"you have no such {what} at this upstream",
        hint="with the operator's key you reach only objects that you made through this gateway; "
        "with a provider key of your own, all of your own objects there",
    )


_KIND_WORDS: dict[StateKind, str] = {
    "batch_input": "file",
    "message_batch": "batch",
    "vector_store": "vector store",
    "completion": "stored completion",
    "cache": "cached content",
}


def _path_not_available(target: Target) -> NotFound:
    return NotFound(
        "this path is not available with the operator's key, which several clients share",
        hint=f"the operator can open it with `allow` of the upstream {target.name}; or bring a provider key of your own",
    )
