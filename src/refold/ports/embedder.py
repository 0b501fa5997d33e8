"""The embedder protocol: turns texts into vectors, so that texts of similar meaning have similar directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Embedder(Protocol):
    """Turns texts into vectors."""

    @property
    def name(self) -> str:
        """The model and the dimension of its vectors. Only vectors with the same name are compared."""
        ...

    @property
    def least(self) -> float:
        """The least similarity of two texts that have something in common, from -1 to 1. Every model has a
        scale of its own, and -1 leaves nothing out.
        """
        ...

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """Return a vector for each text: 32-bit floats, little-endian, of length one; empty for a text
        without meaning.
        """
        ...
