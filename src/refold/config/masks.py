"""Marks on settings that take free text: how each of them is shown.

Every setting in `tree` whose type holds a `str` carries one of these marks, and `keys` does not load a tree in which one is missing.
So whoever adds a setting decides there whether a secret may stand in it, and everything that shows settings follows: `refold config
show`, the start notice and the gateway's answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args, get_origin

from msgspec import Struct

from refold.model.mask import (
    HIDDEN,
    mask_command,
    mask_model,
    mask_store,
    mask_url,
    mask_values,
    mask_variable,
)


class Mask(Struct, frozen=True):
    """How a text is shown: `show` gives it without its secrets."""

    show: Callable[[Any], Any]
    hides: bool = True
    """Whether a secret may stand in it at all."""


def _show_models(specs: Sequence[str]) -> list[str]:
    return [mask_model(spec) for spec in specs]


def _show_count(texts: Sequence[str]) -> list[str]:
    return [HIDDEN for _ in texts]


def _show_all(value: Any) -> Any:
    return value


ADDRESS = Mask(mask_url)
STORE = Mask(mask_store)
COMMAND = Mask(mask_command)
VARIABLE = Mask(mask_variable)
HEADERS = Mask(mask_values)
MODELS = Mask(_show_models)
PATTERNS = Mask(_show_count)
"""Whoever sees them learns what others hide: only how many there are is shown."""
PLAIN = Mask(_show_all, hides=False)
"""Names and words that everybody may see."""


def takes_text(annotated: Any) -> bool:
    """Does a type hold free text anywhere? Of a `Literal` every word is known."""
    if annotated is str:
        return True
    return get_origin(annotated) is not Literal and any(map(takes_text, get_args(annotated)))
