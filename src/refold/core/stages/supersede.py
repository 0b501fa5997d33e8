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
from refold.core.tool_kinds import COMMON_TOOLS, FileAccess, ToolKinds, file_accesses, has_failed
from refold.model.message import Part, ToolCall

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
    kinds: ToolKinds = COMMON_TOOLS
    """The tools that read files and the tools that change them."""
    texts: SupersedeTexts = SupersedeTexts()
    min_chars: int = 200
    """Shorter results stay: their stub would hardly be shorter."""
    active: bool = False
    """Include the active turn, up to the latest reply: an agent's whole run is often one turn."""

    def apply(self, shown: Shown, room: Room) -> StageResult:
        parts: dict[tuple[int, int], Part] = {}
        reasons: dict[int, str] = {}
        free = structs.replace(shown, protected=_latest_reply(shown)) if self.active else shown
        for found, cause in _stale(find_results(shown), self.kinds):
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
        if call is None or is_stub(found.result.text, found.handle):
            continue
        accesses = file_accesses(call, kinds)
        causes = [later[event] for event in _superseding(found, call, accesses) if event in later]
        if causes:
            stale.append((found, min(causes, key=lambda cause: cause.at)))
        later.update(_events(found, call, accesses, at))
    return stale[::-1]


def _superseding(found: Result, call: ToolCall, accesses: tuple[FileAccess, ...]) -> list[_Event]:
    """The later events that would make this result stale."""
    repeated = ("repeated", call.name, found.result.text)
    if has_failed(found.result):
        return [repeated, ("fixed", call.name, _target(call, accesses))]
    reads = [access for access in accesses if access.kind == "read"]
    return [
        repeated,
        *(("read", access.path, span) for access in reads for span in (access.span, "")),
        *(("edited", access.path) for access in reads),
    ]


def _events(found: Result, call: ToolCall, accesses: tuple[FileAccess, ...], at: int) -> dict[_Event, _Cause]:
    """The events by which this result supersedes earlier ones."""
    handle = found.handle
    events: dict[_Event, _Cause] = {
        ("repeated", call.name, found.result.text): _Cause("repeated", handle, at)
    }
    if has_failed(found.result):
        return events
    events["fixed", call.name, _target(call, accesses)] = _Cause("fixed", handle, at)
    for access in accesses:
        if access.kind == "read":
            events["read", access.path, access.span] = _Cause("read_again", handle, at)
        else:
            changed_in = found.caller.handle if found.caller else handle
            events["edited", access.path] = _Cause("edited", changed_in, at)
    return events


def _target(call: ToolCall, accesses: tuple[FileAccess, ...]) -> str:
    """The object of a call: its file, or all of its arguments."""
    return accesses[0].path if accesses else call.arguments
