"""Models a provider's prompt cache, and places cache breakpoints in a window.

A provider need not read a prompt's prefix again if an earlier prompt had the same one. A mark is the end
of a prefix that the provider stores. A later prompt with the same prefix reads it from the cache, if it
has not expired and is large enough.

    sent first    system ▏ a b ▏            two marks: both prefixes are stored
    sent next     system ▏ a b   c d ▏      read up to the second mark, written up to its own
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import msgspec
from msgspec import Raw, Struct, structs

from refold.core.assemble import BRIDGE
from refold.core.fold import FoldedBranch
from refold.core.stage import Edit, handle_of
from refold.core.verify import breakpoint_in, breakpoints_of, count_breakpoints, is_blank
from refold.core.view import View
from refold.model.message import Message, Opaque, Part, Reasoning, ToolResult
from refold.model.window import Breakpoint, FixedFields, Ttl, Window


class CacheRules(Struct, frozen=True):
    ttl_s: float = 300
    """Both providers state five minutes, and each read restarts them."""
    minimum: int = 1_024
    """Tokens of the shortest prefix that is cached; both providers state this for most of their models."""
    step: int = 1
    """Cached reads are a multiple of this: one for Anthropic, 128 for OpenAI."""
    lookback: int | None = None
    """Number of steps before a mark in which the provider looks for a cached prefix; None for no limit."""


class Prompt(Struct, frozen=True):
    """A prompt in pieces, as a cache sees it. A piece is a message, a block or a tool definition."""

    names: tuple[Hashable, ...]
    """For each piece, the name of the prefix that ends with it: equal prefixes have equal names."""
    sizes: tuple[int, ...]
    """Tokens of those prefixes."""
    marks: Mapping[int, float | None]
    """Lengths, in pieces, of the prefixes to store, with their lifetime in seconds; None for the lifetime of the rules."""


class CacheHit(Struct, frozen=True, gc=False):
    """Tokens of a prompt that were read from the cache, and written to it."""

    read: int = 0
    written: int = 0


class _Entry(Struct, gc=False):
    length: int
    ttl_s: float
    used_at: float


class PromptCache:
    """The cache of one provider. An entry leaves it only when it expires."""

    def __init__(self, rules: CacheRules) -> None:
        self.rules = rules
        self._kept: dict[Hashable, _Entry] = {}

    def send(self, prompt: Prompt, now: float) -> CacheHit:
        """Account for a prompt sent at time `now`."""
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
        """The cached prefixes of this prompt that are within the lookback."""
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
        """Store the marked prefixes; return the size of the longest."""
        longest = 0
        for length, ttl_s in prompt.marks.items():
            size = prompt.sizes[length - 1]
            if size >= self.rules.minimum:
                lives_s = self.rules.ttl_s if ttl_s is None else ttl_s
                self._kept[prompt.names[length - 1]] = _Entry(length, lives_s, now)
                longest = max(longest, size)
        return longest


# Cache breakpoints: positions up to which a provider is asked to cache the prompt

PartPlace: TypeAlias = tuple[int, int]
"""Index of a message and of one of its parts. Places sort in wire order."""
CacheMark: TypeAlias = tuple[PartPlace, Ttl]
Wish: TypeAlias = tuple[str, PartPlace | None]
"""A reason for a breakpoint, and its place if there is one."""

LOOKBACK = 20
"""Blocks before a breakpoint, its own included, in which a provider looks for a cached prefix."""
NO_SEQ = -1
"""Message number in an Edit of a message outside the branch: the system prompt or a summary."""
_TOOLS, _SYSTEM = -2, -1
_FIELDS = msgspec.json.Decoder(dict[str, Raw])


def mark_window(window: Window, folded: FoldedBranch, ttl: Ttl | None, last: Window | None = None) -> Window:
    """Add cache breakpoints to a window that shows `folded`, as many as the client has left free; none without a `ttl`.

    `last` is the marked window of the previous call: its cached prefix is found again. If the client
    itself set too many breakpoints, its oldest ones are removed: a client that marks its newest message in
    each request means one place, not all of them.
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


def mark_prompt(window: Window, ttl: Ttl) -> Window:
    """Add cache breakpoints to a window that is sent in another form than it was planned in, as many as are left free.

    The tail comes first, then the end of the request before, which is in front of the last reply, if the provider would
    not find it from the tail, then the last blocks of the system prompt: the first ones survive a change of a
    summary behind them.
    """
    fixed, messages = window.fixed, window.sent
    tools = ((at, tool.raw) for at, tool in enumerate(fixed.tools) if tool.raw is not None)
    own: list[CacheMark] = [((_TOOLS, at), mark) for at, raw in tools for mark in breakpoint_in(raw)]
    for message in fixed.system:
        own += _marks_in(message, _SYSTEM)
    for index, message in enumerate(messages):
        own += _marks_in(message, index)
    tail = _last_place(messages, len(messages))
    if fixed.automatic is not None:
        own.append((tail or (len(messages), 0), fixed.automatic))
    replies = (at for at in range(len(messages) - 1, -1, -1) if messages[at].role == "assistant")
    before = _last_place(messages, next(replies, 0))
    prompt = fixed.system[0].parts if fixed.system else ()
    blocks = [at for at in range(len(prompt) - 1, -1, -1) if _can_carry(prompt[at])]
    wanted: list[Wish] = [("tail", tail), ("cached before", _out_of_sight(messages, before, tail))]
    wanted += [("system prompt", (_SYSTEM, at)) for at in blocks[:2]]
    free = max(0, fixed.dialect.max_breakpoints - len(own))
    chosen = _choose(wanted, {place for place, _ in own}, free)
    placed = (_breakpoint(place, chosen[place], _ttl_at(place, own, ttl)) for place in sorted(chosen))
    return structs.replace(window, breakpoints=tuple(placed))


def prune_boundary(folded: FoldedBranch) -> int:
    """Index of the first message after all those that are not shown as their originals; 0 if there are none.

    Only messages from before the last change are compared, so the boundary is stable until the next
    change.
    """
    shown = folded.shown
    for index in range(len(folded.edited) - 1, -1, -1):
        message, number = shown[index].message, folded.edited[index]
        if number < folded.origin:
            continue  # a question or an instruction, which is shown unchanged
        if not folded.is_original(message, number) and message != folded.original(number).message:
            return index + 1
    return 0


def breakpoint_edits(window: Window, folded: FoldedBranch) -> tuple[Edit, ...]:
    """The edits that marking the window made to the messages of `folded`."""
    shown = folded.shown
    dropped = [
        index
        for index in _marked_messages(shown)
        if count_breakpoints(window.messages[index].parts) < count_breakpoints(shown[index].message.parts)
    ]
    left_out = (_edit(folded, index, "cache breakpoint left out: there were too many") for index in dropped)
    added = (
        _edit(
            folded, window.index_at(mark.index) if mark.index is not None else None, _breakpoint_reason(mark)
        )
        for mark in window.breakpoints
    )
    return (*left_out, *added)


def _thinned(window: Window, own: list[CacheMark], excess: int) -> Window:
    """The window without the client's oldest breakpoints in messages."""
    messages, places = list(window.messages), sorted({place for (place, _), _ in own if place >= 0})
    for index in (found for place in places if (found := window.index_at(place)) is not None):
        message = messages[index]
        if excess > 0 and (found := count_breakpoints(message.parts)):
            messages[index] = unmarked(message)
            excess -= found
    return structs.replace(window, messages=tuple(messages))


def within_limit(window: Window) -> Window:
    """The window without its oldest breakpoints in messages, if it has more than its format allows: the provider
    would refuse it. Those of the system prompt and the tools stay, because they are never changed.
    """
    fixed, messages, marks = window.fixed, list(window.messages), list(window.breakpoints)
    most = fixed.dialect.max_breakpoints
    if not most:
        return window
    held = [count_breakpoints(message.parts) for message in messages]
    tools = sum(len(breakpoint_in(tool.raw)) for tool in fixed.tools if tool.raw is not None)
    system = sum(count_breakpoints(message.parts) for message in fixed.system)
    excess = sum(held) + len(marks) + tools + system + (fixed.automatic is not None) - most
    if excess <= 0:
        return window
    for index, found in enumerate(held):
        if excess <= 0:
            break
        place = window.place(index)
        left = [mark for mark in marks if mark.index != place]
        excess -= found + len(marks) - len(left)
        messages[index], marks = unmarked(messages[index]), left
    return structs.replace(window, messages=tuple(messages), breakpoints=tuple(marks))


def _choose(wanted: Iterable[Wish], taken: set[PartPlace], free: int) -> dict[PartPlace, str]:
    chosen = dict[PartPlace, str]()
    for reason, place in wanted:
        if place is not None and place not in taken and len(chosen) < free:
            chosen.setdefault(place, reason)
    return chosen


def _wanted(window: Window, boundary: int, last: Window | None) -> Iterator[Wish]:
    """Candidate places, most valuable first.

    The next call reads everything up to the tail. This call reads the cached prefix, which may be out of
    the tail's lookback. The system prompt survives every compaction. Of the two places that survive
    pruning, the boundary comes first, because it also covers the summary.
    """
    messages = window.sent
    tail = _last_place(messages, len(messages))
    yield "tail", tail
    yield "cached before", _out_of_sight(messages, _cached(window, last) if last else None, tail)
    yield "system prompt", _prompt_place(window.fixed)
    if boundary:
        yield "prune boundary", _last_place(messages, window.place(boundary - 1) + 1)
    yield "summary", _summary_place(window)


def _last_place(messages: Sequence[Message], stop: int) -> PartPlace | None:
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
    """Providers refuse a breakpoint on thinking and on blank text. Opaque parts are sent unchanged."""
    return not isinstance(part, Reasoning | Opaque) and not is_blank(part)


def _cached(window: Window, last: Window) -> PartPlace | None:
    """The last breakpoint of the previous window with an unchanged prefix."""
    if window.fixed != last.fixed or window.block != last.block:
        return None
    now, then = window.sent, last.sent
    pairs = enumerate(zip(now, then, strict=False))
    changed = (index for index, (new, old) in pairs if new is not old and new != old)
    same = next(changed, min(len(now), len(then)))
    marks = ((mark.index, mark.part) for mark in reversed(last.breakpoints) if mark.index is not None)
    return next(((index, part) for index, part in marks if index < same), None)


def _out_of_sight(
    messages: Sequence[Message], place: PartPlace | None, tail: PartPlace | None
) -> PartPlace | None:
    """The place, if it is so many blocks before the tail that the provider would not find it from there."""
    if place is None or tail is None:
        return None
    blocks = sum(len(message.parts) for message in messages[place[0] : tail[0]]) - place[1] + tail[1]
    return place if blocks >= LOOKBACK else None


def _prompt_place(fixed: FixedFields) -> PartPlace | None:
    part = _last_carrier(fixed.system[0].parts) if fixed.system else None
    return None if part is None else (_SYSTEM, part)


def _summary_place(window: Window) -> PartPlace | None:
    if window.block:
        return _SYSTEM, len(window.system[0].parts) - 1
    sent, first = window.sent, len(window.before) + window.opening
    told = [at for at in range(first, first + len(window.summaries)) if sent[at].text != BRIDGE]
    if not told and window.opening and sent[first - 1].role == "tool":
        told = [first - 1]  # the summary is one of its blocks
    return _last_place(sent, told[-1] + 1) if told else None


def _client_marks(window: Window, shown: View) -> list[CacheMark]:
    """The breakpoints that the client set, in wire order."""
    fixed = window.fixed
    tools = ((at, tool.raw) for at, tool in enumerate(fixed.tools) if tool.raw is not None)
    marks: list[CacheMark] = [((_TOOLS, at), ttl) for at, raw in tools for ttl in breakpoint_in(raw)]
    for message in fixed.system:
        marks += _marks_in(message, _SYSTEM)
    for index in _marked_messages(shown):
        marks += _marks_in(window.messages[index], window.place(index))
    if fixed.automatic is not None:
        messages = window.sent
        marks.append((_last_place(messages, len(messages)) or (len(messages), 0), fixed.automatic))
    return marks


def _marked_messages(shown: View) -> Iterator[int]:
    """Indices of messages with breakpoints. Verification has counted them already, so parts need not be searched."""
    seen = 0
    if shown.progress.breakpoints:
        for index, entry in enumerate(shown):
            if entry.progress.breakpoints > seen:
                seen = entry.progress.breakpoints
                yield index


def _marks_in(message: Message, index: int) -> list[CacheMark]:
    held = ((at, part) for at, part in enumerate(message.parts) if part.raw is not None)
    return [((index, at), ttl) for at, part in held for ttl in breakpoints_of(part)]


def _ttl_at(place: PartPlace, own: list[CacheMark], ttl: Ttl) -> Ttl:
    """The lifetime to ask for at a place: providers refuse a longer one after a shorter one."""
    if any(ttl == "1h" and place < mark for mark, ttl in own):
        return "1h"
    return "5m" if any(ttl == "5m" and mark < place for mark, ttl in own) else ttl


def _breakpoint(place: PartPlace, reason: str, ttl: Ttl) -> Breakpoint:
    index, part = place
    return Breakpoint(None if index == _SYSTEM else index, part, ttl, reason)


def unmarked(message: Message) -> Message:
    """The message without its breakpoints."""
    if not count_breakpoints(message.parts):
        return message
    return message.with_parts(tuple(map(_unmarked, message.parts)))


def _unmarked(part: Part) -> Part:
    """The part without breakpoints on its block or inside of it."""
    if part.raw is None or not breakpoints_of(part):
        return part
    fields = _FIELDS.decode(part.raw)
    fields.pop("cache_control", None)
    raw = Raw(msgspec.json.encode(fields))
    if isinstance(part, ToolResult):
        inner = tuple(_unmarked(held) for held in part.parts)
        return structs.replace(part, raw=raw, parts=inner)
    return structs.replace(part, raw=raw)


def _breakpoint_reason(mark: Breakpoint) -> str:
    return f"cache breakpoint for {mark.ttl}: {mark.reason}"


def _edit(folded: FoldedBranch, index: int | None, reason: str) -> Edit:
    if index is None:
        return Edit("cache", NO_SEQ, 0, 0, reason)
    seq, tokens = folded.number(index), folded.shown[index].tokens
    return Edit("cache", seq, tokens, tokens, reason, handle_of(seq))
