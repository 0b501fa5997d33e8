"""Pictures: small pure functions from numbers to SVG text, for the replay report and the dashboard.

    numbers ─▶ Bar, Level, Slice, Lane, Dot ─▶ stacked_bars, window_bar, grid, lineage, scatter ─▶ Markup

A picture is a `Markup`: a string whose parts were all escaped when they were put together, so that a template
inserts it as it is. It has no script, no style attribute and no address of another host: colours and fonts are
classes of `svg.css`, which has light and dark values for them. The number of its elements is bounded
whatever it is drawn from: longer series are thinned, and what was left out is said in the picture.

Most pictures have no fixed width. Positions across are percentages, the rest are pixels, so that text and
marks keep their size from a telephone to a wide screen while the picture fills the room it is given.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

# Elements

MarkupChild: TypeAlias = "str | int | float | None"
_EMPTY = frozenset({"circle", "line", "path", "rect", "meta", "link", "input", "br"})
"""Elements that never have children. All others are closed by a tag of their own, which HTML requires."""
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]"
)
"""Characters that XML does not allow, and those that turn the direction of the text after them."""


class Markup(str):
    """Text that is safe to insert into a page: everything from outside was escaped."""

    __slots__ = ()

    def __html__(self) -> str:
        """Tell templates that it needs no escaping."""
        return str(self)


def escape(text: str) -> Markup:
    text = _UNPRINTABLE.sub("\ufffd", text)
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("'", "&#39;")):
        text = text.replace(character, entity)
    return Markup(text)


def node(tag: str, *children: MarkupChild, **attributes: str | float | None) -> Markup:
    """An element of SVG or HTML. `class_` is `class`, and `stroke_width` is `stroke-width`; an attribute of None is
    left out, and a child of None too.
    """
    given = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_as_text(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in _EMPTY:
        return Markup(f"<{tag}{given}/>")
    inside = "".join(_as_text(child) for child in children if child is not None)
    return Markup(f"<{tag}{given}>{inside}</{tag}>")


def _as_text(value: str | float) -> str:
    if isinstance(value, Markup):
        return value
    return escape(value) if isinstance(value, str) else _short(value)


def _short(value: float) -> str:
    """A number rounded to a hundredth: finer than any screen shows."""
    return str(value) if isinstance(value, int) else f"{value:.2f}".rstrip("0").rstrip(".")


def _share(part: float, whole: float = 1.0) -> str:
    return f"{_short(100.0 * part / whole if whole else 0.0)}%"


def joined(parts: Iterable[str]) -> Markup:
    """Several pieces one after the other; those that are no markup are escaped."""
    return Markup("".join(_as_text(part) for part in parts))


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


def round_ticks(most: float, count: int = 5) -> tuple[float, ...]:
    """Round numbers from 0 up to `most`, about as many as `count`."""
    step = _round_up(max(most, _LEAST) / count)
    return tuple(number * step for number in range(math.floor(most / step + 1e-9) + 1))


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


def thinned(count: int, most: int) -> list[range]:
    """The indexes from 0 to `count` in order, as at most `most` groups of nearly the same size."""
    groups = min(count, most)
    return [range(at * count // groups, (at + 1) * count // groups) for at in range(groups)]


# Bars over calls: stacked sizes, lines, marks, and a lane below

MOST_BARS = 180
"""Bars of one picture. On a screen of 1,280 pixels a bar is then four pixels wide, enough to point at."""
MarkKind: TypeAlias = Literal["summarise", "reduce", "undone"]


class Bar(Struct, frozen=True):
    """One call, or several in a row that are drawn as one."""

    name: str
    """Its number, for the axis."""
    parts: tuple[int, ...]
    """Tokens by region, from the bottom up, in the order of the names that the picture gets."""
    levels: tuple[int | None, ...] = ()
    """The height of each line at this call; None where it is not known."""
    lane: tuple[int, ...] = ()
    """The parts of the lane below: together they are its whole height."""
    text: str = ""
    """What it says in words: shown beside the pointer, and read to those who do not see the picture."""
    href: str | None = None
    is_chosen: bool = False
    marks: tuple[MarkKind, ...] = ()
    """Changes that were made just before it."""

    @property
    def total(self) -> int:
        return sum(self.parts)


class Level(Struct, frozen=True):
    """A line across the bars: its class, and its name."""

    kind: str
    name: str


_PLOT, _MARKS, _LANE, _GAP, _AXIS = 300, 22, 28, 12, 22
_UNITS = 1_000
"""The bars are drawn in a box that is so many units high and one unit per bar wide, and stretched."""
_OFF_SCALE = 3
"""A line that is so many times higher than everything else would press the bars flat: it is named and not drawn."""
_LINE_HEIGHT = 14
_NAME_HEIGHT, _NAME_GAP = 10, 5
"""How far the name of a line reaches above its baseline, and how far its baseline stands above a line."""


def stacked_bars(
    bars: Sequence[Bar],
    kinds: Sequence[str],
    levels: Sequence[Level] = (),
    *,
    label: str,
    lanes: Sequence[str] = (),
    lane_name: str = "",
    axis: str = "call",
) -> Markup:
    """Bars over calls. `kinds` are the classes of the parts, `lanes` those of the parts of the lane below."""
    groups = thinned(len(bars), MOST_BARS)
    shown = [_grouped([bars[at] for at in group]) for group in groups]
    top = _top(shown)
    floor, lane = _MARKS + _PLOT, _MARKS + _PLOT + _GAP
    bottom = lane + (_LANE if lanes else 0)
    return node(
        "svg",
        node("desc", _described(bars, shown)),
        *_height_lines(top),
        _stretched(shown, _MARKS, _PLOT, (*_stack(shown, kinds, top), *_steps(shown, levels, top))),
        *_lane(shown, lanes, lane_name, lane),
        *_level_names(shown, levels, top),
        *_bar_names(shown, axis, bottom),
        *_mark_signs(shown, floor),
        *_targets(shown, bottom),
        node("text", "no call yet", x="50%", y=_MARKS + _PLOT / 2, class_="empty") if not shown else None,
        class_="picture over-time",
        height=bottom + _AXIS,
        role="group",
        aria_label=label,
    )


def _grouped(bars: Sequence[Bar]) -> Bar:
    """Several bars as one: the largest, with the marks of all. The chosen one is kept in any case."""
    if len(bars) == 1:
        return bars[0]
    largest = max(bars, key=lambda bar: (bar.is_chosen, bar.total))
    marks = tuple(dict.fromkeys(mark for bar in bars for mark in bar.marks))
    text = f"calls {bars[0].name} to {bars[-1].name}, of which the largest is shown. {largest.text}"
    return Bar(
        largest.name,
        largest.parts,
        largest.levels,
        largest.lane,
        text,
        largest.href,
        largest.is_chosen,
        marks,
    )


def _top(shown: Sequence[Bar]) -> float:
    """The upper end of the picture: above all bars, and above each line that is not far off, with room for the names of the lines
    that are near it or beyond it.
    """
    most = float(max((bar.total for bar in shown), default=0))
    highest = sorted({level for bar in shown for level in bar.levels if level is not None})
    for level in highest:
        if level <= _OFF_SCALE * most or not most:
            most = max(most, level)
    named = _last_levels(shown)
    names = sum(level > most for level in named) + sum(0.9 * most <= level <= most for level in named)
    room = 1 - _LINE_HEIGHT * names / _PLOT if names > 1 else 1 / 1.04
    return most / room or 1.0


def _last_levels(shown: Sequence[Bar]) -> list[int]:
    """The last known height of each line."""
    count = max((len(bar.levels) for bar in shown), default=0)
    known = [
        [bar.levels[at] for bar in shown if at < len(bar.levels) and bar.levels[at] is not None]
        for at in range(count)
    ]
    return [found[-1] for found in known if found and found[-1] is not None]


def _described(bars: Sequence[Bar], shown: Sequence[Bar]) -> str:
    changes = sum(len(bar.marks) for bar in bars)
    thin = f", drawn as {len(shown):,} bars" if len(shown) < len(bars) else ""
    return f"{len(bars):,} calls{thin}, {changes:,} changes to the window."


def _stretched(shown: Sequence[Bar], y: float, height: float, children: Iterable[Markup]) -> Markup:
    box = f"0 0 {max(1, len(shown))} {_UNITS}"
    return node(
        "svg", *children, y=y, width="100%", height=height, viewBox=box, preserveAspectRatio="none",
        aria_hidden="true",
    )  # fmt: skip


def _stack(shown: Sequence[Bar], kinds: Sequence[str], top: float) -> Iterator[Markup]:
    """One path per region, so that the number of elements does not grow with the calls."""
    inset = 0.06 if len(shown) <= MOST_BARS / 2 else 0.0
    wide = _short(1 - 2 * inset)
    for at, kind in enumerate(kinds):
        path = ""
        for place, bar in enumerate(shown):
            part = bar.parts[at] if at < len(bar.parts) else 0
            if part <= 0:
                continue
            below = round(_UNITS * sum(bar.parts[:at]) / top)
            high = round(_UNITS * sum(bar.parts[: at + 1]) / top) - below
            path += f"M{_short(place + inset)} {_UNITS - below}v{-high}h{wide}v{high}z"
        if path:
            yield node("path", d=path, class_=f"region {kind}")


def _steps(shown: Sequence[Bar], levels: Sequence[Level], top: float) -> Iterator[Markup]:
    """A line of steps for each level; it is broken where the level is not known."""
    for at, level in enumerate(levels):
        path, before = "", None
        for place, bar in enumerate(shown):
            value = bar.levels[at] if at < len(bar.levels) else None
            if value is None or value > top:
                before = None
                continue
            y = round(_UNITS * (1 - value / top))
            path += f"H{place}V{y}" if before is not None else f"M{place} {y}"
            path += f"H{place + 1}"
            before = y
        if path:
            yield node("path", d=path, class_=f"level {level.kind}")


def _level_names(shown: Sequence[Bar], levels: Sequence[Level], top: float) -> Iterator[Markup]:
    """The name of each line at its right end, above every line that it would stand on; those off the scale at the top, the
    highest first.
    """
    found = list[tuple[int, str, str]]()
    for at, level in enumerate(levels):
        known = [bar.levels[at] for bar in shown if at < len(bar.levels) and bar.levels[at] is not None]
        if known and (value := known[-1]) is not None:
            found.append((value, f"{level.name} {value:,}", level.kind))
    beside = shown[-max(1, math.ceil(len(shown) / 3)) :]  # the bars behind a name where the picture is narrow
    heights = {value for bar in beside for value in bar.levels if value is not None and value <= top}
    lines = sorted((_MARKS + _PLOT * (1 - value / top) for value in heights), reverse=True)
    last = math.inf
    for value, text, kind in sorted(one for one in found if one[0] <= top):
        y = min(_MARKS + _PLOT * (1 - value / top) - _NAME_GAP, last - _LINE_HEIGHT)
        for line in lines:  # from the lowest up
            if y - _NAME_HEIGHT < line < y + _NAME_GAP:
                y = line - _NAME_GAP
        last = y
        yield node("text", text, x="100%", dx=-4, y=y, class_=f"level-name {kind}")
    off_scale = sorted((one for one in found if one[0] > top), reverse=True)
    for at, (_, text, kind) in enumerate(off_scale):
        y = _MARKS + (at + 1) * _LINE_HEIGHT
        yield node("text", f"{text} ↑", x="100%", dx=-4, y=y, class_=f"level-name {kind}")


def _height_lines(top: float) -> Iterator[Markup]:
    for tick in round_ticks(top, max(1, min(5, int(top)))):  # tokens are whole
        y = _MARKS + _PLOT * (1 - tick / top)
        yield node("line", x1=0, x2="100%", y1=y, y2=y, class_="rule")
        yield node("text", f"{tick:,.0f}", x=-8, y=y + 4, class_="tick end")


def _bar_names(shown: Sequence[Bar], axis: str, bottom: float) -> Iterator[Markup]:
    if not shown:
        return
    yield node("text", axis, x=-8, y=bottom + 16, class_="tick end")
    step = max(1, math.ceil(len(shown) / 10))
    for place in range(0, len(shown), step):
        yield node(
            "text", shown[place].name, x=_share(place + 0.5, len(shown)), y=bottom + 16, class_="tick middle"
        )


def _lane(shown: Sequence[Bar], lanes: Sequence[str], name: str, y: float) -> Iterator[Markup]:
    """The parts of each prompt, as shares of the height."""
    if not lanes:
        return
    yield node("rect", x=0, y=y, width="100%", height=_LANE, class_="lane-room")
    paths = dict.fromkeys(lanes, "")
    for place, bar in enumerate(shown):
        whole, below = sum(bar.lane), 0
        for kind, part in zip(lanes, bar.lane, strict=False):
            high = round(_UNITS * part / whole) if whole else 0
            if high:
                paths[kind] += f"M{place} {_UNITS - below}v{-high}h1v{high}z"
            below += high
    drawn = [node("path", d=path, class_=f"lane {kind}") for kind, path in paths.items() if path]
    yield _stretched(shown, y, _LANE, drawn)
    yield node("text", name, x=-8, y=y + _LANE / 2 + 4, class_="tick end")


_SIGNS: dict[MarkKind, str] = {
    "summarise": "M0-6 6 0 0 6-6 0z",
    "reduce": "M-4-4H4V4H-4z",
    "undone": "M-4.5-4.5 4.5 4.5M4.5-4.5-4.5 4.5",
}


def sign(kind: MarkKind) -> Markup:
    """The sign of a mark alone, for a legend or a table."""
    return node(
        "svg",
        node("path", d=_SIGNS[kind], class_=f"mark {kind}"),
        class_="picture sign",
        viewBox="-8 -8 16 16",
        width=14,
        height=14,
        aria_hidden="true",
    )


def _mark_signs(shown: Sequence[Bar], floor: float) -> Iterator[Markup]:
    """A sign in the row above the bars, at the left edge of the call before which the change was made."""
    for place, bar in enumerate(shown):
        for at, kind in enumerate(bar.marks):
            x = _share(place, len(shown))
            if not at:
                yield node("line", x1=x, x2=x, y1=_MARKS - 6, y2=floor, class_=f"mark-line {kind}")
            path = node("path", d=_SIGNS[kind], class_=f"mark {kind}")
            yield node("svg", path, x=x, y=10, class_="at", aria_hidden="true")


def _targets(shown: Sequence[Bar], bottom: float) -> Iterator[Markup]:
    """An area to point at for each bar. The chosen one, or the last, is in the order of the tab key; a script moves it."""
    chosen = next((at for at, bar in enumerate(shown) if bar.is_chosen), len(shown) - 1)
    for place, bar in enumerate(shown):
        area = node(
            "rect", x=_share(place, len(shown)), y=_MARKS, width=_share(1, len(shown)), height=bottom - _MARKS
        )
        is_link = bar.href is not None
        yield node(
            "a" if is_link else "g",
            area,
            class_="target chosen" if bar.is_chosen else "target",
            href=bar.href,
            tabindex=("0" if place == chosen else "-1") if is_link else None,
            aria_label=bar.text or bar.name,
            role=None if is_link else "img",
        )


# One window: a small bar, and a grid of cells


class Slice(Struct, frozen=True):
    """A part of a window: the class of its region, its name and letter, and its tokens."""

    kind: str
    name: str
    tokens: int
    letter: str = ""


NEARLY_FULL = 0.85


def window_bar(tokens: int, limit: int, label: str) -> Markup:
    """How full a window is, as one line; what exceeds the limit is cut at its end."""
    share = tokens / limit if limit else 0.0
    state = " bad" if share > 1 else " warm" if share > NEARLY_FULL else ""
    track = node("rect", width="100%", height=8, class_="track")
    used = node("rect", width=_share(min(share, 1.0)), height=8, class_="used")
    return node("svg", node("title", label), track, used, class_=f"window-bar{state}", role="img")


CELLS, ROW = 200, 20
"""Half a percent of the window each: fine enough to see one large tool result."""
_SIDE, _SPACE = 12, 2
_MOST_SPILL = 3 * ROW


def grid(parts: Sequence[Slice], window: int, *, label: str) -> Markup:
    """A window as a grid of 200 cells, drawn to scale; a part that is not empty has at least one cell. What exceeds the
    window is drawn below a line.
    """
    runs = _runs(parts, window)
    total = sum(count for _, count in runs)
    last = min(max(total, CELLS), CELLS + _MOST_SPILL)
    step, spill = _SIDE + _SPACE, 0 if total <= CELLS else 8

    def place(cell: int) -> tuple[int, int]:
        return cell % ROW * step, cell // ROW * step + (spill if cell >= CELLS else 0)

    drawn, start = [], 0
    for part, count in runs:
        end = min(start + count, last)
        places = [place(cell) for cell in range(start, end)]
        path = "".join(f"M{x} {y}h{_SIDE}v{_SIDE}h{-_SIDE}z" for x, y in places)
        if path:
            drawn.append(
                node("g", node("title", part.name), node("path", d=path, class_=f"region {part.kind}"))
            )
            x, y = places[0]
            if part.letter:
                drawn.append(node("text", part.letter, x=x + _SIDE / 2, y=y + 9.5, class_="letter"))
        start += count
    high = place(last - 1)[1] + _SIDE
    if spill:
        line = CELLS // ROW * step + spill / 2 - _SPACE / 2
        drawn.append(node("line", x1=0, x2=ROW * step - _SPACE, y1=line, y2=line, class_="window-end"))
    return node(
        "svg",
        node("title", label),
        *drawn,
        class_="picture grid",
        viewBox=f"0 0 {ROW * step - _SPACE} {high}",
        role="img",
    )


def _runs(parts: Sequence[Slice], window: int) -> list[tuple[Slice, int]]:
    """The number of cells of each part. They add up to 200 if the window is not overfull."""
    whole = max(1, window)
    found = [(part, max(1, round(part.tokens * CELLS / whole))) for part in parts if part.tokens > 0]
    if not found:
        return []
    total, largest = sum(count for _, count in found), max(range(len(found)), key=lambda at: found[at][1])
    is_over, part = sum(part.tokens for part in parts) > whole, found[largest]
    if not is_over and total != CELLS:
        found[largest] = part[0], max(1, part[1] + CELLS - total)
    elif is_over and total <= CELLS:
        found[largest] = part[0], part[1] + CELLS + 1 - total
    return found


def before_after(before: int, after: int, most: int, *, label: str) -> Markup:
    """Two sizes, one below the other: what was, and what is left of it."""
    whole = max(1, most)
    return node(
        "svg",
        node("title", label),
        node("rect", y=0, width=_share(min(before, whole), whole), height=5, class_="was"),
        node("rect", y=6, width=_share(min(after, whole), whole), height=5, class_="is"),
        class_="picture before-after",
        height=11,
        role="img",
    )


class BarRow(Struct, frozen=True):
    name: str
    value: float
    text: str
    """The value in words."""
    kind: str = ""


MOST_ROWS = 40


def bars(rows: Sequence[BarRow], *, label: str) -> Markup:
    """Horizontal bars with their names; values below zero are drawn to the left of the axis."""
    shown = rows[:MOST_ROWS]
    low, high = min((row.value for row in shown), default=0.0), max((row.value for row in shown), default=0.0)
    low, high = min(0.0, float(low)), max(0.0, float(high))
    whole, step, drawn = high - low or 1.0, 34, []
    for at, row in enumerate(shown):
        y, kind = at * step, f"amount {row.kind}".strip()
        start, wide = (row.value - low if row.value < 0 else -low), abs(row.value)
        drawn.append(node("text", row.name, x=0, y=y + 12, class_="name"))
        drawn.append(node("text", row.text, x="100%", y=y + 12, class_="value end"))
        drawn.append(
            node("rect", x=_share(start, whole), width=_share(wide, whole), y=y + 17, height=9, class_=kind)
        )
    more = len(rows) - len(shown)
    if more:
        drawn.append(node("text", f"and {more:,} more", x=0, y=len(shown) * step + 12, class_="name"))
    return node(
        "svg",
        node("title", label),
        *drawn,
        class_="picture bars",
        height=max(1, len(shown) * step + (18 if more else 0)),
        role="img",
    )


# Lineage: branches as lanes, sessions as ranges of messages


class TimeSpan(Struct, frozen=True):
    """A session: the messages from `first` up to, not including, `last`."""

    first: int
    last: int
    kind: str
    text: str
    href: str | None = None
    is_undone: bool = False
    has_summary: bool = False
    """Whether it was closed with a summary: a sign stands at its end."""


class Lane(Struct, frozen=True):
    """A branch: where it left another one, and its sessions."""

    name: str
    spans: tuple[TimeSpan, ...] = ()
    base: int | None = None
    """The index of the branch that it was forked from."""
    base_at: int = 0
    is_chosen: bool = False
    href: str | None = None


MOST_LANES, MOST_SPANS = 24, 100
_LANE_STEP, _SPAN_HIGH, _UNDONE_HIGH = 58, 18, 7


def lineage(lanes: Sequence[Lane], *, label: str) -> Markup:
    """Branches below one another, each with its sessions from left to right by the numbers of their messages. An undone
    session is a thin line below the one that took its place.
    """
    shown = lanes[:MOST_LANES]
    most = max((span.last for lane in shown for span in lane.spans), default=0) or 1
    left = MOST_SPANS
    drawn: list[Markup] = []
    for at, lane in enumerate(shown):
        y = 22 + at * _LANE_STEP
        spans = lane.spans[-left:] if left else ()
        left -= len(spans)
        drawn += _fork(lane, at, y, most)
        drawn += _lane_spans(spans, y, most)
        drawn.append(_lane_name(lane, y, len(lane.spans) - len(spans)))
    high = 22 + len(shown) * _LANE_STEP
    for tick in round_ticks(most, min(6, most)):  # messages are whole
        if lanes:
            drawn.append(node("text", f"{tick:,.0f}", x=_share(tick, most), y=high, class_="tick middle"))
    more = len(lanes) - len(shown)
    if more:
        drawn.append(node("text", f"and {more:,} more branches", x=0, y=high + 18, class_="name"))
    return node(
        "svg",
        *drawn,
        class_="picture lineage",
        height=high + (24 if more else 6),
        role="group",
        aria_label=label,
    )


def _fork(lane: Lane, at: int, y: float, most: int) -> list[Markup]:
    if lane.base is None or not 0 <= lane.base < at:
        return []
    x = _share(lane.base_at, most)
    above = 22 + lane.base * _LANE_STEP + _SPAN_HIGH
    return [
        node("line", x1=x, x2=x, y1=above, y2=y + _SPAN_HIGH / 2, class_="fork"),
        node("circle", cx=x, cy=above, r=3.5, class_="fork-point"),
    ]


def _lane_name(lane: Lane, y: float, left_out: int) -> Markup:
    text = f"{lane.name} (its first {left_out:,} sessions are not drawn)" if left_out else lane.name
    name = node("text", text, x=0, y=y - 6, class_="name chosen" if lane.is_chosen else "name")
    return node("a", name, href=lane.href) if lane.href else name


def _lane_spans(spans: Sequence[TimeSpan], y: float, most: int) -> Iterator[Markup]:
    for span in spans:
        wide = max(span.last - span.first, 0)
        top, high = (y + _SPAN_HIGH + 4, _UNDONE_HIGH) if span.is_undone else (y, _SPAN_HIGH)
        box = node(
            "rect", x=_share(span.first, most), width=_share(wide, most), y=top, height=high, rx=3,
            class_=f"session {'undone' if span.is_undone else span.kind}",
        )  # fmt: skip
        is_link = span.href is not None
        yield node(
            "a" if is_link else "g", node("title", span.text), box, href=span.href, aria_label=span.text,
            role=None if is_link else "img",
        )  # fmt: skip
    for span in spans:  # above the sessions that begin there
        if span.has_summary and not span.is_undone:
            path = node("path", d=_SIGNS["summarise"], class_="mark summarise")
            yield node(
                "svg", path, x=_share(span.last, most), y=y + _SPAN_HIGH / 2, class_="at", aria_hidden="true"
            )


# Points: two values of each candidate, with the line of those that no other one beats

_WIDTH, _HEIGHT = 440, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 22, 16, 44
_CHARACTER, _LINE = 6.6, 13.0
"""The width of a character of a name, and the height of a line."""
DotKind: TypeAlias = Literal["best", "other", "unsound"]


class Dot(Struct, frozen=True):
    """A mark at two values, with a name beside it."""

    name: str
    x: float
    y: float
    kind: DotKind = "other"
    title: str = ""
    """The whole of it in words."""


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


def scatter(
    points: Sequence[Dot], *, label: str, axis: str, unit: str = "", most: float = math.inf
) -> Markup:
    """Points by two values, the best ones joined by a staircase: between two of them only the one to the left can be
    had. `axis` names the values across, which begin with `unit`; `most` is the largest value possible upwards.
    """
    if not points:
        return node("svg", node("title", label), class_="picture scatter", viewBox="0 0 1 1", role="img")
    across = fit_wide([point.x for point in points], _LEFT, _WIDTH - _RIGHT)
    up = fit([point.y for point in points], _HEIGHT - _BOTTOM, _TOP, most=most)
    return node(
        "svg",
        node("title", label),
        *_axes(across, up, axis, unit),
        *_staircase(points, across, up),
        *reversed(list(_points(points, across, up))),
        class_="picture scatter",
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
    )


def _axes(across: Scale, up: Scale, axis: str, unit: str) -> Iterator[Markup]:
    for tick in up.ticks:
        y = up.at(tick)
        yield node("path", d=f"M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}", class_="rule")
        yield node("text", f"{tick:g}", x=_LEFT - 8, y=y + 4, class_="tick end")
    decimals = 0 if all(tick == int(tick) for tick in across.ticks) else 2
    for tick in across.ticks:
        x = across.at(tick)
        yield node("path", d=f"M{x:.1f} {_HEIGHT - _BOTTOM}v4", class_="rule")
        yield node("text", f"{unit}{tick:,.{decimals}f}", x=x, y=_HEIGHT - _BOTTOM + 18, class_="tick middle")
    yield node("text", axis, x=(_LEFT + _WIDTH - _RIGHT) / 2, y=_HEIGHT - 6, class_="tick middle")


def _staircase(points: Sequence[Dot], across: Scale, up: Scale) -> Iterator[Markup]:
    best = sorted((point.x, point.y) for point in points if point.kind == "best")
    if not best:
        return
    (x, y), *rest = best
    steps = "".join(f"H{across.at(x):.1f}V{up.at(y):.1f}" for x, y in rest)
    start = f"M{across.at(x):.1f} {_HEIGHT - _BOTTOM}V{up.at(y):.1f}"
    yield node("path", d=f"{start}{steps}H{_WIDTH - _RIGHT}", class_="front")


def _points(points: Sequence[Dot], across: Scale, up: Scale) -> Iterator[Markup]:
    """The best first, so that their names get the best positions; they are drawn last, above the others."""
    taken = [_Box(across.at(point.x) - 6, up.at(point.y), 12, "start") for point in points]
    for point in sorted(points, key=lambda point: point.kind != "best"):
        x, y = across.at(point.x), up.at(point.y)
        is_best = point.kind == "best"
        box = _place(point.name, x, y, taken, _BY_LINE if is_best else _BY_POINT)
        taken.append(box)
        yield node(
            "g",
            node("title", point.title or point.name),
            node("circle", cx=x, cy=y, r=5 if is_best else 4),
            node("text", point.name, x=box.x, y=box.y + 4, text_anchor=box.anchor),
            class_=f"point {point.kind}",
        )


_BY_POINT = (0, -0.6, 0.6, -1, 1, -1.6, 1.6, -2.2, 2.2)
_BY_LINE = (-0.8, 0, -1.2, 0.8, -1.6, 1.6, -2.2, 2.2)
"""Lines to move a name up or down, best first: the staircase continues to the right of its points."""


def _place(name: str, x: float, y: float, taken: Sequence[_Box], shifts: Sequence[float]) -> _Box:
    """Beside the point if there is room, otherwise slightly higher or lower."""
    width = len(name) * _CHARACTER
    tried = [
        _Box(x + side * 9, y + shift * _LINE, width, "start" if side > 0 else "end")
        for shift in shifts
        for side in (1, -1)
    ]
    inside = [box for box in tried if box.left >= _LEFT and box.right <= _WIDTH and box.y >= _LINE / 2]
    free = (box for box in inside if not any(box.overlaps(other) for other in taken))
    return next(free, (inside or tried)[0])
