"""The page itself: its sections, its tables, and what it is allowed to do.

One idea: the policy in the head names the hashes of the one style sheet and the one script below it. Whatever else got into
the page, through the name of a recording for example, would be text and nothing more.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from importlib.resources import files
from xml.etree.ElementTree import Element

from refold.replay.render import spending
from refold.replay.report.columns import Column, columns
from refold.replay.report.data import packed
from refold.replay.report.elements import node, written
from refold.replay.report.front import front, front_chart, points
from refold.replay.table import Cell, Row, Table


def page(table: Table, cells: Sequence[Cell]) -> str:
    """The report of a replay as HTML."""
    tariff = table.tariffs[0] if table.tariffs else ""
    style, script = _asset("page.css"), _asset("page.js")
    head = node(
        "head",
        node("meta", charset="utf-8"),
        node("meta", http_equiv="Content-Security-Policy", content=_policy(style, script)),
        node("meta", name="viewport", content="width=device-width, initial-scale=1"),
        node("meta", name="color-scheme", content="light dark"),
        node("title", "Refold replay"),
        node("style", style),
    )
    data = node("script", packed(cells, tariff), id="data", type="application/octet-stream")
    body = node("body", node("div", *_sections(table, tariff), class_="page"), data, _script(script))
    return f"<!doctype html>\n{written(node('html', head, body, lang='en'))}\n"


def _asset(name: str) -> str:
    return (files("refold.replay.report") / name).read_text(encoding="utf-8")


def _script(script: str) -> Element:
    return node("script", script, type="module")


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


def _sections(table: Table, tariff: str) -> Iterator[Element]:
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


def _header(table: Table, tariff: str) -> Element:
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


def _fronts(table: Table, windows: dict[int, list[Row]], tariff: str) -> Element:
    models = [one.model for one in table.summarisers]
    model = models[0] if len(models) == 1 else ""
    figures = [_figure(window, rows, tariff, model) for window, rows in windows.items()]
    return node(
        "section",
        node("h2", "What is remembered, and what it costs"),
        node(
            "p",
            "Up and to the left is better. The line joins the candidates that no other one beats at both: "
            "the front. Recall is the share of old facts which a reply needed and its context still held. "
            "A hollow mark is a candidate that sent contexts which a provider would refuse.",
        ),
        node("div", *figures, class_="figures"),
    )


def _figure(window: int, rows: Sequence[Row], tariff: str, model: str) -> Element:
    """The picture of a window; where all summaries are by one model, it is named once and not beside every mark."""
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


def _summary(table: Table, windows: dict[int, list[Row]], tariff: str) -> Element:
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


def _writers(table: Table) -> Iterator[Element]:
    """Who wrote the summaries, and what this run has paid for it."""
    for one in table.summarisers:
        yield node("p", node("b", f"+ {one.model}"), f": {spending(one)}.", class_="writer")
    if table.stopped:
        yield node("p", f"Stopped: {table.stopped}.", class_="stopped")


def _meanings(shown: Sequence[Column]) -> Element:
    """What the heads say when they are pointed at, for those who print, or have no pointer."""
    listed = [part for head, meaning, _ in shown for part in (node("dt", head), node("dd", meaning))]
    return node("details", node("summary", "What the columns mean"), node("dl", *listed))


def _body(window: int, rows: Sequence[Row], shown: Sequence[Column], tariff: str) -> Element:
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


def _line(row: Row, shown: Sequence[Column], is_best: bool) -> Element:
    name = node("th", row.candidate, scope="row", class_="best" if is_best else None)
    return node("tr", name, *(_cell(head, show(row)) for head, _, show in shown))


def _cell(head: str, value: str) -> Element:
    return node("td", value, class_="main" if head in ("recall", "$") else None)


def _chosen() -> Iterator[Element]:
    """Places that the script fills."""
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


def _every() -> Element:
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


def _notes(table: Table) -> Element:
    return node(
        "footer",
        node("p", f"Tokens: {table.counting}."),
        node(
            "p",
            "A recording that fits into a window says nothing about it and is left out there; one with fewer than "
            "five demands says nothing about recall. One number alone says nothing: forgetting is cheap. "
            "This page holds no message, only numbers, names of recordings and reasons.",
        ),
    )
