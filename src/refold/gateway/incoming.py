"""What a client sends: which call, which conversation, and what it wishes for this request.

One idea: nothing is required of a client. Whatever names a conversation is taken in the order in which it can be trusted to
mean one, and where nothing does, the history itself says which it is. `X-Refold-*` headers are the client's own wishes; they
never leave the gateway.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from hashlib import sha256
from typing import TypeVar

from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder

from refold.model.dialect import DIALECTS, Dialect
from refold.model.errors import ConfigError
from refold.model.message import DialectName
from refold.wire.reading import FIELDS, NULL, is_null, is_object, read, word

T = TypeVar("T")

DIALECT_OF: dict[str, DialectName] = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "responses",
    "/v1/messages": "anthropic",
}
"""The calls that carry a conversation, by their path."""

SESSION_HEADERS = (
    "x-claude-code-session-id",
    "x-opencode-session",
    "session-id",
    "session_id",
    "x-session-id",
)
"""By which coding agents name their own sessions: Claude Code, opencode (two spellings) and Codex (two spellings)."""
MAX_NAME = 200
"""Characters of a conversation's name; a longer one is known by its hash."""
MOST_OUTPUT = 10**9
"""Tokens that a client may let a model write, to be believed: a thousand times what any writes."""
OWN = "x-refold"

_UNIQUE = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}|[0-9A-HJKMNP-TV-Z]{26}", re.IGNORECASE)
"""A UUID or a ULID: what stands for one conversation, unlike a word that an application uses for all of them."""
_NUMBER = re.compile("[0-9]{1,9}")
"""Longer ones are no windows, and Python itself refuses to read the longest."""
_CONTINUES = ("previous_response_id", "conversation")
_FLAG, _COUNT = Decoder(bool), Decoder(float)
_OUTPUTS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


class Wishes(Struct, frozen=True):
    """What a client asks for with one request."""

    is_off: bool = False
    preset: str = ""
    window: int | None = None
    upstream: str = ""


class Incoming(Struct, frozen=True, dict=True):
    """One call that carries a conversation."""

    dialect: Dialect
    body: bytes
    fields: dict[str, Raw]
    name: str = ""
    """What the client calls the conversation; empty where it says nothing."""
    wishes: Wishes = Wishes()

    @cached_property
    def model(self) -> str:
        """The model's name; what no model is called is known by its hash, as the name of a conversation is."""
        return _as_name(word(self.fields.get("model", NULL)))

    @cached_property
    def is_stream(self) -> bool:
        return _read(_FLAG, self.fields.get("stream", NULL)) is True

    @property
    def max_output(self) -> int | None:
        counts = (_read(_COUNT, self.fields.get(key, NULL)) for key in _OUTPUTS)
        return next((int(count) for count in counts if count is not None and 0 < count < MOST_OUTPUT), None)

    @cached_property
    def array(self) -> bytes | None:
        """The list of messages; None where there is none. A Responses request may say what it asks in a text alone."""
        raw = bytes(self.fields.get(self.dialect.messages_key, NULL))
        if raw.startswith(b'"') and self.dialect.name == "responses":
            return b'[{"role":"user","content":' + raw + b"}]"
        return raw if raw.startswith(b"[") else None

    @property
    def goes_on(self) -> bool:
        """Does it go on from one response that the provider keeps, and from nothing else?"""
        told = {key: not is_null(self.fields.get(key, NULL)) for key in _CONTINUES}
        return told["previous_response_id"] and sum(told.values()) == 1

    @property
    def continues(self) -> bool:
        """Does the provider hold messages that are not in the request?"""
        return any(not is_null(self.fields.get(key, NULL)) for key in _CONTINUES)


def read_incoming(path: str, headers: Mapping[str, str], body: bytes) -> Incoming:
    """
    Raises:
        WireError: the body is no JSON object.
        ConfigError: a wish cannot be met.
    """
    fields = read(FIELDS, body)
    dialect = DIALECTS[DIALECT_OF[path]]
    return Incoming(dialect, body, fields, name_of(headers, fields), wishes_of(headers))


def wishes_of(headers: Mapping[str, str]) -> Wishes:
    """
    Raises:
        ConfigError: a header holds what it cannot.
    """
    window = headers.get("x-refold-window", "").strip()
    if window and not (_NUMBER.fullmatch(window) and int(window)):
        raise ConfigError("X-Refold-Window is no number of tokens", hint="such as X-Refold-Window: 32000")
    return Wishes(
        headers.get(OWN, "").strip().lower() == "off",
        headers.get("x-refold-preset", "").strip(),
        int(window) if window else None,
        headers.get("x-refold-upstream", "").strip(),
    )


def name_of(headers: Mapping[str, str], fields: Mapping[str, Raw]) -> str:
    """What the client calls its conversation: by our own header, by its agent's, or by what it tells the provider."""
    said = headers.get("x-refold-conversation", "").strip()
    if said:
        return _as_name(said)
    agents = next((headers[name].strip() for name in SESSION_HEADERS if headers.get(name, "").strip()), "")
    return _as_name(agents or _told(fields))


def _told(fields: Mapping[str, Raw]) -> str:
    """What the body says of the conversation, where that stands for one and not for a whole application."""
    metadata = _fields(fields.get("metadata", NULL))
    told = (
        _word(fields, "prompt_cache_key"),
        *(_word(metadata, key) for key in ("session_id", "conversation_id", "thread_id", "user_id")),
    )
    unique = (_UNIQUE.findall(text) for text in told if text)
    return next((found[-1] for found in unique if found), "")


def _as_name(said: str) -> str:
    if len(said) <= MAX_NAME and said.isprintable():
        return said
    return sha256(said.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _word(fields: Mapping[str, Raw], key: str) -> str:
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
