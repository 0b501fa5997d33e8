"""A replay as one HTML page, to be opened from a file, mailed and kept.

    cells ─▶ charts ─▶ page ─▶ report.js
             drawn      │       drawn in
             here       ▼       the browser
                      HTML

The page is self-contained. The comparison of all candidates is drawn here and needs no script; views that
depend on the reader's choice (one recording over time, the order of a table) are drawn by the small script in
the page. The page may load nothing, and may run that script and no other: the policy in its head names the
hashes of the one style sheet and the one script. Text from outside, such as the name of a recording, therefore
cannot run as a script.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from typing import TypeAlias

import msgspec
from msgspec import Struct

from refold import svg
from refold.replay.candidate import WritingCost
from refold.replay.score import Ratio, Score, SentContext
from refold.replay.table import (
    MIN_DEMANDS,
    Cell,
    ReplayRow,
    Table,
    kept_free,
    milliseconds,
    percent,
    spending,
)
from refold.svg import Markup, node

# The chart of recall against cost, one for each window. A candidate is on the front if no other one is
# both cheaper and better at recall; a line joins the front. A candidate with refused or too large
# contexts cannot be on it, because contexts that cannot be sent can hold anything.


class Point(Struct, frozen=True):
    name: str
    dollars: float
    recall: float
    is_sound: bool
    """True if all contexts were valid and fitted."""
    label: str = ""
    """The text beside the mark, if it is not the whole name."""


def points(rows: Sequence[ReplayRow], tariff: str, suffix: str = "") -> list[Point]:
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


def front_chart(found: Sequence[Point], label: str) -> Markup:
    """The chart as SVG; `label` describes it in words."""
    best = front(found)
    dots = [
        svg.Dot(
            point.label or point.name,
            point.dollars,
            point.recall,
            "best" if point in best else "other" if point.is_sound else "unsound",
            _described(point),
        )
        for point in found
    ]
    return svg.scatter(dots, label=label, axis="dollars, all calls", unit="$", most=100)


def _described(point: Point) -> str:
    kept = "" if point.is_sound else "; some contexts were invalid or did not fit"
    return f"{point.name}: {point.recall:.1f} % for ${point.dollars:,.2f}{kept}"


# The columns of the table: a head, its meaning, and the value of a row

Column: TypeAlias = tuple[str, str, Callable[[ReplayRow], str]]

_RECALL: tuple[Column, ...] = (
    (
        "recall",
        "the share of old facts, names and numbers that a reply needed and its context held, %",
        lambda row: percent(row.fur_old),
    ),
    (
        "bound",
        "the share of them held with at least two of the words around them, %",
        lambda row: percent(row.bound),
    ),
    (
        "+ search",
        "the share of all facts, old and new, held or found by one search, %",
        lambda row: percent(row.with_recall),
    ),
    (
        "lines",
        "the share of old whole lines, such as code, that a reply repeated and its context held, %",
        lambda row: percent(row.lines_old),
    ),
    (
        "phrases",
        "the same of old runs of five words, %",
        lambda row: percent(row.phrases_old),
    ),
    ("rules", "rules of the user, kept letter for letter, %", lambda row: percent(row.rules)),
    ("made up", "literals that no message contains, %", lambda row: percent(row.made_up)),
)
_BY_MODEL: tuple[Column, ...] = (
    (
        "summaries $",
        "part of $: what a model was paid for writing summaries; ? where its price is not known",
        lambda row: _paid(row.summaries),
    ),
    (
        "failed",
        "summaries that the model could not write well enough, of those asked for; a digest served instead",
        lambda row: f"{row.summaries.failed:,} of {row.summaries.asked:,}" if row.summaries else "–",
    ),
)
_CHANGES: tuple[Column, ...] = (
    (
        "rewrites",
        "calls per 100 that do not extend the one before",
        lambda row: percent(row.rewrites_per_100),
    ),
    ("compactions", "rewrites that made the context smaller", lambda row: f"{row.compactions:,}"),
    (
        "p95 ms",
        "milliseconds to prepare a context, of 95 in 100 at most; without the wait for a model",
        lambda row: milliseconds(row.latency_ms["p95"]),
    ),
    ("valid", "contexts that a provider would take, %", lambda row: percent(row.valid)),
    ("fits", "contexts within the window, %", lambda row: percent(row.fits)),
)


def columns(tariff: str, *, by_model: bool) -> tuple[Column, ...]:
    """All columns; those about a model's summaries only if a model wrote any."""
    money: Column = (
        "$",
        "what all calls together would have cost",
        lambda row: _money(row.dollars.get(tariff)),
    )
    cache: Column = (
        "cache hits",
        "tokens read from the prompt cache, %",
        lambda row: percent(row.cache_hit.get(tariff)),
    )
    return (*_RECALL, money, *(_BY_MODEL if by_model else ()), cache, *_CHANGES)


def _money(dollars: float | None) -> str:
    return "-" if dollars is None else f"{dollars:,.2f}"


def _paid(writing: WritingCost | None) -> str:
    if writing is None:
        return "–"
    return "?" if writing.dollars is None else f"{writing.dollars:,.4f}"


# The contexts of a recording as compact series

_NUMBER = re.compile(r"\d[\d,]*")


class ChangeKind(Struct, frozen=True, array_like=True):
    """The kind of a change: the decision, and its reason split at the first number; `tail` is None without a
    number.
    """

    decision: str
    head: str
    tail: str | None = None


class Series(Struct, frozen=True, array_like=True):
    sizes: list[int]
    """Tokens of each context, minus the expected tokens."""
    rewritten: list[int]
    """The contexts that do not extend the previous one, each as the distance from the last such context."""
    cached: list[int]
    """Percent read from the cache, minus the expected percent."""
    changes: list[int]
    """For each change: calls since the last one, its kind, and its number minus the expected tokens."""


class Kinds:
    """Kinds of changes with their numbers, in the order of their first use."""

    def __init__(self) -> None:
        self._numbers: dict[ChangeKind, int] = {}

    def __iter__(self) -> Iterator[ChangeKind]:
        return iter(self._numbers)

    def number(self, kind: ChangeKind) -> int:
        return self._numbers.setdefault(kind, len(self._numbers))


def series(sent: Sequence[SentContext], kinds: Kinds) -> Series:
    rewritten = [call for call, one in enumerate(sent) if one.is_rewritten]
    return Series(
        [one.tokens - expected for one, expected in zip(sent, _expected(sent), strict=True)],
        [call - last for call, last in zip(rewritten, [0, *rewritten], strict=False)],
        list(_cached(sent)),
        list(_changes(sent, kinds)),
    )


def frame_tokens(sent: Sequence[SentContext]) -> int:
    """Tokens before every message: the tool definitions."""
    return next((one.bill.prompt_tokens - one.tokens for one in sent if one.bill.prompt_tokens), 0)


def _expected(sent: Sequence[SentContext]) -> Iterator[int]:
    before = 0
    for one in sent:
        yield before + one.added
        before = one.tokens


def _cached(sent: Sequence[SentContext]) -> Iterator[int]:
    frame, before = frame_tokens(sent), 0
    for one in sent:
        whole = frame + one.tokens
        expected = 0 if one.is_rewritten else min(before, whole)
        yield _percent_of(one.bill.cached_tokens, one.bill.prompt_tokens) - _percent_of(expected, whole)
        before = whole


def _percent_of(part: int, whole: int) -> int:
    """Rounded in the same way as in the script."""
    return int(100 * part / whole + 0.5) if whole else 0


def _changes(sent: Sequence[SentContext], kinds: Kinds) -> Iterator[int]:
    last = 0
    for call, (one, expected) in enumerate(zip(sent, _expected(sent), strict=True)):
        for change in one.changes:
            found = _NUMBER.search(change.reason)
            start, end = found.span() if found else (len(change.reason), 0)
            tail = change.reason[end:] if found else None
            yield from (call - last, kinds.number(ChangeKind(change.decision, change.reason[:start], tail)))
            if found:
                yield int(found[0].replace(",", "")) - expected
            last = call


# The data of the script, packed into the page

MAX_CALLS = 90_000
"""Calls that are drawn over time, longest recordings first: at two bytes each the page stays below 300 KB."""


def packed(cells: Sequence[Cell], tariff: str) -> str:
    """All data for the script of the page, as text."""
    plain = msgspec.json.encode(packed_columns(cells, tariff))
    return base64.b64encode(zlib.compress(plain, 9)).decode()


def packed_columns(cells: Sequence[Cell], tariff: str) -> dict[str, object]:
    rows = [(cell, score) for cell in cells for score in cell.scores]
    scores = [score for _, score in rows]
    names = [name for cell in cells for name in _names(cell.scores)]
    recordings = dict(zip(names, scores, strict=True))
    windows = list(dict.fromkeys(cell.window for cell in cells))
    candidates = list(dict.fromkeys(cell.candidate for cell in cells))
    shown, kinds = _longest(scores), Kinds()
    places = {name: at for at, name in enumerate(recordings)}
    return {
        "tariff": tariff,
        "windows": windows,
        "candidates": candidates,
        "recordings": list(recordings),
        "added": [[one.added for one in score.sent] for score in recordings.values()],
        "frame": [frame_tokens(score.sent) for score in recordings.values()],
        "recording": [places[name] for name in names],
        "window": [windows.index(cell.window) for cell, _ in rows],
        "candidate": [candidates.index(cell.candidate) for cell, _ in rows],
        **_numbers(scores, tariff),
        "series": [series(score.sent, kinds) if at in shown else None for at, score in enumerate(scores)],
        "kinds": list(kinds),
    }


def _names(scores: Sequence[Score]) -> Iterator[tuple[str, str]]:
    """The name and the source of each recording; a repeated name gets a number."""
    seen: Counter[tuple[str, str]] = Counter()
    for score in scores:
        name = score.recording, score.source
        seen[name] += 1
        yield (f"{score.recording} ({seen[name]})", score.source) if seen[name] > 1 else name


def _numbers(scores: Sequence[Score], tariff: str) -> dict[str, object]:
    """One column for each value of a recording under a candidate."""
    bills = [score.bills.get(tariff) for score in scores]
    caches = [Ratio(bill.cached_tokens, bill.prompt_tokens) if bill else Ratio() for bill in bills]
    return {
        "calls": [score.calls for score in scores],
        "demands": [score.old.whole for score in scores],
        "old": [_percent(score.old) for score in scores],
        "bound": [_percent(score.bound) for score in scores],
        "lines": [_percent(score.lines.old) for score in scores],
        "phrases": [_percent(score.phrases.old) for score in scores],
        "dollars": [round(bill.dollars, 4) if bill else None for bill in bills],
        "cache": [_percent(cache, 1) for cache in caches],
        "rewrites": [score.rewrites for score in scores],
        "compactions": [score.compactions for score in scores],
        "unsound": [score.calls - min(score.valid, score.fits) for score in scores],
        **_written(scores),
    }


def _written(scores: Sequence[Score]) -> dict[str, object]:
    """The cost of a model's summaries, and the number of failures; empty if no model wrote any."""
    found = [score.writing for score in scores]
    if not any(found):
        return {}
    paid = [one.dollars if one else None for one in found]
    return {
        "paid": [None if dollars is None else round(dollars, 6) for dollars in paid],
        "failed": [one.failed if one else None for one in found],
    }


def _percent(share: Ratio, least: int = MIN_DEMANDS) -> float | None:
    """The share in percent; None for fewer than `least` values, which would say nothing."""
    return round(100 * share.part / share.whole, 1) if share.whole >= least else None


def _longest(scores: Sequence[Score]) -> frozenset[int]:
    """The indexes of the scores that are drawn over time."""
    left, shown = MAX_CALLS, []
    for at in sorted(range(len(scores)), key=lambda at: -scores[at].calls):
        if scores[at].calls <= left:
            left -= scores[at].calls
            shown.append(at)
    return frozenset(shown)


def page(table: Table, cells: Sequence[Cell]) -> str:
    """The report of a replay as HTML."""
    tariff = table.tariffs[0] if table.tariffs else ""
    style = _asset("refold", "svg.css") + _asset("refold.replay", "report.css")
    script = _asset("refold.replay", "report.js")
    head = node(
        "head",
        node("meta", charset="utf-8"),
        node("meta", http_equiv="Content-Security-Policy", content=_policy(style, script)),
        node("meta", name="viewport", content="width=device-width, initial-scale=1"),
        node("meta", name="color-scheme", content="light dark"),
        node("title", "Refold replay"),
        node("style", Markup(style)),
    )
    data = node("script", packed(cells, tariff), id="data", type="application/octet-stream")
    body = node("body", node("div", *_sections(table, tariff), class_="page"), data, _script(script))
    return f"<!doctype html>\n{node('html', head, body, lang='en')}\n"


def _asset(package: str, name: str) -> str:
    return (files(package) / name).read_text(encoding="utf-8")


def _script(script: str) -> Markup:
    return node("script", Markup(script), type="module")


def _policy(style: str, script: str) -> str:
    rules = {
        "default-src": "'none'",
        "style-src": _hashed(style),
        "script-src": _hashed(script),
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def _hashed(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _sections(table: Table, tariff: str) -> Iterator[Markup]:
    sizes = dict.fromkeys(row.window for row in table.rows)
    windows = {size: [row for row in table.rows if row.window == size] for size in sizes}
    yield _header(table, tariff)
    yield node(
        "main",
        _fronts(table, windows, tariff),
        _summary(table, windows, tariff),
        *_chosen(),
        _every(),
        _notes(table),
    )


def _header(table: Table, tariff: str) -> Markup:
    calls = max((row.calls for row in table.rows), default=0)
    recordings = max((row.recordings for row in table.rows), default=0)
    candidates = len({row.candidate for row in table.rows})
    facts = f"{_many(recordings, 'recording')}, {_many(calls, 'call')}, {_many(candidates, 'candidate')}"
    bill = f"; prices of {tariff}, with its prompt cache" if tariff else ""
    return node(
        "header",
        node("div", node("h1", "Refold replay"), node("p", f"{facts}{bill}.")),
        node("button", "Dark", id="theme", type="button", hidden=""),
    )


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


HOW_TO_READ = (
    "Up and to the left is better. The line joins the candidates that no other one beats at both: "
    "the front. Recall is the share of old facts which a reply needed and its context still held. "
    "A hollow mark is a candidate that sent contexts which a provider would refuse."
)


def _fronts(table: Table, windows: dict[int, list[ReplayRow]], tariff: str) -> Markup:
    models = [one.model for one in table.summarisers]
    model = models[0] if len(models) == 1 else ""
    figures = [figure(window, rows, tariff, model) for window, rows in windows.items()]
    return node(
        "section",
        node("h2", "What is remembered, and what it costs"),
        node("p", HOW_TO_READ),
        node("div", *figures, class_="figures"),
    )


def figure(window: int, rows: Sequence[ReplayRow], tariff: str, model: str = "") -> Markup:
    """The chart of a window with its caption, for the report and the dashboard. If all summaries are by one model, it is named once
    and not beside every mark.
    """
    found = points(rows, tariff, f" {model}" if model else "")
    who = f"; + is with summaries by {model}" if model else ""
    title = node("figcaption", node("b", f"Window of {window:,} tokens"), f" recall of old facts, %{who}")
    if not found:
        return node(
            "figure", title, node("p", "No recording says anything about this window.", class_="empty")
        )
    names = ", ".join(point.name for point in front(found)) or "none"
    label = f"Recall against dollars in a window of {window:,} tokens. On the front: {names}."
    return node("figure", title, front_chart(found, label))


def _summary(table: Table, windows: dict[int, list[ReplayRow]], tariff: str) -> Markup:
    shown = columns(tariff, by_model=bool(table.summarisers))
    heads = [node("th", head, scope="col", title=meaning) for head, meaning, _ in shown]
    bodies = [_body(window, rows, shown, tariff) for window, rows in windows.items()]
    whole = node("table", node("thead", node("tr", node("th", "candidate", scope="col"), *heads)), *bodies)
    return node(
        "section",
        node("h2", "All candidates"),
        node("p", "Means over recordings; money and compactions are sums. A dot marks the front."),
        *_writers(table),
        node("div", whole, class_="wide", tabindex="0", role="group", aria_label="All candidates"),
        _meanings(shown),
    )


def _writers(table: Table) -> Iterator[Markup]:
    """The authors of the summaries, and the cost of this run."""
    for one in table.summarisers:
        yield node("p", node("b", f"+ {one.model}"), f": {spending(one)}.", class_="writer")
    if table.stopped:
        yield node("p", f"Stopped: {table.stopped}.", class_="stopped")


def _meanings(shown: Sequence[Column]) -> Markup:
    """The titles of the column heads as a list, for print and for devices without a pointer."""
    listed = [part for head, meaning, _ in shown for part in (node("dt", head), node("dd", meaning))]
    return node("details", node("summary", "What the columns mean"), node("dl", *listed))


def _body(window: int, rows: Sequence[ReplayRow], shown: Sequence[Column], tariff: str) -> Markup:
    best = {point.name for point in front(points(rows, tariff))}
    title = f"Window of {window:,} tokens"
    most = max(rows, key=lambda row: row.recordings)
    facts = f"{_many(most.recordings, 'recording')} longer than that, {_many(most.calls, 'call')}"
    head = node("th", title, node("small", facts), colspan=len(shown) + 1, scope="rowgroup")
    return node(
        "tbody",
        node("tr", head, class_="group"),
        *(_line(row, shown, row.candidate in best) for row in rows),
    )


def _line(row: ReplayRow, shown: Sequence[Column], is_best: bool) -> Markup:
    name = node("th", row.candidate, scope="row", class_="best" if is_best else None)
    return node("tr", name, *(_cell(head, show(row)) for head, _, show in shown))


def _cell(head: str, value: str) -> Markup:
    return node("td", value, class_="main" if head in ("recall", "$") else None)


def _chosen() -> Iterator[Markup]:
    """Containers that the script fills."""
    yield node(
        "section",
        node("h2", "One recording over time"),
        node(
            "p",
            "The size of every context that would have been sent. A diamond is a summary, a bar any other "
            "change; the strip below shows how much of each prompt was read from the cache.",
        ),
        node("p", "The picture needs JavaScript.", class_="empty script"),
        node("div", id="choice", class_="choice"),
        node("div", id="timeline", class_="timeline"),
        node("div", id="changes", class_="wide changes"),
        id="over-time",
    )


def _every() -> Markup:
    return node(
        "section",
        node("h2", "Every recording"),
        node(
            "p",
            "For the window and the candidate chosen above. A name draws its recording over time. "
            "Fewer than five old facts say nothing about recall (–).",
        ),
        node("p", "The table needs JavaScript.", class_="empty script"),
        node("div", id="every", class_="wide"),
    )


def _notes(table: Table) -> Markup:
    return node(
        "footer",
        node("p", f"Tokens: {table.counting}. Kept free in every window: {kept_free(table)}."),
        node(
            "p",
            "A recording that fits into a window says nothing about it and is left out there; one with fewer than "
            "five demands says nothing about recall. One number alone says nothing: forgetting is cheap. "
            "This page holds no message, only numbers, names of recordings and reasons.",
        ),
    )
