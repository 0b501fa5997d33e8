"""Points: the recorded replies that contexts are measured by.

They depend on the recordings, the windows and the seed, never on an engine, so that runs of different days can
stand in one table. A point is named by its recording and the index of the reply among the messages.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from refold.model.dialect import CHAT
from refold.replay import Recording, ReferenceCounter
from refold.wire import decode_message, encode_message
from refold.wire.translate import translate_messages, translate_tools

MAIN, LARGE, SHORT = "main", "large last message", "short history"
LEAST_REPLY = 8
"""Replies of fewer tokens say little."""
LOWER_SHARE = 0.95
"""The last unit and what always stays may fill this much of the smallest window; above it, a point is `LARGE`."""
_COUNTER = ReferenceCounter()


class Talk(NamedTuple):
    """A recording as the adapter takes it: messages in the format of Chat Completions."""

    id: str
    source: str
    system: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    body: list[dict[str, Any]]


class Point(NamedTuple):
    recording: str
    turn: int
    """The index of the reply among the messages that are not system messages."""
    stratum: str = MAIN

    @property
    def id(self) -> str:
        return f"{self.recording}@{self.turn}"


class Turn(NamedTuple):
    """A recorded reply, and the sizes that decide whether it can be a point."""

    turn: int
    window_tokens: int
    """Of the history, as a replay counts them."""
    lower_tokens: int
    """Of the lower bound, likewise."""
    model_tokens: int
    """Of the history, as the model counts them."""
    reply_tokens: int


class Limits(NamedTuple):
    """The histories that are chosen: larger than every window, and not too long for the model."""

    windows: tuple[int, ...] = (4_000, 8_000)
    shortest: int = 10_000
    longest: int = 31_000
    """In the model's own tokens; its context has 32,768."""


def talk_of(recording: Recording) -> Talk:
    body = translate_messages(recording.messages, CHAT)
    system = translate_messages(recording.system, CHAT)
    return Talk(
        recording.id,
        recording.source,
        [json.loads(bytes(encode_message(message, CHAT))) for message in system],
        json.loads(msgspec.json.encode(translate_tools(recording.tools, CHAT))),
        [json.loads(bytes(encode_message(message, CHAT))) for message in body],
    )


def window_tokens(messages: Iterable[dict[str, Any]]) -> int:
    """The size of messages as a replay counts it."""
    return sum(
        _COUNTER.message(decode_message(Raw(json.dumps(message, ensure_ascii=False).encode()), CHAT))
        for message in messages
    )


def replies(body: Sequence[dict[str, Any]]) -> list[int]:
    """The turns at which an engine is asked for a context: every reply that has something before it."""
    return [at for at in range(1, len(body)) if body[at]["role"] == "assistant"]


def answers(body: Sequence[dict[str, Any]]) -> list[int]:
    """The replies that can be points: a second one in a row answers nothing."""
    return [at for at in replies(body) if body[at - 1]["role"] != "assistant"]


def lower_bound(system: list[dict[str, Any]], body: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The system prompt, the first user message, and the last unit: a call with its results, or the user's words."""
    start = len(body) - 1
    while start and body[start]["role"] == "tool":
        start -= 1
    asked = next((at for at, message in enumerate(body) if message["role"] == "user"), None)
    first = [body[asked]] if asked is not None and asked < start else []
    return [*system, *first, *body[start:]]


def survey(
    talk: Talk,
    limits: Limits,
    model_tokens: Callable[[Sequence[dict[str, Any]]], int],
    reply_tokens: Callable[[dict[str, Any]], int],
) -> list[Turn]:
    """The turns of a recording whose history is long enough for every window and short enough for the model."""
    found: list[Turn] = []
    used = window_tokens(talk.system)
    sizes = [window_tokens([message]) for message in talk.body]
    asked = set(answers(talk.body))
    for turn, size in enumerate(sizes):
        if turn in asked and used > max(limits.windows):
            history = model_tokens([*talk.system, *talk.body[:turn]])
            if history > limits.longest:
                break
            if history >= limits.shortest:
                lower = window_tokens(lower_bound(talk.system, talk.body[:turn]))
                found.append(Turn(turn, used, lower, history, reply_tokens(talk.body[turn])))
        used += size
    return found


def stratum_of(turn: Turn, windows: Sequence[int]) -> str:
    if turn.lower_tokens > LOWER_SHARE * min(windows):
        return LARGE
    return MAIN if turn.window_tokens > max(windows) else SHORT


def choose(
    surveyed: Iterable[tuple[str, Sequence[Turn]]],
    limits: Limits,
    *,
    seed: int,
    most: int,
    per_recording: int,
) -> list[Point]:
    """At most so many points of each recording and in all, in random order: the beginning of a run is a sample too."""
    random_source = random.Random(seed)
    points: list[Point] = []
    for recording, turns in sorted(surveyed):
        long_enough = [turn for turn in turns if turn.reply_tokens >= LEAST_REPLY]
        points += [
            Point(recording, turn.turn, stratum_of(turn, limits.windows))
            for turn in later_preferred(long_enough, per_recording, random_source)
        ]
    return random_source.sample(points, min(most, len(points)))


def later_preferred(turns: Sequence[Turn], most: int, random_source: random.Random) -> list[Turn]:
    """Some of the turns, without repetition; the weight of a turn is its position, because long histories count."""
    left, picked = sorted(turns), []
    while left and len(picked) < most:
        picked.append(left.pop(random_source.choices(range(len(left)), range(1, len(left) + 1))[0]))
    return picked
