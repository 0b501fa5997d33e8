"""Whoever turns text into vectors: texts that mean something alike get vectors that point the same way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Embedder(Protocol):
    @property
    def name(self) -> str:
        """The model and how many numbers its vectors have: only vectors of one name are ever compared."""
        ...

    @property
    def least(self) -> float:
        """How near two texts are at least that have something in common, from -1 to 1: every model has a scale of its own, and
        -1 leaves nothing out.
        """
        ...

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """A vector for each of the texts: 32-bit floats, little-endian, of length one; empty for a text that says nothing."""
        ...
