"""Every picture is well-formed, bounded, described in words, and shows text from outside as text."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

import refold
from refold import svg
from refold.svg import Bar, BarRow, Dot, Lane, Level, Slice, TimeSpan, fit, fit_wide

KINDS = ("system", "summary", "history")
LEVELS = (Level("fold", "fold point"), Level("wall", "wall"), Level("window", "window"))
LANES = ("read", "written", "fresh")
EVIL = (
    '"><script>alert(1)</script>',
    "</svg></title></style><img src=x onerror=alert(1)>",
    "' onload='alert(1)",
    "javascript:alert(1)//]]>",
    "\x00\x08\x1b[31m\ud800\uffff",
    "\u202eevil\u2066\u200d",
    "&lt;b&gt;&#60;script&#62;",
    "a" * 5_000,
)
MOST_ELEMENTS = 1_200


def a_bar(at: int, *, marks=(), name: str | None = None, text: str = "", href: str | None = "?call=1") -> Bar:
    size = 400 + at % 50 * 60
    return Bar(
        name or f"{at + 1}", (400, size // 4, size), (6_000, 7_000, 8_192), (size, 100, 300), text, href,
        marks=marks,
    )  # fmt: skip


def every_picture(text: str, count: int) -> list[svg.Markup]:
    """One of each kind, of `count` things, with a text from outside wherever there is one."""
    bars = [
        a_bar(at, name=text, text=text, href=text, marks=("summarise",) * (at % 9 == 0))
        for at in range(count)
    ]
    levels = [Level("fold", text)]
    slices = [Slice("history", text, 100, text[:1]) for _ in range(min(count, 9))]
    spans = tuple(TimeSpan(at, at + 1, "root", text, text, has_summary=True) for at in range(count))
    lanes = [Lane(text, spans, at - 1 if at else None, at, href=text) for at in range(min(count, 200))]
    dots = [Dot(text, at + 1.0, at + 2.0, "best", text) for at in range(min(count, 40))]
    return [
        svg.stacked_bars(bars, KINDS, levels, label=text, lanes=LANES, lane_name=text, axis=text),
        svg.window_bar(500, 1_000, text),
        svg.grid(slices, 1_000, label=text),
        svg.before_after(count, 1, count, label=text),
        svg.bars([BarRow(text, at - 3.0, text) for at in range(count)], label=text),
        svg.lineage(lanes, label=text),
        svg.scatter(dots, label=text, axis=text, unit="$"),
        svg.sign("summarise"),
    ]


@pytest.mark.parametrize("text", EVIL)
@pytest.mark.parametrize("count", [0, 1, 30])
def test_text_from_outside_is_text_in_every_picture(text, count):
    for picture in every_picture(text, count):
        root = ET.fromstring(picture)
        allowed = {"svg", "g", "a", "path", "rect", "line", "circle", "text", "title", "desc"}
        assert {element.tag for element in root.iter()} <= allowed
        for element in root.iter():
            assert not [name for name in element.attrib if name.startswith("on") or name == "style"]


def test_a_label_is_read_as_it_was_written():
    label = "<b> & \"quoted\" 'x'"
    root = ET.fromstring(svg.window_bar(0, 10, label))
    assert root.find("title").text == label


@pytest.mark.parametrize("count", [0, 1, 2, 10_000])
def test_the_number_of_elements_is_bounded_and_numbers_are_finite(count):
    for picture in every_picture("name", count):
        root = ET.fromstring(picture)
        assert sum(1 for _ in root.iter()) <= MOST_ELEMENTS
        assert len(picture) < 150_000
        assert not re.search(r"\b(nan|inf|None)\b", picture)


def test_every_picture_says_in_words_what_it_is():
    for picture in every_picture("in words", 3)[:-1]:
        root = ET.fromstring(picture)
        title = root.find("title")
        assert root.get("aria-label") == "in words" or (title is not None and title.text == "in words")
        assert root.get("role") in ("img", "group")


def test_a_template_inserts_a_picture_as_it_is():
    picture = svg.sign("reduce")
    assert picture.__html__() == picture
    assert svg.joined([picture, "<x>"]) == f"{picture}&lt;x&gt;"


def boxes(path: str) -> list[tuple[float, float, float]]:
    """The left edge, the lower edge and the height of each box in a path."""
    found = re.findall(r"M([\d.]+) (\d+)v(-?\d+)h[\d.]+v\d+z", path)
    return [(float(x), int(y), -int(high)) for x, y, high in found]


def test_bars_are_stacked_to_scale():
    bars = [Bar("1", (100, 0, 300)), Bar("2", (100, 200, 100))]
    root = ET.fromstring(svg.stacked_bars(bars, KINDS, label="x"))
    drawn = {one.get("class"): boxes(one.get("d")) for one in root.iter("path")}

    tallest = 1_000 / 1.04
    assert [high for _, _, high in drawn["region system"]] == [round(tallest / 4)] * 2
    assert len(drawn["region summary"]) == 1
    x, floor, high = drawn["region summary"][0]
    assert x > 1
    assert floor == 1_000 - round(tallest / 4)
    assert floor - high == pytest.approx(1_000 - tallest * 3 / 4, abs=1)


def test_lines_are_named_with_their_last_value_and_one_far_above_is_not_drawn():
    bars = [Bar("1", (500, 0, 0), (1_000, None, 200_000)), Bar("2", (900, 0, 0), (1_200, None, 200_000))]
    root = ET.fromstring(svg.stacked_bars(bars, KINDS, LEVELS, label="x"))
    names = [one.text for one in root.iter("text") if "level-name" in one.get("class", "")]

    assert sorted(names) == ["fold point 1,200", "window 200,000 ↑"]
    assert [one.get("class") for one in root.iter("path") if "level" in one.get("class")] == ["level fold"]


def test_a_line_is_broken_where_it_is_not_known():
    bars = [Bar(f"{at}", (900,), (None if at == 1 else 1_000,)) for at in range(3)]
    root = ET.fromstring(svg.stacked_bars(bars, KINDS, LEVELS[:1], label="x"))
    path = next(one.get("d") for one in root.iter("path") if one.get("class") == "level fold")
    assert path.count("M") == 2


def test_names_of_lines_do_not_cover_one_another():
    bars = [Bar("1", (500,), (1_000, 1_010, 1_020))]
    root = ET.fromstring(svg.stacked_bars(bars, KINDS, LEVELS, label="x"))
    heights = sorted(float(one.get("y")) for one in root.iter("text") if "level-name" in one.get("class", ""))
    assert all(after - before > 13.9 for before, after in pairwise(heights))


def test_the_name_of_a_line_stands_on_no_line_and_below_the_top():
    levels = (svg.Level("fold", "fold point"), svg.Level("wall", "wall"), svg.Level("window", "window"))
    for heights in (
        (8_600, 8_900, 9_200),
        (8_600, 10_400, 12_000),
        (8_637, 8_638, 8_639),
        (40_000, 50_000, 60_000),
    ):
        bars = [svg.Bar(f"{at}", (8_000,), (heights[0] - 300 * (at < 7), *heights[1:])) for at in range(10)]
        drawn = svg.stacked_bars(bars, ("history",), levels, label="")
        names = [float(one) for one in re.findall(r'<text [^>]*y="([\d.]+)"[^>]*class="level-name', drawn)]
        top = max(float(one) for one in re.findall(r'viewBox="0 0 10 (\d+)"', drawn))
        lines = {
            22 + 300 * float(y) / top
            for path in re.findall(r'd="([^"]*)" class="level ', drawn)
            for y in re.findall(r"M\d+ (\d+)|V(\d+)", path)
            for y in y
            if y
        }
        assert len(names) == 3
        assert not [(name, line) for name in names for line in lines if name - 9 < line < name + 3]
        assert min(names) > 10, "what stands above the picture is not covered"


def test_the_axis_of_a_short_lineage_has_whole_numbers_once():
    for size in (1, 2, 3, 5):
        drawn = svg.lineage([svg.Lane("branch 1", (svg.TimeSpan(0, size, "root", ""),))], label="")
        ticks = re.findall(r'class="tick middle">(\d+)<', drawn)
        assert ticks == [f"{tick}" for tick in range(size + 1)]


def test_every_change_has_a_mark_although_the_calls_are_thinned():
    bars = [a_bar(at, marks=("summarise",) if at % 500 == 250 else ()) for at in range(5_000)]
    root = ET.fromstring(svg.stacked_bars(bars, KINDS, LEVELS, label="x", lanes=LANES))
    assert sum("mark summarise" in (one.get("class") or "") for one in root.iter("path")) == 10
    assert "5,000 calls, drawn as 180 bars, 10 changes" in root.find("desc").text


def test_one_call_at_a_time_is_in_the_order_of_the_tab_key():
    root = ET.fromstring(svg.stacked_bars([a_bar(at) for at in range(40)], KINDS, label="x"))
    places = [one.get("tabindex") for one in root.iter("a")]
    assert places == ["-1"] * 39 + ["0"]
    assert all(one.get("aria-label") for one in root.iter("a"))


def test_the_chosen_call_is_kept_when_calls_are_thinned():
    bars = [a_bar(at) for at in range(1_000)]
    bars[637] = svg.Bar("638", (1, 1, 1), href="?call=638", text="call 638", is_chosen=True)
    root = ET.fromstring(svg.stacked_bars(bars, KINDS, label="x"))
    chosen = [one for one in root.iter("a") if one.get("class") == "target chosen"]
    assert [one.get("href") for one in chosen] == ["?call=638"]
    assert chosen[0].get("tabindex") == "0"


def cells_of(picture: str) -> Counter[str]:
    found = Counter[str]()
    for one in ET.fromstring(picture).iter("path"):
        found[one.get("class").removeprefix("region ")] += one.get("d").count("M")
    return found


def test_a_grid_has_200_cells_and_one_at_least_for_each_part():
    parts = [Slice("system", "system", 1), Slice("history", "history", 49_999), Slice("free", "free", 50_000)]
    assert cells_of(svg.grid(parts, 100_000, label="x")) == {"system": 1, "history": 99, "free": 100}


def test_what_exceeds_the_window_is_below_a_line():
    parts = [Slice("history", "history", 1_500)]
    picture = svg.grid(parts, 1_000, label="x")
    assert cells_of(picture) == {"history": 260}
    assert 'class="window-end"' in picture
    assert 'class="window-end"' not in svg.grid([Slice("history", "history", 1_000)], 1_000, label="x")


@given(st.lists(st.integers(0, 300_000), max_size=9), st.integers(0, 200_000))
def test_a_grid_is_full_or_ends_in_a_line(sizes, window):
    parts = [Slice("history", "h", size) for size in sizes]
    cells = sum(cells_of(svg.grid(parts, window, label="x")).values())
    if sum(sizes) > max(1, window):
        assert cells > 200
    else:
        assert cells in (0, 200)


@pytest.mark.parametrize(
    ("tokens", "width", "state"),
    [(250, "25%", "window-bar"), (900, "90%", "window-bar warm"), (5_000, "100%", "window-bar bad")],
)
def test_a_window_bar_is_to_scale_and_ends_with_the_limit(tokens, width, state):
    root = ET.fromstring(svg.window_bar(tokens, 1_000, "x"))
    assert [one.get("width") for one in root.iter("rect")] == ["100%", width]
    assert root.get("class") == state


def test_values_below_zero_go_to_the_left():
    root = ET.fromstring(svg.bars([BarRow("a", -1.0, "-1"), BarRow("b", 3.0, "3")], label="x"))
    assert [(one.get("x"), one.get("width")) for one in root.iter("rect")] == [("0%", "25%"), ("25%", "75%")]


def test_a_fork_begins_where_it_left_its_base():
    lanes = [
        Lane("main", (TimeSpan(0, 8, "root", "root session"), TimeSpan(8, 20, "compaction", "open session"))),
        Lane("fork", (TimeSpan(10, 16, "root", "its session"),), 0, 10, is_chosen=True),
    ]
    root = ET.fromstring(svg.lineage(lanes, label="x"))
    forks = [one for one in root.iter("line") if one.get("class") == "fork"]
    assert [one.get("x1") for one in forks] == ["50%"]
    assert [one.get("class") for one in root.iter("rect")] == [
        "session root",
        "session compaction",
        "session root",
    ]


def test_every_class_of_a_picture_is_in_the_style_sheet_and_colours_have_a_dark_value():
    style = (Path(refold.__file__).parent / "svg.css").read_text(encoding="utf-8")
    pictures = [
        *every_picture("x", 12),
        svg.stacked_bars([a_bar(0, marks=("reduce", "undone"))], KINDS, LEVELS, label="x", lanes=LANES),
        svg.grid([Slice("history", "h", 9, "H")], 5, label="x"),
        svg.lineage([Lane("a", (TimeSpan(0, 3, "new", "s", is_undone=True),))], label="x"),
    ]
    used = {
        name
        for picture in pictures
        for one in re.findall(r'class="([^"]+)"', picture)
        for name in one.split()
    }
    assert not {name for name in used if f".{name}" not in style}
    colours = re.findall(r"(--[\w-]+): ([^;]+);", style)
    assert colours
    assert all(value.startswith("light-dark(") for _, value in colours)
    assert "url(" not in style


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=9), st.sampled_from([fit, fit_wide]))
def test_a_scale_shows_all_values_with_few_round_ticks(values, fit_some):
    scale = fit_some(values, 0, 100)

    assert 2 <= len(scale.ticks) <= 13
    assert scale.ticks == tuple(sorted(set(scale.ticks)))
    for value in values:
        assert -1e-6 <= scale.at(value) <= 100 + 1e-6


def test_next_to_nothing_has_a_scale_too():
    assert fit([5e-324], 0, 100).at(5e-324) < 1


def test_one_far_point_does_not_hide_the_others():
    assert fit_wide([20, 25, 400], 0, 100).at(25) > 10 > fit([20, 25, 400], 0, 100).at(25)
