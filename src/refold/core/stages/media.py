"""Replaces media of earlier turns by a line that describes them.

An image matters while it is new. Later it costs as much as pages of text, and its type, name and handle
are enough to ask for it again. The active turn keeps its media, so that they survive every retry.
"""

from __future__ import annotations

from msgspec import Struct, structs

from refold.core.stage import Item, Room, ShownMessages, StageResult, changed, handle_of, numbered_parts
from refold.core.stages.parts import rebuilt
from refold.model.message import File, Image, Message, Part, Text, ToolResult

_MEDIA = frozenset((Image, File))
_LONGEST_URL = 200
"""Longer addresses carry a signature or the data itself, and are of no use as text."""


class DescribeMedia(Struct, frozen=True, tag="describe_media"):
    files: bool = True
    """Describe documents, audio and video as well, not only images."""

    def apply(self, shown: ShownMessages, room: Room) -> StageResult:
        parts: dict[tuple[int, int], Part] = {}
        for index, item in enumerate(shown.items[: shown.protected]):
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
        inner = part.parts if type(part) is ToolResult else (part,)
        if not _MEDIA.isdisjoint(map(type, inner)):
            return True
    return False


def describe(part: Part, handle: str) -> str:
    """One line that describes the removed part, in words of the source: kind, name, type, address, and the handle."""
    kind = "image" if isinstance(part, Image) else "file"
    known = [getattr(part, field, "") for field in ("name", "media_type", "url")]
    words = [word for word in known if word and len(word) <= _LONGEST_URL]
    return f"[{' '.join((kind, *words, handle))}]"
