"""Session logs of coding agents, read as recordings.

One idea: an agent writes down more than was said (its own compactions, sub-agents, hooks, snapshots, turns that were taken
back). What is left when that is gone is a conversation in one of the three formats, and everything that reads
conversations can read it.

    Claude Code   ~/.claude/projects/*/*.jsonl               Anthropic Messages, linked records
    Codex         ~/.codex/sessions/*/*/*/rollout-*.jsonl    Responses items in records
    pi            ~/.pi/agent/sessions/*/*.jsonl             a tree of entries of its own, read as Chat
    opencode      opencode export ID > session.json          messages of parts of its own, read as Chat

A module for each; `log` is what they have in common.
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
"""Lines that may stand before the first that tells what kind of log it is."""


def read_lines(text: bytes) -> AgentLog | None:
    """The log that these lines are; None where they are none.

    Raises:
        WireError: a line of a log cannot be read; its `place` says which.
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
    """The log that one object is; None where it is none."""
    return opencode.read_log(fields) if opencode.recognises(fields) else None
