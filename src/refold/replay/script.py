"""A recording made ready for the stage: what is the same for every candidate and every window.

One idea: a replay follows the recording, not the candidate. When each reply came, what it held and how far back its
literals were last mentioned is known before any candidate is asked, so it is found once and used for all of them.
"""

from __future__ import annotations

import json
from itertools import accumulate

from refold.model.message import Message
from refold.model.tokens import TokenCounter
from refold.replay.facts import FactBook, Facts
from refold.replay.literals import literals, rare_words
from refold.replay.transcripts import Recording

USER_SECONDS = 90.0
"""Where no times were recorded: what a person takes to read an answer and write the next message."""
STEP_SECONDS = 8.0
"""Likewise for a tool to run and for a model to answer."""


class Script:
    """One recording, counted by one counter."""

    def __init__(self, recording: Recording, counter: TokenCounter) -> None:
        self.recording, self.counter = recording, counter
        book = FactBook(counter)
        self.system = book.all_of(recording.system)
        self.body = book.all_of(recording.messages)
        self.offsets = tuple(accumulate((known.tokens for known in self.body), initial=0))
        """Tokens of the conversation before each message."""
        self.tokens = self.offsets[-1] + sum(known.tokens for known in self.system)
        self.seconds = recording.seconds or tuple(accumulate(map(_takes, recording.messages)))
        self.replies = _replies(recording)
        tools = _written(recording)
        fixed = "\n".join(known.text for known in self.system) + tools
        self.head_tokens = counter.text(tools) if recording.tools else 0
        self.fixed_literals = frozenset(literals(fixed)).union(tool.name for tool in recording.tools)
        """What is in front of the model in any case is nothing that a candidate could lose."""
        self.fixed_rare_words = rare_words(fixed).union(tool.name for tool in recording.tools)

    def book(self) -> FactBook:
        """A book to begin a replay with."""
        return FactBook(self.counter, (*self.system, *self.body))

    def reply(self, at: range) -> tuple[Facts, ...]:
        return self.body[at.start : at.stop]

    def last_user_text(self, before: int) -> str:
        said = (known.said for known in reversed(self.body[:before]) if known.role == "user")
        return next(said, "")


def _takes(message: Message) -> float:
    return USER_SECONDS if message.role == "user" else STEP_SECONDS


def _replies(recording: Recording) -> tuple[range, ...]:
    """The replies of the model, as ranges of messages: one message each, or a run of items where a format spreads them.

    A conversation that begins with a reply gives nothing to ask for before it.
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


def _written(recording: Recording) -> str:
    """The tool definitions as text; the spaces are those of a plain JSON writer, however the file was written."""
    values = [json.loads(bytes(tool.raw)) for tool in recording.tools if tool.raw is not None]
    return json.dumps(values, ensure_ascii=False)
