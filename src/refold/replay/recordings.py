"""Reads recorded conversations from files and folders.

A file has one conversation per line, or is one conversation or an agent's log of one; it may be compressed. A
folder has such files. An unreadable conversation is an error that names the file and the line, because a
corpus has thousands of them. In a folder, files that are not conversations are skipped, because agents keep
other files beside their logs.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cached_property
from io import BufferedIOBase
from itertools import accumulate
from pathlib import Path
from typing import TypeAlias, TypeVar

import msgspec
from msgspec import Raw, Struct

from refold.model.dialect import Dialect
from refold.model.errors import BodyTooLarge, ConfigError, WireError
from refold.model.message import Message
from refold.model.tokens import TokenCounter, Usage
from refold.model.window import Tool
from refold.replay.facts import FactBook, MessageFacts, lines, literals, phrases, rare_words
from refold.wire import MAX_BODY_BYTES, Request, decode_transcript
from refold.wire.transcript import holds_conversation

T = TypeVar("T")

ProgressFunction: TypeAlias = Callable[[int, int], None]
"""Called with the amount done and the total."""

_SUFFIXES = (".json", ".jsonl", ".json.gz", ".jsonl.gz")
_GZIP = b"\x1f\x8b"


class Recording(Struct, frozen=True, eq=False):
    """One recorded conversation."""

    id: str
    source: str
    """The origin, such as the recorded agent; the name of the file if none is stated."""
    dialect: Dialect
    system: tuple[Message, ...]
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    seconds: tuple[float, ...] = ()
    """The time of each message, in seconds since the first; empty if times were not recorded."""
    usage: tuple[tuple[int, Usage], ...] = ()
    """The usage that the provider reported, by the index of the reply."""


class _Reported(Struct):
    i: int
    input: int = 0
    cache_read: int = 0
    cache_write: int = 0
    output: int = 0

    def usage(self) -> Usage:
        return Usage(self.input, self.cache_read, self.cache_write, self.output)


def read_recordings(path: Path, *, on_progress: ProgressFunction | None = None) -> tuple[Recording, ...]:
    """Every conversation in a file or a folder, in the order of names and lines; progress is in bytes of the
    files.

    Raises:
        ConfigError: the file does not exist, or is empty.
        WireError: something in it is not a conversation; its `place` names the file and the line.
    """
    files = _files(path)
    sizes = [file.stat().st_size for file in files]
    report = on_progress or (lambda _done, _total: None)
    recordings: list[Recording] = []
    for number, file in enumerate(files):
        before = sum(sizes[:number])
        for recording, done in _read_file(file, is_one_of_many=path.is_dir()):
            recordings.append(recording)
            report(before + done, sum(sizes))
    report(sum(sizes), sum(sizes))
    if not recordings:
        raise ConfigError(
            f"{path.name} holds no conversation", hint="give a file of transcripts in JSON or JSONL"
        )
    return tuple(recordings)


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise ConfigError(f"there is no file {path.name}", hint="give a transcript or a folder of them")
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.name.endswith(_SUFFIXES) and file.is_file())
    return [path]


def _read_file(path: Path, *, is_one_of_many: bool) -> Iterator[tuple[Recording, int]]:
    """The conversations of a file, each with the number of bytes read so far."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == _GZIP
            raw.seek(0)
            lines = gzip.GzipFile(fileobj=raw) if packed else raw
            for recording in _read_lines(lines, path, is_one_of_many=is_one_of_many):
                yield recording, raw.tell()
    except (OSError, EOFError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "the archive is damaged"
        raise ConfigError(
            f"{path.name} cannot be read: {reason}",
            hint="give transcripts in JSON or JSONL, plain or in gzip",
        ) from error


def _read_lines(lines: BufferedIOBase, path: Path, *, is_one_of_many: bool) -> Iterator[Recording]:
    first = lines.readline(MAX_BODY_BYTES + 1)
    if not _is_conversation(first):
        data = first + _rest(lines, path)
        if not is_one_of_many or _holds_conversation(data, path):
            yield _read(data, path, "")
        return
    number, line = 2, lines.readline(MAX_BODY_BYTES + 1)
    yield _read(first, path, ", line 1" if line else "")
    while line:
        if line.strip():
            yield _read(line, path, f", line {number}")
        number, line = number + 1, lines.readline(MAX_BODY_BYTES + 1)


def _rest(lines: BufferedIOBase, path: Path) -> bytes:
    data = lines.read(MAX_BODY_BYTES + 1)
    if len(data) > MAX_BODY_BYTES:
        raise BodyTooLarge(f"the transcript has more than {MAX_BODY_BYTES:,} bytes", place=path.name)
    return data


def _is_conversation(line: bytes) -> bool:
    """True if the line is a whole conversation, and not one message of a file that is one conversation."""
    try:
        fields = msgspec.json.decode(line, type=dict[str, Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return "messages" in fields or ("input" in fields and "type" not in fields)


def _holds_conversation(data: bytes, path: Path) -> bool:
    try:
        return holds_conversation(data)
    except WireError as error:
        raise _in_file(error, path, "") from None


def _read(data: bytes, path: Path, line: str) -> Recording:
    try:
        return _recording(decode_transcript(data), path, line)
    except WireError as error:
        raise _in_file(error, path, line) from None


def _in_file(error: WireError, path: Path, line: str) -> WireError:
    hint = error.hint or "give transcripts in JSON or JSONL, plain or in gzip"
    return type(error)(error.message, place=f"{path.name}{line}", hint=hint)


def _recording(request: Request, path: Path, line: str) -> Recording:
    name = path.name.partition(".")[0]
    places = [at for at, message in enumerate(request.messages) if not _is_system(message)]
    later = tuple(message for message in request.messages if _is_system(message))
    return Recording(
        id=_field(request, "id", str) or name + line.replace(", line ", ":"),
        source=_field(request, "source", str) or name,
        dialect=request.dialect,
        system=(*request.system, *later),
        messages=tuple(request.messages[at] for at in places),
        tools=request.tools,
        seconds=_seconds(request, places),
        usage=_usage(request, places),
    )


def _is_system(message: Message) -> bool:
    return message.role in ("system", "developer")


def _field(request: Request, key: str, kind: type[T]) -> T | None:
    """A field beside the messages; None if it is missing or has another type in this file."""
    try:
        return msgspec.json.decode(request.fields.get(key, b"null"), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _seconds(request: Request, places: list[int]) -> tuple[float, ...]:
    """The recorded times, made monotonic: clients record some messages late."""
    times = _field(request, "times", list[str | float])
    if not times:
        return ()
    if len(times) != request.offset + len(request.messages):
        raise WireError(
            "has not as many entries as there are messages",
            place="times",
            hint="give one time for each message",
        )
    stamps = [_stamp(time) for time in times]
    latest = list(accumulate(stamps, max))
    return tuple(latest[request.offset + at] - stamps[0] for at in places)


def _stamp(time: str | float) -> float:
    """Seconds since 1970; agents write times in both forms."""
    if not isinstance(time, str):
        return time
    try:
        stamp = datetime.fromisoformat(time)
    except ValueError:
        raise WireError(
            "holds a value that is not an ISO time", place="times", hint="such as 2026-01-31T09:30:00Z"
        ) from None
    return (stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)).timestamp()


def _usage(request: Request, places: list[int]) -> tuple[tuple[int, Usage], ...]:
    reported = _field(request, "usage", list[_Reported]) or []
    index = {request.offset + at: number for number, at in enumerate(places)}
    return tuple((index[report.i], report.usage()) for report in reported if report.i in index)


# Counted recordings: the values that are the same for every candidate and every window

USER_SECONDS = 90.0
"""Without recorded times: the time that a person needs to read an answer and write the next message."""
STEP_SECONDS = 8.0
"""Without recorded times: the time that a tool or a model needs."""


class Repeats(Struct, frozen=True):
    """Texts of one kind that replies repeat from earlier messages."""

    by_reply: Mapping[int, Mapping[str, int]]
    """For the first message of a reply: each repeated text, with the last message before that has it."""
    texts: frozenset[str]
    """All of them."""


class CountedRecording:
    """One recording, counted with one counter."""

    def __init__(self, recording: Recording, counter: TokenCounter) -> None:
        self.recording, self.counter = recording, counter
        book = FactBook(counter)
        self.system = book.all_of(recording.system)
        self.body = book.all_of(recording.messages)
        self.offsets = tuple(accumulate((known.tokens for known in self.body), initial=0))
        """Tokens of the conversation before each message."""
        self.tokens = self.offsets[-1] + sum(known.tokens for known in self.system)
        self.seconds = recording.seconds or tuple(accumulate(map(_duration_s, recording.messages)))
        self.replies = _replies(recording)
        tools = _tools_as_text(recording)
        system = "\n".join(known.text for known in self.system)
        fixed, self._fixed_lines = system + tools, f"{system}\n{tools}"
        self.head_tokens = counter.text(tools) if recording.tools else 0
        self.fixed_literals = frozenset(literals(fixed)).union(tool.name for tool in recording.tools)
        """Literals that are always in the context, so that a candidate cannot lose them."""
        self.fixed_rare_words = rare_words(fixed).union(tool.name for tool in recording.tools)

    @cached_property
    def repeated_lines(self) -> Repeats:
        return self._repeats(lambda facts: facts.lines, lines(self._fixed_lines))

    @cached_property
    def repeated_phrases(self) -> Repeats:
        return self._repeats(lambda facts: facts.phrases, phrases(self._fixed_lines))

    def _repeats(self, extract: Callable[[MessageFacts], frozenset[str]], fixed: frozenset[str]) -> Repeats:
        """The texts of each reply that stand in an earlier message and are not always in the context."""
        replies = {at.start: at for at in self.replies}
        latest: dict[str, int] = {}
        found: dict[int, dict[str, int]] = {}
        for index, facts in enumerate(self.body):
            if index in replies:
                used = {text for known in self.reply(replies[index]) for text in extract(known)}
                found[index] = {text: latest[text] for text in sorted(used - fixed) if text in latest}
            latest.update(dict.fromkeys(extract(facts), index))
        return Repeats(found, frozenset(text for texts in found.values() for text in texts))

    def book(self) -> FactBook:
        """A fact book to start a replay with."""
        return FactBook(self.counter, (*self.system, *self.body))

    def reply(self, at: range) -> tuple[MessageFacts, ...]:
        return self.body[at.start : at.stop]

    def last_user_text(self, before: int) -> str:
        texts = (known.spoken_text for known in reversed(self.body[:before]) if known.role == "user")
        return next(texts, "")


def _duration_s(message: Message) -> float:
    return USER_SECONDS if message.role == "user" else STEP_SECONDS


def _replies(recording: Recording) -> tuple[range, ...]:
    """The replies of the model, as ranges of messages: one message each, or a run of items if the format
    splits a reply.

    A reply at the very beginning is left out, because there is no context before it.
    """
    replies: list[range] = []
    messages, spreads = recording.messages, recording.dialect.spreads_calls
    for at, message in enumerate(messages):
        if message.role != "assistant" or at == 0:
            continue
        if spreads and replies and replies[-1].stop == at:
            replies[-1] = range(replies[-1].start, at + 1)
        else:
            replies.append(range(at, at + 1))
    return tuple(replies)


def _tools_as_text(recording: Recording) -> str:
    """The tool definitions as text, in the spacing of a plain JSON writer."""
    values = [json.loads(bytes(tool.raw)) for tool in recording.tools if tool.raw is not None]
    return json.dumps(values, ensure_ascii=False)
