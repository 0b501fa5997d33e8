"""Replies: what a provider answered, as messages that can join the conversation, and what it says went wrong.

One idea: a reply's messages are in the form in which a client sends them back, so that a reply and the next request agree
on what was said. An error is read for people to see; what it means for the window is decided elsewhere.
"""

from __future__ import annotations

from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder

from refold.model.dialect import Dialect
from refold.model.errors import WireError
from refold.model.message import DialectName, Message
from refold.model.tokens import Usage
from refold.wire.message import decode_message, decode_messages
from refold.wire.patch import write
from refold.wire.reading import MAX_BODY_BYTES, check_body, read, within
from refold.wire.usage import decode_usage

_NONE = Raw(b"null")


class Reply(Struct, frozen=True):
    messages: tuple[Message, ...]
    usage: Usage | None = None
    finish: str = ""
    """Why the model stopped, in the provider's word."""
    model: str = ""
    id: str = ""


class ErrorBody(Struct, frozen=True):
    """What a provider says went wrong. All empty: the body holds no error that can be read."""

    type: str = ""
    code: str = ""
    message: str = ""
    request_id: str = ""

    @property
    def is_error(self) -> bool:
        return bool(self.type or self.code or self.message)


class _Choice(Struct, gc=False):
    message: Raw
    finish_reason: str | None = None


class _Chat(Struct, gc=False):
    choices: list[_Choice]
    id: str | None = None
    model: str | None = None
    usage: Raw = _NONE

    def reply(self, dialect: Dialect) -> Reply:
        if not self.choices:
            raise WireError("holds no choice", place="choices")
        choice = self.choices[0]
        try:
            message = decode_message(choice.message, dialect)
        except WireError as error:
            raise within(error, "choices[0].message") from None
        usage = decode_usage(self.usage, dialect)
        return Reply((message,), usage, choice.finish_reason or "", self.model or "", self.id or "")


class _Anthropic(Struct, gc=False):
    content: Raw
    role: str = "assistant"
    stop_reason: str | None = None
    id: str | None = None
    model: str | None = None
    usage: Raw = _NONE

    def reply(self, dialect: Dialect) -> Reply:
        message = decode_message(write({"role": self.role, "content": self.content}), dialect)
        usage = decode_usage(self.usage, dialect)
        return Reply((message,), usage, self.stop_reason or "", self.model or "", self.id or "")


class _Cut(Struct, gc=False):
    reason: str | None = None


class _Responses(Struct, gc=False):
    output: Raw
    status: str | None = None
    incomplete_details: _Cut | None = None
    id: str | None = None
    model: str | None = None
    usage: Raw = _NONE

    def reply(self, dialect: Dialect) -> Reply:
        try:
            messages = decode_messages(self.output, dialect)
        except WireError as error:
            raise within(error, "output") from None
        finish = (self.incomplete_details and self.incomplete_details.reason) or self.status or ""
        return Reply(messages, decode_usage(self.usage, dialect), finish, self.model or "", self.id or "")


_SHAPES: dict[DialectName, Decoder[_Chat] | Decoder[_Responses] | Decoder[_Anthropic]] = {
    "chat": Decoder(_Chat),
    "responses": Decoder(_Responses),
    "anthropic": Decoder(_Anthropic),
}


def decode_reply(body: bytes, dialect: Dialect, *, max_body_bytes: int = MAX_BODY_BYTES) -> Reply:
    """Read the body of a successful answer; of several choices, the first.

    Raises:
        WireError: the body is not a reply of this format, or reports an error.
    """
    check_body(body, max_body_bytes)
    if decode_error(body).is_error:
        raise WireError("the provider's answer is an error", place="error", hint="decode_error reads it")
    decoder: Decoder[_Chat | _Responses | _Anthropic] = _SHAPES[dialect.name]  # type: ignore[assignment]
    return read(decoder, body).reply(dialect)


class _Envelope(Struct, gc=False):
    error: object = None
    request_id: object = None


_ENVELOPE: Decoder[_Envelope | list[_Envelope]] = Decoder(_Envelope | list[_Envelope])


def decode_error(body: bytes) -> ErrorBody:
    """The error an answer reports, in any of the formats and whatever its status. Never raises."""
    try:
        found = _ENVELOPE.decode(body)
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return ErrorBody()
    envelope = found if isinstance(found, _Envelope) else next(iter(found), _Envelope())
    error = envelope.error
    if isinstance(error, str):
        return ErrorBody(message=error)
    return _error(error, envelope.request_id) if isinstance(error, dict) else ErrorBody()


def _error(error: dict[str, object], request_id: object) -> ErrorBody:
    kind = _word(error.get("type")) or _word(error.get("status"))
    return ErrorBody(kind, _word(error.get("code")), _word(error.get("message")), _word(request_id))


def _word(value: object) -> str:
    """Some servers give codes as numbers."""
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
