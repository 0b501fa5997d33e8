"""opencode logs: a session as `opencode export` writes it, one object with all messages and their parts.

In this format a call and its result are one part, and one reply may be several steps. Here each step
becomes a message, and each result another one. The prompt that starts a compaction, its answer and the
order to continue after it are the client's own and are skipped, and so are reverted messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from msgspec import Raw, Struct
from msgspec.json import Decoder

from refold.model.dialect import CHAT
from refold.model.tokens import Usage
from refold.wire.json_codec import NULL, Fields, Json, is_null, read, read_list, text_of, word
from refold.wire.logs import AgentLog, LogEntry

AGENT = "opencode"
_BROKEN_OFF = "MessageAbortedError"
"""The only error after which the partial reply is sent again."""
_AS_TEXT = ("text/plain", "application/x-directory")
"""Types of files that stand beside their own text."""


class _Time(Struct, frozen=True, gc=False):
    """Milliseconds since 1970."""

    created: float = 0
    completed: float | None = None
    start: float | None = None
    end: float | None = None


class _Cache(Struct, frozen=True, gc=False):
    read: int = 0
    write: int = 0


class _Tokens(Struct, gc=False):
    input: int = 0
    output: int = 0
    reasoning: int = 0
    cache: _Cache = _Cache()

    def usage(self) -> Usage | None:
        usage = Usage(
            self.input, self.cache.read, self.cache.write, self.output + self.reasoning, self.reasoning
        )
        return usage if usage.prompt else None


class _Left(Struct, gc=False):
    """The output of an interrupted call so far."""

    output: Raw = NULL


class _State(Struct):
    status: str
    input: Raw = Raw(b"{}")
    output: str | None = None
    error: str | None = None
    time: _Time = _Time()
    metadata: _Left | None = None

    @property
    def result_text(self) -> str:
        if self.status == "completed":
            return self.output or ""
        left = self.metadata.output if self.metadata else NULL
        return word(left) or self.error or "[the call was interrupted]"


class _Metadata(Struct, gc=False):
    compaction_continue: bool | None = None


class _Part(Struct, rename={"call_id": "callID"}):
    type: str
    id: str | None = None
    text: str = ""
    prompt: str = ""
    ignored: bool | None = None
    call_id: str | None = None
    tool: str | None = None
    state: _State | None = None
    tokens: _Tokens | None = None
    mime: str | None = None
    url: str | None = None
    filename: str | None = None
    metadata: Raw = NULL


class _Error(Struct, gc=False):
    name: str | None = None


class _Info(Struct, rename={"model_id": "modelID"}):
    id: str
    role: str
    time: _Time = _Time()
    model_id: str | None = None
    summary: Raw = NULL
    error: _Error | None = None


class _Message(Struct):
    info: _Info
    parts: list[_Part] = []


class _Revert(Struct, gc=False, rename={"message_id": "messageID", "part_id": "partID"}):
    message_id: str = ""
    part_id: str | None = None


class _Session(Struct):
    id: str | None = None
    revert: _Revert | None = None


_MESSAGE = Decoder(_Message)
_SESSION = Decoder(_Session)
_METADATA: Decoder[_Metadata | None] = Decoder(_Metadata | None)


def recognises(fields: Mapping[str, Raw]) -> bool:
    """True for the fields of an exported session."""
    return "info" in fields and "messages" in fields


def read_log(fields: Mapping[str, Raw]) -> AgentLog:
    session = read(_SESSION, fields["info"], "info")
    raws = read_list(fields["messages"], "messages")
    messages = [read(_MESSAGE, raw, f"messages[{at}]") for at, raw in enumerate(raws)]
    kept = [message for message in _without_reverted(messages, session.revert) if not _is_own(message)]
    entries = tuple(chain.from_iterable(map(_entries, kept)))
    models = [message.info.model_id for message in kept if message.info.model_id]
    return AgentLog(AGENT, CHAT, entries, session.id or "", models[-1] if models else "")


def _without_reverted(messages: Sequence[_Message], revert: _Revert | None) -> Iterator[_Message]:
    """The messages before the point to which the user returned."""
    for message in messages:
        if revert is None or message.info.id != revert.message_id:
            yield message
            continue
        names = [part.id for part in message.parts]
        if revert.part_id in names:
            yield _Message(message.info, message.parts[: names.index(revert.part_id)])
        return


def _is_own(message: _Message) -> bool:
    """True if the client wrote the message for a compaction, or if the reply failed."""
    info = message.info
    if info.role == "user":
        return any(part.type == "compaction" for part in message.parts)
    is_summary = not is_null(info.summary) and bytes(info.summary) == b"true"
    return is_summary or (info.error is not None and info.error.name != _BROKEN_OFF)


def _entries(message: _Message) -> Iterator[LogEntry]:
    if message.info.role == "user":
        blocks = [block for part in message.parts if (block := _block(part)) is not None]
        if blocks:
            yield LogEntry({"role": "user", "content": blocks}, message.info.time.created / 1000)
        return
    for step in _steps(message.parts):
        yield from _step_entries(step, message.info)


def _block(part: _Part) -> Json:
    """The block for a part of a user message; None for a part that is not sent to a model."""
    if part.type == "text" and part.text and not part.ignored and not _is_continue_order(part):
        return {"type": "text", "text": part.text}
    if part.type == "subtask" and part.prompt:
        return {"type": "text", "text": part.prompt}
    if part.type != "file" or not part.url or part.mime in _AS_TEXT:
        return None
    if (part.mime or "").startswith("image/"):
        return {"type": "image_url", "image_url": {"url": part.url}}
    return {"type": "file", "file": {"filename": part.filename, "file_data": part.url}}


def _is_continue_order(part: _Part) -> bool:
    """True for the order to continue after a compaction."""
    if is_null(part.metadata):
        return False
    metadata = read(_METADATA, part.metadata, "metadata")
    return metadata is not None and metadata.compaction_continue is True


def _steps(parts: Iterable[_Part]) -> Iterator[list[_Part]]:
    """The parts of each call to the model."""
    step: list[_Part] = []
    for part in parts:
        if part.type == "step-start" and step:
            yield step
            step = []
        step.append(part)
    yield step


def _step_entries(step: Sequence[_Part], info: _Info) -> Iterator[LogEntry]:
    calls = [part for part in step if part.type == "tool" and part.state is not None]
    item = _assistant(step, calls)
    if item is None:
        return
    began = [part.state.time.start for part in calls if part.state and part.state.time.start]
    time = min(began, default=info.time.completed or info.time.created)
    tokens = next((part.tokens for part in step if part.tokens), None)
    yield LogEntry(item, time / 1000, tokens.usage() if tokens else None)
    for part in calls:
        if part.state is not None:
            result: Fields = {"role": "tool", "tool_call_id": part.call_id, "content": part.state.result_text}
            yield LogEntry(result, (part.state.time.end or time) / 1000)


def _assistant(step: Sequence[_Part], calls: Sequence[_Part]) -> Fields | None:
    said, thought = (
        "\n".join(part.text for part in step if part.type == kind and part.text)
        for kind in ("text", "reasoning")
    )
    if not said and not calls:
        return None
    item: Fields = {"role": "assistant", "content": said}
    if thought:
        item["reasoning_content"] = thought
    if calls:
        item["tool_calls"] = [_call(part) for part in calls]
    return item


def _call(part: _Part) -> Json:
    arguments = text_of(part.state.input) if part.state else "{}"
    return {"id": part.call_id, "type": "function", "function": {"name": part.tool, "arguments": arguments}}
