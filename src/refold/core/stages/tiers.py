"""Tiers: the newest results whole, older ones cut to a few lines, the assistant's texts and calls untouched.

A reply mostly continues the assistant's own words and calls of the last turns, in order. So a full window
gives up the middle of old tool results first, and whole turns only if that is not enough.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from refold.core.budget import share_of
from refold.core.stage import Room, ShownMessages, StageResult, changed
from refold.core.stages.parts import Result, cut_result, find_results, rebuilt, unread_from
from refold.core.stages.truncate import HANDLE_MARK, Mark
from refold.model.message import Message, Part

HUGE = 0.8
"""Share of the room for messages: a result that is larger would leave the window almost empty."""
FILLED = 0.4
"""Share of the policy's target up to which a huge result is kept. In the replay, all of the target costs 1.5 % more
in a window of 8,000 tokens, and this share 0.2 %, for half of the gain."""


class Tiers(Struct, frozen=True, tag="tiers"):
    """Cuts tool results that the model has read, oldest first, until the messages take their share of the room.

    All results are cut at first, and the newest messages that fit are counted. The room that is left then
    makes results whole again, from the newest on, except those that are larger than it. Messages that do not
    fit are left to the summary. Results in the active turn are cut as well: in a long agent run most of them
    are there.

    A huge result that does not fit whole would leave the window almost empty. More of its beginning and end
    stays then: nothing else needs the room.
    """

    keep: float = 0.8
    """Share of the room that the messages take: beyond it, a summary is due soon again."""
    result: int = 300
    """Characters of a cut result, its first and last lines: they show its kind and its outcome. In the replay,
    100 to 600 differ little, because what matters are the calls and texts between the results."""
    mark: Mark = HANDLE_MARK

    def apply(self, shown: ShownMessages, room: Room) -> StageResult:
        unread = unread_from(shown)
        read = [
            found for found in find_results(shown) if found.index < unread and not room.is_pinned(found.item)
        ]
        messages = self._cut(shown, read, self.result)
        short = {index: room.counter.message(message) for index, message in messages.items()}
        most = share_of(self.keep, room.tokens)
        first, left = self._first_kept(shown, short, most)
        for index in sorted(short, reverse=True):
            more = shown.items[index].tokens - short[index]
            if index < first:
                break
            if more <= left:
                left -= more
                del messages[index]
            elif shown.items[index].tokens > share_of(HUGE, most):
                found = [one for one in read if one.index == index]
                free = share_of(FILLED, room.target) - (most - left)
                larger = self._cut_less(shown, found, room, free + short[index])
                for at, message in larger.items():
                    size = room.counter.message(message)
                    left -= size - short[at]
                    messages[at], short[at] = message, size
        if not messages:
            return StageResult.skipped(shown, "the tool results that were read fit or are short")
        return changed("mask", shown, messages, room, lambda _: "tool output that was read", short)

    def _cut(self, shown: ShownMessages, results: Sequence[Result], limit: int) -> dict[int, Message]:
        """The messages in which a result is longer than `limit` characters, with these results cut."""
        cuts = dict[tuple[int, int], Part]()
        for found in results:
            cut = cut_result(found.result, limit, self.mark, found.handle)
            if cut is not found.result:
                cuts[found.index, found.place] = cut
        return rebuilt(shown, cuts)

    def _cut_less(
        self, shown: ShownMessages, results: Sequence[Result], room: Room, tokens: int
    ) -> dict[int, Message]:
        """The message of these results, cut to a number of tokens; empty if that leaves no more than `result`."""
        size = sum(len(found.result.text) for found in results)
        limit = size * tokens // max(1, shown.items[results[0].index].tokens) // len(results)
        while limit > self.result:
            messages = self._cut(shown, results, limit)
            if all(room.counter.message(message) <= tokens for message in messages.values()):
                return messages
            limit = limit * 7 // 8
        return {}

    @staticmethod
    def _first_kept(shown: ShownMessages, short: dict[int, int], left: int) -> tuple[int, int]:
        """Index of the oldest message that fits with its results cut, and the tokens that are left over."""
        first = len(shown.items)
        while first > 0 and (size := short.get(first - 1, shown.items[first - 1].tokens)) <= left:
            first -= 1
            left -= size
        return first, left
