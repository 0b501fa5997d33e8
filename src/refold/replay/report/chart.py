"""The chart of recall against cost, one for each window.

A candidate is on the front if no other one is both cheaper and better at recall; a line joins the front. A
candidate with refused or too large contexts cannot be on it, because contexts that cannot be sent can hold
anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TypeAlias
from xml.etree import ElementTree as ET
from xml.etree.ElementTree import Element

from msgspec import Struct

from refold.replay.table import TableRow

# Scales: from values to positions

_ROUND = (1.0, 2.0, 5.0, 10.0)
_WIDE, _WIDEST = 6, 1_000
"""A range whose end is this many times its start gets a logarithmic scale; otherwise one far point would hide
the others. Above the second number the start is treated as zero.
"""


_LEAST = 1e-9
"""A smaller range is drawn as if it were this large."""


class Scale(Struct, frozen=True):
    """Values from the first tick to the last one, between two positions."""

    ticks: tuple[float, ...]
    start: float
    end: float
    is_logarithmic: bool = False

    def at(self, value: float) -> float:
        low, high = self._level(self.ticks[0]), self._level(self.ticks[-1])
        share = (self._level(value) - low) / (high - low)
        return self.start + share * (self.end - self.start)

    def _level(self, value: float) -> float:
        return math.log(value) if self.is_logarithmic else value


def fit(values: Sequence[float], start: float, end: float, *, most: float = math.inf) -> Scale:
    """A linear scale that shows all the values, and nothing above `most`."""
    return Scale(_by_steps(min(values), max(values), most), start, end)


def fit_wide(values: Sequence[float], start: float, end: float) -> Scale:
    """A scale that shows all the values; logarithmic if they are far apart."""
    low, high = min(values), max(values)
    if low > 0 and _WIDE * low < high < _WIDEST * low:
        return Scale(_by_factors(low, high), start, end, is_logarithmic=True)
    return fit(values, start, end)


def _by_steps(low: float, high: float, most: float) -> tuple[float, ...]:
    """From slightly below the lowest value, but not below zero, to slightly above the highest."""
    margin = max(high - low or high or 1, _LEAST) * 0.08
    low, high = max(low - margin, 0.0), min(high + margin, most)
    step = _round_up((high - low) / 5)
    first, last = math.floor(low / step), math.ceil(high / step - 1e-9)
    return tuple(number * step for number in range(first, last + 1))


def _by_factors(low: float, high: float) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, … from below the lowest to above the highest."""
    power = 10.0 ** (math.floor(math.log10(low)) - 1)
    ticks = [factor * power * 10**more for more in range(8) for factor in _ROUND[:-1]]
    first = max(at for at, tick in enumerate(ticks) if tick < low)
    last = next(at for at, tick in enumerate(ticks) if tick > high)
    return tuple(ticks[first : last + 1])


def _round_up(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor for factor in _ROUND if factor * power >= step - 1e-12) * power


# HTML and SVG as trees of elements

Child: TypeAlias = "ET.Element | str | int | float"


def node(tag: str, *children: Child, **attributes: str | float | None) -> ET.Element:
    """An element. `class_` is `class`, and `stroke_width` is `stroke-width`; an attribute of None is left out."""
    given = {
        _attribute_name(name): _as_text(value) for name, value in attributes.items() if value is not None
    }
    element = ET.Element(tag, given)
    last: ET.Element | None = None
    for child in children:
        if isinstance(child, ET.Element):
            element.append(child)
            last = child
        elif last is None:
            element.text = (element.text or "") + _as_text(child)
        else:
            last.tail = (last.tail or "") + _as_text(child)
    return element


def to_html(element: ET.Element) -> str:
    return ET.tostring(element, encoding="unicode", method="html")


def _attribute_name(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def _as_text(value: str | float) -> str:
    """A value as text; coordinates are rounded to a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


# The chart

WIDTH, HEIGHT = 440, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 22, 16, 44
_CHARACTER, _LINE = 6.6, 13.0
"""The width of a character of a name, and the height of a line."""


class Point(Struct, frozen=True):
    name: str
    dollars: float
    recall: float
    is_sound: bool
    """True if all contexts were valid and fitted."""
    label: str = ""
    """The text beside the mark, if it is not the whole name."""


class _Box(Struct, frozen=True):
    """A possible position of a name."""

    x: float
    y: float
    width: float
    anchor: str

    def overlaps(self, other: _Box) -> bool:
        is_beside = self.left >= other.right or other.left >= self.right
        return not is_beside and abs(self.y - other.y) < _LINE

    @property
    def left(self) -> float:
        return self.x - self.width if self.anchor == "end" else self.x

    @property
    def right(self) -> float:
        return self.left + self.width


def points(rows: Sequence[TableRow], tariff: str, suffix: str = "") -> list[Point]:
    """The rows with both numbers; `suffix` is a common ending of names, and is left out of the labels."""
    return [
        Point(
            row.candidate,
            row.dollars[tariff],
            row.fur_old,
            row.valid == row.fits == 100,
            row.candidate.removesuffix(suffix),
        )
        for row in rows
        if row.fur_old is not None and tariff in row.dollars
    ]


def front(found: Sequence[Point]) -> list[Point]:
    """From the cheapest to the one with the best recall, each better than all cheaper ones."""
    best: list[Point] = []
    for point in sorted(found, key=lambda point: (point.dollars, -point.recall)):
        if point.is_sound and (not best or point.recall > best[-1].recall):
            best.append(point)
    return best


def front_chart(found: Sequence[Point], label: str) -> Element:
    """The chart as SVG; `label` describes it in words."""
    across = fit_wide([point.dollars for point in found], _LEFT, WIDTH - _RIGHT)
    up = fit([point.recall for point in found], HEIGHT - _BOTTOM, _TOP, most=100)
    best = front(found)
    return node(
        "svg",
        node("title", label),
        *_axes(across, up),
        *_line(best, across, up),
        *reversed(list(_marks(found, best, across, up))),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
    )


def _axes(across: Scale, up: Scale) -> Iterator[Element]:
    for tick in up.ticks:
        y = up.at(tick)
        yield node("path", d=f"M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}", class_="grid")
        yield node("text", f"{tick:g}", x=_LEFT - 8, y=y + 4, class_="tick", text_anchor="end")
    decimals = 0 if all(tick == int(tick) for tick in across.ticks) else 2
    for tick in across.ticks:
        x = across.at(tick)
        yield node("path", d=f"M{x:.1f} {HEIGHT - _BOTTOM}v4", class_="grid")
        yield node(
            "text",
            f"${tick:,.{decimals}f}",
            x=x,
            y=HEIGHT - _BOTTOM + 18,
            class_="tick",
            text_anchor="middle",
        )
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    yield node("text", "dollars, all calls", x=middle, y=HEIGHT - 6, class_="axis", text_anchor="middle")


def _line(best: Sequence[Point], across: Scale, up: Scale) -> Iterator[Element]:
    """A staircase: between two candidates only the cheaper one is available."""
    if not best:
        return
    first, *rest = best
    steps = "".join(f"H{across.at(point.dollars):.1f}V{up.at(point.recall):.1f}" for point in rest)
    start = f"M{across.at(first.dollars):.1f} {HEIGHT - _BOTTOM}V{up.at(first.recall):.1f}"
    yield node("path", d=f"{start}{steps}H{WIDTH - _RIGHT}", class_="front")


def _marks(found: Sequence[Point], best: Sequence[Point], across: Scale, up: Scale) -> Iterator[Element]:
    """The front first, so that its names get the best positions; it is drawn last, above the others."""
    taken = [_around(across.at(point.dollars), up.at(point.recall)) for point in found]
    for point in sorted(found, key=lambda point: point not in best):
        x, y = across.at(point.dollars), up.at(point.recall)
        kind = "best" if point in best else "other" if point.is_sound else "unsound"
        label = point.label or point.name
        box = _place(label, x, y, taken, _BY_LINE if kind == "best" else _BY_POINT)
        taken.append(box)
        yield node(
            "g",
            node("title", _mark_title(point)),
            node("circle", cx=x, cy=y, r=5.0 if kind == "best" else 4.0),
            node("text", label, x=box.x, y=box.y + 4, text_anchor=box.anchor),
            class_=f"mark {kind}",
        )


def _mark_title(point: Point) -> str:
    kept = "" if point.is_sound else "; some contexts were invalid or did not fit"
    return f"{point.name}: {point.recall:.1f} % for ${point.dollars:,.2f}{kept}"


def _around(x: float, y: float) -> _Box:
    return _Box(x - 6, y, 12, "start")


_BY_POINT = (0, -0.6, 0.6, -1, 1, -1.6, 1.6, -2.2, 2.2)
_BY_LINE = (-0.8, 0, -1.2, 0.8, -1.6, 1.6, -2.2, 2.2)
"""Lines to move a name up or down, best first: the front continues to the right of its points."""


def _place(name: str, x: float, y: float, taken: Sequence[_Box], shifts: Sequence[float]) -> _Box:
    """Beside the point if there is room, otherwise slightly higher or lower."""
    width = len(name) * _CHARACTER
    tried = [
        _Box(x + side * 9, y + shift * _LINE, width, "start" if side > 0 else "end")
        for shift in shifts
        for side in (1, -1)
    ]
    inside = [box for box in tried if box.left >= _LEFT and box.right <= WIDTH and box.y >= _LINE / 2]
    free = (box for box in inside if not any(box.overlaps(other) for other in taken))
    return next(free, (inside or tried)[0])
