"""A provider's prompt cache, as far as its bills show it.

One idea: a prompt that begins as an earlier one did need not be read again. What an earlier prompt left behind is known by
the place it ends at: a mark. A later prompt with the same beginning finds it there, as long as it lives and is large enough.

    sent first    system ▏ a b ▏            two marks: both beginnings are kept
    sent next     system ▏ a b   c d ▏      up to the second mark it is read, up to its own it is written
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from msgspec import Struct


class CacheRules(Struct, frozen=True):
    ttl_s: float = 300
    """Both providers state five minutes; a read begins them anew."""
    minimum: int = 1_024
    """A shorter beginning is not cached: what both providers state for most of their models."""
    step: int = 1
    """What is read is a multiple of this: one for Anthropic, 128 for OpenAI."""
    lookback: int | None = None
    """Steps back from a mark in which something cached is looked for; None looks all the way back."""


class Prompt(Struct, frozen=True):
    """A prompt as a cache sees it, piece by piece; a piece is a message, a block or a tool definition."""

    names: tuple[Hashable, ...]
    """For each piece the name of the beginning that ends with it: equal beginnings have equal names."""
    sizes: tuple[int, ...]
    """The tokens of those beginnings."""
    marks: Mapping[int, float | None]
    """The lengths, in pieces, of the beginnings to keep, with the seconds they live; None where the rules say so."""


class Hit(Struct, frozen=True, gc=False):
    """How many tokens of a prompt came from the cache, and how many went into it."""

    read: int = 0
    written: int = 0


class _Entry(Struct, gc=False):
    length: int
    ttl_s: float
    used_at: float


class PromptCache:
    """What one provider keeps; it forgets nothing but what has not been used for too long."""

    def __init__(self, rules: CacheRules) -> None:
        self.rules = rules
        self._kept: dict[Hashable, _Entry] = {}

    def send(self, prompt: Prompt, now: float) -> Hit:
        """Account for a prompt that is sent at a time."""
        self._forget(now)
        known = self._known(prompt)
        read = self._read(prompt, known)
        for entry in known:
            if prompt.sizes[entry.length - 1] <= read:
                entry.used_at = now
        return Hit(read, max(0, self._write(prompt, now) - read))

    def _forget(self, now: float) -> None:
        self._kept = {name: entry for name, entry in self._kept.items() if now - entry.used_at <= entry.ttl_s}

    def _known(self, prompt: Prompt) -> list[_Entry]:
        """The cached beginnings of this prompt that are looked for."""
        names = prompt.names
        return [
            entry
            for name, entry in self._kept.items()
            if entry.length <= len(names)
            and names[entry.length - 1] == name
            and self._is_seen(entry.length, prompt)
        ]

    def _is_seen(self, length: int, prompt: Prompt) -> bool:
        back = self.rules.lookback
        return back is None or any(0 <= mark - length < back for mark in prompt.marks)

    def _read(self, prompt: Prompt, known: list[_Entry]) -> int:
        most = max((prompt.sizes[entry.length - 1] for entry in known), default=0)
        return most // self.rules.step * self.rules.step if most >= self.rules.minimum else 0

    def _write(self, prompt: Prompt, now: float) -> int:
        """Keep what is marked; the size of the longest beginning kept."""
        longest = 0
        for length, ttl_s in prompt.marks.items():
            size = prompt.sizes[length - 1]
            if size >= self.rules.minimum:
                lives_s = self.rules.ttl_s if ttl_s is None else ttl_s
                self._kept[prompt.names[length - 1]] = _Entry(length, lives_s, now)
                longest = max(longest, size)
        return longest
