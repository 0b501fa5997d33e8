"""A provider's prompt cache, as far as its bills show it.

One idea: a prompt that begins as an earlier one did need not be read again. What an earlier prompt left behind is known by
the place it ends at: a mark. A later prompt with the same beginning finds it there, as long as it lives and is large enough.

    sent first    system ▏ a b ▏            two marks: both beginnings are kept
    sent next     system ▏ a b   c d ▏      up to the second mark it is read, up to its own it is written
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import msgspec
from msgspec import Raw, Struct, structs

from refold.core.assemble import BRIDGE
from refold.core.fold import Folded
from refold.core.shown import Edit, handle_of
from refold.core.verify import breakpoint_in, breakpoints_of, count_breakpoints, is_blank
from refold.core.view import View
from refold.model.message import Message, Opaque, Part, Reasoning, ToolResult
from refold.model.window import Breakpoint, Fixed, Ttl, Window


class CacheRules(Struct, frozen=True):
    ttl_s: float = 300
    """Both providers state five minutes; a read begins them anew."""
    minimum: int = 1_024
    """A shorter beginning is not cached: what both providers state for most of their models."""
    step: int = 1
    """What is read is a multiple of this: one for Anthropic, 128 for OpenAI."""
    lookback: int | None = None
    """Steps back from a mark in which something cached is looked for; None looks all the way back."""


class Prompt(Struct, frozen=True):
    """A prompt as a cache sees it, piece by piece; a piece is a message, a block or a tool definition."""

    names: tuple[Hashable, ...]
    """For each piece the name of the beginning that ends with it: equal beginnings have equal names."""
    sizes: tuple[int, ...]
    """The tokens of those beginnings."""
    marks: Mapping[int, float | None]
    """The lengths, in pieces, of the beginnings to keep, with the seconds they live; None where the rules say so."""


class CacheHit(Struct, frozen=True, gc=False):
    """How many tokens of a prompt came from the cache, and how many went into it."""

    read: int = 0
    written: int = 0


class _Entry(Struct, gc=False):
    length: int
    ttl_s: float
    used_at: float


class PromptCache:
    """What one provider keeps; it forgets nothing but what has not been used for too long."""

    def __init__(self, rules: CacheRules) -> None:
        self.rules = rules
        self._kept: dict[Hashable, _Entry] = {}

    def send(self, prompt: Prompt, now: float) -> CacheHit:
        """Account for a prompt that is sent at a time."""
        self._forget(now)
        known = self._known(prompt)
        read = self._read(prompt, known)
        for entry in known:
            if prompt.sizes[entry.length - 1] <= read:
                entry.used_at = now
        return CacheHit(read, max(0, self._write(prompt, now) - read))

    def _forget(self, now: float) -> None:
        self._kept = {name: entry for name, entry in self._kept.items() if now - entry.used_at <= entry.ttl_s}

    def _known(self, prompt: Prompt) -> list[_Entry]:
        """The cached beginnings of this prompt that are looked for."""
        names = prompt.names
        return [
            entry
            for name, entry in self._kept.items()
            if entry.length <= len(names)
            and names[entry.length - 1] == name
            and self._is_seen(entry.length, prompt)
        ]

    def _is_seen(self, length: int, prompt: Prompt) -> bool:
        back = self.rules.lookback
        return back is None or any(0 <= mark - length < back for mark in prompt.marks)

    def _read(self, prompt: Prompt, known: list[_Entry]) -> int:
        most = max((prompt.sizes[entry.length - 1] for entry in known), default=0)
        return most // self.rules.step * self.rules.step if most >= self.rules.minimum else 0

    def _write(self, prompt: Prompt, now: float) -> int:
        """Keep what is marked; the size of the longest beginning kept."""
        longest = 0
        for length, ttl_s in prompt.marks.items():
            size = prompt.sizes[length - 1]
            if size >= self.rules.minimum:
                lives_s = self.rules.ttl_s if ttl_s is None else ttl_s
                self._kept[prompt.names[length - 1]] = _Entry(length, lives_s, now)
                longest = max(longest, size)
        return longest


# Cache breakpoints: up to where a provider is asked to keep what it has read.

Place: TypeAlias = tuple[int, int]
"""A message and a part of it. Places compare as they follow each other on the wire."""
Mark: TypeAlias = tuple[Place, Ttl]
Wish: TypeAlias = tuple[str, Place | None]
"""A reason for a breakpoint, and the place where there is one."""

LOOKBACK = 20
"""Blocks in which a provider looks for something cached, a breakpoint's own block included."""
NO_SEQ = -1
"""Stands in an Edit for a message that is none of the branch's: the system prompt or a summary."""
_TOOLS, _SYSTEM = -2, -1
_FIELDS = msgspec.json.Decoder(dict[str, Raw])


def mark_window(window: Window, folded: Folded, ttl: Ttl | None, last: Window | None = None) -> Window:
    """A window that shows `folded`, with as many cache breakpoints as the client has left free; without a `ttl`, none.

    `last` is the window of the call before, as it was marked: what the provider has cached of it is found again. Of more than are allowed, the client's oldest are left out: one that marks its newest message each time means that one
    place, not all of them.
    """
    most = window.fixed.dialect.max_breakpoints
    own = _client_marks(window, folded.shown) if most else []
    if len(own) > most:
        return _thinned(window, own, excess=len(own) - most)
    if ttl is None or len(own) == most:
        return window
    wanted = _wanted(window, prune_boundary(folded), last)
    chosen = _choose(wanted, {place for place, _ in own}, most - len(own))
    placed = (_breakpoint(place, chosen[place], _ttl_at(place, own, ttl)) for place in sorted(chosen))
    return structs.replace(window, breakpoints=tuple(placed))


def prune_boundary(folded: Folded) -> int:
    """The index of the first message shown after all those that are shown other than they came; 0 where none is.

    Only messages that were there at the last change are looked at, so the boundary stays where it is until the next one.
    """
    shown = folded.shown
    for index in range(len(folded.edited) - 1, -1, -1):
        message, number = shown[index].message, folded.edited[index]
        if number < folded.origin:
            continue  # a question or an instruction that stays as it came
        if not folded.is_original(message, number) and message != folded.original(number).message:
            return index + 1
    return 0


def breakpoint_edits(window: Window, folded: Folded) -> tuple[Edit, ...]:
    """What marking a window has changed in what is sent of `folded`."""
    shown = folded.shown
    dropped = [
        index
        for index in _marked_messages(shown)
        if count_breakpoints(window.messages[index].parts) < count_breakpoints(shown[index].message.parts)
    ]
    left_out = (_edit(folded, index, "cache breakpoint left out: there were too many") for index in dropped)
    added = (
        _edit(folded, window.index_at(mark.index) if mark.index is not None else None, _said(mark))
        for mark in window.breakpoints
    )
    return (*left_out, *added)


def _thinned(window: Window, own: list[Mark], excess: int) -> Window:
    """The window without some of the client's breakpoints in its messages, the oldest first."""
    messages, places = list(window.messages), sorted({place for (place, _), _ in own if place >= 0})
    for index in (found for place in places if (found := window.index_at(place)) is not None):
        message = messages[index]
        if excess > 0 and (found := count_breakpoints(message.parts)):
            messages[index] = unmarked(message)
            excess -= found
    return structs.replace(window, messages=tuple(messages))


def _choose(wanted: Iterable[Wish], taken: set[Place], free: int) -> dict[Place, str]:
    chosen = dict[Place, str]()
    for reason, place in wanted:
        if place is not None and place not in taken and len(chosen) < free:
            chosen.setdefault(place, reason)
    return chosen


def _wanted(window: Window, boundary: int, last: Window | None) -> Iterator[Wish]:
    """Places in the order of their worth.

    The tail is all that the next call reads; what is cached and out of its sight, all that this one reads. The system prompt
    outlives every compaction; of the two that outlive a pruning, the boundary has the summary in front of it.
    """
    messages = window.sent
    tail = _last_place(messages, len(messages))
    yield "tail", tail
    yield "cached before", _out_of_sight(messages, _cached(window, last) if last else None, tail)
    yield "system prompt", _prompt_place(window.fixed)
    if boundary:
        yield "prune boundary", _last_place(messages, window.place(boundary - 1) + 1)
    yield "summary", _summary_place(window)


def _last_place(messages: Sequence[Message], stop: int) -> Place | None:
    """The last place before the message at `stop` that can hold a breakpoint."""
    for index in range(stop - 1, -1, -1):
        part = _last_carrier(messages[index].parts)
        if part is not None:
            return index, part
    return None


def _last_carrier(parts: Sequence[Part]) -> int | None:
    carriers = (at for at in range(len(parts) - 1, -1, -1) if _can_carry(parts[at]))
    return next(carriers, None)


def _can_carry(part: Part) -> bool:
    """Providers refuse a breakpoint on thinking and on blank text; what is opaque leaves untouched."""
    return not isinstance(part, Reasoning | Opaque) and not is_blank(part)


def _cached(window: Window, last: Window) -> Place | None:
    """The last breakpoint of the window before that has the same in front of it as it had then."""
    if window.fixed != last.fixed or window.block != last.block:
        return None
    now, then = window.sent, last.sent
    pairs = enumerate(zip(now, then, strict=False))
    changed = (index for index, (new, old) in pairs if new is not old and new != old)
    same = next(changed, min(len(now), len(then)))
    marks = ((mark.index, mark.part) for mark in reversed(last.breakpoints) if mark.index is not None)
    return next(((index, part) for index, part in marks if index < same), None)


def _out_of_sight(messages: Sequence[Message], place: Place | None, tail: Place | None) -> Place | None:
    """The place, if so many blocks stand between it and the tail that a provider would not find it from there."""
    if place is None or tail is None:
        return None
    blocks = sum(len(message.parts) for message in messages[place[0] : tail[0]]) - place[1] + tail[1]
    return place if blocks >= LOOKBACK else None


def _prompt_place(fixed: Fixed) -> Place | None:
    part = _last_carrier(fixed.system[0].parts) if fixed.system else None
    return None if part is None else (_SYSTEM, part)


def _summary_place(window: Window) -> Place | None:
    if window.block:
        return _SYSTEM, len(window.system[0].parts) - 1
    sent, first = window.sent, len(window.before) + window.opening
    told = [at for at in range(first, first + len(window.summaries)) if sent[at].text != BRIDGE]
    if not told and window.opening and sent[first - 1].role == "tool":
        told = [first - 1]  # the summary is a block of it
    return _last_place(sent, told[-1] + 1) if told else None


def _client_marks(window: Window, shown: View) -> list[Mark]:
    """The breakpoints that the client set, in the order in which they are sent."""
    fixed = window.fixed
    tools = ((at, tool.raw) for at, tool in enumerate(fixed.tools) if tool.raw is not None)
    marks: list[Mark] = [((_TOOLS, at), ttl) for at, raw in tools for ttl in breakpoint_in(raw)]
    for message in fixed.system:
        marks += _marks_in(message, _SYSTEM)
    for index in _marked_messages(shown):
        marks += _marks_in(window.messages[index], window.place(index))
    if fixed.automatic is not None:
        messages = window.sent
        marks.append((_last_place(messages, len(messages)) or (len(messages), 0), fixed.automatic))
    return marks


def _marked_messages(shown: View) -> Iterator[int]:
    """Verification has counted them as they came, so that they need not be looked for."""
    seen = 0
    if shown.progress.breakpoints:
        for index, entry in enumerate(shown):
            if entry.progress.breakpoints > seen:
                seen = entry.progress.breakpoints
                yield index


def _marks_in(message: Message, index: int) -> list[Mark]:
    held = ((at, part) for at, part in enumerate(message.parts) if part.raw is not None)
    return [((index, at), ttl) for at, part in held for ttl in breakpoints_of(part)]


def _ttl_at(place: Place, own: list[Mark], ttl: Ttl) -> Ttl:
    """The time to ask for at a place: providers refuse a longer one after a shorter one."""
    if any(ttl == "1h" and place < mark for mark, ttl in own):
        return "1h"
    return "5m" if any(ttl == "5m" and mark < place for mark, ttl in own) else ttl


def _breakpoint(place: Place, reason: str, ttl: Ttl) -> Breakpoint:
    index, part = place
    return Breakpoint(None if index == _SYSTEM else index, part, ttl, reason)


def unmarked(message: Message) -> Message:
    """The message without any breakpoint."""
    if not count_breakpoints(message.parts):
        return message
    return message.with_parts(tuple(map(_unmarked, message.parts)))


def _unmarked(part: Part) -> Part:
    """The part without a breakpoint on its block or inside of it."""
    if part.raw is None or not breakpoints_of(part):
        return part
    fields = _FIELDS.decode(part.raw)
    fields.pop("cache_control", None)
    raw = Raw(msgspec.json.encode(fields))
    if isinstance(part, ToolResult):
        inner = tuple(_unmarked(held) for held in part.parts)
        return structs.replace(part, raw=raw, parts=inner)
    return structs.replace(part, raw=raw)


def _said(mark: Breakpoint) -> str:
    return f"cache breakpoint for {mark.ttl}: {mark.reason}"


def _edit(folded: Folded, index: int | None, reason: str) -> Edit:
    if index is None:
        return Edit("cache", NO_SEQ, 0, 0, reason)
    seq, tokens = folded.number(index), folded.shown[index].tokens
    return Edit("cache", seq, tokens, tokens, reason, handle_of(seq))
