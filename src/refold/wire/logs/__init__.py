"""Reads the session logs of coding agents as recordings.

An agent records more than the conversation (its own compactions, sub-agents, hooks, snapshots, reverted
turns). Without these, the log is a conversation in one of the three formats, which every reader of
conversations can read.

    Claude Code   ~/.claude/projects/*/*.jsonl               Anthropic Messages, linked records
    Codex         ~/.codex/sessions/*/*/*/rollout-*.jsonl    Responses items in records
    pi            ~/.pi/agent/sessions/*/*.jsonl             a tree of entries of its own, read as Chat
    opencode      opencode export ID > session.json          messages of parts of its own, read as Chat

There is one module for each agent; `log` holds the shared types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import TypeAlias

from msgspec import DecodeError, Raw

from refold.wire.json_codec import FIELDS
from refold.wire.logs import claude_code, codex, opencode, pi
from refold.wire.logs.log import AgentLog, fields_of, numbered_lines

__all__ = ["AgentLog", "fields_of", "numbered_lines", "read_export", "read_lines"]

_Fields: TypeAlias = Mapping[str, Raw]
_LINEWISE: tuple[tuple[Callable[[_Fields], bool], Callable[[bytes], AgentLog]], ...] = (
    (claude_code.recognises, claude_code.read_log),
    (codex.recognises, codex.read_log),
    (pi.recognises, pi.read_log),
)
_LOOKED_AT = 10
"""Lines that may precede the first line by which the kind of log is recognised."""


def read_lines(text: bytes) -> AgentLog | None:
    """The log in these lines; None if they are no log.

    Raises:
        WireError: a line of a log cannot be read; `place` names it.
    """
    for _, line in islice(numbered_lines(text), _LOOKED_AT):
        try:
            fields = FIELDS.decode(line)
        except (DecodeError, UnicodeDecodeError, RecursionError):
            return None
        for recognises, read_log in _LINEWISE:
            if recognises(fields):
                return read_log(text)
    return None


def read_export(fields: _Fields) -> AgentLog | None:
    """The log in one object; None if it is no log."""
    return opencode.read_log(fields) if opencode.recognises(fields) else None
