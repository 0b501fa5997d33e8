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

import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
from msgspec import Raw, Struct, structs

from refold.gateway.credentials import Credentials, may_hold_secret
from refold.gateway.state_ids import (
    Collected,
    Kind,
    Source,
    StateId,
    is_id,
    is_json,
    references_in,
    references_in_lines,
)
from refold.gateway.targets import Target
from refold.model.errors import NotFound, WireError
from refold.ports.store import Store
from refold.text_work import run_text_work
from refold.wire.json_codec import NULL

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

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
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
