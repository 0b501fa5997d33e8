"""Stages and triggers of plugins: values in a policy that call code of others, and the check of its answers.

A guard calls the code: it sets a deadline, counts, and decides what a failure leads to. This module knows no
clock and no log, so the guard is part of the value. The answer of a stage is a message for some numbers. The order and the number of the messages cannot
be changed by it, and each message is checked: same role, same calls and results, fewer tokens, no
handle and no content of another message. The original stays in the branch, and the message that stands for it names its handle.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

from msgspec import Struct, structs

from refold.core.stage import HANDLE_PATTERN, Item, Room, ShownMessages, StageResult, changed, handle_of
from refold.core.verify import broken_arguments, is_empty
from refold.model.message import (
    File,
    Image,
    Message,
    Opaque,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    visible,
)

if TYPE_CHECKING:
    from refold.core.triggers import TriggerFacts

T = TypeVar("T")
PluginPoint: TypeAlias = Literal[
    "request", "response", "stage", "trigger", "summariser", "counter", "command"
]
MAX_GROWTH = 400
"""Characters by which one message may grow: a word that stands for a secret is longer than a short secret."""
MAX_REASON = 120
"""Characters of a plugin's reason. It is shown in receipts."""
_HANDLE = re.compile(HANDLE_PATTERN)
_PARTS = frozenset((Text, Reasoning, ToolCall, ToolResult, Image, File, Opaque))


class UnusableAnswer(ValueError):
    """An answer of a plugin that is not used. The text says why, without content."""


class Guard(Protocol):
    """Calls code of a plugin within its limits."""

    def __call__(self, point: PluginPoint, call: Callable[[], object], check: Callable[[Any], T]) -> T | None:
        """Return what `check` makes of the answer; None if the plugin failed, or `check` raised `UnusableAnswer`, and
        the plugin fails open.

        Raises:
            PluginError: the same, and the plugin fails closed.
        """
        ...


class StageFunction(Protocol):
    """A stage of a plugin."""

    def __call__(self, shown: ShownMessages, room: Room, /) -> Mapping[int, Message] | None:
        """Return the messages to show instead of others, by number (`Item.seq`); None or nothing for no change.
        `room.may_touch(shown, index)` says which messages may be changed.
        """
        ...


class TriggerFunction(Protocol):
    """A trigger of a plugin."""

    def __call__(self, facts: TriggerFacts, /) -> str:
        """Return the reason to compact now; empty for none."""
        ...


class PluginTrigger(Struct, frozen=True):
    """A trigger of a plugin, for one moment."""

    plugin: str
    moment: str
    function: TriggerFunction
    guard: Guard

    def fires(self, facts: TriggerFacts) -> str:
        reason = self.guard("trigger", lambda: self.function(facts), _checked_reason)
        return f"{self.plugin}: {reason}" if reason else ""


class PluginStage(Struct, frozen=True):
    """A stage of a plugin."""

    plugin: str
    function: StageFunction
    guard: Guard

    def apply(self, shown: ShownMessages, room: Room) -> StageResult:
        found = self.guard(
            "stage", lambda: self.function(shown, room), lambda answer: self._checked(answer, shown, room)
        )
        if not found:
            return StageResult.skipped(shown, f"the plugin {self.plugin} changed nothing")
        messages = {index: item.message for index, item in found.items()}
        counts = {index: item.tokens for index, item in found.items()}
        return changed(self.name, shown, messages, room, lambda _: "changed by a plugin", counts)

    @property
    def name(self) -> str:
        return stage_name(self.plugin)

    def _checked(self, answer: object, shown: ShownMessages, room: Room) -> dict[int, Item]:
        """The items to show, by index.

        Raises:
            UnusableAnswer: one of them cannot be used; then none is.
        """
        if answer is None:
            return {}
        if not isinstance(answer, Mapping):
            raise UnusableAnswer("a stage returns a mapping of numbers to messages")
        places = {item.seq: index for index, item in enumerate(shown.items)}
        found, bare = dict[int, Item](), dict[int, Message]()
        for number, message in answer.items():
            index = places.get(number) if type(number) is int else None
            if index is None:
                raise UnusableAnswer("it names a message that is not shown")
            item = shown.items[index]
            if message is item.message:
                continue
            if not room.may_touch(shown, index):
                raise UnusableAnswer(f"{handle_of(item.seq)} must stay as it is: see room.may_touch")
            new = checked_message(item.message, message, own=handle_of(item.seq))
            if new.bare() == item.message.bare():
                continue
            bare[index] = new
            new = _with_handle(new, handle_of(item.seq), self.plugin)
            tokens = room.counter.message(new)
            if tokens >= item.tokens:
                raise UnusableAnswer(f"{handle_of(item.seq)} is not smaller: a stage only reduces")
            found[index] = Item(new, item.seq, tokens)
        check_places((index, shown.items[index].message, new) for index, new in bare.items())
        return found


def stage_name(plugin: str) -> str:
    """The name of a plugin in the edits that it makes."""
    return f"plugin:{plugin}"


def _checked_reason(answer: object) -> str:
    if not isinstance(answer, str):
        raise UnusableAnswer("a trigger returns a text, which is empty if it does not fire")
    return one_line(answer, MAX_REASON)


def one_line(text: str, length: int) -> str:
    """The beginning of a text of a plugin in a line that can be shown and stored."""
    valid = text[: 2 * length].encode(errors="replace").decode()
    return " ".join(visible(valid).split())[:length]


def checked_message(old: Message, new: object, *, own: str = "", growth: int = MAX_GROWTH) -> Message:
    """The message to send instead of another. `own` is the handle of the message, which it may name.

    Raises:
        UnusableAnswer: it has another role, other calls, results or reasoning, no content, invalid text, the handle
            of another message, or is much longer.
    """
    if (
        type(new) is not Message
        or type(new.parts) is not tuple
        or not _PARTS.issuperset(map(type, new.parts))
    ):
        raise UnusableAnswer("it is no message")
    if new.role != old.role:
        raise UnusableAnswer("the role of a message must stay")
    _check_texts(old, new, own, growth)
    if [*_fixed(new)] != [*_fixed(old)]:
        raise UnusableAnswer("calls, results, reasoning and a provider's own parts must stay")
    for before, after in zip(old.calls, new.calls, strict=True):
        if after.arguments != before.arguments and broken_arguments(after, as_object=True):
            raise UnusableAnswer("the arguments of a call are no JSON object any more")
    if is_empty(new) and not is_empty(old):
        raise UnusableAnswer("a message is empty")
    raws = {id(raw) for raw in _raws(old.parts)}
    return old.with_parts(tuple(_own_part(part, raws) for part in new.parts))


def check_places(changed: Iterable[tuple[int, Message, Message]]) -> None:
    """Check that no content has moved: messages that were changed, each with its place, before and after.

    Content has moved if it is gone from its own place and stands in another one: what a message says, a result or the arguments of
    a call. White space does not count. A copy of content that stays where it was is a change like any other.

    Raises:
        UnusableAnswer: some has.
    """
    before, after = dict[tuple[int, int], str](), dict[tuple[int, int], str]()
    for place, old, new in changed:
        before |= {(place, at): text for at, text in enumerate(_contents(old))}
        after |= {(place, at): text for at, text in enumerate(_contents(new))}
    lost = {text for key, text in before.items() if text and after.get(key) != text}
    if any(text in lost and before.get(key) != text for key, text in after.items()):
        raise UnusableAnswer("the content of a message stands in the place of another: the order must stay")


def _contents(message: Message) -> Iterator[str]:
    """What a message says, then its results and the arguments of its calls, which a plugin leaves in their order."""
    yield _joined(part.text for part in message.parts if isinstance(part, Text | File))
    for result in message.results:
        yield _joined(one.text for one in result.parts if isinstance(one, Text))
    for call in message.calls:
        yield _joined((call.arguments,))


def _joined(texts: Iterable[str]) -> str:
    return " ".join(" ".join(texts).split())


def _check_texts(old: Message, new: Message, own: str, growth: int) -> None:
    before, after = [*_texts(old)], [*_texts(new)]
    if not all(type(text) is str for text in after):
        raise UnusableAnswer("a text of a message is no text")
    if sum(map(len, after)) > sum(map(len, before)) + growth:
        raise UnusableAnswer("a message is much longer than before")
    try:
        "".join(after).encode()
    except UnicodeEncodeError:
        raise UnusableAnswer("a text is not valid Unicode") from None
    forged = _handles(after) - _handles(before)
    if any(not own or handle.partition(".")[0] != own for handle in forged):
        raise UnusableAnswer("it names the handle of another message")


def _handles(texts: Iterable[str]) -> set[str]:
    return {handle for text in texts for handle in _HANDLE.findall(text)}


def _texts(message: Message) -> Iterator[str]:
    """Every text of a message that is sent, media apart."""
    for part in message.parts:
        match part:
            case Text():
                yield part.text
            case ToolCall():
                yield part.arguments
            case ToolResult():
                yield from (inner.text for inner in part.parts if isinstance(inner, Text))
            case File():
                yield part.text
            case _:
                pass


def _fixed(message: Message) -> Iterator[object]:
    """What no plugin may change, in its order."""
    for part in message.parts:
        match part:
            case ToolCall():
                yield "call", part.id, part.name, part.kind
            case ToolResult():
                sealed = part.parts if part.kind == "computer" else ()
                inner = tuple(one for one in part.parts if isinstance(one, Opaque))
                yield "result", part.call_id, part.kind, part.is_error, sealed, inner
            case Reasoning() | Opaque():
                yield part
            case _:
                pass


def _raws(parts: tuple[Part, ...]) -> Iterator[object]:
    for part in parts:
        yield part.raw
        if isinstance(part, ToolResult):
            yield from _raws(part.parts)


def _own_part(part: Part, raws: set[int]) -> Part:
    """The part with the JSON of the original at most: JSON that a plugin has written could say something else."""
    if isinstance(part, ToolResult):
        inner = tuple(_own_part(one, raws) for one in part.parts)
        part = structs.replace(part, parts=inner)
    return part if id(part.raw) in raws else structs.replace(part, raw=None)


def _with_handle(message: Message, handle: str, plugin: str) -> Message:
    """The message with its handle, so that `recall` finds the original; unchanged if it names it."""
    if any(found.partition(".")[0] == handle for found in _handles(_texts(message))):
        return message
    note, parts = f"[{plugin}: {handle}]", list(message.parts)
    for place in reversed(range(len(parts))):
        part = parts[place]
        if isinstance(part, Text):
            parts[place] = structs.replace(part, text=f"{part.text}\n{note}")
            return message.with_parts(tuple(parts))
        if isinstance(part, ToolResult) and part.kind != "computer":
            parts[place] = structs.replace(part, parts=(*part.parts, Text(note)))
            return message.with_parts(tuple(parts))
    calls = (place for place, part in enumerate(parts) if isinstance(part, ToolCall))
    parts.insert(next(calls, len(parts)), Text(note))
    return message.with_parts(tuple(parts))


def map_texts(message: Message, change: Callable[[str], str]) -> Message:
    """The message with every text of it passed through a function: what was said, and the results of tools. For stages of plugins."""
    parts = tuple(_mapped(part, change) for part in message.parts)
    return message if parts == message.parts else message.with_parts(parts)


def _mapped(part: Part, change: Callable[[str], str]) -> Part:
    if isinstance(part, Text):
        return structs.replace(part, text=change(part.text))
    if isinstance(part, ToolResult) and part.kind != "computer":
        inner = tuple(
            structs.replace(one, text=change(one.text)) if isinstance(one, Text) else one
            for one in part.parts
        )
        return structs.replace(part, parts=inner)
    return part
