"""Reads error bodies: a provider's error message, in a form for people.

Every server has its own envelope, but each contains a message with a type or a code. Envelopes are opened
until one is found. `core.overflow` decides the meaning of the error for the window.
"""

from __future__ import annotations

from msgspec import DecodeError, Raw, Struct, field, structs
from msgspec.json import Decoder

from refold.wire.json_codec import NULL, First, is_null, word

_MAX_ENVELOPES = 4
"""A list of objects with an error that is a list: the deepest seen, and one more."""


class ErrorBody(Struct, frozen=True):
    """A provider's error. All fields are empty if the body holds no readable error."""

    type: str = ""
    code: str = ""
    message: str = ""
    request_id: str = ""

    @property
    def is_error(self) -> bool:
        return bool(self.type or self.code or self.message)


class _Envelope(Struct, gc=False):
    """A response, or an error inside of one; fields are decoded only when needed."""

    error: Raw = NULL
    errors: Raw = NULL
    detail: Raw = NULL
    message: Raw = NULL
    msg: Raw = NULL
    type: Raw = NULL
    aws_type: Raw = field(default=NULL, name="__type")
    status: Raw = NULL
    code: Raw = NULL
    request_id: Raw = NULL
    choices: Raw = NULL
    content: Raw = NULL
    output: Raw = NULL

    @property
    def is_reply(self) -> bool:
        return not (is_null(self.choices) and is_null(self.content) and is_null(self.output))

    def own(self) -> ErrorBody:
        """The error in this envelope itself."""
        kind = word(self.type) or word(self.aws_type) or word(self.status)
        return ErrorBody(kind, word(self.code), word(self.message) or word(self.msg))


_ENVELOPE = Decoder(_Envelope)
_FIRST = Decoder(First)


def decode_error(body: bytes) -> ErrorBody:
    """The error that a response reports, in any format and with any status. Never raises.

    This is the error of the whole response, or of its first choice if a reply broke off.
    """
    found = answer_error(body)
    if found.is_error:
        return found
    return _find(_envelope(_first(_envelope(body).choices)).error)


def answer_error(body: bytes) -> ErrorBody:
    """The error of a whole response. A reply has one only in its `error` field."""
    top = _envelope(_first(body) if body.lstrip().startswith(b"[") else body)
    if top.error == NULL and top.is_reply:
        return ErrorBody()
    envelopes = (top.error,) if top.is_reply else (top.error, top.errors, top.detail)
    inside = _find_any(envelopes)
    if inside.is_error:
        return structs.replace(inside, request_id=word(top.request_id))
    own = top.own()
    return own if own.message and not top.is_reply else ErrorBody()


def _find_any(raws: tuple[Raw, ...], envelopes: int = _MAX_ENVELOPES) -> ErrorBody:
    found = (_find(raw, envelopes) for raw in raws)
    return next((error for error in found if error.is_error), ErrorBody())


def _find(raw: Raw, envelopes: int = _MAX_ENVELOPES) -> ErrorBody:
    """The error in a text, an object or the first element of a list."""
    opening = bytes(memoryview(raw)[:1])
    if opening == b'"':
        return ErrorBody(message=word(raw))
    if opening not in (b"{", b"[") or not envelopes:
        return ErrorBody()
    if opening == b"[":
        return _find(_first(raw), envelopes - 1)
    envelope = _envelope(raw)
    own = envelope.own()
    if own.message:
        return own
    inside = _find_any((envelope.error, envelope.errors, envelope.detail), envelopes - 1)
    return inside if inside.is_error else own


def _envelope(raw: Raw | bytes) -> _Envelope:
    try:
        return _ENVELOPE.decode(raw)
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return _Envelope()


def _first(raw: Raw | bytes) -> Raw:
    try:
        return _FIRST.decode(raw).value
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return NULL
