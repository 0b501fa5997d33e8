"""The summariser protocol: its task, its answer, and the cache of paid answers."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from refold.core.digest.ledger import EMPTY, Ledger
from refold.core.prompts import Passage, Recipe
from refold.model.message import Message
from refold.model.summary import Scope, Summary
from refold.model.window import Tool


class SummaryTask(Struct, frozen=True):
    """The text to summarise, free of secrets, and the terms of the summary."""

    passages: tuple[Passage, ...]
    """The originals that the summary is made from, whole except for texts that are too long; see `digested`."""
    first: int
    last: int
    """The summary covers the messages numbered `first` up to, not including, `last`."""
    max_tokens: int
    scope: Scope = "own"
    previous: str = ""
    """The earlier summary, if the new one replaces it."""
    turn_from: int | None = None
    """The number of the message that began the last turn, if the summary ends within a turn. The turn is
    summarised apart from the history."""
    ledger: Ledger = EMPTY
    """Facts that must survive, regardless of the model's text."""
    word_for_word: tuple[str, ...] = ()
    """The user's requests, as lines that the summary begins with if its text does not contain them: the task,
    and the question of a turn that goes on after the summary. `max_tokens` does not count them."""
    focus: str = ""
    """The subject that the user wants most room for."""
    sent: tuple[Message, ...] = ()
    """The same originals as messages, after the summaries that were shown before them: a provider may have
    them in its cache. Empty if anything had to be redacted."""
    system: str | tuple[Message, ...] = ""
    tools: tuple[Tool, ...] = ()
    recipe: Recipe = Recipe()
    """The recipe of the conversation's policy."""
    digested: int = 0
    """Texts that were too long for a summariser: the passages hold plain digests of them, marked as such."""

    @property
    def characters(self) -> int:
        """Characters to be read."""
        return sum(one.message.characters for one in self.passages) + len(self.previous)


class Summariser(Protocol):
    """Writes summaries. Implement it to use a model or a service of your own."""

    async def write(self, task: SummaryTask) -> Summary | None:
        """Return a summary that passed its checks, or None if none could be written: then the history stays
        as it is.
        """
        ...


class SummaryCache(Protocol):
    """Cache of paid answers, by the hash of the question. An error of the cache costs money, but is not
    fatal.
    """

    async def get(self, key: str) -> Summary | None: ...

    async def put(self, key: str, summary: Summary) -> None: ...
