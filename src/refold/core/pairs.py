"""Repairs lists of messages so that every tool call has its result.

A call and its result belong together, although they are separate messages. Results move next to their
calls. Parts that cannot be completed are removed and returned to the caller, never dropped silently,
because a summary may still need them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct, structs

from refold.core.system_messages import joined, legal_order
from refold.core.verify import (
    broken_arguments,
    is_blank,
    is_call_id,
    is_empty,
    is_only_reasoning,
    plain_call_id,
    split_items,
    verify,
)
from refold.model.dialect import Dialect
from refold.model.message import Message, Part, Reasoning, ToolCall, ToolResult

# Matching of results to calls

Unwanted: TypeAlias = Literal["duplicate_result", "missing_call_id", "orphan_result"]


class Slot(Struct):
    """A call and, once found, its result. Both are sent under `new_id`."""

    call: ToolCall
    batch: int
    new_id: str
    result: ToolResult | None = None
    result_index: int = -1
    is_superseded: bool = False
    """A later call has taken its id before it was answered, so no result can come for it."""


class MatchedResults(Struct, frozen=True):
    slots: dict[int, list[Slot]]
    """By the index of the message with the calls, in call order. Calls without an id have no slot."""
    unwanted: dict[int, list[tuple[ToolResult, Unwanted]]]
    """Results that answer no call, by the index of their message."""
    foreign: frozenset[int]
    """Indices of messages with a result for a call that only the provider holds."""


def match_results(messages: Sequence[Message], dialect: Dialect, *, continues: bool) -> MatchedResults:
    slots: dict[int, list[Slot]] = {}
    unwanted: dict[int, list[tuple[ToolResult, Unwanted]]] = {}
    foreign: set[int] = set()
    waiting: dict[str, list[Slot]] = {}
    answered: set[str] = set()
    batch = -1
    for index, message in enumerate(messages):
        if message.role == "assistant":
            if index == 0 or not dialect.spreads_calls or messages[index - 1].role != "assistant":
                batch, answered = index, set()
            slots[index] = [Slot(call, batch, call.id) for call in message.calls if call.id]
            for slot in slots[index]:
                _wait(slot, waiting)
        for result in message.results:
            reason = _assign(result, index, waiting, answered)
            if reason == "orphan_result" and continues:
                foreign.add(index)
            elif reason:
                unwanted.setdefault(index, []).append((result, reason))
    return MatchedResults(slots, unwanted, frozenset(foreign))


def _wait(slot: Slot, waiting: dict[str, list[Slot]]) -> None:
    """A call replaces an earlier one with the same id, unless both belong to one reply."""
    others = waiting.get(slot.call.id)
    if others and others[0].batch == slot.batch:
        others.append(slot)
    else:
        for other in others or ():
            other.is_superseded = True
        waiting[slot.call.id] = [slot]


def _assign(
    result: ToolResult, index: int, waiting: dict[str, list[Slot]], answered: set[str]
) -> Unwanted | None:
    slots = waiting.get(result.call_id)
    if not result.call_id:
        return "missing_call_id"
    if not slots:
        return "duplicate_result" if result.call_id in answered else "orphan_result"
    slot = slots.pop(0)
    slot.result, slot.result_index = result, index
    answered.add(result.call_id)
    return None


RepairReason: TypeAlias = Literal[
    "blank_text",
    "dangling_reasoning",
    "duplicate_result",
    "empty_message",
    "misplaced_part",
    "missing_call_id",
    "orphan_result",
    "unanswered_call",
    "unsigned_thinking",
]
_LONGEST_ID = 40
"""Longest id for dialects without a stated limit: OpenAI's servers accept this."""


class RemovedParts(Struct, frozen=True):
    """A removed message, or a removed part of the message at `index`."""

    index: int
    what: Message | Part
    reason: RepairReason


class Repair(Struct, frozen=True):
    messages: tuple[Message, ...]
    removed: tuple[RemovedParts, ...] = ()
    changed: bool = False
    """True if anything was removed, moved, renamed, merged, split or wrapped."""
    origins: tuple[int, ...] = ()
    """For each message the index of its source, or of the first of its sources."""


_Placed: TypeAlias = tuple[int, Message]
"""A message with the index of its source."""


def repair(
    messages: Sequence[Message],
    dialect: Dialect,
    *,
    as_request: bool = False,
    continues: bool = False,
    follows_user: bool = False,
) -> Repair:
    """Complete calls and results for a dialect, and move system messages to legal places. Idempotent.

    Calls at the very end that wait for their results stay, unless the list is a request about to be sent.
    With `continues`, the provider holds earlier messages, and results may answer calls of those. In
    dialects that spread a reply over items, a list that begins inside a reply looks like a whole one, so
    lists must be cut with `cut.pair_safe`. `follows_user` says that a user message will precede the list.
    """
    if not verify(messages, dialect, as_request=as_request, continues=continues):
        return Repair(tuple(messages), origins=tuple(range(len(messages))))
    misfits: list[RemovedParts] = []
    placed = _fit_roles(messages, dialect, misfits)
    rebuilt = _Rebuild(
        [message for _, message in placed], dialect, as_request=as_request, continues=continues
    )
    whole = rebuilt.messages()
    spoken = [message for _, message in whole]
    order = legal_order(spoken, dialect, follows_user=follows_user)
    found = [(whole[group[-1]][0], joined(spoken, group)) for group in order]
    kept = tuple(message for _, message in found)
    removed = [structs.replace(gone, index=placed[gone.index][0]) for gone in rebuilt.removed]
    in_order = sorted([*misfits, *removed], key=lambda gone: gone.index)
    origins = tuple(placed[index][0] for index, _ in found)
    return Repair(kept, tuple(in_order), kept != tuple(messages), origins)


def _fit_roles(messages: Sequence[Message], dialect: Dialect, removed: list[RemovedParts]) -> list[_Placed]:
    """Remove blank and misplaced parts, and split messages with several items, so that later steps can rely on the roles."""
    out: list[_Placed] = []
    for index, message in enumerate(messages):
        parts: list[Part] = []
        for part in message.parts:
            reason = _misfit(part, message, dialect)
            if reason:
                removed.append(RemovedParts(index, part, reason))
            else:
                parts.append(part)
        kept = message if len(parts) == len(message.parts) else message.with_parts(tuple(parts))
        if kept.role == "tool" and not kept.results:
            kept = structs.replace(kept, role="user")
        if is_empty(kept):
            removed.append(RemovedParts(index, kept, "empty_message"))
        else:
            out.extend((index, item) for item in _items(kept, dialect))
    return out


def _misfit(part: Part, message: Message, dialect: Dialect) -> RepairReason | None:
    kind = type(part)
    if kind is ToolResult:
        return None if message.role == "tool" else "misplaced_part"
    if kind is ToolCall or kind is Reasoning:
        return None if message.role == "assistant" else "misplaced_part"
    if dialect.refuses_blank_text and is_blank(part) and not is_empty(message):
        return "blank_text"
    return None


def _items(message: Message, dialect: Dialect) -> list[Message]:
    items = split_items(message.parts) if dialect.spreads_calls else []
    return [Message(message.role, parts) for parts in items] if len(items) > 1 else [message]


class _Rebuild:
    """Rebuilds the messages in one pass, reply by reply, and collects the removed parts."""

    def __init__(
        self, messages: list[Message], dialect: Dialect, *, as_request: bool, continues: bool
    ) -> None:
        self.all, self.dialect, self.as_request = messages, dialect, as_request
        self.matched: MatchedResults = match_results(messages, dialect, continues=continues)
        self.removed: list[RemovedParts] = []
        self.used: dict[str, int] = {}

    def messages(self) -> list[_Placed]:
        out: list[_Placed] = []
        index = 0
        while index < len(self.all):
            if self.all[index].role == "assistant":
                stop = self._reply(index, out)
            else:
                stop = index + 1
                out += self._alone(index)
            index = stop
        if self.dialect.spreads_calls:
            out = self._without_dangling(out)
        return out

    def _reply(self, start: int, out: list[_Placed]) -> int:
        """Add a reply, which may be several items, and the results after it. Returns the index after them."""
        calls_stop = start + 1
        while self.dialect.spreads_calls and self._role(calls_stop) == "assistant":
            calls_stop += 1
        stop = calls_stop
        while self._role(stop) == "tool":
            stop += 1
        slots = [slot for index in range(start, calls_stop) for slot in self.matched.slots[index]]
        block = range(calls_stop, stop)
        if not self.dialect.unique_call_ids:
            self.used = {}
        spoken = self._reply_items(range(start, calls_stop), keep_open=self._may_wait(slots, block))
        out += self._without_lost_reply(spoken, slots, stop)
        out += self._results(slots, block)
        return stop

    def _role(self, index: int) -> str:
        return self.all[index].role if index < len(self.all) else ""

    def _rest(self, block: range) -> tuple[Part, ...]:
        """The parts beside the results of a block that are not blank."""
        parts = (part for index in block for part in self.all[index].parts)
        return tuple(part for part in parts if type(part) is not ToolResult and not is_blank(part))

    def _may_wait(self, slots: list[Slot], block: range) -> bool:
        """True if calls may stay without a result. Calls at the end are still running; text after them would
        separate them from their results.
        """
        if self.as_request or not self.dialect.results_at_once:
            return not self.as_request
        joined = self.dialect.joint_results and any(slot.result for slot in slots)
        return block.stop == len(self.all) and (joined or not self._rest(block))

    def _without_lost_reply(self, spoken: list[_Placed], slots: list[Slot], stop: int) -> list[_Placed]:
        """A request must not end with a reply that lost its calls."""
        lost = self.as_request and stop == len(self.all) and slots and not any(slot.result for slot in slots)
        if not lost:
            return spoken
        self.removed.extend(RemovedParts(at, reply, "unanswered_call") for at, reply in spoken)
        return []

    def _alone(self, index: int) -> list[_Placed]:
        """A message outside of any reply: its results were moved to their calls, or answer none."""
        message = self.all[index]
        self.removed.extend(RemovedParts(index, *gone) for gone in self.matched.unwanted.get(index, ()))
        if message.role != "tool" or index in self.matched.foreign:
            return [(index, message)]
        rest = self._rest(range(index, index + 1))
        return [(index, structs.replace(message.with_parts(rest), role="user"))] if rest else []

    def _reply_items(self, indices: range, *, keep_open: bool) -> list[_Placed]:
        out: list[_Placed] = []
        for index in indices:
            message = self.all[index]
            parts = self._repaired_thinking(index, self._repaired_calls(index, keep_open=keep_open))
            reply = message if parts == message.parts else message.with_parts(parts)
            bare = reply is not message and not self.dialect.spreads_calls and is_only_reasoning(reply)
            if bare or is_empty(reply):
                self.removed.append(RemovedParts(index, reply, "empty_message"))
            else:
                out.append((index, reply))
        return out

    def _repaired_calls(self, index: int, *, keep_open: bool) -> list[Part]:
        slots = iter(self.matched.slots[index])
        parts: list[Part] = []
        for part in self.all[index].parts:
            slot = next(slots) if type(part) is ToolCall and part.id else None
            if type(part) is not ToolCall:
                parts.append(part)
            elif slot and (slot.result or (keep_open and not slot.is_superseded)):
                parts.append(self._repaired_call(slot))
            else:
                reason: RepairReason = "unanswered_call" if part.id else "missing_call_id"
                self.removed.append(RemovedParts(index, part, reason))
        return parts

    def _repaired_call(self, slot: Slot) -> ToolCall:
        call = slot.call
        slot.new_id = self._free_id(call.id)
        if broken_arguments(call, as_object=self.dialect.object_arguments):
            text = call.arguments.encode("utf-8", "replace").decode()
            call = structs.replace(call, arguments=msgspec.json.encode({"_malformed": text}).decode())
        return call if slot.new_id == call.id else structs.replace(call, id=slot.new_id)

    def _free_id(self, call_id: str) -> str:
        """The id itself, or a variant that the dialect accepts and that is not in use."""
        plain = call_id if is_call_id(call_id, self.dialect) else plain_call_id(call_id, self.dialect)
        free, number = plain, self.used.get(plain, 1)
        while free in self.used:
            number += 1
            suffix = f"-{number}"
            free = plain[: (self.dialect.max_call_id or _LONGEST_ID) - len(suffix)] + suffix
        self.used[plain] = number
        self.used.setdefault(free, 1)
        return free

    def _repaired_thinking(self, index: int, parts: list[Part]) -> tuple[Part, ...]:
        if not self.dialect.signed_thinking:
            return tuple(parts)
        thoughts = [part for part in parts if type(part) is Reasoning]
        reason: RepairReason
        if any(not thought.signature and not thought.sealed for thought in thoughts):
            reason = "unsigned_thinking"
        elif parts and type(parts[-1]) is Reasoning:
            reason = "dangling_reasoning"
        else:
            return tuple(parts)
        self.removed.extend(RemovedParts(index, thought, reason) for thought in thoughts)
        return tuple(part for part in parts if type(part) is not Reasoning)

    def _results(self, slots: list[Slot], block: range) -> list[_Placed]:
        for index in block:
            self.removed.extend(RemovedParts(index, *gone) for gone in self.matched.unwanted.get(index, ()))
        if self._is_intact(slots, block):
            return [(index, self.all[index]) for index in block]
        rest = self._rest(block)
        answered = [(slot, slot.result) for slot in slots if slot.result]
        foreign = [(index, self.all[index]) for index in block if index in self.matched.foreign]
        if answered and self.dialect.joint_results:
            results = tuple(_renamed(slot, result) for slot, result in answered)
            base = self.all[block.start] if block else Message("tool", ())
            return [(answered[0][0].result_index, base.with_parts((*results, *rest)))]
        own = [(slot.result_index, self._single(slot, result)) for slot, result in answered]
        after = [(block.start, Message("user", rest))] if rest else []
        return [*own, *foreign, *after]

    def _is_intact(self, slots: list[Slot], block: range) -> bool:
        """True if the block holds exactly this reply's results, under their own ids and in the dialect's form."""
        mine = [slot for slot in slots if slot.result]
        if any(slot.result_index not in block or slot.new_id != slot.call.id for slot in mine):
            return False
        own = [index for index in block if index not in self.matched.foreign]
        if sum(len(self.all[index].results) for index in own) != len(mine):
            return False
        if self.dialect.joint_results:
            return len(block) <= 1 and all(_results_first(self.all[index]) for index in block)
        return all(len(self.all[index].parts) == 1 for index in block)

    def _single(self, slot: Slot, result: ToolResult) -> Message:
        source, renamed = self.all[slot.result_index], _renamed(slot, result)
        if len(source.parts) == 1:
            return source if renamed is result else source.with_parts((renamed,))
        return Message("tool", (renamed,))

    def _without_dangling(self, messages: list[_Placed]) -> list[_Placed]:
        """In dialects that spread a reply over items, reasoning needs another item of the same reply after it."""
        kept: list[_Placed] = []
        for index, message in reversed(messages):
            follower = kept[-1][1].role if kept else None
            if is_only_reasoning(message) and follower != "assistant" and (kept or self.as_request):
                self.removed.append(RemovedParts(index, message, "dangling_reasoning"))
            else:
                kept.append((index, message))
        return kept[::-1]


def _renamed(slot: Slot, result: ToolResult) -> ToolResult:
    return result if slot.new_id == result.call_id else structs.replace(result, call_id=slot.new_id)


def _results_first(message: Message) -> bool:
    count = len(message.results)
    return all(type(part) is ToolResult for part in message.parts[:count])
