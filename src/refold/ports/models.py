"""The protocols of the models that the engine asks: `Upstream` for replies, `Summariser` for summaries, `Embedder` for
vectors.

Provider, wire format, key and retries are the business of the adapter that implements a protocol; callers do
not see them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

from msgspec import Struct

from refold.core.digest.ledger import EMPTY, Ledger
from refold.core.prompts import Passage, Recipe
from refold.model.message import Message
from refold.model.summary import Scope, Summary
from refold.model.tokens import Usage
from refold.model.window import Tool, Ttl
from refold.wire.reply import Reply
from refold.wire.sse import Delta


class Ask(Struct, frozen=True):
    """One question to a model, in no particular wire format."""

    messages: tuple[Message, ...]
    system: str | tuple[Message, ...] = ""
    """A text, or the system messages of a conversation as they came, so that the provider's cache hits."""
    tools: tuple[Tool, ...] = ()
    """The tools of the conversation, for the same reason. They are not meant to be called."""
    max_output: int = 2_048
    temperature: float | None = 0.3
    is_cached: bool = False
    """Whether the provider has read most of it before, and should look it up in its cache."""
    cache_ttl: Ttl | None = None
    """Lifetime of the cache breakpoints that are set in a request whose format has them; None sets none. The next ask
    of the conversation begins with the same messages."""
    estimated: int | None = None
    """Our own count of the input."""
    budget: int | None = None
    """The input that was allowed. A provider's refusal without a text is taken for an overflow only near this
    size."""
    compacts: bool = False
    """Whether the provider shall compact the messages instead of answering them. The reply then holds its compaction;
    an upstream that has none gives another reply, or none."""
    instructions: str = ""
    """What a compaction shall tell of; empty for the provider's own instructions."""

    @property
    def characters(self) -> int:
        """Characters in the messages."""
        return sum(message.characters for message in self.messages)


class Upstream(Protocol):
    """A connection to one model."""

    @property
    def model(self) -> str: ...

    async def ask(self, ask: Ask) -> Reply:
        """Return the model's reply.

        Raises:
            UpstreamError: there is none. The type of the error says why, and whether a smaller window would
                help.
        """
        ...


@runtime_checkable
class CountingUpstream(Upstream, Protocol):
    """An upstream that can also count tokens."""

    async def count(self, ask: Ask) -> int | None:
        """Return how many tokens the provider would read, by its own count; None if it cannot count.

        Raises:
            UpstreamError: as for `ask`.
        """
        ...


class StreamingUpstream(CountingUpstream, Protocol):
    """An upstream that can also stream replies."""

    def stream(self, ask: Ask) -> AsyncGenerator[Delta | Reply, None]:
        """Yield the reply while it is written, and at the end the same reply that `ask` returns.

        Close it (`contextlib.aclosing`) to stop the model early; the deltas so far were already received.

        Raises:
            UpstreamError: as for `ask`, also in the middle of a reply.
        """
        ...


# The summariser protocol: its task, its answer, and the cache of paid answers.

PaidQuestion: TypeAlias = tuple[str, Usage]
"""A question that a model has answered: the model's name and what the provider reported."""


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
    native_for: str = ""
    """The conversation's model, if its provider may compact; empty for none."""
    native_sent: tuple[Message, ...] = ()
    """The messages for it to compact: as it got them, after its last compaction or the summary that stands there."""
    not_native: str = ""
    """Why the provider is not asked to compact; empty if it may be."""
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


class SummaryFunction(Protocol):
    """A user's function that writes summaries, `async def` or plain; an empty text means that none could be
    written. A plain one is called in a thread of its own.
    """

    def __call__(
        self, messages: Sequence[dict[str, Any]], *, previous: str, max_tokens: int
    ) -> Awaitable[str] | str: ...


class SummaryCache(Protocol):
    """Cache of paid answers, by the hash of the question. An error of the cache costs money, but is not
    fatal.
    """

    async def get(self, key: str) -> Summary | None: ...

    async def put(self, key: str, summary: Summary) -> None: ...


# The embedder protocol: turns texts into vectors, so that texts of similar meaning have similar
# directions.


class Embedder(Protocol):
    """Turns texts into vectors."""

    @property
    def name(self) -> str:
        """The model and the dimension of its vectors. Only vectors with the same name are compared."""
        ...

    @property
    def least(self) -> float:
        """The least similarity of two texts that have something in common, from -1 to 1. Every model has a
        scale of its own, and -1 leaves nothing out; an object without this attribute is taken so.
        """
        ...

    async def embed(self, texts: Sequence[str]) -> Sequence[bytes | Sequence[float]]:
        """Return a vector for each text: a sequence of numbers, or bytes of 32-bit floats, little-endian, of length one; empty for a
        text without meaning.
        """
        ...
