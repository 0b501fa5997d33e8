"""The classified meaning of a provider's refusal for the size of a window."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct, structs

OverflowKind: TypeAlias = Literal[
    "input_too_long",
    "input_plus_output",
    "bytes_too_large",
    "output_cap",
    "rate_limit",
    "malformed_history",
    "other",
]
LimitOf: TypeAlias = Literal["window", "minute", "item"]


class Overflow(Struct, frozen=True):
    """A classified error response, with the numbers that the provider stated (None for those it did not state)."""

    kind: OverflowKind
    limit: int | None = None
    """The largest size the provider accepts, in tokens (bytes for `bytes_too_large`, output tokens for `output_cap`)."""
    limit_of: LimitOf = "window"
    """The scope of the limit. Only the window's is worth remembering: a minute's is the account's, an item's one image's."""
    requested: int | None = None
    """The size of the whole request, including the output if the provider counts it."""
    prompt: int | None = None
    """The size of the input alone."""
    output: int | None = None
    """The requested output tokens."""
    evidence: str = ""
    """The rule that decided, for receipts and tests; never the provider's text."""

    @property
    def is_overflow(self) -> bool:
        """True if a smaller window solves the refusal."""
        return self.kind in ("input_too_long", "input_plus_output")

    def without(self, tokens: int) -> Overflow:
        """The same refusal as if prompt and window had so many tokens less."""
        if not tokens or not self.is_overflow:
            return self
        is_window = self.limit_of == "window"
        return structs.replace(
            self,
            limit=max(1, self.limit - tokens) if self.limit and is_window else self.limit,
            requested=max(0, self.requested - tokens) if self.requested else self.requested,
            prompt=max(0, self.prompt - tokens) if self.prompt else self.prompt,
        )
