"""Emergency squeeze: the room is divided over all messages, and everything is cut to fit.

One idea: when nothing else fits, a little of everything is better than an error. This is the emergency: it cuts inside the
active turn as well. What is pinned and the assistant's thinking stay whole. The newest instruction and the user's newest message
may take half of the room each and shrink further only after everything else, in this order: the message is what has to be
answered. Sizes shrink until all fits or nothing may get smaller; then media are described instead of shown, and if that does not
help the result says that it cannot fit, and trying again changes nothing.
"""

from __future__ import annotations

from msgspec import Struct, structs

from refold.core.stages.media import DescribeMedia
from refold.core.stages.parts import Piece, cut_piece, find_pieces, rebuilt
from refold.core.stages.shown import Room, Shown, StageResult, changed
from refold.core.stages.truncate import HANDLE_MARK, Mark
from refold.model.message import Part


class Squeeze(Struct, frozen=True, tag="squeeze"):
    floor: int = 200
    """Characters that every part keeps: with fewer, an excerpt says nothing."""
    mark: Mark = HANDLE_MARK

    def apply(self, shown: Shown, room: Room) -> StageResult:
        if shown.tokens <= room.tokens:
            return StageResult.skipped(shown, "everything fits")
        pieces = [piece for piece in find_pieces(shown) if piece.item.seq not in room.pinned]
        limits = self._limits(shown, room)
        while True:
            result = self._cut(shown, room, pieces, limits)
            if result.shown.tokens <= room.tokens:
                return result
            larger = [number for number, limit in limits.items() if limit > self.floor]
            if not larger:
                return _without_media(shown, result, room)
            limits[larger[0]] = max(self.floor, limits[larger[0]] * 3 // 4)

    def _limits(self, shown: Shown, room: Room) -> dict[int | None, int]:
        """Characters for each part, by the number of its message and under None for all others, in the order in which they shrink."""
        limits: dict[int | None, int] = {None: max(self.floor, 4 * room.tokens // max(1, len(shown.items)))}
        return limits | {
            number: max(self.floor, 2 * room.tokens)
            for number in (room.newest, _newest_user(shown))
            if number is not None
        }

    def _cut(
        self, shown: Shown, room: Room, pieces: list[Piece], limits: dict[int | None, int]
    ) -> StageResult:
        parts: dict[tuple[int, int], Part] = {}
        for piece in pieces:
            cut = cut_piece(piece, limits.get(piece.item.seq, limits[None]), self.mark)
            if cut is not piece.part:
                parts[piece.index, piece.place] = cut
        return changed("squeeze", shown, rebuilt(shown, parts), room, lambda _: "nothing else fits")


def _without_media(shown: Shown, cut: StageResult, room: Room) -> StageResult:
    """The last resort: a line for each image and file, also for those in the active turn."""
    items = cut.shown.items
    bare = DescribeMedia().apply(Shown(items, len(items)), room).shown.items
    changes = {
        index: item.message
        for index, item in enumerate(bare)
        if item.message is not shown.items[index].message
    }
    result = changed("squeeze", shown, changes, room, lambda _: "nothing else fits")
    if result.shown.tokens <= room.tokens:
        return result
    text = f"{result.shown.tokens:,} tokens do not fit into {room.tokens:,}, however much is cut"
    return structs.replace(result, reason=text)


def _newest_user(shown: Shown) -> int | None:
    """The number of the user's newest message."""
    said = (item.seq for item in reversed(shown.items) if item.message.role == "user")
    return next(said, None)
