"""Counts remembered by the digest of their text.

One idea: clients send the whole history again with every request, so nearly every text has been counted before. Keeping
digests instead of texts makes the memory a bound that holds, and retains nobody's words.
"""

from __future__ import annotations

from hashlib import blake2b

GENERATION = 16_384
"""Entries until the older half is forgotten: some 2,000 messages of eight live conversations, at most about 6 MB."""


class Memo:
    """Two generations: what is asked for moves to the young one, and what is left in the old one goes with it."""

    __slots__ = ("_limit", "_old", "_young")

    def __init__(self, generation: int = GENERATION) -> None:
        self._limit = generation
        self._young: dict[bytes, int] = {}
        self._old: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def get(self, key: bytes) -> int | None:
        known = self._young.get(key)
        if known is None and (known := self._old.get(key)) is not None:
            self.put(key, known)
        return known

    def put(self, key: bytes, tokens: int) -> None:
        if len(self._young) >= self._limit:
            self._old, self._young = self._young, {}
        self._young[key] = tokens


def digest(text: str) -> bytes:
    """16 bytes make an accidental collision impossible in practice, and a wanted one costs 2**64 attempts."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
