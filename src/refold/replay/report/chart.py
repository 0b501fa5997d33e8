"""What a candidate remembers against what it costs: a picture for each window.

One idea: a candidate is worth a look when none is at once cheaper and remembers more. Those are the front, joined by a line;
all others lie below it. A candidate whose contexts were refused or did not fit cannot be on it: what cannot be sent can
remember anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TypeAlias
from xml.etree import ElementTree as ET
from xml.etree.ElementTree import Element

from msgspec import Struct

from refold.replay.table import TableRow

# From values to places on paper.

_ROUND = (1.0, 2.0, 5.0, 10.0)
_WIDE, _WIDEST = 6, 1_000
"""A range whose end is so many times its beginning is told by factors: else one far point hides the others. Beyond that the
beginning is next to nothing, and may as well be nothing."""


_LEAST = 1e-9
"""A smaller range is drawn as if it were this large: nothing here is told as finely."""


class Scale(Struct, frozen=True):
    """Values from the first tick to the last one, between two places."""

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
    """A scale of steps that shows all the values, and nothing above the most that there can be."""
    return Scale(_by_steps(min(values), max(values), most), start, end)


def fit_wide(values: Sequence[float], start: float, end: float) -> Scale:
    """A scale that shows all the values, by factors where they are far apart."""
    low, high = min(values), max(values)
    if low > 0 and _WIDE * low < high < _WIDEST * low:
        return Scale(_by_factors(low, high), start, end, is_logarithmic=True)
    return fit(values, start, end)


def _by_steps(low: float, high: float, most: float) -> tuple[float, ...]:
    """From a bit below the lowest, but not below nothing, to a bit above the highest."""
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


# HTML and SVG as trees of elements.

Child: TypeAlias = "ET.Element | str | int | float"


def node(tag: str, *children: Child, **attributes: str | float | None) -> ET.Element:
    """An element. `class_` is `class`, and `stroke_width` is `stroke-width`; an attribute of None is left out."""
    given = {_spelled(name): _shown(value) for name, value in attributes.items() if value is not None}
    element = ET.Element(tag, given)
    last: ET.Element | None = None
    for child in children:
        if isinstance(child, ET.Element):
            element.append(child)
            last = child
        elif last is None:
            element.text = (element.text or "") + _shown(child)
        else:
            last.tail = (last.tail or "") + _shown(child)
    return element


def written(element: ET.Element) -> str:
    return ET.tostring(element, encoding="unicode", method="html")


def _spelled(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def _shown(value: str | float) -> str:
    """Coordinates need no more than a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


WIDTH, HEIGHT = 440, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 22, 16, 44
_CHARACTER, _LINE = 6.6, 13.0
"""The room that a character of a name takes, and that a line does."""


class Point(Struct, frozen=True):
    name: str
    dollars: float
    recall: float
    is_sound: bool
    """Were all contexts valid, and did all fit?"""
    label: str = ""
    """What stands beside its mark, where that is not the whole name."""


class _Box(Struct, frozen=True):
    """Where a name would be written."""

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
    """The rows of which both numbers are known; `suffix` is what many names end with, and labels do without."""
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
    """From the cheapest to the one that remembers most, each better than all that are cheaper."""
    best: list[Point] = []
    for point in sorted(found, key=lambda point: (point.dollars, -point.recall)):
        if point.is_sound and (not best or point.recall > best[-1].recall):
            best.append(point)
    return best


def front_chart(found: Sequence[Point], label: str) -> Element:
    """The picture; `label` says in words what it shows."""
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
    """Stairs: between two candidates there is nothing to be had, only the cheaper of them."""
    if not best:
        return
    first, *rest = best
    steps = "".join(f"H{across.at(point.dollars):.1f}V{up.at(point.recall):.1f}" for point in rest)
    start = f"M{across.at(first.dollars):.1f} {HEIGHT - _BOTTOM}V{up.at(first.recall):.1f}"
    yield node("path", d=f"{start}{steps}H{WIDTH - _RIGHT}", class_="front")


def _marks(found: Sequence[Point], best: Sequence[Point], across: Scale, up: Scale) -> Iterator[Element]:
    """The front first, so that its names get the best places; it is to be drawn last, over the others."""
    taken = [_around(across.at(point.dollars), up.at(point.recall)) for point in found]
    for point in sorted(found, key=lambda point: point not in best):
        x, y = across.at(point.dollars), up.at(point.recall)
        kind = "best" if point in best else "other" if point.is_sound else "unsound"
        label = point.label or point.name
        box = _place(label, x, y, taken, _BY_LINE if kind == "best" else _BY_POINT)
        taken.append(box)
        yield node(
            "g",
            node("title", _told(point)),
            node("circle", cx=x, cy=y, r=5.0 if kind == "best" else 4.0),
            node("text", label, x=box.x, y=box.y + 4, text_anchor=box.anchor),
            class_=f"mark {kind}",
        )


def _told(point: Point) -> str:
    kept = "" if point.is_sound else "; some contexts were invalid or did not fit"
    return f"{point.name}: {point.recall:.1f} % for ${point.dollars:,.2f}{kept}"


def _around(x: float, y: float) -> _Box:
    return _Box(x - 6, y, 12, "start")


_BY_POINT = (0, -0.6, 0.6, -1, 1, -1.6, 1.6, -2.2, 2.2)
_BY_LINE = (-0.8, 0, -1.2, 0.8, -1.6, 1.6, -2.2, 2.2)
"""How many lines higher or lower to write a name, best first: the front runs on to the right of its points."""


def _place(name: str, x: float, y: float, taken: Sequence[_Box], shifts: Sequence[float]) -> _Box:
    """Beside the point where there is room, else a bit higher or lower."""
    width = len(name) * _CHARACTER
    tried = [
        _Box(x + side * 9, y + shift * _LINE, width, "start" if side > 0 else "end")
        for shift in shifts
        for side in (1, -1)
    ]
    inside = [box for box in tried if box.left >= _LEFT and box.right <= WIDTH and box.y >= _LINE / 2]
    free = (box for box in inside if not any(box.overlaps(other) for other in taken))
    return next(free, (inside or tried)[0])
