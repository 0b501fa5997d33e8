"""Finds and shortens the parts that stages work on: tool results, the arguments of calls, and text.

A shortened part stays a part of its kind. A result keeps its call id, kind and error flag, arguments stay
a JSON object, and all wire data of the part is kept, so a valid message stays valid.

The beginning of a text shows its kind and the end its outcome, so `truncate` removes the middle and inserts a
mark. A cut moves to a line end if one is near, and never splits a word or number, because half of an
identifier is a false one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, TypeAlias

import msgspec
from msgspec import Raw, Struct, structs

from refold.core.stage import Item, ShownMessages, handle_of, numbered_parts
from refold.model.message import Message, Part, Text, ToolCall, ToolResult
from refold.model.tokens import TokenCounter

InputForm: TypeAlias = Literal["values", "whole"]


class Mark(Struct, frozen=True):
    """The text inserted at a cut, and the precision of the cut.

    `{handle}`, `{length}`, `{limit}` and `{kept}` in the text are filled in: the handle of the original,
    its characters, the characters allowed, the characters left. `{; handle}` is the handle after a semicolon,
    or nothing if there is none.
    """

    text: str
    whole_words: bool = True
    """Without a line end nearby, cut between words instead of inside one."""
    inputs: InputForm = "values"
    """`values`: arguments of a call stay an object, and its long values are cut. `whole`: they become one
    text in a new object."""

    def spell(self, *, handle: str = "", length: int = 0, limit: int = 0, kept: int = 0) -> str:
        filled = self.text.replace("{handle}", handle)
        if "{" not in filled:
            return filled
        filled = filled.replace("{; handle}", f"; {handle}" if handle else "")
        if "{" not in filled:
            return filled
        filled = filled.replace("{kept}", str(kept))
        return filled.replace("{length}", str(length)).replace("{limit}", str(limit))


HANDLE_MARK = Mark("\n[… the rest is in {handle}]\n")
"""Names the original, and adds no number or identifier that was not in the source."""
COUNT_MARK = Mark(
    "\n\n… [truncated: {length} chars exceeded {limit} limit{; handle}] …\n\n",
    whole_words=False,
    inputs="whole",
)
"""States the number of missing characters, and names the original."""
SNAP = 200
"""Characters that a cut may move to find a line end or a word's end: two or three lines of code."""
MIN_BOTH_ENDS = 200
"""With fewer characters, two ends would be too short to read: only the head stays."""
_JOINS_WORDS = frozenset("_-./:@#%+=&?~$\\")


def truncate(text: str, limit: int, mark: Mark, handle: str = "") -> str:
    """Cut to at most `limit` characters: 70 % head, 30 % tail and the mark between. A text from an earlier
    cut is cut further.

    If not even the mark fits, a mark with a handle stands alone, because hidden text must have a handle.
    """
    if len(text) <= limit:
        return text
    inserted = mark.spell(handle=handle, length=len(text), limit=limit)
    available = limit - len(inserted)
    if available > 0:
        head = available if available < MIN_BOTH_ENDS else -(-7 * available // 10)
        cut = excerpt(text, head, available - head, inserted, whole_words=mark.whole_words)
    else:
        # A mark with numbers would change when it is cut again.
        alone = f"[… {handle}]" if "{length}" in mark.text else inserted.strip()
        cut = alone if handle and handle in inserted else text[:limit]
    return cut if len(cut) < len(text) else text


def excerpt(text: str, head: int, tail: int, inserted: str, *, whole_words: bool) -> str:
    """The first `head` and the last `tail` characters, or slightly fewer, around `inserted`."""
    before, after = text.split(inserted, 1) if inserted in text else (text, text)
    start = _back(before, head, whole_words=whole_words)
    end = _forward(after, len(after) - tail, whole_words=whole_words) if tail > 0 else len(after)
    return before[:start] + inserted + after[end:]


def _back(text: str, at: int, *, whole_words: bool) -> int:
    """End of a head of at most `at` characters."""
    if at >= len(text):
        return len(text)
    floor = max(0, at - SNAP)
    line = text.rfind("\n", floor, at + 1)
    if line >= 0 or not whole_words:
        return line if line >= 0 else at
    place = at
    while place > floor and _is_inside_word(text, place):
        place -= 1
    return place if place == 0 or not _is_inside_word(text, place) else at


def _forward(text: str, at: int, *, whole_words: bool) -> int:
    """Start of a tail that begins at `at` or later."""
    if at <= 0:
        return 0
    ceiling = min(len(text), at + SNAP)
    line = text.find("\n", at - 1, ceiling)
    if line >= 0 or not whole_words:
        return line + 1 if line >= 0 else at
    place = at
    while place < ceiling and _is_inside_word(text, place):
        place += 1
    return place if place == len(text) or not _is_inside_word(text, place) else at


def _is_inside_word(text: str, place: int) -> bool:
    """True if a cut before `place` would split a word. Runs longer than SNAP are no words, and may be cut."""
    return _joins(text[place - 1]) and _joins(text[place]) if 0 < place < len(text) else False


def _joins(character: str) -> bool:
    return character.isalnum() or character in _JOINS_WORDS


# Shares of a budget by age


def weighted(cap: int, position: int, count: int) -> int:
    """Cap of the part at `position` of `count`, oldest first: 20 % of `cap` for the oldest, all for the newest."""
    if count < 2:
        return cap
    return cap * (count - 1 + 4 * position) // (5 * (count - 1))


def share(total: int, position: int, count: int) -> int:
    """Share of `total` for the part at `position`; all shares together are `total`, rounded down.

    The weights of `count` parts add up to 60 % of their number.
    """
    if count < 2:
        return total
    return total * (count - 1 + 4 * position) // (3 * count * (count - 1))


_OBJECT = msgspec.json.Decoder(dict[str, Raw])
_STRING = msgspec.json.Decoder(str)
_SHORTEST_VALUE = 60
"""Argument values are not cut below this: paths, ids and flags are shorter and identify the call."""


class ShownPart(Struct, frozen=True, gc=False):
    """A shown part that can be shortened, by the index of its message and its place in it."""

    index: int
    place: int
    item: Item
    part: ToolResult | ToolCall | Text
    number: int | None
    """The number of the part in its handle."""

    @property
    def handle(self) -> str:
        return handle_of(self.item.seq, self.number)


class Result(Struct, frozen=True, gc=False):
    """A shown tool result, with the call that it answers."""

    index: int
    place: int
    item: Item
    result: ToolResult
    number: int | None
    """The number of the result in its handle."""
    caller: ShownPart | None

    @property
    def handle(self) -> str:
        return handle_of(self.item.seq, self.number)

    @property
    def call(self) -> ToolCall | None:
        call = self.caller.part if self.caller else None
        return call if isinstance(call, ToolCall) else None

    @property
    def name(self) -> str:
        return self.call.name if self.call else ""

    def tokens(self, counter: TokenCounter) -> int:
        if len(self.item.message.parts) == 1:
            return self.item.tokens
        return counter.message(Message("tool", (self.result,)))


def find_results(shown: ShownMessages) -> list[Result]:
    """Every tool result that can be replaced by text, oldest first. Ids repeat, so a result answers the
    latest call before it.

    Screenshots of a computer call are excluded: providers accept only an image there.
    """
    calls: dict[str, ShownPart] = {}
    found: list[Result] = []
    for index, item in enumerate(shown.items):
        parts = item.message.parts
        if len(parts) == 1 and type(parts[0]) is Text:
            continue  # what people say, and most replies
        for place, part, number in numbered_parts(item.message):
            if type(part) is ToolCall:
                calls[part.id] = ShownPart(index, place, item, part, number)
            elif type(part) is ToolResult and part.kind != "computer":
                found.append(Result(index, place, item, part, number, calls.get(part.call_id)))
    return found


def find_pieces(shown: ShownMessages) -> list[ShownPart]:
    """Every part that can be shortened, oldest first: text, results, and the arguments of calls.

    Excluded are calls of the provider's own tools and screenshots, because providers check them strictly,
    and thinking, which is sent unchanged or not at all.
    """
    return [
        ShownPart(index, place, item, part, number)
        for index, item in enumerate(shown.items)
        for place, part, number in numbered_parts(item.message)
        if (type(part) is Text)
        or (type(part) is ToolResult and part.kind != "computer")
        or (type(part) is ToolCall and part.kind in ("function", "custom"))
    ]


def last_answer(shown: ShownMessages) -> int:
    """Index of the newest assistant message with text: the model has read the results before it. -1 if there is none."""
    items = shown.items
    said = (i for i in range(len(items) - 1, -1, -1) if items[i].message.role == "assistant")
    return next((index for index in said if items[index].message.text.strip()), -1)


def unread_from(shown: ShownMessages) -> int:
    """Index after the newest assistant message: the model has not read the messages from there on."""
    index = len(shown.items)
    while index > 0 and shown.items[index - 1].message.role != "assistant":
        index -= 1
    return index


def rebuilt(shown: ShownMessages, parts: Mapping[tuple[int, int], Part]) -> dict[int, Message]:
    """Messages with some parts replaced, by the index of the message and the place of the part."""
    replaced: dict[int, list[Part]] = {}
    for (index, place), part in parts.items():
        replaced.setdefault(index, list(shown.items[index].message.parts))[place] = part
    return {index: shown.items[index].message.with_parts(tuple(new)) for index, new in replaced.items()}


def stub_result(result: ToolResult, text: str) -> ToolResult:
    """The result with `text` as its only content; its media are removed too."""
    return structs.replace(result, parts=(_as_text(result, text),))


def _as_text(result: ToolResult, text: str) -> Text:
    """The first text of the result with other words; a new one if the result has none."""
    for part in result.parts:
        if type(part) is Text:
            return structs.replace(part, text=text)
    return Text(text)


def cut_result(result: ToolResult, limit: int, mark: Mark, handle: str) -> ToolResult:
    """The result with its text cut to `limit` characters; media stay. The same object if it fits."""
    text = result.text
    cut = truncate(text, limit, mark, handle)
    if cut is text:
        return result
    media = [part for part in result.parts if type(part) is not Text]
    return structs.replace(result, parts=(_as_text(result, cut), *media))


def cut_piece(piece: ShownPart, limit: int, mark: Mark) -> ToolResult | ToolCall | Text:
    """The part cut to `limit` characters. The same object if it fits."""
    whole, handle = piece.part, piece.handle
    if isinstance(whole, ToolResult):
        return cut_result(whole, limit, mark, handle)
    if isinstance(whole, ToolCall):
        return cut_call(whole, limit, mark, handle)
    cut = truncate(whole.text, limit, mark, handle)
    return whole if cut == whole.text else structs.replace(whole, text=cut)


def text_of(part: ToolResult | ToolCall | Text) -> str:
    return part.arguments if isinstance(part, ToolCall) else part.text


def cut_call(call: ToolCall, limit: int, mark: Mark, handle: str) -> ToolCall:
    """The call with its arguments cut to `limit` characters, still a JSON object; a custom tool's are plain text."""
    if len(call.arguments) <= limit:
        return call
    if call.kind != "function":
        cut = truncate(call.arguments, limit, mark, handle)
    elif mark.inputs == "whole":
        cut = _cut_whole(call.arguments, limit, mark, handle, counted=True)
    else:
        values = _cut_values(call.arguments, limit, mark, handle)
        cut = values or _cut_whole(call.arguments, limit, mark, handle, counted=False)
    return call if len(cut) >= len(call.arguments) else structs.replace(call, arguments=cut)


def _cut_values(arguments: str, limit: int, mark: Mark, handle: str) -> str:
    """The object with its longest values cut as little as possible; empty if that is not enough or it is no object."""
    fields = _fields(arguments)
    for cap in _caps(limit):
        cut = _dump({key: _cut_value(value, cap, mark, handle) for key, value in fields.items()})
        if len(cut) <= limit:
            return cut if fields else ""
    return ""


def _cut_value(value: Raw, cap: int, mark: Mark, handle: str) -> Raw | str:
    text = _text(value)
    cut = truncate(text, cap, mark, handle)
    return value if cut == text else cut


def _cut_whole(arguments: str, limit: int, mark: Mark, handle: str, *, counted: bool) -> str:
    """One excerpt of all arguments in a new object. An excerpt from an earlier cut is cut further."""
    fields = _fields(arguments)
    known = fields.get("_truncated")
    source = _text(known) if known is not None else arguments
    length = _text(fields["_originalChars"]) if "_originalChars" in fields else str(len(arguments))
    count: dict[str, Raw | str] = {"_originalChars": Raw(length.encode())} if counted else {}
    whole = ""
    for cap in _caps(limit):
        whole = _dump({"_truncated": truncate(source, cap, mark, handle), **count})
        if len(whole) <= limit:
            break
    return whole


def _caps(limit: int) -> Iterator[int]:
    """Decreasing sizes to try, from the whole room down to the shortest useful value."""
    cap = limit
    while cap > _SHORTEST_VALUE:
        yield cap
        cap = cap * 3 // 4
    yield _SHORTEST_VALUE


def _fields(arguments: str) -> dict[str, Raw]:
    """The arguments as an object; empty if they are none."""
    try:
        return _OBJECT.decode(arguments)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return {}


def _text(value: Raw) -> str:
    """The content of a JSON string; for other values, their JSON."""
    raw = bytes(value)
    return _STRING.decode(raw) if raw.startswith(b'"') else raw.decode()


def _dump(fields: Mapping[str, Raw | str]) -> str:
    return msgspec.json.encode(fields).decode()
