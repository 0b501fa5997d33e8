"""Plays recordings to engines, and writes what each would have sent at the points as token ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from benchmarks.kept.chat_format import ChatFormat, Encode
from benchmarks.kept.engines import maker
from benchmarks.kept.points import (
    Limits,
    Point,
    Talk,
    Turn,
    answers,
    choose,
    lower_bound,
    replies,
    stratum_of,
    survey,
    window_tokens,
)
from benchmarks.kept.run_files import Contexts, Ids, RenderedPoint
from refold.model.errors import WindowError

REPLY_TOKENS = 512
"""The first tokens of a reply that are scored: long ones would otherwise decide alone."""

Sent = dict[int, dict[str, list[dict[str, Any]]]]
"""The messages of each context, by turn and context."""


class Played(NamedTuple):
    """The contexts of one recording, and what was wrong with them."""

    sent: Sent
    faults: Counter[str]


def play(
    talk: Talk,
    turns: Collection[int],
    engines: Mapping[str, str],
    windows: Sequence[int],
    *,
    bounds: bool,
    tools: bool,
) -> Played:
    """The contexts at some turns of a recording. Every engine is asked before every reply, as in the session.
    A history that fits into a window is not measured there.
    """
    sent: Sent = {turn: _bounds(talk, turn) if bounds else {} for turn in turns}
    faults: Counter[str] = Counter()
    asked = set(replies(talk.body))
    for window in windows:
        wanted = {turn for turn in turns if window_tokens([*talk.system, *talk.body[:turn]]) > window}
        for name, spec in engines.items() if wanted else ():
            context = f"{name}@{window}"
            engine = maker(spec)()
            engine.start(talk.system, talk.tools if tools else None, window)
            for turn, message in enumerate(talk.body[: max(wanted) + 1]):
                if turn in asked:
                    try:
                        messages = engine.context()
                    except WindowError:
                        faults[f"{context} refused"] += turn in wanted
                    else:
                        if turn in wanted:
                            sent[turn][context] = messages
                            faults[f"{context} over the window"] += window_tokens(messages) > window
                engine.add(message)
    return Played(sent, +faults)


def _bounds(talk: Talk, turn: int) -> dict[str, list[dict[str, Any]]]:
    history = talk.body[:turn]
    return {"full": [*talk.system, *history], "lower": lower_bound(talk.system, history)}


class Writer:
    """Turns messages into segments of token ids, each written once."""

    def __init__(self, chat: ChatFormat, encode: Encode) -> None:
        self._chat, self._encode = chat, encode
        self._known: dict[str, int] = {}
        self.segments: list[Ids] = []
        self.header: Ids = np.array(encode(chat.header()), np.int32)

    def context(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> list[int]:
        return [self._number(text) for text in self._chat.segments(messages, tools)]

    def reply(self, message: dict[str, Any]) -> list[int]:
        return self._encode(self._chat.reply(message))

    def size(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> int:
        return sum(len(self.segments[at]) for at in self.context(messages, tools)) + len(self.header)

    def _number(self, text: str) -> int:
        at = self._known.get(text)
        if at is None:
            at = self._known[text] = len(self.segments)
            self.segments.append(np.array(self._encode(text), np.int32))
        return at

    def written(self, points: list[RenderedPoint]) -> Contexts:
        """The points with the segments that they use, and no others."""
        used = sorted({at for point in points for context in point.ctx.values() for at in context})
        place = {at: number for number, at in enumerate(used)}
        moved = [
            point._replace(ctx={name: [place[at] for at in context] for name, context in point.ctx.items()})
            for point in points
        ]
        return Contexts(moved, [self.segments[at] for at in used], self.header)


def chosen_points(
    talks: Iterable[Talk], writer: Writer, limits: Limits, *, seed: int, most: int, per_recording: int
) -> list[Point]:
    surveyed = [
        (
            talk.id,
            survey(
                talk,
                limits,
                lambda told, talk=talk: writer.size(told, talk.tools),
                lambda reply: len(writer.reply(reply)),
            ),
        )
        for talk in talks
    ]
    return choose(surveyed, limits, seed=seed, most=most, per_recording=per_recording)


def points_named(ids: Iterable[str], talks: Mapping[str, Talk], limits: Limits) -> list[Point]:
    """The points of another run, in its order.

    Raises:
        ValueError: the recordings do not have one of them.
    """
    found: list[Point] = []
    for name in ids:
        recording, _, turn = name.rpartition("@")
        talk = talks.get(recording)
        at = int(turn)
        if talk is None or at not in answers(talk.body):
            raise ValueError(f"the recordings have no reply {name}")
        history = talk.body[:at]
        sizes = (window_tokens([*talk.system, *history]), window_tokens(lower_bound(talk.system, history)))
        found.append(Point(recording, at, stratum_of(Turn(at, *sizes, 0, 0), limits.windows)))
    return found


def rendered(
    points: Sequence[Point],
    talks: Mapping[str, Talk],
    writer: Writer,
    engines: Mapping[str, str],
    windows: Sequence[int],
    *,
    bounds: bool = True,
    tools: bool = False,
    jobs: int = 1,
) -> tuple[Contexts, Counter[str]]:
    """The contexts of all points, and the number of contexts with each fault."""
    turns: dict[str, set[int]] = {}
    for point in points:
        turns.setdefault(point.recording, set()).add(point.turn)
    act = partial(_play_one, engines=engines, windows=windows, bounds=bounds, tools=tools)
    work = [(talks[recording], wanted) for recording, wanted in sorted(turns.items())]
    faults: Counter[str] = Counter()
    sent: dict[str, Sent] = {}
    for (talk, _), played in zip(work, _each(act, work, jobs), strict=True):
        sent[talk.id] = played.sent
        faults += played.faults
    out = [
        _rendered(point, talks[point.recording], writer, sent[point.recording][point.turn])
        for point in points
    ]
    return writer.written(out), faults


def _play_one(work: tuple[Talk, set[int]], **settings: Any) -> Played:
    return play(*work, **settings)


def _each(act: partial[Played], work: Sequence[tuple[Talk, set[int]]], jobs: int) -> Iterator[Played]:
    if jobs == 1:
        yield from map(act, work)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(act, work)


def _rendered(
    point: Point, talk: Talk, writer: Writer, sent: dict[str, list[dict[str, Any]]]
) -> RenderedPoint:
    return RenderedPoint(
        id=point.id,
        recording=point.recording,
        source=talk.source,
        stratum=point.stratum,
        target=writer.reply(talk.body[point.turn])[:REPLY_TOKENS],
        ctx={name: writer.context(messages, talk.tools) for name, messages in sent.items()},
        sizes={name: window_tokens(messages) for name, messages in sent.items()},
    )
