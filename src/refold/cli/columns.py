"""Lists for people: one line to a thing, in columns.

One idea: numbers stand under each other by their last digit, words by their first letter, and what may be long stands last.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

SHORT = 8
"""Characters of an id that are shown: enough to tell apart all that one person has, and commands take them."""


def align(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: frozenset[str]) -> str:
    """Rows under their heads; those in `numbers` are set to the right. The last column is as long as it is."""
    lines = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    is_number = [name in numbers for name in head]
    return "".join(f"{_line(row, widths, is_number)}\n" for row in lines)


def _line(row: Sequence[str], widths: Sequence[int], is_number: Sequence[bool]) -> str:
    cells = (
        cell.rjust(width) if right else cell.ljust(width)
        for cell, width, right in zip(row, widths, is_number, strict=True)
    )
    return "  ".join(cells).rstrip()


def when(at: float) -> str:
    """A time on the clock of whoever reads it; a dash where none is known, or none that could be."""
    try:
        return datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d %H:%M") if at else "-"
    except (OverflowError, OSError, ValueError):
        return "-"  # no calendar goes so far


def short(which: str) -> str:
    return which[:SHORT]
