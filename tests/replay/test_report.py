from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from html.parser import HTMLParser
from random import Random
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.replay import REFERENCE, run, tabulate
from refold.replay.candidate import CandidateChange, DropOldest, NoLimit, candidates
from refold.replay.cost import CallBill
from refold.replay.recordings import read_recordings
from refold.replay.report import MAX_CALLS, Point, front, front_chart, packed_columns, page
from refold.replay.score import Ratio, Score, SentContext
from refold.replay.table import Cell
from tests.replay.recordings import recordings

pytestmark = pytest.mark.feature("N6")

EVIL = '</script></style><img src=x onerror="pwned=1"><script>pwned=1</script>&\''


class Page(HTMLParser):
    """The elements of a page, and the text of those that hold code."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: tuple[str, str] = "", ""
        self.code: dict[str, str] = {}
        self.words: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.open = tag, dict(attrs).get("id") or tag

    def handle_endtag(self, tag):
        self.open = "", ""

    def handle_data(self, data):
        tag, name = self.open
        if tag in ("script", "style"):
            self.code[name] = self.code.get(name, "") + data
        else:
            self.words.append(data)

    @property
    def data(self) -> dict:
        return json.loads(zlib.decompress(base64.b64decode(self.code["data"])))


@pytest.fixture(scope="module")
def cells(tmp_path_factory) -> tuple[Cell, ...]:
    makers = [*candidates(("refold",)), DropOldest, NoLimit]
    return run(recordings(tmp_path_factory.mktemp("corpus")), makers, (2_000, 8_000), clock=lambda: 0.0)


@pytest.fixture(scope="module")
def shown(cells) -> Page:
    return Page(page(tabulate(cells, REFERENCE), cells))


def made_up(
    recording: str = "r", calls: int = 3, *, window: int = 4_000, candidate: str = "c", seed: int = 0
) -> Score:
    """A recording whose context grows, and is cut when the window is full."""
    growth, choice = Random(f"{recording}"), Random(f"{recording}{window}{candidate}{seed}")
    sent: list[SentContext] = []
    size = 900
    for call in range(calls):
        added = growth.randint(100, 1_500)
        is_cut = size + added > window
        before, size = size, int(window * choice.uniform(0.4, 0.6)) if is_cut else size + added
        bill = CallBill(0.01, size, 300 if is_cut else before if call else 0)
        reason = f"{before + added:,} tokens >= 80 % of {window:,}"
        changes = (CandidateChange("summarise", reason, before + added, size),) if is_cut else ()
        sent.append(SentContext(size, added if call else size, bill, is_cut, changes))
    cuts = sum(one.is_rewritten for one in sent)
    bands = {"near": Ratio(9, 9), "mid": Ratio(choice.randint(0, 9), 9), "far": Ratio(4, 9)}
    return Score(
        recording,
        "made up",
        calls,
        calls,
        calls,
        0.7,
        bands,
        Ratio(5, 18),
        0,
        Ratio(1, 2),
        Ratio(0, 3),
        Ratio(2, 2),
        cuts,
        cuts,
        {"anthropic": sum((one.bill for one in sent), start=CallBill(choice.random()))},
        {},
        (0.1,) * calls,
        (0.1,) * calls,
        tuple(sent),
    )


def test_the_page_says_without_any_script_how_all_candidates_compare(shown):
    words = " ".join(shown.words)

    for name in ("refold", "drop oldest", "no limit", "Window of 2,000 tokens", "Window of 8,000 tokens"):
        assert name in words
    marks = [attributes["class"] for tag, attributes in shown.tags if tag == "g"]
    assert marks.count("point best") >= 2
    assert marks.count("point unsound") == 2


def test_the_page_needs_nothing_but_itself_and_may_run_nothing_else(shown):
    policy = next(a["content"] for tag, a in shown.tags if a.get("http-equiv") == "Content-Security-Policy")
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))

    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    for kind in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256(shown.code[kind].encode()).digest()).decode()
        assert rules[f"{kind}-src"] == f"'sha256-{digest}'"
    assert not [tag for tag, _ in shown.tags if tag in ("link", "img", "iframe", "a", "object")]
    assert not [
        name for _, attributes in shown.tags for name in attributes if name in ("src", "href", "style")
    ]
    assert set(re.findall(r"https?://[^\s\"']+", shown.code["script"])) == {"http://www.w3.org/2000/svg"}


def test_names_are_text_whatever_they_look_like():
    score = made_up(EVIL)
    cells = [Cell(EVIL, 4_000, (score,)), Cell("tame", 4_000, (score,))]

    shown = Page(page(tabulate(cells, REFERENCE), cells))

    assert [tag for tag, _ in shown.tags].count("script") == 2
    assert not [tag for tag, _ in shown.tags if tag == "img"]
    assert not [name for _, attributes in shown.tags for name in attributes if name.startswith("on")]
    assert shown.words.count(EVIL) >= 2
    assert shown.data["recordings"] == [[EVIL, "made up"]]


def test_no_word_of_a_conversation_is_in_the_page(tmp_path):
    canary = "hunter2canary"
    long = " ".join(f"{canary}{number}" for number in range(400))
    talk = [{"role": "user" if at % 2 else "assistant", "content": f"{at} {long}"} for at in range(1, 12)]
    path = tmp_path / "talk.jsonl"
    path.write_text(json.dumps({"id": "talk", "messages": talk}) + "\n", encoding="utf-8")
    cells = run(read_recordings(path), [*candidates(("refold",)), DropOldest], (2_000,))

    html = page(tabulate(cells, REFERENCE), cells)

    assert Page(html).data["recordings"] == [["talk", "talk"]]
    assert canary not in html + json.dumps(Page(html).data)


def restored(data: dict, at: int) -> tuple[list[int], list[int], list[tuple[int, str, str]]]:
    """What the script of the page makes of a series."""
    unexpected, gaps, misses, codes = data["series"][at]
    added, frame = data["added"][data["recording"][at]], data["frame"][data["recording"][at]]
    rewritten = {sum(gaps[: place + 1]) for place in range(len(gaps))}
    sizes, cached, before = [], [], 0
    for call, difference in enumerate(unexpected):
        sizes.append(before + added[call] + difference)
        whole = frame + sizes[-1]
        known = min(frame + before, whole) if call and call not in rewritten else 0
        cached.append(misses[call] + int(100 * known / whole + 0.5))
        before = sizes[-1]
    changes, call, codes = [], 0, list(codes)
    while codes:
        call += codes.pop(0)
        decision, head, tail = data["kinds"][codes.pop(0)]
        expected = (sizes[call - 1] if call else 0) + added[call]
        number = "" if tail is None else f"{codes.pop(0) + expected:,}{tail}"
        changes.append((call, decision, head + number))
    return sizes, cached, changes


def test_every_context_can_be_drawn_from_the_page(cells, shown):
    scores = [score for cell in cells for score in cell.scores]

    for at, score in enumerate(scores):
        sizes, cached, changes = restored(shown.data, at)
        assert sizes == [one.tokens for one in score.sent]
        assert cached == [
            int(100 * one.bill.cached_tokens / one.bill.prompt_tokens + 0.5) for one in score.sent
        ]
        assert changes == [
            (call, change.decision, change.reason)
            for call, one in enumerate(score.sent)
            for change in one.changes
        ]
    assert any(changes for at in range(len(scores)) for changes in restored(shown.data, at)[2])


def test_a_row_of_the_table_is_what_the_replay_measured(cells, shown):
    scores = [(cell, score) for cell in cells for score in cell.scores]
    data = shown.data

    for at, (cell, score) in enumerate(scores):
        assert data["windows"][data["window"][at]] == cell.window
        assert data["candidates"][data["candidate"][at]] == cell.candidate
        assert data["recordings"][data["recording"][at]] == [score.recording, score.source]
        assert data["calls"][at] == score.calls
        assert data["dollars"][at] == pytest.approx(score.bills["anthropic"].dollars, abs=1e-4)
        assert data["old"][at] == pytest.approx(100 * score.old.part / score.old.whole, abs=0.05)


def test_two_recordings_of_one_name_are_two():
    twice = [Cell(name, 4_000, (made_up(), made_up())) for name in ("a", "b")]

    assert packed_columns(twice, "anthropic")["recording"] == [0, 1, 0, 1]
    assert packed_columns(twice, "anthropic")["recordings"] == [("r", "made up"), ("r (2)", "made up")]


def test_the_report_of_a_whole_corpus_can_be_sent_by_mail():
    cells = [
        Cell(
            name, window, tuple(made_up(f"r-{at}", 5 + at, window=window, candidate=name) for at in range(79))
        )
        for window in (4_000, 8_000, 16_000, 32_000)
        for name in ("one", "two", "three", "four", "five", "six")
    ]
    assert sum(score.calls for cell in cells for score in cell.scores) > 80_000

    html = page(tabulate(cells, REFERENCE), cells)

    assert len(html.encode()) < 300_000
    assert None not in Page(html).data["series"]


def test_a_larger_corpus_is_drawn_for_its_longest_recordings_only():
    score = made_up(calls=MAX_CALLS // 2)
    cells = [Cell("c", 4_000, (score, made_up("short", 40), made_up("long", MAX_CALLS // 2)))]

    found = packed_columns(cells, "anthropic")

    assert [one is None for one in found["series"]] == [False, True, False]
    assert len(found["calls"]) == 3


def test_nothing_to_show_is_said():
    cells = [Cell("refold", 8_000, ())]

    assert (
        "No recording says anything about this window." in Page(page(tabulate(cells, REFERENCE), cells)).words
    )


POINTS = st.builds(
    Point,
    st.sampled_from("abcdef"),
    st.floats(0.01, 500),
    st.floats(0, 100),
    st.booleans(),
)


@given(st.lists(POINTS, max_size=12))
def test_the_front_is_what_nobody_beats(found):
    best = front(found)

    def beats(one: Point, other: Point) -> bool:
        better = one.dollars < other.dollars or one.recall > other.recall
        return one.dollars <= other.dollars and one.recall >= other.recall and better

    sound = [point for point in found if point.is_sound]
    assert all(point.is_sound for point in best)
    assert not [point for point in best if any(beats(other, point) for other in sound)]
    for point in sound:
        assert any(
            beats(other, point) or (other.dollars, other.recall) == (point.dollars, point.recall)
            for other in best
        )


@given(st.lists(POINTS, min_size=1, max_size=12))
def test_every_candidate_is_inside_the_picture(found):
    chart = ET.fromstring(front_chart(found, "label"))

    for circle in chart.iter("circle"):
        assert 0 <= float(circle.get("cx")) <= 440
        assert 0 <= float(circle.get("cy")) <= 300
    assert len(list(chart.iter("circle"))) == len(found)
