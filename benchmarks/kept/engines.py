"""Engines: what keeps a conversation inside a window, behind the first three methods of the adapter of `refold.testing`.

A preset is that adapter itself, so that the measured code is the code that users run. A baseline of the replay
gets the same methods here. Anything else is a class of your own with them, given as `module:Class`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol

from msgspec import Raw

from refold.core.presets import PRESETS
from refold.model.dialect import CHAT
from refold.model.message import Message
from refold.replay import BASELINES, Candidate, ReferenceCounter
from refold.testing import EvaluationAdapter
from refold.wire import decode_message, encode_message


class Engine(Protocol):
    """One way to keep a conversation inside a window."""

    def start(
        self, system: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, window: int
    ) -> None: ...

    def add(self, message: Mapping[str, Any]) -> None: ...

    def context(self) -> list[dict[str, Any]]: ...


class BaselineEngine:
    """A candidate of the replay with the methods of the adapter."""

    def __init__(self, candidate: Candidate) -> None:
        self._candidate = candidate
        self._spelled: dict[int, tuple[Message, dict[str, Any]]] = {}

    def start(
        self,
        system: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,  # noqa: ARG002  # no baseline looks at them
        window: int,
    ) -> None:
        self._spelled.clear()
        self._candidate.start(tuple(map(_decoded, system)), (), window, ReferenceCounter())

    def add(self, message: Mapping[str, Any]) -> None:
        self._candidate.add(_decoded(message))

    def context(self) -> list[dict[str, Any]]:
        return [self._as_json(message) for message in self._candidate.context()]

    def _as_json(self, message: Message) -> dict[str, Any]:
        """Written once; the message is kept beside its JSON, so that its `id()` is not reused."""
        known = self._spelled.get(id(message))
        if known is None:
            known = self._spelled[id(message)] = message, json.loads(bytes(encode_message(message, CHAT)))
        return known[1]


def _decoded(message: Mapping[str, Any]) -> Message:
    return decode_message(Raw(json.dumps(message, ensure_ascii=False).encode()), CHAT)


def maker(spec: str) -> Callable[[], Engine]:
    """The engine of a preset, of a baseline by its name, or of `module:Class`.

    Raises:
        ValueError: there is none.
    """
    if spec in PRESETS:
        return lambda: EvaluationAdapter(spec, counter=ReferenceCounter(), keeps_reserve=False)
    baselines = {made.name: made for made in BASELINES}
    if spec in baselines:
        return lambda: BaselineEngine(baselines[spec]())
    module, _, name = spec.partition(":")
    if not name:
        known = ", ".join([*PRESETS, *map(repr, baselines)])
        raise ValueError(f"there is no engine {spec!r}; give one of {known}, or module:Class")
    try:
        found: Callable[[], Engine] = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"there is no engine {spec!r}: {error}") from error
    return found


def named(argument: str) -> tuple[str, str]:
    """`NAME=SPEC`, or a spec that is its own name; a name stands before `@WINDOW` in files and tables."""
    name, has_name, spec = argument.partition("=")
    name, spec = (name, spec) if has_name else (argument, argument)
    if not name or "@" in name or name in ("full", "lower"):
        raise ValueError(f"an engine cannot be named {name!r}")
    maker(spec)
    return name, spec
