"""Reads a client's request: the kind of call, the conversation's name, and the client's wishes for this
request.

A client need not send anything special. A conversation's name is taken from several fields, in the order of
how reliably they mean one conversation; without a name the history itself identifies it. `X-Refold-*` headers
are wishes of the client and never leave the gateway.

Only fields that stand for one conversation are used as a name. `metadata.user_id`, `user` and
`safety_identifier` stand for a person, and `prompt_cache_key` for a prompt that many conversations share, so
they are not used. Claude Code is the exception: it writes its session into `metadata.user_id`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from hashlib import sha256
from io import BytesIO
from itertools import accumulate
from typing import Annotated, Literal, TypeAlias, TypeVar

from msgspec import DecodeError, Meta, Raw, Struct
from msgspec.json import Decoder
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from refold.model.dialect import DIALECTS, Dialect
from refold.model.errors import (
    BodyEncoded,
    BodyTooLarge,
    BodyTooSlow,
    ConfigError,
    NotFound,
    WebSocketRefused,
    WireError,
)
from refold.model.message import DialectName
from refold.model.tokens import check_window
from refold.plugins.registry import active
from refold.text_work import MAX_LOOP_BYTES
from refold.wire.json_codec import (
    FIELDS,
    MAX_BODY_BYTES,
    NULL,
    check_body,
    is_null,
    is_object,
    read,
    too_many,
    word,
)
from refold.wire.request import OUTPUT_FIELDS

T = TypeVar("T")

DIALECT_OF: dict[str, DialectName] = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "responses",
    "/v1/messages": "anthropic",
    "/v1/responses/compact": "responses",
}
"""The calls that carry a conversation, by their path."""

Shape: TypeAlias = Literal["chat", "responses", "anthropic", "refold"]
"""The format in which a client expects its answers and errors; `/refold/*` has one of its own."""
_WITHOUT_VERSION = ("/chat/", "/responses", "/messages", "/models", "/completions", "/embeddings")
"""Paths that clients ask for if their base URL lacks `/v1`."""
_LONGEST_PATH = 60

SESSION_HEADERS = (
    "x-claude-code-session-id",
    "x-opencode-session",
    "session-id",
    "session_id",
    "x-session-id",
)
"""Headers with which coding agents name their sessions: Claude Code, opencode (two spellings) and Codex (two
spellings).
"""
MAX_NAME = 200
"""Characters of a conversation's name; a longer name is replaced by its hash."""
MOST_OUTPUT = 10**9
"""Largest accepted output limit, in tokens: a thousand times the output of any model."""
OWN = "x-refold"
_OWN = f"{OWN}-"
WISHES = (
    "X-Refold",
    *(f"X-Refold-{name}" for name in ("Conversation", "Preset", "Window", "Upstream", "Key")),
)
"""The request headers that the gateway knows."""
MOST_IGNORED = 5
"""Unknown headers that a response names: more are no typing error."""
_SWITCHES: dict[str, Literal["off", "on"]] = {"conversation-off": "off", "conversation-on": "on"}
"""Values of the header `X-Refold` that are stored for the conversation."""

_UNIQUE = re.compile(
    r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}|[0-9A-HJKMNP-TV-Z]{26}", re.IGNORECASE | re.ASCII
)
"""A UUID or a ULID: it stands for one conversation, unlike a word that an application uses for all of them."""
_METADATA_KEYS = ("session_id", "conversation_id", "thread_id")
"""Fields of `metadata` whose names mean a conversation."""
_DEVICE, _UUID = "[0-9a-fA-F]{64}", "[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
_CLAUDE_CODE = re.compile(f"user_{_DEVICE}_account_(?:{_UUID})?_session_({_UUID})")
"""`metadata.user_id` of Claude Code before 2.1.78."""
_NUMBER = re.compile("[0-9]{1,9}")
"""Longer numbers are not windows, and Python refuses to convert the longest."""
_CONTINUES = ("previous_response_id", "conversation")


class _TypedItem(Struct):
    type: str = ""


_FLAG, _COUNT, _ITEM = Decoder(bool), Decoder(float), Decoder(_TypedItem)


def shape_of(path: str, *, speaks_anthropic: bool = False) -> Shape:
    """The format that a client expects below a path. `/v1/models` exists at both providers: a client that sends
    `anthropic-version` is Anthropic's.
    """
    if not path.startswith("/v1/"):
        return "refold"
    path = path.removeprefix("/v1") if path.startswith("/v1/v1/") else path  # the error of `check_path`
    if path.startswith("/v1/messages") or speaks_anthropic:
        return "anthropic"
    return "responses" if path.startswith("/v1/responses") else "chat"


def check_path(path: str) -> None:
    """
    Raises:
        NotFound: the path has no `/v1`, or has it twice.
    """
    if path.startswith("/v1/v1/"):
        raise NotFound(
            f"there is nothing at /v1/v1: the client adds {path.removeprefix('/v1')[:_LONGEST_PATH]} to its base URL",
            hint="leave /v1 out of the base URL of this client",
        )
    if path.startswith(_WITHOUT_VERSION):
        raise NotFound(
            "the calls of a provider are below /v1", hint="end the base URL of this client with /v1"
        )


def check_http(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """
    Raises:
        WebSocketRefused: the client wants to go on with a WebSocket. Codex tries one first, and goes on by HTTP
            only after this error; it would try a provider's 404 again and again.
    """
    for name, value in headers:
        if name == b"upgrade" and value.lower() == b"websocket":
            raise WebSocketRefused


class _ClaudeCodeUser(Struct, frozen=True):
    """`metadata.user_id` of Claude Code since 2.1.78: a JSON object, encoded as a string.

    Users can add fields (`CLAUDE_CODE_EXTRA_METADATA`); they are ignored.
    """

    device_id: Annotated[str, Meta(pattern=rf"\A{_DEVICE}\Z")]
    account_uuid: Annotated[str, Meta(pattern=rf"\A(?:{_UUID})?\Z")]
    session_id: Annotated[str, Meta(pattern=rf"\A{_UUID}\Z")]


_CLAUDE_CODE_USER = Decoder(_ClaudeCodeUser)


class Wishes(Struct, frozen=True):
    """The options that a client sets for one request by headers."""

    is_off: bool = False
    """True if this request is passed on unchanged."""
    conversation: Literal["", "off", "on"] = ""
    """Switches the conversation off or on, from this request on."""
    preset: str = ""
    window: int | None = None
    upstream: str = ""


_COMPACTS = re.compile(rb'"type"\s*:\s*"compact')
"""Edits of `context_management` that compact: `compact_20260112` of Anthropic's, `compaction` of the Responses API."""
_MANAGED_BYTES = 16_384
_TRIGGER = "compaction_trigger"
"""The kind of the last item of a Responses request that asks for a compaction, as Codex does. It holds nothing else."""
_TRIGGER_BYTES = 512


class IncomingRequest(Struct, frozen=True, dict=True):
    """One call that carries a conversation."""

    dialect: Dialect
    body: bytes
    fields: dict[str, Raw]
    name: str = ""
    """The client's name of the conversation; empty if it gives none."""
    wishes: Wishes = Wishes()
    root: str = ""
    """The response up to which only the provider has the history; `fields` hold the messages after it. Empty
    if `fields` hold the whole history.
    """
    held: int = 0
    """Tokens of the history up to `root`, as reported by the provider."""
    name_fault: str = ""
    """Why the client's name of the conversation was replaced by its hash; empty if it was not."""
    is_compact_call: bool = False
    """True at the path of the Responses API that answers with a compaction."""

    @property
    def line_name(self) -> str:
        """The name that separates this list of messages from equal lists of the same owner: the
        conversation's name, or `root`.
        """
        return f"\0{self.root}" if self.root else self.name

    @cached_property
    def model(self) -> str:
        """The model's name; a name that is too long or not printable is replaced by its hash."""
        return _as_name(word(self.fields.get("model", NULL)))

    @cached_property
    def is_stream(self) -> bool:
        return _read(_FLAG, self.fields.get("stream", NULL)) is True

    @cached_property
    def max_output(self) -> int | None:
        counts = (output_in(self.fields, name) for name in OUTPUT_FIELDS if name in self.fields)
        return next((count for count in counts if count is not None), None)

    @cached_property
    def array(self) -> bytes | memoryview | None:
        """The list of messages; None if there is none. A Responses request may have a plain string as its
        input. If it is most of a large body, it is a view of the body: a copy would take as much memory again.
        """
        field = self.fields.get(self.dialect.messages_key, NULL)
        if len(field) > max(MAX_LOOP_BYTES, len(self.body) // 2) and bytes(memoryview(field)[:1]) == b"[":
            return memoryview(field)
        raw = bytes(field)
        if raw.startswith(b'"') and self.dialect.name == "responses":
            return b'[{"role":"user","content":' + raw + b"}]"
        return raw if raw.startswith(b"[") else None

    @cached_property
    def asks_compaction(self) -> bool:
        """True if the client asks the provider for a compaction instead of a reply."""
        if self.is_compact_call:
            return True
        if self.dialect.name == "anthropic":
            return not is_null(self.fields.get("compaction", NULL))
        if self.dialect.name != "responses" or self.array is None:
            return False
        last = bytes(self.array[-_TRIGGER_BYTES:]).rstrip(b" \t\r\n]")
        item = _read(_ITEM, Raw(last[last.rfind(b"{") :]))
        return item is not None and item.type == _TRIGGER

    @cached_property
    def has_provider_compact(self) -> bool:
        """True if the client leaves compactions to the provider, or asks for one now."""
        managed = bytes(self.fields.get("context_management", NULL))
        return self.asks_compaction or _COMPACTS.search(managed[:_MANAGED_BYTES]) is not None

    @property
    def goes_on(self) -> bool:
        """True if the request continues one response that the provider stores, and no conversation object."""
        is_given = {key: not is_null(self.fields.get(key, NULL)) for key in _CONTINUES}
        return is_given["previous_response_id"] and sum(is_given.values()) == 1

    @property
    def continues(self) -> bool:
        """True if the provider holds messages that are not in the request."""
        get = self.fields.get
        return get("previous_response_id", NULL) != NULL or get("conversation", NULL) != NULL


def output_in(fields: Mapping[str, Raw], name: str) -> int | None:
    """The output limit in a field; None if it is missing or not a plausible number."""
    count = _read(_COUNT, fields.get(name, NULL))
    return int(count) if count is not None and 0 < count < MOST_OUTPUT else None


def read_incoming(path: str, headers: Mapping[str, str], body: bytes) -> IncomingRequest:
    """
    Raises:
        WireError: the body is not a JSON object.
        ConfigError: a wish cannot be met.
    """
    fields = read(FIELDS, body)
    dialect = DIALECTS[DIALECT_OF[path]]
    stated = _stated_name(headers, fields)
    incoming = IncomingRequest(
        dialect,
        body,
        fields,
        _as_name(stated),
        wishes_of(headers),
        name_fault=_name_fault(stated),
        is_compact_call=path.endswith("/compact"),
    )
    incoming.array  # noqa: B018  # fill the cache here, because large bodies are read in a thread
    return incoming


def wishes_of(headers: Mapping[str, str]) -> Wishes:
    """
    Raises:
        ConfigError: a header has an invalid value.
    """
    switch, window = headers.get(OWN, "").strip().lower(), headers.get("x-refold-window", "").strip()
    if switch not in ("", "on", "off", *_SWITCHES):
        raise ConfigError(
            "X-Refold is neither on nor off",
            hint="X-Refold takes on (the default), off (send this request unchanged), conversation-off (this and all later ones) or conversation-on",
        )
    preset = headers.get("x-refold-preset", "").strip()
    if preset and preset not in (known := active().presets):
        raise ConfigError("X-Refold-Preset names no preset", hint=f"choose from: {', '.join(known)}")
    if window:
        check_window(int(window) if _NUMBER.fullmatch(window) else window, "X-Refold-Window")
    return Wishes(
        switch == "off",
        _SWITCHES.get(switch, ""),
        preset,
        int(window) if window else None,
        headers.get("x-refold-upstream", "").strip(),
    )


def ignored_wishes(names: Iterable[str]) -> str:
    """The request headers that begin like Refold's own and are none, with the known ones; empty if there are none. They
    are no error: a newer client may send more than an older gateway knows.
    """
    own = [name for name in names if name.startswith(_OWN)]
    if not own:
        return ""
    known = {name.lower() for name in WISHES}
    unknown = dict.fromkeys(name for name in own if name not in known)
    shown = ", ".join(name[:_LONGEST_PATH] for name in [*unknown][:MOST_IGNORED])
    return f"{shown}; known: {', '.join(WISHES)}" if unknown else ""


def name_of(headers: Mapping[str, str], fields: Mapping[str, Raw]) -> str:
    """The client's name of its conversation; a name that is too long or not printable is replaced by its hash."""
    return _as_name(_stated_name(headers, fields))


def _stated_name(headers: Mapping[str, str], fields: Mapping[str, Raw]) -> str:
    """The client's name of its conversation: from Refold's header, from its agent's header, or from
    `metadata` in the body.
    """
    named = ("x-refold-conversation", *SESSION_HEADERS)
    for name in named:
        if name in headers and (stated := headers[name].strip()):
            return stated
    return _named_in_metadata(fields)


def _named_in_metadata(fields: Mapping[str, Raw]) -> str:
    """The id of a session, conversation or thread in `metadata`, if it is a UUID or a ULID."""
    if "metadata" not in fields:
        return ""
    metadata = _fields(fields["metadata"])
    ids = (_text_field(metadata, key) for key in _METADATA_KEYS)
    named = next((text for text in ids if _UNIQUE.fullmatch(text)), "")
    return named or _claude_code_session(_text_field(metadata, "user_id"))


def _claude_code_session(user_id: str) -> str:
    """The session in a `metadata.user_id` that has exactly Claude Code's form; otherwise empty."""
    if not user_id.startswith("{"):
        found = _CLAUDE_CODE.fullmatch(user_id)
        return found[1] if found else ""
    try:
        return _CLAUDE_CODE_USER.decode(user_id).session_id
    except (DecodeError, UnicodeError, RecursionError):
        return ""


def _as_name(name: str) -> str:
    if not _name_fault(name):
        return name
    return sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _name_fault(name: str) -> str:
    """Why a name cannot be used as it is: terminals and tables show it."""
    if len(name) > MAX_NAME:
        return f"it is longer than {MAX_NAME} characters"
    return "" if name.isprintable() else "it has a character that cannot be shown"


def _text_field(fields: Mapping[str, Raw], key: str) -> str:
    return word(fields[key]) if key in fields else ""


def _fields(raw: Raw) -> dict[str, Raw]:
    try:
        return FIELDS.decode(raw) if is_object(raw) else {}
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def _read(decoder: Decoder[T], raw: Raw) -> T | None:
    if raw is NULL:
        return None
    try:
        return decoder.decode(raw)
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return None


# Reading the body, with limits for bytes, time and nesting

GRACE_S = 30.0
"""Time before the first bytes must arrive: longer than a laptop needs to find its network again."""
BYTES_PER_S = 16 * 1024
"""Average rate required after `GRACE_S`: a tenth of a poor mobile connection. A trickling body ends within a
minute.
"""
MAX_DEPTH = 256
"""Nesting levels. Tool schemas reach a few dozen; parsers fail near 1,000, at a number that changes with
every Python version.
"""
MAX_BRACKETS = 8_000_000
"""Brackets of lists and objects: four times the maximum of one list (`refold.wire`), counted in half a second."""

_STEP = 1 << 18
"""Bytes checked in one step, so that the intermediate values stay small, and other threads get their turn."""
_FOLDS = 8
"""Rounds of removing innermost pairs before levels are counted one by one: conversations are nested less
deeply.
"""
_EVERY = set(range(256))
_OTHERS = bytes(_EVERY - set(b'"{}[]'))
_OTHERS_OUTSIDE_ESCAPES = bytes(_EVERY - set(b'"{}[]' rb"\/bfnrtu"))
"""Characters that may follow a backslash are kept with it; otherwise it would join the next kept character."""
_ONE_KIND = bytes.maketrans(b"[]", b"{}")
_DEPTH_CHANGE = tuple({ord("{"): 1, ord("}"): -1}.get(byte, 0) for byte in range(256))


async def read_body(
    scope: Scope,
    receive: Receive,
    *,
    max_bytes: int = MAX_BODY_BYTES,
    grace_s: float = GRACE_S,
    bytes_per_s: float = BYTES_PER_S,
    count: Callable[[int], None] = lambda _: None,
) -> bytes:
    """Read the body of a request, without decoding it. `count` is called with the number of its bytes so far, and may
    refuse more of them.

    Raises:
        BodyEncoded: the body is compressed.
        BodyTooLarge: the body has more than `max_bytes`.
        BodyTooSlow: the body does not arrive, or arrives too slowly.
        ClientDisconnect: the client disconnected.
    """
    _check_headers(scope["headers"], max_bytes)
    began, kept = asyncio.get_running_loop().time(), BytesIO()
    try:
        async with asyncio.timeout_at(began + grace_s) as limit:
            while await _take(receive, kept, max_bytes):
                count(kept.tell())
                limit.reschedule(began + grace_s + kept.tell() / bytes_per_s)
    except TimeoutError:
        raise BodyTooSlow(f"the body took too long to arrive; {kept.tell():,} bytes came") from None
    count(kept.tell())
    # Unlike joining pieces this needs no second copy of a large body.
    return kept.getvalue()


async def _take(receive: Receive, kept: BytesIO, max_bytes: int) -> bool:
    """Append the next piece; True if more follows."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    piece = message.get("body", b"")
    if kept.tell() + len(piece) > max_bytes:
        raise _too_large(max_bytes)
    kept.write(piece)
    return bool(message.get("more_body", False))


def _check_headers(headers: Iterable[tuple[bytes, bytes]], max_bytes: int) -> None:
    for name, value in headers:
        if name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            raise BodyEncoded
        if name == b"content-length" and value.isdigit() and int(value[:20]) > max_bytes:
            raise _too_large(max_bytes)


def content_length(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """The length that a client states for its body; 0 if it states none."""
    stated = (value for name, value in headers if name == b"content-length" and value.isdigit())
    return int(next(stated, b"0")[:20])


def _too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"the body has more than {max_bytes:,} bytes",
        hint="raise server.max_body_mb, or send media by reference instead of inline",
    )


def check_json(body: bytes, *, max_bytes: int = MAX_BODY_BYTES, max_depth: int = MAX_DEPTH) -> None:
    """Refuse bodies that must not reach a parser. Other JSON errors are not detected here.

    Raises:
        BodyTooLarge: the body has more than `max_bytes`.
        WireError: the body is not UTF-8, is nested too deeply, or has more lists and objects than a
            conversation can have.
    """
    check_body(body, max_bytes)
    if len(body) <= _STEP and body.count(b"{") + body.count(b"[") <= max_depth:
        return
    depth = seen = 0
    for brackets in _outside_strings(body):
        seen += len(brackets)
        if seen > MAX_BRACKETS:
            raise too_many("brackets", MAX_BRACKETS, "the body")
        if _deepest(brackets, depth, max_depth) > max_depth:
            raise WireError(
                f"the body is nested more than {max_depth} levels deep",
                hint="raise server.max_depth, or send the nested part as text",
            )
        depth += brackets.count(b"{") - brackets.count(b"}")
        if depth < 0:
            return  # more closing than opening brackets: a parser stops here


def check_new(
    body: bytes,
    fields: Mapping[str, Raw],
    history: str,
    known: int,
    *,
    max_bytes: int = MAX_BODY_BYTES,
    max_depth: int = MAX_DEPTH,
) -> None:
    """As `check_json`, for a body that was split into its fields: the first `known` bytes of the list under
    `history` are items that were checked with an earlier request.

    Raises:
        BodyTooLarge, WireError: as `check_json`.
    """
    # Keys, spaces, and duplicate fields, of which a parser keeps the last: short enough not to be nested too
    # deeply?
    unread = len(body) - sum(map(len, fields.values()))
    if not known or unread >= max_depth or len(body) > MAX_BRACKETS:
        check_json(body, max_bytes=max_bytes, max_depth=max_depth)
        return
    check_body(body, max_bytes)
    others = b",".join(bytes(raw) for name, raw in fields.items() if name != history)
    check_json(b"{" + others + b",[" + bytes(memoryview(fields[history])[known:]) + b"}", max_depth=max_depth)


def _outside_strings(body: bytes) -> Iterator[bytes]:
    """The brackets outside of strings, all written as braces, in pieces."""
    if b"\\" in body:
        pieces = (body[start : start + _STEP] for start in range(0, len(body), _STEP))
        body = b"".join([piece.translate(None, _OTHERS_OUTSIDE_ESCAPES) for piece in pieces])
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    inside = 0
    for start in range(0, len(body), _STEP):
        # Two quotes in a row hold nothing between them, inside of a string or outside: most strings go at once.
        parts = body[start : start + _STEP].translate(_ONE_KIND, _OTHERS).replace(b'""', b"").split(b'"')
        yield b"".join(parts[inside::2])
        inside ^= (len(parts) - 1) & 1


def _deepest(brackets: bytes, depth: int, enough: int) -> int:
    """The deepest level, or a slightly larger number if it is far below `enough`."""
    folded = brackets
    for _ in range(_FOLDS):
        folded = folded.replace(b"{}", b"")
    at_most = _peak_depth(folded, depth) + _FOLDS
    return at_most if at_most <= enough else _peak_depth(brackets, depth)


def _peak_depth(brackets: bytes, depth: int) -> int:
    return max(accumulate(map(_DEPTH_CHANGE.__getitem__, brackets), initial=depth))
