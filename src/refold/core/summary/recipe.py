"""How a summary is made: everything about it that is a choice, as data.

One idea: whatever changes the answer belongs to the recipe, and nothing else does. A policy brings one, and whoever wants
another says so. The same recipe over the same source is the same summary.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from refold.core.summary.prompts import DEFAULT, Prompts
from refold.model.errors import ConfigError

Strategy: TypeAlias = Literal["abstractive", "extractive", "hierarchical", "selective"]
"""All of it at once where it fits; no model, the messages' own words; always in parts; only what people said and what failed."""
Reading: TypeAlias = Literal["transcript", "raw"]
"""How a model is shown the conversation: as a text between marks, or as the messages themselves, with the instruction after
them, so that the provider's cache holds most of the prompt."""


class Recipe(Struct, frozen=True, kw_only=True):
    strategy: Strategy = "abstractive"
    reading: Reading = "transcript"
    prompts: Prompts = DEFAULT
    max_tokens: int = 2_048
    """How long a summary may be, within what the window leaves for it: a checkpoint of more is hardly read."""
    temperature: float | None = 0.3
    """Low: a checkpoint should say the same thing twice. None where a model takes none."""

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ConfigError(
                f"a summary cannot have {self.max_tokens} tokens", hint="give max_tokens at least 1"
            )
        if self.temperature is not None and not 0 <= self.temperature <= 2:
            raise ConfigError(f"a temperature cannot be {self.temperature}", hint="give a number from 0 to 2")
