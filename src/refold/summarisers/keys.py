"""Names under which answers and summaries are kept.

One idea: an answer is kept under its question, word for word, so the same question is never paid for twice, whichever
summary it was asked for: after a failure, for a turn more, for one more rule in the ledger. A summary carries the hash of
everything it was made with.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b

import msgspec

from refold.core.prompts import VERSION, Passage, Recipe, transcript
from refold.model.message import Message
from refold.model.window import Tool
from refold.ports.summariser import SummaryTask
from refold.ports.upstream import Ask


def key_of(recipe: Recipe, model: str, task: SummaryTask) -> str:
    """The hash of recipe, model and source."""
    settings = (recipe.strategy, recipe.reading, recipe.max_tokens, recipe.temperature, model, task.scope)
    numbers = (task.first, task.last, task.max_tokens, task.turn_from)
    ledger = (line for lines in msgspec.structs.astuple(task.ledger) for line in lines)
    told = (transcript(task.passages), task.previous, task.focus, *task.word_for_word)
    raw = _raw(task.sent, task.system, task.tools) if recipe.reading == "raw" else ()
    prompts = msgspec.structs.astuple(recipe.prompts)
    return _hash((VERSION, repr((*settings, *numbers)), *prompts, *told, *map(str, ledger), *raw))


def question_key(model: str, ask: Ask) -> str:
    """The hash of a question to a model."""
    settings = repr((model, ask.max_output, ask.temperature))
    return f"answer-{_hash((VERSION, settings, *_raw(ask.messages, ask.system, ask.tools)))}"


def _raw(
    messages: Iterable[Message], system: str | tuple[Message, ...], tools: Iterable[Tool]
) -> Iterator[str]:
    yield transcript(Passage(number, message) for number, message in enumerate(messages))
    yield system if isinstance(system, str) else "\n\n".join(message.text for message in system)
    yield from (f"{tool.name} {tool.schema}" for tool in tools)


def _hash(texts: Iterable[str]) -> str:
    """A name for these texts in this order. Half a pair of surrogates is no reason to have none."""
    found = blake2b(digest_size=16)
    for text in texts:
        found.update(b"\0")
        found.update(text.encode("utf-8", "surrogatepass"))
    return found.hexdigest()
