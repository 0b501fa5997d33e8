"""Limits every tool result and every call to its share of the window.

One huge part must not displace everything else. Shares refer to the room that the instructions leave, and
newer parts may be larger than older ones.
"""

from __future__ import annotations

from msgspec import Struct

from refold.core.budget import exact
from refold.core.shown import Room, Shown, StageResult, changed
from refold.core.stages.parts import ShownPart, cut_piece, find_pieces, rebuilt, text_of, unread_from
from refold.core.stages.truncate import HANDLE_MARK, Mark, weighted
from refold.model.message import Part, Text, ToolCall, ToolResult
from refold.model.tokens import TokenCounter


class Fit(Struct, frozen=True, tag="fit"):
    result_share: float = 0.30
    """Share of the room for the newest tool result: with more, three results would leave nothing for the conversation."""
    input_share: float = 0.15
    """Share of the room for the arguments of the newest call: it has run, and its result shows the outcome."""
    user_share: float = 0.0
    """Share of the room for the text of the newest user message; 0 leaves user messages unchanged."""
    floor: int = 200
    """Characters that every part keeps."""
    max_result: int = 400_000
    max_input: int = 200_000
    """Characters beyond which no model reads a single result or input well, in a window of any size."""
    measured: bool = False
    """Count the tokens of each text instead of assuming four characters per token: code and Chinese are denser."""
    active: bool = False
    """Cut inside the active turn as well: if one result alone does not fit, nothing helps otherwise."""
    unread: bool = True
    """Cut messages after the newest reply as well, which the model has not read yet."""
    mark: Mark = HANDLE_MARK

    def apply(self, shown: Shown, room: Room) -> StageResult:
        return self.within(shown, room, room.tokens, "fit", "larger than its share")

    def within(self, shown: Shown, room: Room, tokens: int, stage: str, reason: str) -> StageResult:
        """Cut every part to its share of `tokens`."""
        last = len(shown.items) if self.unread else unread_from(shown)
        pieces = [piece for piece in find_pieces(shown) if piece.index < last]
        parts = {
            **self._cuts(_of(pieces, ToolResult), self.result_share, self.max_result, tokens, shown, room),
            **self._cuts(_of(pieces, ToolCall), self.input_share, self.max_input, tokens, shown, room),
        }
        if self.user_share:
            said = [piece for piece in _of(pieces, Text) if piece.item.message.role == "user"]
            parts |= self._cuts(said, self.user_share, self.max_result, tokens, shown, room)
        if not parts:
            return StageResult.skipped(shown, "nothing is larger than its share")
        return changed(stage, shown, rebuilt(shown, parts), room, lambda _: reason)

    def _cuts(
        self, pieces: list[ShownPart], share: float, most: int, tokens: int, shown: Shown, room: Room
    ) -> dict[tuple[int, int], Part]:
        """The shortened parts among the pieces of one kind."""
        cap = int(exact(share) * max(0, tokens))
        cuts: dict[tuple[int, int], Part] = {}
        for position, piece in enumerate(pieces):
            if not self._may_touch(piece, shown, room):
                continue
            if self.measured:
                cut = self._cut_measured(piece, weighted(cap, position, len(pieces)), most, room.counter)
            else:
                limit = weighted(min(4 * cap, most), position, len(pieces))
                cut = cut_piece(piece, max(self.floor, limit), self.mark)
            if cut is not piece.part:
                cuts[piece.index, piece.place] = cut
        return cuts

    def _cut_measured(self, piece: ShownPart, cap: int, most: int, counter: TokenCounter) -> Part:
        """Cut by characters until the tokens fit: the ratio of characters to tokens is known only after a cut."""
        cut, text = piece.part, text_of(piece.part)
        limit, size = min(len(text), most), counter.text(text)
        while limit > self.floor and (size > cap or len(text) > most):
            limit = max(self.floor, min(limit * 9 // 10, limit * cap // max(1, size)))
            cut = cut_piece(piece, limit, self.mark)
            text = text_of(cut)
            size = counter.text(text)
        return cut

    def _may_touch(self, piece: ShownPart, shown: Shown, room: Room) -> bool:
        return not room.is_pinned(piece.item) if self.active else room.may_touch(shown, piece.index)


def _of(pieces: list[ShownPart], kind: type[Part]) -> list[ShownPart]:
    return [piece for piece in pieces if type(piece.part) is kind]
