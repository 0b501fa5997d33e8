"""Tiers: the newest results whole, older ones cut to a few lines, the assistant's texts and calls untouched.

A reply mostly continues the assistant's own words and calls of the last turns, in order. So a full window
gives up the middle of old tool results first, and whole turns only if that is not enough.
"""

from __future__ import annotations

from msgspec import Struct

from refold.core.budget import share_of
from refold.core.shown import Room, Shown, StageResult, changed
from refold.core.stages.parts import cut_result, find_results, rebuilt, unread_from
from refold.core.stages.truncate import HANDLE_MARK, Mark
from refold.model.message import Part


class Tiers(Struct, frozen=True, tag="tiers"):
    """Cuts tool results that the model has read, oldest first, until the messages take their share of the room.

    All results are cut at first, and the newest messages that fit are counted. The room that is left then
    makes results whole again, from the newest on. Messages that do not fit are left to the summary. Results
    in the active turn are cut as well: in a long agent run most of them are there.
    """

    keep: float = 0.8
    """Share of the room that the messages take: beyond it, a summary is due soon again."""
    result: int = 300
    """Characters of a cut result, its first and last lines: they show its kind and its outcome. In the replay,
    100 to 600 differ little, because what matters are the calls and texts between the results."""
    mark: Mark = HANDLE_MARK

    def apply(self, shown: Shown, room: Room) -> StageResult:
        unread, cuts = unread_from(shown), dict[tuple[int, int], Part]()
        for found in find_results(shown):
            if found.index < unread and not room.is_pinned(found.item):
                cut = cut_result(found.result, self.result, self.mark, found.handle)
                if cut is not found.result:
                    cuts[found.index, found.place] = cut
        messages = rebuilt(shown, cuts)
        short = {index: room.counter.message(message) for index, message in messages.items()}
        first, left = self._first_kept(shown, short, share_of(self.keep, room.tokens))
        for index in sorted(short, reverse=True):
            more = shown.items[index].tokens - short[index]
            if index < first or more > left:
                break
            left -= more
            del messages[index]
        if not messages:
            return StageResult.skipped(shown, "the tool results that were read fit or are short")
        return changed("mask", shown, messages, room, lambda _: "tool output that was read")

    @staticmethod
    def _first_kept(shown: Shown, short: dict[int, int], left: int) -> tuple[int, int]:
        """Index of the oldest message that fits with its results cut, and the tokens that are left over."""
        first = len(shown.items)
        while first > 0 and (size := short.get(first - 1, shown.items[first - 1].tokens)) <= left:
            first -= 1
            left -= size
        return first, left
