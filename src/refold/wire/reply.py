"""Replies: what a provider answered, as messages that can join the conversation.

One idea: a reply's messages are in the form in which a client sends them back, so that a reply and the next request agree
on what was said. A reply without a word is a reply; it brings no message. One in which the model declines is a reply too, and
ends as a `refusal` in every format: only Anthropic has a word for that.
"""

from __future__ import annotations

from msgspec import Raw, Struct
from msgspec.json import Decoder

from refold.model.dialect import Dialect
from refold.model.errors import WireError
from refold.model.message import DialectName, Message, Part, Text
from refold.model.tokens import Usage
from refold.wire.error import answer_error
from refold.wire.message import decode_message, decode_messages
from refold.wire.patch import write
from refold.wire.reading import FIELDS, MAX_BODY_BYTES, NULL, First, check_body, is_null, read, within, word
from refold.wire.usage import decode_usage

_DECLINED, _BROKEN = "refusal", "error"


class Reply(Struct, frozen=True):
    messages: tuple[Message, ...]
    usage: Usage | None = None
    finish: str = ""
    """Why the model stopped, in the provider's word; `refusal` where it declined, and `error` where the reply broke off."""
    model: str = ""
    id: str = ""


class _Choice(Struct, gc=False):
    message: Raw = NULL
    finish_reason: Raw = NULL
    error: Raw = NULL

    def messages(self, dialect: Dialect) -> tuple[Message, ...]:
        if is_null(self.message):
            return ()
        fields = read(FIELDS, self.message)
        raw = self.message if "role" in fields else write({"role": "assistant", **fields})
        return (decode_message(raw, dialect),)


class _Answer(Struct, gc=False):
    id: Raw = NULL
    model: Raw = NULL
    usage: Raw = NULL

    def with_messages(self, messages: tuple[Message, ...], finish: str, dialect: Dialect) -> Reply:
        if finish != _BROKEN and any(_declines(part) for message in messages for part in message.parts):
            finish = _DECLINED
        return Reply(messages, decode_usage(self.usage, dialect), finish, word(self.model), word(self.id))


class _Chat(_Answer, gc=False, kw_only=True):
    choices: First

    def reply(self, dialect: Dialect) -> Reply:
        if is_null(self.choices.value):
            raise WireError("holds no choice", place="choices")
        try:
            choice = read(_CHOICE, self.choices.value)
        except WireError as error:
            raise within(error, "choices[0]") from None
        try:
            messages = choice.messages(dialect)
        except WireError as error:
            raise within(error, "choices[0].message") from None
        finish = word(choice.finish_reason) or ("" if is_null(choice.error) else _BROKEN)
        return self.with_messages(messages, finish, dialect)


class _Anthropic(_Answer, gc=False, kw_only=True):
    content: Raw
    stop_reason: Raw = NULL

    def reply(self, dialect: Dialect) -> Reply:
        message = decode_message(write({"role": "assistant", "content": self.content}), dialect)
        return self.with_messages((message,), word(self.stop_reason), dialect)


class _Cut(Struct, gc=False):
    reason: Raw = NULL


class _Responses(_Answer, gc=False, kw_only=True):
    output: Raw
    status: Raw = NULL
    incomplete_details: _Cut | None = None

    def reply(self, dialect: Dialect) -> Reply:
        try:
            messages = decode_messages(self.output, dialect)
        except WireError as error:
            raise within(error, "output") from None
        cut = self.incomplete_details
        return self.with_messages(messages, (cut and word(cut.reason)) or word(self.status), dialect)


_CHOICE = Decoder(_Choice)
_SHAPES: dict[DialectName, Decoder[_Chat] | Decoder[_Responses] | Decoder[_Anthropic]] = {
    "chat": Decoder(_Chat),
    "responses": Decoder(_Responses),
    "anthropic": Decoder(_Anthropic),
}


def _declines(part: Part) -> bool:
    """Was it read from a refusal? That stands beside the content in Chat, and among its blocks in Responses."""
    if not isinstance(part, Text) or part.raw is None:
        return False
    return bool(word(read(FIELDS, part.raw).get("refusal", NULL)))


def decode_reply(body: bytes, dialect: Dialect, *, max_body_bytes: int = MAX_BODY_BYTES) -> Reply:
    """Read the body of a successful answer; of several choices, the first.

    Raises:
        WireError: the body is not a reply of this format, or the whole answer is an error.
    """
    check_body(body, max_body_bytes)
    if answer_error(body).is_error:
        raise WireError("the provider's answer is an error", place="error", hint="decode_error reads it")
    decoder: Decoder[_Chat | _Responses | _Anthropic] = _SHAPES[dialect.name]  # type: ignore[assignment]
    return read(decoder, body).reply(dialect)
