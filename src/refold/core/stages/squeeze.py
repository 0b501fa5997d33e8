"""Emergency: divides the room over all messages and cuts each of them to fit.

Used when nothing fits otherwise, so it also cuts inside the active turn. Pinned messages and the
assistant's reasoning stay whole. Older messages shrink first, then the newest instruction and the user's
newest message, which may take half of the room each, and messages that the model has not read yet shrink
last. Sizes shrink until everything fits or nothing may get smaller. Then media are replaced by
descriptions. If that is not enough, the result says that it cannot fit, and a second application changes
nothing.
"""

from __future__ import annotations

from msgspec import Struct, structs

from refold.core.shown import Room, Shown, StageResult, changed
from refold.core.stages.media import DescribeMedia
from refold.core.stages.parts import ShownPart, cut_piece, find_pieces, rebuilt, text_of, unread_from
from refold.core.stages.truncate import HANDLE_MARK, Mark
from refold.model.message import Part


class Squeeze(Struct, frozen=True, tag="squeeze"):
    floor: int = 200
    """Characters that every part keeps: with fewer, an excerpt is useless."""
    mark: Mark = HANDLE_MARK

    def apply(self, shown: Shown, room: Room) -> StageResult:
        if shown.tokens <= room.tokens:
            return StageResult.skipped(shown, "everything fits")
        pieces = [piece for piece in find_pieces(shown) if piece.item.seq not in room.pinned]
        ranks = _ranks(shown, room, pieces)
        longest = max((len(text_of(piece.part)) for piece in pieces), default=0)
        share, half = 4 * room.tokens // max(1, len(shown.items)), 2 * room.tokens
        limits = [max(self.floor, limit) for limit in (share, half, half, longest)]
        while True:
            result = self._cut(shown, room, [(piece, limits[rank]) for piece, rank in ranks])
            if result.shown.tokens <= room.tokens:
                return result
            rank = next((rank for rank, limit in enumerate(limits) if limit > self.floor), None)
            if rank is None:
                return _without_media(shown, result, room)
            limits[rank] = max(self.floor, limits[rank] * 3 // 4)

    def _cut(self, shown: Shown, room: Room, limited: list[tuple[ShownPart, int]]) -> StageResult:
        parts: dict[tuple[int, int], Part] = {}
        for piece, limit in limited:
            cut = cut_piece(piece, limit, self.mark)
            if cut is not piece.part:
                parts[piece.index, piece.place] = cut
        return changed("squeeze", shown, rebuilt(shown, parts), room, lambda _: "nothing else fits")


def _ranks(shown: Shown, room: Room, pieces: list[ShownPart]) -> list[tuple[ShownPart, int]]:
    """Each piece with its rank, which orders shrinking: 0 for all others, then 1 the newest instruction, 2
    the user's newest message, 3 unread messages.
    """
    asked, unread = _newest_user(shown), unread_from(shown)

    def rank(piece: ShownPart) -> int:
        if piece.item.seq == room.newest:
            return 1
        if piece.index >= unread:
            return 3
        return 2 if piece.item.seq == asked else 0

    return [(piece, rank(piece)) for piece in pieces]


def _without_media(shown: Shown, cut: StageResult, room: Room) -> StageResult:
    """Last resort: replace each image and file by a line, even in the active turn."""
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
    """Number of the user's newest message."""
    said = (item.seq for item in reversed(shown.items) if item.message.role == "user")
    return next(said, None)
