"""Whoever writes summaries: what is asked of them, and where they may look up what was paid for already."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from refold.core.digest.ledger import EMPTY, Ledger
from refold.core.prompts import Passage, Recipe
from refold.model.message import Message
from refold.model.summary import Scope, Summary
from refold.model.window import Tool


class SummaryTask(Struct, frozen=True):
    """What has to be summarised, free of secrets."""

    passages: tuple[Passage, ...]
    """The originals that the summary is made from, whole but for texts that are too long; see `digested`."""
    first: int
    last: int
    """What it will stand for: the messages numbered `first` up to, not including, `last`."""
    max_tokens: int
    scope: Scope = "own"
    previous: str = ""
    """The summary so far, where the new one takes its place."""
    turn_from: int | None = None
    """Where a turn is split: the number of the message that began it. It is told apart from the history."""
    ledger: Ledger = EMPTY
    """What must not get lost, whatever a model makes of it."""
    word_for_word: tuple[str, ...] = ()
    """What the user asked for, as lines that the summary begins with where it does not hold their words: the task, and the question of
    a turn that goes on after it. `max_tokens` does not count them."""
    focus: str = ""
    """What the user wants most of the room for."""
    sent: tuple[Message, ...] = ()
    """The same originals as messages, after the summaries that were shown before them: a provider may have them in its cache.
    Empty where anything had to be taken out of them."""
    system: str | tuple[Message, ...] = ""
    tools: tuple[Tool, ...] = ()
    recipe: Recipe = Recipe()
    """How the conversation's policy wants it made."""
    digested: int = 0
    """Texts that were too long for a summariser: the passages hold plain digests of them, marked as such."""

    @property
    def characters(self) -> int:
        """How much text there is to be read."""
        return sum(one.message.characters for one in self.passages) + len(self.previous)


class Summariser(Protocol):
    async def write(self, task: SummaryTask) -> Summary | None:
        """A summary that passed its checks, or None where none could be had: then the history stays as it is."""
        ...


class SummaryCache(Protocol):
    """Answers that were paid for, by the hash of their question. Whatever it raises costs money, and nothing else."""

    async def get(self, key: str) -> Summary | None: ...

    async def put(self, key: str, summary: Summary) -> None: ...
