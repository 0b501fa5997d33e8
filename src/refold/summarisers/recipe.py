"""What a summary is made with.

One idea: whatever changes the answer belongs to the recipe, and nothing else does. The same recipe over the same source is the
same summary, so it is never paid for twice; another focus, prompt or model is another one.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from refold.core.summary.prompts import DEFAULT, VERSION, Passage, Prompts, transcript
from refold.model.errors import ConfigError
from refold.ports.summariser import SummaryTask

Strategy: TypeAlias = Literal["abstractive", "hierarchical", "selective"]
"""All of it at once where it fits, always in parts, or only what people said and what failed."""
Reading: TypeAlias = Literal["transcript", "raw"]
"""How a model is shown the conversation: as a text between marks, or as the messages it has read before, with the
instruction after them, so that the provider's cache holds most of the prompt."""


class Recipe(Struct, frozen=True, kw_only=True):
    strategy: Strategy = "abstractive"
    reading: Reading = "transcript"
    prompts: Prompts = DEFAULT
    max_tokens: int = 2_048
    """How long a summary may be, within what the window leaves for it."""
    temperature: float | None = 0.3
    """Low: a checkpoint should say the same thing twice. None where a model takes none."""

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ConfigError(f"a summary cannot have {self.max_tokens} tokens")
        if self.temperature is not None and not 0 <= self.temperature <= 2:
            raise ConfigError(f"a temperature cannot be {self.temperature}", hint="give a number from 0 to 2")


def key_of(recipe: Recipe, model: str, task: SummaryTask) -> str:
    """The name under which a summary is kept: a hash of recipe, model and source."""
    numbers = (task.first, task.last, task.max_tokens, task.turn_from)
    settings = msgspec.json.encode((VERSION, recipe, model, task.scope, numbers, task.ledger))
    told = (transcript(task.passages), task.previous, task.focus, *_raw(recipe, task))
    found = blake2b(settings, digest_size=16)
    for text in told:
        found.update(b"\0")
        found.update(text.encode("utf-8", "surrogatepass"))
    return found.hexdigest()


def _raw(recipe: Recipe, task: SummaryTask) -> tuple[str, ...]:
    """What a model reads besides the transcript where it reads the messages themselves."""
    if recipe.reading != "raw":
        return ()
    sent = (Passage(number, message) for number, message in enumerate(task.sent))
    return (transcript(sent), task.system, *(f"{tool.name} {tool.schema}" for tool in task.tools))
