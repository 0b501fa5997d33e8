"""Decodes replies, whole or streamed, into messages that can join the conversation.

A reply's messages have the form in which a client sends them back, so that a reply and the next request
agree. A reply without content is valid and has no message. A reply in which the model declines is valid
too, and ends as a `refusal` in every format, although only Anthropic has that value.

A streamed reply is assembled into the body that the provider would have sent without streaming, and the
same decoder reads that body, so that both ways give the same result; the deltas are returned with every
chunk. A reply is whole only if the stream says so: Chat by a finish reason (or `[DONE]`), Anthropic by
`message_stop`, Responses by its last event, which repeats the reply. A stream that stops before is no reply,
and an error in it is the response, whole or cut off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import DecodeError, Raw, Struct, structs
from msgspec.json import Decoder

from refold.model.dialect import Dialect
from refold.model.errors import WireError
from refold.model.message import DialectName, Message, Part, Text
from refold.model.tokens import Usage
from refold.wire.anthropic import AnthropicFold
from refold.wire.chat import ChatFold
from refold.wire.error import answer_error
from refold.wire.json_codec import (
    FIELDS,
    MAX_BODY_BYTES,
    NULL,
    First,
    check_body,
    is_null,
    read,
    within,
    word,
    write,
)
from refold.wire.request import decode_message, decode_messages
from refold.wire.responses import ResponsesFold
from refold.wire.sse import MAX_STREAM_BYTES, Delta, Fold, ServerSentEvent, SseParser

# Usage reports, normalised: `input` was neither read from nor written to a cache

MAX_TOKENS = 10**9
"""A thousand times the largest window there is; a larger number is no count of tokens."""
MAX_REPORT_BYTES = 1024 * 1024
"""Enough for five thousand iterations of a server's tool loop; a usual report has a few hundred bytes."""

_REPORT: Decoder[dict[str, object]] = Decoder(dict[str, object])
_Report = Mapping[str, object]


def decode_usage(report: Raw | bytes | Mapping[str, object], dialect: Dialect) -> Usage | None:
    """The value of a reply's `usage`; None if it reports nothing. An invalid number counts as not reported."""
    if not isinstance(report, Mapping):
        if len(report) > MAX_REPORT_BYTES:
            return None
        try:
            report = _REPORT.decode(report)
        except (DecodeError, UnicodeDecodeError, RecursionError):
            return None
    usage = _net(report) if dialect.name == "anthropic" else _gross(report)
    return usage if usage.prompt or usage.output else None


def _net(report: _Report) -> Usage:
    """Anthropic's report. The top level sums up the model's turns in a server's tool loop, and leaves out the
    cost of a compaction.
    """
    listed = report.get("iterations")
    steps = [step for step in listed if isinstance(step, Mapping)] if isinstance(listed, list) else []
    usage = _step(report)
    for step in steps:
        if step.get("type") == "compaction":
            usage += _step(step)
    turns = [step for step in steps if step.get("type") in ("message", "fallback_message")]
    last = _step(turns[-1]).prompt if turns else 0
    return structs.replace(usage, last_prompt=last if last != usage.prompt else 0)


def _step(report: _Report) -> Usage:
    return Usage(
        input=_count(report, "input_tokens"),
        cache_read=_count(report, "cache_read_input_tokens"),
        cache_write=_count(report, "cache_creation_input_tokens"),
        output=_count(report, "output_tokens"),
        reasoning=_count(_details(report, "output_tokens_details"), "thinking_tokens"),
    )


def _gross(report: _Report) -> Usage:
    """A report of the OpenAI formats. Chat Completions says prompt and completion, Responses input and
    output; servers mix them.
    """
    prompt = _count(report, "prompt_tokens", "input_tokens")
    details = _details(report, "prompt_tokens_details", "input_tokens_details")
    read = _count(details, "cached_tokens") or _count(report, *_READ)
    written = _count(details, "cache_write_tokens", "cache_creation_tokens") or _count(report, *_WRITTEN)
    output, reasoning = _output(report, prompt)
    # If more came from the cache than the whole input, this server reports the cache separately, as
    # Anthropic does.
    fresh = prompt - read - written if read + written <= prompt else prompt
    return Usage(fresh, read, written, output, reasoning)


_READ = ("prompt_cache_hit_tokens", "cached_tokens", "cache_read_input_tokens")
_WRITTEN = ("cache_creation_input_tokens",)


def _output(report: _Report, prompt: int) -> tuple[int, int]:
    """The output tokens, and the reasoning tokens among them."""
    output = _count(report, "completion_tokens", "output_tokens")
    details = _details(report, "completion_tokens_details", "output_tokens_details")
    reasoning = _count(details, "reasoning_tokens")
    is_beside = reasoning > output or prompt + output + reasoning == _count(report, "total_tokens")
    return (output + reasoning if is_beside else output), reasoning


def _details(report: _Report, *names: str) -> _Report:
    for name in names:
        value = report.get(name)
        if isinstance(value, (dict, Mapping)):  # a check for `dict` alone is many times as fast
            return value
    return {}


def _count(report: _Report, *names: str) -> int:
    """The first number of tokens among the fields; some servers write it as a float."""
    for name in names:
        value = report.get(name)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_TOKENS:
            return value
    return 0


_DECLINED, _BROKEN = "refusal", "error"


class Reply(Struct, frozen=True):
    """A decoded reply of a provider: its messages, its usage and the reason of its end."""

    messages: tuple[Message, ...]
    usage: Usage | None = None
    finish: str = ""
    """The provider's stop reason; `refusal` if the model declined, and `error` if the reply broke off."""
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
    """True if the text was read from a refusal: a field beside the content in Chat, a block in Responses."""
    if not isinstance(part, Text) or part.raw is None:
        return False
    return bool(word(read(FIELDS, part.raw).get("refusal", NULL)))


def decode_reply(body: bytes, dialect: Dialect, *, max_body_bytes: int = MAX_BODY_BYTES) -> Reply:
    """Read the body of a successful response; of several choices, the first.

    Raises:
        WireError: the body is not a reply of this format, or the whole response is an error.
    """
    check_body(body, max_body_bytes)
    if answer_error(body).is_error:
        raise WireError("the provider's answer is an error", place="error", hint="decode_error reads it")
    return _read_reply(body, dialect)


def _read_reply(body: bytes, dialect: Dialect) -> Reply:
    decoder: Decoder[_Chat | _Responses | _Anthropic] = _SHAPES[dialect.name]  # type: ignore[assignment]
    return read(decoder, body).reply(dialect)


_FOLDS: dict[DialectName, Callable[[], Fold]] = {
    "chat": ChatFold,
    "responses": ResponsesFold,
    "anthropic": AnthropicFold,
}


class StreamReader:
    """Reads one streamed response: takes chunks of bytes, returns deltas.

    The deltas before a fault in the stream are returned first; `reply` raises the fault.
    """

    def __init__(self, dialect: Dialect, *, max_stream_bytes: int = MAX_STREAM_BYTES) -> None:
        self._dialect = dialect
        self._parser = SseParser(max_stream_bytes=max_stream_bytes)
        self._fold = _FOLDS[dialect.name]()
        self._events = 0
        self._fault: WireError | None = None
        self.failure: bytes | None = None
        """The data of the event that reports the error; `decode_error` reads it."""
        self.is_over = False
        """True if nothing relevant can follow: some servers keep the connection open after the end of the stream."""

    @property
    def seen(self) -> int:
        """Bytes of the stream so far, from which the reply is read."""
        return self._parser.seen

    @property
    def pending(self) -> int:
        """Bytes of the event that is not complete yet: they are read with the next chunk."""
        return self._parser.pending

    @property
    def is_open(self) -> bool:
        """True while the reply is unfinished: not yet whole, not failed, and still readable."""
        return not (self._fold.is_whole or self.failure is not None or self._fault is not None)

    def feed(self, chunk: bytes) -> list[Delta]:
        """The deltas of a chunk."""
        deltas: list[Delta] = []
        try:
            for event in self._parser.feed(chunk):
                if not self.is_over:
                    deltas += self._take(event)
        except WireError as error:
            self._fault, self.is_over = error, True
        return deltas

    def end(self) -> None:
        """End of the stream: an error event that was cut off becomes a failure, with the data so far."""
        event = None if self.is_over else self._parser.end()
        if event is not None:
            self._take(event)

    def _take(self, event: ServerSentEvent) -> list[Delta]:
        self._events += 1
        if event.name == "error":
            self.failure, self.is_over = event.data, True
            return []
        try:
            deltas = self._fold.take(event)
        except WireError as error:
            raise within(error, f"event[{self._events - 1}]") from None
        except RecursionError:
            raise WireError("is nested too deeply", place=f"event[{self._events - 1}]") from None
        if self._fold.is_failed:
            self.failure = event.data
        self.is_over = self._fold.is_over or self._fold.is_failed
        return deltas

    def reply(self) -> Reply:
        """The reply, once the stream has ended.

        Raises:
            WireError: the stream ended before the reply did, or is not of this format; `place` counts its events.
        """
        if self._fault is not None:
            raise self._fault
        if self.failure is not None:
            hint = "decode_error reads `failure`"
            raise WireError("the stream ended with an error", place="error", hint=hint)
        if not self._fold.is_whole:
            raise WireError("the stream ended before the reply did", place=f"event[{self._events}]")
        try:
            body = self._fold.body()  # without an error: the fold reports one as `is_failed`
            check_body(body)
            return _read_reply(body, self._dialect)
        except RecursionError:
            raise WireError("is nested too deeply") from None
