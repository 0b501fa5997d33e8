"""The session logs of coding agents, read as recordings: the shared types, and one module for each agent.

An agent records more than the conversation (its own compactions, sub-agents, hooks, snapshots, reverted
turns). Without these, the log is a conversation in one of the three formats, which every reader of
conversations can read.

    Claude Code   ~/.claude/projects/*/*.jsonl               Anthropic Messages, linked records
    Codex         ~/.codex/sessions/*/*/*/rollout-*.jsonl    Responses items in records
    pi            ~/.pi/agent/sessions/*/*.jsonl             a tree of entries of its own, read as Chat
    opencode      opencode export ID > session.json          messages of parts of its own, read as Chat

A log is turned into the recording that it describes: an object with `messages` and, beside them, the
agent, the time of each message and the provider's usage reports. Later steps do not distinguish it from
any other recording. `refold.wire.transcript` recognises the agent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeVar

import msgspec
from msgspec import Raw, Struct
from msgspec.json import Decoder

from refold.model.dialect import Dialect
from refold.model.errors import WireError
from refold.model.tokens import Usage
from refold.wire.json_codec import Fields, Json, read, write

T = TypeVar("T")

_LINE = re.compile(rb"\S[^\n]*")


class LogEntry(Struct, frozen=True):
    """One message of a log."""

    item: Fields
    """The message as an element of a request's list."""
    time: str | float | None = None
    """An ISO time, or seconds since 1970."""
    usage: Usage | None = None


class AgentLog(Struct, frozen=True):
    agent: str
    dialect: Dialect
    entries: tuple[LogEntry, ...]
    id: str = ""
    model: str = ""
    instructions: str = ""
    """The system prompt; most agents do not record theirs."""


def numbered_lines(text: bytes) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, with their numbers."""
    number, counted = 1, 0
    for line in _LINE.finditer(text):
        number += text.count(b"\n", counted, line.start())
        counted = line.start()
        yield number, line[0]


def read_records(decoder: Decoder[T], text: bytes) -> list[T]:
    """Every line as a record. An agent that was killed while writing leaves half a line at the end, which is ignored."""
    records: list[T] = []
    failed: WireError | None = None
    for number, line in numbered_lines(text):
        if failed is not None:
            raise failed
        try:
            records.append(read(decoder, line, f"line {number}"))
        except WireError as error:
            failed = error
    if failed is not None and not records:
        raise failed
    return records


def fields_of(log: AgentLog) -> dict[str, Raw]:
    """The recording of a log: the fields of a request, and the recorded fields beside them."""
    fields: Fields = {"id": log.id, "source": log.agent}
    if log.model:
        fields["model"] = log.model
    if log.instructions:
        fields["instructions"] = log.instructions
    fields[log.dialect.messages_key] = [entry.item for entry in log.entries]
    times = [_time(entry) for entry in log.entries if entry.time is not None]
    if len(times) == len(log.entries):
        fields["times"] = times
    fields["usage"] = [_reported(at, entry.usage) for at, entry in enumerate(log.entries) if entry.usage]
    return {key: write(value) for key, value in fields.items()}


def _time(entry: LogEntry) -> Raw:
    return Raw(msgspec.json.encode(entry.time))


def _reported(at: int, usage: Usage) -> Json:
    return {
        "i": at,
        "input": usage.input,
        "cache_read": usage.cache_read,
        "cache_write": usage.cache_write,
        "output": usage.output,
    }
