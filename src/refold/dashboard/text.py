"""Filters of the templates: numbers, money, times and texts of users as people read them.

Texts of users are escaped by the template. `shown` also makes characters visible that change the direction or the place of other
text, so that a name cannot look like another one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

_HIDDEN = re.compile("[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]")  # fmt: skip
"""Control characters, marks of direction, and characters without width that no script needs."""


def shown(value: object) -> str:
    """A text of a user with its hidden characters spelt out."""
    return _HIDDEN.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", str(value))


def marked(text: str, marks: Sequence[tuple[int, int]]) -> list[tuple[str, bool]]:
    """A text in parts, each with whether it is marked. Hidden characters are spelt out after the cut, which changes offsets."""
    parts, at = list[tuple[str, bool]](), 0
    for start, end in marks:
        parts += [(shown(text[at:start]), False), (shown(text[start:end]), True)]
        at = end
    return [*parts, (shown(text[at:]), False)]


def clipped(value: object, most: int = 80) -> str:
    text = shown(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def number(value: float) -> str:
    return f"{value:,.0f}"


def short(value: float) -> str:
    """A count of tokens in four characters or so: 950, 12.3k, 1.2M."""
    size = abs(value)
    for least, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= least * 0.9995:
            scaled = value / least
            return f"{scaled:.0f}{unit}" if abs(scaled) >= 99.95 else f"{scaled:.1f}{unit}"
    return f"{value:.0f}"


def dollars(value: float, places: int = 2) -> str:
    """Money to the cent, and a small amount to two digits that say something."""
    sign = "−" if value < 0 else ""
    amount = abs(value)
    if amount and amount < 0.01:
        return f"{sign}${amount:.4f}" if amount >= 0.00005 else f"{sign}<$0.0001"
    return f"{sign}${amount:,.{places}f}"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"


def moment(at: float) -> str:
    """A time for `datetime` attributes and titles, in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if at else ""


def iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def ago(at: float, now: float) -> str:
    """How long ago, in one unit."""
    seconds = max(0.0, now - at)
    for least, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= least:
            return f"{seconds / least:.0f} {unit} ago"
    return "just now"


def plural(count: int, word: str) -> str:
    if word.endswith("y") and word[-2:-1] not in "aeiou":
        many = f"{word[:-1]}ies"
    else:
        many = f"{word}es" if word.endswith("ch") else f"{word}s"
    return f"{count:,} {word if count == 1 else many}"


FILTERS: dict[str, Callable[..., Any]] = {
    "shown": shown,
    "clipped": clipped,
    "marked": marked,
    "number": number,
    "short": short,
    "dollars": dollars,
    "percent": percent,
    "moment": moment,
    "iso": iso,
    "ago": ago,
    "plural": plural,
}
