"""Says once, before the first request of a conversation, that its instructions and its output leave messages little room."""

from __future__ import annotations

import logging

from refold.core.output_room import OutputRoom
from refold.engine.memory import Memory

_log = logging.getLogger("refold")


def warn_of_little_room(memory: Memory) -> None:
    """Log a warning where no request of the conversation was made yet, and messages will have less than a quarter of the window."""
    if memory.last_window is None and not memory.folded.replies and (room := little_room(memory)):
        _log.warning("%s", warning_of(room))


def little_room(memory: Memory) -> OutputRoom | None:
    """What is left for messages, where that is less than a quarter of the window."""
    room = memory.room
    return room if room.is_tight and memory.frame.policy.enabled else None


def warning_of(room: OutputRoom) -> str:
    return (
        f"messages have less than a quarter of the window: {room.arithmetic(room.asked)};"
        " a smaller output, or fewer tools, leaves them more"
    )
