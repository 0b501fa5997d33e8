"""Replaces tool results that a later event has made worthless.

Events, not age, make a result worthless: a file that was read again or changed, the same output twice, an
error that was fixed. Each such result becomes a line that names the later event. The first event counts,
so the line does not change as the conversation continues.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct, structs

from refold.core.shown import Room, Shown, StageResult, changed, is_stub
from refold.core.stages.parts import Result, find_results, rebuilt, stub_result
from refold.core.tool_failures import stated_errors
from refold.core.tool_kinds import FileAccess, ToolKinds, call_key, file_accesses
from refold.model.message import Part

_Event: TypeAlias = tuple[str, ...]
"""An event on a file, an output or a failed call: its kind and its object."""


class SupersedeTexts(Struct, frozen=True):
    """The stubs for stale results. `{by}` names the later result, `{handle}` the stale one."""

    read_again: str = "[outdated, the file was read again in {by}; this was {handle}]"
    edited: str = "[outdated, the file was changed in {by}; this was {handle}]"
    repeated: str = "[the same output came again in {by}; this was {handle}]"
    fixed: str = "[an error, fixed in {by}; this was {handle}]"

    def spell(self, cause: _Cause, handle: str) -> str:
        text = {"edited": self.edited, "fixed": self.fixed, "repeated": self.repeated}
        return text.get(cause.name, self.read_again).replace("{by}", cause.by).replace("{handle}", handle)


class Supersede(Struct, frozen=True, tag="supersede"):
    texts: SupersedeTexts = SupersedeTexts()
    min_chars: int = 200
    """Shorter results stay: their stub would hardly be shorter."""
    active: bool = False
    """Include the active turn, up to the latest reply: an agent's whole run is often one turn."""

    def apply(self, shown: Shown, room: Room) -> StageResult:
        parts: dict[tuple[int, int], Part] = {}
        reasons: dict[int, str] = {}
        free = structs.replace(shown, protected=_latest_reply(shown)) if self.active else shown
        for found, cause in _stale(find_results(shown), room.tools):
            stub = self.texts.spell(cause, found.handle)
            length = len(found.result.text)
            if room.may_touch(free, found.index) and length > max(len(stub), self.min_chars):
                parts[found.index, found.place] = stub_result(found.result, stub)
                reasons[found.item.seq] = f"{cause.name} in {cause.by}"
        if not parts:
            return StageResult.skipped(shown, "nothing has been superseded")
        return changed("supersede", shown, rebuilt(shown, parts), room, lambda item: reasons[item.seq])


def _latest_reply(shown: Shown) -> int:
    """Index at which the newest reply begins; the model has read the messages before it."""
    at = len(shown.items) - 1
    while at > 0 and shown.items[at].message.role != "assistant":
        at -= 1
    return max(0, at)


class _Cause(Struct, frozen=True):
    """The reason that a result is stale: the kind of event, the handle of its result, and its position."""

    name: str
    by: str
    at: int


def _stale(results: list[Result], kinds: ToolKinds) -> list[tuple[Result, _Cause]]:
    """The results that a later event supersedes. One backward pass knows the next event of each kind."""
    later: dict[_Event, _Cause] = {}
    stale: list[tuple[Result, _Cause]] = []
    for at in range(len(results) - 1, -1, -1):
        found, call = results[at], results[at].call
        text, handle = found.result.text, found.handle
        if call is None or is_stub(text, handle):
            continue
        accesses = file_accesses(call, kinds)
        reads = [access for access in accesses if access.kind == "read"]
        has_failed = bool(stated_errors(found.result, is_content=bool(reads)))
        repeated, fixed = ("repeated", call.name, text), ("fixed", call_key(call, kinds, accesses))
        causes = [_first(later, [repeated, fixed] if has_failed else [repeated])]
        causes += [_outdated(later, reads)] if reads and not has_failed else []
        if known := [cause for cause in causes if cause is not None]:
            stale.append((found, min(known, key=_position)))
        later[repeated] = _Cause("repeated", handle, at)
        if not has_failed:
            later[fixed] = _Cause("fixed", handle, at)
            later.update(_events(found, accesses, at))
    return stale[::-1]


def _first(later: dict[_Event, _Cause], events: list[_Event]) -> _Cause | None:
    """The first of these events that happened."""
    causes = [later[event] for event in events if event in later]
    return min(causes, key=_position, default=None)


def _outdated(later: dict[_Event, _Cause], reads: list[FileAccess]) -> _Cause | None:
    """The event that outdated a result: the last file of several that was read again or changed."""
    found = [
        _first(later, [("read", one.path, one.span), ("read", one.path, ""), ("edited", one.path)])
        for one in reads
    ]
    causes = [cause for cause in found if cause is not None]
    return max(causes, key=_position) if len(causes) == len(reads) else None


def _position(cause: _Cause) -> int:
    return cause.at


def _events(found: Result, accesses: tuple[FileAccess, ...], at: int) -> dict[_Event, _Cause]:
    """The events on files by which this result supersedes earlier ones."""
    events: dict[_Event, _Cause] = {}
    for access in accesses:
        if access.kind == "read":
            events["read", access.path, access.span] = _Cause("read_again", found.handle, at)
        else:
            changed_in = found.caller.handle if found.caller else found.handle
            events["edited", access.path] = _Cause("edited", changed_in, at)
    return events
