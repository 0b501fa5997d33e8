"""Tool calls and their results: find what belongs together, and make whole what is not.

One idea: a call and its result are one thing that a list of messages shows as two. Ids repeat across turns, so a result
belongs to the latest call with its id that has no result yet. What cannot be made whole is taken out and handed back,
never dropped silently: a summary may still need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct, structs

from refold.core.content import broken_arguments, is_empty, is_only_reasoning
from refold.core.verify import verify
from refold.model.dialect import Dialect
from refold.model.message import Message, Part, Reasoning, ToolCall, ToolResult

Reason: TypeAlias = Literal[
    "dangling_reasoning",
    "duplicate_result",
    "empty_message",
    "missing_call_id",
    "orphan_result",
    "unanswered_call",
    "unsigned_thinking",
]


class Removed(Struct, frozen=True):
    """Something that could not stay: a whole message, or one part of the message at `index`."""

    index: int
    what: Message | Part
    reason: Reason


class Repair(Struct, frozen=True):
    messages: tuple[Message, ...]
    removed: tuple[Removed, ...] = ()
    changed: bool = False
    """Something was removed, moved, renamed, merged or wrapped."""


_Placed: TypeAlias = tuple[int, Message]
"""A message and the index it had, or the index of what it was made from."""


class _Slot(Struct):
    """A call waiting for its result."""

    call: ToolCall
    batch: int
    new_id: str
    result: ToolResult | None = None
    result_index: int = -1


class _Matched(Struct):
    slots: dict[int, list[_Slot]]
    """Slots by the index of the message that holds the calls, in call order."""
    unwanted: dict[int, list[Removed]]
    """Results that answer no call, by message."""


def repair(messages: Sequence[Message], dialect: Dialect, *, as_request: bool = False) -> Repair:
    """Make calls and results whole for a dialect; repairing twice changes nothing more.

    Calls at the very end that wait for their results stay, unless the list is a request about to be sent.
    """
    if not verify(messages, dialect, as_request=as_request):
        return Repair(tuple(messages))
    removed: list[Removed] = []
    whole = _rebuild(messages, _match(messages, dialect), dialect, removed, as_request=as_request)
    if dialect.spreads_calls:
        whole = _drop_dangling(whole, removed, as_request=as_request)
    kept = tuple(message for _, message in whole)
    return Repair(kept, tuple(removed), kept != tuple(messages))


def batch_end(messages: Sequence[Message], start: int, dialect: Dialect) -> int:
    """One past the last message of the reply that begins at `start`."""
    stop = start + 1
    while dialect.spreads_calls and stop < len(messages) and messages[stop].role == "assistant":
        stop += 1
    return stop


def results_end(messages: Sequence[Message], start: int) -> int:
    """One past the contiguous block of results that begins at `start`."""
    stop = start
    while stop < len(messages) and messages[stop].role == "tool":
        stop += 1
    return stop


def _match(messages: Sequence[Message], dialect: Dialect) -> _Matched:
    matched = _Matched({}, {})
    waiting: dict[str, list[_Slot]] = {}
    answered: set[str] = set()
    batch = -1
    for index, message in enumerate(messages):
        if message.role == "assistant":
            if index == 0 or not dialect.spreads_calls or messages[index - 1].role != "assistant":
                batch, answered = index, set()
            slots = [_Slot(call, batch, call.id) for call in message.calls if call.id]
            matched.slots[index] = slots
            for slot in slots:
                same_batch = [other for other in waiting.get(slot.call.id, ()) if other.batch == batch]
                waiting[slot.call.id] = [*same_batch, slot]
        for result in message.results:
            reason = _assign(result, index, waiting, answered)
            if reason:
                matched.unwanted.setdefault(index, []).append(Removed(index, result, reason))
    return matched


def _assign(
    result: ToolResult, index: int, waiting: dict[str, list[_Slot]], answered: set[str]
) -> Reason | None:
    slots = waiting.get(result.call_id)
    if not result.call_id:
        return "missing_call_id"
    if not slots:
        return "duplicate_result" if result.call_id in answered else "orphan_result"
    slot = slots.pop(0)
    slot.result, slot.result_index = result, index
    answered.add(result.call_id)
    return None


def _rebuild(
    messages: Sequence[Message],
    matched: _Matched,
    dialect: Dialect,
    removed: list[Removed],
    *,
    as_request: bool,
) -> list[_Placed]:
    out: list[_Placed] = []
    used: set[str] = set()
    index = 0
    while index < len(messages):
        if messages[index].role != "assistant":
            out.extend(_without_results(index, messages[index], matched, removed))
            index += 1
            continue
        batch = _Batch(messages, index, matched, dialect)
        at_end = batch.stop == len(messages)
        ids = used if dialect.unique_call_ids else set()
        in_flight = at_end and not as_request and not batch.is_followed_by_text
        replies = batch.replies(removed, ids, keep_open=in_flight)
        if as_request and at_end and batch.lost_calls and not batch.has_results:
            removed.extend(Removed(at, reply, "unanswered_call") for at, reply in replies)
            replies = []
        out += [*replies, *batch.results(removed)]
        index = batch.stop
    return out


def _without_results(
    index: int, message: Message, matched: _Matched, removed: list[Removed]
) -> list[_Placed]:
    """A message outside of any batch: its results were moved next to their calls or answer none."""
    removed.extend(matched.unwanted.get(index, ()))
    if message.role != "tool":
        if not is_empty(message):
            return [(index, message)]
        removed.append(Removed(index, message, "empty_message"))
        return []
    rest = tuple(part for part in message.parts if type(part) is not ToolResult)
    return [(index, structs.replace(message.with_parts(rest), role="user"))] if rest else []


class _Batch:
    """One reply with calls, and the block of results after it."""

    def __init__(self, messages: Sequence[Message], start: int, matched: _Matched, dialect: Dialect) -> None:
        self.messages, self.start, self.matched, self.dialect = messages, start, matched, dialect
        self.calls_stop = batch_end(messages, start, dialect)
        self.stop = results_end(messages, self.calls_stop)
        self.slots = [slot for index in range(start, self.calls_stop) for slot in matched.slots[index]]
        self.block = list(messages[self.calls_stop : self.stop])
        self.rest = tuple(
            part for message in self.block for part in message.parts if type(part) is not ToolResult
        )
        self.lost_calls = False

    @property
    def has_results(self) -> bool:
        return any(slot.result for slot in self.slots)

    @property
    def is_followed_by_text(self) -> bool:
        """Will what stands beside the results become a user message of its own?"""
        return bool(self.rest) and not (self.dialect.joint_results and self.has_results)

    def replies(self, removed: list[Removed], used: set[str], *, keep_open: bool) -> list[_Placed]:
        out: list[_Placed] = []
        for index in range(self.start, self.calls_stop):
            message = self.messages[index]
            parts = self._kept_parts(index, message, removed, used, keep_open=keep_open)
            reply = message if parts == message.parts else message.with_parts(parts)
            if is_empty(reply) or (reply is not message and self._is_bare_thinking(reply)):
                removed.append(Removed(index, reply, "empty_message"))
            else:
                out.append((index, reply))
        return out

    def _is_bare_thinking(self, reply: Message) -> bool:
        """Where a reply is one message, thinking alone is what is left of a reply that lost its calls."""
        return not self.dialect.spreads_calls and is_only_reasoning(reply)

    def _kept_parts(
        self, index: int, message: Message, removed: list[Removed], used: set[str], *, keep_open: bool
    ) -> tuple[Part, ...]:
        slots = iter(self.matched.slots[index])
        parts: list[Part] = []
        for part in message.parts:
            if type(part) is not ToolCall:
                parts.append(part)
                continue
            slot = next(slots) if part.id else None
            if slot and (slot.result or keep_open):
                parts.append(self._sound_call(slot, used))
                continue
            self.lost_calls = True
            removed.append(Removed(index, part, "unanswered_call" if part.id else "missing_call_id"))
        return self._sound_thinking(index, parts, removed)

    def _sound_call(self, slot: _Slot, used: set[str]) -> ToolCall:
        call = slot.call
        new_id, number = call.id, 2
        while new_id in used:
            new_id, number = f"{call.id}-{number}", number + 1
        used.add(new_id)
        slot.new_id = new_id
        if broken_arguments(call, as_object=self.dialect.object_arguments):
            text = call.arguments.encode("utf-8", "replace").decode()
            call = structs.replace(call, arguments=msgspec.json.encode({"_malformed": text}).decode())
        return call if new_id == call.id else structs.replace(call, id=new_id)

    def _sound_thinking(self, index: int, parts: list[Part], removed: list[Removed]) -> tuple[Part, ...]:
        if not self.dialect.signed_thinking:
            return tuple(parts)
        thoughts = [part for part in parts if type(part) is Reasoning]
        reason: Reason
        if any(not thought.signature and not thought.sealed for thought in thoughts):
            reason = "unsigned_thinking"
        elif parts and type(parts[-1]) is Reasoning:
            reason = "dangling_reasoning"
        else:
            return tuple(parts)
        removed.extend(Removed(index, thought, reason) for thought in thoughts)
        return tuple(part for part in parts if type(part) is not Reasoning)

    def results(self, removed: list[Removed]) -> list[_Placed]:
        block, rest = self.block, self.rest
        for index in range(self.calls_stop, self.stop):
            removed.extend(self.matched.unwanted.get(index, ()))
        if self._is_sound():
            return list(enumerate(block, self.calls_stop))
        answered = [(slot, slot.result) for slot in self.slots if slot.result]
        if answered and self.dialect.joint_results:
            results = tuple(_renamed(slot, result) for slot, result in answered)
            base = block[0] if block else Message("tool", ())
            return [(self.calls_stop, base.with_parts((*results, *rest)))]
        out = [(slot.result_index, self._single(slot, result)) for slot, result in answered]
        return [*out, (self.calls_stop, Message("user", rest))] if rest else out

    def _is_sound(self) -> bool:
        """Does the block hold exactly this batch's results, under their own ids?"""
        here = range(self.calls_stop, self.stop)
        if any(index in self.matched.unwanted for index in here):
            return False
        mine = [slot for slot in self.slots if slot.result]
        if any(slot.result_index not in here or slot.new_id != slot.call.id for slot in mine):
            return False
        if sum(len(message.results) for message in self.block) != len(mine):
            return False
        return not self.dialect.joint_results or (
            len(self.block) <= 1 and all(map(_results_first, self.block))
        )

    def _single(self, slot: _Slot, result: ToolResult) -> Message:
        source = self.messages[slot.result_index]
        renamed = _renamed(slot, result)
        if len(source.parts) == 1:
            return source if renamed is result else source.with_parts((renamed,))
        return Message("tool", (renamed,))


def _renamed(slot: _Slot, result: ToolResult) -> ToolResult:
    return result if slot.new_id == result.call_id else structs.replace(result, call_id=slot.new_id)


def _results_first(message: Message) -> bool:
    count = len(message.results)
    return all(type(part) is ToolResult for part in message.parts[:count])


def _drop_dangling(messages: list[_Placed], removed: list[Removed], *, as_request: bool) -> list[_Placed]:
    """Where a reply is spread over items, its thinking needs another item of the same reply after it."""
    kept: list[_Placed] = []
    for index, message in reversed(messages):
        follower = kept[-1][1].role if kept else None
        if is_only_reasoning(message) and follower != "assistant" and (kept or as_request):
            removed.append(Removed(index, message, "dangling_reasoning"))
        else:
            kept.append((index, message))
    return kept[::-1]
