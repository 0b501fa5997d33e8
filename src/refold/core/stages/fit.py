"""Stages that limit the size of single parts: `Fit` to a share of the window, `Fade` to shares that shrink as the window
fills, `Squeeze` until everything fits.
"""

from __future__ import annotations

from msgspec import Struct, structs

from refold.core.stage import Room, ShownMessages, StageResult, changed
from refold.core.stages.parts import (
    HANDLE_MARK,
    Mark,
    ShownPart,
    cut_piece,
    find_pieces,
    rebuilt,
    text_of,
    unread_from,
    weighted,
)
from refold.core.stages.removal import DescribeMedia
from refold.model.message import Part, Text, ToolCall, ToolResult
from refold.model.tokens import TokenCounter, exact


class Fit(Struct, frozen=True, tag="fit"):
    """Limits every tool result and every call to its share of the window.

    One huge part must not displace everything else. Shares refer to the room that the instructions leave, and
    newer parts may be larger than older ones.
    """

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

    def apply(self, shown: ShownMessages, room: Room) -> StageResult:
        return self.within(shown, room, room.tokens, "fit", "larger than its share")

    def within(self, shown: ShownMessages, room: Room, tokens: int, stage: str, reason: str) -> StageResult:
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
        self, pieces: list[ShownPart], share: float, most: int, tokens: int, shown: ShownMessages, room: Room
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

    def _may_touch(self, piece: ShownPart, shown: ShownMessages, room: Room) -> bool:
        return not room.is_pinned(piece.item) if self.active else room.may_touch(shown, piece.index)


def _of(pieces: list[ShownPart], kind: type[Part]) -> list[ShownPart]:
    return [piece for piece in pieces if type(piece.part) is kind]


class Band(Struct, frozen=True, array_like=True):
    """From this pressure on, results are measured against this part of the room."""

    pressure: float
    factor: float


class Fade(Struct, frozen=True, tag="fade"):
    """Shrinks tool results and call arguments in steps, as the window fills.

    Each band of pressure allows results a share of a smaller room, and the oldest result a fifth of the
    newest. Used by policies without summaries, and as an emergency.
    """

    bands: tuple[Band, ...] = (Band(0.8, 1.0), Band(0.85, 0.5), Band(0.9, 0.2), Band(0.99, 0.05))
    """From light cuts of the oldest results to little more than a line of each."""
    base: int = 1_024
    """Least tokens of a band: with fewer, results would be useless in a small window."""
    fit: Fit = Fit()
    """The share of a band's tokens that a single result or input may take."""

    def apply(self, shown: ShownMessages, room: Room) -> StageResult:
        pressure = room.pressure(shown)
        reached = [band for band in self.bands if pressure >= exact(band.pressure)]
        if not reached:
            return StageResult.skipped(shown, "the window is not full enough to fade anything")
        band = max(reached, key=lambda band: band.pressure)
        tokens = max(self.base, int(max(0, room.tokens) * exact(band.factor)))
        reason = f"the window is {band.pressure:.0%} full"
        return self.fit.within(shown, room, tokens, "fade", reason)


class Squeeze(Struct, frozen=True, tag="squeeze"):
    """Emergency: divides the room over all messages and cuts each of them to fit.

    Used when nothing fits otherwise, so it also cuts inside the active turn. Pinned messages and the
    assistant's reasoning stay whole. Older messages shrink first, then the newest instruction and the user's
    newest message, which may take half of the room each, and messages that the model has not read yet shrink
    last. A newest instruction of at most an eighth of the room stays whole until nothing else may shrink:
    a few tokens of a rule for everything after it free nothing. Sizes shrink until everything fits or nothing
    may get smaller. Then media are replaced by descriptions. If that is not enough, the result says that it
    cannot fit, and a second application changes nothing.
    """

    floor: int = 200
    """Characters that every part keeps: with fewer, an excerpt is useless."""
    mark: Mark = HANDLE_MARK

    def apply(self, shown: ShownMessages, room: Room) -> StageResult:
        if shown.tokens <= room.tokens:
            return StageResult.skipped(shown, "everything fits")
        pieces = [piece for piece in find_pieces(shown) if piece.item.seq not in room.pinned]
        ranks = _ranks(shown, room, pieces)
        longest = max((len(text_of(piece.part)) for piece in pieces), default=0)
        share, half = 4 * room.tokens // max(1, len(shown.items)), 2 * room.tokens
        limits = [max(self.floor, limit) for limit in (share, half, half, longest)]
        small = max(self.floor, room.tokens // 2)  # an eighth of the room, at four characters per token
        steps = [(0, self.floor), (1, small), (2, self.floor), (3, self.floor), (1, self.floor)]
        while True:
            result = self._cut(shown, room, [(piece, limits[rank]) for piece, rank in ranks])
            if result.shown.tokens <= room.tokens:
                return result
            step = next(((rank, least) for rank, least in steps if limits[rank] > least), None)
            if step is None:
                return _without_media(shown, result, room)
            rank, least = step
            limits[rank] = max(least, limits[rank] * 3 // 4)

    def _cut(self, shown: ShownMessages, room: Room, limited: list[tuple[ShownPart, int]]) -> StageResult:
        parts: dict[tuple[int, int], Part] = {}
        for piece, limit in limited:
            cut = cut_piece(piece, limit, self.mark)
            if cut is not piece.part:
                parts[piece.index, piece.place] = cut
        return changed("squeeze", shown, rebuilt(shown, parts), room, lambda _: "nothing else fits")


def _ranks(shown: ShownMessages, room: Room, pieces: list[ShownPart]) -> list[tuple[ShownPart, int]]:
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


def _without_media(shown: ShownMessages, cut: StageResult, room: Room) -> StageResult:
    """Last resort: replace each image and file by a line, even in the active turn."""
    items = cut.shown.items
    bare = DescribeMedia().apply(ShownMessages(items, len(items)), room).shown.items
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


def _newest_user(shown: ShownMessages) -> int | None:
    """Number of the user's newest message."""
    said = (item.seq for item in reversed(shown.items) if item.message.role == "user")
    return next(said, None)
