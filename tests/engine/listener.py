"""Somebody who listens to a conversation, and the rules that hold for whatever they hear."""

from __future__ import annotations

from typing import TypeVar

from refold.engine.events import CompactionEnd, CompactionStart, ContextSize, Event
from tests.engine.action_player import Played

E = TypeVar("E", bound=Event)


class Heard(list[Event]):
    """Every event, in its order. `Heard()` can be given as `on_event`."""

    def __call__(self, event: Event) -> None:
        self.append(event)

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self]

    def only(self, kind: type[E]) -> list[E]:
        return [event for event in self if isinstance(event, kind)]

    @property
    def end(self) -> CompactionEnd:
        """The end of the only compaction there was."""
        (end,) = self.only(CompactionEnd)
        self.check()
        return end

    def check(self) -> None:
        """Every compaction has one start and one end that belong together, and sizes add up."""
        acts = [event for event in self if isinstance(event, CompactionStart | CompactionEnd)]
        for start, end in zip(acts[::2], acts[1::2], strict=True):
            assert isinstance(start, CompactionStart)
            assert isinstance(end, CompactionEnd)
            assert (start.path, start.moment, start.before) == (end.path, end.moment, end.before)
            assert start.reason == end.reason != ""
            assert bool(end.problem) is (end.outcome != "installed")
            assert end.before.source == end.after.source
            check_size(end.before)
            check_size(end.after)


def check_size(size: ContextSize) -> None:
    regions = size.regions
    parts = [getattr(regions, name) for name in regions.__struct_fields__]
    assert sum(parts) == size.tokens
    assert size.percent == size.tokens * 100 // size.limit


def heard_from(talk: Played) -> Heard:
    heard = Heard()
    talk.events = heard
    return heard
