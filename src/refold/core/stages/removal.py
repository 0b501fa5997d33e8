"""Stages that remove content: whole messages, the reasoning of earlier turns, and their media.

`Select` keeps the newest messages that fit, `DropHalf` drops the older half of the turns. Messages are removed
in units: a reply and the results of its calls are one unit, so a list of whole units is always valid.
`DropReasoning` and `DescribeMedia` leave the messages, and remove what is not read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import msgspec
from msgspec import Raw, Struct, structs

from refold.core.pairs import RemovedParts, repair
from refold.core.stage import (
    Edit,
    Item,
    Room,
    ShownMessages,
    StageResult,
    changed,
    handle_of,
    numbered_parts,
    removed,
)
from refold.core.stages.parts import rebuilt
from refold.core.verify import is_only_reasoning
from refold.core.view import safe_boundary, starts_turn, turn_starts
from refold.model.dialect import Dialect
from refold.model.message import File, Image, Message, Part, Reasoning, Text, ToolResult


def units(messages: Sequence[Message], dialect: Dialect) -> list[range]:
    """The messages as ranges of indices: each user message alone, each reply with its results."""
    last_result = _last_results(messages)
    starts: list[int] = []
    reach = -1
    for index in range(len(messages)):
        if index > reach and not _continues(messages, index, dialect):
            starts.append(index)
        reach = max(reach, last_result.get(index, -1))
    return [range(start, stop) for start, stop in pairwise((*starts, len(messages)))]


def turn_units(messages: Sequence[Message], dialect: Dialect) -> list[range]:
    """The messages as whole turns; the messages before the first user message are one unit."""
    joined: list[range] = []
    for unit in units(messages, dialect):
        if joined and not starts_turn(messages[unit.start]):
            joined[-1] = range(joined[-1].start, unit.stop)
        else:
            joined.append(unit)
    return joined


def may_drop(unit: range, shown: ShownMessages, room: Room) -> bool:
    """True if the whole unit may be removed: it ends before the active turn, and none of its messages is pinned."""
    return unit.stop <= shown.protected and not any(room.is_pinned(shown.items[index]) for index in unit)


def _continues(messages: Sequence[Message], index: int, dialect: Dialect) -> bool:
    """True if the message belongs to the one before it."""
    role = messages[index].role
    if index == 0 or role == "tool":
        return index > 0
    return dialect.spreads_calls and role == messages[index - 1].role == "assistant"


def _last_results(messages: Sequence[Message]) -> dict[int, int]:
    """For each message with answered calls, the index of the last result: a result may follow other messages."""
    caller: dict[str, int] = {}
    last: dict[int, int] = {}
    for index, message in enumerate(messages):
        if message.role == "assistant":
            caller.update((call.id, index) for call in message.calls)
        for result in message.results:
            at = caller.get(result.call_id)
            if at is not None:
                last[at] = index
    return last


_REASON = "older than what fits"
_TOO_MUCH = "what must stay takes more than there is room for"


class Select(Struct, frozen=True, tag="select"):
    """Keeps the newest messages that fit, and removes the others to be summarised.

    Units are taken from the newest to the oldest until the first that does not fit. None is skipped, so the
    kept messages are one unbroken end of the conversation. A result without its call and a call without a
    result are removed too, and summarised with the rest: a summary without the result would call finished work
    unfinished.
    """

    start: int = 3
    """Tokens counted before the first message: every reply is primed with so many."""
    by: Literal["reply", "turn"] = "reply"
    """The unit of selection: a reply with its results, or everything from one user message to the next."""

    def apply(self, shown: ShownMessages, room: Room) -> StageResult:
        if self.start + shown.tokens <= room.tokens:
            return StageResult.skipped(shown, "everything fits")
        parted = units if self.by == "reply" else turn_units
        every = parted(shown.messages, room.dialect)
        kept = self._kept(every, shown, room)
        gone = {index for unit in every if unit not in kept for index in unit}
        if not gone:
            return StageResult.skipped(shown, _TOO_MUCH)
        result = _without_orphans(shown, gone, room)
        fits = self.start + result.shown.tokens <= room.tokens
        return result if fits else structs.replace(result, reason=_TOO_MUCH)

    def _kept(self, every: list[range], shown: ShownMessages, room: Room) -> set[range]:
        """The units that must stay, and the newest other units that fit beside them."""
        kept = {unit for unit in every if not may_drop(unit, shown, room)}
        count = self.start + sum(_tokens(unit, shown) for unit in kept)
        for unit in reversed(every):
            if unit in kept:
                continue
            count += _tokens(unit, shown)
            if count > room.tokens:
                break
            kept.add(unit)
        return kept


def _tokens(unit: range, shown: ShownMessages) -> int:
    return sum(shown.items[index].tokens for index in unit)


def _without_orphans(shown: ShownMessages, gone: set[int], room: Room) -> StageResult:
    """Remove items, and with them the calls and results that lost their counterpart."""
    left = [index for index in range(len(shown.items)) if index not in gone]
    lost: dict[int, list[RemovedParts]] = {}
    for broken in repair([shown.items[index].message for index in left], room.dialect).removed:
        lost.setdefault(left[broken.index], []).append(broken)
    taken = {index: _split(shown.items[index], broken, room) for index, broken in lost.items()}
    whole = {index for index, (rest, _) in taken.items() if rest is None}
    changed = {index: rest.message for index, (rest, _) in taken.items() if rest is not None}
    result = removed("select", shown.replace(changed, room.counter), gone | whole, _REASON)
    orphans = [orphan for rest, orphan in taken.values() if rest is not None]
    edits = [_edit(shown.items[index], taken[index]) for index in changed]
    waiting = sorted([*result.removed, *orphans], key=lambda item: item.seq)
    return structs.replace(result, edits=(*result.edits, *edits), removed=tuple(waiting))


def _split(item: Item, broken: Sequence[RemovedParts], room: Room) -> tuple[Item | None, Item]:
    """The part of an item that stays and the part that leaves. Nothing stays if only pieces of a reply would."""
    parts, orphans = list(item.message.parts), [gone.what for gone in broken]
    lost: list[Part] = [part for part in parts if any(part is orphan for orphan in orphans)]
    rest = [part for part in parts if not any(part is other for other in lost)]
    if not rest or not lost or any(isinstance(orphan, Message) for orphan in orphans):
        return None, item
    message = item.message.with_parts(tuple(rest))
    if message.role == "tool" and not message.results:
        message = structs.replace(message, role="user")
    orphan = Message(item.message.role, tuple(lost))
    return _counted(message, item, room), _counted(orphan, item, room)


def _counted(message: Message, item: Item, room: Room) -> Item:
    return Item(message, item.seq, room.counter.message(message))


def _edit(item: Item, taken: tuple[Item | None, Item]) -> Edit:
    after = taken[0].tokens if taken[0] else 0
    return Edit("select", item.seq, item.tokens, after, "without its call or result", handle_of(item.seq))


class DropHalf(Struct, frozen=True, tag="drop_half"):
    """Drops the older half of the turns: an emergency that always frees room and needs no model.

    Half of the turns is a large cut, so it is needed rarely. It is repeated inside one application until the
    rest fits. A single turn that is too large keeps the user's last message.
    """

    min_messages: int = 2
    """With so few messages or fewer there is no half to drop."""

    def apply(self, shown: ShownMessages, room: Room) -> StageResult:
        if shown.tokens <= room.tokens:
            return StageResult.skipped(shown, "everything fits")
        gone: set[int] = set()
        left = list(range(len(shown.items)))
        while sum(shown.items[index].tokens for index in left) > room.tokens:
            oldest = self._oldest_half(shown.without(gone), room)
            if not oldest:
                break
            gone |= {left[at] for at in oldest}
            left = [index for index in left if index not in gone]
        if not gone:
            return StageResult.skipped(shown, "there is no older half to drop")
        result = removed("drop_half", shown, gone, "in the older half")
        fits = result.shown.tokens <= room.tokens
        return result if fits else structs.replace(result, reason=_TOO_MUCH)

    def _oldest_half(self, shown: ShownMessages, room: Room) -> set[int]:
        """The indices that one halving drops, whole units only."""
        if len(shown.items) <= self.min_messages:
            return set()
        starts = turn_starts(shown.messages)
        middle = self._middle(starts, len(shown.items))
        if middle <= 0:
            keep, stop = (starts[-1] if starts else -1), len(shown.items)
        else:
            keep, stop = -1, middle
        return {
            index
            for unit in units(shown.messages, room.dialect)
            if unit.stop <= stop and keep not in unit and may_drop(unit, shown, room)
            for index in unit
        }

    def _middle(self, starts: tuple[int, ...], length: int) -> int:
        if len(starts) >= 2:
            return starts[len(starts) // 2]
        return safe_boundary(starts, length, length // 2)


_OBJECT = msgspec.json.Decoder(dict[str, Raw])
REASONING_STAGE = "drop_reasoning"
_EARLIER_THINKING = "thinking of an earlier turn"


class DropReasoning(Struct, frozen=True, tag="drop_reasoning"):
    """Removes the reasoning of earlier turns. Has no settings: there is one right way to do this.

    Reasoning serves the reply that it belongs to. Once that turn is over it is not used again, and providers
    leave it out themselves. It is removed whole or not at all, and never from the latest reply, which some
    providers check against their signature.
    """

    def apply(self, shown: ShownMessages, room: Room) -> StageResult:
        earlier = enumerate(shown.items[: _latest_turn(shown)])
        held = [index for index, item in earlier if Reasoning in map(type, item.message.parts)]
        thoughtful = [index for index in held if _may_drop(shown, index, room)]
        if not thoughtful:
            return StageResult.skipped(shown, "no earlier turn holds thinking")
        whole = {index for index in thoughtful if is_only_reasoning(shown.items[index].message)}
        rest = {
            index: _without_reasoning(shown.items[index].message)
            for index in thoughtful
            if index not in whole
        }
        shortened = changed(REASONING_STAGE, shown, rest, room, lambda _: _EARLIER_THINKING)
        result = removed(REASONING_STAGE, shortened.shown, whole, _EARLIER_THINKING)
        return structs.replace(result, edits=(*shortened.edits, *result.edits))


def _latest_turn(shown: ShownMessages) -> int:
    """Start of the latest reply's turn: usually the active turn, or the one before a new question."""
    items = shown.items
    replies = (i for i in range(len(items) - 1, -1, -1) if items[i].message.role == "assistant")
    latest = next(replies, len(items))
    before = range(min(latest, len(items) - 1), -1, -1)
    return min(shown.protected, next((at for at in before if starts_turn(items[at].message)), 0))


def _may_drop(shown: ShownMessages, index: int, room: Room) -> bool:
    """True if the reasoning of a message may be removed."""
    if not room.may_touch(shown, index):
        return False
    return not room.dialect.spreads_calls or not _is_bound(shown, index)


def _is_bound(shown: ShownMessages, index: int) -> bool:
    """True if the provider would refuse the rest of the reply without its reasoning.

    In dialects that spread a reply over items, the provider looks up an item with its own id together with
    its reasoning.
    """
    rest = index + 1
    while rest < len(shown.items) and shown.items[rest].message.role == "assistant":
        if _has_id(shown.items[rest].message):
            return True
        rest += 1
    return False


def _has_id(message: Message) -> bool:
    if message.origin is None or not bytes(message.origin.raw).lstrip().startswith(b"{"):
        return False
    return bytes(_OBJECT.decode(message.origin.raw).get("id", b"null")) != b"null"


def _without_reasoning(message: Message) -> Message:
    return message.with_parts(tuple(part for part in message.parts if type(part) is not Reasoning))


_MEDIA = frozenset((Image, File))
_LONGEST_URL = 200
"""Longer addresses carry a signature or the data itself, and are of no use as text."""


class DescribeMedia(Struct, frozen=True, tag="describe_media"):
    """Replaces media of earlier turns by a line that describes them.

    An image matters while it is new. Later it costs as much as pages of text, and its type, name and handle
    are enough to ask for it again. The active turn keeps its media, so that they survive every retry.
    """

    files: bool = True
    """Describe documents, audio and video as well, not only images."""

    def apply(self, shown: ShownMessages, room: Room) -> StageResult:
        parts: dict[tuple[int, int], Part] = {}
        for index, item in enumerate(shown.items[: shown.protected]):
            parts_of = item.message.parts
            if len(parts_of) == 1 and type(parts_of[0]) is Text:
                continue  # what people say, and most replies
            if not _holds_media(item.message) or not room.may_touch(shown, index):
                continue
            for place, part, number in numbered_parts(item.message):
                described = self._described(part, item, number)
                if described is not part:
                    parts[index, place] = described
        if not parts:
            return StageResult.skipped(shown, "no earlier turn holds media")
        return changed(
            "describe_media", shown, rebuilt(shown, parts), room, lambda _: "media of an earlier turn"
        )

    def _described(self, part: Part, item: Item, number: int | None) -> Part:
        if isinstance(part, ToolResult):
            return self._described_result(part, item, number)
        return Text(describe(part, handle_of(item.seq, number))) if self._is_media(part) else part

    def _described_result(self, result: ToolResult, item: Item, number: int | None) -> ToolResult:
        """A screenshot of a computer call stays: providers accept only an image there."""
        if result.kind == "computer" or not any(map(self._is_media, result.parts)):
            return result
        handle = handle_of(item.seq, number)
        inner = (Text(describe(part, handle)) if self._is_media(part) else part for part in result.parts)
        return structs.replace(result, parts=tuple(inner))

    def _is_media(self, part: Part) -> bool:
        return isinstance(part, Image) or (self.files and isinstance(part, File))


def _holds_media(message: Message) -> bool:
    """True if a part is an image or a file, or a tool result with one."""
    for part in message.parts:
        if type(part) in _MEDIA or (
            type(part) is ToolResult and not _MEDIA.isdisjoint(map(type, part.parts))
        ):
            return True
    return False


def describe(part: Part, handle: str) -> str:
    """One line that describes the removed part, in words of the source: kind, name, type, address, and the handle."""
    kind = "image" if isinstance(part, Image) else "file"
    known = [getattr(part, field, "") for field in ("name", "media_type", "url")]
    words = [word for word in known if word and len(word) <= _LONGEST_URL]
    return f"[{' '.join((kind, *words, handle))}]"
